"""`python -m bench.loading`: topics as tables by `headrace load`: throughput a core, memory, time until a row is seen.

A backlog of values, which compress about twice, is loaded by a process of its own: MB of values for each second of its
processor time, its start included, and its peak of memory. Then a producer sends at a fixed rate, the process follows,
and a record counts as seen when a query of the table at a commit finds its offset. Broker, producer and load share the
machine. Prints a line of JSON for each case.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import duckdb
import headrace
import numpy as np
import pyarrow as pa
import typer
from headrace.client.loading.formats import LoadFormat, open_table

from bench.pipeline import Sender
from bench.stage import Stage, Target

VALUE_BYTES = 200
FORMATS = ("parquet", "delta", "iceberg")
BATCH_ROWS = 100_000


class Ended(NamedTuple):
    """What a process used."""

    processor_seconds: float
    peak_bytes: int


def values_of(count: int) -> pa.Array:
    """Return JSON values of about VALUE_BYTES, half of them hexadecimal digits by chance."""
    chance = np.random.default_rng(1)
    digits = chance.bytes(count * 50).hex()
    numbers = chance.integers(0, 10**6, count).tolist()
    values = [
        b'{"user":%d,"page":"/products/%d","referrer":"https://example.org/search?q=%d","session":"%s"}'
        % (number, number % 997, number % 89, digits[place * 100 : place * 100 + 100].encode())
        for place, number in enumerate(numbers)
    ]
    return pa.array(values, pa.binary())


def fill(target: Target, rows: int) -> int:
    """Send rows; return the size of their values in bytes."""
    size = 0
    with headrace.Producer(**target.client_settings, batch_bytes=1 << 20) as producer:
        values = values_of(BATCH_ROWS)
        for first in range(0, rows, BATCH_ROWS):
            part = values.slice(0, min(BATCH_ROWS, rows - first))
            producer.send_many(target.topic, part, partition=0)
            size += sum(len(value) for value in part.to_pylist())
    return size


def command(target: Target, table: str, table_format: str, *more: str) -> list[str]:
    """Return the command of a load."""
    servers = ["-b", target.bootstrap_servers, "--format", table_format, "-o", "json"]
    return [sys.executable, "-m", "headrace.cli", "load", target.topic, "--to", table, *servers, *more]


def ended(child: subprocess.Popen[str]) -> Ended:
    """Wait for a process, which must succeed."""
    peak = 0
    while not has_ended(child.pid):  # The kernel's figure includes this process, of which the child is a fork.
        lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
        peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), peak)
        time.sleep(0.05)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, child.args
    return Ended(usage.ru_utime + usage.ru_stime, peak)


def has_ended(pid: int) -> bool:
    """Return whether a child has ended and waits to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def load_backlog(target: Target, table: str, table_format: str) -> tuple[float, Ended]:
    """Load what there is; return the seconds and what it used."""
    started = time.monotonic()
    with subprocess.Popen(command(target, table, table_format), stdout=subprocess.DEVNULL, text=True) as child:
        found = ended(child)
    return time.monotonic() - started, found


def follow(
    target: Target, table: str, table_format: str, rate: int, seconds: float, every: float
) -> tuple[list[float], Ended]:
    """Load while records come; return the seconds until each was seen, and what the load used."""
    waits: list[float] = []
    with headrace.Producer(**target.client_settings) as producer:
        producer.send(target.topic, b"first", partition=0)
    arguments = command(target, table, table_format, "--follow", "--every", str(every))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        commits = (json.loads(line) for line in child.stdout)
        next(commits)  # It is up, and has loaded the first record.
        with Sender(target, rate) as sender:
            until = time.monotonic() + seconds
            for told in commits:
                if "loaded" in told:
                    break
                if not told["rows"]:
                    continue
                end = seen(table, table_format)  # Of the records without the first one, the end is the last offset.
                now = time.monotonic()
                waits += [now - sent_at for sent_at in sender.sent_at[len(waits) : end]]
                if now >= until:
                    sender.stop()
                    if len(waits) == len(sender.sent_at):
                        child.terminate()
        found = ended(child)
    return waits, found


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
    rows: Annotated[int, typer.Option(help="Records of the backlog.", min=1)] = 5_000_000,
    rounds: Annotated[int, typer.Option(help="Loads of the backlog by format; the figures are medians.", min=1)] = 3,
    rate: Annotated[int, typer.Option(help="Records per second to follow.", min=1)] = 5_000,
    seconds: Annotated[float, typer.Option(help="Duration of following.", min=1)] = 60.0,
    every: Annotated[float, typer.Option(help="Interval of commits in seconds.", min=0.1)] = 5.0,
    formats: Annotated[list[str] | None, typer.Option("--format", help="Formats of tables; all by default.")] = None,
) -> None:
    """Print throughput, memory and latency of loads."""
    show(case="machine", load_average_before=round(os.getloadavg()[0], 1))
    with Stage(0) as stage, tempfile.TemporaryDirectory() as directory:
        with stage.topic() as target:
            size = fill(target, rows)
            for table_format in formats or FORMATS:
                found = []
                for place in range(rounds):
                    took, used = load_backlog(target, f"{directory}/{table_format}-{place}", table_format)
                    found.append((size / 1e6 / used.processor_seconds, size / 1e6 / took, used.peak_bytes / 1e6))
                core, clock, peak = (round(statistics.median(figures)) for figures in zip(*found, strict=True))
                show(case=f"backlog, {table_format}", mb_per_core_second=core, mb_per_second=clock, peak_mb=peak)
        for table_format in formats or FORMATS:
            with stage.topic() as target:
                table = str(Path(directory) / f"followed-{table_format}")
                waits, used = follow(target, table, table_format, rate, seconds, every)
                show(
                    case=f"follow, {table_format}",
                    records=len(waits),
                    every_s=every,
                    mean_s=round(statistics.mean(waits), 2),
                    p99_s=round(percentile(waits, 0.99), 2),
                    peak_mb=round(used.peak_bytes / 1e6),
                    processor_share=round(used.processor_seconds / seconds, 3),
                )


if __name__ == "__main__":
    typer.run(main)
