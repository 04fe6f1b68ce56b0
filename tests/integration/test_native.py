"""The native protocol of real brokers: clients go over it by themselves, and over gRPC where it is not to be had."""

from __future__ import annotations

import asyncio
import json
import socket

import grpc
import headrace
import pytest
from headrace import aio
from headrace.client.fetch.fetch_planner import FetchPlanner
from headrace.spark.option_table import BATCH
from headrace.spark.options import read_options
from headrace.spark.ranges import OffsetRange
from headrace.spark.reader import RangePartition, read_partition
from headrace.spark.schema import full_schema
from headrace.v1 import broker_pb2, broker_pb2_grpc, errors_pb2, topics_pb2
from headrace.wire.errors import ThrottledError, from_detail, from_rpc_error
from headrace.wire.frames import PREFACE, SERVER_KINDS, FrameReader, Kind, frame_head
from headrace.wire.ids import TopicPartition
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import until

pytestmark = pytest.mark.native

RECORDS = 5_000
METRICS = {"metrics_listen": "127.0.0.1:0"}


def metric(cluster, name, broker_id=1):
    return cluster.broker(broker_id).metrics()[f"headrace_broker_{name}"]


def fill(cluster, topic, codec="none", value_bytes=20, **settings):
    """Two partitions with keys, headers and timestamps; what was sent, by partition."""
    sent = {0: [], 1: []}
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=2, replication_factor=1)
    settings = {"compression_type": codec, **settings}
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, **settings) as producer:
        for number in range(RECORDS):
            value = b"%d" % number * value_bytes
            producer.send(topic, value, key=b"k", partition=number % 2)
            sent[number % 2].append(value)
    return sent


def read(cluster, topic, **settings):
    got = {0: [], 1: []}
    with headrace.Reader(topic, bootstrap_servers=cluster.bootstrap_servers, **settings) as reader:
        for record in reader:
            got[record.partition].append(bytes(record.value))
    return got


@pytest.fixture(scope="module", params=[False, True], ids=["processes", "single"])
def cluster(request):
    spec = LocalClusterSpec(brokers=1, coordinators=1, broker_settings=METRICS, single=request.param)
    with LocalCluster(spec) as running:
        yield running


@pytest.mark.parametrize(("codec", "value_bytes"), [("none", 100), ("zstd", 5_000)])
def test_what_goes_in_and_out_natively_is_what_goes_over_grpc(cluster, codec, value_bytes):
    """Metadata offers it: the same records whichever way they came and are read, the kernel sends what is much."""
    for transport in ("auto", "native", "grpc"):
        topic = f"t-{codec}-{transport}"
        sent = fill(cluster, topic, codec, value_bytes, transport=transport)
        before = metric(cluster, "native_sent_bytes_total")
        assert read(cluster, topic) == sent
        moved = metric(cluster, "native_sent_bytes_total") - before
        assert moved > 0
        assert read(cluster, topic, transport="grpc") == sent
        assert metric(cluster, "native_sent_bytes_total") - before == moved


def test_asyncio_clients_go_over_it(cluster):
    """They also wait there for what comes later."""
    sent = fill(cluster, "loop")
    until(lambda: metric(cluster, "native_connections") == 0, "connections before are closed")

    async def consume():
        got = {0: [], 1: []}
        servers = {"bootstrap_servers": cluster.bootstrap_servers, "transport": "native"}
        async with aio.Consumer("loop", auto_offset_reset="earliest", **servers) as consumer:
            async with aio.Producer(**servers) as producer:
                late = None
                async with asyncio.timeout(60):
                    async for record in consumer:
                        got[record.partition].append(bytes(record.value))
                        if late is None and sum(map(len, got.values())) == RECORDS:
                            late = await producer.send_and_wait("loop", b"late", partition=1)
                            assert metric(cluster, "native_connections") == 2
                        if record.value == b"late":
                            return got
        return got

    assert asyncio.run(consume()) == {0: sent[0], 1: [*sent[1], b"late"]}


