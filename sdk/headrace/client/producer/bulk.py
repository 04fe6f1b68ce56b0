"""Columns of one `send_many`, divided into batches without a step per record. Pure.

Lengths become one cumulative array of costs, so that a batch's end is found by one binary search. Arrow arrays stay in
their buffers.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.client.base.errors import SerializationError
from headrace.client.base.serializers import Serializer, serialize
from headrace.client.producer.accumulator import HEADER_OVERHEAD, Headers, with_headers
from headrace.client.producer.record_fields import checked_headers, checked_timestamps
from headrace.client.producer.sequences import ProducerStamp
from headrace.wire.compression import Codec
from headrace.wire.crc import ReadableBuffer
from headrace.wire.encoding import ArrowBuffers, arrow_buffers, batch_parts, column_parts, join_column, lengths_of

Int64s = npt.NDArray[np.int64]
OFFSET_BYTES = 4
TIME_BYTES = 8
JOINED_BYTES = 64 * 1024 * 1024
"""Lists of more bytes than this are joined batch by batch."""


class Bulk:
    """Records as columns. Immutable.

    Args:
        values: bytes or `None` each, or an Arrow column.
        keys: the same, or `None` for no keys.
        headers: pairs each or `None`, or `None` for no headers.
        timestamps_ms: one each or `None`, or `None` for no own timestamps.
        group_ends: int64[m], ascending: ends of the groups of records that are in one batch each; the last one is the
            number of records. `None` means that each record may be in any batch.
    """

    __slots__ = ("_ends", "_headers", "_keys", "_times", "_values", "group_ends")

    def __init__(
        self,
        values: list[bytes | None] | ArrowBuffers,
        keys: list[bytes | None] | ArrowBuffers | None,
        headers: Sequence[Headers | None] | None,
        timestamps_ms: list[int | None] | None,
        group_ends: Int64s | None = None,
    ) -> None:
        self._values = values
        self.group_ends = group_ends
        self._keys = keys
        self._headers = headers
        self._times = timestamps_ms
        # Exact rather than an upper bound: ten thousand Spark rows make two full batches, without a small third one.
        overhead = OFFSET_BYTES * (1 + (keys is not None) + (headers is not None))
        overhead += 0 if timestamps_ms is None else TIME_BYTES
        ends, has_bitmap = _ends(values)
        bitmaps = int(has_bitmap)
        for name, column in (("keys", keys), ("headers", headers), ("timestamps_ms", timestamps_ms)):
            if column is not None and _count(column) != len(ends):
                raise SerializationError(
                    f"{_count(column)} {name} for {len(ends)} values", action="Pass one per value."
                )
        ends += np.arange(overhead, overhead * (len(ends) + 1), overhead)
        if keys is not None:
            key_ends, has_bitmap = _ends(keys)
            ends += key_ends
            bitmaps += has_bitmap
        if bitmaps:
            ends += bitmaps * (np.arange(8, len(ends) + 8) // 8)
        if headers is not None:
            ends += np.cumsum(np.fromiter(map(_header_cost, headers), np.int64, len(ends)))
        self._ends: Int64s = ends

    def __len__(self) -> int:
        return len(self._ends)

    def cut(self, start: int, limit: int, records: int) -> tuple[int, int]:
        """Return an end index after `start` and the cost up to it: `records`, or the number that fits in `limit` bytes.

        At least one record, or one group.
        """
        before = int(self._ends[start - 1]) if start else 0
        end = int(np.searchsorted(self._ends, before + limit, side="right"))
        end = min(max(end, start + 1), start + records, len(self))
        if self.group_ends is not None:
            whole = int(np.searchsorted(self.group_ends, end, side="right"))  # Groups that end there or before.
            first = int(np.searchsorted(self.group_ends, start, side="right"))
            end = int(self.group_ends[max(whole - 1, first)])
        return end, int(self._ends[end - 1]) - before

    def timestamps(self, start: int, end: int) -> list[int | None] | None:
        """Return the timestamps of some records."""
        return None if self._times is None else self._times[start:end]

    def encode(
        self,
        start: int,
        end: int,
        stamp: ProducerStamp,
        *,
        base_timestamp_ms: int,
        codec: Codec,
        level: int | None,
        more_headers: Headers = (),
    ) -> list[ReadableBuffer]:
        """Encode some records as one batch, in parts; see `Encodes`."""
        headers = None if self._headers is None else self._headers[start:end]
        rest: dict[str, Any] = {
            "base_timestamp_ms": base_timestamp_ms,
            "headers": with_headers(headers, more_headers, end - start),
            "timestamps_ms": self.timestamps(start, end),
            "codec": codec,
            "compression_level": level,
            **stamp._asdict(),
        }
        keys = self._keys
        if keys is not None:
            keys = keys[start:end] if isinstance(keys, list) else _part(keys, start, end)
        if isinstance(self._values, ArrowBuffers):
            joined = join_column("key", keys) if isinstance(keys, list) else keys
            return column_parts(_part(self._values, start, end), joined, **rest)
        listed = _as_list(keys) if isinstance(keys, ArrowBuffers) else keys
        return batch_parts(self._values[start:end], listed, **rest)

    def by_partition(self, choose: Callable[[bytes | None], int]) -> Iterator[tuple[int, "Bulk"]]:
        """Split by the partition of each key, partitions ascending; order within a partition is kept."""
        keys = _as_list(self._keys) if isinstance(self._keys, ArrowBuffers) else self._keys
        chosen = np.fromiter(map(choose, keys if keys is not None else [None] * len(self)), np.int64, len(self))
        values = _as_list(self._values) if isinstance(self._values, ArrowBuffers) else self._values
        for partition in np.unique(chosen).tolist():
            rows = np.flatnonzero(chosen == partition).tolist()
            yield (
                partition,
                Bulk(
                    [values[row] for row in rows],
                    None if keys is None else [keys[row] for row in rows],
                    None if self._headers is None else [self._headers[row] for row in rows],
                    None if self._times is None else [self._times[row] for row in rows],
                ),
            )


def bulk_of(
    values: Any,
    keys: Any,
    headers: Sequence[Headers | None] | None,
    timestamps_ms: Any,
    key_serializer: Serializer | None,
    value_serializer: Serializer | None,
    group_ends: Any = None,
) -> Bulk:
    """Convert the arguments of `send_many`.

    Raises:
        SerializationError: If an entry is not bytes, headers or a timestamp are invalid, columns differ in length, or
            the groups are no division.
    """
    joined = _joined(values) if keys is None and value_serializer is None else None
    ends = None if group_ends is None else np.asarray(group_ends, np.int64)
    bulk = Bulk(
        joined or _taken(values, value_serializer, "value"),
        None if keys is None else _taken(keys, key_serializer, "key"),
        None if headers is None else [None if pairs is None else checked_headers(pairs) for pairs in headers],
        None if timestamps_ms is None else checked_timestamps(timestamps_ms),
        ends,
    )
    if ends is not None:
        steps = np.diff(ends, prepend=0)
        if steps.sum() != len(bulk) or not (steps > 0).all():
            raise SerializationError(
                f"group_ends do not divide {len(bulk)} records", action="Pass the end of each group, ascending."
            )
    return bulk


def _joined(column: Any) -> ArrowBuffers | None:
    """Return a plain list of bytes as one buffer with offsets, joined once; `None` to use it unchanged.

    Not if records have keys, which divide them, or if too many bytes would be in memory twice.
    """
    if type(column) is not list:
        return None
    try:
        ends = np.cumsum(lengths_of(column), dtype=np.int64)
        if not len(ends) or ends[-1] > JOINED_BYTES:
            return None
        data = b"".join(column)
    except TypeError:
        return None
    if len(data) != ends[-1]:
        return None  # An entry that is not bytes: its length differs from its size.
    offsets = np.zeros(len(column) + 1, np.int32)
    offsets[1:] = ends
    return ArrowBuffers(offsets, data)


def _taken(column: Any, serializer: Serializer | None, what: str) -> list[bytes | None] | ArrowBuffers:
    if hasattr(column, "columns"):  # An Arrow table, or a data frame of pandas or Polars.
        raise SerializationError(
            f"the {what}s are a {type(column).__name__}, not one column",
            action=f'Pass a column of it, for example {what}s=table["{what}"].',
        )
    if isinstance(column, str | bytes):
        raise SerializationError(f"the {what}s are one {type(column).__name__}", action="Pass a list, or call send.")
    if hasattr(column, "__arrow_array__") or type(column).__module__.partition(".")[0] == "pyarrow":
        return arrow_buffers(column.combine_chunks() if hasattr(column, "combine_chunks") else column)
    entries = column if isinstance(column, list) else list(column)
    if serializer is None and set(map(type, entries)) <= {bytes}:
        return entries
    return [serialize(serializer, entry, what) for entry in entries]


def _ends(column: list[bytes | None] | ArrowBuffers) -> tuple[Int64s, bool]:
    """Return the cumulative bytes of a column after each entry, and whether it has a bitmap of nulls."""
    if isinstance(column, ArrowBuffers):
        ends: Int64s = np.subtract(column.offsets[1:], column.offsets[0], dtype=np.int64)
        return ends, column.validity is not None
    try:
        return np.cumsum(lengths_of(column), dtype=np.int64), False
    except TypeError:
        lengths = np.fromiter((0 if entry is None else len(entry) for entry in column), np.int64, len(column))
        return np.cumsum(lengths), True


def _count(column: Any) -> int:
    return len(column.offsets) - 1 if isinstance(column, ArrowBuffers) else len(column)


def _header_cost(headers: Headers | None) -> int:
    return sum(HEADER_OVERHEAD + 4 * len(name) + len(data) for name, data in headers or ())


def _part(column: ArrowBuffers, start: int, end: int) -> ArrowBuffers:
    bitmap = column.validity
    if bitmap is not None:
        bits = np.unpackbits(bitmap, bitorder="little")[start:end]
        bitmap = np.packbits(bits, bitorder="little")
    return ArrowBuffers(column.offsets[start : end + 1], column.data, bitmap)


def _as_list(column: ArrowBuffers) -> list[bytes | None]:
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    cuts = (column.offsets - first).tolist()
    data = bytes(memoryview(column.data)[first:last])
    entries: list[bytes | None] = [data[a:b] for a, b in pairwise(cuts)]
    if column.validity is not None:
        valid = np.unpackbits(column.validity, bitorder="little", count=len(entries)).tolist()
        entries = [entry if ok else None for entry, ok in zip(entries, valid, strict=True)]
    return entries
