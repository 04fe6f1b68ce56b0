"""Three replicas of one partition, wired by hand: real cores and logs, and a caller who says what happens when.

Nothing happens by itself: keys are seen, fetches sent and answered, disks flushed only as told. The key is written as
etcd would, and elections are the controller's. After every event the invariants that can be seen from here are checked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.log import DataDirectory, DiskLimits, LogSettings
from headrace.log.log import PartitionLog
from headrace.partition.producer_recovery import rebuild_producers
from headrace.partition.producers import ProducerWindows
from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.encoding import encode_batch
from headrace.wire.ids import BrokerId, Offset
from headrace_broker.core.messages import (
    Abandon,
    Acknowledge,
    AcknowledgementAwaited,
    Action,
    Appended,
    BatchesReplicated,
    EpochPersisted,
    Event,
    Flushed,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeaderReported,
    LeaveInSync,
    LogRestarted,
    LogStartRaised,
    LogTruncated,
    PersistEpoch,
    ProposalFailed,
    ProposalSucceeded,
    Propose,
    SessionLost,
    SessionStarted,
    StateSeen,
    Ticked,
)
from headrace_broker.core.replica import PartitionReplica
from headrace_broker.core.replica_fetch import (
    AppendBatches,
    FetchAnswer,
    FetchRequest,
    ResetLog,
    TruncateTo,
    check_fetch,
    compare_logs,
    next_step,
    truncate_or_reset,
)
from headrace_broker.core.roles import Role
from headrace_coordinator.core.control import sweep
from headrace_coordinator.core.election import RegisteredBroker, elect, elect_uncleanly, electable
from headrace_server.partition_state import PartitionState, Replica, change

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem

TOPIC_ID = bytes(range(16))
LAG_MAX_MS = 10_000
LIMITS = DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0)
SETTINGS = LogSettings(segment_bytes=2_000, index_interval_bytes=300)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a log holds between two offsets."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    crc: int


class Node:
    """One broker's replica and its disk."""

    def __init__(self, partition: ThreeReplicas, broker_id: int) -> None:
        self.partition = partition
        self.broker_id = broker_id
        self.disk = MemoryFileSystem()
        self.proposals: list[Propose] = []
        self.acknowledged: list[int] = []
        self.abandoned: list[int] = []
        self.left = False  # it asked to be taken out of the key
        self.open()

    def open(self) -> None:
        """Open the log as a process does that starts after its machine."""
        directory = DataDirectory.open(
            "/data",
            cluster_id="c",
            generation=1,
            broker_id=self.broker_id,
            new_storage_id=bytes([self.broker_id]) * 16,
            limits=LIMITS,
            filesystem=self.disk,
        )
        self.log: PartitionLog = directory.open_log(TOPIC_ID, 0, self.partition.settings)
        self.replica = PartitionReplica(
            BrokerId(self.broker_id),
            log_start_offset=self.log.log_start_offset,
            log_end_offset=self.log.log_end_offset,
            flushed_offset=self.log.flushed_offset,
            high_watermark=self.log.checkpointed_high_watermark,
            last_epoch=self.log.last_epoch,
            flushed_only=self.partition.durable,
            producers=self.rebuilt_producers(),
            lag_max_ms=LAG_MAX_MS,
        )
        self.proposals.clear()

    def rebuilt_producers(self) -> ProducerWindows:
        """What a restart would know of the producers."""
        producers = ProducerWindows(max_producers=10, expiry_ms=1_000_000)
        rebuild_producers(producers, self.log)
        return producers

    @property
    def session(self) -> Replica:
        return Replica(self.broker_id, self.replica.broker_epoch)

    def batches(self, start: int = 0) -> list[Batch]:
        """All that the log holds from the batch with `start` on."""
        first = max(start, self.log.log_start_offset)
        found: Sequence[BatchHeader] = list(self.log.reader.headers(first)) if first < self.log.log_end_offset else []
        return [Batch(each.base_offset, each.end_offset, each.leader_epoch, each.crc) for each in found]

    def handle(self, event: Event) -> list[Action]:
        actions = self.replica.handle(event)
        self.replica.validate_state()
        for action in actions:
            self._perform(action)
        return actions

    def _perform(self, action: Action) -> None:
        match action:
            case PersistEpoch(leader_epoch):
                self.log.flush()
                start = self.log.start_epoch(leader_epoch)
                self.handle(EpochPersisted(leader_epoch, start, self.partition.at_ms))
            case Propose():
                self.proposals.append(action)
            case Acknowledge(token):
                self.acknowledged.append(token)
            case Abandon(token, _):
                self.abandoned.append(token)
            case LeaveInSync():
                self.left = True
            case HighWatermarkAdvanced():
                self.partition.note_committed(self)
            case _:
                pass

    # --- what happens at one broker ---

    def produce(self, records: int = 1, *, producer: tuple[int, int, int] = (-1, -1, -1), token: int = -1) -> int:
        """Append one batch as the leader; its base offset. `token`: it is awaited with acks=all."""
        self.partition.made += 1
        values = [b"%d-%d" % (self.partition.made, index) for index in range(records)]
        at_ms = 1_700_000_000_000 + self.partition.at_ms
        batch = encode_batch(
            values,
            base_timestamp_ms=at_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        replica = self.replica
        replica.check_leading(-1)
        base = self.log.append(
            [(batch, read_header(batch))], leader_epoch=replica.leader_epoch, append_timestamp_ms=at_ms
        )
        self.handle(Appended(base, Offset(base + records), *producer, at_ms=at_ms))
        if token >= 0:
            self.handle(AcknowledgementAwaited(token, Offset(base + records), replica.leader_epoch))
        return base

    def flush(self) -> None:
        self.handle(Flushed(self.log.flush()))

    def see(self) -> list[Action]:
        """See the present key."""
        return self.handle(StateSeen(self.partition.state, self.partition.key_revision))

    def tick(self, *, heard: Sequence[int] = ()) -> None:
        """Half a second is over; `heard` sent heartbeats."""
        live = {Replica(broker_id, session.broker_epoch) for broker_id, session in self.partition.live.items()}
        at_ms = self.partition.at_ms
        self.handle(Ticked(at_ms, {each: at_ms for each in live if each.broker_id in heard}, live))

    def delete_records(self, before: int) -> None:
        start = self.log.retention.delete_records(before, self.replica.high_watermark)
        self.handle(LogStartRaised(start))

    # --- replica fetch ---

    def request(self) -> FetchRequest | None:
        """A fetch to send; `None` means that an answer is awaited, or that there is no leader."""
        token = self.replica.fetches.begin()
        if token is None:
            return None
        end_offset = self.replica.log_end_offset
        return FetchRequest(
            follower=self.session,
            leader_epoch=self.replica.leader_epoch,
            token=token,
            offset=end_offset,
            durable_offset=min(self.replica.flushed_offset, end_offset),
            last_epoch=self.log.last_batch_epoch,
            last_crc=self.log.last_crc,
            high_watermark=self.replica.high_watermark,
            partition_epoch=0 if self.replica.state is None else self.replica.state.partition_epoch,
            log_start_offset=self.replica.log_start_offset,
            deletions_end=self.log.deletions_end,
        )

    def answer(self, request: FetchRequest, max_bytes: int = 1 << 20) -> FetchAnswer:
        """Answer a fetch at once, with nothing where there is nothing. Raises as `check_fetch`."""
        check_fetch(self.replica, request)
        decision = compare_logs(self.log, request)
        if decision is not None:
            return FetchAnswer(request.token, request.leader_epoch, decision)
        may_join = self.partition.is_live(request.follower)
        self.handle(
            FollowerFetched(
                request.follower,
                Offset(request.offset),
                Offset(request.durable_offset),
                self.partition.at_ms,
                may_join,
                request.log_start_offset,
            )
        )
        end_offset = self.replica.log_end_offset
        data, more = b"", False
        start = max(request.offset, self.log.log_start_offset)
        if start < end_offset:
            with self.log.reader.read(start, max_bytes, end_offset) as found:
                data, more = found.read(), found.end_offset < end_offset
        assert (
            not data or read_header(data).base_offset == request.offset or request.offset <= self.log.log_start_offset
        )
        return FetchAnswer(
            request.token,
            request.leader_epoch,
            None,
            data,
            self.replica.high_watermark,
            self.replica.log_start_offset,
            more,
            deletions_end=self.log.deletions_end,
        )

    def take(self, answer: FetchAnswer) -> object:
        """Do what an answer asks for; the step that was done, None: it was not used."""
        step = next_step(self.replica, self.log, answer)
        if isinstance(step, TruncateTo):
            step = truncate_or_reset(self.log, step)
        match step:
            case AppendBatches(batches, high_watermark, log_start_offset, _, deletions_end=deletions_end):
                if len(batches):
                    self.log.compaction.raise_deletions_end(deletions_end)
                self.handle(BatchesReplicated(self.log.append_replicated(batches)))
                self.handle(LeaderReported(high_watermark))
                start = min(log_start_offset, self.replica.high_watermark)
                if start > self.replica.log_start_offset:
                    self.delete_records(start)
            case TruncateTo(offset):
                end_offset = self.log.truncate_to(offset)
                self.replica.producers = self.rebuilt_producers()
                self.handle(LogTruncated(end_offset))
            case ResetLog(offset, previous_crc):
                self.log.reset_to(offset, previous_crc)
                self.replica.producers = ProducerWindows(max_producers=10, expiry_ms=1_000_000)
                self.handle(LogRestarted(Offset(offset)))
        return step


class ThreeReplicas:
    """The partition: its nodes, its key, and what was ever committed."""

    settings = SETTINGS
    node_type = Node

    def __init__(self, *, durable: bool = True, min_insync_replicas: int = 2) -> None:
        self.durable = durable
        self.at_ms = 0
        self.made = 0
        self.revision = 1_000  # of the whole store
        self.key_revision = self.revision  # of the key's last write
        self.live: dict[int, RegisteredBroker] = {}
        self.past: dict[
            int, tuple[RegisteredBroker, bool]
        ] = {}  # the sessions before, and whether nothing was lost with them
        self.committed: list[Batch] = []
        self.state = PartitionState((1, 2, 3), None, 0, (), min_insync_replicas=min_insync_replicas)
        self.nodes = {broker_id: self.node_type(self, broker_id) for broker_id in (1, 2, 3)}

    def start(self, leader: int = 1) -> ThreeReplicas:
        """All register, all are in sync, `leader` leads, all have seen it."""
        for broker_id in self.nodes:
            self.register(broker_id)
        members = [self.session_of(broker_id) for broker_id in self.nodes]
        self.write(change(self.state, leader=self.session_of(leader), in_sync=members, durable=self.durable))
        self.see_all()
        return self

    def __getitem__(self, broker_id: int) -> Node:
        return self.nodes[broker_id]

    # --- sessions ---

    def register(self, broker_id: int) -> None:
        """Register a broker anew, with its report on the session before."""
        self.revision += 1
        before, clean = self.past.get(broker_id, (RegisteredBroker(0), True))
        continuous_since = before.resumes if before.clean and before.resumes else before.broker_epoch
        self.live[broker_id] = RegisteredBroker(
            self.revision,
            continuous_since if clean else before.broker_epoch,
            clean,
            before.storage_since or before.broker_epoch,
        )
        self.nodes[broker_id].handle(SessionStarted(self.revision))

    def unregister(self, broker_id: int) -> None:
        """End a broker's session; it hears of it."""
        self._end_session(broker_id, clean=True)
        self.nodes[broker_id].handle(SessionLost())

    def kill(self, broker_id: int, loss: Loss = Loss.ALL, seed: int = 0) -> None:
        """Kill a process and lose what `loss` says; its log is opened again, and it is not registered yet."""
        node = self.nodes[broker_id]
        self._end_session(broker_id, clean=loss is Loss.NOTHING)
        node.disk.crash(loss, random.Random(seed))
        node.open()

    def _end_session(self, broker_id: int, *, clean: bool) -> None:
        before = self.live.pop(broker_id, None)
        if before is not None:
            self.past[broker_id] = (before, clean)
        elif broker_id in self.past:
            self.past[broker_id] = (self.past[broker_id][0], clean and self.past[broker_id][1])

    def restart(self, broker_id: int, loss: Loss = Loss.ALL, seed: int = 0) -> None:
        """Kill a process, start it again and register it."""
        self.kill(broker_id, loss, seed)
        self.register(broker_id)

    def session_of(self, broker_id: int) -> Replica:
        return Replica(broker_id, self.live[broker_id].broker_epoch)

    def is_live(self, replica: Replica) -> bool:
        session = self.live.get(replica.broker_id)
        return session is not None and session.broker_epoch == replica.broker_epoch

    # --- the key ---

    def write(self, state: PartitionState) -> None:
        self.revision += 1
        self.key_revision = self.revision
        self.state = state
        if state.unclean and state.unclean_epoch == state.leader_epoch and state.leader is not None:
            self._give_up_what_is_lost(self.nodes[state.leader.broker_id])

    def see_all(self) -> None:
        for node in self.nodes.values():
            node.see()

    def lead(self, broker_id: int) -> None:
        """Move leadership to a member of the in-sync set (preferred election); no replica has seen it yet."""
        self.write(change(self.state, leader=self.session_of(broker_id), in_sync=self.state.in_sync))

    def sweep(self) -> bool:
        """Do what the controller does about members whose sessions ended; whether it wrote."""
        wanted = sweep(self.state, self.live)
        if wanted is not None:
            self.write(wanted)
        return wanted is not None

    def elect(self, *, unclean: int | None = None) -> bool:
        """Do what the controller does when the leader is gone; whether it wrote."""
        wanted = elect(self.state, self.live)
        if wanted is None and unclean in self.live and not electable(self.state, self.live):
            wanted = elect_uncleanly(self.state, self.live, unclean)
        if wanted is not None:
            self.write(wanted)
        return wanted is not None

    def apply(self, proposal: Propose) -> ProposalSucceeded | ProposalFailed:
        """Carry a proposal's transaction out, and give etcd's answer."""
        if proposal.base_revision == self.key_revision and all(map(self.is_live, proposal.sessions)):
            self.write(proposal.state)
            return ProposalSucceeded(proposal.number, self.key_revision)
        return ProposalFailed(proposal.number, self.state, self.key_revision)

    # --- whole rounds ---

    def fetch(self, follower: int, leader: int, max_bytes: int = 1 << 20) -> object:
        """One fetch, its answer, and what it asks for."""
        request = self.nodes[follower].request()
        assert request is not None
        return self.nodes[follower].take(self.nodes[leader].answer(request, max_bytes))

    def catch_up(self, follower: int, leader: int) -> None:
        """Fetch and flush until the follower has all there is and knows that it is committed."""
        for _ in range(100):
            self.fetch(follower, leader)
            self.nodes[follower].flush()
            if self.nodes[follower].batches() == self.nodes[leader].batches():
                break
        self.fetch(follower, leader)
        self.fetch(follower, leader)

    # --- invariants ---

    def note_committed(self, node: Node) -> None:
        """A high watermark has risen: what is below it is final, and everybody says the same (I1, I10)."""
        if node.replica.role is not Role.LEADING or node.replica.leader_epoch < self.state.unclean_epoch:
            return
        known = {batch.base_offset: batch for batch in self.committed}
        for batch in node.batches():
            if batch.end_offset > node.replica.high_watermark:
                break
            known.setdefault(batch.base_offset, batch)
            assert known[batch.base_offset] == batch, f"I1: broker {node.broker_id} committed {batch}"
        self.committed = sorted(known.values(), key=lambda batch: batch.base_offset)

    def _give_up_what_is_lost(self, leader: Node) -> None:
        there = set(leader.batches())
        self.committed = [batch for batch in self.committed if batch in there]

    def check(self) -> None:
        """Assert I1 to I3, I6 to I8 and I20 as far as they show."""
        for node in self.nodes.values():
            node.replica.validate_state()
            self._check_log(node)
            if node.replica.role is Role.LEADING and node.replica.leader_epoch == self.state.leader_epoch:
                self._check_complete(node, "I2")
        for entry in (*self.state.in_sync, *self.state.eligible_leaders):
            if self.is_live(entry):
                self._check_complete(self.nodes[entry.broker_id], "I3")
        logs = [node.batches() for node in self.nodes.values()]
        for one, other in ((0, 1), (0, 2), (1, 2)):
            self._check_matching(logs[one], logs[other])

    def _check_complete(self, node: Node, which: str) -> None:
        there = set(node.batches())
        missing = [
            batch for batch in self.committed if batch not in there and batch.end_offset > node.log.log_start_offset
        ]
        assert not missing, f"{which}: broker {node.broker_id} lacks {missing}"

    def _check_matching(self, one: list[Batch], other: list[Batch]) -> None:
        """I7: from the last (offset, epoch) that both have downwards, all is the same."""
        there = {(batch.end_offset, batch.leader_epoch) for batch in other}
        common = [batch for batch in one if (batch.end_offset, batch.leader_epoch) in there]
        if not common:
            return
        end = common[-1].end_offset
        start = max(one[0].base_offset, other[0].base_offset)
        assert [batch for batch in one if start <= batch.base_offset < end] == [
            batch for batch in other if start <= batch.base_offset < end
        ], "I7"

    def _check_log(self, node: Node) -> None:
        log, replica = node.log, node.replica
        assert (log.log_start_offset, log.log_end_offset) == (replica.log_start_offset, replica.log_end_offset)
        starts: dict[int, int] = {}
        for batch in node.batches():
            starts.setdefault(batch.leader_epoch, max(batch.base_offset, log.log_start_offset))
        history = [(int(epoch), int(start)) for epoch, start in log.epochs() if start < log.log_end_offset]
        assert history == list(starts.items()), "I6: the epoch history is what a scan gives"
        rebuilt = _from_offset(node.rebuilt_producers(), log.log_start_offset)
        assert _from_offset(replica.producers, log.log_start_offset) == rebuilt, "I20: as a rebuild from the log"


def _from_offset(producers: ProducerWindows, start: int) -> dict[int, object]:
    """What windows say of batches with records at or above `start`: (epoch, next sequence, ranges) by producer."""
    found: dict[int, object] = {}
    for producer_id, producer in producers._producers.items():
        ranges = [each for each in producer.ranges if each.base_offset + each.record_count > start]
        if ranges:
            found[producer_id] = (producer.epoch, producer.next_sequence, ranges)
    return found
