"""How far groups and readers are behind, measured by the controller from what leaders say."""

import asyncio
from collections import Counter
from itertools import count

import grpc
from headrace.v1 import broker_pb2
from headrace.wire.ids import TopicId
from headrace_coordinator.runtime import group_lag
from headrace_coordinator.runtime.group_lag import GroupLag
from headrace_coordinator.runtime.group_view import GroupView
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Put
from headrace_server.metastore.view import PrefixView
from headrace_server.methods import METHODS
from headrace_server.partition_state import PartitionState, Replica, encode
from headrace_server.requests import RequestReader

from tests.fakes.manual_clock import ManualClock
from tests.unit.coordinator.parts import make_parts

TOPIC = TopicId(bytes(range(16)))
NOW_MS = ManualClock().now_ms()
READER = RequestReader(
    "ListOffsets",
    METHODS["/headrace.v1.BrokerService/ListOffsets"],
    broker_pb2.ListOffsetsRequest.FromString,
    broker_pb2.ListOffsetsRequest.DESCRIPTOR,
)
"""Raises where a broker refuses the request."""


class Leaders:
    """Brokers by address: for each partition the log start, the end, and when all of it was appended."""

    def __init__(self):
        self.logs = {}
        self.controller = True
        self.asked = []

    async def ask(self, address, request):
        READER.read(request.SerializeToString(), "controller")
        self.asked.append(address)
        response = broker_pb2.ListOffsetsResponse()
        for topic in request.topics:
            result = response.topics.add()
            for asked in topic.partitions:
                log = self.logs.get((address, asked.partition))
                if log is None:
                    raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
                start, end, appended_ms = log
                first = max(start, asked.offset)
                if asked.spec == broker_pb2.OFFSET_SPEC_LATEST or first >= end:
                    result.partitions.add(partition=asked.partition, offset=end, timestamp_ms=-1)
                else:
                    result.partitions.add(partition=asked.partition, offset=first, timestamp_ms=appended_ms)
        return response


def offset_of(offset):
    return metadata_pb2.CommittedOffset(offset=offset).SerializeToString()


async def make_lag(parts, leaders, committed):
    """Two brokers that each lead a partition of `clicks`, groups with offsets."""
    memory, keys = parts.memory, parts.keyspace
    for broker_id in (1, 2):
        await parts.register(broker_id, internal_address=f"b{broker_id}:1", address="outside:1")
    topic = metadata_pb2.Topic(name="clicks", topic_id=TOPIC, partitions=2, replication_factor=1)
    operations = [
        Put(keys.topic_by_id(TOPIC), topic.SerializeToString()),
        Put(keys.topic("clicks"), topic.SerializeToString()),
    ]
    for number in (0, 1):
        leader = Replica(number + 1, 1)
        state = PartitionState(replicas=(number + 1,), leader=leader, leader_epoch=0, in_sync=(leader,))
        operations.append(Put(keys.partition(TOPIC, number), encode(state)))
    for (group, number), offset in committed.items():
        operations.append(Put(keys.group_offset(group, TOPIC, number), offset_of(offset)))
    result = await memory.txn([], operations)
    await parts.prefix_view.wait_for(result.revision, 10)
    source = PrefixView(parts.metastore, keys.groups_prefix, ManualClock())
    await source.load()
    return GroupLag(
        parts.view,
        GroupView(keys, source),
        parts.metrics,
        ManualClock(),
        interval_ms=1,
        is_controller=lambda: leaders.controller,
        ask=leaders.ask,
    )


def measure(leaders, committed):
    """One round; what was found."""

    async def run():
        async with make_parts() as parts:
            lag = await make_lag(parts, leaders, committed)
            await lag.turn()
            return parts.metrics.lags.round

    return asyncio.run(run())


def test_lag_is_in_records_and_since_the_first_of_them_came():
    """Each leader is asked once, at its address for the cluster; what is read to its end has no lag."""
    leaders = Leaders()
    leaders.logs = {("b1:1", 0): (0, 50, NOW_MS - 7_000), ("b2:1", 1): (0, 20, NOW_MS - 90_000)}
    found = measure(leaders, {("g", 0): 10, ("g", 1): 20})
    (lag,) = found.lags
    assert (lag.group, lag.topic, lag.lag_records, lag.lag_seconds) == ("g", "clicks", 40, 7.0)
    assert [(part.partition, part.offset, part.lag_records) for part in lag.partitions] == [(0, 10, 40), (1, 20, 0)]
    assert sorted(leaders.asked) == ["b1:1", "b2:1"]
    assert found.groups[0].unknown_partitions == 0


def test_deleted_records_are_no_lag():
    """A group whose offset is before the log start lags only by the records that exist."""
    leaders = Leaders()
    leaders.logs = {("b1:1", 0): (30, 50, NOW_MS - 1_000)}
    (lag,) = measure(leaders, {("g", 0): 10}).lags
    assert lag.lag_records == 20


