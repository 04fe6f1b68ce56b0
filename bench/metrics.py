"""`python -m bench.metrics`: cost of metrics for a broker.

`scrape`: wall and CPU time of both pages of a broker with many partitions, and the delay of other calls meanwhile.
`cost`: CPU time of a produce call with and without counting, alternately on one broker. Both print JSON.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import threading
import time
import urllib.request
from dataclasses import replace
from typing import Annotated, Any

import grpc
import headrace
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import broker_pb2, broker_pb2_grpc, topics_pb2
from headrace.wire.encoding import encode_batch
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.open_loop import percentiles
from bench.processor import processor_seconds
from bench.stage import wait_until

SECONDS = 60.0
WINDOW = 16
CHANNEL = (("grpc.use_local_subchannel_pool", 1),)

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def scrape(
    partitions: Annotated[int, typer.Option(help="Number of partitions, with one replica each.")] = 2_000,
    rounds: Annotated[int, typer.Option(help="Scrapes per page.")] = 20,
) -> None:
    """Measure both pages, and the delay of calls meanwhile."""
    spec = LocalClusterSpec(brokers=1, coordinators=1, broker_settings={"metrics_listen": "127.0.0.1:0"})
    with LocalCluster(spec) as cluster:
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic("many", partitions=partitions, timeout=SECONDS)
        broker = cluster.brokers[0]
        assert broker.pid is not None
        wait_until(
            lambda: broker.metrics()["headrace_broker_leader_partitions"] == partitions, "all partitions are led"
        )
        report: dict[str, Any] = {
            "partitions": partitions,
            "idle_call": call_waits(broker.address, lambda: None, 1.0),
        }
        for path in ("/metrics", "/metrics/detail"):
            url = f"http://{broker.metrics_address}{path}"
            before, took, body = processor_seconds(broker.pid), [], b""
            for _ in range(rounds):
                started = time.perf_counter()
                with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                    body = answer.read()
                took.append((time.perf_counter() - started) * 1000)
            used_ms = (processor_seconds(broker.pid) - before) * 1000 / rounds
            report[path] = {
                "series": sum(not line.startswith(b"#") for line in body.splitlines()),
                "bytes": len(body),
                "wall_ms_median": round(statistics.median(took), 1),
                "processor_ms": round(used_ms, 1),
                "call_meanwhile": call_waits(broker.address, lambda url=url: urllib.request.urlopen(url).read(), 3.0),
            }
    print(json.dumps(report, indent=2))


def call_waits(address: str, meanwhile: Any, seconds: float) -> dict[str, float]:
    """Return the duration of the smallest call in ms while `meanwhile` runs repeatedly."""
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            meanwhile()
            ends.wait(0.05)

    worker = threading.Thread(target=work)
    worker.start()
    waits = []
    try:
        with grpc.insecure_channel(address, options=CHANNEL) as channel:
            stub, until = health_pb2_grpc.HealthStub(channel), time.monotonic() + seconds
            while time.monotonic() < until:
                started = time.perf_counter()
                stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
                waits.append((time.perf_counter() - started) * 1000)
    finally:
        ends.set()
        worker.join()
    return percentiles(waits)


@app.command()
def cost(
    calls: Annotated[int, typer.Option(help="Produce calls per measurement.")] = 400,
    blocks: Annotated[int, typer.Option(help="Blocks of four measurements per session.")] = 40,
    sessions: Annotated[int, typer.Option(help="Sessions, each with a new broker.")] = 4,
    value_bytes: Annotated[int, typer.Option(help="Size of the single record of a call, in bytes.")] = 200,
    control: Annotated[
        bool, typer.Option("--control", help="Never disable metrics: measures the error of the method.")
    ] = False,
) -> None:
    """Measure the CPU time of the smallest produce calls, counted and uncounted by one broker, in blocks of A B B A.

    A block's share is the excess of its two counted measurements over its two uncounted ones: a machine that becomes
    steadily slower affects both sums. The interval is that of the median of all blocks, at 95 %.
    """
    found = [session(calls, blocks, value_bytes, control=control) for _ in range(sessions)]
    shares = sorted(share for session_shares, _ in found for share in session_shares)
    low, high = median_interval(shares)
    used = [pair for _, pairs in found for pair in pairs]
    report = {
        "calls": calls,
        "blocks": blocks,
        "value_bytes": value_bytes,
        "control": control,
        "counted_us_a_call": round(statistics.median(pair[0] for pair in used) * 1e6, 1),
        "uncounted_us_a_call": round(statistics.median(pair[1] for pair in used) * 1e6, 1),
        "cost_percent": round(statistics.median(shares) * 100, 2),
        "cost_percent_interval": [round(low * 100, 2), round(high * 100, 2)],
        "cost_percent_by_session": [round(statistics.median(each) * 100, 2) for each, _ in found],
    }
    print(json.dumps(report, indent=2))


def session(
    calls: int, blocks: int, value_bytes: int, *, control: bool
) -> tuple[list[float], list[tuple[float, float]]]:
    """Start a new broker; return the share of each block, and its CPU seconds per call, counted and uncounted."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
        broker = cluster.brokers[0]
        broker.spec = replace(broker.spec, module="bench.uncounted")
        broker.stop()
        cluster.restart(broker)
        cluster.wait_until_healthy()
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            topic = admin.create_topic("cost", assignments=[[1]], config={"durability": "async"}, timeout=SECONDS)
        batch = encode_batch([b"x" * value_bytes], base_timestamp_ms=time.time_ns() // 1_000_000)
        request = produce_request(topic.topic_id, batch)
        wait_until(lambda: is_taken(broker, request), "the leader at work")

        def turn() -> None:
            if not control:
                assert broker.pid is not None
                os.kill(broker.pid, signal.SIGUSR1)

        send(broker, request, calls)
        pairs = []
        for block in range(blocks):
            took = [0.0, 0.0]  # counted, uncounted
            first = block % 2
            for which in (first, 1 - first, 1 - first, first):
                if which:
                    turn()
                took[which] += send(broker, request, calls) / 2
                if which:
                    turn()
            pairs.append((took[0], took[1]))
    return [(one - other) / other for one, other in pairs], pairs


def median_interval(ordered: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of ordered values, by the binomial distribution."""
    reach = 0.98 * math.sqrt(len(ordered))
    middle = len(ordered) / 2
    return ordered[max(0, math.floor(middle - reach))], ordered[min(len(ordered) - 1, math.ceil(middle + reach))]


def produce_request(topic_id: bytes, batch: bytes) -> broker_pb2.ProduceRequest:
    """Return the request for one batch, acknowledged by the leader."""
    part = broker_pb2.PartitionProduce(partition=0, batches=[batch])
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=[part])
    return broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_LEADER, timeout_ms=30_000, topics=[topic])


def is_taken(broker: Any, request: broker_pb2.ProduceRequest) -> bool:
    """Return whether the broker leads already, which is shortly after the creation of the topic."""
    with grpc.insecure_channel(broker.address, options=CHANNEL) as channel:
        answer = broker_pb2_grpc.BrokerServiceStub(channel).Produce(request, timeout=SECONDS)
    return not answer.topics[0].partitions[0].HasField("error")


def send(broker: Any, request: broker_pb2.ProduceRequest, calls: int) -> float:
    """Return the broker's CPU seconds per call, for `calls` with `WINDOW` in flight on a new connection."""
    room, failed = threading.Semaphore(WINDOW), []
    with grpc.insecure_channel(broker.address, options=CHANNEL) as channel:
        stub = broker_pb2_grpc.BrokerServiceStub(channel)

        def landed(call: Any) -> None:
            if call.exception() is not None or call.result().topics[0].partitions[0].HasField("error"):
                failed.append(call)
            room.release()

        before = processor_seconds(broker.pid)
        for _ in range(calls):
            room.acquire()  # one per call, released at its completion
            stub.Produce.future(request, timeout=SECONDS).add_done_callback(landed)
        for _ in range(WINDOW):
            room.acquire()
        used = processor_seconds(broker.pid) - before
    assert not failed, failed[0]
    return used / calls


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: stops the cluster and removes its directory.
    app()
