"""The controller: one at a time, level-triggered, guarded by its epoch (I14, C1 to C3)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from headrace.v1 import topics_pb2
from headrace_coordinator.core.orphans import Orphan, TopicIdEntry, find_orphans, nameless_topics, ripe_orphans
from headrace_coordinator.core.topics import TopicDefaults, TopicSpec, check_new_topic, place_new_topic
from headrace_coordinator.runtime.controller import Controller
from headrace_coordinator.runtime.session import CoordinatorSession
from headrace_server.clock import SystemClock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import CreateRevisionIs, Delete, Put
from headrace_server.partition_state import Move, change, encode, leave

from tests.fakes.lossy_metastore import LOST, NEVER
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryLeaseRenewer


@contextlib.asynccontextmanager
async def coordinator(parts, name="a", rebalance_ms=0, clock=None, orphan_grace_ms=60_000):
    """A registered coordinator with its controller."""
    session = CoordinatorSession(
        parts.metastore,
        parts.keyspace,
        metadata_pb2.CoordinatorLive(coordinator_id=name, address=f"{name}:1"),
        parts.metrics,
        lease_ttl_ms=60_000,
        clock=SystemClock(),
        make_renewer=lambda: MemoryLeaseRenewer(parts.memory, asyncio.get_running_loop()),
    )
    controller = Controller(
        parts.metastore,
        parts.view,
        session,
        parts.metrics,
        clock or SystemClock(),
        max_inflight=4,
        orphan_grace_ms=orphan_grace_ms,
        deleted_topics_retention_ms=60_000,
        leader_rebalance_interval_ms=rebalance_ms,
    )
    tasks = [asyncio.create_task(session.run()), asyncio.create_task(controller.run())]
    try:
        await parts.shows(lambda: name in parts.view.coordinators)
        yield session, controller
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await session.end()


async def elected(parts, name="a"):
    await parts.shows(lambda: parts.view.controller is not None and parts.view.controller.live.coordinator_id == name)
    return parts.view.controller.create_revision


async def make_topic(parts, partitions=3):
    topic = check_new_topic(TopicSpec("t", partitions), TopicDefaults(), 1)
    created = await parts.store.create(topic, place_new_topic(topic, parts.store.candidates()), parts.deadline)
    await parts.prefix_view.wait_for(created.revision, 10)
    return created.topic_id


def states(parts, topic_id):
    return [partition.state for partition in parts.view.partitions(topic_id)]


@pytest.mark.parametrize("faults", [[], [NEVER, NEVER], [LOST], [LOST, NEVER, LOST]])
async def test_every_partition_gets_its_leader_whatever_answers_are_lost(parts, faults):
    """The election of a clean resume, with one change of leader each, however often it had to be sent."""
    first = await parts.register(1)
    topic_id = await make_topic(parts)
    async with coordinator(parts):
        await elected(parts)
        await parts.unregister(1)
        await parts.shows(lambda: all(state.leader is None for state in states(parts, topic_id)))
        parts.metastore.faults = list(faults)
        epoch = await parts.register(1, resumes=first, clean=True)
        await parts.shows(lambda: all(state.leader is not None for state in states(parts, topic_id)))
    for state in states(parts, topic_id):
        assert state.leader.broker_epoch == epoch
        assert state.leader_epoch == 2
        assert state.partition_epoch == 2


async def test_every_write_compares_the_controller_epoch(parts):
    """I14: whatever the controller sends compares its epoch; an election the candidate's session too."""
    first = await parts.register(1)
    topic_id = await make_topic(parts)
    async with coordinator(parts):
        epoch = await elected(parts)
        parts.metastore.sent.clear()
        session = await parts.register(1, resumes=first, clean=True)
        await parts.shows(lambda: all(state.leader_epoch == 1 for state in states(parts, topic_id)))
        assert parts.metastore.sent
        for compares, _ in parts.metastore.sent:
            assert CreateRevisionIs(parts.keyspace.controller(), epoch) in compares
            assert CreateRevisionIs(parts.keyspace.broker(1), session) in compares


async def test_there_is_one_controller_and_the_next_when_it_ends(parts):
    """The second waits; when the first gives its lease back, it follows with a higher epoch."""
    async with coordinator(parts, "b") as (_, follower):
        first_epoch = await elected(parts, "b")
        async with coordinator(parts, "a") as (_, waiting):
            assert follower.epoch == first_epoch
            assert waiting.epoch == 0
            await parts.memory.revoke_lease(parts.view.source.get(parts.keyspace.controller()).lease_id)
            assert await elected(parts, "a") > first_epoch


