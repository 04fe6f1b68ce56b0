"""Producer windows of a replica: rebuilt from its log, and written to snapshots (H48).

`SnapshotClock` determines when a snapshot is due, so that a start has little to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.partition.producer_recovery import SnapshotClock, rebuild_producers
from headrace.partition.producers import ProducerWindows

from headrace_broker.core.roles import Role
from headrace_broker.settings import BrokerSettings

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition


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

    @property
    def snapshot_is_due(self) -> bool:
        """Whether much was appended since the last producer snapshot, or something and the snapshot is old."""
        return self._last_snapshot.is_due(self._partition.open_log, self._context.clock.monotonic_ms())

    async def snapshot_if_due(self) -> bool:
        """Write a producer snapshot if one is due, while appends wait; return whether it did."""
        if not self.snapshot_is_due:
            return False
        async with self._log_lock:
            if self._replica.role in (Role.OFFLINE, Role.DELETED) or self.are_stale:
                return False
            self.note_snapshot(self._partition.open_log.log_end_offset)
            await self._partition.in_thread(self.snapshot)
        return True

    def snapshot(self) -> None:
        """Write a snapshot. Blocks, under the lock of the log."""
        partition_log = self._partition.open_log
        partition_log.snapshots.store(partition_log.log_end_offset, self._replica.producers.snapshot())
