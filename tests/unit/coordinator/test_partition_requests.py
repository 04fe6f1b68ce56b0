"""The administrator's calls about moves, leaders and brokers, on the in-memory metastore."""

from __future__ import annotations

import contextlib

import pytest
from headrace.v1 import cluster_pb2, errors_pb2, topics_pb2
from headrace.wire.errors import ErrorCode, InvalidRequestError, MetastoreUnavailableError, Outcome, UnknownBrokerError
from headrace_coordinator.core.topics import TopicDefaults, TopicSpec, check_new_topic, place_new_topic
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.broker_requests import BrokerRequests
from headrace_coordinator.rpc.partition_changes import PartitionChanges
from headrace_coordinator.rpc.partition_requests import PartitionRequests
from headrace_coordinator.runtime.broker_store import BrokerStore
from headrace_coordinator.runtime.partition_store import PartitionStore
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.clock import SystemClock
from headrace_server.identity.gate import set_access
from headrace_server.identity.quotas import Use
from headrace_server.metastore.api import CreateRevisionIs, Put
from headrace_server.partition_state import change, encode, leave

from tests.fakes.lossy_metastore import LOST, NEVER
from tests.unit.coordinator.parts import make_parts

SECONDS = 20
PREFERRED, UNCLEAN = cluster_pb2.ELECTION_TYPE_PREFERRED, cluster_pb2.ELECTION_TYPE_UNCLEAN


class ChargedAccess:
    """What a call was charged, which may do everything."""

    def __init__(self):
        self.changes = 0

    def charge(self, use, amount=1):
        assert use is Use.CHANGE
        self.changes += amount


class Administration:
    """A coordinator's answers to administrators, with a topic on brokers 1, 2 and 3; 4 holds nothing."""

    def __init__(self, parts):
        self.parts = parts
        answers = Answers(parts.prefix_view, parts.metrics, default_timeout_ms=SECONDS * 1000)
        changes = PartitionChanges(PartitionStore(parts.writes, parts.view), parts.store, parts.view, answers)
        self.partitions = PartitionRequests(
            changes, parts.store, parts.view, answers, CoordinatorSettings(coordinator_id="a"), parts.metrics
        )
        self.brokers = BrokerRequests(BrokerStore(parts.writes, parts.keyspace, SystemClock()), parts.view, answers)
        self.epochs = {}

    async def start(self, partitions=2):
        for broker_id in (1, 2, 3, 4):
            self.epochs[broker_id] = await self.parts.register(broker_id)
        topic = check_new_topic(TopicSpec("t", assignments=((1, 2, 3),) * partitions), TopicDefaults(), 3)
        placement = place_new_topic(topic, self.parts.store.candidates())
        created = await self.parts.store.create(topic, placement, self.parts.deadline)
        await self.parts.prefix_view.wait_for(created.revision, SECONDS)
        self.topic_id = created.topic_id
        self.parts.metastore.sent.clear()
        return self

    def state(self, number=0):
        return self.parts.view.partitions(self.topic_id)[number].state

    async def put(self, state, number=0):
        result = await self.parts.memory.txn(
            [], [Put(self.parts.keyspace.partition(self.topic_id, number), encode(state))]
        )
        await self.parts.prefix_view.wait_for(result.revision, SECONDS)

    async def reassign(self, *wanted, rate=0, validate_only=False):
        request = cluster_pb2.ReassignPartitionsRequest(
            partitions=[
                cluster_pb2.PartitionReassignment(
                    topic=topics_pb2.TopicRef(name=fields.pop("topic", "t")), partition=number, **fields
                )
                for number, fields in wanted
            ],
            copy_bytes_per_second=rate,
            validate_only=validate_only,
        )
        return (await self.partitions.reassign(request, SECONDS)).partitions

    async def elect(self, kind, *numbers, **fields):
        topics = [cluster_pb2.TopicPartitions(topic=topics_pb2.TopicRef(name="t"), partitions=numbers)]
        request = cluster_pb2.ElectLeadersRequest(**{"type": kind, "topics": topics} | fields)
        return (await self.partitions.elect(request, SECONDS)).partitions

    async def drain(self, broker_id, drain=True):
        request = cluster_pb2.DrainBrokerRequest(broker_id=broker_id, drain=drain)
        return await self.brokers.drain(request, SECONDS)