def test_the_next_fetch_is_sent_while_a_response_arrives(cluster, monkeypatch):
    """It continues behind the records of that response; all arrive once and in order."""
    ahead = []
    plan_behind = FetchPlanner.plan_behind

    def counted(self, plan, response, now_ms):
        plans = plan_behind(self, plan, response, now_ms)
        ahead.extend(part.offset for following in plans for part in following.partitions)
        return plans

    monkeypatch.setattr(FetchPlanner, "plan_behind", counted)
    sent = fill(cluster, "ahead", value_bytes=500)
    settings = {"max_partition_fetch_bytes": 200_000, "fetch_max_bytes": 400_000}
    assert read(cluster, "ahead", **settings) == sent
    assert len(ahead) > 10


def test_a_task_of_spark_goes_over_it(cluster):
    """What an executor runs reads in bulk there, unless an option says otherwise."""
    sent = fill(cluster, "spark", value_bytes=100)
    before = metric(cluster, "native_sent_bytes_total")

    def read_values(**more):
        given = {"headrace.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "spark", **more}
        part = OffsetRange(TopicPartition("spark", 1), 0, len(sent[1]))
        batches = read_partition(read_options(given, BATCH), full_schema(False), RangePartition(part))
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    assert read_values() == sent[1]
    moved = metric(cluster, "native_sent_bytes_total") - before
    assert moved > 0
    assert read_values(**{"headrace.transport": "grpc"}) == sent[1]
    assert metric(cluster, "native_sent_bytes_total") - before == moved


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_a_broker_that_is_killed_is_found_again(cluster, acks):
    """Its port is another one then. What was acknowledged is there once, in order; readers continue."""
    topic = f"killed-{acks}"
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=1)
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, acks=acks, linger_ms=1) as producer:
        for number in range(2_000):
            producer.send(topic, b"%d" % number)
            if number == 1_000:
                producer.flush()
                cluster.broker(1).kill()
                cluster.restart(cluster.broker(1))
        producer.flush()

    def read_now():
        with headrace.Reader(topic, bootstrap_servers=cluster.bootstrap_servers) as reader:
            return [int(record.value) for record in reader]

    if acks == 0:
        found = read_now()
        assert found == sorted(set(found))
    else:  # With acks=1 a record may be acknowledged before it is visible.
        until(lambda: read_now() == list(range(2_000)), "every acknowledged record is there once, in order")


def test_an_address_that_leads_nowhere_costs_nothing_but_speed():
    """As behind a firewall that lets only gRPC through."""
    settings = {**METRICS, "native_advertised_address": "127.0.0.1:1"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as running:
        sent = fill(running, "t")
        assert read(running, "t") == sent
        assert metric(running, "native_connections") == 0


def test_it_can_be_switched_off():
    """Metadata names no address then."""
    settings = {**METRICS, "native_listen": "off"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as running:
        sent = fill(running, "t")
        assert read(running, "t") == sent


def test_calls_over_both_protocols_share_the_places_of_a_caller():
    """A long poll takes the only place; what comes then, by whichever way, is throttled."""
    settings = {"max_calls_per_peer": 1}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as cluster:
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic("places", partitions=1, replication_factor=1)
        with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("places", b"first").result(timeout=30)
        ready = json.loads(cluster.broker(1).ready_file.read_text())
        fetch = broker_pb2.FetchRequest(max_wait_ms=20_000, min_bytes=1)
        fetch.topics.add(topic=topics_pb2.TopicRef(name="places")).partitions.add(partition=0, offset=1)
        host, _, port = ready["native_address"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(
                PREFACE
                + frame_head(Kind.HELLO)
                + frame_head(Kind.REQUEST, fetch.SerializeToString(), method=2, correlation=1, timeout_ms=30_000)
                + frame_head(Kind.REQUEST, b"", method=3, correlation=2, timeout_ms=30_000)
            )
            reader, refused = FrameReader(SERVER_KINDS, lambda _: True), None
            while refused is None:
                reader.received(connection.recv_into(reader.buffer()))
                while (frame := reader.next_frame()) is not None:
                    refused = frame if frame.header.kind == Kind.ERROR else None
            assert refused.header.correlation == 2
            with grpc.insecure_channel(ready["address"]) as channel, pytest.raises(grpc.RpcError) as caught:
                broker_pb2_grpc.BrokerServiceStub(channel).ListOffsets(broker_pb2.ListOffsetsRequest(), timeout=30)
        for error in (from_detail(errors_pb2.ErrorDetail.FromString(refused.message)), from_rpc_error(caught.value)):
            assert isinstance(error, ThrottledError), error
