"""Producer windows of a log that was opened: from its newest snapshot and the batches after it (H48).

Batches are verified before use: a corrupt one could make a producer be rejected, or a record be appended twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.log.log import PartitionLog
from headrace.partition.producers import ProducerWindows

SNAPSHOT_BYTES = 128 << 20
SNAPSHOT_MS = 60_000


@dataclass(frozen=True, slots=True)
class SnapshotClock:
    """Time and position of the last producer snapshot, after which a start has to read."""

    offset: int
    """End offset of the snapshot."""
    size_bytes: int
    at_ms: int

    def is_due(self, partition_log: PartitionLog, now_ms: int) -> bool:
        """Return whether much was appended since the snapshot, or something and the snapshot is old."""
        if partition_log.log_end_offset == self.offset:
            return False
        return now_ms - self.at_ms >= SNAPSHOT_MS or abs(partition_log.size_bytes - self.size_bytes) >= SNAPSHOT_BYTES


def rebuild_producers(producers: ProducerWindows, partition_log: PartitionLog) -> int:
    """Restore the newest snapshot and add the batches after it; return the offset of the first of these.

    Blocks; call it in a thread, before the first use. Raises CorruptLogError, StorageOfflineError.
    """
    snapshot = partition_log.snapshots.load()
    start, restored_end = int(partition_log.log_start_offset), 0
    if snapshot is not None and producers.restore(snapshot[1]):
        restored_end = snapshot[0]
        start = max(start, restored_end)
    for header in partition_log.reader.checked_headers(start) if start < partition_log.log_end_offset else ():
        if header.base_offset >= restored_end:  # The batch that holds the log start may begin below it.
            producers.record_batch(header)
    return start
