"""The asyncio producer on a fake cluster behind real gRPC: order, faults, bounds, cancelling, ends."""

import asyncio

import headrace
import headrace.aio
import pytest
from headrace.wire.errors import UnknownPartitionError, UnknownTopicError

FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
WAIT = 30


def producer_for(fake, **settings):
    return headrace.aio.Producer(bootstrap_servers=fake.address, **{**FAST, **settings})


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_lost_order_holds_and_nothing_is_duplicated(fake_cluster, faults, seed):
    """Order and exactly once under lost answers, lost requests, refusals and hints (PROTOCOL I20, I21)."""
    topic = fake_cluster.create_topic("t", 2)
    fake_cluster.faults.extend(faults.drawn(seed))
    async with producer_for(fake_cluster, batch_records=7, linger_ms=0) as producer:
        for number in range(1500):
            await producer.send("t", b"%d" % number, partition=number % 2)
    for number, partition in enumerate(topic.partitions):
        assert partition.values() == [b"%d" % value for value in range(number, 1500, 2)]


async def test_every_send_returns_a_future_that_can_be_awaited(fake_cluster, topic):
    """With and without a key, a header or an open batch, and of `send_many`."""
    async with producer_for(fake_cluster) as producer:
        sends = [{}, {}, {"key": b"k"}, {"key": b"k"}, {"headers": [("h", b"1")]}]
        futures = [await producer.send("t", b"%d" % number, **more) for number, more in enumerate(sends)]
        many = await producer.send_many("t", [b"5", b"6"])
        assert {type(future) for future in (*futures, many.parts[0][0])} == {headrace.aio.RecordFuture}
        assert [(await future).offset for future in futures] == [0, 1, 2, 3, 4]
        assert [(where.offset, records) for where, records in await many] == [(5, 2)]
        assert many.done()
        assert repr(many) == "BatchFuture(2 records, done)"
    assert topic.partitions[0].values() == [b"%d" % number for number in range(7)]


async def test_a_cancelled_send_that_waited_for_room_was_not_taken(fake_cluster, topic):
    """Cancelling takes a record whole or not at all, and gives its memory back; the others arrive in order."""
    settings = {"buffer_memory": 64 * 1024, "batch_bytes": 16 * 1024}
    async with producer_for(fake_cluster, **settings) as producer:
        await producer.send_and_wait("t", b"warm")
        fake_cluster.hold.clear()
        futures = []

        async def fill():
            for number in range(1000):
                futures.append(await producer.send("t", b"%04d" % number + b"x" * 1000))

        filling = asyncio.create_task(fill())
        await until(lambda: producer._core.buffer_pool.waiters)
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        waiting = asyncio.ensure_future(futures[0])
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        fake_cluster.hold.set()
        await producer.flush(WAIT)
        assert 0 < len(futures) < 1000
        assert (await futures[0]).offset == 1
        assert producer._core.buffer_pool.used == 0
    values = topic.partitions[0].values()[1:]
    assert [value[:4] for value in values] == [b"%04d" % number for number in range(len(values))]


async def test_a_send_that_need_not_wait_cannot_be_cancelled_out_of_its_memory(fake_cluster, topic):
    """Between taking memory and appending nothing is awaited: what was taken from the buffer pool comes back."""
    async with producer_for(fake_cluster) as producer:
        await producer.send_and_wait("t", b"warm")
        sending = asyncio.create_task(producer.send("t", b"x"))
        await asyncio.sleep(0)
        sending.cancel()
        assert (await (await sending)).offset == 1
        await producer.flush(WAIT)
        assert producer._core.buffer_pool.used == 0


async def until(condition):
    while not condition():  # noqa: ASYNC110  (what it looks at belongs to the code under test)
        await asyncio.sleep(0.001)


async def test_a_cancelled_flush_loses_nothing(fake_cluster, topic):
    async with producer_for(fake_cluster, linger_ms=60_000) as producer:
        await producer.send_and_wait("t", b"warm")
        fake_cluster.hold.clear()
        await producer.send("t", b"held")
        flushing = asyncio.create_task(producer.flush())
        await until(lambda: producer._io.calls)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        fake_cluster.hold.set()
        await producer.flush(WAIT)
    assert topic.partitions[0].values() == [b"warm", b"held"]