async def test_a_controller_whose_key_is_gone_steps_down_and_campaigns_again(parts):
    """The key deleted by a stranger: no write with the old epoch; a new epoch follows."""
    async with coordinator(parts):
        epoch = await elected(parts)
        await parts.memory.txn([], [Delete(parts.keyspace.controller())])
        await parts.shows(lambda: parts.view.controller is not None and parts.view.controller.create_revision > epoch)
        assert await elected(parts) > epoch


async def test_a_key_of_a_topic_id_wakes_the_controller(parts):
    """It looks for orphans at once, and not only when its interval on the event loop's clock is over (minutes here)."""
    clock = ManualClock()
    value = metadata_pb2.Topic().SerializeToString()
    orphan, other = (parts.keyspace.topic_by_id(bytes([number] * 16)) for number in (1, 2))
    async with coordinator(parts, clock=clock, orphan_grace_ms=3_600_000), asyncio.timeout(10):
        await elected(parts)
        await parts.memory.txn([], [Put(orphan, value)])
        while (await parts.memory.get(orphan)).key_value is not None:
            clock.advance(3_600_000)
            revision = (await parts.memory.txn([], [Put(other, value)])).revision
            await parts.prefix_view.wait_for(revision, 10)


async def test_an_election_whose_answer_was_lost_is_found_won(parts):
    """The key on the own lease is the own victory: a coordinator does not wait for itself."""
    parts.metastore.faults = [None, LOST]
    async with coordinator(parts):
        epoch = await elected(parts)
        first = await parts.register(1)
        topic_id = await make_topic(parts)
        await parts.register(1, resumes=first, clean=True)
        await parts.shows(lambda: all(state.leader_epoch == 1 for state in states(parts, topic_id)))
        assert parts.view.controller.create_revision == epoch


async def test_the_minimum_of_a_topic_reaches_its_partitions(parts):
    """H30: min_insync_replicas counts in the partition's key, and the controller carries it there, never above n."""
    await parts.register(1)
    topic_id = await make_topic(parts, 1)
    (partition,) = parts.view.partitions(topic_id)
    message = metadata_pb2.PartitionState.FromString(parts.view.source.get(parts.keyspace.partition(topic_id, 0)).value)
    message.min_insync_replicas = 2
    result = await parts.memory.txn([], [Put(parts.keyspace.partition(topic_id, 0), message.SerializeToString())])
    await parts.prefix_view.wait_for(result.revision, 10)
    async with coordinator(parts):
        await parts.shows(lambda: states(parts, topic_id)[0].min_insync_replicas == 1)
    assert states(parts, topic_id)[0].leader == partition.state.leader
    assert states(parts, topic_id)[0].leader_epoch == 0


async def three_in_sync(parts, partitions=1):
    """A topic on three brokers, broker 1 preferred everywhere; its id and the brokers' epochs."""
    epochs = [await parts.register(broker_id) for broker_id in (1, 2, 3)]
    assignments = ((1, 2, 3),) * partitions
    topic = check_new_topic(TopicSpec("t", assignments=assignments), TopicDefaults(), 3)
    created = await parts.store.create(topic, place_new_topic(topic, parts.store.candidates()), parts.deadline)
    await parts.prefix_view.wait_for(created.revision, 10)
    return created.topic_id, epochs


def led_by(parts, topic_id, broker_id):
    return all(state.leader is not None and state.leader.broker_id == broker_id for state in states(parts, topic_id))


async def put(parts, key, value=b""):
    result = await parts.memory.txn([], [Put(key, value)])
    await parts.prefix_view.wait_for(result.revision, 10)


async def becomes(condition):
    """Let the other tasks run until `condition` holds."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it did not come about")


async def test_leadership_leaves_a_drained_broker_and_comes_back_when_it_is_undrained(parts):
    """An administrator's word is looked at at once; the way back is a round of preferred leaders."""
    topic_id, _ = await three_in_sync(parts, 3)
    async with coordinator(parts, rebalance_ms=1), parts.leaders():
        await elected(parts)
        await put(parts, parts.keyspace.drained_broker(1))
        await parts.shows(lambda: led_by(parts, topic_id, 2))
        assert all(len(state.in_sync) == 3 for state in states(parts, topic_id))
        await parts.memory.txn([], [Delete(parts.keyspace.drained_broker(1))])
        await parts.shows(lambda: led_by(parts, topic_id, 1))
    assert parts.metric("leadership_moves") == 6
    assert parts.metric("elections") == 0


class SetClock(SystemClock):
    """Its monotonic time is what the test says."""

    time_ms = 0

    def monotonic_ms(self):
        return self.time_ms


