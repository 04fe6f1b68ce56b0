"""Producers and consumers, blocking and asyncio, while leaders die, hang and move: behind real gRPC, two brokers."""

import asyncio
import threading

import headrace
import headrace.aio
import headrace.client.producer.sender
import pytest
from headrace import TopicPartition
from headrace.wire.columns import encode_batch
from headrace.wire.errors import InternalError, NotLeaderError, Outcome

P0 = TopicPartition("t", 0)
WAIT = 20
"""In seconds; far less than request_timeout_ms, after which a call without an answer times out."""


@pytest.fixture
def brokers(two_brokers):
    two_brokers[0].create_topic("t")
    return two_brokers


def both(brokers):
    return {"bootstrap_servers": [broker.address for broker in brokers]}


def values(broker):
    return broker.topics["t"].partitions[0].values()


def numbers(count):
    return [b"%d" % number for number in range(count)]


def append(broker, first, count):
    broker.append("t", encode_batch([b"%d" % number for number in range(first, first + count)], base_timestamp_ms=1))


def die(first, second):
    """The leader's connections break, and its port refuses new ones."""
    first.stop()
    second.move_leader("t", 2)


def hang(first, second):
    """The leader keeps its connections and answers no call."""
    second.move_leader("t", 2)


def move_back_and_forth(first, second):
    """Two leaders in a row, both alive."""
    for leader in (2, 1, 2):
        second.move_leader("t", leader)
    first.hold.set()


FATES = pytest.mark.parametrize("fate", [die, hang, move_back_and_forth])


@FATES
def test_a_producer_follows_the_leader_in_order_once(brokers, fate):
    """With requests in flight at the old leader, which may append them late or not at all (I20, I21)."""
    first, second = brokers
    with headrace.Producer(**both(brokers), batch_records=10, linger_ms=0) as producer:
        producer.send("t", b"0").result(WAIT)
        while first.arrived.acquire(blocking=False):
            pass
        first.hold.clear()
        futures = [producer.send("t", value) for value in numbers(200)[1:]]
        assert first.arrived.acquire(timeout=WAIT)
        fate(first, second)
        assert [future.result(WAIT).offset for future in futures] == list(range(1, 200))
        first.hold.set()
        producer.send("t", b"200").result(WAIT)
    assert values(second) == numbers(201)


@FATES
async def test_an_asyncio_producer_follows_the_leader_in_order_once(brokers, fate):
    """The same decisions on a loop."""
    first, second = brokers
    async with headrace.aio.Producer(**both(brokers), batch_records=10, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"0")
        while first.arrived.acquire(blocking=False):
            pass
        first.hold.clear()
        futures = [await producer.send("t", value) for value in numbers(200)[1:]]
        assert await asyncio.to_thread(first.arrived.acquire, timeout=WAIT)
        await asyncio.to_thread(fate, first, second)
        assert [(await future).offset for future in futures] == list(range(1, 200))
        first.hold.set()
    assert values(second) == numbers(200)


