"""Log start of a partition: deletion of records by its leader, and by its followers after it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.log.errors import RETRY_AFTER_MS
from headrace.wire.errors import HeadraceError, OffsetOutOfRangeError, Outcome, TimedOutError
from headrace.wire.ids import Offset

from headrace_broker.core.messages import LogStartAwaited, LogStartRaised, LogStartWanted
from headrace_broker.runtime.partition_host import PartitionHost

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition


class LogStart:
    """Log start of one partition. Belongs to the event loop."""

    def __init__(self, partition: Partition, host: PartitionHost) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._context = partition.context
        self._log_lock = partition.log_lock
        self._host = host

    async def delete_records(self, before_offset: int, timeout_seconds: float) -> Offset:
        """Raise the log start of the partition to `before_offset` (`-1`: the high watermark) and return it.

        Raises:
            OffsetOutOfRangeError: If `before_offset` is above the high watermark.
            NotEnoughReplicasError: If too few replicas are in sync.
            TimedOutError, NotLeaderError: With outcome UNKNOWN if some in-sync replica may still have the records.
        """
        replica = self._replica
        replica.check_leading(-1).check_in_sync()
        before = replica.high_watermark if before_offset == -1 else before_offset
        if before > replica.high_watermark:
            raise OffsetOutOfRangeError(f"offset {before} is above the high watermark {replica.high_watermark}")
        self._partition.handle(LogStartWanted(Offset(before)))
        token, future = self._partition.acknowledgements.begin()
        self._partition.handle(LogStartAwaited(token, Offset(before), replica.leader_epoch))
        error = await self._partition.acknowledgements.settle(token, future, timeout_seconds)
        if not future.done():
            raise TimedOutError(f"not every in-sync replica begins at {before} yet", outcome=Outcome.UNKNOWN)
        if error is not None:
            raise error
        return replica.log_start_offset

    async def raise_to(self, offset: Offset) -> None:
        """Perform `RaiseLogStart`; retry after a pause while the disk rejects it (H35)."""
        async with self._log_lock:
            leadership = self._replica.leadership
            if leadership is None or leadership.raising_to != offset:
                return
            try:
                await self.apply(offset)
            except HeadraceError as error:
                if not self._partition.fail_unless_refused(error):
                    delay_seconds = RETRY_AFTER_MS / 1000
                    asyncio.get_running_loop().call_later(
                        delay_seconds, self._host.raise_log_start, self._partition, offset
                    )

    async def apply(self, offset: Offset) -> None:
        """Raise the start of the log, under its lock. Raises HeadraceError."""
        high_watermark, partition_log = self._replica.high_watermark, self._partition.open_log
        segments = partition_log.segment_count
        start = await self._partition.in_thread(lambda: partition_log.retention.delete_records(offset, high_watermark))
        self._context.metrics.deleted_segments.inc(max(0, segments - partition_log.segment_count))
        self._partition.handle(LogStartRaised(start))
