"""Removal of deleted rows from the files of one replica, at once.

The active segment is closed, everything below is compacted without the rows, and the files that were replaced are
unlinked without their delay. A purge continues if its caller is gone; the same request finds it. Belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog
from headrace.log.log_compaction import CompactionReport
from headrace.partition.purged_rows import PurgedRows, check_deleted
from headrace.wire.errors import HeadraceError, Outcome, TimedOutError
from headrace_server.caller_turns import next_turn

from headrace_broker.runtime.waiters import WakeUp

if TYPE_CHECKING:
    from headrace.log.log import PartitionLog

    from headrace_broker.runtime.partition import Partition
    from headrace_broker.runtime.table import PartitionTable

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
COMMIT_SECONDS = 60.0
"""Time for which a purge waits until what it has closed is committed."""
KEPT_MS = 60_000
"""Time for which the result of a purge waits for its caller, which asks again within 20 s."""
_TRIES = 20


class TablePurge:
    """Purges of one replica, one at a time."""

    def __init__(self, partition: Partition, table: PartitionTable) -> None:
        self._partition = partition
        self._table = table
        self._wanted: PurgedRows | None = None
        self._task: asyncio.Task[CompactionReport] | None = None
        # The log of the last purge with its truncations, and when that ended.
        self._ended: tuple[PartitionLog, int, int] | None = None

    def close(self) -> None:
        """End the purge in progress."""
        if self._task is not None:
            self._task.cancel()

    async def purge(self, wanted: PurgedRows, seconds: float) -> CompactionReport | None:
        """Purge rows; return `None` if that takes longer than `seconds`: the next call waits for the same purge.

        What is committed here must reach `wanted.before_offset`.

        Raises:
            InvalidRequestError: If one of the rows exists.
            TimedOutError: If another purge is in progress, or `close` ends this one.
            HeadraceError: If the log cannot be read or written.
        """
        if self._task is not None and self._is_busy(wanted):
            await asyncio.wait([self._task], timeout=seconds / 2)
            if self._is_busy(wanted):
                raise TimedOutError(
                    "another purge of this partition is in progress",
                    outcome=Outcome.NOT_APPLIED,
                    retriable=True,
                    action="Try again; it ends.",
                )
        if self._task is None or self._wanted != wanted or self._is_outdated():
            self._wanted, self._ended, self._task = wanted, None, asyncio.create_task(self._purge(wanted))
            self._task.add_done_callback(self._note_end)
        task = self._task
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            return None
        if self._task is task:
            self._task = None
        if task.cancelled():  # By `close`; not the call, which is answered.
            raise TimedOutError(
                "the purge was ended: this replica is removed, or the topic is no table any more",
                outcome=Outcome.UNKNOWN,
                retriable=True,
                action="Look up the table's replicas, and try again.",
            )
        return task.result()

    def _is_busy(self, wanted: PurgedRows) -> bool:
        """Whether another purge than this one is in progress."""
        return self._task is not None and self._wanted != wanted and not self._task.done()

    def _is_outdated(self) -> bool:
        """Whether the last purge has ended too long ago for its result: more may have expired, or been copied here."""
        if self._ended is None:
            return False
        log, truncations, ended_ms = self._ended
        if log is not self._partition.log or log.truncations != truncations:
            return True
        return self._partition.context.clock.monotonic_ms() - ended_ms >= KEPT_MS

    def _note_end(self, task: asyncio.Task[CompactionReport]) -> None:
        """Note of which log a purge was, and when it ended; its error may have no caller, and the next one meets it."""
        if not task.cancelled():
            task.exception()
        log = self._partition.log
        if task is self._task and log is not None:
            self._ended = log, log.truncations, self._partition.context.clock.monotonic_ms()

    async def _purge(self, wanted: PurgedRows) -> CompactionReport:
        partition, log = self._partition, self._partition.open_log
        async with partition.log_lock:
            end_offset = await partition.in_thread(lambda: log.close_below(wanted.before_offset))
            if not partition.producers.are_stale:  # Batches that may be sent again are written anew, too.
                await partition.in_thread(partition.producers.snapshot)
        await self._await_state(end_offset)
        for _ in check_deleted(self._table.state, wanted):
            await next_turn()
        report = await self._compact(wanted, end_offset)
        while await self._unlink():  # noqa: ASYNC110 - a reader has one of the files.
            await asyncio.sleep(LOOK_SECONDS)
        return report

    async def _unlink(self) -> int:
        """Unlink the files that were replaced; return the number of segments that are being read."""
        async with self._partition.log_lock:
            return await self._partition.in_thread(self._partition.open_log.retention.purge_deleted_files)

    async def _await_state(self, end_offset: int) -> None:
        """Wait until what was closed is committed, and the state has it: only that is compacted."""
        advanced, watchers = WakeUp(), self._partition.watchers
        watchers[advanced] = None
        deadline = asyncio.get_running_loop().time() + COMMIT_SECONDS
        try:
            while self._partition.replica.high_watermark < end_offset:
                if not await advanced.wait_until(deadline):
                    raise TimedOutError(
                        f"records below offset {end_offset} were not committed here in time",
                        outcome=Outcome.NOT_APPLIED,
                        retriable=True,
                        action="Try again once the replicas are in sync.",
                    )
        finally:
            watchers.pop(advanced, None)
        await self._table.read_state(COMMIT_SECONDS)

    async def _compact(self, wanted: PurgedRows, end_offset: int) -> CompactionReport:
        partition, context = self._partition, self._partition.context
        producers, compaction = partition.replica.producers, partition.open_log.compaction
        for _ in range(_TRIES):
            now_ms = context.now_ms()
            await self._table.expire(now_ms)
            kept = wanted.kept(producers, now_ms)
            high_watermark = min(int(partition.replica.high_watermark), self._table.state.end_offset)
            try:
                report = await partition.in_thread(
                    partial(compaction.purge, now_ms, high_watermark, kept, wanted.records, end_offset)
                )
            except HeadraceError as error:
                partition.corruption.note_compaction_error(error)
                raise
            if report is None:
                await self._await_state(end_offset)
                continue
            log.info("rows_purged", topic=partition.topic, partition=partition.number, **report._asdict())
            return report
        raise TimedOutError("the log was truncated or cut off again and again", outcome=Outcome.UNKNOWN, retriable=True)
