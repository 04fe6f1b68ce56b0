"""`python -m bench.pipeline`: time from a producer into a table (the paper, section 4: 10 s), with and without Spark.

A producer sends at a fixed rate, a load follows, `headrace load` or `python -m spark_jobs.load`, and a record counts as
seen when a query of the table at a commit finds its offset. The clock starts when the load is up. Broker, producer,
load and query share the machine. Prints a line of JSON for each case.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import duckdb
import headrace
import psutil
import typer
from headrace.client.loading.formats import LoadFormat, open_table

from bench.load import PAPER_BYTES
from bench.open_loop import due_times_ns
from bench.stage import Stage, Target

FORMATS = ("parquet", "delta", "iceberg")
LOADERS = ("headrace load", "spark_jobs.load")


class Sender:
    """Sender at a fixed rate until `stop`, with the due time of each offset of the only partition."""

    def __init__(self, target: Target, rate: int) -> None:
        self.sent_at: list[float] = []
        self._target, self._rate = target, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        with headrace.Producer(bootstrap_servers=self._target.bootstrap_servers, return_futures=False) as producer:
            for due_ns in due_times_ns(self._rate, lambda _: self._over.is_set()):
                producer.send(self._target.topic, bytes(PAPER_BYTES), partition=0)
                self.sent_at.append(due_ns / 1e9)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Flush and stop sending. Idempotent."""
        self._over.set()
        self._thread.join()


class Used(NamedTuple):
    """What a process and its children have used."""

    processor_seconds: float
    resident_bytes: int


class Followed(NamedTuple):
    """Result of a load that followed."""

    waits: list[float]
    """Time in seconds until each record was seen."""
    commits: int
    processor_seconds: float
    """Of the load since it was up, with its children."""
    peak_bytes: int
    """Memory of the load and its children, at most, at a commit."""


def load_command(loader: str, target: Target, table: str, table_format: str, *more: str) -> list[str]:
    """Return the command of a load, which prints JSON."""
    if loader == "headrace load":
        command = ["headrace.cli", "load", target.topic, "--to", table, "-o", "json"]
    else:
        command = ["spark_jobs.load", "--topic", target.topic, "--table", table, "--json", "--quiet"]
    return [sys.executable, "-m", *command, "-b", target.bootstrap_servers, "--format", table_format, *more]


def follow(
    loader: str, target: Target, table: str, table_format: str, rate: int, seconds: float, every: float
) -> Followed:
    """Load while records come."""
    waits: list[float] = []
    commits = peak = 0
    with headrace.Producer(**target.client_settings) as producer:
        producer.send(target.topic, b"first", partition=0)
    arguments = load_command(loader, target, table, table_format, "--follow", "--every", str(every))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = (json.loads(line) for line in child.stdout)
        next(lines)  # It is up, and has loaded the first record.
        before = used = used_by(child.pid)
        with Sender(target, rate) as sender:
            until = time.monotonic() + seconds
            for told in lines:
                if "loaded" in told or "job" in told:
                    break
                if not told["rows"]:
                    continue
                end = seen(table, table_format)  # Of the records without the first one, the end is the last offset.
                now = time.monotonic()
                waits += [now - sent_at for sent_at in sender.sent_at[len(waits) : end]]
                commits += 1
                used = used_by(child.pid)
                peak = max(peak, used.resident_bytes)
                if now >= until:
                    sender.stop()
                    if len(waits) == len(sender.sent_at):
                        child.terminate()
        assert child.wait() == 0, arguments
    return Followed(waits, commits, used.processor_seconds - before.processor_seconds, peak)


def used_by(pid: int) -> Used:
    """Return what a process and its children have used so far."""
    parent = psutil.Process(pid)
    times, resident = parent.cpu_times(), parent.memory_info().rss
    total = times.user + times.system + times.children_user + times.children_system
    for child in parent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
            resident += child.memory_info().rss
    return Used(total, resident)


def seen(table: str, table_format: str) -> int:
    """Return the greatest offset that a query of the table sees; -1 if there is none."""
    if table_format == "parquet":
        query = f"select max(\"offset\") from read_parquet('{table}/*/*.parquet')"
    else:
        files = open_table(table, LoadFormat(table_format), "", is_typed=False).data_files()
        query = f'select max("offset") from read_parquet({list(map(str, files))})'
    with duckdb.connect() as connection:
        ((found,),) = connection.sql(query).fetchall()
    return -1 if found is None else int(found)


def show(**figures: Any) -> None:
    """Print a line."""
    print(json.dumps(figures), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of them is."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main(
    rate: Annotated[int, typer.Option(help="Records per second.", min=1)] = 50_000,
    seconds: Annotated[float, typer.Option(help="Duration of the load in seconds.", min=1)] = 30.0,
    every: Annotated[float, typer.Option(help="Interval of commits in seconds.", min=0.1)] = 5.0,
    formats: Annotated[list[str] | None, typer.Option("--format", help="Formats of tables; all by default.")] = None,
    loaders: Annotated[list[str] | None, typer.Option("--loader", help="Programs that load; both by default.")] = None,
) -> None:
    """Print the time until records are in a table."""
    show(case="machine", load_average_before=round(os.getloadavg()[0], 1))
    with Stage(0) as stage, tempfile.TemporaryDirectory() as directory:
        for loader in loaders or LOADERS:
            for table_format in formats or FORMATS:
                with stage.topic() as target:
                    found = follow(
                        loader, target, f"{directory}/{loader}-{table_format}", table_format, rate, seconds, every
                    )
                show(
                    case=f"{loader}, {table_format}",
                    records=len(found.waits),
                    commits=found.commits,
                    every_s=every,
                    mean_s=round(statistics.mean(found.waits), 2),
                    p99_s=round(percentile(found.waits, 0.99), 2),
                    peak_mb=round(found.peak_bytes / 1e6),
                    processor_share=round(found.processor_seconds / seconds, 3),
                )


if __name__ == "__main__":
    typer.run(main)
