"""`python -m bench.pipeline`: latency of a record from its producer into a table (the paper, section 4: 10 s).

A producer sends at a fixed rate, and `python -m spark_jobs.load` runs repeatedly, each run after the previous one, as
from a timer without delay. A record is in the table when the run that committed it has ended. Broker, producer and
Spark share the machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Annotated, NamedTuple

import headrace
import typer

from bench.load import PAPER_BYTES
from bench.open_loop import due_times_ns
from bench.stage import Stage, Target


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


class Loaded(NamedTuple):
    """Result of one run of the job."""

    end: int
    """End offset: the table has every offset below it."""
    at: float
    """Time of the end of the run, on the monotonic clock."""
    seconds: float
    """Duration of the job after the start of Spark."""


def load(target: Target, table: str) -> Loaded:
    """Run the job once."""
    command = [sys.executable, "-m", "spark_jobs.load", "--topic", target.topic, "--table", table, "--json", "--quiet"]
    done = subprocess.run([*command, "-b", target.bootstrap_servers], stdout=subprocess.PIPE, check=True)
    summary = json.loads(done.stdout)
    return Loaded(int(summary["positions"].get("0", 0)), time.monotonic(), summary["seconds"])


def main(
    rate: Annotated[int, typer.Option(help="Records per second.", min=1)] = 1_000,
    seconds: Annotated[float, typer.Option(help="Duration of the load in seconds.", min=1)] = 90.0,
) -> None:
    """Print the latency of records and the duration of runs."""
    busy = os.getloadavg()[0]
    waits: list[float] = []
    runs: list[float] = []
    inside: list[float] = []
    with Stage(0) as stage, tempfile.TemporaryDirectory() as table, stage.topic() as target:
        with Sender(target, rate) as sender:
            until = time.monotonic() + seconds
            while time.monotonic() < until or len(waits) < len(sender.sent_at):
                if time.monotonic() >= until:
                    sender.stop()
                began = time.monotonic()
                loaded = load(target, f"{table}/table")
                runs.append(loaded.at - began)
                inside.append(loaded.seconds)
                waits += [loaded.at - sent_at for sent_at in sender.sent_at[len(waits) : loaded.end]]
    waits.sort()
    print(f"{len(waits):,} records at {rate:,}/s by {len(runs)} runs of {statistics.median(runs):.1f} s (median)")
    print(f"median time of loading: {statistics.median(inside):.1f} s; the rest is the start and end of Spark")
    print(
        f"latency until a record is in the table: mean {statistics.mean(waits):.1f} s, "
        f"p99 {waits[int(len(waits) * 0.99)]:.1f} s"
    )
    print(f"load average before: {busy:.1f}")


if __name__ == "__main__":
    typer.run(main)
