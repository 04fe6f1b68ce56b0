"""The asyncio classes on a fake cluster: the same meaning as the blocking ones, and cancelling loses nothing."""

import asyncio

import headrace
import headrace.aio
import pytest
from headrace.wire.errors import CorruptBatchError, UnknownTopicError

WAIT = 20
PARTITION = headrace.TopicPartition("t", 0)


async def test_records_go_out_and_come_back(fake_cluster):
    fake_cluster.create_topic("t", 2)
    async with headrace.aio.Producer(bootstrap_servers=fake_cluster.address) as producer:
        futures = [await producer.send("t", b"%d" % number, partition=number % 2) for number in range(1000)]
        places = [await future for future in futures]
        assert [place.offset for place in places] == [number // 2 for number in range(1000)]
        assert (await producer.send_and_wait("t", b"last", partition=0)).offset == 500
        many = await producer.send_many("t", [b"m"] * 100, partition=1)
        assert len(many) == 100
        assert sum(records for _, records in await many) == 100
        await producer.flush(WAIT)
    async with headrace.aio.Reader("t", bootstrap_servers=fake_cluster.address) as reader:
        found = [record async for record in reader]
    assert len(found) == 1101
    assert [record.value for record in found if record.partition == 0][:3] == [b"0", b"2", b"4"]


async def test_a_failure_is_raised_where_it_is_awaited(fake_cluster, faults, topic):
    producer = headrace.aio.Producer(bootstrap_servers=fake_cluster.address, max_block_ms=1500)
    await producer.send_and_wait("t", b"fine")
    fake_cluster.faults.append(faults.refused_with(CorruptBatchError("bad")))
    with pytest.raises(CorruptBatchError):
        await producer.send_and_wait("t", b"bad")
    with pytest.raises(UnknownTopicError):
        await producer.send("nowhere", b"x")
    with pytest.raises(headrace.DeliveryError):
        await producer.close(WAIT)


async def test_a_full_buffer_does_not_hold_up_the_loop(fake_cluster, topic):
    settings = {"buffer_memory": 64 * 1024, "batch_bytes": 16 * 1024}
    async with headrace.aio.Producer(bootstrap_servers=fake_cluster.address, **settings) as producer:
        await producer.send_and_wait("t", b"warm")
        fake_cluster.hold.clear()
        sending = asyncio.create_task(_send(producer, 200))
        while not await asyncio.to_thread(fake_cluster.arrived.acquire, timeout=0.01):
            pass
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0)
            ticks += 1
        assert ticks == 20
        assert not sending.done()
        fake_cluster.hold.set()
        await sending
    assert fake_cluster.topics["t"].partitions[0].end == 201


async def _send(producer, count):
    for _ in range(count):
        await producer.send("t", b"x" * 1000)


async def test_a_consumer_keeps_its_place_record_by_record(fake_cluster, topic):
    async with headrace.aio.Producer(bootstrap_servers=fake_cluster.address) as producer:
        await producer.send_many("t", [b"%d" % number for number in range(100)])
    async with headrace.aio.Consumer(
        "t", bootstrap_servers=fake_cluster.address, auto_offset_reset="earliest"
    ) as consumer:
        async for record in consumer:
            if record.offset == 9:
                break
        assert consumer.position(PARTITION) == 10
        assert consumer.lag()[PARTITION] == 90
        assert [record.offset for record in await consumer.poll(max_records=5)] == [10, 11, 12, 13, 14]
        consumer.seek(PARTITION, 50)
        assert consumer.position(PARTITION) == 50
        async for record in consumer:
            assert record.offset == 50
            break
        consumer.pause(PARTITION)
        assert len(await consumer.poll(timeout=0)) == 0
        consumer.resume(PARTITION)
        assert (await consumer.poll(timeout=WAIT, max_records=1))[0].offset == 51
        assert consumer.health().healthy
        assert consumer.assignment() == [PARTITION]


async def test_a_cancelled_poll_skips_nothing(fake_cluster, topic):
    """A task that is cancelled while it waits returns at once; the next poll gives the next record."""
    async with headrace.aio.Consumer(
        "t", bootstrap_servers=fake_cluster.address, auto_offset_reset="earliest"
    ) as consumer:
        waiting = asyncio.create_task(consumer.poll(timeout=None))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with headrace.aio.Producer(bootstrap_servers=fake_cluster.address) as producer:
            await producer.send_and_wait("t", b"0")
        assert [record.offset for record in await consumer.poll(timeout=WAIT)] == [0]


async def test_an_unopened_client_names_how_to_open_it(fake_cluster):
    with pytest.raises(headrace.ConfigError, match="async with"):
        await headrace.aio.Consumer("t").poll()
    with pytest.raises(headrace.ConfigError, match="blocking"):
        headrace.aio.Producer(return_futures=False)
