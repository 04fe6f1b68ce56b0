"""`python -m bench.replication CASE`: cost of replication and speed of recovery, on three brokers.

Cases: `catch-up` (a follower copies what it missed, and a plain fetch of the same bytes), `idle` (processor time of the
idle brokers), `failover` (a broker with a third of the leaderships is killed), `outage` (how long one
partition takes no writes after kill -9 of its leader, and during a controlled stop). Prints JSON.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import grpc
import headrace
import typer
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2, cluster_pb2_grpc, topics_pb2
from headrace.wire.zero_copy import SplicedMessage, parse_fetch_response
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.cluster_health import describe_cluster
from headrace_devcluster.service import LocalService

from bench.processor import processor_seconds
from bench.stage import POLL_SECONDS, wait_until

TOPIC = "bench"
FETCH_BYTES = 4 << 20

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


def show(result: dict[str, Any]) -> None:
    """Print one case's figures."""
    print(json.dumps(result, indent=2))


@contextmanager
def cluster(**broker_settings: object) -> Iterator[LocalCluster]:
    """Run three brokers, two coordinators and one etcd."""
    with LocalCluster(LocalClusterSpec(brokers=3, broker_settings=broker_settings)) as running:
        yield running


def create_topic(running: LocalCluster, partitions: int, **config: str) -> None:
    """Create the topic with three replicas, two of which must be in sync."""
    with headrace.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
        settings = {"min_insync_replicas": "2", **config}
        admin.create_topic(TOPIC, partitions=partitions, replication_factor=3, config=settings)


def metadata(running: LocalCluster) -> list[cluster_pb2.PartitionMetadata]:
    """Return the topic's partitions from the first coordinator that responds."""
    request = cluster_pb2.GetMetadataRequest(topics=[topics_pb2.TopicRef(name=TOPIC)])
    failures = []
    for coordinator in running.coordinators:
        with grpc.insecure_channel(coordinator.address) as channel:
            try:
                answer = cluster_pb2_grpc.ClusterServiceStub(channel).GetMetadata(request, timeout=20)
                return list(answer.topics[0].partitions)
            except grpc.RpcError as error:
                failures.append(error)
    raise failures[0]


def in_sync(running: LocalCluster, replicas: int) -> bool:
    """Return whether every partition has that number of replicas in sync, and a leader."""
    return all(len(part.in_sync_replicas) >= replicas and part.leader_id >= 0 for part in metadata(running))


def wait_until_in_sync(running: LocalCluster) -> float:
    """Wait until every partition has three in-sync replicas; return the seconds."""
    return wait_until(lambda: in_sync(running, 3), "all replicas in sync")


@app.command("idle")
def idle(
    partitions: Annotated[int, typer.Option(help="Number of partitions, with three replicas each.")] = 1_000,
    seconds: Annotated[float, typer.Option(help="Duration of the measurement in seconds.")] = 20.0,
) -> None:
    """Measure the CPU time of a broker with partitions without writes."""
    with cluster() as running:
        create_topic(running, partitions)
        settled = wait_until_in_sync(running)
        time.sleep(5)
        pids = [broker.pid for broker in running.brokers if broker.pid is not None]
        before = [processor_seconds(pid) for pid in pids]
        time.sleep(seconds)
        shares = [(processor_seconds(pid) - was) / seconds for pid, was in zip(pids, before, strict=True)]
        show({"partitions": partitions, "settled_s": round(settled, 2), "core_share": [round(x, 4) for x in shares]})


@app.command("failover")
def failover(
    partitions: Annotated[int, typer.Option(help="Number of partitions, with three replicas each.")] = 1_000,
) -> None:
    """Kill a broker; measure the time from its detection until others lead and serve all its partitions."""
    with cluster(lease_ttl_ms=3_000) as running:
        create_topic(running, partitions)
        wait_until_in_sync(running)
        time.sleep(3)
        led = sum(part.leader_id == 1 for part in metadata(running))
        killed = time.monotonic()
        running.broker(1).kill()
        address = running.coordinators[0].address
        wait_until(
            lambda: all(broker.broker_id != 1 for broker in describe_cluster(address).brokers), "its lease is over"
        )
        detected = time.monotonic()
        wait_until(lambda: all(part.leader_id not in (-1, 1) for part in metadata(running)), "other leaders")
        elected = time.monotonic()
        wait_until(lambda: serves_all(running), "the new leaders serve")
        served = time.monotonic()
        show(
            {
                "partitions": partitions,
                "led_by_the_dead": led,
                "detected_s": round(detected - killed, 2),
                "elected_after_s": round(elected - detected, 2),
                "served_after_s": round(served - detected, 2),
            }
        )


