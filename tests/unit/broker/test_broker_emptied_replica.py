"""A corrupt follower is replaced by an empty log in the same session: it never counts as the full one (I3, H17, H33).

Broker 2 runs the shipped parts: replica manager, partition, ISR updater, data directory. Broker 1, which leads, is the
shipped core with the shipped writer; elections are the controller's rule. The moments are scripted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from headrace.log.directory import DataDirectory, LogId
from headrace.log.errors import CorruptLogError
from headrace.partition.log_settings import log_settings
from headrace.partition.producers import ProducerWindows
from headrace.partition.topic_configs import TopicConfig
from headrace.wire.batch import STAMP_BYTES, read_header, stamp
from headrace.wire.errors import FencedBrokerError
from headrace.wire.ids import BrokerId, LeaderEpoch, Offset
from headrace_broker.core.messages import (
    EpochPersisted,
    Event,
    FollowerFetched,
    ProposalUnanswered,
    Propose,
    SessionStarted,
    StateSeen,
    Ticked,
)
from headrace_broker.core.replica import PartitionReplica
from headrace_broker.core.replica_fetch import FetchRequest, check_fetch
from headrace_broker.core.roles import Role
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.flusher import Flusher
from headrace_broker.runtime.isr_updater import IsrUpdater
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.replication import Replication
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.core.election import RegisteredBroker, elect
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Delete, Put
from headrace_server.metastore.view import PrefixView
from headrace_server.partition_state import PartitionState, Replica, change, decode, encode, note_committed
from prometheus_client import CollectorRegistry

from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryMetastore
from tests.unit.broker.test_broker_runtime import TOPIC_ID, batch, rot

IDENTITY = ClusterIdentity("test", "cluster-1", 1, b"s" * 32)
KEYS = IDENTITY.keyspace
KEY = KEYS.partition(TOPIC_ID, 0)
RECORDS = 10
LEADER, REPLACED, THIRD = 1, 2, 3
CORRUPTION = CorruptLogError("rotten", file="00000000000000000000.log", offset=3, position=12)


class Followers(Replication):
    """Broker 2's part in replication, whose stream reaches no leader."""

    def follow(self, partition: Partition, leader: Replica) -> None:
        pass

    def unfollow(self, partition: Partition) -> None:
        pass


