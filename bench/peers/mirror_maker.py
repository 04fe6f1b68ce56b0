"""`python -m bench.peers.mirror_maker`: a mirror between two clusters, and MirrorMaker 2 between two of Kafka.

Each cluster has one broker, and nothing is flushed to the disk. In each round the same number of records of 200 bytes
is copied by one process of each, with the source filled beforehand. Rates count from the time when a quarter is there,
so that neither the start of a process nor the compilation by Java's virtual machine is part of them. Prints JSON.
"""

from __future__ import annotations

import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.load import Load
from bench.mirror import TIMEOUT_SECONDS, TOPIC, begin, end_offset, fill, worker
from bench.peers.measure import run_java
from bench.peers.servers import KAFKA_4, PEERS, Running, java, kafka, needs, needs_all, spawn
from bench.processor import processor_seconds
from bench.replication import show
from bench.stage import wait_until

JARS = PEERS / "mirror-maker"
VALUE_BYTES = 200
HEADER = struct.Struct(">qiibIhi")
"""Begin of a batch in Kafka's log: base offset, bytes behind this field, epoch, magic, CRC, attributes, last record."""
LENGTH_END = 12
"""Bytes up to the end of the length."""
SETTINGS = {
    "clusters": "source, target",
    "source->target.enabled": "true",
    "source->target.topics": TOPIC,
    "target->source.enabled": "false",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "emit.heartbeats.enabled": "false",
    **{f"{name}.replication.factor": 1 for name in ("checkpoints.topic", "offset-syncs.topic", "heartbeats.topic")},
    **{f"{name}.storage.replication.factor": 1 for name in ("offset", "status", "config")},
    "replication.factor": 1,
    "source.consumer.max.poll.records": 5_000,
    "source.consumer.max.partition.fetch.bytes": 4 << 20,
    "source.consumer.fetch.max.bytes": 64 << 20,
    "target.producer.batch.size": 512 << 10,
    "target.producer.linger.ms": 5,
    "target.producer.buffer.memory": 256 << 20,
}
"""Of MirrorMaker: batches and fetches are large, as its documentation recommends for throughput."""


class KafkaLog:
    """Log of one partition of Kafka, read from its files: a client would take part in the measurement."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._positions: dict[Path, int] = {}
        self._end_offset = 0

    def end_offset(self) -> int:
        """Return the offset behind the last batch."""
        for path in sorted(self._directory.glob("*.log")):
            position = self._positions.get(path, 0)
            with path.open("rb") as file:
                while len(header := os.pread(file.fileno(), HEADER.size, position)) == HEADER.size:
                    base, size_bytes, *_, last = HEADER.unpack(header)
                    if not size_bytes:
                        break
                    self._end_offset, position = base + last + 1, position + LENGTH_END + size_bytes
            self._positions[path] = position
        return self._end_offset


def measured(end: Callable[[], int], records: int, pids: Sequence[int]) -> dict[str, float]:
    """Return MB per second, and the processes' processor time per GB, from a quarter of the records to the last one."""
    wait_until(lambda: end() >= records // 4, "a quarter is copied", TIMEOUT_SECONDS)
    first, used, started = end(), sum(map(processor_seconds, pids)), time.monotonic()
    wait_until(lambda: end() >= records, "everything is copied", TIMEOUT_SECONDS)
    seconds, used = time.monotonic() - started, sum(map(processor_seconds, pids)) - used
    size_bytes = (records - first) * VALUE_BYTES
    return {"mb_s": round(size_bytes / seconds / 1e6, 1), "cpu_s_per_gb": round(used / size_bytes * 1e9, 2)}


def mirror(records: int, partitions: int) -> dict[str, float]:
    """Measure a mirror, with the brokers that it connects."""
    spec = LocalClusterSpec(brokers=1, coordinators=1)
    with LocalCluster(spec) as source, LocalCluster(spec) as target:
        with headrace.Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions, config={"durability": "async"})
        fill(source.bootstrap_servers, records * VALUE_BYTES, partitions)
        with (
            worker(target.bootstrap_servers) as pid,
            headrace.Mirrors(bootstrap_servers=target.bootstrap_servers) as mirrors,
        ):
            begin(mirrors, source.bootstrap_servers)
            brokers = [
                broker.pid for cluster in (source, target) for broker in cluster.brokers if broker.pid is not None
            ]
            return measured(lambda: end_offset(mirrors.admin), records, [pid, *brokers])


@contextmanager
def mirror_maker(source: Running, target: Running, partitions: int) -> Iterator[int]:
    """Run MirrorMaker; yields its process id."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-peer-")))
        servers = {
            f"{name}.bootstrap.servers": f"127.0.0.1:{running.ports['kafka']}"
            for name, running in (("source", source), ("target", target))
        }
        file = directory / "mirror.properties"
        settings = {**SETTINGS, **servers, "tasks.max": partitions}
        file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        process = spawn([*java(JARS, main, "-Xms1g", "-Xmx1g"), file], directory, stack)
        yield process.pid


def peer(records: int, partitions: int) -> dict[str, float]:
    """Measure MirrorMaker, with the brokers that it connects."""
    server = kafka(4, partitions=partitions)
    with server.running() as source, server.running() as target:
        run_java("in", source.ports["kafka"], TOPIC, Load(records, VALUE_BYTES), 0)
        logs = [KafkaLog(target.directory / "1" / "data" / f"{TOPIC}-{number}") for number in range(partitions)]
        with mirror_maker(source, target, partitions) as pid:
            return measured(lambda: sum(log.end_offset() for log in logs), records, [pid, *source.pids, *target.pids])


def main(
    megabytes: Annotated[int, typer.Option(help="Values to copy, in MB.")] = 800,
    partitions: Annotated[int, typer.Option(help="Partitions of the topic, and tasks of MirrorMaker.")] = 1,
    rounds: Annotated[int, typer.Option(help="Pairs of measurements.")] = 3,
) -> None:
    """Measure in each round a mirror, and MirrorMaker."""
    if reason := needs_all(KAFKA_4.missing, needs(JARS, "mirror_maker"))():
        raise SystemExit(reason)
    records = megabytes * 1_000_000 // VALUE_BYTES
    found = [{"mirror": mirror(records, partitions), "mirror_maker": peer(records, partitions)} for _ in range(rounds)]
    ratio = statistics.median(each["mirror"]["mb_s"] / each["mirror_maker"]["mb_s"] for each in found)
    show({"megabytes": megabytes, "partitions": partitions, "rounds": found, "median_ratio": round(ratio, 2)})


if __name__ == "__main__":
    typer.run(main)
