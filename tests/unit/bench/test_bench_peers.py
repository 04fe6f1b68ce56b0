"""The peers' adapters: what is missing, what programs are told and what they print, windows, marks, clean ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from headrace_devcluster.certificates import Authority

from bench import limit, open_loop
from bench.case import MB, RATE
from bench.load import Load, one_batch
from bench.peers import measure, servers
from bench.peers.catalogue import CATALOGUE
from bench.peers.clients import task
from bench.peers.clients.wire import send_in_window
from bench.peers.measure import Client, PeerIn, sample_of
from bench.peers.servers import KAFKA_4, Running, Server, needs, needs_all
from bench.stage import Meter, Stage, wait_until

LOAD = Load(20_000, 200)


def prints(monkeypatch: pytest.MonkeyPatch, text: str) -> list[Sequence[str]]:
    """Programs print this; what is run is noted."""
    commands: list[Sequence[str]] = []

    def output_of(command: Sequence[str]) -> str:
        commands.append(command)
        return text

    monkeypatch.setattr(measure, "output_of", output_of)
    return commands


def test_a_missing_peer_names_how_to_install_it(tmp_path: Path) -> None:
    """The first thing that is missing, by the part of the script that brings it; nothing where all is there."""
    gone = tmp_path / "client"
    assert needs("no-such-program", "debian")() == "no-such-program is not installed: bench/peers/install.sh debian"
    check = needs_all(needs("sh", "debian"), needs(gone, "c"), needs("no-such-program", "pip"))
    assert check() == f"{gone} is not installed: bench/peers/install.sh c"
    gone.touch()
    assert needs_all(needs("sh", "debian"), needs(gone, "c"))() == ""


def test_every_peer_of_the_table_is_a_case_that_runs_or_has_a_reason() -> None:
    """The rows of the issue, in and out, with their targets."""
    names = {case.name for case in CATALOGUE.cases}
    rows = {
        "librdkafka (C), batch 1": "in", "librdkafka (C), batch 50": "in", "librdkafka (C), batch 10000": "in",
        "librdkafka (C)": "out", "Java, batch 1": "in", "Java, batch 50": "in", "Java": "in out",
        "confluent-kafka, batch 1": "in", "confluent-kafka, batch 50": "in", "confluent-kafka, batch 10000": "in",
        "confluent-kafka, batch 10000, callbacks": "in", "confluent-kafka consume(500)": "out",
        "confluent-kafka consume(500), fetch.queue.backoff.ms=1": "out", "confluent-kafka poll()": "out",
        "aiokafka": "in", "kafka-python": "in out",
    }  # fmt: skip
    wanted = {
        f"{side}/{kafka}, {row}"
        for kafka in ("Kafka 3.9", "Kafka 4")
        for row, sides in rows.items()
        for side in sides.split()
    }
    others = ("RabbitMQ streams, bare socket", "RabbitMQ streams, rstream", "RabbitMQ queue, bare socket",
              "ActiveMQ, bare socket", "NATS JetStream, bare socket", "NATS JetStream, nats-py",
              "Redis streams, bare socket", "Redis streams, redis-py", "Fluss, Arrow")  # fmt: skip
    wanted |= {f"{side}/{row}" for row in others for side in ("in", "out")}
    wanted |= {f"latency/{kafka}, confluent-kafka, 10000 a second" for kafka in ("Kafka 3.9", "Kafka 4")}
    wanted |= {"in/Kafka three brokers, acks=all", "latency/Kafka three brokers, acks=all, 10000 a second"}
    assert wanted <= names
    for case in CATALOGUE.cases:
        assert case.missing() == "" or "is not installed: bench/peers/install.sh" in case.missing()


def test_the_program_in_c_is_run_and_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No linger at batch 1, else 5 ms; seconds, processor seconds, and marks to the end."""
    commands = prints(monkeypatch, "2.5 0.75 10000:1.0\n")
    client = Client(KAFKA_4, "librdkafka", "kafka", batch=1)
    found = client.run("in", Running({"kafka": 9}, [], Path()), "t", LOAD)
    assert list(commands[0])[1:] == ["in", "127.0.0.1:9", "t", "20000", "200", "1", "0", "1"]
    assert found == {"seconds": 2.5, "cpu_seconds": 0.75, "marks": [(10_000, 1.0), (20_000, 2.5)]}
    Client(KAFKA_4, "librdkafka", "kafka", batch=50).run("in", Running({"kafka": 9}, [], Path()), "t", LOAD)
    assert list(commands[1])[-3:] == ["50", "5", "1"]
    client.run("out", Running({"kafka": 9}, [], Path()), "t", LOAD)
    assert list(commands[2])[1:] == ["out", "127.0.0.1:9", "t", "20000"]
    replicated = Client(KAFKA_4, "librdkafka", "kafka", settings={"acks": "all"})
    replicated.run("in", Running({"kafka": 9}, [], Path()), "t", LOAD)
    assert commands[3][-1] == "all"


