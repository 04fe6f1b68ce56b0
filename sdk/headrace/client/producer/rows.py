"""Rows of typed topics: one that a producer was given, and their conversion into a batch. Pure.

pyarrow is imported for a typed topic only; it is the extra `headrace[arrow]`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.client.base.data_frames import arrow_of
from headrace.client.base.errors import SerializationError
from headrace.client.producer.record_fields import checked_timestamps
from headrace.client.producer.sequences import ProducerStamp
from headrace.wire.compression import Codec
from headrace.wire.crc import ReadableBuffer
from headrace.wire.encoding import ArrowBuffers, RowBlocks, arrow_buffers, column_parts, join_column
from headrace.wire.errors import HeadraceError
from headrace.wire.typed.column_types import ColumnType
from headrace.wire.typed.row_keys import is_exact, key_of, keys_of_blocks
from headrace.wire.typed.topic_columns import TopicColumns

FIXED_BYTES = 8
"""Bytes counted for a value of one width; a text has its length besides."""


class TypedBulk:
    """Rows as Arrow columns, for `ProducerCore.send_table`; see `Bulk`. Immutable."""

    group_ends = None
    """Each row may be in any batch."""

    def __init__(
        self, arrays: Sequence[Any], columns: TopicColumns, keys: Any, timestamps_ms: list[int | None] | None
    ) -> None:
        """`arrays` are those of the columns, `keys` a binary array or `None`."""
        from headrace.wire.typed.array_blocks import ArrayBlocks

        self._blocks = [ArrayBlocks(array, each.type) for array, each in zip(arrays, columns.current, strict=True)]
        self._arrays = arrays
        self._columns = columns
        self._keys = keys
        self._times = timestamps_ms
        self._count = len(arrays[0])
        self._sizes = ColumnSizes([*arrays, keys] if keys is not None else arrays)
        size = self._sizes.bytes(0, self._count)
        self._row_bytes = max(1.0, size / max(1, self._count)) + (FIXED_BYTES if timestamps_ms is not None else 0)

    def __len__(self) -> int:
        return self._count

    def cut(self, start: int, limit: int, records: int) -> tuple[int, int]:
        """See `Bulk.cut`; the cost of a row is that of all rows on average, or of these if they are larger."""
        end = min(max(start + 1, start + int(limit / self._row_bytes)), start + records, self._count)
        while (cost := self._cost(start, end)) > limit and end > start + 1:
            end = start + max(1, int((end - start) * limit / cost * 0.95))
        return end, cost

    def two_batches(self, start: int, end: int, cost: int, limit: int) -> tuple[int, int]:
        """Return the end of two batches, the first of which ends at `end`, and their cost; of one if `limit` is less.

        One request of two batches takes less of the processor than two requests.
        """
        both = min(2 * end - start, self._count)
        cost_of_both = self._cost(start, both)
        return (both, cost_of_both) if cost_of_both <= limit else (end, cost)

    def _cost(self, start: int, end: int) -> int:
        return self._sizes.bytes(start, end) + (0 if self._times is None else FIXED_BYTES * (end - start))

    def timestamps(self, start: int, end: int) -> list[int | None] | None:
        """Return the timestamps of some records."""
        return None if self._times is None else [*self._times[start:end]]

    def encode(
        self,
        start: int,
        end: int,
        stamp: ProducerStamp,
        *,
        base_timestamp_ms: int,
        codec: Codec,
        level: int | None,
        more_headers: Sequence[tuple[str, bytes]] = (),
    ) -> list[ReadableBuffer]:
        """Encode some rows as one batch, in parts; see `Encodes`."""
        count = end - start
        return column_parts(
            RowBlocks(self._columns.batch_text, [each.block(start, end) for each in self._blocks], count),
            None if self._keys is None else arrow_buffers(self._keys.slice(start, count)),
            base_timestamp_ms=base_timestamp_ms,
            headers=[more_headers, *[None] * (count - 1)] if more_headers else None,
            timestamps_ms=self.timestamps(start, end),
            codec=codec,
            compression_level=level,
            **stamp._asdict(),
        )

    def by_partition(self, choose: Callable[[bytes | None], int]) -> Iterator[tuple[int, "TypedBulk"]]:
        """Split by the partition of each key, partitions ascending; order within a partition is kept."""
        keys = [None] * len(self) if self._keys is None else self._keys.to_pylist()
        chosen = np.fromiter(map(choose, keys), np.int64, len(self))
        for partition in np.unique(chosen).tolist():
            rows = np.flatnonzero(chosen == partition)
            yield (
                partition,
                TypedBulk(
                    [array.take(rows) for array in self._arrays],
                    self._columns,
                    None if self._keys is None else self._keys.take(rows),
                    None if self._times is None else [self._times[row] for row in rows.tolist()],
                ),
            )


class ColumnSizes:
    """Bytes that parts of columns take, about: of arrays of numbers and texts without a step for each part's array."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._row_bits = 0
        self._offsets: list[npt.NDArray[np.int32]] = []
        self._others: list[Any] = []
        for array in arrays:
            kind, nulls = str(array.type), 1 if array.null_count else 0
            if kind in {"string", "binary"} and array.buffers()[1] is not None:
                self._row_bits += 32 + nulls
                self._offsets.append(np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset))
            elif array.type.num_fields == 0 and kind not in {"string", "binary"}:
                self._row_bits += array.type.bit_width + nulls
            else:
                self._others.append(array)

    def bytes(self, start: int, end: int) -> int:
        """Return the bytes of the rows from `start` to `end`."""
        size = self._row_bits * (end - start) // 8 + sum(int(each[end] - each[start]) for each in self._offsets)
        return int(size + sum(array.slice(start, end - start).nbytes for array in self._others))


