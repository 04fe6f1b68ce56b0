"""Handling of a corrupt log, detected here or reported by a reader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from headrace.log.errors import CorruptLogError
from headrace.wire.errors import HeadraceError, OffsetOutOfRangeError, StorageOfflineError

from headrace_broker.core.roles import Role

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition

log = structlog.get_logger(__name__)

_LOOK_BYTES = 16 << 20
COMPACT_AGAIN_MS = 3_600_000
"""Time after which a log that a compaction found corrupt is compacted again: retention may have removed the records."""


class CorruptionCheck:
    """Corruption handling of one partition. Belongs to the event loop."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._context = partition.context
        self.task: asyncio.Task[None] | None = None
        """Task of the last verification."""
        self._compact_again_ms = 0

    def verify(self, offset: int) -> None:
        """Verify the log on disk after a reader found corrupt bytes; take the replica offline if it is corrupt."""
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._verify(offset))
            self._context.watch(self.task)

    async def _verify(self, offset: int) -> None:
        if self._replica.role in (Role.OFFLINE, Role.DELETED):
            return
        # The log start may lie inside a batch, which replicas copy whole.
        partition_log = self._partition.open_log
        start = max(offset, partition_log.log_start_offset)
        try:
            await self._partition.in_thread(lambda: partition_log.reader.verify_from(start, _LOOK_BYTES))
        except OffsetOutOfRangeError:
            return
        except HeadraceError as error:
            self.note_read_error(error)
            return
        log.info(
            "corruption_not_confirmed", topic=self._partition.topic, partition=self._partition.number, offset=offset
        )

    def note_read_error(self, error: HeadraceError) -> None:
        """Handle the error of a read: take the replica offline if its log failed and another replica has the records.

        Without another in-sync replica it stays online, so that intact records can be read, and raises an alarm (H33).
        """
        if not isinstance(error, StorageOfflineError) or self._replica.role in (Role.OFFLINE, Role.DELETED):
            return
        state = self._replica.state
        has_others = state is not None and any(entry.broker_id != self._context.broker_id for entry in state.in_sync)
        if has_others or not isinstance(error, CorruptLogError):
            self._partition.fail(error)
            return
        self._context.metrics.corruptions_detected.inc()
        log.error("log_corrupt", topic=self._partition.topic, partition=self._partition.number, reason=str(error))

    @property
    def is_compaction_paused(self) -> bool:
        """Whether a compaction has found this log corrupt within the last hour."""
        return self._context.clock.monotonic_ms() < self._compact_again_ms

    def note_compaction_error(self, error: HeadraceError) -> None:
        """Handle the error of a compaction: corruption is that of a read, other failures take the replica offline."""
        if isinstance(error, CorruptLogError):
            self._compact_again_ms = self._context.clock.monotonic_ms() + COMPACT_AGAIN_MS
            self.note_read_error(error)
        else:
            self._partition.fail_unless_refused(error)
