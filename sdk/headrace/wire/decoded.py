"""Decoded batch: its columns as views into the payload, as lists and as pyarrow arrays.

Made by `headrace.wire.columns.decode_batch`, which has checked every offset; used by consumers and the Spark reader.
"""

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.wire.batch import NONE_REMOVED, REMOVED_UNKNOWN, BatchHeader, RemovedRecords
from headrace.wire.typed.typed_columns import TypedColumns

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Headers: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, eq=False)
class BinaryColumn:
    """Column of byte strings; views into the payload, immutable, any thread."""

    offsets: Int32s
    """int32[n + 1], from 0, ascending."""
    data: memoryview
    """offsets[n] bytes."""
    validity: Bytes | None
    """uint8[(n + 7) // 8], least significant bit first; `None` means that no entry is null."""

    def part(self, start: int, end: int) -> "BinaryColumn":
        """Return the entries `start` to `end` as a separate column; offsets and bitmap are small copies."""
        first, last = int(self.offsets[start]), int(self.offsets[end])
        validity = self.validity
        if validity is not None:
            bits = np.unpackbits(validity, bitorder="little")[start:end]
            validity = np.packbits(bits, bitorder="little")
        return BinaryColumn(self.offsets[start : end + 1] - np.int32(first), self.data[first:last], validity)

    def take(self, kept: npt.NDArray[np.bool_]) -> "BinaryColumn":
        """Return the entries that `kept` has as a separate column; a copy unless that is all of them."""
        if kept.all():
            return self
        sizes = np.diff(self.offsets)
        offsets = np.zeros(int(kept.sum()) + 1, np.int32)
        np.cumsum(sizes[kept], out=offsets[1:])
        data = np.frombuffer(self.data, np.uint8)[np.repeat(kept, sizes)]
        validity = None if self.validity is None else np.packbits(self.valid()[kept], bitorder="little")
        return BinaryColumn(offsets, data.data, validity)

    def copied(self) -> "BinaryColumn":
        """Return the same entries in memory of their own, without that of the payload."""
        validity = None if self.validity is None else self.validity.copy()
        return BinaryColumn(self.offsets.copy(), memoryview(bytes(self.data)), validity)

    def valid(self) -> npt.NDArray[np.bool_]:
        """Return which entries are not null."""
        count = len(self.offsets) - 1
        if self.validity is None:
            return np.ones(count, np.bool_)
        return np.unpackbits(self.validity, count=count, bitorder="little").astype(np.bool_)

    def to_list(self) -> list[Any]:
        """Return the entries as bytes, `None` for null."""
        count = len(self.offsets) - 1
        if "pyarrow" in sys.modules:
            entries: list[Any] = self.to_arrow().to_pylist()
            return entries
        entries = _split(self.offsets, self.data, count)
        if self.validity is not None:
            for index in np.flatnonzero(~self.valid()).tolist():
                entries[index] = None
        return entries

    def to_arrow(self, arrow_type: Any = None) -> Any:
        """Return a pyarrow array over the same memory; `arrow_type` is binary by default, or string."""
        import pyarrow as pa

        validity = None if self.validity is None else pa.py_buffer(self.validity)
        buffers = [validity, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(arrow_type or pa.binary(), len(self.offsets) - 1, buffers)


def _split(offsets: Int32s, data: memoryview, count: int) -> list[Any]:
    """Cut `data` at `offsets` into a list of bytes; if all have the same size, numpy is fastest."""
    lengths = np.diff(offsets)
    size = int(lengths[0]) if count else 0
    if size and (lengths == size).all():
        entries: list[Any] = np.frombuffer(data, f"V{size}", count).tolist()
        return entries
    return list(map(io.BytesIO(data).read, lengths.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class HeaderColumns:
    """Headers of the records; views into the payload, immutable, any thread."""

    list_offsets: Int32s
    """int32[n + 1]: record i has the headers list_offsets[i] .. list_offsets[i + 1]."""
    keys: BinaryColumn
    """Header keys, UTF-8, never null."""
    values: BinaryColumn
    """Header values, never null."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Decoded batch: views into its bytes or into the decompressed payload, immutable, any thread."""

    header: BatchHeader
    value_source: BinaryColumn | TypedColumns
    key_column: BinaryColumn | None
    timestamps_ms: Int64s | None
    """int64[n], or `None` if all records have header.base_timestamp_ms."""
    header_columns: HeaderColumns | None
    record_offsets: Int64s | None = None
    """int64[n] of a compacted batch; `None` if the offsets are consecutive from header.base_offset."""
    removed_records: RemovedRecords | None = None

    @property
    def typed(self) -> TypedColumns | None:
        """Values of a typed batch; `None` of another."""
        return self.value_source if isinstance(self.value_source, TypedColumns) else None

    @property
    def value_column(self) -> BinaryColumn:
        """Values as bytes; those of a typed batch as JSON objects, which are made on first use."""
        if isinstance(self.value_source, BinaryColumn):
            return self.value_source
        offsets, data = self.value_source.json_column()
        return BinaryColumn(offsets, data, None)

    @property
    def removed(self) -> RemovedRecords:
        """What compaction has removed from the batch."""
        if self.removed_records is not None:
            return self.removed_records
        is_whole = self.record_count == self.header.end_offset - self.header.base_offset
        return NONE_REMOVED if is_whole else REMOVED_UNKNOWN

    @property
    def record_count(self) -> int:
        """Number of records; 0 only in a compacted batch."""
        return self.header.record_count

    def values(self) -> list[bytes | None]:
        """Return the values in order."""
        return self.value_column.to_list()

    def keys(self) -> list[bytes | None]:
        """Return the keys in order; all `None` if the batch has no keys."""
        return [None] * self.record_count if self.key_column is None else self.key_column.to_list()

    def timestamps(self) -> list[int]:
        """Return the records' timestamps in ms since 1970, in order."""
        if self.timestamps_ms is None:
            return [self.header.base_timestamp_ms] * self.record_count
        times: list[int] = self.timestamps_ms.tolist()
        return times

    def offsets(self, start: int = 0, end: int | None = None) -> Sequence[int]:
        """Return the offsets of the records `start` to `end`."""
        end = self.record_count if end is None else end
        if self.record_offsets is None:
            return range(self.header.base_offset + start, self.header.base_offset + end)
        offsets: list[int] = self.record_offsets[start:end].tolist()
        return offsets

    def offset_array(self, start: int, end: int) -> Int64s:
        """Return the offsets of the records `start` to `end` as int64."""
        if self.record_offsets is None:
            return np.arange(self.header.base_offset + start, self.header.base_offset + end, dtype=np.int64)
        return self.record_offsets[start:end]

    def index_of(self, offset: int) -> int:
        """Return the index of the first record at or after `offset`; the number of records if there is none."""
        if self.record_offsets is None:
            return min(max(0, offset - self.header.base_offset), self.record_count)
        return int(np.searchsorted(self.record_offsets, offset))

    def offset_after(self, index: int) -> int:
        """Return the offset at which a reader continues that has the records below `index`."""
        if index == self.record_count:
            return self.header.end_offset
        if self.record_offsets is None or index == 0:
            return self.header.base_offset + index
        return int(self.record_offsets[index - 1]) + 1

    def headers(self, start: int = 0, end: int | None = None) -> list[Headers]:
        """Return the headers of each record from `start` to `end` in order, `()` for a record without any."""
        end = self.record_count if end is None else end
        if self.header_columns is None:
            return [()] * (end - start)
        cuts = self.header_columns.list_offsets[start : end + 1].tolist()
        first, last = cuts[0], cuts[-1]
        names: list[bytes] = self.header_columns.keys.part(first, last).to_list()
        values = self.header_columns.values.part(first, last).to_list()
        pairs = list(zip([str(name, "utf-8") for name in names], values, strict=True))
        return [tuple(pairs[one - first : other - first]) for one, other in pairwise(cuts)]

    def to_arrow_values(self) -> Any:
        """Return a pyarrow binary array over the same memory."""
        return self.value_column.to_arrow()

    def to_arrow_keys(self) -> Any:
        """Return a pyarrow binary array over the same memory; all null if the batch has no keys."""
        if self.key_column is not None:
            return self.key_column.to_arrow()
        import pyarrow as pa

        from headrace.wire.arrow_constants import NO_BYTES, zeros

        count = self.record_count
        buffers = [zeros((count + 7) // 8), zeros(4 * (count + 1)), NO_BYTES]
        return pa.Array.from_buffers(pa.binary(), count, buffers, count)

    def to_arrow_timestamps(self) -> Any:
        """Return a pyarrow timestamp(ms, UTC) array; over the same memory if the batch has the column."""
        import pyarrow as pa

        from headrace.wire.arrow_constants import TIMESTAMP

        times = self.timestamps_ms
        if times is None:
            times = np.full(self.record_count, self.header.base_timestamp_ms, np.int64)
        return pa.Array.from_buffers(TIMESTAMP, len(times), [None, pa.py_buffer(times)])

    def to_arrow_offsets(self) -> Any:
        """Return a pyarrow int64 array of the records' offsets."""
        import pyarrow as pa

        offsets = self.offset_array(0, self.record_count)
        return pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)])

    def to_arrow_headers(self) -> Any:
        """Return a pyarrow list<struct<key: string, value: binary>> array over the same memory."""
        import pyarrow as pa

        from headrace.wire.arrow_constants import HEADER, HEADERS, NO_HEADERS, zeros

        count, columns = self.record_count, self.header_columns
        if columns is None:
            return pa.Array.from_buffers(HEADERS, count, [None, zeros(4 * (count + 1))], children=[NO_HEADERS])
        cuts = columns.list_offsets
        children = [columns.keys.to_arrow(pa.string()), columns.values.to_arrow()]
        entries = pa.StructArray.from_buffers(HEADER, int(cuts[-1]), [None], children=children)
        return pa.Array.from_buffers(HEADERS, count, [None, pa.py_buffer(cuts)], children=[entries])