class TypedRow:
    """Row of one `send`. Its length is about the bytes that it takes in a batch, as that of a value of bytes."""

    __slots__ = ("_size", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Raise SerializationError for text without a form in UTF-8: half of a surrogate pair."""
        self.values = dict(values)
        try:
            self._size = sum(map(_size_of, self.values.values()))
        except UnicodeEncodeError as error:
            raise SerializationError(
                f"a row has text without a form in UTF-8: {error.object!r:.80}",
                action="Replace the half of a surrogate pair in it, or send it in a binary column.",
            ) from error

    def __len__(self) -> int:
        return self._size


def _size_of(value: Any) -> int:
    """Return about the most bytes that a value takes in a batch."""
    if isinstance(value, str):
        return FIXED_BYTES + (len(value) if value.isascii() else len(value.encode()))
    if isinstance(value, bytes):
        return FIXED_BYTES + len(value)
    if isinstance(value, Mapping):
        return FIXED_BYTES + sum(map(_size_of, value.keys())) + sum(map(_size_of, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return FIXED_BYTES + sum(map(_size_of, value))
    return 4 * FIXED_BYTES if isinstance(value, Decimal) else int(getattr(value, "nbytes", FIXED_BYTES))


def checked_row(topic: str, row: TypedRow, key: bytes | None, columns: TopicColumns) -> bytes | None:
    """Check that a row fits a topic's columns; return the key of its record.

    Raises:
        SerializationError: If it does not; the message has the column and the value.
    """
    from headrace.wire.typed.arrow_columns import check_row

    try:
        check_row(row.values, columns)
        own_key = _key_of_row(row.values, columns) if columns.keys else None
    except HeadraceError as error:
        raise SerializationError(f"a row for {topic}: {error.message}", action=error.action) from error
    if not columns.keys:
        return key
    if key is not None:
        raise _has_key_columns(topic, columns)
    return own_key


def _key_of_row(row: Mapping[str, Any], columns: TopicColumns) -> bytes:
    """Return the key of a row that fits the columns."""
    values = [row.get(column.name, column.default_value) for column in columns.keys]
    if all(map(is_exact, (column.type for column in columns.keys), values)):
        return key_of(values)
    from headrace.wire.typed.arrow_columns import array_of_value

    kinds = [column.type for column in columns.keys]
    (key,) = _keys_of_arrays([array_of_value(value, kind) for value, kind in zip(values, kinds, strict=True)], kinds)
    return key


def encode_rows(
    rows: Sequence[TypedRow], keys: Sequence[bytes | None] | None, columns: TopicColumns, **fields: Any
) -> list[ReadableBuffer]:
    """Encode rows as one batch, in parts; `fields` as for `column_parts`.

    Raises:
        InvalidRequestError: If a row does not fit: the columns have changed since it was checked.
    """
    from headrace.wire.typed.array_blocks import block_of_array
    from headrace.wire.typed.arrow_columns import arrays_of_rows, check_required

    arrays = arrays_of_rows([row.values for row in rows], columns)
    for array, column in zip(arrays, columns.current, strict=True):
        check_required(array, column)
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns.current, strict=True)]
    joined: ArrowBuffers | None = None if keys is None else join_column("key", keys)
    return column_parts(RowBlocks(columns.batch_text, blocks, len(rows)), joined, **fields)


def bulk_of_table(topic: str, table: Any, keys: Any, timestamps_ms: Any, columns: TopicColumns) -> TypedBulk:
    """Convert the arguments of `send_table`: a pyarrow table or record batch, or a data frame of pandas or Polars.

    Raises:
        SerializationError: If it does not fit the topic's columns; the message has the column and the row.
    """
    import pyarrow as pa

    from headrace.wire.typed.arrow_columns import arrays_of_table

    table = arrow_of(table)
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise SerializationError(
            f"{type(table).__name__} is no table",
            action="Pass a pyarrow table or record batch, or a data frame of pandas or Polars; a dict goes to send.",
        )
    try:
        arrays = arrays_of_table(table, columns)
        own_keys = key_array(arrays, columns) if columns.keys else None
    except HeadraceError as error:
        raise SerializationError(f"a table for {topic}: {error.message}", action=error.action) from error
    if columns.keys:
        if keys is not None:
            raise _has_key_columns(topic, columns)
        keys = own_keys
    elif keys is not None:
        keys = pa.array(keys, pa.binary()) if not isinstance(keys, pa.Array | pa.ChunkedArray) else keys
        keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        keys = keys.cast(pa.binary())
    times = None if timestamps_ms is None else checked_timestamps(timestamps_ms)
    for name, column in (("keys", keys), ("timestamps_ms", times)):
        if column is not None and len(column) != table.num_rows:
            raise SerializationError(f"{len(column)} {name} for {table.num_rows} rows", action="Pass one per row.")
    return TypedBulk(arrays, columns, keys, times)


def key_array(arrays: Sequence[Any], columns: TopicColumns) -> Any:
    """Return the keys of rows by the arrays of all current columns."""
    import pyarrow as pa

    kinds = [column.type for column in columns.keys]
    arrays = [array for array, column in zip(arrays, columns.current, strict=True) if column.is_key]
    if len(arrays) == 1 and (pa.types.is_string(arrays[0].type) or pa.types.is_binary(arrays[0].type)):
        return arrays[0].cast(pa.binary())
    return pa.array(_keys_of_arrays(arrays, kinds), pa.binary())


def _keys_of_arrays(arrays: Sequence[Any], kinds: Sequence[ColumnType]) -> list[bytes]:
    from headrace.wire.typed.array_blocks import block_of_array

    return keys_of_blocks(list(map(block_of_array, arrays, kinds)), kinds, len(arrays[0]))


def _has_key_columns(topic: str, columns: TopicColumns) -> SerializationError:
    names = ", ".join(column.name for column in columns.keys)
    return SerializationError(f"a key is given, but the key of {topic} is {names}", action="Leave the key out.")