class Steps(ReplicaManager):
    """Tells when a partition was looked at."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.passed = asyncio.Event()

    async def _reconcile(self, topic_id: bytes, number: int) -> None:
        await super()._reconcile(topic_id, number)
        self.passed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await self.passed.wait()
                self.passed.clear()


class Leader:
    """Broker 1: the core, and the writer that performs its proposals."""

    topic, topic_id, number = "t", TOPIC_ID, 0

    def __init__(self, me: Replica, metastore: MemoryMetastore) -> None:
        self.replica = PartitionReplica(
            BrokerId(LEADER),
            log_start_offset=Offset(0),
            log_end_offset=Offset(RECORDS),
            flushed_offset=Offset(RECORDS),
            high_watermark=Offset(0),
            last_epoch=LeaderEpoch(0),
            flushed_only=True,
            producers=ProducerWindows(max_producers=10, expiry_ms=1_000),
        )
        self.replica.handle(SessionStarted(me.broker_epoch))
        self.proposed: list[Propose] = []
        self.isr_updater = IsrUpdater(metastore, KEYS, LEADER, BrokerMetrics(CollectorRegistry()))

    def handle(self, event: Event) -> None:
        self.proposed += [action for action in self.replica.handle(event) if isinstance(action, Propose)]

    async def write_proposals(self) -> None:
        """Perform what was proposed, and what is proposed then."""
        while self.proposed:
            await self.isr_updater.write(self, self.proposed.pop(0))  # type: ignore[arg-type]


class Cluster:
    """Three brokers and one partition with ten committed records; broker 2 has them all and is not in sync."""

    def __init__(self, metastore: MemoryMetastore) -> None:
        self.metastore = metastore
        self.members: dict[int, Replica] = {}
        self.leader: Leader
        self.replica_manager: Steps

    async def set_up(self) -> None:
        for broker_id in (LEADER, REPLACED, THIRD):
            live = metadata_pb2.BrokerLive(broker_id=broker_id).SerializeToString()
            result = await self.metastore.txn([], [Put(KEYS.broker(broker_id), live)])
            self.members[broker_id] = Replica(broker_id, result.revision)
        one, two, three = self.members.values()
        topic = metadata_pb2.Topic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3).SerializeToString()
        state = PartitionState((1, 2, 3), one, 0, (one, three), min_insync_replicas=2, durable=True)
        puts = [Put(KEYS.topic("t"), topic), Put(KEYS.topic_by_id(TOPIC_ID), topic), Put(KEY, encode(state))]
        await self.metastore.txn([], puts)
        self.leader = Leader(one, self.metastore)
        await self.leader_sees()
        self.leader.handle(EpochPersisted(LeaderEpoch(0), Offset(RECORDS)))
        for follower in (three, two):
            self.leader.handle(FollowerFetched(follower, Offset(RECORDS), Offset(RECORDS), 1, may_join=True))
        assert self.leader.replica.high_watermark == RECORDS
        assert [member.broker_id for member in self.leader.proposed[0].state.in_sync] == [1, 2, 3]

    @property
    def replica(self) -> Partition:
        """What broker 2 holds."""
        found = self.replica_manager.get((TOPIC_ID, 0))
        assert found is not None
        return found

    async def state(self) -> tuple[PartitionState, int]:
        found = (await self.metastore.get(KEY)).key_value
        assert found is not None
        return decode(found.value), found.mod_revision

    async def leader_sees(self) -> None:
        self.leader.handle(StateSeen(*await self.state()))

    async def rot_and_replace(self) -> None:
        """Broker 2's scrubber finds corruption; the log is replaced by an empty one."""
        before = self.replica
        before.corruption.note_read_error(CORRUPTION)
        await self.replica_manager.until(lambda: self.replica is not before)
        assert self.replica.replica.log_end_offset == 0

    async def check_members(self) -> None:
        """I3: each replica that the key names has all that is committed."""
        state, _ = await self.state()
        named = {member.broker_id for member in (*state.in_sync, *state.eligible_leaders)}
        assert REPLACED not in named or self.replica.replica.log_end_offset >= RECORDS, state

    async def elect_without_leader(self) -> None:
        """Broker 1's session ends; the controller's rule decides."""
        await self.metastore.txn([], [Delete(KEYS.broker(LEADER))])
        state, _ = await self.state()
        live = {broker_id: RegisteredBroker(self.members[broker_id].broker_epoch) for broker_id in (REPLACED, THIRD)}
        elected = elect(state, live)
        assert elected is not None
        assert not elected.unclean
        await self.metastore.txn([], [Put(KEY, encode(elected))])
        assert elected.leader == self.members[THIRD], "who has the records leads"


def stored_batches(count: int) -> Iterable[bytes]:
    previous_crc = 0
    for offset in range(count):
        data = batch(b"%d" % offset)
        header = read_header(data)
        yield (
            stamp(header, base_offset=offset, append_timestamp_ms=1, leader_epoch=0, previous_crc=previous_crc)
            + data[STAMP_BYTES:]
        )
        previous_crc = header.crc


def open_directory(path: Path) -> DataDirectory:
    return DataDirectory.open(str(path), cluster_id="c", generation=1, broker_id=2, new_storage_id=bytes(16))


def fill(path: Path) -> None:
    """Append the ten records on broker 2."""
    directory = open_directory(path)
    filled = directory.open_log(TOPIC_ID, 0, log_settings(TopicConfig()))
    filled.append_replicated(b"".join(stored_batches(RECORDS)))
    filled.flush()
    directory.close(clean=True)


