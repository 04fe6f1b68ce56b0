"""One partition at work: the core's decisions, the log, and those who wait for either.

Called by the RPC layer for appends and reads, by `replica_manager` for roles and settings, by the flusher and by
maintenance. The hot path is here: batches are checked once (`batch_checks`), stamped and written by the log, and the
core is told a few integers.
All of it runs on the event loop; the log's blocking calls run in threads, one at a time under `log_lock` where the log
asks for that.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar, assert_never

import structlog
from headrace.log.errors import REFUSALS, RETRY_AFTER_MS, CorruptLogError
from headrace.log.log import PartitionLog, TimestampedOffset, TimestampKind
from headrace.log.settings import LogSettings
from headrace.log.slices import Slice
from headrace.wire.batch import BatchHeader
from headrace.wire.errors import (
    CorruptBatchError,
    HeadraceError,
    InternalError,
    NotLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    StorageOfflineError,
    TimedOutError,
)
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_server.calls import CALLER
from headrace_server.partition_state import Replica
from headrace_server.topic_configs import INT64_MAX, Durability, TopicConfig

from headrace_broker.core.hand_over import HAND_OVER_MS
from headrace_broker.core.messages import (
    Abandon,
    Acknowledge,
    AcknowledgementAwaited,
    AcknowledgementDropped,
    Action,
    AnnounceLogStart,
    Appended,
    BatchesReplicated,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    Follow,
    HighWatermarkAdvanced,
    LeaderReported,
    LeadershipEnded,
    LeadershipStarted,
    LeaveInSync,
    LimitPause,
    LogRestarted,
    LogStartAwaited,
    LogStartRaised,
    LogStartWanted,
    LogTruncated,
    PauseOver,
    PersistEpoch,
    Propose,
    RaiseLogStart,
    SessionStarted,
    StorageFailed,
    Unfollow,
)
from headrace_broker.core.producers import ProducerWindows
from headrace_broker.core.replica import JOIN_RETRY_MS, PartitionReplica, Role
from headrace_broker.core.replica_fetch import (
    AppendBatches,
    Diverged,
    FetchAnswer,
    FetchDecision,
    FetchRequest,
    Refetch,
    ResetLog,
    TruncateTo,
    check_fetch,
    check_reader,
    compare_logs,
    next_step,
)
from headrace_broker.runtime.batch_checks import AppendResult, check_compressed, check_run, must_inflate
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.producer_state import SnapshotClock, rebuild_producers
from headrace_broker.runtime.uninterrupted import uninterrupted

log = structlog.get_logger(__name__)

_INLINE_BYTES = 128 << 10
"""Larger answers of a leader are checked and written in a thread (H46)."""
_LOOK_BYTES = 16 << 20
_FLUSHES_REMEMBERED = 8
_COPY_LOOK_SECONDS = 1.0
"""A throttled copy looks that often whether it is still throttled."""

ResultT = TypeVar("ResultT")

__all__ = ["AppendResult", "Partition", "PartitionContext", "log_settings"]


class PartitionHost(Protocol):
    """What a partition has done by others: `replication.Replication`. All return at once."""

    def start_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """Run `persist_epoch`."""

    def raise_log_start(self, partition: Partition, offset: Offset) -> None:
        """Run `Partition.raise_log_start`."""

    def follow(self, partition: Partition, leader: Replica) -> None:
        """Fetch from `leader` from now on."""

    def unfollow(self, partition: Partition) -> None:
        """Fetch no more."""

    def fetch(self, partition: Partition) -> None:
        """It is to fetch (again): a flush has ended."""

    def propose(self, partition: Partition, proposal: Propose) -> None:
        """Write the partition's key and report how that ended."""

    def leave_in_sync(self, partition: Partition, *, corrupt: bool) -> None:
        """Take this broker out of the partition's key, as `leave_failed` says."""


class DelayedFetch(Protocol):
    """A follower's fetch of a partition that waits until there is something to answer."""

    def wake(self, partition: Partition) -> None:
        """There are new records, or a new log start, or leadership has ended."""

    def note_high_watermark(self, partition: Partition) -> None:
        """The high watermark has moved."""