def serves_all(running: LocalCluster) -> bool:
    """Return whether the leader of every partition serves it."""
    by_leader: dict[int, list[int]] = {}
    for part in metadata(running):
        by_leader.setdefault(part.leader_id, []).append(part.partition)
    for leader, numbers in by_leader.items():
        request = broker_pb2.ListOffsetsRequest()
        topic = request.topics.add(topic=topics_pb2.TopicRef(name=TOPIC))
        for number in numbers:
            topic.partitions.add(partition=number, spec=broker_pb2.OFFSET_SPEC_LATEST)
        with grpc.insecure_channel(running.broker(leader).address) as channel:
            answer = broker_pb2_grpc.BrokerServiceStub(channel).ListOffsets(request, timeout=20)
        if any(part.HasField("error") for topic in answer.topics for part in topic.partitions):
            return False
    return True


@app.command("catch-up")
def catch_up(
    gigabytes: Annotated[float, typer.Option(help="Size of the log that the follower copies, in GB.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Pairs of a plain fetch and a copy.")] = 5,
) -> None:
    """Measure in each round a plain fetch, and then the copy of the same bytes to a follower that lost its disk."""
    with cluster(lease_ttl_ms=2_000) as running:
        create_topic(running, 1, durability="async")
        wait_until_in_sync(running)
        first = metadata(running)[0]
        leader, follower = running.broker(first.leader_id), running.broker(first.replicas[-1])
        follower.stop()
        values = [n.to_bytes(4, "big") + bytes(196) for n in range(5_000)]
        with headrace.Producer(bootstrap_servers=running.bootstrap_servers, acks=1) as producer:
            for _ in range(round(gigabytes * 1e9 / 1e6)):
                producer.send_many(TOPIC, values, partition=0)
            producer.flush()
        with log_of(leader.address) as read_log:
            there = read_log()
        copies: list[dict[str, Any]] = []
        for _ in range(rounds):
            plain_rate = there.size_bytes / plain_fetch(leader.address, there.log_end_offset)
            page_cache_rate = touch_memory(there.size_bytes)
            shutil.rmtree(running.directory / f"broker-{first.replicas[-1]}")
            running.restart(follower)
            rate, shares = copy_rate(leader, follower, there.log_end_offset)
            follower.stop()
            copies.append(
                {
                    "catch_up_mb_s": round(rate / 1e6),
                    "plain_fetch_mb_s": round(plain_rate / 1e6),
                    "page_cache_mb_s": round(page_cache_rate / 1e6),
                    "share": round(rate / plain_rate, 3),
                    "core_share_leader_follower": shares,
                }
            )
        median = statistics.median(copy["share"] for copy in copies)
        show({"bytes": there.size_bytes, "rounds": copies, "median_share": median})


def copy_rate(leader: LocalService, follower: LocalService, end_offset: int) -> tuple[float, list[float]]:
    """Return the follower's copy rate in bytes per second from its first bytes, and both brokers' CPU use in cores."""
    pids = [part.pid for part in (leader, follower) if part.pid is not None]
    started, copied_from, before = 0.0, 0, [0.0, 0.0]
    with log_of(follower.address) as read_log:
        while (now := read_log()).log_end_offset < end_offset:
            if now.size_bytes and not started:
                started, copied_from = time.monotonic(), now.size_bytes
                before = [processor_seconds(pid) for pid in pids]
            time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - started
    shares = [round((processor_seconds(pid) - was) / seconds, 2) for pid, was in zip(pids, before, strict=True)]
    return (now.size_bytes - copied_from) / seconds, shares


