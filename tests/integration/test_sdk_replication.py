"""Clients on a replicated cluster: leaders that die, hang and move; logs that were replaced; the replica of a rack."""

import asyncio
import time

import headrace
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import BROKER_SETTINGS, Follower, Replicated, Writer, until

SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
WAIT = 60


@pytest.fixture(scope="module")
def racked_cluster():
    """Brokers 1, 2, 3 in the racks east, west, north."""
    spec = LocalClusterSpec(coordinators=1, broker_settings=BROKER_SETTINGS, racks=("east", "west", "north"))
    with LocalCluster(spec) as cluster:
        replicated = Replicated(cluster)
        yield replicated
        replicated.close()


@pytest.fixture
def racked(racked_cluster):
    yield racked_cluster
    racked_cluster.restore()


def kill(racked):
    racked.broker(1).kill()


def pause(racked):
    """SIGSTOP: connections stay open, without answers."""
    racked.broker(1).pause()


def drain(racked):
    """The leader stays and gives its leadership away."""
    racked.admin.drain_broker(1)


def the_end_of(racked, fate):
    if fate is drain:
        racked.admin.undrain_broker(1)


@pytest.mark.parametrize("fate", [kill, pause, drain])
def test_asyncio_clients_follow_the_leader(racked, fate):
    """One producer and one consumer on a loop: every record once and in order, each acknowledged at its offset."""
    topic = f"aio-{fate.__name__}"
    racked.create(topic, SPREAD, min_insync_replicas=2)
    settings = {"bootstrap_servers": racked.servers}

    async def work():
        seen = {0: [], 1: [], 2: []}
        futures = []

        async def read(consumer, records):
            while sum(map(len, seen.values())) < records:
                for record in await consumer.poll(WAIT):
                    seen[record.partition].append((record.offset, record.value))

        async def write(producer, records):
            for number in range(len(futures), len(futures) + records):
                futures.append(await producer.send(topic, b"%d" % number, partition=number % 3))

        async with (
            headrace.aio.Producer(**settings, batch_bytes=2_000) as producer,
            headrace.aio.Consumer(topic, **settings, auto_offset_reset="earliest") as consumer,
        ):
            await write(producer, 900)
            await read(consumer, 900)
            await write(producer, 900)
            started = time.monotonic()
            await asyncio.to_thread(fate, racked)
            await write(producer, 900)
            offsets = [(await future).offset for future in futures]
            print(f"acknowledged {time.monotonic() - started:.2f} s later")
            await read(consumer, 2_700)
            print(f"read {time.monotonic() - started:.2f} s later")
        assert offsets == [number // 3 for number in range(2_700)]
        for partition, records in seen.items():
            assert records == [(n, b"%d" % (3 * n + partition)) for n in range(900)]

    try:
        asyncio.run(asyncio.wait_for(work(), 2 * WAIT))
    finally:
        the_end_of(racked, fate)


def test_a_leader_that_hangs_under_blocking_clients(racked):
    """SIGSTOP of a leader, and SIGCONT: what it still held of the old epoch is neither lost nor duplicated."""
    racked.create("hung", SPREAD, min_insync_replicas=2)
    with Follower(racked.servers, "hung", 3) as follower:
        with Writer(racked.servers, "hung", 3) as writer:
            writer.wait_for(500)
            paused_at = time.monotonic()
            racked.broker(1).pause()
            racked.wait_for("hung", lambda part: part.leader_id == 2, "the next leader")
            print(f"elected after {time.monotonic() - paused_at:.2f} s")
            writer.wait_for(1_000)
            print(f"longest time without an acknowledgement: {writer.longest_gap(paused_at - 1):.2f} s")
            racked.broker(1).resume()
            writer.wait_for(1_000)
        follower.wait_for(len(writer.futures))
    for number, values in follower.values.items():
        assert values == [b"%d" % n for n in range(number, len(writer.futures), 3)]
    writer.check(racked)


def test_a_consumer_reads_the_replica_of_its_rack(racked):
    """KIP-392: broker 2's bytes, not the leader's; when broker 2 dies the leader's again, and nothing is missed."""
    racked.create("near", [[1, 2, 3]], min_insync_replicas=2)
    settings = {"bootstrap_servers": racked.servers, "auto_offset_reset": "earliest"}
    with (
        headrace.Producer(bootstrap_servers=racked.servers) as producer,
        headrace.Consumer("near", **settings, client_rack="west") as consumer,
    ):
        seen = []

        def write(records):
            first = len(seen)
            producer.send_many("near", [b"%d" % number for number in range(first, first + records)], partition=0)
            producer.flush(WAIT)

        def read(records):
            while len(seen) < records:
                seen.extend((record.offset, record.value) for record in consumer.poll(WAIT))

        write(1)
        read(1)
        until(lambda: _reads(racked, 2, write, read, seen), "reading at broker 2")
        racked.broker(2).kill()
        before = len(seen)
        write(500)
        read(before + 500)
        assert seen == [(n, b"%d" % n) for n in range(len(seen))]


def _reads(racked, broker_id, write, read, seen):
    """Whether the next records come from this broker and no other."""
    before = [racked.metric(broker, "fetched_bytes_total") for broker in (1, 2, 3)]
    write(100)
    read(len(seen) + 100)
    after = [racked.metric(broker, "fetched_bytes_total") for broker in (1, 2, 3)]
    return [broker for broker in (1, 2, 3) if after[broker - 1] > before[broker - 1]] == [broker_id]


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_a_consumer_of_a_replaced_log_gets_an_error(racked, reset):
    """KIP-320: an unclean election loses what the consumer has read; it hears of it whatever auto_offset_reset says,
    and reads from the diverging offset on what took its place.
    """
    topic = f"replaced-{reset}"
    where = TopicPartition(topic, 0)
    racked.create(topic, [[2, 3]], min_insync_replicas=1)
    with headrace.Producer(bootstrap_servers=racked.servers) as producer:
        producer.send_many(topic, [b"kept"] * 100, partition=0)
        producer.flush(WAIT)
        racked.wait_in_sync(topic)
        racked.broker(3).kill()
        racked.wait_in_sync(topic, [2])
        producer.send_many(topic, [b"lost"] * 50, partition=0)
        producer.flush(WAIT)
    with headrace.Consumer(bootstrap_servers=racked.servers, auto_offset_reset=reset) as consumer:
        consumer.assign({where: 0})
        seen = []
        while len(seen) < 150:
            seen.extend(consumer.poll(WAIT))
        racked.broker(2).kill()
        racked.cluster.restart(racked.broker(3))
        racked.wait_for(topic, lambda part: part.leader_id < 0, "no leader")
        until(lambda: 3 in {broker.broker_id for broker in racked.admin.describe_cluster().brokers}, "broker 3")
        (change,) = racked.admin.elect_leaders("unclean", [where], broker_id=3)
        assert change.error is None
        with pytest.raises(headrace.LogTruncationError) as caught:
            for _ in range(WAIT):
                assert not consumer.poll(1.0)
        error = caught.value
        assert (error.partition, error.position) == (where, 150)
        assert error.diverging_offset <= 100
        consumer.seek(where, error.diverging_offset)
        with headrace.Producer(bootstrap_servers=racked.servers) as producer:
            assert producer.send(topic, b"new", partition=0).result(WAIT).offset == 100
        again = []
        while error.diverging_offset + len(again) < 101:
            again.extend(consumer.poll(WAIT))
        assert again[-1].value == b"new"
        assert [record.offset for record in again] == list(range(error.diverging_offset, 101))
