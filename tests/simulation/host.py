"""What the checks see of one log at a broker, and of the shipped `Partition` over it once there is one.

Decides nothing and changes nothing: it tells `Checks` of each write to the log, in the moment it happens, and of each
event and action of the core.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from headrace.log import CorruptLogError, DataDirectory, LogSettings, PartitionLog
from headrace.log.directory import LogId
from headrace.wire.batch import iter_batches
from headrace.wire.batch_runs import BatchRun
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import Offset
from headrace_broker.core.leadership import Leadership
from headrace_broker.core.messages import (
    Acknowledge,
    AcknowledgementAwaited,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeadershipEnded,
    LeadershipStarted,
    LimitPause,
    LogStartAwaited,
    Propose,
    StorageFailed,
)
from headrace_broker.core.replica import PartitionReplica
from headrace_broker.core.replica_fetch import FetchRequest
from headrace_broker.core.roles import Role
from headrace_server.clock_watch import INTERVAL_SECONDS, LIMIT_MS, ClockWatch

from tests.simulation.exercise import FLUSHED_BY_POLICY
from tests.simulation.log_batches import decoded_batches
from tests.simulation.world import EPOCH_MS, SimulationError

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition

    from tests.simulation.broker import Broker
    from tests.simulation.disk_checks import ReadDisk
    from tests.simulation.mirrors import MirrorChecks

SEGMENT_BYTES = 2_500
INDEX_BYTES = 512


class StampClock:
    """A broker's clock of stamps that notes the world's time of each reading: a thread may write much later."""

    def __init__(self, watch: ClockWatch, broker: Broker) -> None:
        self._watch = watch
        self._broker = broker
        self._true_ms: dict[int, int] = {}

    def __call__(self) -> int:
        """Return the time to stamp records with, ms since 1970."""
        stamp_ms = self._watch.now_ms()
        self._true_ms[stamp_ms] = self._broker.cluster.world.now_ms
        return stamp_ms

    def true_ms(self, stamp_ms: int) -> int:
        """Return when a stamp was read, by the world's clock; now, if it is of another clock.

        One whose clock was wrong from its start, without another to read, continues from the last time that was seen.
        Others' times are as old as what they last wrote to etcd.
        """
        broker, watch = self._broker, self._watch
        true_ms = self._true_ms.get(stamp_ms, broker.cluster.world.now_ms)
        is_wrong = abs(broker.node.wall.offset_ms - EPOCH_MS) > LIMIT_MS
        if is_wrong and watch._sound() and 0 < true_ms - (stamp_ms - EPOCH_MS) < INTERVAL_SECONDS * 1000:
            return stamp_ms - EPOCH_MS
        if is_wrong and watch._last_seen_ms and not (watch._confirmed or watch._sound()):
            return min(true_ms, watch._last_seen_ms - EPOCH_MS + broker.clock.monotonic_ms())
        return true_ms


class Host:
    """One log that a broker has open."""

    def __init__(self, broker: Broker, log_id: LogId, log: PartitionLog) -> None:
        self.broker = broker
        self.checks = broker.cluster.checks
        self.key = log_id
        self.name = broker.cluster.name_of(log_id)
        self.log = log
        self.partition: Partition | None = None
        self.read_disk: ReadDisk | None = None
        """What was on the disk when a check read it last."""
        self.followed: tuple[int, int] | None = None
        """Leader epoch and high watermark when a check looked last; `None` after the log was cut."""
        self._judged: FetchRequest | None = None
        self._awaited: dict[int, int] = {}
        """The offsets that acknowledgements wait for, by token."""
        self._deletions: dict[int, int] = {}
        """The log starts that deletions wait for, by token."""
        for name in ("append", "append_copies", "append_replicated", "truncate_to", "reset_to", "update_settings"):
            setattr(log, name, partial(getattr(self, f"_{name}"), getattr(log, name)))
        retention: Any = log.retention
        retention.plan = partial(self._plan_retention, retention.plan)
        if log.recovery.cut_bytes:
            broker.cluster.world.count("torn tails")
        self._tell(self.checks.opened, self)

    @property
    def replica(self) -> PartitionReplica:
        """The core, once the partition is open."""
        assert self.partition is not None, f"{self.name} is open"
        return self.partition.replica

    @property
    def leadership(self) -> Leadership:
        """Of a replica that leads."""
        leadership = self.replica.leadership
        assert leadership is not None, f"{self.name} leads"
        return leadership

    @property
    def label(self) -> str:
        """What errors call it."""
        return f"b{self.broker.broker_id} {self.name}"

    @property
    def is_open(self) -> bool:
        """Whether there is a partition over the log, at work."""
        return self.partition is not None and self.partition.replica.role not in (Role.OFFLINE, Role.DELETED)

    @property
    def is_busy(self) -> bool:
        """Whether a thread may have done to the log what the core is told of next."""
        return self.partition is not None and self.partition.log_lock.locked()

    def offsets_below(self, end: int) -> list[int]:
        """The offsets of the records from the log start to `end` that compaction has left."""
        with self.broker.node.sound_disk():
            return [offset for columns in decoded_batches(self.log, end) for offset in columns.offsets()]

    def _tell(self, check: Any, *args: Any, **named: Any) -> None:
        """What is broken ends the run once the event is over: shipped code handles errors, and must not this one."""
        try:
            check(*args, **named)
        except SimulationError as error:
            self.checks.break_promise(error)

    def _note(self, what: str) -> None:
        self.broker.cluster.world.note(self.broker.process.name, f"{self.name} {what}")

    # --- the log: called in the moment, in whatever thread ---

    def _append(self, append: Any, batches: Any, *, leader_epoch: int, append_timestamp_ms: int) -> Offset:
        base: Offset = append(batches, leader_epoch=leader_epoch, append_timestamp_ms=append_timestamp_ms)
        offset, at_ms = int(base), self._stamp_clock().true_ms(append_timestamp_ms)
        if isinstance(batches, BatchRun):
            self.broker.cluster.world.count("runs of small batches")
            headers = [header for header, _ in iter_batches(batches.data)]
        else:
            headers = [header for _, header in batches]
        if self._mirror is not None:
            self._tell(self._mirror.produced, self)
        for header in headers:
            self._tell(self.checks.appended, self, header, offset, leader_epoch, at_ms)
            offset += header.record_count
        return base

    @property
    def _mirror(self) -> MirrorChecks | None:
        return self.broker.cluster.mirror

    def _append_copies(self, append: Any, batches: Any, *, leader_epoch: int) -> Any:
        headers = append(batches, leader_epoch=leader_epoch)
        self._tell(self.checks.accepted, self, b"".join(map(bytes, batches)))
        for header in headers:
            if self._mirror is not None:
                self._tell(self._mirror.copied, self, header, self.checks.last_entry(self))
            self._tell(self.checks.appended, self, header, header.base_offset, leader_epoch)
        return headers

    def _stamp_clock(self) -> StampClock:
        assert self.partition is not None
        return cast(StampClock, self.partition.context.stamp_clock)

    def _append_replicated(self, append: Any, batches: Any) -> Any:
        headers = append(batches)
        self._tell(self.checks.accepted, self, batches)
        for header in headers:
            if self._mirror is not None:
                self._tell(self._mirror.replicated, self, header)
            self._tell(self.checks.appended, self, header, header.base_offset, header.leader_epoch)
        return headers

    def _truncate_to(self, truncate: Any, offset: int) -> Offset:
        cluster = self.broker.cluster
        cluster.world.count("truncations")
        for strike in cluster.strikes_at_cuts:
            strike(self.broker)
        self._tell(self.checks.shortens, self, offset)
        try:
            end: Offset = truncate(offset)
        except HeadraceError:
            self._tell_of_refused_cut()
            raise
        self._note(f"cuts its log to {end}")
        self._tell(self.checks.cut, self, end)
        return end

    def _reset_to(self, reset: Any, offset: int, previous_crc: int) -> None:
        self.broker.cluster.world.count("restarts from the log start")
        self._note(f"starts over at {offset}")
        self._tell(self.checks.shortens, self, 0)
        try:
            reset(offset, previous_crc)
        except HeadraceError:
            if self.log.log_start_offset == self.log.log_end_offset == offset:
                self._tell(self.checks.started_over, self, offset)
            else:
                self._tell_of_refused_cut()
            raise
        self._tell(self.checks.started_over, self, offset)

    def _tell_of_refused_cut(self) -> None:
        """One that was refused halfway has cut the log nevertheless."""
        end = int(self.log.log_end_offset)
        if not self.log.offline and end < self.checks.partitions[self.key].replicas[self.broker.broker_id].end:
            self.broker.cluster.world.count("cuts refused halfway")
            self._note(f"cuts its log to {end}, and is refused the rest")
            self._tell(self.checks.cut, self, end)

    def _plan_retention(self, plan: Any, now_ms: int | None, high_watermark: int) -> Offset:
        start: Offset = plan(now_ms, high_watermark)
        if start > self.log.log_start_offset:
            self.broker.cluster.world.count("rounds of retention that removed segments")
            self._tell(self.checks.expired, self, int(start))
            self.broker.cluster.may_remove(self.key, int(start))
        return start

    def _update_settings(self, update: Any, settings: LogSettings) -> None:
        update(shrink_settings(settings))

    # --- the core ---

    def attach(self, partition: Partition) -> None:
        """The partition over this log is open."""
        self.partition = partition
        context = partition.context
        if not isinstance(context.stamp_clock, StampClock):
            watch: ClockWatch = context.stamp_clock.__self__  # type: ignore[union-attr]
            object.__setattr__(context, "stamp_clock", StampClock(watch, self.broker))
        replica: Any = partition.replica
        watched: Any = partition.reads
        replica.handle = partial(self._handle, replica, replica.handle)
        policy: Any = partition.flush_policy
        policy.flush_soon = partial(self._flush_soon, policy.flush_soon)
        watched.compare_now = partial(self._compare_now, watched.compare_now)
        watched.compare = partial(self._compare, watched.compare)
        self.checks.touched(self)

    def _flush_soon(self, flush_soon: Any) -> None:
        self.broker.cluster.world.count(FLUSHED_BY_POLICY)
        flush_soon()

    def _compare_now(self, compare: Any, request: FetchRequest) -> Any:
        decision, blocks = compare(request)
        self._judge(request, decision)
        return decision, blocks

    async def _compare(self, compare: Any, request: FetchRequest) -> Any:
        self.broker.cluster.world.count("comparisons of logs in a thread")
        decision = await compare(request)
        self._judge(request, decision)
        return decision

    def _judge(self, request: FetchRequest, decision: Any) -> None:
        """The core is told of the fetch next, if it is told of it."""
        self._judged = request
        if decision is not None:
            self._note(f"judges b{request.follower.broker_id}: {decision}")

    def _handle(self, replica: PartitionReplica, handle: Any, event: Any) -> Any:
        checks, kind = self.checks, type(event)
        checks.touched(self)
        if kind is FollowerFetched:
            if replica.role is Role.LEADING and self._judged is not None:
                self._tell(checks.fetched, self, self._judged)
        elif kind is AcknowledgementAwaited:
            self._awaited[event.token] = event.end_offset
        elif kind is LogStartAwaited:
            self._deletions[event.token] = event.offset
        elif kind is StorageFailed and replica.role is not Role.OFFLINE:
            self.broker.cluster.world.count("logs failed")
            self._note(f"fails: {event.reason}")
            assert self.partition is not None, "it is open"
            self._tell(checks.failed, self, event.reason, self.partition.failure)
        actions = handle(event)
        for action in actions:
            self._watch(replica, action)
        return actions

    def _watch(self, replica: PartitionReplica, action: Any) -> None:
        world = self.broker.cluster.world
        match action:
            case HighWatermarkAdvanced():
                self._tell(self.checks.advanced, self)
            case Acknowledge(token) if token in self._deletions:
                self._tell(self.checks.records_deleted, self, self._deletions.pop(token))
            case Acknowledge(token):
                self._tell(self.checks.acknowledged, self, -1, self._awaited.pop(token))
            case LeadershipStarted(leader_epoch, start_offset):
                self._note(f"leads epoch {leader_epoch} from {start_offset}")
                world.count("leaderships begun")
                self._tell(self.checks.leads, self)
            case LeadershipEnded(leader_epoch):
                self._note(f"leads epoch {leader_epoch} no more")
            case LimitPause():
                world.count("hand-overs that stopped appends")
            case Propose():
                world.count("proposals")
                if not action.state.durable:
                    self.broker.cluster.not_durable_from[self.key] = action.state.partition_epoch


def shrink_settings(settings: LogSettings) -> LogSettings:
    """Make segments small: a run has few records."""
    return replace(settings, segment_bytes=SEGMENT_BYTES, index_interval_bytes=INDEX_BYTES)


class WatchedDirectory(DataDirectory):
    """The shipped data directory of a broker; the checks hear of each log that is opened, closed or set aside."""

    broker: Broker

    def open_log(
        self, topic_id: bytes, partition: int, settings: LogSettings, *, truncate_at_corruption: bool = False
    ) -> PartitionLog:
        """See `DataDirectory`."""
        log_id = LogId(topic_id, partition)
        try:
            log = super().open_log(
                topic_id, partition, shrink_settings(settings), truncate_at_corruption=truncate_at_corruption
            )
        except CorruptLogError as error:
            self.broker.cluster.world.note(self.broker.process.name, f"{log_id.partition} is corrupt: {error.reason}")
            raise
        self.broker.logs[log] = Host(self.broker, log_id, log)
        return log

    def close_log(self, log: PartitionLog, *, high_watermark: int | None = None) -> None:
        """See `DataDirectory`."""
        with self._closing(log, in_order=True):
            super().close_log(log, high_watermark=high_watermark)

    def _discard(self, log: PartitionLog) -> None:
        with self._closing(log, in_order=False):
            super()._discard(log)

    @contextmanager
    def _closing(self, log: PartitionLog, *, in_order: bool) -> Iterator[None]:
        host = self.broker.logs.pop(log, None)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if host is not None and self.broker.process.alive:
                self.broker.cluster.checks.closed(host, in_order=in_order and is_done)

    def _set_aside(self, log_id: LogId, suffix: str) -> str:
        target = super()._set_aside(log_id, suffix)
        self.broker.cluster.checks.set_aside(self.broker.broker_id, log_id)
        self.broker.cluster.world.count(f"logs set aside: {suffix}")
        return target