def touch_memory(size_bytes: int) -> float:
    """Write and remove a file of that size twice; return the rate of the second write in bytes per second.

    On a virtual machine the page cache is several times slower with memory that was never used before, which would be
    measured instead of the follower.
    """
    rate = 0.0
    for _ in range(2):
        with tempfile.TemporaryFile() as file:
            started = time.monotonic()
            for _ in range(size_bytes // FETCH_BYTES):
                file.write(bytes(FETCH_BYTES))
            rate = size_bytes / (time.monotonic() - started)
    return rate


@contextmanager
def log_of(address: str) -> Iterator[Callable[[], broker_pb2.LogDescription]]:
    """Yield a function that describes the broker's replica of the topic's first partition by a new request."""
    with grpc.insecure_channel(address) as channel:
        stub = broker_pb2_grpc.BrokerServiceStub(channel)

        def read() -> broker_pb2.LogDescription:
            logs = stub.DescribeLogs(broker_pb2.DescribeLogsRequest(), timeout=20, wait_for_ready=True).logs
            return logs[0] if logs else broker_pb2.LogDescription()

        yield read


def plain_fetch(address: str, end_offset: int) -> float:
    """Fetch everything by consecutive unary calls; return the seconds."""
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 32 << 20)]) as channel:
        fetch = channel.unary_unary(
            "/headrace.v1.BrokerService/Fetch",
            request_serializer=broker_pb2.FetchRequest.SerializeToString,
            response_deserializer=parse_fetch_response,
        )
        started, offset = time.monotonic(), 0
        while offset < end_offset:
            request = broker_pb2.FetchRequest(max_bytes=FETCH_BYTES, min_bytes=1, max_wait_ms=1_000)
            topic = request.topics.add(topic=topics_pb2.TopicRef(name=TOPIC))
            topic.partitions.add(partition=0, offset=offset)
            envelope: SplicedMessage = fetch(request, timeout=20)
            data = envelope.batches[0][0]
            offset = last_offset(data)
        return time.monotonic() - started


def last_offset(data: Any) -> int:
    """Return the offset after the last batch, by its header."""
    from headrace.wire.batch import iter_batches

    end_offset = 0
    for header, _ in iter_batches(data):
        end_offset = header.end_offset
    return end_offset


@app.command("outage")
def outage(
    rounds: Annotated[int, typer.Option(help="Repetitions of each measurement.")] = 3,
    lease_ttl_ms: Annotated[int, typer.Option(help="Lease TTL of the brokers.")] = 10_000,
) -> None:
    """Measure the longest wait for an acknowledgement (acks=all, fsync) around a kill -9 and a stop of the leader."""
    with cluster(lease_ttl_ms=lease_ttl_ms) as running:
        create_topic(running, 1)
        wait_until_in_sync(running)
        results: dict[str, list[float]] = {"kill": [], "stop": []}
        for _ in range(rounds):
            for way, waits in results.items():
                waits.append(round(longest_wait(running, way, lease_ttl_ms / 1000 + 10), 3))
                wait_until_in_sync(running)
        show({"lease_ttl_ms": lease_ttl_ms, "longest_wait_s": results})


def longest_wait(running: LocalCluster, way: str, seconds: float) -> float:
    """Send records one by one while the leader goes down and returns; return the longest wait for a record."""
    leader = metadata(running)[0].leader_id
    waits: list[float] = []
    end = threading.Event()

    def send() -> None:
        with headrace.Producer(bootstrap_servers=running.bootstrap_servers, acks="all") as producer:
            while not end.is_set():
                started = time.monotonic()
                producer.send(TOPIC, b"x").result(timeout=120)
                waits.append(time.monotonic() - started)

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(2)
    before = len(waits)
    if way == "kill":
        running.broker(leader).kill()
    else:
        running.broker(leader).stop()
    wait_until(lambda: len(waits) > before + 200, "200 acknowledgements", seconds + 60)
    end.set()
    sender.join()
    running.restart(running.broker(leader))
    return max(waits[max(0, before - 1) :])


if __name__ == "__main__":
    app()
