"""Health and metrics of a real broker, over gRPC and HTTP, from its first moment to its last."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import topics_pb2
from headrace_server.cluster_identity import read_or_create
from headrace_server.health import HealthCause
from headrace_server.metastore.api import Put

from tests.integration.health_causes import SECONDS, expected, get, over_grpc, over_http
from tests.integration.metastore import connected
from tests.integration.replicated import append, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def metrics_address(broker: Any) -> str:
    """Where it answers over HTTP, by its log."""
    path = Path(broker.directory) / "broker.log"
    found = until(
        lambda: path.exists() and re.search(r"metrics_address=(\S+)", re.sub(r"\x1b\[\d*m", "", path.read_text())),
        "the HTTP endpoint",
    )
    return str(found.group(1))


def drain(broker: Any) -> None:
    """What an administrator's word does: `drained_brokers/{broker_id}`."""

    async def put() -> None:
        async with connected(broker.etcd.endpoint) as metastore:
            keys = (await read_or_create(metastore, broker.cluster, "0" * 32)).keyspace
            await metastore.txn([], [Put(keys.drained_broker(broker.broker_id), b"")])

    asyncio.run(put())


def test_a_broker_without_etcd_is_alive_and_not_started(broker_with_own_etcd: Any) -> None:
    """Without etcd no supervisor should restart it; with etcd it starts by itself, and a drain makes it unready."""
    broker = broker_with_own_etcd
    broker.overrides = {"metrics_listen": "127.0.0.1:0"}
    broker.etcd.pause()
    with ThreadPoolExecutor(1) as pool:  # to the end: the broker goes with the thread that started it
        starting = pool.submit(broker.start)
        try:
            address = metrics_address(broker)
            assert over_http(address) == expected(HealthCause.STARTING)
            assert 'headrace_broker_health{name="startup"} 0.0' in get(address, "/metrics")[1]
        finally:
            broker.etcd.resume()
        starting.result()
        assert over_http(address) == over_grpc(broker.channel) == expected()
        watch = health_pb2_grpc.HealthStub(broker.channel).Watch(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=SECONDS
        )
        assert next(watch).status == SERVING
        drain(broker)
        assert next(watch).status == NOT_SERVING
        assert over_http(address) == over_grpc(broker.channel) == expected(HealthCause.DRAINED)
        assert broker.stop() == 0
        assert list(watch) == [], "a watch ends by itself, before the grace time of the stop is over"
        assert watch.code() == grpc.StatusCode.OK


def test_metrics_of_a_broker_at_work(broker_process: Any) -> None:
    """Produce and fetch are seen by stage and by partition."""
    broker = broker_process
    broker.overrides = {"metrics_listen": "127.0.0.1:0", "log_format": "json"}
    broker.start()
    address = json.loads((broker.directory / "ready.json").read_text())["metrics_address"]
    topic_id = asyncio.run(broker.create_topic("clicks"))
    append(broker.address, topic_id, b"a", b"b")
    wanted = [pb.PartitionFetch(partition=0, offset=0)]
    topics = [pb.TopicFetch(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=wanted)]
    broker.stub.Fetch(pb.FetchRequest(topics=topics, min_bytes=1), timeout=SECONDS)

    def sample(name: str, path: str = "/metrics") -> float:
        found = re.search(rf"^headrace_broker_{re.escape(name)} (\S+)$", get(address, path)[1], re.MULTILINE)
        assert found is not None, name
        return float(found.group(1))

    assert sample("produced_records_total") == 2
    for stage in ("queue", "append", "fsync"):
        assert sample(f'produce_stage_seconds_count{{stage="{stage}"}}') >= 1
    assert sample("produce_seconds_count") >= 1
    assert sample("fetch_seconds_count") == 1
    assert sample('partition_log_end_offset{partition="0",topic="clicks"}', "/metrics/detail") == 2
    assert sample('partition_produced_records_total{partition="0",topic="clicks"}', "/metrics/detail") == 2
    assert sample('partition_fetched_bytes_total{partition="0",topic="clicks"}', "/metrics/detail") > 0
    assert sample("recovering") == 0
    until(lambda: sample("log_bytes") > 0, "a look at the logs")
    until(lambda: sample("loop_cpu_seconds_total") > 0, "a beat")
    assert "_created" not in get(address, "/metrics")[1]
    assert broker.stop() == 0
