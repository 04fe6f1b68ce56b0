"""Cases of the peers' clients: programs in the peers' environment, with servers started once."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.case import MB, Sample
from bench.children import guarded
from bench.latency import reader
from bench.load import PAPER_BYTES, Load
from bench.peers.servers import KAFKA_4, PEERS, Running, Server, java, needs, needs_all
from bench.stage import Meter, Stage, read_through

PYTHON = PEERS / "venv" / "bin" / "python"
LIBRDKAFKA = PEERS / "librdkafka"
JAVA_CLIENTS = PEERS / "kafka-4"
"""Jars of Kafka's own clients, the newest with every server."""
ROOT = Path(__file__).parents[2]
PROGRAM_SECONDS = 600
ROUND_RECORDS = 10_000
"""Loads are multiples of it, so that every client's blocks divide them."""

Marks = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Client:
    """Client of a peer."""

    server: Server
    program: str
    """Module of `bench.peers.clients`, `librdkafka`, or `java`."""
    protocol: str
    """Protocol, which selects the server's port."""
    share: float = 1.0
    """Share of the usual load; less for slow clients."""
    batch: int = 0
    """Records per batch; `0` means the client's default."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Further settings by the client's names."""

    def missing(self) -> str:
        """Return why the client cannot be measured here; an empty string if it can."""
        client = {"java": needs(JAVA_CLIENTS, "kafka"), "librdkafka": needs(LIBRDKAFKA, "c")}
        return needs_all(self.server.missing, needs(PYTHON, "pip"), client.get(self.program, lambda: ""))()

    def load(self, stage: Stage) -> Load:
        """Return the client's load."""
        records = max(1, round(stage.records * self.share / ROUND_RECORDS)) * ROUND_RECORDS
        return Load(records, PAPER_BYTES)

    def run(self, operation: str, running: Running, topic: str, load: Load, rate: int = 0) -> dict[str, Any]:
        """Run its program once; return its output."""
        port = running.ports[self.protocol]
        match self.program:
            case "java":
                return run_java(operation, port, topic, load, self.batch)
            case "librdkafka":
                return run_librdkafka(operation, port, topic, load, self.batch, str(self.settings.get("acks", 1)))
        output = output_of(self.command(operation, running, topic, load, rate))
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    def command(self, operation: str, running: Running, topic: str, load: Load, rate: int) -> list[str]:
        """Return the command of a Python client."""
        task = {
            "operation": operation,
            "port": running.ports[self.protocol],
            "topic": topic,
            "records": load.records,
            "value_bytes": load.value_bytes,
            "batch": self.batch,
            "rate": rate,
            "settings": dict(self.settings),
        }
        return ["env", f"PYTHONPATH={ROOT}", str(PYTHON), "-m", f"bench.peers.clients.{self.program}", json.dumps(task)]


CONFLUENT = Client(KAFKA_4, "confluent", "kafka")
"""Client that creates and deletes topics of every Kafka."""


@dataclass(frozen=True, slots=True)
class PeerIn:
    """Producing by a peer's client; a call measures it once."""

    client: Client
    operation: str = "in"

    def __call__(self, stage: Stage) -> Sample:
        """Send the load to a new topic."""
        load, running = self.client.load(stage), server_of(stage, self.client.server)
        with topic_of(self.client, running, "bench-in") as topic:
            meter = Meter(running.pids)
            return sample_of(meter, load, self.client.run(self.operation, running, topic, load))


@dataclass(frozen=True, slots=True)
class PeerOut:
    """Consuming by a peer's client of records sent by another; a call measures it once."""

    client: Client
    filler: Client
    operation: str = "out"
    drains: bool = False
    """Whether consumed records are removed, so that each repetition must send them again."""

    def __call__(self, stage: Stage) -> Sample:
        """Read the load from the start."""
        load, running = self.client.load(stage), server_of(stage, self.client.server)

        @contextmanager
        def fill() -> Iterator[str]:
            topic = f"bench-out-{self.filler.protocol}-{load.records}"
            self.filler.run("in", running, topic, load)
            yield topic

        if self.drains:
            with fill() as topic:
                return self._measure(running, topic, load)
        topic = stage.kept(("filled", self.client.server.name, self.filler.protocol, load), fill)
        read_through(files_below(running.directory))
        return self._measure(running, topic, load)

    def _measure(self, running: Running, topic: str, load: Load) -> Sample:
        meter = Meter(running.pids)
        return sample_of(meter, load, self.client.run(self.operation, running, topic, load))


