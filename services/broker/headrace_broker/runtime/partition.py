"""Partition of a broker: the core's state machine, the log, and the calls that wait for them.

Called by `replica_manager` for roles and settings, by the flusher and by maintenance. Its parts have one subject
each: appends of producers (`partition_appender`), reads (`partition_reads`), fetches as a follower
(`partition_follower`), flushes (`flush_policy`), the log start, the producers, corruption.
Everything runs on the event loop; blocking calls of the log run in threads, one at a time under `log_lock` if the log
requires it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar, assert_never

import structlog
from headrace.log.errors import REFUSALS, RETRY_AFTER_MS, CorruptLogError
from headrace.log.log import PartitionLog
from headrace.partition.batch_checks import AppendResult
from headrace.partition.log_settings import log_settings
from headrace.partition.producer_recovery import rebuild_producers
from headrace.partition.topic_configs import TopicConfig
from headrace.wire.errors import (
    HeadraceError,
    InternalError,
)
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_server.metadata_view import Topic

from headrace_broker.core.hand_over import HAND_OVER_MS
from headrace_broker.core.messages import (
    Abandon,
    Acknowledge,
    Action,
    AnnounceLogStart,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    Follow,
    HighWatermarkAdvanced,
    LeadershipEnded,
    LeadershipStarted,
    LeaveInSync,
    LimitPause,
    PauseOver,
    PersistEpoch,
    Propose,
    RaiseLogStart,
    SessionStarted,
    StorageFailed,
    Unfollow,
)
from headrace_broker.core.replica import JOIN_RETRY_MS, PartitionReplica
from headrace_broker.core.roles import Role
from headrace_broker.runtime.corruption import CorruptionCheck
from headrace_broker.runtime.flush_policy import FlushPolicy, flush_settings
from headrace_broker.runtime.load_meter import LoadMeter
from headrace_broker.runtime.log_start import LogStart
from headrace_broker.runtime.partition_appender import AcknowledgementWaits, PartitionAppender
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.partition_follower import PartitionFollower
from headrace_broker.runtime.partition_host import DelayedFetch, PartitionHost
from headrace_broker.runtime.partition_reads import PartitionReads
from headrace_broker.runtime.producer_state import ProducerState, make_windows
from headrace_broker.runtime.table import PartitionTable
from headrace_broker.runtime.uninterrupted import uninterrupted
from headrace_broker.runtime.waiters import WakeUp

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

__all__ = ["AppendResult", "Partition", "PartitionContext"]


class Partition:
    """Partition, owned by `replica_manager`. Belongs to the event loop except `flush_blocking`."""

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
        """`partition_log` is an opened log, or `None` if it could not be opened; the caller then calls `fail`."""
        self.topic, self.topic_id, self.number = topic, topic_id, number
        self.config = config
        self.context = context
        self.watchers: dict[WakeUp, None] = {}
        self.delayed_fetches: dict[DelayedFetch, None] = {}
        self.log = partition_log  # None if it could not be opened
        self.log_lock = asyncio.Lock()
        self._host = host
        self.failure: BaseException | None = None
        self.left_revision: int | None = None  # result of `IsrUpdater.leave` after the replica failed
        self.fetched_bytes = 0  # since the start, for `/metrics/detail`
        self.meter = LoadMeter(context.clock.monotonic_ms())
        self.replica = PartitionReplica(
            context.broker_id,
            log_start_offset=Offset(0) if partition_log is None else partition_log.log_start_offset,
            log_end_offset=Offset(0) if partition_log is None else partition_log.log_end_offset,
            flushed_offset=Offset(0) if partition_log is None else partition_log.flushed_offset,
            high_watermark=Offset(0) if partition_log is None else partition_log.checkpointed_high_watermark,
            last_epoch=LeaderEpoch(-1) if partition_log is None else partition_log.last_epoch,
            flushed_only=config.counts_flushed,
            producers=make_windows(context.settings),
            lag_max_ms=context.settings.replica_lag_max_ms,
            join_retry_ms=JOIN_RETRY_MS + zlib.crc32(b"%b %d" % (topic_id, number)) % JOIN_RETRY_MS,
        )
        self.acknowledgements = AcknowledgementWaits(self)
        self.appender = PartitionAppender(self)
        self.reads = PartitionReads(self)
        self.flush_policy = FlushPolicy(self)
        self.follower = PartitionFollower(self, host)
        self.log_start = LogStart(self, host)
        self.producers = ProducerState(self)
        self.corruption = CorruptionCheck(self)
        self.table: PartitionTable | None = None
        """`None` of a topic that is no table."""
        self._update_table()

    @property
    def open_log(self) -> PartitionLog:
        """Log of a replica that is not offline."""
        assert self.log is not None, "an offline replica has no log"
        return self.log

    # --- roles, flushes, settings: events for the core ---

    def handle(self, event: Event) -> None:
        """Pass an event to the core and perform its actions."""
        revision = self.replica.revision
        self.perform(self.tell_core(event))
        if self.replica.revision != revision:
            self.wake_replicas()  # The key has changed; a waiting fetch may be of a former replica.
        if (self.replica.revision != revision or isinstance(event, SessionStarted)) and self.replica.lacks_committed:
            self._fail_incomplete()

    def tell_core(self, event: Event) -> list[Action]:
        """Pass an event to the core and return its actions. A violated invariant stops the broker."""
        try:
            return self.replica.handle(event)
        except AssertionError as error:
            self.context.crash(error)
            raise

    def _fail_incomplete(self) -> None:
        """Fail a log that lacks committed records, whatever the cause, because it must not count (I2, I3)."""
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

    def perform(self, actions: Sequence[Action]) -> None:
        """Perform actions of the core."""
        for action in actions:
            match action:
                case HighWatermarkAdvanced():
                    self.context.advanced[self] = None
                    if self.watchers:
                        self._wake_watchers()
                    for delayed in self.delayed_fetches:
                        delayed.note_high_watermark(self)
                case AnnounceLogStart():
                    self.wake_replicas()
                case RaiseLogStart(offset):
                    self._host.raise_log_start(self, offset)
                case Acknowledge(token):
                    self.acknowledgements.answer(token, None)
                case Abandon(token, error):
                    self.acknowledgements.answer(token, error)
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
                    self.follower.follow(leader)
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

    def _wake_watchers(self) -> None:
        for wake_up in self.watchers:
            wake_up.set()

    def wake_replicas(self) -> None:
        """Wake waiting fetches of followers."""
        for delayed in self.delayed_fetches:
            delayed.wake(self)

    async def persist_epoch(self, leader_epoch: int) -> None:
        """Persist the start of a leader epoch and start to lead (PROTOCOL "Leading")."""
        await uninterrupted(self._persist_epoch(leader_epoch))

    async def _persist_epoch(self, leader_epoch: int) -> None:
        async with self.log_lock:
            if self.replica.role is not Role.STARTING or self.replica.leader_epoch != leader_epoch:
                return
            try:
                if self.producers.are_stale:
                    await self.producers.rebuild()
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
        """Flush the log; see `Flushable`."""
        offset = self.open_log.flush()
        with suppress(*REFUSALS):  # The next round records more.
            self.note_high_watermark()
        return offset

    def on_flushed(self, offset: Offset) -> None:
        """Report a flush to the core; see `Flushable`."""
        # The log's own offset falls with a truncation: an earlier round does not cover records appended after it.
        durable = min(offset, self.open_log.flushed_offset)
        self.flush_policy.note_flushed(durable)
        self.handle(Flushed(durable))
        for delayed in self.delayed_fetches:
            delayed.note_flushed(self)
        if self.replica.role is Role.FOLLOWING:
            self._host.fetch(self)

    def on_flush_failed(self, error: BaseException) -> None:
        """Take the replica offline at once (H34); see `Flushable`."""
        self.fail(error)

    def update_config(self, config: TopicConfig) -> None:
        """Apply changed topic settings; `update_log_settings` applies those of the log, under its lock."""
        before, self.config = self.config, config
        self._update_table()
        flushed_only = config.counts_flushed
        if flushed_only != self.replica.flushes:
            self.handle(DurabilityChanged(flushed_only))
        if flush_settings(config) != flush_settings(before):  # Records wait for a flush by the former ones.
            self.flush_policy.flush_soon()

    def _update_table(self) -> None:
        if self.config.is_table and self.table is None:
            self.table = PartitionTable(self, self.context.row_batches)
        elif not self.config.is_table:
            self.close_table()
        if self.table is not None:
            self.table.trace_at(self.config.trace_sample)

    def close_table(self) -> None:
        """Release the memory of the table, if it is one."""
        if self.table is not None:
            self.table.close()
            self.table = None

    async def update_log_settings(self) -> None:
        """Apply the settings of `config` to the log."""
        if self.log is not None and self.replica.role is not Role.OFFLINE:
            async with self.log_lock:
                self.log.update_settings(log_settings(self.config))

    def fail(self, error: BaseException) -> None:
        """Take the replica offline for the life of the process."""
        if self.replica.role in (Role.OFFLINE, Role.DELETED):
            return
        self.failure = error
        log.error("log_offline", topic=self.topic, partition=self.number, reason=str(error))
        self.handle(StorageFailed(str(error), corrupt=isinstance(error, CorruptLogError)))
        self._wake_watchers()

    def fail_unless_refused(self, error: Exception) -> bool:
        """Take the replica offline for an error of the storage; return False if the call was rejected and may succeed
        later.
        """
        if isinstance(error, REFUSALS):
            self.context.metrics.storage_refusals.inc()
            log.info("storage_call_refused", topic=self.topic, partition=self.number, reason=str(error))
            return False
        self.fail(error)
        return True

    def note_high_watermark(self) -> None:
        """Note the high watermark without an fsync, in case this process is killed. Blocks: call it in a thread."""
        partition_log, high_watermark = self.log, self.replica.high_watermark
        if partition_log is not None and self.replica.role not in (Role.OFFLINE, Role.DELETED):
            partition_log.durability.note_high_watermark(high_watermark)

    @property
    def has_stale_checkpoint(self) -> bool:
        """See `Checkpointed`."""
        partition_log, replica = self.log, self.replica
        if partition_log is None or replica.role in (Role.OFFLINE, Role.DELETED):
            return False
        return partition_log.durability.is_stale(replica.high_watermark)

    async def checkpoint(self) -> bool:
        """See `Checkpointed`."""
        partition_log, high_watermark = self.open_log, self.replica.high_watermark
        at_ms = self.context.clock.monotonic_ms()
        try:
            return await self.in_thread(lambda: partition_log.durability.checkpoint(at_ms, high_watermark))
        except HeadraceError as error:
            self.fail_unless_refused(error)
            return False

    async def prepare_close(self) -> None:
        """Flush and write a producer snapshot, before `replica_manager` closes the log."""
        self.flush_policy.cancel_timer()
        if self.log is None or self.replica.role is Role.OFFLINE:
            return
        async with self.log_lock:
            try:
                await self.in_thread(self.open_log.flush)
                if not self.producers.are_stale:
                    await self.in_thread(self.producers.snapshot)
            except HeadraceError as error:
                self.fail_unless_refused(error)

    async def in_thread(self, call: Callable[[], ResultT]) -> ResultT:
        """Run a blocking call of the log in a thread; untyped exceptions become InternalError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.context.executor, call)
        except HeadraceError:
            raise
        except Exception as error:
            log.exception("storage_call_failed", topic=self.topic, partition=self.number)
            raise InternalError(f"the storage met an unexpected {type(error).__name__}") from error


async def open_partition(
    topic: Topic, number: int, opening: Awaitable[PartitionLog], *, context: PartitionContext, host: PartitionHost
) -> Partition:
    """Return a partition over the log that `opening` returns, offline if that or reading its producers fails."""
    partition_log, failure = None, None
    try:
        partition_log = await opening
    except HeadraceError as error:
        failure = error
    partition = Partition(
        topic.name, topic.topic_id, number, partition_log, config=topic.config, context=context, host=host
    )
    if partition_log is not None:
        try:
            kept = await asyncio.get_running_loop().run_in_executor(
                context.executor, rebuild_producers, partition.replica.producers, partition_log
            )
            partition.producers.note_snapshot(kept)
        except HeadraceError as error:
            failure = error
    if failure is not None:
        partition.fail(failure)
    return partition
