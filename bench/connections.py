"""`python -m bench.connections`: cost of many connections of the native protocol, and what a neighbour notices.

Measures a broker with idle connections (memory, CPU time), while thousands are opened, and under a flood of broken
frames. Connections come from `ADDRESSES` of the loopback, because each address has a share of them; they and the flood
are in a process of their own. The neighbour is a producer that sends `RATE` records per second, one at a time; its
latency counts from the due time of a record until the acknowledgement. Prints a line of JSON for each case.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Annotated, Any

import headrace
import psutil
import typer
from headrace.client.net.native_calls import NativeCalls
from headrace.wire.frames import SERVER_KINDS, FrameError, FrameReader, Kind, MethodCode, frame_head
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.descriptors import raise_limit

from bench.open_loop import percentiles
from bench.processor import processor_seconds

RATE = 100
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 22)]
TOPIC = "neighbour"
SECONDS = 30.0
GREETING = NativeCalls("", "bench").greeting()
BROKEN = [
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    GREETING + bytes(28),
    GREETING + frame_head(Kind.WELCOME),
    GREETING + frame_head(Kind.REQUEST, b"\xff\xff", method=MethodCode.FETCH, correlation=1, timeout_ms=1_000),
]
SPAWN = multiprocessing.get_context("spawn")


def connect(address: str, number: int) -> socket.socket:
    """Connect from one of the addresses, in turn."""
    host, _, port = address.rpartition(":")
    source = ADDRESSES[number % len(ADDRESSES)]
    return socket.create_connection((host, int(port)), SECONDS, (source, 0))


def received(connection: socket.socket, reader: FrameReader) -> str:
    """Receive once; return the name of the last frame, `closed`, or an empty string if nothing has arrived."""
    name = ""
    try:
        count = connection.recv_into(reader.buffer())
        reader.received(count)
        while (frame := reader.next_frame()) is not None:
            name = Kind(frame.header.kind).name
        return name if count else "closed"
    except BlockingIOError:
        return name
    except (OSError, FrameError):
        return "closed"


def hold(address: str, count: int, pipe: Connection) -> None:
    """Open connections, report how that went, keep them until told, and report what has become of them."""
    raise_limit()
    made: list[tuple[socket.socket, FrameReader]] = []
    first: dict[str, int] = {}
    started = time.monotonic()
    for number in range(count):
        try:
            connection = connect(address, number)
            connection.sendall(GREETING)
        except OSError as error:
            first[type(error).__name__] = first.get(type(error).__name__, 0) + 1
            continue
        made.append((connection, FrameReader(SERVER_KINDS, lambda _: True)))
        name = received(*made[-1])
        first[name] = first.get(name, 0) + 1
    pipe.send({"seconds": round(time.monotonic() - started, 2), "answered": first})
    pipe.recv()
    later: dict[str, int] = {}
    for connection, reader in made:
        connection.setblocking(False)
        name = received(connection, reader) or "open"
        later[name] = later.get(name, 0) + 1
        connection.close()
    pipe.send(later)


def flood(address: str, _count: int, pipe: Connection) -> None:
    """Send broken frames, connection after connection, until told; report how many."""
    count = 0
    pipe.send(None)
    while not pipe.poll():
        with contextlib.suppress(OSError), contextlib.closing(connect(address, count)) as connection:
            connection.sendall(BROKEN[count % len(BROKEN)])
            connection.recv(1 << 16)
        count += 1
    pipe.send(count)


def burn(_address: str, _count: int, pipe: Connection) -> None:
    """Keep one core busy until told: what the processor time of a flood costs its neighbours by itself."""
    pipe.send(None)
    while not pipe.poll():
        pass
    pipe.send(None)


@contextlib.contextmanager
def strangers(work: Any, address: str, count: int = 0) -> Iterator[Connection]:
    """Run `work` in a process of its own; yield the pipe to it."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(address, count, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