@asynccontextmanager
async def running(
    path: Path, *, filled: bool = True, counts: bool = False, had_log: bool = True
) -> AsyncIterator[Cluster]:
    """`filled`: broker 2 has the ten records; else its log is gone, or, not `had_log`, was never made.

    `counts`: it is in sync when it starts.
    """
    if filled:
        fill(path)
    metastore, clock = MemoryMetastore(), ManualClock()
    cluster = Cluster(metastore)
    await cluster.set_up()
    if counts:
        state, _ = await cluster.state()
        everybody = list(cluster.members.values())
        await metastore.txn([], [Put(KEY, encode(change(state, leader=state.leader, in_sync=everybody)))])
    metrics = BrokerMetrics(CollectorRegistry())
    settings = BrokerSettings(broker_id=2, data_dir=str(path))
    flusher, directory = Flusher(metrics), open_directory(path)
    if had_log:
        directory.seen.note(0, {}, begun=frozenset([LogId(TOPIC_ID, 0).directory_name]))
    source = PrefixView(metastore, KEYS.prefix, clock)
    await source.load()
    view = ClusterView(IDENTITY, source)
    with ThreadPoolExecutor(2) as executor:
        context = PartitionContext(BrokerId(2), settings, clock, metrics, flusher, executor)
        async with asyncio.TaskGroup() as tasks:
            replication = Followers(view, metastore, context, None, tasks, None, tuple)  # type: ignore[arg-type]
            cluster.replica_manager = Steps(view, cluster.metastore, directory, context, replication)
            await cluster.replica_manager.open_existing()
            cluster.replica_manager.start_session(cluster.members[REPLACED].broker_epoch)
            background = [tasks.create_task(source.run()), tasks.create_task(cluster.replica_manager.run())]
            await cluster.replica_manager.until(
                lambda: any(held.replica.state for held in cluster.replica_manager.partitions)
            )
            assert cluster.replica.replica.log_end_offset == (RECORDS if filled else 0)
            try:
                yield cluster
            finally:
                for task in background:
                    task.cancel()
        flusher.close()
        directory.close(clean=False)


@pytest.fixture
def cluster(tmp_path: Path) -> AbstractAsyncContextManager[Cluster]:
    return running(tmp_path)


async def test_a_join_written_before_the_log_was_emptied_does_not_name_the_empty_one(cluster: Cluster) -> None:
    """C3: the leader's write is on its way while the corrupt log is set aside; it lands too late to count."""
    await cluster.rot_and_replace()
    await cluster.leader.write_proposals()
    await cluster.check_members()
    await cluster.elect_without_leader()


@pytest.mark.parametrize("sees", [False, True], ids=["blind", "sees"])
async def test_a_leader_that_tries_again_does_not_take_in_the_empty_log(cluster: Cluster, *, sees: bool) -> None:
    """H17: what broker 2 had fetched before says nothing of what it has now, in the same session."""
    leader = cluster.leader
    (unanswered,) = leader.proposed
    leader.proposed.clear()
    leader.handle(ProposalUnanswered(unanswered.number))
    await cluster.rot_and_replace()
    if sees:
        await cluster.leader_sees()
    members = set(cluster.members.values())
    for at_ms in (500, 5_000):
        leader.handle(Ticked(at_ms, dict.fromkeys(members, at_ms), members))
        await leader.write_proposals()
        await cluster.check_members()
    await cluster.elect_without_leader()


async def test_a_fetch_of_the_log_that_was_set_aside_is_refused(cluster: Cluster) -> None:
    """One that waited at the leader, or was on its way, is of another log; the new one's is taken."""
    before = cluster.replica.replica.state
    assert before is not None
    await cluster.rot_and_replace()
    await cluster.leader_sees()
    two, now = cluster.members[REPLACED], cluster.replica.replica.state
    assert now is not None
    late = FetchRequest(two, 0, 1, RECORDS, RECORDS, 0, 0, 0, before.partition_epoch)
    with pytest.raises(FencedBrokerError):
        check_fetch(cluster.leader.replica, late)
    check_fetch(cluster.leader.replica, FetchRequest(two, 0, 2, 0, 0, -1, 0, 0, now.partition_epoch))


