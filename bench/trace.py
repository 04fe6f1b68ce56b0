"""`python -m bench.trace`: what a request trace costs a server, and how fast one core reads and counts it.

Requests are those of the pool ETC. CPU seconds are counted, so that other load matters little; the median of several
rounds is printed. The target of reading includes the decoding of blocks and everything that `summarise` counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer
from headrace.cli.bench.models import ETC
from headrace.cli.bench.records import BLOCK_RECORDS, KeyPool, made_blocks
from headrace.cli.bench.traced import TraceRecorder
from headrace.cli.bench.workloads import ModelWorkload
from headrace.wire.request_trace import KeySampler, RequestOutcome, TableOperation, TraceBuffer, decode_block
from rich.console import Console
from rich.table import Table
from spark_jobs.trace_analysis.requests import in_order_of_time, joined, requests_of
from spark_jobs.trace_analysis.summary import summarise

TARGET = 1_000_000
"""Target in requests per second and core."""
START_US = 1_700_000_000_000_000
TABLE_ID = bytes(16)
SEED = 1
FRACTION = 0.01


def trace_of(requests: int, keys: int) -> list[bytes]:
    """Return a trace of all keys as blocks."""
    pool = KeyPool(keys, 1, SEED, ETC.key_bytes)
    recorder = TraceRecorder(ETC, "users", TABLE_ID, START_US, 1.0, SEED)
    values = []
    for block in made_blocks(ModelWorkload(replace(ETC, keys=keys), None, SEED), requests, pool, SEED):
        recorder.record(block, 0, len(block.due_s))
        values += [part for columns in recorder.columns() for part in columns.values]
    return values


def read(values: list[bytes]) -> None:
    """Decode and count a trace."""
    summarise(in_order_of_time(joined(requests_of(decode_block(value)) for value in values)))


def capture(keys: list[bytes]) -> None:
    """Record a get of each key at a sampled fraction of the keys."""
    buffer = TraceBuffer(KeySampler(b"secret", TABLE_ID, FRACTION), "users", TABLE_ID, 1)
    for number, key in enumerate(keys):
        at_us = START_US + number
        buffer.add(at_us, buffer.arrive(at_us), TableOperation.GET, RequestOutcome.HIT, key, 200, 90)
    buffer.drain()


def median_seconds(rounds: int, work: Callable[[], None]) -> float:
    """Return the median of the CPU seconds."""
    used = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        used.append(time.process_time() - started)
    return statistics.median(used)


def main(
    requests: Annotated[int, typer.Option(help="Requests of a trace.", min=BLOCK_RECORDS)] = 2_000_000,
    keys: Annotated[int, typer.Option(help="Number of distinct keys.", min=1)] = 500_000,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.", min=1)] = 5,
) -> None:
    """Print a table of rates."""
    values = trace_of(requests, keys)
    rate = requests / median_seconds(rounds, lambda: read(values))
    texts = [b"user-%012d" % number for number in range(200_000)]
    cost_ns = 1e9 * median_seconds(rounds, lambda: capture(texts)) / len(texts)
    table = Table(title=f"request trace: medians of {rounds} rounds of {requests:,}", show_header=False)
    table.add_row("read and counted, requests/s and core", f"{rate:,.0f}")
    table.add_row("target", f"{TARGET:,}, {'met' if rate >= TARGET else 'NOT MET'}")
    table.add_row("bytes a request", f"{sum(map(len, values)) / requests:.1f}")
    table.add_row(f"capture at {FRACTION:.0%}, ns a request", f"{cost_ns:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