@FATES
def test_a_consumer_follows_the_leader_and_misses_nothing(brokers, fate):
    first, second = brokers
    append(first, 0, 10)
    with headrace.Consumer("t", **both(brokers), auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        seen = list(consumer.poll(WAIT, max_records=10))
        first.hold.clear()
        fate(first, second)
        append(second, 10, 10)
        while len(seen) < 20:
            seen += consumer.poll(WAIT)
        first.hold.set()
        assert [(record.offset, record.value) for record in seen] == list(enumerate(numbers(20)))
        assert not consumer.poll(0)


@FATES
async def test_an_asyncio_consumer_follows_the_leader_and_misses_nothing(brokers, fate):
    first, second = brokers
    append(first, 0, 10)
    settings = {**both(brokers), "auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
    async with headrace.aio.Consumer("t", **settings) as consumer:
        seen = list(await consumer.poll(WAIT, max_records=10))
        first.hold.clear()
        await asyncio.to_thread(fate, first, second)
        append(second, 10, 10)
        while len(seen) < 20:
            seen += await consumer.poll(WAIT)
        first.hold.set()
        assert [(record.offset, record.value) for record in seen] == list(enumerate(numbers(20)))


def test_a_server_that_hangs_costs_a_client_no_more_than_a_try(brokers):
    """Metadata comes from the next address: the first one keeps the connection and says nothing."""
    first, second = brokers
    second.move_leader("t", 2)
    first.hold.clear()
    with headrace.Producer(**both(brokers), max_block_ms=WAIT * 1000) as producer:
        assert producer.send("t", b"0").result(WAIT).offset == 0
    assert values(second) == [b"0"]


def test_while_there_is_no_leader_one_thread_asks_for_metadata(brokers):
    """The pace does not fall however long it takes, and is one for all partitions; then all goes out."""
    first, _ = brokers
    first.create_topic("many", 20)
    first.leaderless.update(("many", number) for number in range(20))
    with headrace.Producer(**both(brokers)) as producer:
        futures = [producer.send("many", b"%d" % number, partition=number) for number in range(20)]
        asked = threading.Event()
        before = first.calls["GetMetadata"]

        def count(*args, **more):
            if first.calls["GetMetadata"] >= before + 5:
                asked.set()
            return answer(*args, **more)

        answer, producer._core.sender.cluster_metadata.update = producer._core.sender.cluster_metadata.update, count
        for buffer in producer._core.topics.known["many"].buffers:
            producer._core.open_batches.seal_now(buffer)
        assert asked.wait(WAIT)
        first.leaderless.clear()
        assert [future.result(WAIT).offset for future in futures] == [0] * 20
    assert len(first.requests) == 1, "all partitions went out together"


def test_a_hint_to_a_port_that_refuses_is_left_again(brokers, faults):
    """The old leader names a broker that refuses connections; the metadata has the right leader."""
    first, second = brokers
    second.stop()
    hint = headrace.wire.errors.LeaderHint(2, 0, second.address)
    with headrace.Producer(**both(brokers)) as producer:
        first.faults.append(faults.refused_with(NotLeaderError("over there", leader=hint)))
        assert producer.send("t", b"0").result(WAIT).offset == 0


def test_a_bug_in_reading_an_answer_is_the_records_error(brokers, monkeypatch):
    """The future completes with an unknown outcome, and later records are delivered."""
    first, _ = brokers

    def bug(*args):
        raise RuntimeError("a bug")

    async def on_a_loop():
        async with headrace.aio.Producer(**both(brokers)) as producer:
            monkeypatch.setattr(headrace.client.producer.sender, "answers_of", bug)
            with pytest.raises(InternalError, match="a bug"):
                await producer.send_and_wait("t", b"b")
            monkeypatch.undo()
            await producer.send_and_wait("t", b"c")
            with pytest.raises(headrace.DeliveryError):
                await producer.flush()

    with headrace.Producer(**both(brokers)) as producer:
        monkeypatch.setattr(headrace.client.producer.sender, "answers_of", bug)
        future = producer.send("t", b"a")
        with pytest.raises(InternalError, match="a bug") as caught:
            future.result(WAIT)
        assert caught.value.outcome == Outcome.UNKNOWN
        monkeypatch.undo()
        producer.send("t", b"more").result(WAIT)
        with pytest.raises(headrace.DeliveryError):
            producer.flush()
    asyncio.run(asyncio.wait_for(on_a_loop(), WAIT))
    assert values(first) == [b"a", b"more", b"b", b"c"]


# --- nearest replica (KIP-392) ---


def test_a_consumer_reads_the_replica_of_its_rack(brokers):
    """The leader is asked once; when the replica goes, the leader is read again, and nothing is lost or duplicated."""
    first, second = brokers
    first.racks["east"] = 2
    append(first, 0, 10)
    with headrace.Consumer(
        "t", **both(brokers), auto_offset_reset="earliest", fetch_max_wait_ms=50, client_rack="east"
    ) as consumer:
        seen = list(consumer.poll(WAIT, max_records=10))
        assert second.calls["Fetch"]
        assert first.calls["Fetch"] == 1
        append(first, 10, 10)
        while len(seen) < 20:
            seen += consumer.poll(WAIT)
        assert first.calls["Fetch"] == 1
        second.stop()
        append(first, 20, 10)
        while len(seen) < 30:
            seen += consumer.poll(WAIT)
        assert [(record.offset, record.value) for record in seen] == list(enumerate(numbers(30)))


def test_a_reader_of_another_rack_reads_the_leader(brokers):
    first, second = brokers
    first.racks["east"] = 2
    append(first, 0, 10)
    with headrace.Reader("t", **both(brokers), client_rack="west") as reader:
        assert [record.value for record in reader] == numbers(10)
    assert not second.calls["Fetch"]
