"""`python -m bench.workload`: how fast one core makes the requests that `headrace bench` sends, without sending any.

Requests are made in blocks of columns, with when each is due, its key and its value, by the code that the command uses.
Processor seconds are counted, so that what else the machine does matters little; the median of some rounds is printed.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Annotated

import typer
from headrace.cli.bench.commands import ETC_KEYS, ETC_ZIPF, PAPER_VALUE_BYTES
from headrace.cli.bench.records import BLOCK_RECORDS, KeyPool, made_blocks
from headrace.cli.bench.workloads import EtcWorkload, PaperWorkload, Workload
from rich.console import Console
from rich.table import Table

ASKED = 2_000_000
"""Requests a second and core."""
PARTITIONS = 4
SEED = 1


def requests_per_second(workload: Workload, requests: int) -> float:
    """Of the model alone: when each is due, which key, how long a value."""
    started = time.process_time()
    for _ in range(0, requests, BLOCK_RECORDS):
        workload.requests(BLOCK_RECORDS)
    return requests / (time.process_time() - started)


def records_per_second(workload: Workload, pool: KeyPool | None, requests: int) -> float:
    """Of whole records: keys and values as columns, a partition each, as the producer takes them."""
    started = time.process_time()
    for block in made_blocks(workload, requests, pool, SEED):
        for _ in block.columns(0, len(block.due_s)):
            pass
    return requests / (time.process_time() - started)


def main(
    requests: Annotated[int, typer.Option(help="Of a round.", min=BLOCK_RECORDS)] = 4_000_000,
    rounds: Annotated[int, typer.Option(help="How often each is measured.", min=1)] = 5,
    keys: Annotated[int, typer.Option(help="etc: how many different ones.", min=1)] = ETC_KEYS,
) -> None:
    """Print a table."""
    requests -= requests % BLOCK_RECORDS
    workloads: dict[str, tuple[Workload, KeyPool | None]] = {
        "paper": (PaperWorkload(PAPER_VALUE_BYTES, math.inf), None),
        "etc": (EtcWorkload(keys, ETC_ZIPF, None, SEED), KeyPool(keys, PARTITIONS, SEED)),
    }
    table = Table(title=f"a second and core, medians of {rounds} rounds of {requests:,}")
    for heading in ("workload", "requests", "asked", "met", "as columns of keys and values"):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for name, (workload, pool) in workloads.items():
        made = statistics.median(requests_per_second(workload, requests) for _ in range(rounds))
        columns = statistics.median(records_per_second(workload, pool, requests) for _ in range(rounds))
        met = "yes" if made >= ASKED else "NO"
        table.add_row(name, f"{made:,.0f}", f"{ASKED:,}", met, f"{columns:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
