"""One partition at one broker: performs what the shipped core asks for on the shipped log, in virtual time.

The counterpart of `headrace_broker.runtime.partition`: appends, fsyncs that take time, the two sides of replica fetch,
proposals as transactions, reads. It decides nothing that the core decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.errors import (
    CorruptBatchError,
    HeadraceError,
    NotLeaderError,
    Outcome,
    StorageFullError,
    StorageOfflineError,
)
from headrace.wire.ids import BrokerId, Offset
from headrace_broker.core.messages import (
    Abandon,
    Acknowledge,
    AcknowledgementAwaited,
    Action,
    Appended,
    BatchesReplicated,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    Follow,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeaderReported,
    LeadershipEnded,
    LeadershipStarted,
    LeaveInSync,
    LogCut,
    LogRestarted,
    LogStartRaised,
    PersistEpoch,
    Propose,
    StateGone,
    StorageFailed,
    Unfollow,
)
from headrace_broker.core.producers import ProducerWindows
from headrace_broker.core.replica import PartitionReplica, Role
from headrace_broker.core.replica_fetch import (
    AppendBatches,
    CutTo,
    Diverged,
    FetchAgain,
    FetchAnswer,
    FetchRequest,
    StartOver,
    check_fetch,
    check_reader,
    judge,
    next_step,
)
from headrace_broker.runtime.producer_state import rebuild_producers
from headrace_broker.storage import LogDamagedError, PartitionLog
from headrace_server.partition_state import Replica

from tests.simulation.world import SimulationError, spawn

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.links import ReplicaLink

FETCH_BYTES = 700
READ_BYTES = 900
LAG_MAX_MS = 1_500
SNAPSHOT_MS = 2_500
RETRY_MS = 120
NEWS_MS = 40
"""A waiting follower hears of a new high watermark after so long."""

Reply = Callable[["int | HeadraceError"], None]


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What a consumer gets: whole batches, or where its log parts from this one."""

    batches: bytes = b""
    high_watermark: int = -1
    leader_epoch: int = -1
    diverged: Diverged | None = None


@dataclass(slots=True)
class _Waiting:
    """An `acks=all` produce."""

    base_offset: int
    sent_end: int
    """The offset after its last record, by its own count."""
    reply: Reply