@contextlib.asynccontextmanager
async def administered():
    async with make_parts() as parts:
        set_access(ChargedAccess())
        yield await Administration(parts).start(2)


@pytest.fixture
def admin():
    """An administration."""
    return administered()


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [LOST, NEVER], [NEVER, LOST]])
async def test_a_move_begins_once_whatever_answers_are_lost(admin, faults):
    """The key says where replicas go; the answer what it says; the added broker's session is compared (I12)."""
    admin.parts.metastore.faults = list(faults)
    (answer,) = await admin.reassign((0, {"replicas": [4, 2, 1]}), rate=1_000)
    assert not answer.HasField("error")
    assert (answer.name, answer.partition, answer.unchanged) == ("t", 0, False)
    assert (list(answer.replicas), answer.leader_id, answer.leader_epoch) == ([4, 2, 1, 3], 1, 0)
    state = admin.state()
    assert (state.adding, state.removing, state.copy_bytes_per_second) == ((4,), (3,), 1_000)
    assert state.partition_epoch == 1
    compares, _ = admin.parts.metastore.sent[0]
    assert CreateRevisionIs(admin.parts.keyspace.broker(4), admin.epochs[4]) in compares
    (listed,) = admin.partitions.list_reassignments(cluster_pb2.ListReassignmentsRequest()).partitions
    assert (listed.name, listed.partition, list(listed.adding), list(listed.removing)) == ("t", 0, [4], [3])
    assert (list(listed.in_sync_replicas), listed.leader_id, listed.copy_bytes_per_second) == ([2, 1, 3], 1, 1_000)


async def test_a_move_is_unchanged_throttled_and_cancelled(admin):
    """Each call says whether it changed anything."""
    await admin.reassign((0, {"replicas": [4, 2, 1]}), rate=1_000)
    (same,) = await admin.reassign((0, {"replicas": [4, 2, 1]}), rate=1_000)
    (faster,) = await admin.reassign((0, {"replicas": [4, 2, 1]}), rate=9_000)
    assert (same.unchanged, faster.unchanged, admin.state().copy_bytes_per_second) == (True, False, 9_000)
    (cancelled,) = await admin.reassign((0, {"cancel": True}))
    (again,) = await admin.reassign((0, {"cancel": True}))
    assert (cancelled.unchanged, again.unchanged) == (False, True)
    assert set(admin.state().replicas) == {1, 2, 3}
    assert not admin.partitions.list_reassignments(cluster_pb2.ListReassignmentsRequest()).partitions


async def test_each_partition_that_changes_is_charged(admin):
    """To the quota of changes, and no other: not one that is unknown, named twice, as before, or only checked."""
    set_access(charged := ChargedAccess())
    move = {"replicas": [4, 2, 1]}
    await admin.reassign((0, move), (1, move), validate_only=True)
    await admin.reassign((9, move), (0, {"replicas": [7]}))
    assert charged.changes == 0
    await admin.reassign((0, move), (1, move), (1, move))
    assert charged.changes == 2
    await admin.reassign((0, move), (1, {"cancel": True}))
    assert charged.changes == 3


async def test_a_move_that_loses_against_the_leader_is_decided_on_what_the_leader_wrote(admin):
    """The leader shrinks in between: the shrunk set stays shrunk, and the move begins."""

    async def race(compares, success):
        admin.parts.metastore.before_txn = None
        await admin.put(leave(admin.state(), [3]))

    admin.parts.metastore.before_txn = race
    (answer,) = await admin.reassign((0, {"replicas": [1, 2, 4]}))
    assert not answer.HasField("error")
    state = admin.state()
    assert [entry.broker_id for entry in state.in_sync] == [1, 2]
    assert (state.adding, state.partition_epoch) == ((4,), 2)


