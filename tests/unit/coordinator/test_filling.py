"""Replicas for brokers with less than their share: few at a time, by the policies, and there is an end."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace.placement.moves import PlanBroker, PlanPartition, applied
from headrace.placement.policy import RACK, parse_placement
from headrace.wire.ids import TopicPartition
from headrace_coordinator.core.control import Step
from headrace_coordinator.core.filling import MAX_FILL_MOVES, brokers_below_share, next_fill
from headrace_coordinator.core.topics import TopicDefaults, TopicSpec, check_new_topic, place_new_topic
from headrace_coordinator.runtime.broker_filler import IDLE_INTERVAL_MS, INTERVAL_MS, BrokerFiller
from headrace_server.metastore.api import Put
from headrace_server.partition_state import encode
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.manual_clock import ManualClock
from tests.unit.coordinator.parts import make_parts


@st.composite
def grown(draw):
    """A cluster of two data centers, any partitions on its first brokers, and further brokers without replicas."""
    old, new = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    brokers = [PlanBroker(n, f"r{n % 3}", data_center="ab"[n % 2]) for n in range(1, old + new + 1)]
    partitions = []
    for number in range(draw(st.integers(1, 60))):
        replicas = tuple(draw(st.permutations(range(1, old + 1)))[: draw(st.integers(1, 2))])
        counts = Counter("ab"[n % 2] for n in replicas)
        counted = parse_placement(",".join(f"{name}:{count}" for name, count in counts.items()))
        policy = draw(st.sampled_from((RACK, counted)))
        partitions.append(PlanPartition(TopicPartition("t", number), replicas, policy=policy))
    return partitions, brokers


@given(grown())
def test_filling_ends_with_a_share_for_every_broker_that_may_have_one(cluster):
    """At most ten moves at once, only to brokers below their share, and each partition keeps its data centers."""
    partitions, brokers = cluster
    ids = [each.broker_id for each in brokers]
    total = len(partitions) * 2
    for _ in range(total + 1):
        held = Counter(broker_id for each in partitions for broker_id in each.replicas)
        moves = next_fill(partitions, brokers)
        assert len(moves) <= MAX_FILL_MOVES
        if not moves:
            break
        for move in moves:
            assert set(move.adding) <= set(brokers_below_share(held, ids))
        for old, new in zip(partitions, applied(partitions, moves), strict=True):
            if old.policy.counts:
                assert Counter("ab"[n % 2] for n in new.replicas) == dict(old.policy.counts)
        partitions = applied(partitions, moves)
    assert next_fill(partitions, brokers) == []
    if all(each.policy == RACK and len(each.replicas) == 1 for each in partitions):
        held = Counter(broker_id for each in partitions for broker_id in each.replicas)
        assert brokers_below_share(held, ids) == [] or max(held.values()) - min(held[each] for each in ids) <= 1


def test_moves_in_progress_count_and_are_not_moved_again():
    """Twelve partitions on one broker, seven of them on their way: no more go, since both will have their share."""
    brokers = [PlanBroker(1), PlanBroker(2)]
    partitions = [PlanPartition(TopicPartition("t", n), (2 if n < 6 else 1,), is_moving=n < 6) for n in range(12)]
    assert next_fill(partitions, brokers) == []
    one = [PlanPartition(TopicPartition("t", n), (1,), is_moving=n == 0) for n in range(4)]
    assert [move.where.partition for move in next_fill(one, brokers)] == [1, 2]
    some = [PlanPartition(TopicPartition("t", n), (2 if n < 3 else 1,), is_moving=n < 3) for n in range(12)]
    assert [move.where.partition for move in next_fill(some, brokers)] == [3, 4, 5]
    full = [PlanPartition(TopicPartition("t", n), (2 if n < 10 else 1,), is_moving=n < 10) for n in range(50)]
    assert next_fill(full, brokers) == []


def test_brokers_that_receive_nothing_get_nothing():
    """Drained or dead ones, also if all are; the mean is that of the others."""
    partitions = [PlanPartition(TopicPartition("t", n), (1,)) for n in range(4)]
    assert next_fill(partitions, [PlanBroker(1), PlanBroker(2, receives=False)]) == []
    assert next_fill(partitions, [PlanBroker(1, receives=False), PlanBroker(2, receives=False)]) == []
    assert next_fill([], [PlanBroker(1)]) == []


async def place(parts, partitions):
    topic = check_new_topic(TopicSpec("t", partitions, 1), TopicDefaults(), 3)
    created = await parts.store.create(topic, place_new_topic(topic, parts.store.candidates()), parts.deadline)
    await parts.prefix_view.wait_for(created.revision, 20)


def test_the_filler_starts_moves_with_a_part_of_the_rate():
    """Ten at once with a tenth of it each; then it waits; a new broker ends a long wait. `0` searches never."""

    async def run():
        async with make_parts() as parts:
            clock = ManualClock()
            filler, off = (BrokerFiller(parts.view, clock, bytes_per_second=rate) for rate in (1_000, 0))
            for broker_id in (1, 2):
                await parts.register(broker_id)
            await place(parts, 40)
            assert filler.changes() == []
            assert filler.wait_ms() == IDLE_INTERVAL_MS
            await parts.register(3, takes_no_replicas="too small")
            await parts.register(4, draining=True)
            filler.note_brokers()
            clock.advance(INTERVAL_MS)
            assert filler.changes() == []
            await parts.register(3)
            filler.note_brokers()
            assert (filler.wait_ms(), off.wait_ms(), off.changes()) == (INTERVAL_MS, None, [])
            clock.advance(INTERVAL_MS)
            changes = filler.changes()
            assert len(changes) == MAX_FILL_MOVES
            for key, change in changes:
                assert (change.step, change.after.adding, change.after.copy_bytes_per_second) == (Step.FILL, (3,), 100)
                assert change.after.removing == change.before.replicas
                result = await parts.memory.txn([], [Put(key, encode(change.after))])
                await parts.prefix_view.wait_for(result.revision, 20)
            clock.advance(INTERVAL_MS)
            assert filler.changes() == []
            assert filler.wait_ms() == INTERVAL_MS

    asyncio.run(run())