class Host:
    """See the module."""

    def __init__(self, broker: Broker, partition: int, log: PartitionLog) -> None:
        self.broker = broker
        self.world = broker.cluster.world
        self.checks = broker.cluster.checks
        self.partition = self.number = partition
        self.topic, self.topic_id = "t", broker.cluster.topic_id
        self.name = f"p{partition}"
        self.log = log
        self.flushes = broker.cluster.flushed_only
        """The topic says that everything is flushed."""
        self.replica = PartitionReplica(
            BrokerId(broker.broker_id),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            high_watermark=log.checkpointed_high_watermark,
            last_epoch=log.last_epoch,
            flushed_only=self.flushes,
            producers=_new_windows(),
            lag_max_ms=LAG_MAX_MS,
        )
        rebuild_producers(self.replica.producers, log)
        self.leader: Replica | None = None
        """Whom it follows."""
        self.failed = False
        self._waiting: dict[int, _Waiting] = {}
        self._tokens = 0
        self._parked: dict[ReplicaLink, FetchRequest] = {}
        self._news_due = False
        self._flushing: Callable[[], None] | None = None
        self._snapshot_at_ms = SNAPSHOT_MS
        self._flush_again = False
        self._sent_durable = -1
        self._found_damage = False
        self.checks.opened(self)

    # --- the core ---

    def handle(self, event: Event) -> None:
        """Tell the core and do what it asks."""
        self.checks.touched(self)
        revision = self.replica.revision
        self._perform(self.replica.handle(event))
        if self.replica.revision != revision:
            self._answer_parked()

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case HighWatermarkAdvanced():
                    self.checks.advanced(self)
                    self._tell_news()
                case Acknowledge(token):
                    waiting = self._waiting.pop(token)
                    self.checks.acknowledged(self, waiting.base_offset, waiting.sent_end)
                    waiting.reply(waiting.base_offset)
                case Abandon(token, error):
                    self._waiting.pop(token).reply(error)
                case PersistEpoch(leader_epoch):
                    self._later(f"{self.name} has made the start of epoch {leader_epoch} durable", self._persist)
                case LeadershipStarted(leader_epoch, start_offset):
                    self._note(f"leads epoch {leader_epoch} from {start_offset}")
                    self.world.count("leaderships begun")
                    self.checks.leads(self)
                case LeadershipEnded(leader_epoch):
                    self._note(f"leads epoch {leader_epoch} no more")
                    self._refuse_parked()
                case Propose():
                    self.world.count("proposals")
                    if not action.state.durable:
                        self.broker.cluster.not_durable_from[self.number] = action.state.partition_epoch
                    spawn(self.broker.process, self.broker.writer.write(self, action))  # type: ignore[arg-type]
                case Follow(leader, leader_epoch):
                    self._note(f"follows b{leader.broker_id} in epoch {leader_epoch}")
                    self.leader = leader
                    self.send_fetch()
                case Unfollow():
                    self.leader = None
                case LeaveInSync(damaged):
                    spawn(self.broker.process, self._leave(damaged=damaged))
                case _:
                    assert_never(action)

    def _note(self, what: str) -> None:
        self.world.note(self.broker.process.name, f"{self.name} {what}")

    def _later(self, what: str, call: Callable[[], None]) -> None:
        self.world.after(self.broker.disk_delay_ms(), self.broker.process, what, call)

    # --- appending ---

    def produce(self, batch: bytes, known_epoch: int, acks: int, reply: Reply) -> None:
        """Take one batch from a producer; `reply` is called with its base offset or the error, unless `acks` is 0."""
        replica = self.replica
        try:
            replica.check_leading(known_epoch)
            if acks == -1:
                replica.check_in_sync()
            header = read_header(batch)
            found = replica.check_batch(
                header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
            )
            if found is not None:
                self.world.count("duplicates recognised")
                base_offset, end_offset = int(found.base_offset), int(found.end_offset)
            else:
                base_offset = self._append(batch, header)
                end_offset = base_offset + header.record_count
        except HeadraceError as error:
            self._fail_on(error)
            reply(error)
            return
        if acks == 0:
            return
        if acks == 1:
            reply(base_offset)
            return
        sent_end = base_offset + header.record_count if base_offset >= 0 else end_offset
        self._tokens += 1
        self._waiting[self._tokens] = _Waiting(base_offset, sent_end, reply)
        self.handle(AcknowledgementAwaited(self._tokens, Offset(end_offset), replica.leader_epoch))

    def _append(self, batch: bytes, header: BatchHeader) -> int:
        replica, at_ms = self.replica, self.broker.clock.now_ms()
        base = self.log.append(batch, header, leader_epoch=replica.leader_epoch, append_timestamp_ms=at_ms)
        end = base + header.record_count
        self.checks.appended(self, header, base, replica.leader_epoch)
        self.handle(Appended(base, Offset(end), header.producer_id, header.producer_epoch, header.base_sequence, at_ms))
        self._request_flush()
        parked, self._parked = self._parked, {}
        for link, request in parked.items():
            self._answer(link, request)
        return base

    def change_durability(self, *, flushes: bool) -> None:
        """Take up the topic's setting."""
        if flushes == self.flushes or self.replica.role in (Role.OFFLINE, Role.DELETED):
            return
        self.flushes = flushes
        self.handle(DurabilityChanged(flushes))
        self._request_flush()

    def _persist(self) -> None:
        replica = self.replica
        if replica.role is not Role.STARTING:
            return
        try:
            self._finish_flush()
            self.log.flush()
            start = self.log.start_epoch(replica.leader_epoch)
        except HeadraceError as error:
            self._fail_on(error)
            return
        self.handle(EpochPersisted(replica.leader_epoch, start, self.broker.clock.monotonic_ms()))

    # --- fsync ---

    def _request_flush(self) -> None:
        if not self.replica.flushed_only:
            return
        if self._flushing is not None:
            self._flush_again = True
            return
        # The fsync happens at the start of the time it takes, or at its end.
        flushed: Offset | None = None
        if self.broker.disk_chance.random() < 0.5:
            try:
                flushed = self.log.flush()
            except HeadraceError as error:
                self._fail_on(error)
                return

        def finish() -> None:
            if self._flushing is finish:
                self._flushing = None
                self._finish(flushed)

        self._flushing = finish
        self._later(f"{self.name} fsynced", finish)

    def _finish(self, flushed: Offset | None) -> None:
        try:
            offset = self.log.flush() if flushed is None else flushed
        except HeadraceError as error:
            self._fail_on(error)
            return
        if self._flush_again:
            self._flush_again = False
            self._request_flush()
        self.handle(Flushed(offset))
        if self.replica.role is Role.FOLLOWING and self.replica.flushed_offset > self._sent_durable:
            self.send_fetch(replace=True)

    def _finish_flush(self) -> None:
        """A round under way ends before the log is cut: they exclude each other."""
        if self._flushing is not None:
            self._flush_again = False
            self._flushing()

    def let_go(self, revision: int) -> None:
        """The replica was moved away and its log goes: a round under way says nothing any more."""
        self.handle(StateGone(revision))
        self._flushing = None

    def keep_checkpoint(self, at_ms: int) -> None:
        """Write the recovery point if it is due."""
        if self.replica.role is Role.OFFLINE:
            return
        try:
            self.log.checkpoint(at_ms, self.replica.high_watermark)
            if at_ms >= self._snapshot_at_ms:
                self._snapshot_at_ms = at_ms + SNAPSHOT_MS
                self.log.store_producer_snapshot(self.log.log_end_offset, self.replica.producers.snapshot())
                self.world.count("snapshots of producers")
        except HeadraceError as error:
            self._fail_on(error)

    # --- the leader's side of replica fetch ---

    def take_fetch(self, link: ReplicaLink, request: FetchRequest, *, found_damage: bool) -> None:
        """Answer a follower's fetch, or let it wait for news."""
        replica = self.replica
        self._parked.pop(link, None)
        try:
            check_fetch(replica, request)
            if found_damage:
                self.verify(request.offset)
            verdict = judge(self.log, request)
        except HeadraceError as error:
            self._fail_on(error)
            link.answer(self, request, error)
            return
        if verdict is not None:
            self._note(f"judges b{request.follower.broker_id}: {verdict}")
            link.answer(self, request, FetchAnswer(request.token, replica.leader_epoch, verdict))
            return
        self.checks.fetched(self, request)
        self.handle(
            FollowerFetched(
                request.follower,
                Offset(request.offset),
                Offset(request.durable_offset),
                self.broker.clock.monotonic_ms(),
                request.follower in self.broker.may_join(),
            )
        )
        if request.offset < self.log.log_end_offset or request.high_watermark < replica.high_watermark:
            self._answer(link, request)
        else:
            self._parked[link] = request

    def _answer(self, link: ReplicaLink, request: FetchRequest) -> None:
        log, replica = self.log, self.replica
        batches, more, next_offset = b"", False, 0
        try:
            if request.offset < log.log_end_offset:
                start = max(request.read_offset or request.offset, log.log_start_offset)  # It may lie inside a batch.
                with log.read(start, FETCH_BYTES, log.log_end_offset) as found:
                    batches, more = found.read(), found.end_offset < log.log_end_offset
                    next_offset = found.end_offset if more else 0
        except HeadraceError as error:
            self._fail_on(error)
            link.answer(self, request, error)
            return
        answer = FetchAnswer(
            request.token,
            replica.leader_epoch,
            batches=batches,
            high_watermark=replica.high_watermark,
            log_start_offset=replica.log_start_offset,
            more=more,
            next_offset=next_offset,
        )
        link.answer(self, request, answer)

    def _tell_news(self) -> None:
        if self._parked and not self._news_due:
            self._news_due = True
            self.world.after(NEWS_MS, self.broker.process, "", self._tell)

    def _tell(self) -> None:
        self._news_due = False
        for link, request in list(self._parked.items()):
            if request.high_watermark < self.replica.high_watermark:
                del self._parked[link]
                self._answer(link, request)

    def _refuse_parked(self) -> None:
        parked, self._parked = self._parked, {}
        for link, request in parked.items():
            link.answer(self, request, NotLeaderError("leadership was lost", outcome=Outcome.NOT_APPLIED))

    def _answer_parked(self) -> None:
        """The key has changed: a fetch that waits may be of a replica that was there before, or has to be sent anew."""
        parked, self._parked = self._parked, {}
        for link, request in parked.items():
            try:
                check_fetch(self.replica, request)
            except HeadraceError as error:
                link.answer(self, request, error)
            else:
                self._answer(link, request)

    def drop_parked(self, link: ReplicaLink) -> None:
        """A stream ended: nothing that came by it waits any more."""
        self._parked.pop(link, None)

    # --- the follower's side ---

    def send_fetch(self, *, replace: bool = False, ahead_offset: int = 0) -> None:
        """Fetch from the leader, where there is a stream to it."""
        if self.leader is None:
            return
        link = self.broker.link_to(self.leader.broker_id)
        if link is None:
            return
        token = self.replica.begin_fetch(replace=replace, ahead_offset=ahead_offset)
        if token is None:
            return
        replica, log = self.replica, self.log
        self._sent_durable = replica.flushed_offset
        request = FetchRequest(
            Replica(self.broker.broker_id, self.broker.broker_epoch),
            replica.leader_epoch,
            token,
            log.log_end_offset,
            min(replica.flushed_offset, log.log_end_offset),
            log.last_batch_epoch,
            log.last_crc,
            replica.high_watermark,
            0 if replica.state is None else replica.state.partition_epoch,
            ahead_offset,
        )
        link.fetch(self, request, found_damage=self._found_damage)
        self._found_damage = False

    def take_answer(self, answer: FetchAnswer | HeadraceError, token: int, leader_epoch: int) -> None:
        """Do what the leader's answer says."""
        if isinstance(answer, HeadraceError):
            if self.replica.take_answer(token, leader_epoch):
                self._fetch_later()
            return
        self.checks.touched(self)
        try:
            step = next_step(self.replica, self.log, answer)
        except StorageOfflineError as error:
            raise SimulationError("I18", f"b{self.broker.broker_id} {self.name}: {error}") from error
        if step is None:
            self.world.count("answers not used")
            return
        try:
            match step:
                case CutTo(offset):
                    self._cut(offset)
                case StartOver(offset, previous_crc):
                    self._start_over(offset, previous_crc)
                case AppendBatches():
                    if step.next_offset and self.broker.disk_chance.random() < 0.5:
                        self.world.count("fetches ahead")
                        self.send_fetch(ahead_offset=step.next_offset)
                    self._replicate(step)
                case FetchAgain():
                    self.world.count("answers ahead not used")
                case _:
                    assert_never(step)
        except CorruptBatchError as error:
            self.world.count("damaged answers refused")
            self._note(f"refuses what came: {error.message}")
            self._found_damage = True
            self.replica.end_fetch()
            self._fetch_later()
            return
        except StorageFullError:
            self.replica.end_fetch()
            self._fetch_later()
            return
        except HeadraceError as error:
            self._fail_on(error)
            return
        at_end = isinstance(step, AppendBatches) and not step.more
        if at_end and self.replica.flushed_only and self.replica.flushed_offset < self.log.log_end_offset:
            self._request_flush()  # It fetches once the fsync is done.
        else:
            self.send_fetch()

    def _fetch_later(self) -> None:
        self.world.after(RETRY_MS, self.broker.process, "", self.send_fetch)

    def _cut(self, offset: int) -> None:
        self._finish_flush()
        self.world.count("truncations")
        self.checks.shortens(self, offset)
        end = self.log.truncate_to(offset)
        self._note(f"cuts its log to {end}")
        self.replica.producers = _new_windows()
        rebuild_producers(self.replica.producers, self.log)
        self.checks.cut(self, end)
        self.handle(LogCut(end))

    def _start_over(self, offset: int, previous_crc: int) -> None:
        self._finish_flush()
        self.world.count("restarts from the log start")
        self._note(f"starts over at {offset}")
        self.checks.shortens(self, 0)
        self.log.reset_to(offset, previous_crc)
        self.replica.producers = _new_windows()
        self.checks.started_over(self, offset)
        self.handle(LogRestarted(Offset(offset)))

    def _replicate(self, step: AppendBatches) -> None:
        headers = self.log.append_replicated(step.batches)
        self.checks.accepted(self, step.batches)
        for header in headers:
            self.checks.appended(self, header, header.base_offset, header.leader_epoch)
        if headers:
            self.handle(BatchesReplicated(headers))
            self._request_flush()
        self.handle(LeaderReported(step.high_watermark))
        start = min(step.log_start_offset, self.replica.high_watermark)
        if start > self.log.log_start_offset:
            self.handle(LogStartRaised(self.log.delete_records(start, self.replica.high_watermark)))

    async def _leave(self, *, damaged: bool) -> None:
        await self.broker.writer.leave(self.topic_id, self.number, damaged=damaged)
        self.broker.exit_soon()

    def _fail_on(self, error: HeadraceError) -> None:
        """Take the replica out of service for what its disk did; other errors are the caller's."""
        if isinstance(error, StorageOfflineError) and self.replica.role is not Role.OFFLINE and self._is_ours(error):
            self.failed = True
            self.checks.failed(self)
            self.world.count("logs failed")
            self._note(f"fails: {error.message}")
            damaged = isinstance(error, LogDamagedError)
            if damaged:
                self.broker.node.suspects[self.partition] = None
            self.handle(StorageFailed(error.message, damaged))

    def _is_ours(self, error: HeadraceError) -> bool:
        return self.log.offline or isinstance(error, LogDamagedError)

    # --- reading ---

    def read(self, offset: int, last_epoch: int, known_epoch: int, *, follower: bool) -> ReadAnswer:
        """Serve a consumer; raises what the core raises."""
        replica = self.replica
        if follower:
            replica.check_serving(known_epoch)
        else:
            replica.check_leading(known_epoch)
        if last_epoch >= 0 and (parted := check_reader(replica, self.log, offset, last_epoch)) is not None:
            return ReadAnswer(diverged=parted)
        replica.check_read(offset)
        epoch = int(replica.leader_epoch)
        if offset >= replica.high_watermark:
            return ReadAnswer(high_watermark=replica.high_watermark, leader_epoch=epoch)
        try:
            with self.log.read(offset, READ_BYTES, replica.high_watermark) as found:
                batches = found.read()
                if found.end_offset > replica.high_watermark:
                    raise SimulationError("I10", f"b{self.broker.broker_id} {self.name} serves beyond its watermark")
        except HeadraceError as error:
            self._fail_on(error)
            raise
        return ReadAnswer(batches, replica.high_watermark, epoch)

    def verify(self, offset: int) -> None:
        """Look for damage at `offset`, because a reader found some."""
        start = max(offset, self.log.log_start_offset)  # It may lie inside a batch, which replicas copy whole.
        try:
            if start < self.log.log_end_offset:
                self.log.verify_from(start, 1 << 20)
        except HeadraceError as error:
            self._fail_on(error)

    def scrub(self) -> None:
        """Look for damage everywhere."""
        try:
            self.log.verify()
        except HeadraceError as error:
            self._fail_on(error)

    def delete_records(self, before: int) -> None:
        """Raise the log start, as DeleteRecords and retention do."""
        if self.replica.role is not Role.LEADING:
            return
        try:
            before = min(before, self.replica.high_watermark)
            start = self.log.delete_records(before, self.replica.high_watermark)
            self.log.remove_deleted_files(self.broker.clock.now_ms())
        except HeadraceError as error:
            self._fail_on(error)
            return
        if start > self.replica.log_start_offset:
            self.handle(LogStartRaised(start))

    def prepare_stop(self) -> None:
        """Flush and keep the producers, as the last use before the directory is closed."""
        self._finish_flush()
        self.log.flush()
        self.log.store_producer_snapshot(self.log.log_end_offset, self.replica.producers.snapshot())


def _new_windows() -> ProducerWindows:
    return ProducerWindows(max_producers=100, expiry_ms=3_600_000)
