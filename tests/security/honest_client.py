"""`python -m tests.security.honest_client [REGEX]`: what an honest client feels of each attack, on a real cluster.

A producer sends a record at a time, `RATE` a second, and waits for its acknowledgement; a consumer reads them. For each
attack there are `ROUNDS` rounds of some seconds each: alone; during the attack, from a process of its own that does
nothing else and has another address than the client; and with a process that only burns as much processor time as the
attacker did, because on a machine with few cores that alone makes a client wait. A row has the medians of the rounds'
p99 from send to acknowledgement and from send to the consumer's hands. `ratio` is attacked to burning: what the attack
costs in the server. Nothing is judged.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import re
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event

import grpc
import headrace
import psutil
from headrace.client.net.native_calls import NativeCalls
from headrace.v1 import broker_pb2, cluster_pb2, topics_pb2
from headrace.wire.encoding import encode_batch
from headrace.wire.frames import Kind, MethodCode, frame_head
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.security.conftest import Witness
from tests.security.http2 import PING, Stranger, calls, frame
from tests.security.largest import World, fetch, produce
from tests.security.poison import MIB, zeros_bomb

ATTACKER = "127.0.0.2"
RATE = 100
ROUNDS = 3
SECONDS = 2.0
PRODUCE, FETCH = "/headrace.v1.BrokerService/Produce", "/headrace.v1.BrokerService/Fetch"
WORLD = World("attacked", b"", 500, (), "")
NEW_IDS = itertools.count(1)
SPAWN = multiprocessing.get_context("spawn")

Addresses = dict[str, str]
Burst = Callable[[], None]


def _calls(channel: grpc.Channel, path: str, *requests: bytes) -> None:
    """Make calls at once, and wait until each has ended."""
    calls = [channel.unary_unary(path).future(request, timeout=30) for request in requests]
    for call in calls:
        with contextlib.suppress(grpc.RpcError):
            call.result()


def _over_grpc(path: str, make: Callable[[], bytes], addresses: Addresses, *, listener: str, at_once: int) -> Burst:
    channel = grpc.insecure_channel(addresses[listener], options=[("grpc.max_receive_message_length", -1)])
    return lambda: _calls(channel, path, *(make() for _ in range(at_once)))


def flood(path: str, make: Callable[[], bytes], *, listener: str = "client", at_once: int = 4) -> Callable[..., Burst]:
    """Repeat calls of one method, this many at once."""
    return functools.partial(_over_grpc, path, make, listener=listener, at_once=at_once)


def frames(data: bytes, *, listener: str = "client") -> Callable[[Addresses], Burst]:
    """A connection after the other that sends this and goes away once the server has read it.

    Who does not wait for that floods the network; that is the firewall's.
    """

    def start(addresses: Addresses) -> Burst:
        def burst() -> None:
            with Stranger(addresses[listener], ATTACKER) as stranger:
                stranger.send(data)
                stranger.wait_until_read()

        return burst

    return start


def held(count: int, data: bytes, *, listener: str = "client") -> Callable[[Addresses], Burst]:
    """Connections that send this once and stay."""

    def start(addresses: Addresses) -> Burst:
        strangers = [Stranger(addresses[listener], ATTACKER) for _ in range(count)]

        def burst() -> None:
            for at, stranger in enumerate(strangers):
                if not stranger.send(data):
                    strangers[at] = Stranger(addresses[listener], ATTACKER)
            time.sleep(0.5)

        return burst

    return start


def native(addresses: Addresses) -> Burst:
    """Connections of the native protocol, each with a Fetch of a mebibyte of empty topics."""
    host, _, port = addresses["native"].rpartition(":")
    message = b"\x2a\x00" * (MIB // 2)
    request = frame_head(Kind.REQUEST, message, method=MethodCode.FETCH, correlation=1, timeout_ms=30_000)

    def burst() -> None:
        with socket.create_connection((host, int(port)), timeout=30, source_address=(ATTACKER, 0)) as connection:
            connection.sendall(NativeCalls("", "attacker").greeting() + request)
            connection.recv(1 << 16)  # The Welcome.
            connection.recv(1 << 16)

    return burst


def _producer_ids() -> bytes:
    """A batch of a new producer."""
    identity = {"producer_id": next(NEW_IDS), "producer_epoch": 0, "base_sequence": 0}
    batch = encode_batch([b"x"], base_timestamp_ms=int(time.time() * 1000), **identity)
    partition = broker_pb2.PartitionProduce(partition=0, batches=[batch])
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name="attacked"), partitions=[partition])
    return broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_LEADER, timeout_ms=5_000, topics=[topic]).SerializeToString()


@functools.cache
def _bomb() -> bytes:
    partition = broker_pb2.PartitionProduce(partition=1, batches=[zeros_bomb(60 * MIB, noise=300_000)])
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name="attacked"), partitions=[partition])
    return broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_LEADER, timeout_ms=5_000, topics=[topic]).SerializeToString()


def _wait_places() -> bytes:
    request = broker_pb2.FetchRequest(max_wait_ms=20_000, min_bytes=1)
    request.topics.add(topic=topics_pb2.TopicRef(name="attacked")).partitions.add(partition=2)
    return request.SerializeToString()


def attacks() -> Iterator[tuple[str, Callable[[Addresses], Burst]]]:
    """All of them, by name."""
    yield "F1 empty elements, Produce", flood(PRODUCE, lambda: b"\x22\x00" * (MIB // 2))
    yield "F1 empty elements, Fetch", flood(FETCH, lambda: b"\x2a\x00" * (MIB // 2))
    commit = "/headrace.v1.GroupService/CommitOffsets"
    yield "F1 empty elements, CommitOffsets", flood(commit, lambda: b"\x2a\x00" * (MIB // 2), listener="coordinator")
    yield "F2 bombs on their way in", flood(PRODUCE, _bomb, at_once=2)
    yield "F2 bombs as records", flood(FETCH, lambda: fetch(WORLD, as_records=True).SerializeToString())
    yield "F3 half-open calls, Fetch", held(20, calls(250, FETCH))
    yield "F3 half-open calls, Produce", held(20, calls(250, PRODUCE))
    yield "F5 idle connections", held(300, b"")
    yield "F11 places in which fetches wait", flood(FETCH, _wait_places, at_once=600)
    yield "F13 producer ids", flood(PRODUCE, _producer_ids, at_once=16)
    yield "F16 native protocol", native
    all_metadata = cluster_pb2.GetMetadataRequest().SerializeToString
    yield "F17 metadata of all", flood("/headrace.v1.BrokerService/GetMetadata", all_metadata)
    yield "F17 DescribeLogs", flood("/headrace.v1.BrokerService/DescribeLogs", lambda: b"")
    yield "Produce of 500 partitions", flood(PRODUCE, lambda: produce(WORLD).SerializeToString(), at_once=1)
    yield "Fetch of 500 partitions", flood(FETCH, lambda: fetch(WORLD).SerializeToString(), at_once=1)
    yield "rapid resets", frames(calls(2_000, FETCH, then="reset"))
    yield "pings", frames(frame(PING, 0, 0, bytes(8)) * 5_000)
    yield "junk", frames(b"\x16\x03\x01" + bytes(5_000))


def attack(name: str, addresses: Addresses, started: Event) -> None:
    """The attacker's process: until it is killed."""
    burst = dict(attacks())[name](addresses)
    started.set()
    while True:
        with contextlib.suppress(OSError, grpc.RpcError):
            burst()


