"""Record batches as Spark takes them: Arrow's, with the columns that the schema names, of the types it holds strictly.

Values, keys and headers stay where they were received unless small batches are put together. Runs in executors; imports
pyarrow and pyspark.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.records import Segment
from headrace.wire.ids import TopicPartition

LEAST_ROWS = 4_096
"""Smaller batches are put together: each costs Spark as much as thousands of rows."""
MOST_ROWS = 16_384
MOST_BYTES = 16 * 1024 * 1024
"""Keys and values of one Arrow batch, unless a single record is larger."""


class ArrowColumns:
    """Makes Arrow batches for one partition. For one task."""

    def __init__(self, schema: StructType, where: TopicPartition) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._where = where
        self._constants: dict[str, Any] = {}
        makers: dict[str, Callable[[list[Segment], int], Any]] = {
            "key": lambda segments, _: keys_of(segments),
            "value": lambda segments, _: values_of(segments),
            "headers": lambda segments, _: _joined([_cut(each, each.columns.to_arrow_headers()) for each in segments]),
            "topic": lambda _, count: self._constant("topic", count),
            "partition": lambda _, count: self._constant("partition", count),
            "offset": lambda segments, _: _numbers(_joined_numbers(list(map(_offsets, segments))), pa.int64()),
            "timestamp": lambda segments, _: _numbers(
                _joined_numbers(list(map(_micros, segments))), pa.timestamp("us", tz="UTC")
            ),
        }
        self._makers = [makers[field.name] for field in self._schema]

    def batches(self, segments: Iterable[Segment]) -> Iterator[Any]:
        """Give `pyarrow.RecordBatch`es over the records of segments that follow each other."""
        for group in grouped(segments):
            count = sum(each.end - each.start for each in group)
            arrays = [
                _typed(make(group, count), field.type) for make, field in zip(self._makers, self._schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, count: int) -> Any:
        """Give `count` times the same; one long array serves all."""
        known = self._constants.get(name)
        if known is None or len(known) < count:
            size = max(count, MOST_ROWS)
            if name == "topic":
                data = self._where.topic.encode()
                ends = np.arange(size + 1, dtype=np.int32) * np.int32(len(data))
                known = pa.Array.from_buffers(pa.string(), size, [None, pa.py_buffer(ends), pa.py_buffer(data * size)])
            else:
                known = _numbers(np.full(size, self._where.partition, np.int32), pa.int32())
            self._constants[name] = known
        return known.slice(0, count)


def grouped(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Put small segments together and cut large ones, so that every group is of a size that suits Spark."""
    group: list[Segment] = []
    rows = size = 0
    for segment in segments:
        for piece in pieces(segment):
            group.append(piece)
            rows += piece.end - piece.start
            size += _bytes(piece)
            if rows >= LEAST_ROWS or size >= MOST_BYTES // 2:
                yield group
                group, rows, size = [], 0, 0
    if group:
        yield group


def pieces(segment: Segment) -> Iterator[Segment]:
    """Cut a segment into pieces of at most `MOST_ROWS` and, unless one record is larger, about half of `MOST_BYTES`."""
    count = segment.end - segment.start
    size = _bytes(segment)
    if count <= MOST_ROWS and size <= MOST_BYTES // 2:
        yield segment
        return
    step = max(1, min(MOST_ROWS, count * (MOST_BYTES // 4) // max(1, size)))
    for start in range(0, count, step):
        piece = segment.cut(start, min(count, start + step))
        # Records of very unequal sizes: where the average deceives, halves are looked at again.
        if _bytes(piece) > MOST_BYTES // 2 and piece.end - piece.start > 1:
            half = (piece.end - piece.start) // 2
            yield from pieces(piece.cut(0, half))
            yield from pieces(piece.cut(half, piece.end - piece.start))
        else:
            yield piece


def values_of(segments: list[Segment]) -> Any:
    """Give the values as one binary array; not copied where they are of one segment."""
    return _joined([_cut(each, each.columns.to_arrow_values()) for each in segments])


def keys_of(segments: list[Segment]) -> Any:
    """Give the keys as one binary array; not copied where they are of one segment."""
    return _joined([_cut(each, each.columns.to_arrow_keys()) for each in segments])


def _bytes(segment: Segment) -> int:
    """How many bytes keys and values have."""
    columns, start, end = segment.columns, segment.start, segment.end
    size = int(columns.value_offsets[end]) - int(columns.value_offsets[start])
    if columns.key_column is not None:
        size += int(columns.key_column.offsets[end]) - int(columns.key_column.offsets[start])
    return size


def _cut(segment: Segment, array: Any) -> Any:
    """Give the segment's part of a whole batch's column."""
    count = segment.end - segment.start
    return array if count == len(array) else array.slice(segment.start, count)


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _joined_numbers(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _offsets(segment: Segment) -> npt.NDArray[np.int64]:
    return np.arange(segment.base_offset, segment.end_offset, dtype=np.int64)


def _micros(segment: Segment) -> npt.NDArray[np.int64]:
    """Timestamps in microseconds, which is what Spark has."""
    times = segment.columns.timestamps_ms
    if times is None:
        return np.full(segment.end - segment.start, segment.columns.header.base_timestamp_ms * 1000, np.int64)
    return times[segment.start : segment.end] * 1000


def _numbers(numbers: npt.NDArray[Any], arrow_type: Any) -> Any:
    """Give an array over the same memory."""
    return pa.Array.from_buffers(arrow_type, len(numbers), [None, pa.py_buffer(numbers)])


def _typed(array: Any, arrow_type: Any) -> Any:
    """Give the array under Spark's own type: a list's child and nullability have other names there, the same bytes."""
    return array if array.type == arrow_type else array.cast(arrow_type)