async def test_preferred_leaders_lead_again_once_in_each_interval(parts):
    """Neither before it is over nor again right after."""
    topic_id, _ = await three_in_sync(parts)
    key, clock = parts.keyspace.partition(topic_id, 0), SetClock()

    async def led_by_second():
        (state,) = states(parts, topic_id)
        await put(parts, key, encode(change(state, leader=state.in_sync[1], in_sync=state.in_sync)))

    async def stays():
        for _ in range(200):
            await asyncio.sleep(0)
        assert led_by(parts, topic_id, 2)

    async with coordinator(parts, rebalance_ms=60_000, clock=clock), parts.leaders():
        await elected(parts)
        await led_by_second()
        await stays()
        for _ in range(2):
            clock.time_ms += 60_000
            await put(parts, parts.keyspace.drained_broker(9))
            await parts.shows(lambda: led_by(parts, topic_id, 1))
            await led_by_second()
            await stays()


async def test_a_stopping_broker_leaves_at_once(parts):
    """Controlled shutdown: leaders move first, and no partition waits for the broker any more."""
    topic_id, epochs = await three_in_sync(parts, 3)
    async with coordinator(parts), parts.leaders():
        await elected(parts)
        live = metadata_pb2.BrokerLive(broker_id=1, draining=True)
        await put(parts, parts.keyspace.broker(1), live.SerializeToString())
        await parts.shows(lambda: led_by(parts, topic_id, 2))
    for state in states(parts, topic_id):
        assert [entry.broker_id for entry in state.in_sync] == [2, 3]
        assert state.partition_epoch == 2
    assert parts.view.brokers[1].broker_epoch == epochs[0]


async def test_a_write_that_loses_against_the_leader_is_decided_anew(parts):
    """The leader shrinks while the controller sweeps: the compare fails, the next look has nothing left to do."""
    topic_id, _ = await three_in_sync(parts)
    key = parts.keyspace.partition(topic_id, 0)
    async with coordinator(parts):
        await elected(parts)
        raced = []

        async def race(compares, success):
            if not raced and any(isinstance(operation, Put) and operation.key == key for operation in success):
                raced.append(key)
                (partition,) = parts.view.partitions(topic_id)
                await parts.memory.txn([], [Put(key, encode(leave(partition.state, [3])))])

        parts.metastore.before_txn = race
        await parts.unregister(3)
        await parts.shows(lambda: len(states(parts, topic_id)[0].in_sync) == 2)
        await parts.unregister(2)
        await parts.shows(lambda: len(states(parts, topic_id)[0].in_sync) == 1)
    assert raced
    assert states(parts, topic_id)[0].partition_epoch == 2


async def test_the_gauges_count_what_is_wrong_now(parts):
    """Offline, under-replicated and moving partitions, as the controller sees them; a deleted topic counts no more."""
    topic_id, _ = await three_in_sync(parts, 2)
    gauges = ("offline_partitions", "under_replicated_partitions", "moving_partitions")
    async with coordinator(parts):
        await elected(parts)
        (first, _) = parts.view.partitions(topic_id)
        moving = change(
            first.state, leader=first.state.leader, in_sync=first.state.in_sync, move=Move((1, 2, 3, 4), adding=(4,))
        )
        await put(parts, parts.keyspace.partition(topic_id, 0), encode(moving))
        await parts.unregister(3)
        await parts.shows(lambda: all(len(state.in_sync) == 2 for state in states(parts, topic_id)))
        await becomes(lambda: [parts.metric(name) for name in gauges] == [0, 2, 1])
        assert parts.metric("in_sync_shrinks") == 2
        await parts.store.delete(topics_pb2.TopicRef(name="t"), parts.deadline)
        await becomes(lambda: [parts.metric(name) for name in gauges] == [0, 0, 0])


async def test_a_broker_that_holds_replicas_and_is_not_registered_is_missing(parts):
    """Down, not scheduled, scaled away: all the same. A spare that leaves does not count, nor a topic that is gone."""
    await three_in_sync(parts, 2)
    await parts.register(4)
    async with coordinator(parts):
        await elected(parts)
        await becomes(lambda: parts.metric("partitions") == 2)
        assert parts.metric("missing_brokers") == 0
        await parts.unregister(4)
        await parts.unregister(3)
        await becomes(lambda: parts.metric("missing_brokers") == 1)
        await parts.unregister(2)
        await becomes(lambda: parts.metric("missing_brokers") == 2)
        await parts.register(3)
        await becomes(lambda: parts.metric("missing_brokers") == 1)
        await parts.store.delete(topics_pb2.TopicRef(name="t"), parts.deadline)
        await becomes(lambda: parts.metric("missing_brokers") == 0)