def burn(share: float, started: Event) -> None:
    """A process that keeps one core busy for this share of the time, until it is killed."""
    started.set()
    while True:
        until = time.thread_time() + share / 100
        while time.thread_time() < until:
            pass
        time.sleep((1 - share) / 100)


class Honest:
    """A producer and a consumer of one topic."""

    def __init__(self, witness: Witness) -> None:
        self._topic = "honest"
        servers = witness.cluster.bootstrap_servers
        with headrace.Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(self._topic, 1, replication_factor=1)
            admin.create_topic("attacked", WORLD.partitions, replication_factor=1)
        self._producer = headrace.Producer(bootstrap_servers=servers, linger_ms=0)
        self._consumer = headrace.Consumer(self._topic, bootstrap_servers=servers)
        self._read: list[float] = []
        self._reading = threading.Thread(target=self._consume, daemon=True)
        self._reading.start()

    def _consume(self) -> None:
        while True:
            for record in self._consumer.poll(timeout=1.0):
                assert record.value is not None
                self._read.append(time.monotonic() - float(record.value))

    def work(self, seconds: float) -> tuple[float, float]:
        """Send for so long; the p99 of acknowledgements and of reads, in ms."""
        sent: list[float] = []
        self._read = []
        begun = time.monotonic()
        for number in range(int(seconds * RATE)):
            time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
            started = time.monotonic()
            self._producer.send(self._topic, f"{started}".encode()).result(timeout=60)
            sent.append(time.monotonic() - started)
        return p99(sent), p99(self._read)

    def work_during(self, target: Callable[..., None], *arguments: object) -> tuple[float, float, float]:
        """Run `work` during a process of that target; return the share of a core that it took, too."""
        started = SPAWN.Event()
        process = SPAWN.Process(target=target, args=(*arguments, started), daemon=True)
        process.start()
        started.wait(60)
        stranger, begun = psutil.Process(process.pid), time.monotonic()
        before = sum(stranger.cpu_times()[:2])
        found = self.work(SECONDS)
        share = (sum(stranger.cpu_times()[:2]) - before) / (time.monotonic() - begun)
        process.kill()
        process.join()
        return *found, min(1.0, share)