def test_what_java_prints_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of the whole, not of a window on the way; the consumer's without the time to join."""
    client = Client(KAFKA_4, "java", "kafka", batch=50)
    text = "9000 records sent, 1.0 records/sec (0 MB/sec)\n20000 records sent, 8000.0 records/sec (1.53 MB/sec)\n"
    commands = prints(monkeypatch, text)
    assert client.run("in", Running({"kafka": 9}, [], Path()), "t", LOAD)["seconds"] == 2.5
    assert {"linger.ms=5", f"batch.size={50 * 208 + 61}", "acks=1"} <= set(commands[0])
    prints(monkeypatch, "start.time, data.consumed.in.MB, fetch.nMsg.sec\n2030-01-01, 3.8, 5000.0\n")
    assert client.run("out", Running({"kafka": 9}, [], Path()), "t", LOAD)["seconds"] == 4.0


def test_a_client_in_python_is_run_and_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task as JSON, its figures from the last line that it prints."""
    commands = prints(monkeypatch, 'a warning\n{"seconds": 2.0, "cpu_seconds": 1.0, "marks": [[10000, 1.0]]}\n')
    client = Client(KAFKA_4, "confluent", "kafka", batch=7, settings={"linger.ms": 5})
    found = client.run("in", Running({"kafka": 9}, [], Path()), "t", LOAD)
    told = task.Task(**json.loads(commands[0][-1]))
    assert (told.operation, told.port, told.topic, told.records, told.batch) == ("in", 9, "t", 20_000, 7)
    assert told.settings == {"linger.ms": 5}
    sample = sample_of(Meter([]), LOAD, found)
    assert (sample.figures[RATE], sample.figures[MB]) == (10_000.0, 2.0)
    assert list(sample.marks) == [(2.0, 1.0)]


def test_a_failed_clients_output_is_reported() -> None:
    """The end of its error output, and that it failed; a program that prints nothing has failed, too."""
    with pytest.raises(RuntimeError, match="ended with 3 and said: no broker"):
        measure.output_of([sys.executable, "-c", "import sys; print('no broker', file=sys.stderr); sys.exit(3)"])
    with pytest.raises(RuntimeError, match="ended with 0 and said: nothing"):
        measure.output_of([sys.executable, "-c", ""])


def test_loads_are_multiples_of_a_block() -> None:
    """However small the share."""
    stage = Stage(200_000)
    assert [Client(KAFKA_4, "x", "kafka", share).load(stage).records for share in (1.0, 0.52, 0.001)] == [
        200_000,
        100_000,
        10_000,
    ]


class Window:
    """A connection whose other end answers only when it is waited for."""

    def __init__(self) -> None:
        self.sent = self.answered = self.most = 0

    def send(self, data: bytes) -> None:
        self.sent += len(data)
        self.most = max(self.most, self.sent - self.answered)

    def wait_for_answers(self, count: int) -> None:
        self.answered = max(self.answered, count)


def test_a_window_bounds_what_is_unanswered() -> None:
    """Blocks over and over until all is answered."""
    connection = Window()
    steps = list(send_in_window(connection, [b"x" * 10, b"y" * 10], 10, 100, 30))  # type: ignore[arg-type]
    assert (connection.sent, connection.answered, connection.most) == (100, 100, 40)
    assert steps == [0, 0, 0, 10, 20, 30, 40, 50, 60, 70]


def test_a_client_notes_the_time_twenty_times_at_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock starts when it is connected; the last mark is the end."""

    def operation(given: task.Task) -> Iterator[int]:
        yield 0
        yield from range(100, given.records + 1, 100)

    monkeypatch.setattr(sys, "argv", ["x", json.dumps({"operation": "in", "port": 1, "topic": "t", "records": 10_000})])
    monkeypatch.setattr(os, "_exit", lambda code: None)
    task.main({"in": operation})
    found = json.loads(capsys.readouterr().out)
    assert [records for records, _ in found["marks"]] == [*range(500, 10_001, 500), 10_000]
    assert found["seconds"] == found["marks"][-1][1]
    values = task.Task("in", 1, "t", 25_000, 50).values()
    assert (len(values), len(set(values)), {len(value) for value in values}) == (10_000, 10_000, {50})
    assert [len(chunk) for chunk in task.Task("in", 1, "t", 25_000, 50).chunks()] == [10_000, 10_000, 5_000]


