"""`python -m bench.mirror CASE`: rates and lag of mirrors, and of the promotion of a directory.

Cases: `copy` (a mirror copies a topic to another cluster; in each round a follower of the source copies the same
bytes, too), `lag` (time from the send at the source to the read at the mirror, at a fixed rate), `promote` (a directory
becomes a topic; in each round its files are copied, too). Prints JSON.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.open_loop import SECONDS, STAMP_BYTES, WARM_SECONDS, send_open_loop
from bench.replication import copy_rate, create_topic, log_of, metadata, show, touch_memory, wait_until_in_sync
from bench.stage import wait_until

TOPIC = "bench"
TIMEOUT_SECONDS = 300.0

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@contextmanager
def worker(servers: str) -> Iterator[int]:
    """Run a worker process; yields its process id."""
    process = subprocess.Popen([sys.executable, "-m", "headrace.cli", "mirror", "run", "-q", "-b", servers])
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def fill(servers: str, size_bytes: int, partitions: int = 1) -> None:
    """Send values of 200 bytes to the topic's partitions."""
    values = [n.to_bytes(4, "big") + bytes(196) for n in range(5_000)]
    with headrace.Producer(bootstrap_servers=servers, acks=1) as producer:
        for number in range(size_bytes // 1_000_000):
            producer.send_many(TOPIC, values, partition=number % partitions)
        producer.flush()


def end_offset(admin: headrace.Admin) -> int:
    """Return the records of the topic, by its high watermarks; 0 if there is no topic yet."""
    try:
        return sum(at.offset for at in admin.list_offsets(TOPIC).values())
    except headrace.UnknownTopicError:
        return 0


def begin(mirrors: headrace.Mirrors, source: str) -> int:
    """Create a mirror of the topic, and return its end as soon as it has records."""
    mirrors.create("bench", headrace.MirrorSettings({"bootstrap_servers": source}, topics=(TOPIC,)))
    wait_until(lambda: end_offset(mirrors.admin) > 0, "the mirror begins", TIMEOUT_SECONDS)
    return end_offset(mirrors.admin)


def mirror_rate(source: str, size_bytes: int) -> float:
    """Return the bytes per second of a mirror in a new cluster, from its first records."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as target, worker(target.bootstrap_servers):
        with headrace.Admin(bootstrap_servers=source) as admin:
            end = end_offset(admin)
        with headrace.Mirrors(bootstrap_servers=target.bootstrap_servers) as mirrors:
            first = begin(mirrors, source)
            seconds = wait_until(lambda: end_offset(mirrors.admin) >= end, "the mirror ends", TIMEOUT_SECONDS)
            return size_bytes * (end - first) / end / seconds


@app.command()
def copy(
    megabytes: Annotated[int, typer.Option(help="Size of the topic, in MB.")] = 1_000,
    rounds: Annotated[int, typer.Option(help="Pairs of a mirror and a follower.")] = 3,
) -> None:
    """Measure in each round a follower that lost its disk, and a mirror in another cluster, of the same bytes."""
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        with LocalCluster(LocalClusterSpec(brokers=3, broker_settings={"lease_ttl_ms": 2_000})) as running:
            create_topic(running, 1, durability="async")
            wait_until_in_sync(running)
            first = metadata(running)[0]
            leader, follower = running.broker(first.leader_id), running.broker(first.replicas[-1])
            follower.stop()
            fill(running.bootstrap_servers, megabytes * 1_000_000)
            with log_of(leader.address) as read_log:
                there = read_log()
            _make_room(there.size_bytes)
            running.restart(follower)
            rate, _ = copy_rate(leader, follower, there.log_end_offset)
            _make_room(there.size_bytes)
            mirrored = mirror_rate(running.bootstrap_servers, there.size_bytes)
        found.append(
            {
                "follower_mb_s": round(rate / 1e6),
                "mirror_mb_s": round(mirrored / 1e6),
                "share": round(mirrored / rate, 3),
            }
        )
    show(
        {"bytes": there.size_bytes, "rounds": found, "median_share": statistics.median(each["share"] for each in found)}
    )


@app.command()
def lag(
    rate: Annotated[int, typer.Option(help="Records per second.")] = 10_000,
) -> None:
    """Measure the time from the send at the source to the read at the mirror."""
    spec = LocalClusterSpec(brokers=1, coordinators=1)
    with LocalCluster(spec) as source, LocalCluster(spec) as target, worker(target.bootstrap_servers):
        with headrace.Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=1, config={"durability": "async"})
        with headrace.Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(TOPIC, bytes(STAMP_BYTES)).result()
        with headrace.Mirrors(bootstrap_servers=target.bootstrap_servers) as mirrors:
            begin(mirrors, source.bootstrap_servers)
        count = round(rate * (WARM_SECONDS + SECONDS))
        found: list[float] = []

        def read() -> None:
            with headrace.Consumer(bootstrap_servers=target.bootstrap_servers) as consumer:
                consumer.assign({headrace.TopicPartition(TOPIC, 0): 1})
                while len(found) < count:
                    now_ns = 0
                    for record in consumer.poll(1.0):
                        now_ns = now_ns or time.monotonic_ns()
                        found.append((now_ns - int.from_bytes(record.value[:STAMP_BYTES], "little")) / 1e6)

        reader = threading.Thread(target=read)
        reader.start()
        with headrace.Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            send_open_loop(lambda value: producer.send(TOPIC, value, partition=0), rate)
        reader.join()
        later = sorted(found[round(rate * WARM_SECONDS) :])
        show(
            {
                "rate": rate,
                "p50_ms": round(later[len(later) // 2], 1),
                "p99_ms": round(later[len(later) * 99 // 100], 1),
                "max_ms": round(later[-1], 1),
            }
        )


@app.command()
def promote(
    megabytes: Annotated[int, typer.Option(help="Size of the directory, in MB.")] = 1_000,
    rounds: Annotated[int, typer.Option(help="Pairs of a promotion and a copy of the files.")] = 3,
) -> None:
    """Measure in each round a promotion, and a copy of the same files that is fsynced."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        with headrace.open(Path(folder) / "events") as log:
            log.admin.create_topic(TOPIC, config={"durability": "async"})
            fill(log.bootstrap_servers, megabytes * 1_000_000)
        files = list((Path(folder) / "events").rglob("*.log"))
        size_bytes = sum(path.stat().st_size for path in files)
        for _ in range(rounds):
            started = time.monotonic()
            for path in files:
                _copy_file(path, Path(folder) / "copy")
            plain = size_bytes / (time.monotonic() - started)
            with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as target:
                started = time.monotonic()
                headrace.promote(Path(folder) / "events", bootstrap_servers=target.bootstrap_servers)
                promoted = size_bytes / (time.monotonic() - started)
            found.append(
                {
                    "copy_mb_s": round(plain / 1e6),
                    "promote_mb_s": round(promoted / 1e6),
                    "share": round(promoted / plain, 3),
                }
            )
    show({"bytes": size_bytes, "rounds": found, "median_share": statistics.median(each["share"] for each in found)})


def _make_room(size_bytes: int) -> None:
    """Let the next writes wait neither for the disk, which has what was written before, nor for new memory."""
    os.sync()
    touch_memory(size_bytes)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        while data := reader.read(4 << 20):
            writer.write(data)
        writer.flush()
        os.fsync(writer.fileno())
    target.unlink()


if __name__ == "__main__":
    app()
