"""Appends of producers to a partition that this broker leads, and waits for their commit.

This is the hot path: batches are checked once (`batch_checks`), get their offsets and are written by the log; the core
receives only a few integers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.partition.batch_checks import AppendResult, Run, find_compressed, parts_of
from headrace.partition.copies import check_copies, check_mirror, copied_config, lacks_deletions
from headrace.wire.batch import BatchHeader
from headrace.wire.errors import HeadraceError, NotLeaderError, Outcome, StorageOfflineError, TimedOutError
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_server.caller_turns import has_others
from headrace_server.calls import CALLER

from headrace_broker.core.messages import AcknowledgementAwaited, AcknowledgementDropped, Action, Appended
from headrace_broker.core.roles import Role
from headrace_broker.runtime.batch_checks import check_compressed, check_run
from headrace_broker.runtime.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition

LARGE_BYTES = 256 << 10
"""Least bytes of an append that runs in a thread while other callers are active."""


class AcknowledgementWaits:
    """Calls that wait for the core to acknowledge an append or a deletion of records."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._waiting: dict[int, asyncio.Future[HeadraceError | None]] = {}
        self._tokens = itertools.count()

    def of(self, end_offset: int, leader_epoch: int) -> tuple[int, asyncio.Future[HeadraceError | None]] | None:
        """Return a token for `give_up` and a future: `None` after the commit of `end_offset`, or an error.

        Return `None` if it is committed already.
        """
        if end_offset <= self._replica.high_watermark and leader_epoch == self._replica.leader_epoch:
            return None
        token, future = self.begin()
        self._partition.handle(AcknowledgementAwaited(token, Offset(end_offset), LeaderEpoch(leader_epoch)))
        return token, future

    def begin(self) -> tuple[int, asyncio.Future[HeadraceError | None]]:
        """Return a token for the core, and the future of its answer."""
        token = next(self._tokens)
        future: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        return token, future

    async def settle(
        self, token: int, future: asyncio.Future[HeadraceError | None], seconds: float
    ) -> HeadraceError | None:
        """Wait for the answer of the core and return it; after `seconds`, or if the caller is cancelled, give up."""
        late: HeadraceError | None = None
        try:
            await asyncio.wait([future], timeout=max(0.0, seconds))
        finally:
            if not future.done():
                late = self.give_up(token)
        return late or future.result()

    def give_up(self, token: int) -> TimedOutError:
        """Stop waiting for `token`; return the error for the caller, whose records may still be committed."""
        self._waiting.pop(token, None)
        self._partition.handle(AcknowledgementDropped(token))
        return TimedOutError("the acknowledgement did not come in time", outcome=Outcome.UNKNOWN)

    def answer(self, token: int, error: HeadraceError | None) -> None:
        """Complete the future of a token, unless its caller has given up."""
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_result(error)


