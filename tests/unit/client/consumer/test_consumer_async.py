"""The asyncio Consumer and Reader against the cluster over lists."""

import asyncio

import headrace
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.wire.columns import encode_batch
from headrace.wire.errors import (
    CorruptBatchError,
    InternalError,
    TimedOutError,
    UnknownPartitionError,
    UnknownTopicError,
)

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
WAIT = 30


def batch(*values, time_ms=1_000):
    return encode_batch([value.encode() for value in values], base_timestamp_ms=time_ms)


def fill(fake, count, partition=0, size=10):
    for base in range(0, count, size):
        fake.append("clicks", batch(*(f"{n}" for n in range(base, min(base + size, count)))), partition)


def corruption(fake, index):
    log = fake.topics["clicks"].partitions[0]
    header, stored = log.batches[index]
    log.batches[index] = (header, stored[:-1] + bytes([stored[-1] ^ 1]))


def consumer_for(fake, *topics, **settings):
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, **settings}
    return headrace.aio.Consumer(*topics, bootstrap_servers=fake.address, **settings)


async def take(consumer, count):
    return [await anext(consumer) for _ in range(count)]


async def test_the_position_is_exact_in_the_middle_of_a_batch(clicks):
    """After each record the position is the next one's offset; poll, seek and pause continue from exactly there."""
    fill(clicks, 30)
    async with consumer_for(clicks) as consumer:
        await consumer.assign([P0])
        expected = 0
        async for record in consumer:
            assert record.offset == expected
            expected += 1
            assert consumer.position(P0) == expected
            assert consumer.lag()[P0] == 30 - expected
            if expected == 13:
                break
        assert [record.offset for record in await consumer.poll(5, max_records=3)] == [13, 14, 15]
        consumer.pause(P0)
        assert consumer.paused() == [P0]
        consumer.resume(P0)
        assert (await anext(consumer)).offset == 16
        consumer.seek(P0, 2)
        assert [record.offset for record in await take(consumer, 3)] == [2, 3, 4]
        await consumer.seek_to_end()
        assert consumer.position(P0) == 30


async def test_a_cancelled_wait_can_be_made_again(clicks):
    """Cancelled polls and iterations receive nothing and break nothing: every record comes once, in order."""
    async with consumer_for(clicks, "clicks") as consumer:
        seen = []
        for round_ in range(20):
            waiting = asyncio.ensure_future(anext(consumer) if round_ % 2 else consumer.poll(None, max_records=1))
            for _ in range(round_):
                await asyncio.sleep(0)
            if round_ % 3 == 0:
                clicks.append("clicks", batch(f"{round_}"))
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                found = waiting.result()
                seen.append(found.offset if isinstance(found, headrace.Record) else found[0].offset)
        left = clicks.topics["clicks"].partitions[0].end - len(seen)
        seen += [record.offset for record in await take(consumer, left)]
        assert seen == list(range(len(seen)))
        assert len(seen) == 7


async def test_a_poll_that_finds_records_cannot_be_cancelled_out_of_them(clicks):
    """Between taking records and giving them nothing is awaited."""
    fill(clicks, 10)
    async with consumer_for(clicks, "clicks") as consumer:
        while not consumer._core.fetcher.positions.has_completed_fetches():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        polling = asyncio.create_task(consumer.poll(None, max_records=1))
        await asyncio.sleep(0)
        polling.cancel()
        assert [record.offset for record in await polling] == [0]


@pytest.mark.parametrize("how", ["iterate", "poll", "poll some"])
async def test_a_corrupt_batch_names_itself_and_hides_nothing_before_it(clicks, how):
    """Corrupt bytes are never delivered, all records before them are, and a seek continues after them (I17)."""
    fill(clicks, 30)
    corruption(clicks, 1)
    async with consumer_for(clicks) as consumer:
        await consumer.assign([P0])
        seen = []
        with pytest.raises(CorruptBatchError) as caught:
            while True:
                if how == "iterate":
                    seen.append(await anext(consumer))
                else:
                    seen += await consumer.poll(5, max_records=None if how == "poll" else 25)
        assert [record.offset for record in seen] == list(range(10))
        assert caught.value.next_offset == 20
        consumer.seek(P0, 20)
        assert [record.offset for record in await take(consumer, 10)] == list(range(20, 30))


async def test_a_reader_raises_at_corruption_after_what_is_before_it(clicks):
    fill(clicks, 30)
    corruption(clicks, 1)
    async with headrace.aio.Reader("clicks", bootstrap_servers=clicks.address, partitions=[0]) as reader:
        seen = []
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                async for record in reader:
                    seen.append(record.offset)
        assert seen == list(range(10))


async def test_an_unreadable_value_is_passed_by_the_next_call(clicks):
    headers = [[("n", b"%d" % number)] for number in range(3)]
    clicks.append("clicks", encode_batch([b"[1]", b"nonsense", b"[3]"], base_timestamp_ms=1, headers=headers))
    async with consumer_for(clicks, "clicks", value_deserializer="json") as consumer:
        assert (await anext(consumer)).value == [1]
        with pytest.raises(headrace.SerializationError, match="clicks"):
            await anext(consumer)
        record = await anext(consumer)
        assert (record.offset, record.value, record.headers) == (2, [3], (("n", b"2"),))


