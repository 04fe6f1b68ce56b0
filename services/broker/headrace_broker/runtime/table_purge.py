"""Removal of deleted rows from the files of one replica, at once.

The active segment is closed, everything below is compacted without the rows, and the files that were replaced are
unlinked without their delay. A purge continues if its caller is gone; the same request finds it. Belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog
from headrace.log.log_compaction import CompactionReport, Kept
from headrace.log.purged_records import PurgedRecords
from headrace.wire.errors import HeadraceError, InvalidRequestError, Outcome, TimedOutError
from headrace.wire.table_keys import row_start, rows_start
from headrace_server.caller_turns import next_turn

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition
    from headrace_broker.runtime.table import PartitionTable

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
COMMIT_SECONDS = 60.0
"""Time for which a purge waits until what it has closed is committed."""
_TRIES = 20
_ROWS_PER_TURN = 300


class PurgedRows(NamedTuple):
    """Which rows of a partition to purge, below an offset: by key, by prefix, or all that are deleted."""

    before_offset: int
    keys: tuple[bytes, ...] = ()
    prefix: bytes | None = None
    deleted: bool = False

    @property
    def records(self) -> PurgedRecords:
        """Their records."""
        prefix = None if self.prefix is None else rows_start(self.prefix)
        return PurgedRecords(self.before_offset, frozenset(map(row_start, self.keys)), prefix, self.deleted)


class TablePurge:
    """Purges of one replica, one at a time."""

    def __init__(self, partition: Partition, table: PartitionTable) -> None:
        self._partition = partition
        self._table = table
        self._wanted: PurgedRows | None = None
        self._task: asyncio.Task[CompactionReport] | None = None

    def close(self) -> None:
        """End the purge in progress."""
        if self._task is not None:
            self._task.cancel()

    async def purge(self, wanted: PurgedRows, seconds: float) -> CompactionReport | None:
        """Purge rows; return `None` if that takes longer than `seconds`: the next call waits for the same purge.

        What is committed here must reach `wanted.before_offset`.

        Raises:
            InvalidRequestError: If one of the rows exists.
            TimedOutError: If another purge is in progress.
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
        if self._task is None or self._wanted != wanted:
            self._wanted, self._task = wanted, asyncio.create_task(self._purge(wanted))
            self._task.add_done_callback(_look_at)
        task = self._task
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            return None
        if self._task is task:
            self._task = None
        return task.result()

    def _is_busy(self, wanted: PurgedRows) -> bool:
        """Whether another purge than this one is in progress."""
        return self._task is not None and self._wanted != wanted and not self._task.done()

    async def _purge(self, wanted: PurgedRows) -> CompactionReport:
        partition, log = self._partition, self._partition.open_log
        async with partition.log_lock:
            end_offset = await partition.in_thread(lambda: log.close_below(wanted.before_offset))
            if not partition.producers.are_stale:  # Batches that may be sent again are written anew, too.
                await partition.in_thread(partition.producers.snapshot)
        await self._await_state(end_offset)
        await self._check_deleted(wanted)
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
        advanced, watchers = asyncio.Event(), self._partition.watchers
        watchers[advanced] = None
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                while self._partition.replica.high_watermark < end_offset:
                    await advanced.wait()
                    advanced.clear()
        except TimeoutError:
            raise TimedOutError(
                f"records below offset {end_offset} were not committed here in time",
                outcome=Outcome.NOT_APPLIED,
                retriable=True,
                action="Try again once the replicas are in sync.",
            ) from None
        finally:
            watchers.pop(advanced, None)
        await self._table.read_state(COMMIT_SECONDS)

    async def _check_deleted(self, wanted: PurgedRows) -> None:
        """Check that the rows do not exist; columns that were written at the offset or later are others."""
        state = self._table.state
        rows = wanted.keys if wanted.prefix is None else state.rows_from(b"", None, wanted.prefix)
        for count, key in enumerate(rows):
            if any(offset < wanted.before_offset for _, offset in state.columns_of(key)):
                raise InvalidRequestError(
                    f"a row to purge exists: it has columns below offset {wanted.before_offset}",
                    action="Delete the row first, and name the offset of a read that follows the deletion.",
                )
            if count % _ROWS_PER_TURN == _ROWS_PER_TURN - 1:
                await next_turn()

    async def _compact(self, wanted: PurgedRows, end_offset: int) -> CompactionReport:
        partition, context = self._partition, self._partition.context
        producers, compaction = partition.replica.producers, partition.open_log.compaction
        for _ in range(_TRIES):
            now_ms = context.now_ms()
            self._table.expire(now_ms)
            # What a deletion deletes may be in a batch that would stay.
            kept = Kept() if wanted.deleted else Kept(producers.retried_batches(now_ms), producers.retry_window_ms)
            high_watermark = min(int(partition.replica.high_watermark), self._table.state.end_offset)
            try:
                report = await partition.in_thread(
                    partial(compaction.purge, now_ms, high_watermark, kept, wanted.records, end_offset)
                )
            except HeadraceError as error:
                partition.fail_unless_refused(error)
                raise
            if report is None:
                await self._await_state(end_offset)
                continue
            log.info("rows_purged", topic=partition.topic, partition=partition.number, **report._asdict())
            return report
        raise TimedOutError("the log was truncated or cut off again and again", outcome=Outcome.UNKNOWN, retriable=True)


def _look_at(task: asyncio.Task[CompactionReport]) -> None:
    """Take note of an error without a caller, which the next one meets again."""
    if not task.cancelled():
        task.exception()
