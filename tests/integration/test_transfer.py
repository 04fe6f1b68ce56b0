"""The transfer port of real brokers: readers go over it, and over gRPC where it is not to be had."""

from __future__ import annotations

import asyncio

import headrace
import pytest
from headrace import aio
from headrace.spark.option_table import BATCH
from headrace.spark.options import read_options
from headrace.spark.ranges import OffsetRange
from headrace.spark.reader import RangePartition, read_partition
from headrace.spark.schema import full_schema
from headrace.wire.ids import TopicPartition
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

RECORDS = 5_000


def metric(cluster, name, broker_id=1):
    return cluster.broker(broker_id).metrics()[f"headrace_broker_{name}"]


def fill(cluster, topic, codec="none"):
    """Two partitions with keys, headers and timestamps; what was sent, by partition."""
    sent = {0: [], 1: []}
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=2, replication_factor=1)
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, compression_type=codec) as producer:
        for number in range(RECORDS):
            value = b"%d" % number * 20
            producer.send(topic, value, key=b"k", partition=number % 2)
            sent[number % 2].append(value)
    return sent


def read(cluster, topic, **settings):
    got = {0: [], 1: []}
    with headrace.Reader(topic, bootstrap_servers=cluster.bootstrap_servers, **settings) as reader:
        for record in reader:
            got[record.partition].append(bytes(record.value))
    return got


@pytest.fixture(scope="module")
def cluster():
    settings = {"transfer_listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as running:
        yield running


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_reader_goes_over_the_port_by_itself(cluster, codec):
    """Metadata offers it: every byte comes over it, the same records as over gRPC."""
    topic = f"t-{codec}"
    sent = fill(cluster, topic, codec)
    before, fetched = metric(cluster, "transferred_bytes_total"), metric(cluster, "fetched_bytes_total")
    assert read(cluster, topic) == sent
    moved = metric(cluster, "transferred_bytes_total") - before
    assert moved == metric(cluster, "fetched_bytes_total") - fetched > 0
    assert read(cluster, topic, use_transfer_port=False) == sent
    assert metric(cluster, "transferred_bytes_total") - before == moved


def test_an_asyncio_consumer_goes_over_the_port(cluster):
    """It also waits there for what comes later."""
    sent = fill(cluster, "loop")
    before = metric(cluster, "transferred_bytes_total")

    async def consume():
        got = {0: [], 1: []}
        consumer = aio.Consumer("loop", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
        async with consumer, aio.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            late = None
            async with asyncio.timeout(60):
                async for record in consumer:
                    got[record.partition].append(bytes(record.value))
                    if late is None and sum(map(len, got.values())) == RECORDS:
                        late = await producer.send("loop", b"late", partition=1)
                    if record.value == b"late":
                        return got
        return got

    assert asyncio.run(consume()) == {0: sent[0], 1: [*sent[1], b"late"]}
    assert metric(cluster, "transferred_bytes_total") > before


def test_a_task_of_spark_goes_over_the_port(cluster):
    """What an executor runs reads in bulk there, every byte, unless an option says otherwise."""
    sent = fill(cluster, "spark")
    before, fetched = metric(cluster, "transferred_bytes_total"), metric(cluster, "fetched_bytes_total")

    def read_values(**more):
        given = {"headrace.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "spark", **more}
        part = OffsetRange(TopicPartition("spark", 1), 0, len(sent[1]))
        batches = read_partition(read_options(given, BATCH), full_schema(False), RangePartition(part))
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    assert read_values() == sent[1]
    moved = metric(cluster, "transferred_bytes_total") - before
    assert moved == metric(cluster, "fetched_bytes_total") - fetched > 0
    assert read_values(**{"headrace.use.transfer.port": "false"}) == sent[1]
    assert metric(cluster, "transferred_bytes_total") - before == moved


def test_a_broker_that_was_restarted_is_read_again(cluster):
    """Its port is another one then: fetches go over gRPC until metadata says so, and nothing is lost or doubled."""
    sent = fill(cluster, "restarted")
    got = {0: [], 1: []}
    with headrace.Consumer(
        "restarted", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", fetch_max_bytes=20_000,
        max_partition_fetch_bytes=20_000, prefetch_bytes=20_000,
    ) as consumer:  # fmt: skip
        for number, record in enumerate(consumer):
            got[record.partition].append(bytes(record.value))
            if number == 100:
                cluster.broker(1).kill()
                cluster.restart(cluster.broker(1))
            if number == RECORDS - 1:
                break
    assert got == sent


def test_an_address_that_leads_nowhere_costs_nothing_but_speed():
    """As behind a firewall that lets only gRPC through."""
    settings = {
        "transfer_listen": "127.0.0.1:0",
        "transfer_advertised_address": "127.0.0.1:1",
        "metrics_listen": "127.0.0.1:0",
    }
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as running:
        sent = fill(running, "t")
        assert read(running, "t") == sent
        assert metric(running, "transferred_bytes_total") == 0