async def test_a_lost_write_that_the_leader_built_upon_was_made(admin):
    """The move is kept, although the key changed again: the answer does not report an unchanged key."""
    admin.parts.metastore.faults = [LOST]

    async def build_upon(key):
        admin.parts.metastore.get = admin.parts.memory.get
        await admin.put(leave(admin.state(), [2]))
        return await admin.parts.memory.get(key)

    async def next_read(compares, success):
        admin.parts.metastore.before_txn = None
        admin.parts.metastore.get = build_upon

    admin.parts.metastore.before_txn = next_read
    (answer,) = await admin.reassign((0, {"replicas": [1, 2, 4]}))
    assert not answer.HasField("error")
    assert not answer.unchanged
    assert admin.state().adding == (4,)
    assert [entry.broker_id for entry in admin.state().in_sync] == [1, 3]


async def test_a_partition_that_is_not_visible_cannot_be_moved(admin):
    """The remains of a growth that died are not the topic's."""
    await admin.put(admin.state(), 5)
    (answer,) = await admin.reassign((5, {"replicas": [1, 2, 4]}))
    assert ErrorCode(answer.error.code).name == "UNKNOWN_PARTITION"


async def test_bad_moves_are_refused_one_by_one(admin):
    """An error for each invalid partition; the others are changed."""
    answers = await admin.reassign(
        (0, {"replicas": [1, 9]}),
        (1, {"replicas": [1, 2, 4]}),
        (1, {"replicas": [1, 2]}),
        (7, {"replicas": [1, 2]}),
        (0, {"replicas": [1], "topic": "other"}),
        (0, {"replicas": [1], "topic": "other", "cancel": True}),
    )
    codes = [ErrorCode(answer.error.code).name if answer.HasField("error") else "" for answer in answers]
    assert codes == ["UNKNOWN_BROKER", "", "INVALID_REQUEST", "UNKNOWN_PARTITION", "UNKNOWN_TOPIC", "UNKNOWN_TOPIC"]
    assert admin.state(0).partition_epoch == 0
    assert admin.state(1).adding == (4,)
    with pytest.raises(InvalidRequestError, match="negative"):
        await admin.reassign(rate=-1)


async def test_validate_only_changes_nothing(admin):
    """Of a move and of an election: the answer says what would be."""
    (move,) = await admin.reassign((0, {"replicas": [4, 2, 1]}), validate_only=True)
    assert (list(move.replicas), move.unchanged) == ([4, 2, 1, 3], False)
    await admin.put(change(admin.state(), leader=admin.state().in_sync[1], in_sync=admin.state().in_sync))
    (election,) = await admin.elect(PREFERRED, 0, validate_only=True)
    assert (election.leader_id, election.unchanged) == (1, False)
    assert admin.parts.metastore.sent == []
    assert admin.parts.metric("unclean_elections") == 0


async def test_the_topic_sets_how_many_replicas_its_partitions_have(admin):
    """Once all are to have equally many, and not before."""

    async def replication_factor():
        found = await admin.parts.store.find(topics_pb2.TopicRef(name="t"), admin.parts.deadline)
        return found.message.replication_factor

    await admin.reassign((0, {"replicas": [1, 2]}))
    assert await replication_factor() == 3
    await admin.reassign((0, {"replicas": [1]}), (1, {"replicas": [1, 2]}))
    assert await replication_factor() == 3
    await admin.reassign((0, {"replicas": [2, 1]}))
    assert await replication_factor() == 2


async def test_preferred_leaders_lead_again(admin):
    """The named partitions or all; who leads already is unchanged."""
    for number in (0, 1):
        state = admin.state(number)
        await admin.put(change(state, leader=state.in_sync[1], in_sync=state.in_sync), number)
    async with admin.parts.leaders():
        (named,) = await admin.elect(PREFERRED, 0)
        assert (named.leader_id, named.leader_epoch, named.unchanged) == (1, 2, False)
        every = await admin.elect(PREFERRED, topics=[])
    assert [(answer.partition, answer.leader_id, answer.unchanged) for answer in every] == [(0, 1, True), (1, 1, False)]