@dataclass(frozen=True, slots=True)
class PeerLatency:
    """End-to-end latency at a rate, open loop; a call measures it once."""

    client: Client
    rate: int = 10_000

    def __call__(self, stage: Stage) -> Sample:
        """Run a sender and a reader, each in a process."""
        running, load = server_of(stage, self.client.server), Load(ROUND_RECORDS, PAPER_BYTES)
        with topic_of(self.client, running, "bench-latency") as topic:
            command = self.client.command("latency-out", running, topic, load, self.rate)
            with reader(guarded(command)) as result:
                self.client.run("latency-in", running, topic, load, self.rate)
                return Sample(result())


def files_below(directory: Path) -> Iterator[Path]:
    """Yield every regular file, except those deleted meanwhile."""
    for place, _, names in os.walk(directory):
        yield from filter(Path.is_file, (Path(place, name) for name in names))


def server_of(stage: Stage, server: Server) -> Running:
    """Return the server, started at first use."""
    running: Running = stage.kept(("server", server.name), server.running)
    return running


@contextmanager
def topic_of(client: Client, running: Running, name: str) -> Iterator[str]:
    """Yield a topic for one measurement. Kafka's are created and deleted; other programs empty a permanent one."""
    name = f"{name}-{client.protocol}"
    if client.protocol != "kafka":
        yield name
        return
    load = Load(0, PAPER_BYTES)
    CONFLUENT.run("make", running, name, load)
    try:
        yield name
    finally:
        CONFLUENT.run("delete", running, name, load)


def sample_of(meter: Meter, load: Load, found: Mapping[str, Any]) -> Sample:
    """Return the figures of a run; MB are those of the values only, because the peers' framing is not known."""
    seconds = found["seconds"]
    figures = meter.figures(load, seconds, 0, found.get("cpu_seconds", 0.0))
    figures[MB] = load.total_bytes / seconds / 1e6
    marks = [(records * load.value_bytes / 1e6, at) for records, at in found["marks"]]
    return Sample(figures, marks)


def output_of(command: Sequence[str]) -> str:
    """Return the output of a program.

    Raises:
        RuntimeError: If it fails; the message has its output.
    """
    done = subprocess.run(guarded(command), capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
    if done.returncode or not done.stdout.strip():
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise RuntimeError(f"{' '.join(command[:5])} ended with {done.returncode} and said: {said}")
    return done.stdout


def run_librdkafka(operation: str, port: int, topic: str, load: Load, batch: int, acks: str) -> dict[str, Any]:
    """Run the C program; with 5 ms of linger, none at batch 1."""
    command = [str(LIBRDKAFKA), operation, f"127.0.0.1:{port}", topic, str(load.records)]
    if operation == "in":
        command += [str(load.value_bytes), str(batch or 10_000), "0" if batch == 1 else "5", acks]
    seconds, used, *marks = output_of(command).split()
    pairs = [(int(records), float(at)) for records, at in (mark.split(":") for mark in marks)]
    return {"seconds": float(seconds), "cpu_seconds": float(used), "marks": [*pairs, (load.records, float(seconds))]}


def run_java(operation: str, port: int, topic: str, load: Load, batch: int) -> dict[str, Any]:
    """Run Kafka's performance tools; their clock excludes the start of the virtual machine."""
    servers = f"127.0.0.1:{port}"
    before = os.times()
    if operation == "in":
        record_bytes = load.value_bytes + 8
        sizes = {"batch.size": batch * record_bytes + 61 if batch else 1 << 19, "linger.ms": 0 if batch == 1 else 5}
        settings = {"bootstrap.servers": servers, "acks": 1, "buffer.memory": 256 << 20, **sizes}
        output = output_of(
            [
                *java(JAVA_CLIENTS, "org.apache.kafka.tools.ProducerPerformance"),
                *("--topic", topic, "--num-records", str(load.records), "--record-size", str(load.value_bytes)),
                *("--throughput", "-1", "--producer-props", *(f"{name}={value}" for name, value in settings.items())),
            ]
        )
        rates = re.findall(rf"^{load.records} records sent, ([\d.]+) records/sec", output, re.MULTILINE)
        seconds = load.records / float(rates[-1])
    else:
        output = output_of(
            [
                *java(JAVA_CLIENTS, "org.apache.kafka.tools.ConsumerPerformance"),
                *("--bootstrap-server", servers, "--topic", topic, "--messages", str(load.records)),
                *("--timeout", "60000", "--fetch-size", str(8 << 20)),
            ]
        )
        names, values = (line.split(", ") for line in output.strip().splitlines()[-2:])
        seconds = load.records / float(dict(zip(names, values, strict=True))["fetch.nMsg.sec"])
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "cpu_seconds": used, "marks": [(load.records, seconds)]}
