"""`python -m bench.directory`: topics in a directory (`headrace.open`), compared with SQLite as a queue and its kin.

Records of 100 bytes, in one process: ready lists by `send_many` and single records by `send`, under each durability;
reading in a loop, as Arrow, and a count by SQL; opening in a fresh interpreter; a fixture's life. SQLite (WAL) inserts
and reads rows in transactions of 10,000, and one by one. With `--peers`, diskcache, persist-queue and NATS JetStream,
which `bench/peers/install.sh pip nats` installs. Prints a line of JSON for each case, with the median of some runs.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import headrace
import typer

from bench.load import Load
from bench.peers.clients.task import CHUNK_RECORDS
from bench.peers.measure import PYTHON, ROOT, Client, output_of
from bench.peers.servers import NATS

VALUE = b"x" * 100
OPENING = (
    "import time; begun = time.perf_counter(); import headrace; log = headrace.open({path!r}); "
    "print(time.perf_counter() - begun); log.close()"
)
TRANSACTION = 10_000
NATS_CLIENT = Client(NATS, "nats_client", "nats")


@contextmanager
def opened(durability: str) -> Iterator[headrace.LogDirectory]:
    """Open a new directory with a topic."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as path, headrace.open(f"{path}/log") as log:
        log.admin.create_topic("bench", config={"durability": durability})
        yield log


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure_directory(records: int, durability: str) -> dict[str, float]:
    """Return rates by case."""
    values, found = [VALUE] * records, {}
    with opened(durability) as log:
        with log.producer(return_futures=False) as producer:

            def send_many() -> None:
                producer.send_many("bench", values)
                producer.flush()

            def send() -> None:
                send_one = producer.send
                for value in values:
                    send_one("bench", value)
                producer.flush()

            found[f"send_many, {durability}"] = records / timed(send_many)
            found[f"send, {durability}"] = records / timed(send)

        def loop() -> None:
            for _ in log.reader("bench"):
                pass

        found[f"read in a loop, {durability}"] = 2 * records / timed(loop)
        found[f"read as Arrow, {durability}"] = 2 * records / timed(lambda: log.reader("bench").to_arrow())
        if importlib.util.find_spec("duckdb") is not None:
            count = timed(lambda: log.sql("select count(*) from bench").to_arrow())
            found[f"SQL count, {durability}"] = 2 * records / count
    return found


def measure_sqlite(records: int, synchronous: str) -> dict[str, float]:
    """Return rates of SQLite as a queue by case."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as path:
        connection = sqlite3.connect(f"{path}/queue.db", isolation_level=None)
        connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute("create table queue (id integer primary key, value blob)")

        def insert_many() -> None:
            for _ in range(0, records, TRANSACTION):
                connection.execute("begin")
                rows = ((VALUE,) for _ in range(TRANSACTION))
                connection.executemany("insert into queue (value) values (?)", rows)
                connection.execute("commit")

        def insert_each() -> None:
            for _ in range(records // 100):
                connection.execute("insert into queue (value) values (?)", (VALUE,))

        found = {f"sqlite, transactions of {TRANSACTION}, {synchronous}": records / timed(insert_many)}
        read = timed(lambda: sum(1 for _ in connection.execute("select id, value from queue order by id")))
        found[f"sqlite, one by one, {synchronous}"] = records / 100 / timed(insert_each)
        found[f"sqlite, read, {synchronous}"] = records / read
        connection.close()
    return found


def measure_queues(records: int) -> dict[str, float]:
    """Return rates of the queues in `bench.peers.clients.queues`, in the peers' environment."""
    found: dict[str, float] = {}
    count = max(CHUNK_RECORDS, records // 20 // CHUNK_RECORDS * CHUNK_RECORDS)
    for library, what in (("diskcache", "Deque"), ("persistqueue", "SQLiteQueue")):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as path:
            for operation in ("in", "out"):
                task = {
                    "operation": f"{library}-{operation}", "port": 0, "topic": f"{path}/queue", "records": count,
                    "value_bytes": len(VALUE),
                }  # fmt: skip
                environment = ["env", f"PYTHONPATH={ROOT}"]
                program = [str(PYTHON), "-m", "bench.peers.clients.queues", json.dumps(task)]
                seconds = json.loads(output_of([*environment, *program]).splitlines()[-1])["seconds"]
                found[f"{library}.{what}, {operation}"] = count / seconds
    return found


def measure_nats(records: int) -> dict[str, float]:
    """Return rates of NATS JetStream: one server process on loopback, and nats-py."""
    load = Load(max(CHUNK_RECORDS, records // 20), len(VALUE))
    with NATS.running() as running:
        return {
            f"NATS JetStream, nats-py, {operation}": load.records
            / NATS_CLIENT.run(operation, running, "bench", load)["seconds"]
            for operation in ("in", "out")
        }


def measure_opening(runs: int) -> dict[str, float]:
    """Return seconds: of import and open in a fresh interpreter, and of a fixture's life in this one."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as path:
        cold = []
        for number in range(runs):
            code = OPENING.format(path=f"{path}/{number}")
            cold.append(float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))

        def fixture(number: int) -> None:
            with headrace.open(Path(path) / f"fixture-{number}") as log:
                log.admin.create_topic("clicks")

        lives = [timed(lambda number=number: fixture(number)) for number in range(5 * runs)]  # type: ignore[misc]
    return {
        "seconds: import and open": statistics.median(cold),
        "seconds: open, one topic, close": statistics.median(lives),
    }


def main(
    records: Annotated[int, typer.Option(help="Records of each case.")] = 1_000_000,
    runs: Annotated[int, typer.Option(help="Runs, in turns.")] = 3,
    peers: Annotated[bool, typer.Option("--peers", help="Also measure other queues.")] = False,
) -> None:
    """Measure topics in a directory."""
    if peers and (missing := NATS_CLIENT.missing()):
        raise typer.BadParameter(missing)
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for rates in (
            measure_directory(records, "async"),
            measure_directory(records, "fsync"),
            measure_sqlite(records, "normal"),
            measure_sqlite(records, "full"),
            measure_queues(records) if peers else {},
            measure_nats(records) if peers else {},
        ):
            for case, rate in rates.items():
                found.setdefault(case, []).append(rate)
    for case, all_of in found.items():
        print(json.dumps({"case": case, "a second": round(statistics.median(all_of)), "runs": len(all_of)}))
    for case, seconds in measure_opening(runs).items():
        print(json.dumps({"case": case, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    typer.run(main)
