"""Table of a partition: its state, kept up with the log, and the values of its columns, read from the log.

The state has what is committed; a read first catches up with the high watermark, as of which it is answered. While no
one reads, `keep_up` does, so that a new leader has little to catch up with.
"""

from __future__ import annotations

import asyncio
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import structlog
from headrace.log.errors import SliceCutError
from headrace.log.scan import checked_batches
from headrace.log.slices import Slice
from headrace.partition.batch_cache import BatchCache, DecodedValues, PartitionBatches, RecordValue
from headrace.partition.removed_rows import RemovedRows
from headrace.partition.table_state import CurrentRow, RowOffsets, UncommittedRows, changes_of, decode_table_batch
from headrace.wire.columns import Columns
from headrace.wire.errors import (
    CorruptBatchError,
    HeadraceError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    Outcome,
    TimedOutError,
)
from headrace_server.caller_turns import next_turn

from headrace_broker.core.roles import Role
from headrace_broker.runtime.table_purge import TablePurge
from headrace_broker.runtime.table_trace import RequestTrace

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition

_log = structlog.get_logger(__name__)

APPLIED_BYTES = 64 << 10
"""Bytes of one read whose records are decoded in a turn of the event loop, and applied."""
BUILT_BYTES = 4 << 20
"""Bytes of one read of a thread that makes a state."""
FAR_BYTES = 16 << 20
"""Size of a log from which an empty state is made in a thread."""
APPLIED_PER_TURN = 500
"""Changes that are applied in a millisecond of the event loop."""