def test_an_open_loop_sends_what_is_due_after_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value says when it was due, also those that a stall held up."""
    now = [10**9]
    sent: list[tuple[int, int]] = []
    own_time = SimpleNamespace(
        monotonic_ns=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + int(seconds * 1e9))
    )
    monkeypatch.setattr(open_loop, "time", own_time)

    def send(value: bytes) -> None:
        sent.append((int.from_bytes(value[:8], "little") - 10**9, now[0] - 10**9))
        if len(sent) == 100:
            now[0] += 50_000_000

    open_loop.send_open_loop(send, 1_000)
    assert [due for due, _ in sent] == [number * 1_000_000 for number in range(6_000)]
    late = [at - due for due, at in sent]
    assert max(late[:100]) <= 1_000_000
    assert late[100] == pytest.approx(49_000_000, abs=1_000_000)
    assert max(late[200:]) <= 1_000_000
    assert open_loop.waited_ms((now[0] - 3_000_000).to_bytes(8, "little")) == 3.0


def test_a_topic_of_kafka_is_made_and_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also when the client fails; other peers' stay."""
    operations: list[str] = []

    def run(self: Client, operation: str, *_: Any) -> dict[str, Any]:
        operations.append(operation)
        if operation == "in":
            raise RuntimeError("no")
        return {}

    monkeypatch.setattr(Client, "run", run)
    monkeypatch.setattr(measure, "server_of", lambda *_: Running({"kafka": 1, "redis": 2}, [], tmp_path))
    with pytest.raises(RuntimeError):
        PeerIn(Client(KAFKA_4, "x", "kafka"))(Stage(20_000))
    assert operations == ["make", "in", "delete"]
    with pytest.raises(RuntimeError):
        PeerIn(Client(servers.REDIS, "x", "redis"))(Stage(20_000))
    assert operations[3:] == ["in"]


