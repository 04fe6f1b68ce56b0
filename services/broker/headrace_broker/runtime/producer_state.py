"""Filling the producer windows of a replica from its log, when it is opened (H48).

Batches are checked before they are believed: a rotten one would have a producer refused, or a record taken twice. So
that a start reads no more than it must, `SnapshotClock` says when a snapshot is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.log.log import PartitionLog

from headrace_broker.core.producers import ProducerWindows

SNAPSHOT_BYTES = 128 << 20
SNAPSHOT_MS = 60_000


@dataclass(frozen=True, slots=True)
class SnapshotClock:
    """When the producers were last kept, and how much a start would have to read."""

    offset: int
    """Behind the last record that they knew."""
    size_bytes: int
    at_ms: int

    def is_due(self, end_offset: int, size_bytes: int, now_ms: int) -> bool:
        """Whether enough was appended since, or something and long ago."""
        if end_offset == self.offset:
            return False
        return abs(size_bytes - self.size_bytes) >= SNAPSHOT_BYTES or now_ms - self.at_ms >= SNAPSHOT_MS


def rebuild_producers(producers: ProducerWindows, partition_log: PartitionLog) -> int:
    """Restore the newest snapshot and add the batches behind it; the offset that these began at.

    Blocks: call it in a thread, before the first use. Raises CorruptLogError, StorageOfflineError.
    """
    snapshot = partition_log.load_producer_snapshot()
    start = int(partition_log.log_start_offset)
    if snapshot is not None and producers.restore(snapshot[1]):
        start = max(start, snapshot[0])
    for header in partition_log.checked_headers(start) if start < partition_log.log_end_offset else ():
        if header.base_offset >= start:
            producers.record_batch(header)
    return start