def free_port() -> int:
    """Of the kernel's choice, at every address."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        return int(listener.getsockname()[1])


def p99(seconds: list[float]) -> float:
    """In ms; by the nearest rank."""
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))] * 1000 if seconds else float("nan")


def main() -> None:
    """Print the table; of the attacks whose names an argument finds, or of all."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    port, native_port = free_port(), free_port()
    settings = {
        "listen": f"[::]:{port}",
        "insecure": True,
        "advertised_address": f"[::1]:{port}",
        "native_listen": f"127.0.0.1:{native_port}",
        "native_advertised_address": f"127.0.0.1:{native_port}",
        "metrics_listen": "127.0.0.1:0",
        "max_waiting_fetches": 256,
    }
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as cluster:
        cluster.wait_until_healthy()
        witness = Witness(cluster)
        addresses = {name: witness.address(name) for name in ("coordinator", "native")}
        addresses["client"] = f"127.0.0.1:{port}"
        honest = Honest(witness)
        honest.work(SECONDS)
        heads = f"p99 in ms, medians of {ROUNDS} rounds", "acknowledged: alone", "read: alone"
        print("{:36} {:>20} burning attacked  ratio {:>16} burning attacked  ratio    CPU".format(*heads))
        for name, _ in attacks():
            if not re.search(only, name):
                continue
            rounds = []
            for _ in range(ROUNDS):
                alone = honest.work(SECONDS)
                *attacked, share = honest.work_during(attack, name, addresses)
                *burning, _ = honest.work_during(burn, share)
                rounds.append((*alone, *burning, *attacked, share))
            medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
            sent, read, sent_burning, read_burning, sent_attacked, read_attacked, share = medians
            acknowledged = f"{sent:20.1f} {sent_burning:7.1f} {sent_attacked:8.1f} {sent_attacked / sent_burning:6.1f}"
            reads = f"{read:16.1f} {read_burning:7.1f} {read_attacked:8.1f} {read_attacked / read_burning:6.1f}"
            print(f"{name:36} {acknowledged} {reads} {share:6.0%}", flush=True)


if __name__ == "__main__":
    main()