async def test_wakeup_and_close_end_a_wait(clicks):
    async with consumer_for(clicks, "clicks") as consumer:
        waiting = asyncio.create_task(consumer.poll(None))
        await asyncio.sleep(0)
        with pytest.raises(headrace.ConfigError, match="another task"):
            await consumer.poll(0)
        consumer.wakeup()
        with pytest.raises(headrace.WakeupError):
            await waiting
        clicks.append("clicks", batch("x"))
        assert (await anext(consumer)).value == b"x"
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(headrace.ClosedError):
            await waiting
        with pytest.raises(headrace.ClosedError):
            await consumer.poll(0)
        assert not consumer.health().healthy


async def test_new_partitions_and_lost_positions(clicks):
    """A partition added is read from its start; a position that retention took is reset as set."""
    fill(clicks, 30)
    clicks.topics["clicks"].partitions[0].start = 10
    async with consumer_for(clicks, "clicks", metadata_max_age_ms=100) as consumer:
        await take(consumer, 20)
        consumer.seek(P0, 3)
        assert (await anext(consumer)).offset == 10
        await consumer.seek_to_end()
        topic = clicks.topics["clicks"]
        topic.partitions.append(type(topic.partitions[0])())
        clicks.append("clicks", batch("new"), partition=2)
        record = await anext(consumer)
        assert (record.partition, record.offset) == (2, 0)


async def test_a_reader_reads_a_part_and_ends(clicks):
    fill(clicks, 30)
    fill(clicks, 7, partition=1)
    async with headrace.aio.Reader("clicks", bootstrap_servers=clicks.address, last_per_partition=5) as reader:
        assert reader.end_offsets() == {P0: 30, P1: 7}
        assert sorted([(r.partition, r.offset) async for r in reader])[:5] == [(0, n) for n in range(25, 30)]
    async with headrace.aio.Reader("clicks", bootstrap_servers=clicks.address, start=25) as reader:
        assert (await reader.to_arrow()).column("offset").to_pylist() == list(range(25, 30))
    async with headrace.aio.Reader("clicks", bootstrap_servers=clicks.address) as reader:
        assert sum([len(batch) async for batch in reader.batches()]) == 37
    async with headrace.aio.Reader("clicks", bootstrap_servers=clicks.address, end={0: 30, 1: 7}) as reader:
        clicks.topics["clicks"].partitions[0].batches.clear()
        with pytest.raises(TimedOutError):
            await reader.read(timeout=0.05)


async def test_bad_calls_are_refused(clicks):
    with pytest.raises(UnknownTopicError):
        async with consumer_for(clicks, "nothing"):
            pass
    with pytest.raises(headrace.ConfigError, match="auto_offset_reset"):
        consumer_for(clicks, auto_ofset_reset="earliest")
    async with consumer_for(clicks) as consumer:
        with pytest.raises(UnknownPartitionError):
            await consumer.assign([TopicPartition("clicks", 7)])
        with pytest.raises(headrace.ConfigError, match="nothing"):
            await consumer.poll(0)
    with pytest.raises(headrace.ConfigError, match="last"):
        headrace.aio.Reader("clicks", bootstrap_servers=clicks.address, last_per_partition=0)
    with pytest.raises(headrace.NoBrokersAvailableError):
        async with headrace.aio.Consumer("clicks", bootstrap_servers="127.0.0.1:1", request_timeout_ms=1000):
            pass


async def test_a_truncation_and_a_repaired_corruption_are_told_as_by_the_blocking_class(clicks):
    """Corruption in transit raises no error; replaced records raise one with the offset to continue from."""
    log = clicks.topics["clicks"].partitions[0]
    fill(clicks, 30)
    log.spoiled = 2
    async with consumer_for(clicks) as consumer:
        await consumer.assign([P0])
        assert [record.offset for record in await take(consumer, 30)] == list(range(30))
        assert log.corruption_reported == 2
        log.truncate(20)
        with pytest.raises(headrace.LogTruncationError) as caught:
            await take(consumer, 1)
        consumer.seek(P0, caught.value.diverging_offset)
        clicks.append("clicks", batch("new"))
        assert (await take(consumer, 1))[0][1:3] == (0, 20)


@pytest.mark.parametrize("broken", ["give_up_overdue", "take_answer"])
async def test_a_bug_in_a_background_task_reaches_the_application(clicks, monkeypatch, broken):
    """An unexpected error ends the consumer with that error, not an endless wait."""

    def bug(*args):
        raise RuntimeError("a bug")

    async with consumer_for(clicks, "clicks") as consumer:
        monkeypatch.setattr(consumer._core.fetcher.engine.fetches, broken, bug)
        with pytest.raises(InternalError, match="a bug"):
            await consumer.poll(WAIT)
