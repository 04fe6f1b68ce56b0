"""Decoded batches from which rows of tables are read: a cache that all tables of a broker share.

Columns of a row are read one by one, and checksums cover whole batches: a batch is checked and decoded once while it is
in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from headrace.wire.decoded import Columns

BATCH_OVERHEAD_BYTES = 2_000
"""Memory of one decoded batch besides its payload, measured."""


class BatchCache:
    """Batches of one broker, within a limit of memory. Belongs to the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: OrderedDict[tuple[PartitionBatches, int], Columns] = OrderedDict()
        self.size_bytes = 0

    def get(self, owner: PartitionBatches, base_offset: int) -> Columns:
        """Return a batch that `owner` has."""
        self._batches.move_to_end((owner, base_offset))
        return self._batches[owner, base_offset]

    def put(self, owner: PartitionBatches, columns: Columns) -> None:
        """Keep a batch; evict others if there is no room."""
        self._batches[owner, columns.header.base_offset] = columns
        self.size_bytes += _size(columns)
        while self.size_bytes > self._max_bytes and len(self._batches) > 1:
            (evicted, base_offset), old = self._batches.popitem(last=False)
            self.size_bytes -= _size(old)
            evicted.forget(base_offset)

    def remove(self, owner: PartitionBatches, base_offset: int) -> None:
        """Remove a batch."""
        self.size_bytes -= _size(self._batches.pop((owner, base_offset)))


class PartitionBatches:
    """Batches of one partition in a `BatchCache`."""

    def __init__(self, cache: BatchCache) -> None:
        self._cache = cache
        self._bases: list[int] = []

    def find(self, offset: int) -> Columns | None:
        """Return the batch that covers an offset, or `None`."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        columns = self._cache.get(self, self._bases[at])
        return columns if offset < columns.header.end_offset else None

    def add(self, columns: Columns) -> None:
        """Keep a batch, instead of those that it covers: a compacted one replaces several."""
        header = columns.header
        first = bisect_right(self._bases, header.base_offset - 1)
        last = bisect_right(self._bases, header.end_offset - 1)
        for base_offset in self._bases[first:last]:
            self._cache.remove(self, base_offset)
        self._bases[first:last] = [header.base_offset]
        self._cache.put(self, columns)

    def forget(self, base_offset: int) -> None:
        """Note that a batch has been evicted."""
        del self._bases[bisect_right(self._bases, base_offset) - 1]

    def clear(self) -> None:
        """Remove all."""
        for base_offset in self._bases:
            self._cache.remove(self, base_offset)
        self._bases.clear()


def _size(columns: Columns) -> int:
    return columns.header.payload_bytes + BATCH_OVERHEAD_BYTES