class PartitionAppender:
    """Appends to one partition. Belongs to the event loop."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._context = partition.context
        self._log_lock = partition.log_lock
        self.is_slow = False
        """Whether the last write blocked for long, so that the next ones run in a thread."""
        self._appending = 0  # appends with a task that have not ended
        self.records = self.size_bytes = 0
        """Totals since the start, for `/metrics/detail`."""

    def append_now(self, batches: Sequence[bytes], known_epoch: int, *, committed: bool) -> AppendResult | None:
        """Append on the event loop, into the page cache; return `None` if the caller must use `append` instead.

        `committed` means that the caller will wait for the commit, so that too few in-sync replicas are an error (H13).
        """
        partition_log, config = self._partition.log, self._partition.config
        if self.is_slow or self._appending or self._log_lock.locked() or find_compressed(batches, config):
            return None
        size_bytes, at_ms = sum(map(len, batches)), self._context.now_ms()
        if partition_log is not None and partition_log.append_may_sync(size_bytes, at_ms):
            return None
        if size_bytes >= LARGE_BYTES and has_others():
            return None
        started = time.perf_counter()
        result, leader_epoch = AppendResult(), self._replica.leader_epoch
        try:
            while len(result.base_offsets) < len(batches):
                run = check_run(
                    batches, result, replica=self._replica, config=config, context=self._context,
                    known_epoch=known_epoch, committed=committed, now_ms=at_ms,
                )  # fmt: skip
                if run:
                    self._note_run(run, self._write(run, at_ms, leader_epoch), at_ms, leader_epoch, result)
        except HeadraceError as error:
            self._end_append(result, error)
        result.append_seconds = time.perf_counter() - started
        return result

    async def append(
        self,
        batches: Sequence[bytes],
        known_epoch: int,
        *,
        committed: bool,
        guard: Callable[[], None] = lambda: None,
    ) -> AppendResult:
        """Append as `append_now`, with the writes in a thread and in the order of the calls.

        `guard` raises what the caller must know instead; no other append comes between it and this one.
        """
        return await uninterrupted(self._begin(self._append(batches, known_epoch, committed=committed, guard=guard)))

    def begin_append(
        self, batches: Sequence[bytes], known_epoch: int, *, committed: bool
    ) -> asyncio.Task[AppendResult]:
        """Begin an append as `append`, which has its place in the order at once. The task must not be cancelled."""
        return self._begin(self._append(batches, known_epoch, committed=committed))

    def _begin(self, append: Coroutine[Any, Any, AppendResult]) -> asyncio.Task[AppendResult]:
        self._appending += 1  # From here on `append_now` does not overtake, although the lock is not held yet.
        task = asyncio.create_task(append)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, _: asyncio.Task[AppendResult]) -> None:
        self._appending -= 1

    async def _append(
        self,
        batches: Sequence[bytes],
        known_epoch: int,
        *,
        committed: bool,
        guard: Callable[[], None] = lambda: None,
    ) -> AppendResult:
        result = AppendResult()
        async with self._log_lock:
            guard()
            try:
                inflated, config = None, self._partition.config
                if compressed := find_compressed(batches, config):
                    self._replica.check_leading(known_epoch)
                    inflated = await check_compressed(batches, compressed, config, self._context)
                while len(result.base_offsets) < len(batches):
                    run = check_run(
                        batches, result, replica=self._replica, config=self._partition.config, context=self._context,
                        known_epoch=known_epoch, committed=committed, now_ms=self._context.now_ms(),
                        compressed=inflated,
                    )  # fmt: skip
                    if run:
                        await self._append_in_thread(run, result)
            except HeadraceError as error:
                self._end_append(result, error)
        return result

    def begin_copies(
        self, batches: Sequence[bytes], known_epoch: int, *, deletions_end: int, committed: bool
    ) -> asyncio.Task[AppendResult]:
        """Begin to append batches of another log as they are, to a mirror; see `headrace.partition.copies`.

        `deletions_end` is the source's with these batches. The result has the log end, also after an error. See
        `begin_append`.
        """
        copying = self._append_copies(batches, known_epoch, deletions_end=deletions_end, committed=committed)
        return self._begin(copying)

    async def _append_copies(
        self, batches: Sequence[bytes], known_epoch: int, *, deletions_end: int, committed: bool
    ) -> AppendResult:
        result = AppendResult()
        async with self._log_lock:
            try:
                self._check_copying(known_epoch, committed=committed)
                config = copied_config(self._partition.config)
                inflated = await check_compressed(batches, find_compressed(batches, config), config, self._context)
                self._check_copying(known_epoch, committed=committed)  # Again: inflating takes time.
                result.leader_epoch, result.log_start_offset = self._replica.leader_epoch, self._replica.known_log_start
                result.end_offset = self._replica.log_end_offset
                check = partial(check_copies, batches, config, self._context.settings, inflated)
                while len(result.base_offsets) < len(batches):
                    await self._write_some(batches, check, deletions_end, result)
            except HeadraceError as error:
                self._end_append(result, error)
            if self._partition.log is not None:
                end = self._partition.log.end
                result.log_end_offset, result.log_end_crc = end.offset, end.crc
        return result

    def _check_copying(self, known_epoch: int, *, committed: bool) -> None:
        self._replica.check_leading(known_epoch).check_appending(committed=committed)
        check_mirror(self._partition.topic, self._partition.config)

    async def _write_some(
        self, batches: Sequence[bytes], check: Callable[[], None], deletions_end: int, result: AppendResult
    ) -> None:
        """Write the copies that `result` does not have, or the first ones, in a thread, which calls `check` before."""
        left, leader_epoch = batches[len(result.base_offsets) :], result.leader_epoch

        def write() -> list[BatchHeader]:
            check()
            partition_log = self._partition.open_log
            if lacks_deletions(partition_log, deletions_end):  # First: the batches may lack deletions.
                partition_log.compaction.raise_deletions_end(deletions_end)
            return partition_log.append_copies(left, leader_epoch=leader_epoch)

        started = time.perf_counter()
        headers = await self._partition.in_thread(write)
        result.append_seconds += time.perf_counter() - started
        self._note_copies(headers, result)
        if not self._replica.counts_append(leader_epoch):
            raise NotLeaderError("leadership moved during the append", outcome=Outcome.UNKNOWN)

    def _note_copies(self, headers: Sequence[BatchHeader], result: AppendResult) -> None:
        """Report copied batches to the core, the flusher and the counters."""
        actions: list[Action] = []
        for header in headers:
            producer = (header.producer_id, header.producer_epoch, header.base_sequence)
            if header.is_compacted:
                producer = (-1, -1, -1)
            actions += self._partition.tell_core(
                Appended(Offset(header.base_offset), Offset(header.end_offset), *producer, header.append_timestamp_ms)
            )
            result.base_offsets.append(header.base_offset)
            result.end_offset, result.append_timestamp_ms = header.end_offset, header.append_timestamp_ms
        self._note_appended(
            len(headers),
            sum(header.record_count for header in headers),
            sum(header.batch_bytes for header in headers),
            actions,
        )

    async def _append_in_thread(self, run: Run, result: AppendResult) -> None:
        self._context.metrics.slow_appends.inc()
        at_ms, leader_epoch = self._context.now_ms(), self._replica.leader_epoch
        started = time.perf_counter()
        base = await self._partition.in_thread(lambda: self._write(run, at_ms, leader_epoch))
        result.append_seconds += time.perf_counter() - started
        self._note_run(run, base, at_ms, leader_epoch, result)
        if not self._replica.counts_append(leader_epoch):
            # The batches are in the log, and the next leader may commit them.
            raise NotLeaderError("leadership moved during the append", outcome=Outcome.UNKNOWN)

    def _write(self, run: Run, at_ms: int, leader_epoch: int) -> Offset:
        started_ms = self._context.clock.monotonic_ms()
        base = self._partition.open_log.append(run, leader_epoch=leader_epoch, append_timestamp_ms=at_ms)
        self.is_slow = self._context.clock.monotonic_ms() - started_ms >= self._context.settings.slow_append_ms
        return base

    def _note_run(self, run: Run, base: int, at_ms: int, leader_epoch: int, result: AppendResult) -> None:
        """Report a write to the core, the flusher and the counters."""
        size_bytes = 0
        actions: list[Action] = []
        end = base
        for batches, records, header_bytes, producer in parts_of(run):
            first, end = end, end + batches * records
            actions += self._partition.tell_core(Appended(Offset(first), Offset(end), *producer, at_ms, batches))
            result.base_offsets += range(first, end, records)
            size_bytes += header_bytes
        result.end_offset = max(result.end_offset, end)
        result.append_timestamp_ms = at_ms
        self._note_appended(len(run), end - base, size_bytes, actions)

    def _note_appended(self, batches: int, records: int, size_bytes: int, actions: list[Action]) -> None:
        """Count an append, and perform the actions of the core."""
        metrics = self._context.metrics
        metrics.produced_batches.inc(batches)
        metrics.produced_records.inc(records)
        metrics.produced_bytes.inc(size_bytes)
        self.records += records
        self.size_bytes += size_bytes
        self._partition.meter.note_written(size_bytes)
        self._partition.flush_policy.note_appended(records, CALLER.get())
        self._partition.perform(actions)
        if self._partition.delayed_fetches:
            self._partition.wake_replicas()

    def _end_append(self, result: AppendResult, error: HeadraceError) -> None:
        result.error = error
        if isinstance(error, StorageOfflineError) and self._replica.role is Role.LEADING:
            self._partition.fail(error)
