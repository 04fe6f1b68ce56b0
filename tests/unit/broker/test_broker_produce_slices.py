"""Large produce requests: others have the event loop in between, and a connection's own requests stay in order."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from headrace.partition.batch_checks import AppendResult
from headrace.partition.topic_configs import TopicConfig
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.errors import ErrorCode, NotLeaderError, Outcome, ShuttingDownError
from headrace.wire.zero_copy import SplicedMessage
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc.produce import SLICE_BATCHES, ProduceHandler
from headrace_broker.runtime.budget import MemoryBudget
from prometheus_client import CollectorRegistry

MIB = 1 << 20


class Log:
    """A partition that takes all batches at once, or says why not."""

    def __init__(self):
        self.batches = []
        self.slices = []
        self.epoch = 3
        self.end_at = None
        self.replica = self.appender = self

    def append_now(self, batches, known_epoch, *, committed):
        result = AppendResult(leader_epoch=self.epoch, append_timestamp_ms=len(self.slices))
        self.slices.append((len(batches), known_epoch))
        if known_epoch not in (-1, self.epoch):
            result.error = NotLeaderError("another epoch")
            return result
        for batch in batches:
            result.base_offsets.append(len(self.batches))
            self.batches.append(bytes(batch))
        if self.end_at is not None and len(self.batches) >= self.end_at:
            self.epoch += 1
        return result


class SlowLog(Log):
    """A partition whose appends last until `disk` is set."""

    def __init__(self):
        super().__init__()
        self.disk = asyncio.Event()

    def append_now(self, batches, known_epoch, *, committed):
        return None

    async def append(self, batches, known_epoch, *, committed):
        await self.disk.wait()
        return super().append_now(batches, known_epoch, committed=committed)

    def begin_append(self, batches, known_epoch, *, committed):
        return asyncio.create_task(self.append(batches, known_epoch, committed=committed))


class Broker:
    """A handler with as many partitions of topic `t` as are asked for."""

    def __init__(self, tasks):
        self.logs = {}
        metrics = BrokerMetrics(CollectorRegistry())
        settings = SimpleNamespace(max_request_partitions=10_000, max_request_batches=10_000)
        context = SimpleNamespace(metrics=metrics, settings=settings)
        self.view = self
        self.handler = ProduceHandler(self, MemoryBudget(1 << 30, metrics), context, tasks)

    def resolve(self, reference):
        return SimpleNamespace(name=reference.name, topic_id=b"t" * 16, config=TopicConfig())

    def find_in(self, topic, number):
        return self.logs.setdefault(number, Log())

    def with_leader_address(self, error):
        return error

    def produce(self, connection, batches, acks=broker_pb2.ACKS_LEADER):
        """Produce {partition: batches}."""
        topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name="t"))
        for number in batches:
            topic.partitions.add(partition=number)
        request = broker_pb2.ProduceRequest(acks=acks, timeout_ms=1_000, topics=[topic])
        return self.handler.produce(SplicedMessage(request, list(batches.values())), connection)


@pytest.fixture
@contextlib.asynccontextmanager
async def broker():
    async with asyncio.TaskGroup() as tasks:
        yield Broker(tasks)


@pytest.mark.parametrize("acks", [broker_pb2.ACKS_LEADER, broker_pb2.ACKS_NONE])
async def test_others_have_the_loop_beside_a_large_request_and_its_own_connection_stays_in_order(acks):
    """Partition 999 is the large request's last: another connection comes before it there, its own ones do not."""
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(tasks)
        large = asyncio.create_task(broker.produce("a", {number: [b"1"] for number in range(1_000)}, acks))
        await asyncio.sleep(0)
        own = [asyncio.create_task(broker.produce("a", {999: [b"%d" % turn]}, acks)) for turn in (2, 3)]
        other = asyncio.create_task(broker.produce("b", {999: [b"other"]}, acks))
        await asyncio.gather(large, *own, other)
    assert broker.logs[999].batches == [b"other", b"1", b"2", b"3"]
    assert not broker.handler._turns.must_wait("a")


