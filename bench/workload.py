"""`python -m bench.workload`: rate at which one core generates the requests of `headrace bench`, without sending.

Requests are generated in blocks of columns (due time, key, value) by the code of the command. CPU seconds are counted,
so that other load matters little; the median of several rounds is printed.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from typing import Annotated

import typer
from headrace.cli.bench.commands import PAPER_VALUE_BYTES
from headrace.cli.bench.models import DEFAULT_KEYS, ETC
from headrace.cli.bench.records import BLOCK_RECORDS, KeyPool, made_blocks
from headrace.cli.bench.workloads import ModelWorkload, PaperWorkload, Workload
from rich.console import Console
from rich.table import Table

TARGET = 2_000_000
"""Target in requests per second and core."""
PARTITIONS = 4
SEED = 1


def requests_per_second(workload: Workload, requests: int) -> float:
    """Return the rate of the model alone: due times, key ranks and value sizes."""
    started = time.process_time()
    for _ in range(0, requests, BLOCK_RECORDS):
        workload.requests(BLOCK_RECORDS)
    return requests / (time.process_time() - started)


def records_per_second(workload: Workload, pool: KeyPool | None, requests: int) -> float:
    """Return the rate of whole records: keys and values as columns by partition, as arguments of the producer."""
    started = time.process_time()
    for block in made_blocks(workload, requests, pool, SEED):
        for _ in block.columns(0, len(block.due_s)):
            pass
    return requests / (time.process_time() - started)


def main(
    requests: Annotated[int, typer.Option(help="Requests of a round.", min=BLOCK_RECORDS)] = 4_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.", min=1)] = 5,
    keys: Annotated[int, typer.Option(help="etc: number of distinct keys.", min=1)] = DEFAULT_KEYS,
) -> None:
    """Print a table of the generation rates."""
    requests -= requests % BLOCK_RECORDS
    workloads: dict[str, tuple[Workload, KeyPool | None]] = {
        "paper": (PaperWorkload(PAPER_VALUE_BYTES, math.inf), None),
        "etc": (ModelWorkload(replace(ETC, keys=keys), None, SEED), KeyPool(keys, PARTITIONS, SEED, ETC.key_bytes)),
    }
    table = Table(title=f"requests per second and core: medians of {rounds} rounds of {requests:,}")
    for heading in ("workload", "requests", "target", "met", "as columns of keys and values"):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for name, (workload, pool) in workloads.items():
        made = statistics.median(requests_per_second(workload, requests) for _ in range(rounds))
        columns = statistics.median(records_per_second(workload, pool, requests) for _ in range(rounds))
        met = "yes" if made >= TARGET else "NO"
        table.add_row(name, f"{made:,.0f}", f"{TARGET:,}", met, f"{columns:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
