"""Producer windows of a replica: rebuilt from its log, and written to snapshots (H48).

Batches are verified before use: a corrupt one could make the broker reject a producer, or append a record twice.
`SnapshotClock` determines when a snapshot is due, so that a start has little to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.log.log import PartitionLog
from headrace.partition.producers import ProducerWindows

from headrace_broker.core.roles import Role
from headrace_broker.settings import BrokerSettings

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition

SNAPSHOT_BYTES = 128 << 20
SNAPSHOT_MS = 60_000


@dataclass(frozen=True, slots=True)
class SnapshotClock:
    """Time and position of the last producer snapshot, after which a start has to read."""

    offset: int
    """End offset of the snapshot."""
    size_bytes: int
    at_ms: int

    def is_due(self, end_offset: int, size_bytes: int, now_ms: int) -> bool:
        """Return whether much was appended since the snapshot, or something and the snapshot is old."""
        if end_offset == self.offset:
            return False
        return abs(size_bytes - self.size_bytes) >= SNAPSHOT_BYTES or now_ms - self.at_ms >= SNAPSHOT_MS


def rebuild_producers(producers: ProducerWindows, partition_log: PartitionLog) -> int:
    """Restore the newest snapshot and add the batches after it; return the offset of the first of these.

    Blocks; call it in a thread, before the first use. Raises CorruptLogError, StorageOfflineError.
    """
    snapshot = partition_log.snapshots.load()
    start = int(partition_log.log_start_offset)
    if snapshot is not None and producers.restore(snapshot[1]):
        start = max(start, snapshot[0])
    for header in partition_log.reader.checked_headers(start) if start < partition_log.log_end_offset else ():
        if header.base_offset >= start:
            producers.record_batch(header)
    return start


def make_windows(settings: BrokerSettings) -> ProducerWindows:
    """Return empty windows within a broker's settings."""
    return ProducerWindows(
        max_producers=settings.max_producers,
        expiry_ms=settings.producer_expiry_ms,
        retry_window_ms=settings.producer_retry_window_ms,
    )


class ProducerState:
    """Producers of one partition, consistent with its log. Belongs to the event loop."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._context = partition.context
        self._log_lock = partition.log_lock
        self.are_stale = False
        """Whether the log was truncated and the producers were not rebuilt."""
        self._last_snapshot = SnapshotClock(0, 0, partition.context.clock.monotonic_ms())

    async def rebuild(self) -> None:
        """Read the producers from the log. Raises CorruptLogError, StorageOfflineError, REFUSALS."""
        producers = make_windows(self._context.settings)
        await self._partition.in_thread(lambda: rebuild_producers(producers, self._partition.open_log))
        self._replica.producers = producers
        self.are_stale = False

    def note_snapshot(self, offset: int) -> None:
        """Record that the disk has a producer snapshot at `offset`."""
        self._last_snapshot = SnapshotClock(
            offset, self._partition.open_log.size_bytes, self._context.clock.monotonic_ms()
        )

    @property
    def last_snapshot_ms(self) -> int:
        """Time of the last producer snapshot (monotonic)."""
        return self._last_snapshot.at_ms

    async def snapshot_if_due(self) -> bool:
        """Write a producer snapshot if one is due, while appends wait; return whether it did."""
        partition_log, kept = self._partition.open_log, self._last_snapshot
        now_ms = self._context.clock.monotonic_ms()
        if not kept.is_due(partition_log.log_end_offset, partition_log.size_bytes, now_ms):
            return False
        async with self._log_lock:
            if self._replica.role in (Role.OFFLINE, Role.DELETED) or self.are_stale:
                return False
            self.note_snapshot(partition_log.log_end_offset)
            await self._partition.in_thread(self.snapshot)
        return True

    def snapshot(self) -> None:
        """Write a snapshot. Blocks, under the lock of the log."""
        partition_log = self._partition.open_log
        partition_log.snapshots.store(partition_log.log_end_offset, self._replica.producers.snapshot())