async def test_a_corrupt_log_kept_until_its_leaving_is_written(cluster: Cluster) -> None:
    """Another write of the key, at which broker 2 is no member either, is no reason to set the log aside."""
    replication, partition = cluster.replica_manager._replication, cluster.replica
    gate = asyncio.Event()
    leave = replication.isr_updater.leave

    async def leave_later(*arguments: object, **fields: object) -> object:
        await gate.wait()
        return await leave(*arguments, **fields)  # type: ignore[arg-type]

    replication.isr_updater.leave = leave_later  # type: ignore[assignment,method-assign]
    partition.corruption.note_read_error(CORRUPTION)
    state, _ = await cluster.state()
    other = change(state, leader=state.leader, in_sync=state.in_sync)
    revision = (await cluster.metastore.txn([], [Put(KEY, encode(other))])).revision
    steps = cluster.replica_manager
    await steps.until(lambda: partition.replica.revision == revision)
    steps._mark(TOPIC_ID, 0)
    await steps.passed.wait()
    assert cluster.replica is partition
    gate.set()
    await cluster.replica_manager.until(lambda: cluster.replica is not partition)
    await cluster.leader.write_proposals()
    await cluster.check_members()


async def test_a_member_whose_log_is_gone_leaves_before_it_registers(tmp_path: Path) -> None:
    """The partition's directory was removed: the empty log that takes its place is no candidate."""
    async with running(tmp_path, filled=False, counts=True) as cluster:
        await cluster.check_members()
        await cluster.leader.write_proposals()
        await cluster.check_members()
        await cluster.elect_without_leader()


async def test_a_member_that_never_made_its_log_stays_and_makes_it(tmp_path: Path) -> None:
    """It was killed between the creation of topic and log: a partition of one replica would have no leader."""
    async with running(tmp_path, filled=False, counts=True, had_log=False) as cluster:
        state, _ = await cluster.state()
        assert (state.partition_epoch, len(state.in_sync)) == (1, 3)
        cluster.replica_manager._context.clock.advance(60_000)  # type: ignore[attr-defined]
        await cluster.replica_manager.note_metadata()
        assert cluster.replica_manager._directory.seen.was_begun(LogId(TOPIC_ID, 0).directory_name)


async def test_a_member_that_has_its_log_stays(tmp_path: Path) -> None:
    """A start writes no key where nothing is missing."""
    async with running(tmp_path, counts=True) as cluster:
        state, _ = await cluster.state()
        assert (state.partition_epoch, len(state.in_sync)) == (1, 3)


async def test_a_member_whose_log_is_too_short_leaves_and_is_copied_anew(cluster: Cluster) -> None:
    """I2, I3: the key names it, and says that more was committed than its log has: whatever brought that about."""
    before, (state, _) = cluster.replica, await cluster.state()
    named = change(state, leader=state.leader, in_sync=list(cluster.members.values()))
    await cluster.metastore.txn([], [Put(KEY, encode(note_committed(named, RECORDS + 1)))])
    await cluster.replica_manager.until(lambda: cluster.replica is not before)
    assert isinstance(before.failure, CorruptLogError)
    await cluster.check_members()


async def test_a_leader_whose_log_is_too_short_leads_no_more(cluster: Cluster) -> None:
    """I2: it is elected, and its log ends before what the key says is committed."""
    before, (state, _) = cluster.replica, await cluster.state()
    me, everybody = cluster.members[REPLACED], list(cluster.members.values())
    elected = change(state, leader=me, in_sync=everybody)
    await cluster.metastore.txn([], [Put(KEY, encode(note_committed(elected, RECORDS + 1)))])
    await cluster.replica_manager.until(lambda: cluster.replica is not before)
    assert isinstance(before.failure, CorruptLogError)
    after, _ = await cluster.state()
    assert after.leader is None
    assert me not in (*after.in_sync, *after.eligible_leaders)


async def test_a_follower_that_a_reader_tells_of_rot_is_copied_anew(cluster: Cluster, tmp_path: Path) -> None:
    """H33: it serves readers near it, so it looks at what it has, as a leader does, and does not wait for the scrub."""
    before = cluster.replica
    assert before.replica.role is Role.FOLLOWING
    before.corruption.verify(3)
    assert before.corruption.task is not None
    await before.corruption.task
    assert before.replica.role is Role.FOLLOWING, "nothing is wrong here: the reader's copy broke on its way"
    rot(tmp_path)
    before.corruption.verify(3)
    await cluster.replica_manager.until(lambda: cluster.replica is not before)
    assert isinstance(before.failure, CorruptLogError)
    await cluster.leader.write_proposals()
    await cluster.check_members()
