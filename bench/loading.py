"""`python -m bench.loading`: topics as tables by `headrace load`: throughput a core, and memory.

A backlog of values, which compress about twice, is loaded by a process of its own: MB of values for each second of its
processor time, its start included, and its peak of memory. Broker and load share the machine. Prints a line of JSON for
each format. `python -m bench.pipeline` measures the time until a record is in a table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import headrace
import numpy as np
import pyarrow as pa
import typer

from bench.pipeline import FORMATS, load_command, show
from bench.stage import Stage, Target

VALUE_BYTES = 200
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
    with subprocess.Popen(
        load_command("headrace load", target, table, table_format), stdout=subprocess.DEVNULL, text=True
    ) as child:
        found = ended(child)
    return time.monotonic() - started, found


def main(
    rows: Annotated[int, typer.Option(help="Records of the backlog.", min=1)] = 5_000_000,
    rounds: Annotated[int, typer.Option(help="Loads of the backlog by format; the figures are medians.", min=1)] = 3,
    formats: Annotated[list[str] | None, typer.Option("--format", help="Formats of tables; all by default.")] = None,
) -> None:
    """Print throughput and memory of loads."""
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


if __name__ == "__main__":
    typer.run(main)