def test_a_leader_that_does_not_answer_makes_lag_unknown_and_not_zero():
    """The other leaders' partitions are known, and all committed offsets."""
    leaders = Leaders()
    leaders.logs = {("b1:1", 0): (0, 50, NOW_MS)}
    found = measure(leaders, {("g", 0): 10, ("g", 1): 10})
    (lag,) = found.lags
    assert [(part.partition, part.lag_records) for part in lag.partitions] == [(0, 40), (1, None)]
    assert lag.lag_records == 40
    assert found.groups[0].unknown_partitions == 1


def exported(collected):
    """Series by name, of those with a topic."""
    return {sample.name: sample.value for family in collected for sample in family.samples if "topic" in sample.labels}


def test_offsets_of_a_group_stay_whole_while_a_leader_does_not_answer():
    """The sum must not fall and rise by the partitions of a leader that restarts: that would be a rate of commits."""
    leaders, committed = Leaders(), {("g", 0): 10, ("g", 1): 1_000}

    async def run():
        async with make_parts() as parts:
            lag, offsets = await make_lag(parts, leaders, committed), []
            for logs in (
                {("b1:1", 0): (0, 50, NOW_MS), ("b2:1", 1): (0, 1_000, NOW_MS)},
                {("b1:1", 0): (0, 50, NOW_MS)},
            ):
                leaders.logs = logs
                await lag.turn()
                offsets.append(exported(parts.metrics.lags.collect())["headrace_coordinator_group_offset"])
            assert offsets == [1_010, 1_010]

    asyncio.run(run())


def test_a_topic_of_which_no_leader_answers_has_offsets_and_no_lag():
    """A lag of 0 would say that the group has read everything."""

    async def run():
        async with make_parts() as parts:
            lag = await make_lag(parts, Leaders(), {("g", 0): 10})
            await lag.turn()
            lags = parts.metrics.lags
            assert exported(lags.collect()) == {"headrace_coordinator_group_offset": 10}
            assert exported(lags.detail()) == {"headrace_coordinator_group_partition_offset": 10}
            assert lags.round.groups[0].unknown_partitions == 1

    asyncio.run(run())


def test_series_are_bounded_and_the_furthest_behind_are_shown(monkeypatch):
    """What is left out is counted."""
    monkeypatch.setattr(group_lag, "MAX_LAGS", 2)
    leaders = Leaders()
    leaders.logs = {("b1:1", 0): (0, 50, NOW_MS)}
    found = measure(leaders, {("near", 0): 49, ("far", 0): 1, ("farther", 0): 0})
    assert [lag.group for lag in found.lags] == ["farther", "far"]
    assert (found.omitted_lags, found.omitted_groups) == (1, 1)


def test_a_measurement_lets_others_run_between_offsets(monkeypatch):
    """Of millions, which would keep the event loop for seconds."""
    every, leaders, seen = 10, Leaders(), Counter()
    monkeypatch.setattr(group_lag, "LIGHTEST_ITEMS_PER_TURN", every, raising=False)
    leaders.logs = {("b1:1", 0): (0, 50, NOW_MS), ("b2:1", 1): (0, 50, NOW_MS)}
    committed = {(f"g{group}", number): group for group in range(40) for number in (0, 1)}

    async def run():
        async with make_parts() as parts:
            lag = await make_lag(parts, leaders, committed)
            loop, turns = asyncio.get_running_loop(), count()
            turn = next(turns)

            def tick():
                nonlocal turn
                turn = next(turns)
                ticking[0] = loop.call_soon(tick)

            def noted(call):
                def look(*arguments):
                    seen[call.__name__, turn] += 1
                    return call(*arguments)

                return look

            ticking = [loop.call_soon(tick)]
            monkeypatch.setattr(parts.view, "partition", noted(parts.view.partition))
            monkeypatch.setattr(group_lag._Answers, "lag", noted(group_lag._Answers.lag))
            await lag.turn()
            ticking[0].cancel()
            return parts.metrics.lags.round

    assert len(asyncio.run(run()).lags) == 40
    assert sum(seen.values()) == 80 + 2 + 80
    assert max(seen.values()) <= every


def test_only_the_controller_shows_lags():
    """One that is not it any more forgets what it measured, so that no two say it."""
    leaders = Leaders()
    leaders.logs = {("b1:1", 0): (0, 50, NOW_MS)}

    def shown(collector):
        samples = [sample for family in [*collector.collect(), *collector.detail()] for sample in family.samples]
        return {sample.name for sample in samples if sample.labels.get("group") == "g"}

    async def run():
        async with make_parts() as parts:
            lag = await make_lag(parts, leaders, {("g", 0): 1})
            await lag.turn()
            assert {
                "headrace_coordinator_group_lag_records",
                "headrace_coordinator_group_lag_seconds",
                "headrace_coordinator_group_size",
                "headrace_coordinator_group_partition_lag_records",
            } <= shown(parts.metrics.lags)
            leaders.controller = False
            await lag.turn()
            assert shown(parts.metrics.lags) == set()

    asyncio.run(run())