async def test_a_leader_that_leads_on_is_an_error_of_that_partition(admin):
    """H24: its successor did not reach the log end in time; nothing has changed, and the answer says so."""
    state = admin.state()
    await admin.put(change(state, leader=state.in_sync[1], in_sync=state.in_sync))
    async with admin.parts.leaders(yield_leadership=False):
        first, second = await admin.elect(PREFERRED)
    assert ErrorCode(first.error.code).name == "TIMED_OUT"
    assert first.error.outcome == errors_pb2.OUTCOME_NOT_APPLIED
    assert second.unchanged
    assert admin.state().leader.broker_id == 2


async def test_a_dead_leader_hands_over_nothing(admin):
    """The key still names it: electing in its place is the controller's."""
    await admin.parts.unregister(1)
    answers = await admin.elect(PREFERRED)
    assert {ErrorCode(answer.error.code).name for answer in answers} == {"LEADER_NOT_AVAILABLE"}
    assert admin.state().partition_epoch == 0


async def test_without_a_leader_there_is_none_to_prefer(admin):
    """The controller elects; the administrator is told so."""
    await admin.put(change(admin.state(), leader=None, in_sync=admin.state().in_sync))
    answers = await admin.elect(PREFERRED)
    assert [ErrorCode(answer.error.code).name for answer in answers if answer.HasField("error")] == [
        "LEADER_NOT_AVAILABLE"
    ]


async def lose_the_in_sync(admin):
    """Only broker 3, which is neither in sync nor eligible, is left."""
    state = admin.state()
    await admin.put(change(state, leader=None, in_sync=state.in_sync[:2], doubtful=[3]))
    for broker_id in (1, 2):
        await admin.parts.unregister(broker_id)
    admin.parts.metastore.sent.clear()


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [LOST, NEVER]])
async def test_an_unclean_election_happens_once_and_is_recorded(admin, faults):
    """H21: the epoch rises by one, the key says unclean, no other replica counts any more, it is counted."""
    await lose_the_in_sync(admin)
    before = admin.state()
    admin.parts.metastore.faults = list(faults)
    (answer,) = await admin.elect(UNCLEAN, 0)
    assert not answer.HasField("error")
    state = admin.state()
    assert (answer.leader_id, answer.leader_epoch) == (3, before.leader_epoch + 1)
    assert (state.leader.broker_id, state.leader.broker_epoch) == (3, admin.epochs[3])
    assert (state.unclean, state.unclean_epoch, state.eligible_leaders) == (True, answer.leader_epoch, ())
    assert [entry.broker_id for entry in state.in_sync] == [3]
    assert admin.parts.metric("unclean_elections") == 1


async def test_an_unclean_election_loses_against_the_return_of_a_complete_replica(admin):
    """The write compares that no replica came back: else the clean one is elected, not this one."""
    await lose_the_in_sync(admin)

    async def race(compares, success):
        admin.parts.metastore.before_txn = None
        await admin.parts.register(1, resumes=admin.epochs[1], clean=True)

    admin.parts.metastore.before_txn = race
    (answer,) = await admin.elect(UNCLEAN, 0)
    assert ErrorCode(answer.error.code).name == "INVALID_REQUEST"
    assert "broker 1 holds every committed record" in answer.error.message
    assert admin.state().leader is None


async def test_an_unclean_election_may_choose_a_member_that_came_back_without_its_data(admin):
    """Its session is in doubt, so it counts for nothing, and blocks no election; a dry run changes nothing."""
    await lose_the_in_sync(admin)
    epoch = await admin.parts.register(1, resumes=admin.epochs[1], clean=False)
    (dry,) = await admin.elect(UNCLEAN, 0, broker_id=1, validate_only=True)
    assert (dry.leader_id, admin.state().leader, admin.parts.metric("unclean_elections")) == (1, None, 0)
    (answer,) = await admin.elect(UNCLEAN, 0, broker_id=1)
    assert not answer.HasField("error")
    assert (admin.state().leader.broker_id, admin.state().leader.broker_epoch) == (1, epoch)


