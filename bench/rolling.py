"""`python -m bench.rolling CASE`: effects of broker restarts on clients, as JSON.

Cases: `restart` (each of three brokers is drained, stopped and started again, one after the other, under a load that
does not wait for responses) and `ready` (time from the start of a broker on an empty disk until it serves).

The load is a separate process (`send`), so that it does not share an interpreter with the observer. Every value has a
number, so that lost and duplicated records are found at the end.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.cluster_health import describe_cluster
from headrace_devcluster.service import LocalService

from bench.children import guarded
from bench.open_loop import due_times_ns, percentiles
from bench.replication import TOPIC, create_topic, in_sync, show, wait_until_in_sync

NUMBER_BYTES = 8
LOOK_SECONDS = 0.02
DRAIN_SECONDS = 60
MAX_NAMED = 5

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.command("restart")
def restart(
    rate: Annotated[int, typer.Option(help="Records per second.")] = 10_000,
    partitions: Annotated[int, typer.Option(help="Number of partitions, with three replicas each.")] = 12,
    value_bytes: Annotated[int, typer.Option(help="Size of a value in bytes.", min=NUMBER_BYTES)] = 200,
    calm: Annotated[float, typer.Option(help="Seconds of load before, between and after restarts.")] = 5.0,
    durability: Annotated[str, typer.Option(help="fsync or async.")] = "fsync",
    machines: Annotated[
        bool,
        typer.Option(
            "--machines",
            help="With each broker goes what may run on its machine: the controller is told to stop with it, and the "
            "member of three of etcd that leads the others is killed.",
        ),
    ] = False,
) -> None:
    """Restart every broker under load; print failed, lost and duplicated records, and latencies since each due time."""
    spec = LocalClusterSpec(etcd_members=3 if machines else 1)
    with LocalCluster(spec) as running, tempfile.TemporaryDirectory() as directory:
        create_topic(running, partitions, durability=durability)
        wait_until_in_sync(running)
        with sending(running, rate, value_bytes, Path(directory)) as sender, looking(running) as behind:
            time.sleep(2 * calm)
            begun = time.monotonic()
            restarts = []
            for broker in running.brokers:
                restarts.append(restart_one(running, broker, machine=machines))
                time.sleep(calm)
            ended = time.monotonic()
            time.sleep(calm)
            healed = wait_until_in_sync(running)
            sent = sender()
        found = read_numbers(running)
    calm_waits = [wait for due, wait in sent.waits if due < begun and due > sent.started + calm]
    waits = [wait for due, wait in sent.waits if begun <= due < ended]
    show(
        {
            "rate": rate,
            "partitions": partitions,
            "durability": durability,
            "sent": sent.count,
            "failed": len(sent.failures),
            "failures": sent.failures[:MAX_NAMED],
            "lost": sum(number not in found for number in sent.acknowledged),
            "duplicates": sum(times - 1 for times in found.values()),
            "calm": percentiles(calm_waits),
            "during_restarts": percentiles(waits),
            "longest_s_by_restart": [
                round(max(wait for due, wait in sent.waits if each["at"] <= due < each["at"] + each["took_s"]) / 1e3, 3)
                for each in restarts
            ],
            "restarts": [{name: value for name, value in each.items() if name != "at"} for each in restarts],
            "under_replicated_s": round(sum(behind), 2),
            "under_replicated_left_s": round(healed, 2),
        }
    )


def restart_one(running: LocalCluster, broker: LocalService, *, machine: bool) -> dict[str, float]:
    """Drain, stop and start a broker as an upgrade does, and wait until all are in sync; return start and seconds.

    `machine`: see `restart`.
    """
    at = time.monotonic()
    command = [sys.executable, "-m", "headrace_broker", "drain", "--timeout", str(DRAIN_SECONDS)]
    for name, value in broker.spec.settings.items():
        command += ["--set", f"{name}={value}"]
    subprocess.run(guarded(command), check=True, stdout=subprocess.DEVNULL)
    drained = time.monotonic()
    neighbours = Neighbours(running) if machine else None
    if neighbours is not None:
        neighbours.go()
    code = broker.stop()
    assert code == 0, f"{broker.name} ended with {code}: {broker.log_tail()}"
    stopped = time.monotonic()
    if neighbours is not None:
        neighbours.come_back()
    running.restart(broker)
    ready = time.monotonic()
    wait_until_in_sync(running)
    done = time.monotonic()
    return {
        "at": at,
        "drain_s": round(drained - at, 2),
        "stop_s": round(stopped - drained, 2),
        "ready_s": round(ready - stopped, 2),
        "in_sync_s": round(done - ready, 2),
        "took_s": round(done - at, 2),
    }


class Neighbours:
    """The leader of etcd, and the controller."""

    def __init__(self, running: LocalCluster) -> None:
        self._running = running
        (self._member,) = (member for member in running.etcd_members if member.is_leader())
        self._controller = running.coordinator(describe_cluster(running.coordinators[0].address).controller_id)

    def go(self) -> None:
        """Kill the etcd member, and send the controller SIGTERM."""
        self._controller.terminate()
        self._member.kill()

    def come_back(self) -> None:
        """Start both again."""
        code = self._controller.stop()
        assert code == 0, f"{self._controller.name} ended with {code}: {self._controller.log_tail()}"
        self._running.restart_etcd(self._member)
        self._running.restart(self._controller)


@contextmanager
def looking(running: LocalCluster) -> Iterator[list[float]]:
    """Poll the metadata; yield the durations in seconds of periods with a replica out of sync."""
    spells: list[float] = []
    end = threading.Event()

    def look() -> None:
        since = 0.0
        while not end.wait(LOOK_SECONDS):
            now = time.monotonic()
            if in_sync(running, 3):
                spells.extend([now - since] if since else [])
                since = 0.0
            else:
                since = since or now
        spells.extend([time.monotonic() - since] if since else [])

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield spells
    finally:
        end.set()
        looker.join()


# --- the load ---


class Sent:
    """Results of the sender."""

    def __init__(self, path: Path) -> None:
        facts = json.loads((path / "facts.json").read_text())
        self.started: float = facts["started"]
        self.count: int = facts["count"]
        self.failures: list[str] = facts["failures"]
        self.waits = list(zip(read_array(path / "due", "d"), read_array(path / "wait", "d"), strict=True))
        """(due time on the monotonic clock, milliseconds from then to the acknowledgement)."""
        self.acknowledged = read_array(path / "numbers", "q")


def read_array(path: Path, kind: str) -> array[Any]:
    """Return an array written by `array.tofile`."""
    found: array[Any] = array(kind)
    found.frombytes(path.read_bytes())
    return found


@contextmanager
def sending(running: LocalCluster, rate: int, value_bytes: int, directory: Path) -> Iterator[Any]:
    """Run the sender; yield a function that stops it and returns its results."""
    arguments = [running.bootstrap_servers, str(rate), str(value_bytes), str(directory)]
    command = [sys.executable, "-m", "bench.rolling", "send", *arguments]
    process = subprocess.Popen(guarded(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def finish() -> Sent:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(180) == 0, "the sender failed"
        return Sent(directory)

    try:
        assert process.stdout is not None
        process.stdout.readline()  # The sender has sent its first record.
        yield finish
    finally:
        process.kill()
        process.wait()


@app.command("send", hidden=True)
def send(bootstrap_servers: str, rate: int, value_bytes: int, directory: Path) -> None:
    """Send numbers at a fixed rate regardless of the outcome until stdin ends; then write their outcomes."""
    ends = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ends.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    due_at, waits, numbers, failures = array("d"), array("d"), array("q"), []
    rest = bytes(value_bytes - NUMBER_BYTES)
    count = 0
    with headrace.Producer(bootstrap_servers=bootstrap_servers, acks="all") as producer:

        def watch(number: int, due: float) -> None:
            def note(future: headrace.RecordFuture) -> None:
                error = future.exception(0)
                if error is not None:
                    failures.append(f"{number}: {error}")
                    return
                # All callbacks run on gRPC's one thread, so the three arrays stay consistent.
                due_at.append(due)
                waits.append((time.monotonic() - due) * 1e3)
                numbers.append(number)

            producer.send(TOPIC, number.to_bytes(NUMBER_BYTES, "little") + rest).add_done_callback(note)

        watch(0, time.monotonic())
        producer.flush(60)
        print("ready", flush=True)
        started = time.monotonic()
        for count, due_ns in enumerate(due_times_ns(rate, lambda _: ends.is_set()), 1):
            watch(count, due_ns / 1e9)
        producer.flush(120)
    for name, values in (("due", due_at), ("wait", waits), ("numbers", numbers)):
        (directory / name).write_bytes(values.tobytes())
    facts = {"started": started, "count": count + 1, "failures": failures}
    (directory / "facts.json").write_text(json.dumps(facts))


def read_numbers(running: LocalCluster) -> Counter[int]:
    """Return the number of occurrences of each number in the topic."""
    found: Counter[int] = Counter()
    with headrace.Reader(TOPIC, bootstrap_servers=running.bootstrap_servers) as reader:
        for record in reader:
            found[int.from_bytes(record.value[:NUMBER_BYTES], "little")] += 1
    return found


# --- start on an empty disk ---


@app.command("ready")
def ready(rounds: Annotated[int, typer.Option(help="Number of brokers to start, one after the other.")] = 10) -> None:
    """Measure the seconds from the start of a broker's process on an empty disk until it is registered and serves."""
    with LocalCluster(LocalClusterSpec(brokers=2, coordinators=1)) as running:
        broker, took = running.broker(2), []
        for _ in range(rounds):
            broker.stop()
            shutil.rmtree(running.directory / "broker-2")
            started = time.monotonic()
            running.restart(broker)
            took.append(time.monotonic() - started)
    show({"rounds": rounds, "median_s": round(statistics.median(took), 2), "max_s": round(max(took), 2)})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: stops the cluster and removes its directory.
    app()