class Neighbour:
    """Producer whose latency is measured."""

    def __init__(self, cluster: LocalCluster, api_key: str = "") -> None:
        administrator: dict[str, Any] = dict(cluster.client_settings)
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers, **administrator) as admin:
            admin.create_topic(TOPIC, config={"durability": "async"}, assignments=[[1]])
        self._producer = headrace.Producer(
            bootstrap_servers=cluster.bootstrap_servers, acks=1, linger_ms=0, transport="native", api_key=api_key
        )
        self.work(2.0)

    def work(self, seconds: float, until: Connection | None = None) -> dict[str, float]:
        """Send for so long, or until something is in the pipe; return the latencies in ms."""
        waits, started, number = [], time.monotonic(), 0
        while time.monotonic() - started < seconds and not (until is not None and until.poll()):
            due = started + number / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            self._producer.send(TOPIC, bytes(200)).result(timeout=60)
            waits.append((time.monotonic() - due) * 1000)
            number += 1
        return {name: percentiles(waits)[name] for name in ("p50_ms", "p99_ms")} if waits else {}

    def send(self, count: int) -> None:
        """Send `count` records, one at a time."""
        for _ in range(count):
            self._producer.send(TOPIC, bytes(200)).result(timeout=60)

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    return psutil.Process(pid).memory_info().rss / 1e6


def cpu_percent(pid: int, seconds: float) -> float:
    """Return the share of one core that a process uses, in percent."""
    before = processor_seconds(pid)
    time.sleep(seconds)
    return round((processor_seconds(pid) - before) / seconds * 100, 2)


def measure(cluster: LocalCluster, idle: int, opened: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the figures of each case, with those of the neighbour alone before it."""
    broker = cluster.brokers[0]
    pid, address = broker.pid, json.loads(broker.ready_file.read_text())["native_address"]
    assert pid is not None
    neighbour = Neighbour(cluster)

    found: dict[str, Any] = {"case": "idle", "connections": idle, "neighbour_alone": neighbour.work(seconds)}
    found |= {"rss_mb_before": round(resident_mb(pid), 1), "cpu_percent_before": cpu_percent(pid, seconds)}
    with strangers(hold, address, idle) as pipe:
        found["opened"] = pipe.recv()
        found |= {"rss_mb": round(resident_mb(pid), 1), "cpu_percent": cpu_percent(pid, seconds)}
        found["neighbour"] = neighbour.work(seconds)
        pipe.send(None)
        found["at_the_end"] = pipe.recv()
    yield found

    found = {"case": "opened", "connections": opened, "neighbour_alone": neighbour.work(seconds)}
    found["rss_mb_before"] = round(resident_mb(pid), 1)
    with strangers(hold, address, opened) as pipe:
        found["neighbour"] = neighbour.work(600.0, until=pipe)
        found["opened"] = pipe.recv()
        found["rss_mb"] = round(resident_mb(pid), 1)
        pipe.send(None)
        found["at_the_end"] = pipe.recv()
    yield found

    found = {"case": "broken frames", "neighbour_alone": neighbour.work(seconds)}
    for name, work in (("neighbour_of_a_busy_core", burn), ("neighbour", flood)):
        with strangers(work, address) as pipe:
            pipe.recv()
            started = time.monotonic()
            found[name] = neighbour.work(seconds)
            pipe.send(None)
            count = pipe.recv()
            if count is not None:
                found["connections_per_s"] = round(count / (time.monotonic() - started))
    neighbour.close()
    yield found


def main(
    idle: Annotated[int, typer.Option(help="Number of idle connections.", min=1)] = 2_000,
    opened: Annotated[int, typer.Option(help="Number of connections to open.", min=1)] = 10_000,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement in seconds.", min=1)] = 30.0,
) -> None:
    """Measure connections of the native protocol."""
    limit = raise_limit()
    settings = {"max_native_connections": 100_000}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as cluster:
        cluster.wait_until_healthy()
        note = f"a broker takes at most a quarter of the {limit} open files that this machine allows"
        if opened > limit // 4:
            note += f": {opened} connections find no place at once"
        print(json.dumps({"note": note, "load_average": os.getloadavg()[0]}), flush=True)
        for found in measure(cluster, idle, opened, seconds):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: stops the cluster and removes its directory.
    typer.run(main)
