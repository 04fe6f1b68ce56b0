"""What the controller looks at, and when again."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from headrace_coordinator.core.control import Step
from headrace_coordinator.core.topics import TopicDefaults, TopicSpec, check_new_topic, place_new_topic
from headrace_coordinator.runtime.partition_reconciler import PartitionReconciler
from headrace_server.metastore.api import Put
from headrace_server.partition_state import change, encode
from headrace_server.rpc import ITEMS_PER_TURN

from tests.unit.coordinator.parts import make_parts

SECONDS = 20


class Looking:
    """Rounds over a topic of two partitions on brokers 1, 2 and 3, led by broker 1; everything was looked at once."""

    def __init__(self, parts):
        self.parts = parts
        self.reconciler = PartitionReconciler(parts.view, parts.metrics)

    async def start(self):
        for broker_id in (1, 2, 3):
            await self.parts.register(broker_id)
        self.topic_id = await self.create("t", 2)
        self.reconciler.begin()
        assert await self.reconciler.changes() == []
        return self

    async def create(self, name, partitions):
        topic = check_new_topic(TopicSpec(name, assignments=((1, 2, 3),) * partitions), TopicDefaults(), 3)
        placement = place_new_topic(topic, self.parts.store.candidates())
        created = await self.parts.store.create(topic, placement, self.parts.deadline)
        await self.parts.prefix_view.wait_for(created.revision, SECONDS)
        return created.topic_id

    def key(self, number):
        return self.parts.keyspace.partition(self.topic_id, number)

    def state(self, number):
        return self.parts.view.partition(self.topic_id, number).state

    async def put(self, key, value=b""):
        result = await self.parts.memory.txn([], [Put(key, value)])
        await self.parts.prefix_view.wait_for(result.revision, SECONDS)

    async def steps(self):
        return [(change.partition, change.step) for _, change in await self.reconciler.changes()]


@contextlib.asynccontextmanager
async def looking_at():
    async with make_parts() as parts:
        yield await Looking(parts).start(), parts


@pytest.fixture
def looked():
    """Rounds over a topic, and their parts."""
    return looking_at()


async def test_a_key_is_looked_at_when_it_changed(looked):
    """Of one partition alone; groups' and unknown keys concern none."""
    looking, parts = looked
    await parts.unregister(3)
    assert await looking.steps() == []
    looking.reconciler.begin()
    assert await looking.steps() == [(0, Step.SWEEP), (1, Step.SWEEP)]
    prefix = parts.keyspace.prefix
    assert not looking.reconciler.note([f"{prefix}group/g/state", f"{prefix}pid", f"{prefix}part/odd/1"])
    assert await looking.steps() == []
    assert looking.reconciler.note([looking.key(1)])
    assert await looking.steps() == [(1, Step.SWEEP)]


async def test_a_look_at_many_partitions_lets_others_run(looked):
    """What changes meanwhile is seen by the next look."""
    looking, parts = looked
    await looking.create("wide", 2 * ITEMS_PER_TURN)
    looking.reconciler.begin()
    look = asyncio.create_task(looking.reconciler.changes())
    await asyncio.sleep(0)
    assert not look.done()
    await parts.unregister(3)
    assert looking.reconciler.note([parts.keyspace.broker(3)])
    assert await look == []
    assert len(await looking.steps()) == 2 + 2 * ITEMS_PER_TURN


@pytest.mark.parametrize("family", ["brokers/1", "drained_brokers/1", "topics/t"])
async def test_brokers_topics_and_words_concern_every_partition(looked, family):
    """Who is registered, drained, and what a topic demands is taken anew."""
    looking, parts = looked
    await looking.put(parts.keyspace.drained_broker(1))
    assert await looking.steps() == []
    assert looking.reconciler.note([parts.keyspace.prefix + family])
    assert await looking.steps() == [(0, Step.RELIEVE), (1, Step.RELIEVE)]


async def test_what_was_written_is_not_written_again_before_the_view_shows_it(looked):
    """Neither done twice nor forgotten: the next version is looked at."""
    looking, parts = looked
    await parts.unregister(3)
    looking.reconciler.begin()
    (_, first), (_, second) = await looking.reconciler.changes()
    looking.reconciler.note_again(first, written=True)
    looking.reconciler.note_again(second, written=False)
    assert await looking.steps() == [(1, Step.SWEEP)]
    await looking.put(looking.key(0), encode(first.after))
    await parts.unregister(2)
    looking.reconciler.note([parts.keyspace.broker(2)])
    assert await looking.steps() == [(0, Step.SWEEP), (1, Step.SWEEP)]


async def test_a_round_of_preferred_leaders_is_one_look(looked):
    """Who could not be preferred then waits for the next round; who could is asked until it leads."""
    looking, _ = looked

    def led_by_second(number):
        state = looking.state(number)
        return encode(change(state, leader=state.in_sync[1], in_sync=state.in_sync))

    await looking.put(looking.key(0), led_by_second(0))
    looking.reconciler.note_rebalance()
    assert await looking.steps() == [(0, Step.PREFER)]
    looking.reconciler.note([looking.key(0)])
    assert await looking.steps() == [(0, Step.PREFER)]
    await looking.put(looking.key(1), led_by_second(1))
    looking.reconciler.note([looking.key(1)])
    assert await looking.steps() == []