async def test_calls_that_could_not_begin_are_not_kept(fake_cluster, topic):
    """transport='native', and metadata names no address: each try fails before anything is sent."""
    producer = producer_for(fake_cluster, transport="native", delivery_timeout_ms=300)
    with pytest.raises(headrace.HeadraceError):
        await producer.send_and_wait("t", b"never")
    assert not producer._io.calls
    with pytest.raises(headrace.DeliveryError):
        await producer.close()


async def test_the_buffer_is_bounded_and_says_so(fake_cluster, topic):
    settings = {"buffer_memory": 128 * 1024, "batch_bytes": 32 * 1024, "max_block_ms": 1000}
    async with producer_for(fake_cluster, **settings) as producer:
        await producer.send_and_wait("t", b"warm")
        fake_cluster.hold.clear()
        with pytest.raises(headrace.BufferFullError):
            for _ in range(1000):
                await producer.send("t", b"x" * 1000)
        with pytest.raises(headrace.BufferFullError):
            await producer.send_many("t", [b"x" * 1000] * 1000)
        assert producer._core.buffer_pool.used <= 128 * 1024
        fake_cluster.hold.set()
        await producer.flush(WAIT)


async def test_close_returns_while_the_broker_hangs_and_resolves_every_future(fake_cluster, topic):
    """Also what waits for room ends, and closing again waits for nothing."""
    producer = producer_for(fake_cluster, buffer_memory=64 * 1024, batch_bytes=16 * 1024)
    await producer.send_and_wait("t", b"warm")
    fake_cluster.hold.clear()
    futures = []

    async def fill():
        while True:
            futures.append(await producer.send("t", b"x" * 1000))

    filling = asyncio.create_task(fill())
    await until(lambda: producer._core.buffer_pool.waiters)
    with pytest.raises(headrace.DeliveryError):
        await producer.close(timeout=0.1)
    with pytest.raises(headrace.ClosedError):
        await filling
    for future in futures:
        with pytest.raises(headrace.HeadraceError):
            await future
    with pytest.raises(headrace.ClosedError):
        await producer.send("t", b"late")
    await producer.close()
    fake_cluster.hold.set()


async def test_a_cancelled_close_has_closed(fake_cluster, topic):
    producer = producer_for(fake_cluster)
    await producer.send_and_wait("t", b"warm")
    fake_cluster.hold.clear()
    future = await producer.send("t", b"stuck")
    closing = asyncio.create_task(producer.close())
    await until(lambda: producer._io.calls)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(headrace.ClosedError):
        await future
    await producer.close()
    fake_cluster.hold.set()


async def test_wrong_input_is_refused_at_the_call(fake_cluster, topic):
    with pytest.raises(headrace.ConfigError, match="linger_ms"):
        producer_for(fake_cluster, linger=3)
    async with producer_for(fake_cluster, max_block_ms=1500) as producer:
        with pytest.raises(headrace.SerializationError, match="value_serializer"):
            await producer.send("t", "text")
        with pytest.raises(UnknownPartitionError, match="0 to 0, not 7"):
            await producer.send("t", b"x", partition=7)
        with pytest.raises(UnknownTopicError):
            await producer.send("nowhere", b"x")
        assert await producer.partitions_for("t") == 1
    with pytest.raises(headrace.NoBrokersAvailableError) as caught:
        async with headrace.aio.Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=200, **FAST) as producer:
            await producer.send("t", b"x")
    assert set(caught.value.causes) == {"127.0.0.1:1"}


async def test_a_coordinator_that_is_away_is_waited_for(fake_cluster, topic):
    """Without a producer id nothing is sent; it is asked for again until it comes."""
    fake_cluster.coordinator_down = True
    async with producer_for(fake_cluster) as producer:
        future = await producer.send("t", b"x")
        await until(lambda: fake_cluster.calls["InitProducerId"] >= 3)
        assert not future.done()
        fake_cluster.coordinator_down = False
        assert (await future).offset == 0
    assert topic.partitions[0].values() == [b"x"]