async def test_a_request_that_waits_for_a_slow_partition_is_not_overtaken_in_its_others(broker):
    """The next request of the connection would be out of order there; nor does one of another partition wait."""
    slow, other_slow = broker.logs[0], broker.logs[2] = SlowLog(), SlowLog()
    first = asyncio.create_task(broker.produce("a", {0: [b"1"], 1: [b"1"], 2: [b"1"]}))
    await asyncio.sleep(0)
    await broker.produce("a", {1: [b"2"]})
    assert broker.logs[1].batches == [b"1", b"2"]
    other_slow.disk.set()
    await broker.produce("a", {2: [b"2"]})
    assert not first.done()
    slow.disk.set()
    assert [list(part.base_offsets) for part in (await first).topics[0].partitions] == [[0], [0], [0]]
    assert (slow.batches, other_slow.batches) == ([b"1"], [b"1", b"2"])


@pytest.mark.parametrize("error", [NotLeaderError("it moved"), ValueError("unexpected")])
async def test_an_error_of_one_slow_append_leaves_the_others(broker, error):
    """The call ends only when all of them have: their batches are in memory until then."""
    failing, slow = broker.logs[0], broker.logs[1] = SlowLog(), SlowLog()
    failing.begin_append = lambda *_, **__: asyncio.get_running_loop().create_task(fail())

    async def fail():
        raise error

    call = asyncio.create_task(broker.produce("a", {0: [b"1"], 1: [b"1"]}))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    assert broker.handler._budget.used_bytes == 2
    slow.disk.set()
    if isinstance(error, ValueError):
        with pytest.raises(ValueError, match="unexpected"):
            await call
    else:
        refused, appended = (await call).topics[0].partitions
        assert refused.error.code == ErrorCode.NOT_LEADER
        assert list(appended.base_offsets) == [0]
    assert broker.handler._budget.used_bytes == 0


async def test_a_call_that_is_cancelled_ends_once_its_slow_appends_have(broker):
    """Their memory is counted until then."""
    slow = broker.logs[0] = broker.logs[1] = SlowLog()
    call = asyncio.create_task(broker.produce("a", {0: [b"1"], 1: [b"1"]}))
    await asyncio.sleep(0)
    call.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    slow.disk.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert slow.batches == [b"1", b"1"]
    assert broker.handler._budget.used_bytes == 0


async def test_many_batches_of_one_partition_are_appended_in_slices(broker):
    """All of them, in order, under the epoch of the first; large ones by their bytes."""
    batches = [b"%d" % number for number in range(3 * SLICE_BATCHES + 1)]
    answer = await broker.produce("a", {0: batches, 1: [bytes(3 * MIB)] * 3})
    log = broker.logs[0]
    assert log.batches == batches
    assert log.slices == [(SLICE_BATCHES, -1), *[(SLICE_BATCHES, 3)] * 2, (1, 3)]
    assert broker.logs[1].slices == [(1, -1), (1, 3), (1, 3)]
    first, second = answer.topics[0].partitions
    assert list(first.base_offsets) == list(range(len(batches)))
    assert len(second.base_offsets) == 3
    assert not first.HasField("error")


async def test_an_epoch_that_ends_between_two_slices_ends_the_append(broker):
    """What was appended before is told, and nothing is behind the gap."""
    broker.find_in(None, 0).end_at = 2 * SLICE_BATCHES
    answer = await broker.produce("a", {0: [b"x"] * (4 * SLICE_BATCHES)})
    (result,) = answer.topics[0].partitions
    assert len(result.base_offsets) == len(broker.logs[0].batches) == 2 * SLICE_BATCHES
    assert result.HasField("error")
    assert result.append_timestamp_ms == 1


async def test_a_large_request_that_is_cancelled_lets_the_next_one_run(broker):
    """Its connection is not held up."""
    large = asyncio.create_task(broker.produce("a", {number: [b"1"] for number in range(1_000)}))
    await asyncio.sleep(0)
    large.cancel()
    await broker.produce("a", {999: [b"2"]})
    assert broker.logs[999].batches == [b"2"]
    assert broker.handler._budget.used_bytes == 0


async def test_records_without_acknowledgement_are_refused_by_a_broker_that_ends():
    """It is the broker's tasks that append them, and it begins none once one has failed."""
    refused, broker = None, None
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            broker = Broker(tasks)

            async def fail():
                raise ValueError

            tasks.create_task(fail())
            try:
                await asyncio.sleep(60)
            finally:
                with pytest.raises(ShuttingDownError) as refused:
                    await broker.produce("a", {0: [b"x"]}, acks=broker_pb2.ACKS_NONE)
    assert refused is not None
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert broker.handler._budget.used_bytes == 0
