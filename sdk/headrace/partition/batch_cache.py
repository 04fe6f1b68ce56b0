"""Decoded batches from which rows of tables are read: a cache that all tables of a broker share.

Columns of a row are read one by one, and checksums cover whole batches: a batch is checked and decoded once while it is
in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from headrace.wire.decoded import Columns

BATCH_OVERHEAD_BYTES = 2_000
"""Memory of one decoded batch besides its payload, measured."""


class RecordValue(NamedTuple):
    """Value of a record, and its time in ms since 1970."""

    value: bytes
    timestamp_ms: int


class DecodedValues:
    """Values of one batch, of which single ones are read: memory views return their elements faster than numpy."""

    __slots__ = ("_data", "_ends", "_offsets", "_time_ms", "_times", "base_offset", "end_offset", "size_bytes")

    def __init__(self, columns: Columns) -> None:
        header = columns.header
        self.base_offset, self.end_offset = header.base_offset, header.end_offset
        self.size_bytes = header.payload_bytes + BATCH_OVERHEAD_BYTES
        self._ends = columns.value_column.offsets.data
        self._data = columns.value_column.data
        self._offsets = None if columns.record_offsets is None else columns.record_offsets.data
        self._times = None if columns.timestamps_ms is None else columns.timestamps_ms.data
        self._time_ms = header.base_timestamp_ms

    def take(self, offsets: Iterable[int], values: dict[int, RecordValue]) -> int:
        """Add the values of records of the batch to `values`, without those that compaction has removed.

        Return the bytes of these values.
        """
        data, ends, times, time_ms = self._data, self._ends, self._times, self._time_ms
        size_bytes = 0
        for offset in offsets:
            row = offset - self.base_offset
            if self._offsets is not None:
                row = bisect_left(self._offsets, offset)
                if row == len(self._offsets) or self._offsets[row] != offset:
                    continue
            value = data[ends[row] : ends[row + 1]].tobytes()
            values[offset] = RecordValue(value, time_ms if times is None else times[row])
            size_bytes += len(value)
        return size_bytes


class BatchCache:
    """Batches of one process, within a limit of memory. One thread at a time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: OrderedDict[tuple[PartitionBatches, int], DecodedValues] = OrderedDict()
        self.size_bytes = 0

    def get(self, owner: PartitionBatches, base_offset: int) -> DecodedValues:
        """Return a batch that `owner` has."""
        self._batches.move_to_end((owner, base_offset))
        return self._batches[owner, base_offset]

    def put(self, owner: PartitionBatches, batch: DecodedValues) -> None:
        """Keep a batch; evict others if there is no room."""
        self._batches[owner, batch.base_offset] = batch
        self.size_bytes += batch.size_bytes
        while self.size_bytes > self._max_bytes and len(self._batches) > 1:
            (evicted, base_offset), old = self._batches.popitem(last=False)
            self.size_bytes -= old.size_bytes
            evicted.forget(base_offset)

    def remove(self, owner: PartitionBatches, base_offset: int) -> None:
        """Remove a batch."""
        self.size_bytes -= self._batches.pop((owner, base_offset)).size_bytes


class PartitionBatches:
    """Batches of one partition in a `BatchCache`."""

    def __init__(self, cache: BatchCache) -> None:
        self._cache = cache
        self._bases: list[int] = []

    def find(self, offset: int) -> DecodedValues | None:
        """Return the batch that covers an offset, or `None`."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        batch = self._cache.get(self, self._bases[at])
        return batch if offset < batch.end_offset else None

    def add(self, batch: DecodedValues) -> None:
        """Keep a batch, instead of those that it covers: a compacted one replaces several."""
        first = bisect_left(self._bases, batch.base_offset)
        last = bisect_left(self._bases, batch.end_offset)
        for base_offset in self._bases[first:last]:
            self._cache.remove(self, base_offset)
        self._bases[first:last] = [batch.base_offset]
        self._cache.put(self, batch)

    def forget(self, base_offset: int) -> None:
        """Note that a batch has been evicted."""
        del self._bases[bisect_left(self._bases, base_offset)]

    def clear(self) -> None:
        """Remove all."""
        for base_offset in self._bases:
            self._cache.remove(self, base_offset)
        self._bases.clear()