async def test_an_unclean_election_is_refused_where_it_would_lose_for_nothing(admin):
    """A complete replica is alive, the broker is no replica, is not registered, or nothing is named."""
    healthy = await admin.elect(UNCLEAN)
    assert {ErrorCode(answer.error.code).name for answer in healthy} == {"INVALID_REQUEST"}
    await lose_the_in_sync(admin)
    (stranger,) = await admin.elect(UNCLEAN, 0, broker_id=4)
    (absent,) = await admin.elect(UNCLEAN, 0, broker_id=1)
    assert "no replica" in stranger.error.message
    assert ErrorCode(absent.error.code).name == "UNKNOWN_BROKER"
    await admin.parts.unregister(3)
    (refused,) = await admin.elect(UNCLEAN, 0)
    assert ErrorCode(refused.error.code).name == "LEADER_NOT_AVAILABLE"
    for bad in ({"type": UNCLEAN, "topics": []}, {"type": 0}, {"type": PREFERRED, "broker_id": 1}):
        with pytest.raises(InvalidRequestError):
            await admin.elect(UNCLEAN, 0, **bad)
    assert admin.parts.metastore.sent == []


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST]])
async def test_a_broker_is_drained_and_undrained(admin, faults):
    """The key lasts as long as the request; the answer counts what it leads."""
    admin.parts.metastore.faults = list(faults)
    answer = await admin.drain(1)
    assert (answer.leaders, answer.unchanged) == (2, False)
    assert admin.parts.view.is_draining(1)
    assert 1 not in admin.parts.store.candidates()
    assert (await admin.drain(1)).unchanged
    assert await admin.brokers.drained(SECONDS) == cluster_pb2.DrainedBrokers(broker_ids=[1])
    admin.parts.metastore.faults = list(faults)
    assert not (await admin.drain(1, False)).unchanged
    assert (await admin.drain(1, False)).unchanged
    assert not admin.parts.view.is_draining(1)


async def test_drained_brokers_are_read_from_etcd_itself(admin, monkeypatch):
    """Not from the view, which would hide that etcd is away; the error is part of the response."""

    async def fail(prefix):
        raise MetastoreUnavailableError(f"no answer about {prefix}")

    monkeypatch.setattr(admin.parts.memory, "range", fail)
    assert (await admin.brokers.drained(SECONDS)).error.code == ErrorCode.METASTORE_UNAVAILABLE


async def test_an_administrators_drain_outlives_that_of_a_broker_that_is_being_stopped(admin):
    """A key on a lease goes with the lease; an administrator's later request has none."""
    lease = await admin.parts.memory.grant_lease(60_000)
    await admin.parts.memory.txn([], [Put(admin.parts.keyspace.drained_broker(1), b"", lease.lease_id)])
    assert not (await admin.drain(1)).unchanged
    assert (await admin.drain(1)).unchanged
    await admin.parts.memory.revoke_lease(lease.lease_id)
    assert (await admin.parts.memory.get(admin.parts.keyspace.drained_broker(1))).key_value is not None


async def test_a_broker_that_is_not_registered_is_drained_if_known_and_always_undrained(admin):
    """A broker that was registered once may come back; a mistyped number is refused."""
    await admin.parts.memory.txn([], [Put(admin.parts.keyspace.broker_session(7), b"")])
    assert not (await admin.drain(7)).unchanged
    assert not (await admin.drain(7, False)).unchanged
    await admin.parts.memory.txn([], [Put(admin.parts.keyspace.drained_broker(9), b"")])
    assert not (await admin.drain(9, False)).unchanged
    with pytest.raises(UnknownBrokerError, match="broker 8 was never registered"):
        await admin.drain(8)
    with pytest.raises(InvalidRequestError):
        await admin.drain(-1)


async def test_without_etcd_nothing_is_known_to_be_done(admin):
    """The outcome says whether something may have happened."""
    admin.parts.metastore.faults = [NEVER] * 100
    request = cluster_pb2.DrainBrokerRequest(broker_id=1, drain=True)
    with pytest.raises(MetastoreUnavailableError) as failure:
        await admin.brokers.drain(request, 0.3)
    assert failure.value.outcome is Outcome.UNKNOWN
    assert admin.parts.metric("ambiguous_writes") >= 1