async def test_who_is_no_controller_any_more_counts_nothing(parts):
    """Else its last figures would remain next to its successor's, and an alert on their maximum would never end."""
    await three_in_sync(parts, 2)
    gauges = ("partitions", "under_replicated_partitions", "missing_brokers")
    async with coordinator(parts) as (session, controller):
        await elected(parts)
        await parts.unregister(3)
        await becomes(lambda: [parts.metric(name) for name in gauges] == [2, 2, 1])
        await parts.memory.revoke_lease(session.lease_id)
        await becomes(lambda: controller.epoch == 0)
        assert [parts.metric(name) for name in gauges] == [0, 0, 0]


async def test_a_broker_that_dies_is_replaced_everywhere_by_one_write_a_partition(parts):
    """Many at once and never more than allowed, partitions without a leader first."""
    for broker_id in (1, 2, 3):
        await parts.register(broker_id)
    topic = check_new_topic(TopicSpec("t", 60, 3), TopicDefaults(), 3)
    created = await parts.store.create(topic, place_new_topic(topic, parts.store.candidates()), parts.deadline)
    await parts.prefix_view.wait_for(created.revision, 10)
    led = {number for number, state in enumerate(states(parts, created.topic_id)) if state.leader.broker_id == 1}
    async with coordinator(parts):
        await elected(parts)
        under_way, most, order = 0, 0, []

        async def count(compares, success):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            order.extend(parts.keyspace.parse(operation.key).partition for operation in success)
            await asyncio.sleep(0)
            under_way -= 1

        parts.metastore.before_txn = count
        await parts.unregister(1)
        await parts.shows(lambda: all(len(state.in_sync) == 2 for state in states(parts, created.topic_id)))
    assert len(led) == 20
    assert set(order[: len(led)]) == led
    assert sorted(order) == list(range(60))
    assert most == 4
    assert parts.metric("elections") == 20


A_ID, B_ID, DELETED_ID = b"a" * 16, b"b" * 16, b"d" * 16


def tid(revision, partitions):
    return TopicIdEntry(revision, partitions)


@pytest.mark.parametrize(
    ("visible", "tids", "partitions", "expected"),
    [
        ({A_ID: 2}, {A_ID: tid(5, 2)}, [(A_ID, 0), (A_ID, 1)], []),
        ({A_ID: 1}, {A_ID: tid(5, 1)}, [(A_ID, 0), (A_ID, 2), (A_ID, 1)], [Orphan(A_ID, 5, True, (1, 2))]),
        ({}, {B_ID: tid(7, 0)}, [(B_ID, 0)], [Orphan(B_ID, 7, False, (0,))]),
        ({}, {B_ID: tid(7, 0)}, [], [Orphan(B_ID, 7, False, ())]),
        ({}, {}, [(DELETED_ID, 3)], [Orphan(DELETED_ID, 0, False, (3,))]),
        ({A_ID: 1}, {}, [(A_ID, 4)], []),
        ({}, {}, [(A_ID, 3)], []),
        ({}, {A_ID: tid(5, 2)}, [(A_ID, 0), (A_ID, 1), (A_ID, 2)], []),
        ({A_ID: 1}, {A_ID: tid(5, 3)}, [(A_ID, 0), (A_ID, 1), (A_ID, 2)], []),
    ],
    ids=[
        "whole",
        "too many",
        "reserved with partitions",
        "reserved",
        "partitions of a deleted topic",
        "visible without tid is left alone",
        "neither there nor deleted is left alone",
        "a topic that lost its name is left alone",
        "partitions that tid says to be visible are left alone",
    ],
)
def test_orphans_are_what_is_known_to_be_a_remainder(visible, tids, partitions, expected):
    """A creation that ended early, or a deleted topic. What only lacks a key is never taken apart (H26)."""
    assert find_orphans(visible, tids, partitions, {DELETED_ID}) == expected
    nameless = [A_ID] if A_ID in tids and A_ID not in visible else []
    assert nameless_topics(visible, tids) == nameless


def test_orphans_ripen_only_while_nothing_moves():
    """An attempt under way moves `topic_ids/`, which begins the grace time anew."""
    seen = {}
    assert ripe_orphans([Orphan(A_ID, 5, False, ())], seen, 0, 100) == []
    assert ripe_orphans([Orphan(A_ID, 6, False, ())], seen, 90, 100) == []
    assert ripe_orphans([Orphan(A_ID, 6, False, ())], seen, 189, 100) == []
    assert ripe_orphans([Orphan(A_ID, 6, False, ())], seen, 190, 100) == [Orphan(A_ID, 6, False, ())]
    assert ripe_orphans([], seen, 191, 100) == []
    assert seen == {}


def test_partitions_of_a_deleted_topic_are_ripe_at_once():
    """Without `topic_ids/` no attempt can be under way: each compares it."""
    orphan = Orphan(A_ID, 0, False, (1,))
    assert ripe_orphans([orphan], {}, 0, 100) == [orphan]