class PartitionTable:
    """Table of one replica. Belongs to the event loop."""

    def __init__(self, partition: Partition, cache: BatchCache) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._context = partition.context
        self._state = RowOffsets()
        self._start_offset = 0
        """Log start below which the state has no column."""
        self._crc = 0
        """Chain value at the state's end, by which a log that was truncated is told."""
        self._truncations = -1
        """Of the log, when it was last seen to continue the state."""
        self._deletions_end = 0
        """Of the log then: a copy from its start lacks what was deleted meanwhile, with the same chain."""
        self._catching_up: asyncio.Task[None] | None = None
        self._uncommitted = UncommittedRows()
        self._batches = PartitionBatches(cache)
        self.purges = TablePurge(partition, self)
        self._metrics = self._context.metrics.tables
        self._caught_up_ms = self._context.clock.monotonic_ms()
        """When the state was last seen to have all that is committed."""
        self.trace: RequestTrace | None = None
        """Trace of the requests, if the table has one."""
        self._context.tables[self] = None

    @property
    def state(self) -> RowOffsets:
        """State as of the last read."""
        return self._state

    @property
    def removed(self) -> RemovedRows | None:
        """Rows that were removed since the table has been traced."""
        return self._state.removed

    def trace_at(self, fraction: float) -> None:
        """Trace requests of this fraction of the keys from now on."""
        traces, trace = self._context.traces, self.trace
        if traces is None or fraction == (0 if trace is None else trace.key[1]):
            return
        self.trace = traces.acquire(self._partition.topic, self._partition.topic_id, fraction) if fraction else None
        self._watch_removals(is_new=False)
        if trace is not None:
            traces.release(trace)

    def _watch_removals(self, *, is_new: bool) -> None:
        """Note rows that are removed from the state; `is_new`: it is empty, and begins at the log start."""
        self._state.removed = None
        if self.trace is not None:
            log = self._partition.log  # An offline replica has none.
            is_complete = is_new and log is not None and log.log_start_offset == log.deletions_end == 0
            self._state.removed = RemovedRows(self.trace.sampler, is_complete=is_complete)

    @property
    def keys(self) -> int:
        """Number of keys in memory."""
        return self._state.columns

    @property
    def key_bytes(self) -> int:
        """Memory that they take, estimated."""
        return self._state.key_bytes

    @property
    def lag_seconds(self) -> float:
        """Time since the state had all that is committed; 0 if it has, or if the log cannot be read. Thread-safe."""
        replica = self._replica
        if self._state.end_offset >= replica.high_watermark or replica.role in (Role.OFFLINE, Role.DELETED):
            return 0.0
        return (self._context.clock.monotonic_ms() - self._caught_up_ms) / 1000

    async def expire(self, now_ms: int) -> None:
        """Remove the columns that have expired at a time of the wall clock."""
        while self._state.expire(now_ms, APPLIED_PER_TURN):
            await next_turn()

    def close(self) -> None:
        """Release the memory, and follow the log no more."""
        self._context.tables.pop(self, None)
        self.trace_at(0)
        self.purges.close()
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._batches.clear()

    # --- what is committed ---

    async def read_state(self, seconds: float) -> tuple[RowOffsets, int]:
        """Return the state, and the offset below which it has all that is committed.

        Raises:
            TimedOutError: If the state is not made within `seconds`; that is continued.
            OffsetNotAvailableError: If the log was copied from one that was compacted beyond the high watermark here:
                columns are missing for whose sake older ones were removed.
            CorruptLogError, StorageOfflineError: If the log cannot be read.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        high_watermark = int(self._replica.high_watermark)
        while True:
            while not self._has(high_watermark):
                await self._wait(high_watermark, deadline)
            if not self._state.expire(self._context.now_ms(), APPLIED_PER_TURN):
                break
            await next_turn()
        is_copied = self._replica.role is Role.FOLLOWING or bool(self._partition.config.mirror)
        if is_copied and self._state.newer_end > high_watermark:
            raise OffsetNotAvailableError(
                f"this replica has the records below offset {high_watermark}, and was copied from one that was "
                f"compacted up to {self._state.newer_end}",
                action="Read from another replica, or try again.",
            )
        self._caught_up_ms = self._context.clock.monotonic_ms()
        return self._state, high_watermark

    def _has(self, end_offset: int) -> bool:
        log = self._partition.open_log
        return (
            self._state.end_offset >= end_offset
            and self._truncations == log.truncations
            and self._start_offset >= log.log_start_offset
            and not self._state.lacks_columns(self._context.now_ms())
        )

    async def _wait(self, end_offset: int, deadline: float) -> None:
        """Wait until the state has been continued up to an offset, as another caller may have asked for."""
        task = self._catching_up
        if task is None:
            task = self._catching_up = asyncio.create_task(self._catch_up(end_offset))
            task.add_done_callback(self._caught_up)
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.wait([task], timeout=max(0.0, left))
        if left <= 0 or not task.done() or task.cancelled():
            raise TimedOutError(
                "the table's state is not read from the log yet",
                outcome=Outcome.NOT_APPLIED,
                retriable=True,
                action="Try again; it is continued meanwhile.",
            )
        task.result()

    def _caught_up(self, task: asyncio.Task[None]) -> None:
        self._catching_up = None
        if not task.cancelled():
            task.exception()  # Its callers have it; without any, the next read meets it again.

    async def keep_up(self, seconds: float) -> None:
        """Continue the state up to what is committed now, if the log can be read, unless that is in progress.

        Raises:
            TimedOutError: If that takes longer than `seconds`; it is continued.
        """
        if self._replica.role in (Role.OFFLINE, Role.DELETED):
            return
        high_watermark = int(self._replica.high_watermark)
        if not self._has(high_watermark):
            if self._catching_up is not None:
                return
            await self._wait(high_watermark, asyncio.get_running_loop().time() + seconds)
        self._caught_up_ms = self._context.clock.monotonic_ms()

    async def _catch_up(self, end_offset: int) -> None:
        try:
            await self._continue_log()
            if self._state.end_offset < end_offset and self._is_far():
                async with self._context.table_builds:
                    await self._build(end_offset)
            while self._state.end_offset < end_offset:
                batches = await self._read(self._state.end_offset, APPLIED_BYTES, end_offset)
                if not batches:
                    raise _cut_meanwhile(self._state.end_offset)
                if self._lacks_deletions():
                    self._truncations = -1
                    return  # The caller looks again.
                for columns in batches:
                    await self._apply(columns)
                if self._state.end_offset < end_offset:
                    await next_turn()  # Batches may have a record each.
        except SliceCutError:
            pass  # Truncated meanwhile; the caller looks again.
        except OffsetOutOfRangeError:
            pass  # The log start has passed the state's end.

    def _lacks_deletions(self) -> bool:
        """Return whether deletions that the state has not read may have gone since it was begun.

        A compaction ends before the state's end, but one that began when there was no table, or another state of it.
        """
        return self._partition.open_log.compaction.removed_deletions_end > self._state.end_offset

    async def _apply(self, columns: Columns) -> None:
        """Apply the next batch. Between two turns of the event loop a row has all columns of a write, or none."""
        state, count, row = self._state, 0, b""
        state.note_removed(columns)
        for change in changes_of(columns):
            if count >= APPLIED_PER_TURN and not change.key.startswith(row):
                count = 0
                await next_turn()
            if change.offset >= state.end_offset:  # A compacted batch may begin before it.
                state.apply(change)
            count += 1
            if count == APPLIED_PER_TURN:
                row = change.row
        state.end_offset, self._crc = columns.header.end_offset, columns.header.chain_crc

    async def _continue_log(self) -> None:
        """Begin again if the log does not continue the state, and forget what is below its start."""
        log, state = self._partition.open_log, self._state
        lacks_columns = state.lacks_columns(self._context.now_ms())
        if lacks_columns or self._truncations != log.truncations or state.end_offset < log.log_start_offset:
            truncations = log.truncations
            if lacks_columns or not await self._is_continued():
                await self._partition.in_thread(log.compaction.watch_deletions)
                self._start_offset = int(log.log_start_offset)
                self._begin(RowOffsets(), self._start_offset, 0)
            else:
                self._uncommitted.begin(state.end_offset)
                self._batches.clear()
            self._truncations, self._deletions_end = truncations, log.deletions_end
        start_offset, place = int(log.log_start_offset), b""
        while self._start_offset < start_offset:
            found = self._state.forget_below(start_offset, place, APPLIED_PER_TURN)
            if found is None:
                self._start_offset = start_offset
            else:
                place = found
                await next_turn()

    async def _is_continued(self) -> bool:
        """Return whether the log has what the state was made from: it was not truncated below the state's end."""
        log, end_offset = self._partition.open_log, self._state.end_offset
        if self._truncations < 0 or not log.log_start_offset <= end_offset <= log.log_end_offset:
            return False
        if log.deletions_end != self._deletions_end:
            return False
        header = await self._partition.in_thread(lambda: log.reader.batch_before(end_offset))
        return header is not None and header.chain_crc == self._crc

    def _begin(self, state: RowOffsets, end_offset: int, crc: int) -> None:
        state.end_offset = end_offset
        self._state, self._crc = state, crc
        self._watch_removals(is_new=not state.columns and end_offset == self._start_offset)
        self._uncommitted.begin(end_offset)
        self._batches.clear()

    def _is_far(self) -> bool:
        return self._state.end_offset == self._start_offset and self._partition.open_log.size_bytes > FAR_BYTES

    async def _build(self, end_offset: int) -> None:
        """Make the state in a thread, of the whole log."""
        log = self._partition.open_log
        start_offset, crc = int(log.log_start_offset), 0

        def batches() -> Iterator[Columns]:
            nonlocal crc
            offset = start_offset
            while offset < end_offset:
                with log.reader.read(offset, BUILT_BYTES, end_offset) as found:
                    data, position = found.read(), found.position
                if not data:
                    raise _cut_meanwhile(offset)
                for columns in self._decode(data, position):
                    yield columns
                    offset, crc = columns.header.end_offset, columns.header.chain_crc

        truncations, started, now_ms = log.truncations, time.perf_counter(), self._context.now_ms()
        try:
            state = await self._partition.in_thread(lambda: RowOffsets(batches(), start_offset, now_ms))
        except HeadraceError as error:
            self._partition.corruption.note_read_error(error)
            raise
        if log.truncations == truncations and not self._lacks_deletions():
            self._begin(state, end_offset, crc)
            self._metrics.rebuild_seconds.observe(time.perf_counter() - started)

    # --- the log ---

    async def _read(self, offset: int, max_bytes: int, end_offset: int) -> list[Columns]:
        """Return the batches from that with `offset` on, decoded; none if it ends after `end_offset`."""
        reader, reads = self._partition.open_log.reader, self._partition.reads
        try:
            found: Slice | None = reader.read_nowait(offset, max_bytes, end_offset)
            if found is None:
                found = await reads.locate_below(offset, max_bytes, end_offset)
            position = found.position
            return list(self._decode(await reads.read(found), position))
        except HeadraceError as error:
            self._partition.corruption.note_read_error(error)
            raise

    def _decode(self, data: bytes, position: int) -> Iterator[Columns]:
        for batch in checked_batches(data, self._partition.open_log.directory, position):
            yield decode_table_batch(batch, self._note_unreadable)

    def _note_unreadable(self, error: CorruptBatchError) -> None:
        where = {"topic": self._partition.topic, "partition": self._partition.number}
        _log.warning("table_batch_skipped", **where, offset=error.base_offset, reason=error.message)

    async def read_values(self, offsets: Sequence[int], most_bytes: int = sys.maxsize) -> dict[int, RecordValue]:
        """Return the values of records of the state by offset, without those that are not in the log any more.

        The offsets ascend. Ends after the batch with which the values have more than `most_bytes`.

        Raises:
            CorruptLogError, StorageOfflineError: If the log cannot be read.
        """
        values: dict[int, RecordValue] = {}
        place = misses = size_bytes = 0
        while place < len(offsets) and size_bytes <= most_bytes:
            batch, end = self._batches.find(offsets[place]), place + 1
            if batch is None:
                misses += 1
                batch = await self._read_batch(offsets[place])
            if batch is not None:
                end = min(bisect_left(offsets, batch.end_offset, end), place + APPLIED_PER_TURN)
                size_bytes += batch.take(offsets[place:end], values)
                if end == place + APPLIED_PER_TURN:
                    await next_turn()
            place = end
        self._metrics.batch_misses.inc(misses)
        self._metrics.batch_hits.inc(place - misses)
        return values

    async def _read_batch(self, offset: int) -> DecodedValues | None:
        """Read the batch with `offset`, and keep it; return `None` if it is not in the log any more."""
        try:
            found = await self._read(offset, 1, int(self._replica.high_watermark))
        except (SliceCutError, OffsetOutOfRangeError):
            return None
        if not found:
            return None
        batch = DecodedValues(found[0])
        self._batches.add(batch)
        return batch

    # --- what a leader has appended ---

    async def read_uncommitted(self, seconds: float) -> None:
        """Read what this leader has appended, so that `row_now` can be called."""
        state, _ = await self.read_state(seconds)
        pending, truncations = self._uncommitted, self._truncations
        if pending.end_offset < state.end_offset:
            pending.begin(state.end_offset)
        log_end = int(self._replica.log_end_offset)
        while pending.end_offset < log_end:
            try:
                batches = await self._read(pending.end_offset, APPLIED_BYTES, log_end)
            except (SliceCutError, OffsetOutOfRangeError):
                return
            if not batches:
                return  # The log was truncated to this offset, and `knows_log_end` says so.
            if self._truncations != truncations:
                return
            for columns in batches:
                await self._apply_uncommitted(columns)
            if pending.end_offset < log_end:
                await next_turn()

    async def _apply_uncommitted(self, columns: Columns) -> None:
        """Apply the next batch, or the rest of it, unless another caller is doing so."""
        pending, header, count = self._uncommitted, columns.header, 0
        place = pending.end_offset
        if not header.base_offset <= place < header.end_offset:
            return
        for change in changes_of(columns):
            if change.offset < place:
                continue
            if count == APPLIED_PER_TURN:
                pending.end_offset, count = place, 0
                await next_turn()
                if pending.end_offset != place:
                    return
            pending.apply(change, self._state.end_offset)
            count, place = count + 1, change.offset + 1
        pending.end_offset = header.end_offset

    @property
    def knows_log_end(self) -> bool:
        """Whether the state and the uncommitted changes are all that is in the log now."""
        end_offset = self._replica.log_end_offset
        return (
            max(self._uncommitted.end_offset, self._state.end_offset) == end_offset
            and self._truncations == self._partition.open_log.truncations
        )

    def version_now(self, row: bytes) -> int:
        """Return the version of a row with uncommitted changes."""
        return self._state.current_version(row, self._uncommitted.of(row))

    def row_now(self, row: bytes) -> CurrentRow:
        """Return a row with uncommitted changes."""
        return self._state.current(row, self._uncommitted.of(row))


def _cut_meanwhile(offset: int) -> OffsetNotAvailableError:
    """Return the error of a read that found no batch where one must be; not raised."""
    return OffsetNotAvailableError(
        f"the high watermark is within a batch of this replica, or its log was cut off at offset {offset} meanwhile"
    )