def listener(port_file: Path) -> list[str]:
    """A program that listens where the kernel says, with a child of its own, and writes port and child."""
    code = (
        "import os, socket, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        f"open({str(port_file)!r} + '.new', 'w').write(f'{{server.getsockname()[1]}} {{child.pid}}')\n"
        f"os.rename({str(port_file)!r} + '.new', {str(port_file)!r})\n"
        "time.sleep(600)\n"
    )
    return [sys.executable, "-c", code]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_server_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """It is there while it is wanted; then it, its children and its directory are gone."""
    port_file, seen = tmp_path / "port", []

    def start(directory: Path, stack: ExitStack) -> Running:
        process = servers.spawn(listener(port_file), directory, stack)
        wait_until(port_file.exists, "the program listens")
        port, child = map(int, port_file.read_text().split())
        servers.wait_for_port(port, process, directory)
        seen.extend([directory, child])
        return Running({"x": port}, [process.pid], directory)

    with Server("fake", lambda: "", start).running() as running:
        assert all(map(psutil.pid_exists, [*running.pids, seen[1]]))
    assert not psutil.pid_exists(running.pids[0])
    assert not seen[0].exists()
    wait_until(lambda: has_ended(seen[1]), "its child ended")


def test_brokers_of_one_kafka_replicate_to_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes vote and keep every record, two acknowledge, with a small heap each; one node has all to itself."""
    commands: list[Any] = []
    monkeypatch.setattr(servers.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(servers, "spawn", lambda command, *_: commands.append(command) or SimpleNamespace(pid=1))
    monkeypatch.setattr(servers, "wait_for_port", lambda *_: None)
    with Server("x", lambda: "", servers.kafka(4, brokers=3).start).running() as running:
        files = [dict(line.split("=", 1) for line in command[-1].read_text().splitlines()) for command in commands]
    assert len(running.pids) == 3
    assert [file["node.id"] for file in files] == ["1", "2", "3"]
    assert len({file["listeners"] for file in files}) == 3
    for file in files:
        assert file["controller.quorum.voters"].count("@127.0.0.1:") == 3
        assert (file["default.replication.factor"], file["min.insync.replicas"]) == ("3", "2")
    assert all("-Xmx384m" in command for command in commands)
    with Server("x", lambda: "", servers.kafka(3).start).running():
        file = dict(line.split("=", 1) for line in commands[3][-1].read_text().splitlines())
    assert (file["default.replication.factor"], file["min.insync.replicas"]) == ("1", "1")
    assert "-Xmx1g" in commands[3]


def test_a_server_that_does_not_start_reports_its_cause(tmp_path: Path) -> None:
    """The end of its log."""
    with ExitStack() as stack:
        process = servers.spawn([sys.executable, "-c", "print('no such plugin')"], tmp_path, stack)
        process.wait()
        with pytest.raises(RuntimeError, match="no such plugin"):
            servers.wait_for_port(servers.free_ports("x")["x"], process, tmp_path)


def test_what_a_killed_bench_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of processes that are gone, and no others."""
    monkeypatch.setattr(servers.tempfile, "gettempdir", lambda: str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f"headrace-peer-{ended.pid}-kafka-x", f"headrace-peer-{os.getpid()}-kafka-x", "headrace-peer-odd", "mine"]
    for name in names:
        (tmp_path / name / "data").mkdir(parents=True)
    servers.remove_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_limits_of_the_machine_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    """Page cache, disk, and sendfile and TLS from and to a process of its own; every byte arrives."""
    batch = one_batch(Load(1, 200))
    assert limit.measure_page_cache(tmp_path, batch, 3) > 0
    assert limit.measure_disk(tmp_path, batch, 3) > 0
    seconds, used = limit.measure_sendfile(tmp_path, batch, 3)
    assert seconds > 0
    assert used >= 0
    assert list(tmp_path.iterdir()) == []
    seconds, used = limit.measure_tls(Authority(tmp_path / "ca", "authority").issue("limit"), batch, 3)
    assert seconds > 0
    assert used >= 0


def test_a_bare_server_takes_and_gives_the_same_bytes() -> None:
    """What was produced last is what a fetch answers; its process ends with it."""
    batch = one_batch(Load(1, 200))
    with limit.bare_server() as server:
        assert limit.measure_in(server.stub, batch, 3) > 0
        assert limit.measure_out(server.stub, 3) > 0
        answer = server.stub.Fetch(limit.broker_pb2.FetchRequest(max_bytes=1))
        assert answer.topics[0].partitions[0].batches == batch
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)