class Partition:
    """Owned by `replica_manager`. Belongs to the event loop but for `flush_blocking`."""

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        number: int,
        partition_log: PartitionLog | None,
        *,
        config: TopicConfig,
        context: PartitionContext,
        host: PartitionHost,
    ) -> None:
        """Hold an opened log; None: it could not be opened, `fail` follows."""
        self.topic, self.topic_id, self.number = topic, topic_id, number
        self.config = config
        self.context = context
        self.watchers: dict[asyncio.Event, None] = {}
        self.delayed_fetches: dict[DelayedFetch, None] = {}
        self._log = partition_log
        self.log_lock = asyncio.Lock()
        self._host = host
        self.failure: BaseException | None = None
        self.left_revision: int | None = None  # `IsrUpdater.leave` returned it, once the replica had failed
        self._applying = False  # an answer of the leader is being written
        self._fetches_after = False  # a fetch was due meanwhile, and is sent when that has ended
        self._more = False  # the leader's last answer was not all it had
        self._next_offset = Offset(0)  # end of the write in progress, where the leader's log continues; 0: unknown
        self._reported_durable_offset = Offset(0)  # of the last fetch sent
        self._has_stale_producers = False  # the log was cut and they were not rebuilt
        self._copy_until_ms = 0.0  # a throttled copy waits until then
        self._copied_at_rate = 0
        self._copy_timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._acknowledgements: dict[int, asyncio.Future[HeadraceError | None]] = {}
        self._tokens = itertools.count()
        self._slow = False
        self._appending = 0  # calls of `append` that are not over
        self._last_snapshot = SnapshotClock(0, 0, context.clock.monotonic_ms())
        self._unflushed_records = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushes: deque[tuple[Offset, float]] = deque(maxlen=_FLUSHES_REMEMBERED)
        self.produced_records = self.produced_bytes = self.fetched_bytes = 0  # since the start, for `/metrics/detail`
        self.replica = PartitionReplica(
            context.broker_id,
            log_start_offset=Offset(0) if partition_log is None else partition_log.log_start_offset,
            log_end_offset=Offset(0) if partition_log is None else partition_log.log_end_offset,
            flushed_offset=Offset(0) if partition_log is None else partition_log.flushed_offset,
            high_watermark=Offset(0) if partition_log is None else partition_log.checkpointed_high_watermark,
            last_epoch=LeaderEpoch(-1) if partition_log is None else partition_log.last_epoch,
            flushed_only=config.counts_flushed,
            producers=self._make_producers(),
            lag_max_ms=context.settings.replica_lag_max_ms,
            join_retry_ms=JOIN_RETRY_MS + zlib.crc32(b"%b %d" % (topic_id, number)) % JOIN_RETRY_MS,
        )

    def _make_producers(self) -> ProducerWindows:
        settings = self.context.settings
        return ProducerWindows(
            max_producers=settings.max_producers,
            expiry_ms=settings.producer_expiry_ms,
            retry_window_ms=settings.producer_retry_window_ms,
        )

    @property
    def log(self) -> PartitionLog | None:
        """The log, where it could be opened."""
        return self._log

    @property
    def open_log(self) -> PartitionLog:
        """The log of a replica that is not offline."""
        assert self._log is not None, "an offline replica has no log"
        return self._log

    # --- appending ---

    def append_now(self, batches: Sequence[bytes], known_epoch: int, *, committed: bool) -> AppendResult | None:
        """Append on the event loop, into the page cache; None where `append` has to do it, in a thread.

        `committed`: the caller will wait for the high watermark, so too few in-sync replicas refuse it (H13).
        """
        if self._slow or self._appending or self.log_lock.locked() or must_inflate(batches, self.config):
            return None
        result = AppendResult()
        try:
            self._append_run(batches, known_epoch, committed, result)
        except HeadraceError as error:
            self._end_append(result, error)
        return result

    async def append(self, batches: Sequence[bytes], known_epoch: int, *, committed: bool) -> AppendResult:
        """As `append_now`, with the writes in a thread and in the order of the calls."""
        self._appending += 1  # From here on `append_now` overtakes no writer, though the lock is not held yet.
        try:
            return await uninterrupted(self._append(batches, known_epoch, committed=committed))
        finally:
            self._appending -= 1

    async def _append(self, batches: Sequence[bytes], known_epoch: int, *, committed: bool) -> AppendResult:
        result = AppendResult()
        async with self.log_lock:
            position = 0
            try:
                compressed = None
                if must_inflate(batches, self.config):
                    self.replica.check_leading(known_epoch)
                    compressed = await check_compressed(batches, self.config, self.context)
                while position < len(batches):
                    pairs, taken = check_run(
                        batches, position, result, replica=self.replica, config=self.config, context=self.context,
                        known_epoch=known_epoch, committed=committed, compressed=compressed,
                    )  # fmt: skip
                    position += taken
                    if pairs:
                        await self._append_in_thread(pairs, result)
            except HeadraceError as error:
                self._end_append(result, error)
        return result

    async def _append_in_thread(self, pairs: list[tuple[bytes, BatchHeader]], result: AppendResult) -> None:
        self.context.metrics.slow_appends.inc()
        at_ms, leader_epoch = self.context.now_ms(), self.replica.leader_epoch
        started = time.perf_counter()
        base = await self.in_thread(lambda: self._write(pairs, at_ms, leader_epoch))
        result.append_seconds += time.perf_counter() - started
        self._note_run(pairs, base, at_ms, leader_epoch, result)
        if not self.replica.counts_append(leader_epoch):
            # It is in the log, and the next leader may commit it.
            raise NotLeaderError("leadership moved during the append", outcome=Outcome.UNKNOWN)

    def _append_run(
        self,
        batches: Sequence[bytes],
        known_epoch: int,
        committed: bool,
        result: AppendResult,
    ) -> None:
        position = 0
        while position < len(batches):
            pairs, taken = check_run(
                batches, position, result, replica=self.replica, config=self.config,
                context=self.context, known_epoch=known_epoch, committed=committed,
            )  # fmt: skip
            position += taken
            if pairs:
                at_ms, leader_epoch = self.context.now_ms(), self.replica.leader_epoch
                self._note_run(pairs, self._write(pairs, at_ms, leader_epoch), at_ms, leader_epoch, result)

    def _write(self, pairs: list[tuple[bytes, BatchHeader]], at_ms: int, leader_epoch: int) -> Offset:
        started_ms = self.context.clock.monotonic_ms()
        if len(pairs) == 1:
            batch, header = pairs[0]
            base = self.open_log.append(batch, header, leader_epoch=leader_epoch, append_timestamp_ms=at_ms)
        else:
            base = self.open_log.append_all(pairs, leader_epoch=leader_epoch, append_timestamp_ms=at_ms)
        self._slow = self.context.clock.monotonic_ms() - started_ms >= self.context.settings.slow_append_ms
        return base

    def _note_run(
        self, pairs: list[tuple[bytes, BatchHeader]], base: int, at_ms: int, leader_epoch: int, result: AppendResult
    ) -> None:
        """Report a write to the core, the flusher and the counters."""
        records = size_bytes = 0
        actions: list[Action] = []
        for _, header in pairs:
            end = base + header.record_count
            actions += self._tell_core(
                Appended(
                    Offset(base), Offset(end), header.producer_id, header.producer_epoch, header.base_sequence, at_ms
                )
            )
            result.base_offsets.append(base)
            records += header.record_count
            size_bytes += header.batch_bytes
            base = end
        result.end_offset = max(result.end_offset, base)
        result.append_timestamp_ms = at_ms
        metrics = self.context.metrics
        metrics.produced_batches.inc(len(pairs))
        metrics.produced_records.inc(records)
        metrics.produced_bytes.inc(size_bytes)
        self.produced_records += records
        self.produced_bytes += size_bytes
        self.ask_for_flush(records, CALLER.get())
        self._perform(actions)
        self.wake_replicas()

    def _end_append(self, result: AppendResult, error: HeadraceError) -> None:
        result.error = error
        if isinstance(error, StorageOfflineError) and self.replica.role is Role.LEADING:
            self.fail(error)

    def acknowledgement(
        self, end_offset: int, leader_epoch: int
    ) -> tuple[int, asyncio.Future[HeadraceError | None]] | None:
        """A future: None once the high watermark has reached `end_offset`, or the error that prevents it.

        None: it has reached it already. The token is for `give_up`.
        """
        if end_offset <= self.replica.high_watermark and leader_epoch == self.replica.leader_epoch:
            return None
        token, future = self._new_wait()
        self.handle(AcknowledgementAwaited(token, Offset(end_offset), LeaderEpoch(leader_epoch)))
        return token, future

    def _new_wait(self) -> tuple[int, asyncio.Future[HeadraceError | None]]:
        token = next(self._tokens)
        future: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()
        self._acknowledgements[token] = future
        return token, future

    def give_up(self, token: int) -> TimedOutError:
        """Stop waiting for `token`; return the error for the caller: the records may still be committed."""
        self._acknowledgements.pop(token, None)
        self.handle(AcknowledgementDropped(token))
        return TimedOutError("the acknowledgement did not come in time", outcome=Outcome.UNKNOWN)

    # --- reading ---

    def locate_now(
        self, offset: int, max_bytes: int, known_epoch: int, *, from_follower: bool = False
    ) -> tuple[Slice | None, bool]:
        """The visible batches from `offset` on, without blocking: (slice, or None for nothing yet; would it block).

        `from_follower`: the reader takes a follower's, too. Close the slice. Raises as
        `PartitionReplica.check_leading` and `check_read`, and StorageOfflineError.
        """
        replica = self.replica
        self.check_reader(known_epoch, from_follower=from_follower)
        replica.check_read(offset)
        if offset >= replica.high_watermark:
            return None, False
        found = self.open_log.read_nowait(offset, max_bytes, replica.high_watermark)
        return found, found is None

    def check_reader(self, known_epoch: int, *, from_follower: bool) -> None:
        """Raise as `PartitionReplica.check_leading`, or `check_serving` for readers that take a follower's."""
        if from_follower:
            self.replica.check_serving(known_epoch)
        else:
            self.replica.check_leading(known_epoch)

    def find_divergence(self, offset: int, last_epoch: int) -> Diverged | None:
        """As `replica_fetch.check_reader`."""
        return check_reader(self.replica, self.open_log, offset, last_epoch)

    async def locate(self, offset: int, max_bytes: int) -> Slice:
        """As `locate_now`, in a thread."""
        self.context.metrics.blocking_reads.inc()
        high_watermark = self.replica.high_watermark
        return await self.in_thread(lambda: self.open_log.read(offset, max_bytes, high_watermark))

    async def read(self, found: Slice) -> bytes:
        """The bytes of a slice, from the page cache at once, else from the disk in a thread; closes it."""
        with found:
            data = found.try_read_nowait()
            if data is None:
                self.context.metrics.blocking_reads.inc()
                data = await self.in_thread(found.read)
            return data

    async def offset_for_timestamp(self, timestamp_ms: int, kind: TimestampKind) -> TimestampedOffset | None:
        """The first visible record at or after `timestamp_ms`; None if there is none."""
        found = await self.in_thread(lambda: self.open_log.offset_for_timestamp(timestamp_ms, kind))
        return None if found is None or found.offset >= self.replica.high_watermark else found

    async def append_time(self, offset: int) -> TimestampedOffset | None:
        """The first visible record from `offset` on, and when its batch was appended; None: there is none."""
        wanted = max(offset, self.replica.log_start_offset)
        if wanted >= self.replica.high_watermark:
            return None
        header = await self.in_thread(lambda: self.open_log.batch_with(wanted))
        return TimestampedOffset(Offset(wanted), header.append_timestamp_ms)

    async def delete_records(self, before_offset: int, timeout_seconds: float) -> Offset:
        """Raise the log start of the partition to `before_offset` (-1: the high watermark) and return it.

        Raises:
            OffsetOutOfRangeError: `before_offset` is above the high watermark.
            NotEnoughReplicasError: too few replicas are in sync for any to be counted on.
            TimedOutError, NotLeaderError, with the outcome UNKNOWN: some in-sync replica may still have the records.
        """
        replica = self.replica
        replica.check_leading(-1)
        replica.check_in_sync()
        before = replica.high_watermark if before_offset == -1 else before_offset
        if before > replica.high_watermark:
            raise OffsetOutOfRangeError(f"offset {before} is above the high watermark {replica.high_watermark}")
        self.handle(LogStartWanted(Offset(before)))
        token, future = self._new_wait()
        self.handle(LogStartAwaited(token, Offset(before), replica.leader_epoch))
        try:
            await asyncio.wait([future], timeout=timeout_seconds)
        finally:
            if not future.done():
                self.give_up(token)
        if not future.done():
            raise TimedOutError(f"not every in-sync replica begins at {before} yet", outcome=Outcome.UNKNOWN)
        if (error := future.result()) is not None:
            raise error
        return replica.log_start_offset

    async def raise_log_start(self, offset: Offset) -> None:
        """Do what `RaiseLogStart` asks for, again after a moment where the disk refuses it (H35)."""
        async with self.log_lock:
            if self.replica.role is not Role.LEADING or self.replica.raising_to != offset:
                return
            try:
                await self._raise_log_start(offset)
            except HeadraceError as error:
                if not self.fail_unless_refused(error):
                    delay_seconds = RETRY_AFTER_MS / 1000
                    asyncio.get_running_loop().call_later(delay_seconds, self._host.raise_log_start, self, offset)

    async def _raise_log_start(self, offset: Offset) -> None:
        high_watermark, segments = self.replica.high_watermark, self.open_log.segment_count
        start = await self.in_thread(lambda: self.open_log.delete_records(offset, high_watermark))
        self.context.metrics.deleted_segments.inc(max(0, segments - self.open_log.segment_count))
        self.handle(LogStartRaised(start))

    # --- replication: both ends of a fetch ---

    async def read_for_replica(self, offset: int, max_bytes: int) -> tuple[bytes, Offset | None]:
        """Whole batches from `offset` to the log end, fsynced or not, and where more follow; None: nowhere.

        The core's log end: of an append in a thread it is told when it is done, and then wakes the followers.
        Raises SliceCutError, StorageOfflineError.
        """
        partition_log = self.open_log
        end_offset = self.replica.log_end_offset
        start = max(offset, partition_log.log_start_offset)
        if start >= end_offset:
            return b"", None
        try:
            found = partition_log.read_nowait(start, max_bytes, end_offset)
            if found is None:
                found = await self.in_thread(lambda: partition_log.read(start, max_bytes, end_offset))
            next_offset = Offset(found.end_offset) if found.end_offset < self.replica.log_end_offset else None
            return await self.read(found), next_offset
        except HeadraceError as error:
            self.note_read_error(error)
            raise

    def compare_fetch(self, request: FetchRequest) -> FetchDecision | None:
        """As `replica_fetch.check_fetch` and `compare_logs`; corruption met takes the replica offline."""
        check_fetch(self.replica, request)
        try:
            return compare_logs(self.open_log, request)
        except HeadraceError as error:
            self.note_read_error(error)
            raise

    def may_fetch(self) -> bool:
        """Whether a follower may ask for more now; where not, what is under way asks again when it ends.

        That is the work itself, never who waits for it: a stream that breaks cancels the one and not the other.

        With durability=fsync a follower that has reached the end flushes first: its next fetch acknowledges.
        """
        replica = self.replica
        if replica.role is not Role.FOLLOWING:
            return False
        if self._applying and not self._next_offset:
            self._fetches_after = True
            return False
        if self._holds_back():
            return False
        at_end = self._flushes_always and not self._more
        if at_end and replica.flushed_offset < replica.log_end_offset:
            self.context.flusher.request(self, self.topic)
            return False
        return True

    def _holds_back(self) -> bool:
        """Whether the throttle of a move makes this replica wait; it looks again at least once a second."""
        rate = self._copy_rate()
        if rate != self._copied_at_rate:
            self._copied_at_rate, self._copy_until_ms = rate, 0.0
        left_ms = self._copy_until_ms - self.context.clock.monotonic_ms()
        if left_ms <= 0:
            return False
        if self._copy_timer is None:
            seconds = min(left_ms / 1000, _COPY_LOOK_SECONDS)
            self._copy_timer = asyncio.get_running_loop().call_later(seconds, self._copy_on)
        return True

    def _copy_on(self) -> None:
        self._copy_timer = None
        self._host.fetch(self)

    def _copy_rate(self) -> int:
        """Bytes a second that this replica may copy while a move adds it; 0: as fast as it can."""
        state = self.replica.state
        return state.copy_bytes_per_second if state is not None and self.context.broker_id in state.adding else 0

    def begin_fetch(self, end_offset: int) -> tuple[int, Offset, Offset] | None:
        """As `PartitionReplica.begin_fetch`: the token, what it reports as durable of a log that ends at `end_offset`,
        and where the answer begins; 0: at `end_offset`.

        A fetch that waits at the leader is replaced if more has been flushed since it was sent.
        """
        ahead_offset = self._next_offset if self._next_offset > end_offset else Offset(0)
        durable_offset = min(self.replica.flushed_offset, Offset(end_offset))
        replace = durable_offset > self._reported_durable_offset
        token = self.replica.begin_fetch(replace=replace, ahead_offset=ahead_offset)
        if token is None:
            return None
        self._reported_durable_offset = durable_offset
        return token, durable_offset, ahead_offset

    async def take_answer(self, answer: FetchAnswer) -> bool:
        """Do what a leader's answer asks for; False: it is not the one awaited, and nothing was done.

        Raises:
            CorruptBatchError: the batches fail their checks (I17); nothing was appended.
            REFUSALS: nothing was appended.
            HeadraceError: the replica has gone offline.
        """
        return await uninterrupted(self._take_answer(answer))

    async def _take_answer(self, answer: FetchAnswer) -> bool:
        async with self.log_lock:
            if self.replica.role in (Role.OFFLINE, Role.DELETED):
                return False
            try:
                if self._has_stale_producers:
                    await self._rebuild_producers()
                step = next_step(self.replica, self.open_log, answer)
                self._applying = step is not None
                match step:
                    case AppendBatches():
                        await self._append_replicated(step)
                    case TruncateTo(offset):
                        await self._truncate_log(offset)
                    case ResetLog(offset, previous_crc):
                        await self._reset_log(offset, previous_crc)
                    case Refetch() | None:
                        pass
            except HeadraceError as error:
                self.replica.end_fetch()  # Of what was to follow these batches, nothing can be used.
                if not isinstance(error, CorruptBatchError):
                    self.fail_unless_refused(error)
                raise
            finally:
                self._applying, self._next_offset = False, Offset(0)
                if self._fetches_after:
                    self._fetches_after = False
                    self._host.fetch(self)
            return step is not None

    async def _append_replicated(self, step: AppendBatches) -> None:
        partition_log = self.open_log
        self._more = step.more
        if len(step.batches):
            try:
                if len(step.batches) <= _INLINE_BYTES and not self._slow:
                    headers = partition_log.append_replicated(step.batches)
                else:
                    self._fetch_ahead(step)
                    headers = await self.in_thread(lambda: partition_log.append_replicated(step.batches))
            except REFUSALS:
                await self._take_report(step)  # What the leader has deleted makes room.
                raise
            self.handle(BatchesReplicated(headers))
            self.context.metrics.replicated_in_bytes.inc(len(step.batches))
            self.ask_for_flush(sum(header.record_count for header in headers), self.topic)
            rate = self._copied_at_rate = self._copy_rate()
            if rate:
                now_ms = self.context.clock.monotonic_ms()
                self._copy_until_ms = max(self._copy_until_ms, now_ms) + len(step.batches) * 1000 / rate
        await self._take_report(step)

    async def _take_report(self, step: AppendBatches) -> None:
        """Take up the leader's high watermark and log start, as far as this log goes."""
        self.handle(LeaderReported(step.high_watermark))
        start = min(step.log_start_offset, self.replica.high_watermark)
        if start > self.replica.log_start_offset:
            await self._raise_log_start(Offset(start))

    def _fetch_ahead(self, step: AppendBatches) -> None:
        """Let the next slice come while a thread writes this one."""
        if step.more and step.next_offset and not self._copy_rate():
            self._next_offset = Offset(step.next_offset)
            self._host.fetch(self)

    async def _truncate_log(self, offset: int) -> None:
        log.warning(
            "log_truncated",
            topic=self.topic, partition=self.number, log_end_offset=self.replica.log_end_offset, to=offset,
        )  # fmt: skip
        await self._cut(lambda: self.open_log.truncate_to(offset))
        self.handle(LogTruncated(Offset(self.open_log.end.offset)))
        self.context.metrics.truncations.inc()

    async def _reset_log(self, offset: int, previous_crc: int) -> None:
        log.warning("log_reset", topic=self.topic, partition=self.number, offset=offset)
        await self._cut(lambda: self.open_log.reset_to(offset, previous_crc), restart_offset=offset)
        self.handle(LogRestarted(Offset(offset)))

    async def _cut(self, cut: Callable[[], object], *, restart_offset: int = -1) -> None:
        """Cut the log and rebuild its producers.

        A cut that is refused halfway has cut the log nevertheless: the core learns that before the error is raised, and
        the producers are rebuilt before anything is appended or a snapshot of them is written (H35).
        """
        self._has_stale_producers = True
        try:
            await self.in_thread(cut)
            await self._rebuild_producers()
        except REFUSALS:
            end_offset = Offset(self.open_log.end.offset)
            if end_offset == restart_offset == self.open_log.log_start_offset:
                self.handle(LogRestarted(end_offset))
            elif end_offset < self.replica.log_end_offset:
                self.handle(LogTruncated(end_offset))
            raise

    async def _rebuild_producers(self) -> None:
        producers = self._make_producers()
        await self.in_thread(lambda: rebuild_producers(producers, self.open_log))
        self.replica.producers = producers
        self._has_stale_producers = False

    def verify_log(self, offset: int) -> None:
        """A reader found bytes that fail their checks: look at what is on the disk, and go offline if it is here."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._verify_log(offset))
            self.context.watch(self._looking)

    async def _verify_log(self, offset: int) -> None:
        if self.replica.role in (Role.OFFLINE, Role.DELETED):
            return
        start = max(offset, self.open_log.log_start_offset)  # It may lie inside a batch, which replicas copy whole.
        try:
            await self.in_thread(lambda: self.open_log.verify_from(start, _LOOK_BYTES))
        except OffsetOutOfRangeError:
            return
        except HeadraceError as error:
            self.note_read_error(error)
            return
        log.info("corruption_not_confirmed", topic=self.topic, partition=self.number, offset=offset)

    def note_read_error(self, error: HeadraceError) -> None:
        """A read met `error`: where the log is broken or corrupt, others have the records, and this one is not needed.

        Without another in-sync replica it stays: what can still be read is read, and the alarm says what cannot (H33).
        """
        if not isinstance(error, StorageOfflineError) or self.replica.role in (Role.OFFLINE, Role.DELETED):
            return
        state = self.replica.state
        has_others = state is not None and any(entry.broker_id != self.context.broker_id for entry in state.in_sync)
        if has_others or not isinstance(error, CorruptLogError):
            self.fail(error)
            return
        self.context.metrics.corruptions_detected.inc()
        log.error("log_corrupt", topic=self.topic, partition=self.number, reason=str(error))

    # --- roles, flushes, settings: events for the core ---

    def handle(self, event: Event) -> None:
        """Pass an event to the core and perform its actions."""
        revision = self.replica.revision
        self._perform(self._tell_core(event))
        if self.replica.revision != revision:
            self.wake_replicas()  # The key has changed: a fetch that waits may be of a replica that was there before.
        if (self.replica.revision != revision or isinstance(event, SessionStarted)) and self.replica.lacks_committed:
            self._fail_incomplete()

    def _tell_core(self, event: Event) -> list[Action]:
        """Pass an event to the core. A violated invariant ends the broker."""
        try:
            return self.replica.handle(event)
        except AssertionError as error:
            self.context.crash(error)
            raise

    def _fail_incomplete(self) -> None:
        """The log is that of another time or replica, whatever the cause: it must not count (I2, I3)."""
        state, partition_log = self.replica.state, self.open_log
        assert state is not None
        self.fail(
            CorruptLogError(
                f"it ends there, and everything below offset {state.high_watermark} was committed with this replica",
                file=partition_log.directory,
                offset=self.replica.log_end_offset,
                position=partition_log.size_bytes,
            )
        )

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case HighWatermarkAdvanced():
                    self.context.advanced[self] = None
                    self._wake_watchers()
                    for delayed in self.delayed_fetches:
                        delayed.note_high_watermark(self)
                case AnnounceLogStart():
                    self.wake_replicas()
                case RaiseLogStart(offset):
                    self._host.raise_log_start(self, offset)
                case Acknowledge(token):
                    self._answer(token, None)
                case Abandon(token, error):
                    self._answer(token, error)
                case PersistEpoch(leader_epoch):
                    self._host.start_epoch(self, leader_epoch)
                case Propose():
                    self._host.propose(self, action)
                case LimitPause(number):
                    asyncio.get_running_loop().call_later(HAND_OVER_MS / 1000, self._end_pause, number)
                case Follow(leader, leader_epoch):
                    log.info(
                        "following",
                        topic=self.topic,
                        partition=self.number,
                        leader=leader.broker_id,
                        leader_epoch=leader_epoch,
                    )
                    self._more, self._next_offset = False, Offset(0)
                    self._host.follow(self, leader)
                case Unfollow():
                    self._host.unfollow(self)
                case LeaveInSync(corrupt):
                    self._host.leave_in_sync(self, corrupt=corrupt)
                case LeadershipStarted(leader_epoch, start_offset):
                    self.context.metrics.leader_partitions.inc()
                    self.context.metrics.leaderships_started.inc()
                    log.info(
                        "leadership_started",
                        topic=self.topic,
                        partition=self.number,
                        leader_epoch=leader_epoch,
                        start_offset=start_offset,
                    )
                    self._wake_watchers()
                case LeadershipEnded(leader_epoch):
                    self.context.metrics.leader_partitions.dec()
                    log.info("leadership_ended", topic=self.topic, partition=self.number, leader_epoch=leader_epoch)
                    self._wake_watchers()
                    self.wake_replicas()
                case _:
                    assert_never(action)

    def _end_pause(self, number: int) -> None:
        self.handle(PauseOver(number, self.context.clock.monotonic_ms()))

    def _answer(self, token: int, error: HeadraceError | None) -> None:
        future = self._acknowledgements.pop(token, None)
        if future is not None and not future.done():
            future.set_result(error)

    def _wake_watchers(self) -> None:
        for event in self.watchers:
            event.set()

    def wake_replicas(self) -> None:
        """Answer the followers' fetches that wait here."""
        for delayed in self.delayed_fetches:
            delayed.wake(self)

    async def persist_epoch(self, leader_epoch: int) -> None:
        """Make the start of a leader epoch durable and begin to lead (PROTOCOL "Leading")."""
        await uninterrupted(self._persist_epoch(leader_epoch))

    async def _persist_epoch(self, leader_epoch: int) -> None:
        async with self.log_lock:
            if self.replica.role is not Role.STARTING or self.replica.leader_epoch != leader_epoch:
                return
            try:
                if self._has_stale_producers:
                    await self._rebuild_producers()
                start = await self.in_thread(lambda: self._start_epoch(leader_epoch))
            except HeadraceError as error:
                if not self.fail_unless_refused(error):
                    retry = partial(self._host.start_epoch, self, leader_epoch)
                    asyncio.get_running_loop().call_later(RETRY_AFTER_MS / 1000, retry)
                return
            self.handle(EpochPersisted(LeaderEpoch(leader_epoch), start, self.context.clock.monotonic_ms()))

    def _start_epoch(self, leader_epoch: int) -> Offset:
        self.open_log.flush()
        return self.open_log.start_epoch(leader_epoch)

    def flush_blocking(self) -> Offset:
        """For the flusher's threads."""
        partition_log = self.open_log
        offset = partition_log.flush()
        with suppress(*REFUSALS):  # The next round notes more.
            partition_log.note_high_watermark(self.replica.high_watermark)
        return offset

    def on_flushed(self, offset: Offset) -> None:
        """For the flusher."""
        # The log's own mark falls with a cut: a round that ended before the cut says nothing of what came after it.
        durable = min(offset, self.open_log.flushed_offset)
        self._flushes.append((durable, time.perf_counter()))
        self.handle(Flushed(durable))
        if self.replica.role is Role.FOLLOWING:
            self._host.fetch(self)

    def flushed_at(self, end_offset: int) -> float | None:
        """When a recent flush made everything below `end_offset` durable, by `time.perf_counter`; None: none did."""
        return next((at for offset, at in self._flushes if offset >= end_offset), None)

    def on_flush_failed(self, error: BaseException) -> None:
        """For the flusher: the replica goes offline at once (H34)."""
        self.fail(error)

    @property
    def _flushes_always(self) -> bool:
        """Whether every append is flushed at once: the topic asks for it, or the key promises it still (H30)."""
        if self.config.durability is Durability.FSYNC:
            return True
        return self.replica.flushed_only and not self.config.flushes_by_policy

    def ask_for_flush(self, records: int, caller: str) -> None:
        """See that `records` that `caller` appended become durable when the topic's settings say so."""
        config = self.config
        if self._flushes_always:
            self.context.flusher.request(self, caller)
            return
        if not config.flushes_by_policy:
            return
        self._unflushed_records += records
        if self._unflushed_records >= config.flush_messages:
            self.flush_soon()
        elif self._flush_timer is None and config.flush_ms < INT64_MAX:
            self._flush_timer = asyncio.get_running_loop().call_later(config.flush_ms / 1000, self.flush_soon)

    def flush_soon(self) -> None:
        """See that everything appended until now becomes durable."""
        self._unflushed_records = 0
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self.replica.role not in (Role.OFFLINE, Role.DELETED):
            self.context.flusher.request(self, self.topic)

    def update_config(self, config: TopicConfig) -> None:
        """Apply changed topic settings; the log takes its part under the lock by `update_log_settings`."""
        self.config = config
        flushed_only = config.counts_flushed
        if flushed_only != self.replica.flushes:
            self.handle(DurabilityChanged(flushed_only))
            if flushed_only:
                self.flush_soon()

    async def update_log_settings(self) -> None:
        """Apply the settings of `config` to the log."""
        if self._log is not None and self.replica.role is not Role.OFFLINE:
            async with self.log_lock:
                self._log.update_settings(log_settings(self.config))

    def fail(self, error: BaseException) -> None:
        """Take the replica offline for the life of the process."""
        if self.replica.role in (Role.OFFLINE, Role.DELETED):
            return
        self.failure = error
        self.context.metrics.offline_logs.inc()
        log.error("log_offline", topic=self.topic, partition=self.number, reason=str(error))
        self.handle(StorageFailed(str(error), corrupt=isinstance(error, CorruptLogError)))
        self._wake_watchers()

    def fail_unless_refused(self, error: HeadraceError) -> bool:
        """Take the replica offline for an error of its storage; False: the call was refused, and may succeed later."""
        if isinstance(error, REFUSALS):
            self.context.metrics.storage_refusals.inc()
            log.info("storage_call_refused", topic=self.topic, partition=self.number, reason=str(error))
            return False
        self.fail(error)
        return True

    async def checkpoint(self, *, force: bool) -> None:
        """Write a checkpoint if the last one is stale, and is due or `force`."""
        partition_log, high_watermark = self._log, self.replica.high_watermark
        if partition_log is None or self.replica.role in (Role.OFFLINE, Role.DELETED):
            return
        if not partition_log.checkpoint_is_stale(high_watermark):
            return
        at_ms = self.context.clock.monotonic_ms()
        try:
            await self.in_thread(lambda: partition_log.checkpoint(at_ms, high_watermark, force=force))
        except HeadraceError as error:
            self.fail_unless_refused(error)

    async def prepare_close(self) -> None:
        """Flush and write a producer snapshot: the last use of the log before `replica_manager` closes it."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._log is None or self.replica.role is Role.OFFLINE:
            return
        async with self.log_lock:
            try:
                await self.in_thread(self.open_log.flush)
                if not self._has_stale_producers:
                    await self.in_thread(self._snapshot_producers)
            except HeadraceError as error:
                self.fail_unless_refused(error)

    def note_snapshot(self, offset: int) -> None:
        """Note that the disk has a snapshot of the producers at `offset`, which need not be written again."""
        self._last_snapshot = SnapshotClock(offset, self.open_log.size_bytes, self.context.clock.monotonic_ms())

    @property
    def last_snapshot_ms(self) -> int:
        """When a producer snapshot was last written, or would have been (monotonic)."""
        return self._last_snapshot.at_ms

    async def snapshot_producers_if_due(self) -> bool:
        """Write a producer snapshot if a start would have much to read; return whether it did. Appends wait
        meanwhile.
        """
        partition_log, kept = self.open_log, self._last_snapshot
        now_ms = self.context.clock.monotonic_ms()
        if not kept.is_due(partition_log.log_end_offset, partition_log.size_bytes, now_ms):
            return False
        async with self.log_lock:
            if self.replica.role in (Role.OFFLINE, Role.DELETED) or self._has_stale_producers:
                return False
            self.note_snapshot(partition_log.log_end_offset)
            await self.in_thread(self._snapshot_producers)
        return True

    def _snapshot_producers(self) -> None:
        self.open_log.store_producer_snapshot(self.open_log.log_end_offset, self.replica.producers.snapshot())

    async def in_thread(self, call: Callable[[], ResultT]) -> ResultT:
        """Run a blocking call of the log; what it raises beyond the typed errors becomes InternalError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.context.executor, call)
        except HeadraceError:
            raise
        except Exception as error:
            log.exception("storage_call_failed", topic=self.topic, partition=self.number)
            raise InternalError(f"the storage met an unexpected {type(error).__name__}") from error


def log_settings(config: TopicConfig) -> LogSettings:
    """What a topic's settings mean for a log."""
    return LogSettings(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )
