"""Arrow record batches for Spark, with the columns of the schema and exactly its types.

Values, keys and headers are not copied unless small batches are merged. Runs in executors; imports pyarrow and pyspark.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.base.records import DecodedBatch
from headrace.wire.ids import TopicPartition

LEAST_ROWS = 4_096
"""Smaller batches are merged: each costs Spark as much as thousands of rows."""
MOST_ROWS = 16_384
MOST_BYTES = 16 * 1024 * 1024
"""Maximum bytes of keys and values in one Arrow batch, unless a single record is larger."""


class ArrowColumns:
    """Creates the Arrow batches of one partition. For one task."""

    def __init__(self, schema: StructType, where: TopicPartition) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._where = where
        self._constants: dict[str, Any] = {}
        makers: dict[str, Callable[[list[DecodedBatch], int], Any]] = {
            "key": lambda decoded_batches, _: keys_of(decoded_batches),
            "value": lambda decoded_batches, _: values_of(decoded_batches),
            "headers": lambda decoded_batches, _: _joined(
                [_cut(each, each.columns.to_arrow_headers()) for each in decoded_batches]
            ),
            "topic": lambda _, count: self._constant("topic", count),
            "partition": lambda _, count: self._constant("partition", count),
            "offset": lambda decoded_batches, _: _numbers(
                _joined_numbers(list(map(_offsets, decoded_batches))), pa.int64()
            ),
            "timestamp": lambda decoded_batches, _: _numbers(
                _joined_numbers(list(map(_micros, decoded_batches))), pa.timestamp("us", tz="UTC")
            ),
        }
        self._makers = [makers[field.name] for field in self._schema]

    def batches(self, decoded_batches: Iterable[DecodedBatch]) -> Iterator[Any]:
        """Yield `pyarrow.RecordBatch`es over the records of consecutive decoded batches."""
        for group in grouped(decoded_batches):
            count = sum(each.end - each.start for each in group)
            arrays = [
                _typed(make(group, count), field.type) for make, field in zip(self._makers, self._schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, count: int) -> Any:
        """Return an array of `count` equal values; all are slices of one long array."""
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


def grouped(decoded_batches: Iterable[DecodedBatch]) -> Iterator[list[DecodedBatch]]:
    """Merge small decoded batches and divide large ones, so that every group has a size that suits Spark."""
    group: list[DecodedBatch] = []
    rows = size = 0
    for decoded in decoded_batches:
        for piece in pieces(decoded):
            group.append(piece)
            rows += piece.end - piece.start
            size += _bytes(piece)
            if rows >= LEAST_ROWS or size >= MOST_BYTES // 2:
                yield group
                group, rows, size = [], 0, 0
    if group:
        yield group


def pieces(decoded: DecodedBatch) -> Iterator[DecodedBatch]:
    """Divide a decoded batch into pieces of at most `MOST_ROWS` and, unless one record is larger, about half of
    `MOST_BYTES`.
    """
    count = decoded.end - decoded.start
    size = _bytes(decoded)
    if count <= MOST_ROWS and size <= MOST_BYTES // 2:
        yield decoded
        return
    step = max(1, min(MOST_ROWS, count * (MOST_BYTES // 4) // max(1, size)))
    for start in range(0, count, step):
        piece = decoded.cut(start, min(count, start + step))
        # For records of very unequal sizes the average is not representative, so halves are divided again.
        if _bytes(piece) > MOST_BYTES // 2 and piece.end - piece.start > 1:
            half = (piece.end - piece.start) // 2
            yield from pieces(piece.cut(0, half))
            yield from pieces(piece.cut(half, piece.end - piece.start))
        else:
            yield piece


def values_of(decoded_batches: list[DecodedBatch]) -> Any:
    """Return the values as one binary array; not copied if they are of one decoded batch."""
    return _joined([_cut(each, each.columns.to_arrow_values()) for each in decoded_batches])


def keys_of(decoded_batches: list[DecodedBatch]) -> Any:
    """Return the keys as one binary array; not copied if they are of one decoded batch."""
    return _joined([_cut(each, each.columns.to_arrow_keys()) for each in decoded_batches])


def _bytes(decoded: DecodedBatch) -> int:
    """Return the bytes of keys and values."""
    columns, start, end = decoded.columns, decoded.start, decoded.end
    size = int(columns.value_column.offsets[end]) - int(columns.value_column.offsets[start])
    if columns.key_column is not None:
        size += int(columns.key_column.offsets[end]) - int(columns.key_column.offsets[start])
    return size


def _cut(decoded: DecodedBatch, array: Any) -> Any:
    """Return the decoded batch's part of a column of the whole batch."""
    count = decoded.end - decoded.start
    return array if count == len(array) else array.slice(decoded.start, count)


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _joined_numbers(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _offsets(decoded: DecodedBatch) -> npt.NDArray[np.int64]:
    return decoded.columns.offset_array(decoded.start, decoded.end)


def _micros(decoded: DecodedBatch) -> npt.NDArray[np.int64]:
    """Return timestamps in microseconds, as in Spark."""
    times = decoded.columns.timestamps_ms
    if times is None:
        return np.full(decoded.end - decoded.start, decoded.columns.header.base_timestamp_ms * 1000, np.int64)
    return times[decoded.start : decoded.end] * 1000


def _numbers(numbers: npt.NDArray[Any], arrow_type: Any) -> Any:
    """Return an array over the same memory."""
    return pa.Array.from_buffers(arrow_type, len(numbers), [None, pa.py_buffer(numbers)])


def _typed(array: Any, arrow_type: Any) -> Any:
    """Return the array with Spark's type: other names of a list's child and nullability, the same bytes."""
    return array if array.type == arrow_type else array.cast(arrow_type)
