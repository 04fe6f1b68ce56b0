"""`python -m bench.table_trace_cost`: what the request trace of a table costs its broker.

Processor time of a broker that answers gets of a table with a trace and of one without, in turn, so that other load
matters little. Prints a line of JSON.
"""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack
from typing import Annotated

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.processor import processor_seconds
from bench.rows import Draw, key

TARGET = 0.02
"""Greatest part of a get's processor time that a trace may add."""
FRACTION = 0.01
ROWS = 50_000
GETS = 2_000
"""Gets of a turn."""


def traced_cost(rounds: int) -> tuple[float, float]:
    """Return the processor time of a broker for a get in microseconds, and the part of it that a trace adds."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
        servers, pid = cluster.bootstrap_servers, cluster.broker(1).pid
        assert pid is not None
        with headrace.Admin(bootstrap_servers=servers) as admin:
            config = {"cleanup_policy": "compact", "table": "yes", "durability": "async"}
            for name, more in (("plain", {}), ("traced", {"trace_sample": str(FRACTION)})):
                admin.create_topic(name, partitions=1, replication_factor=1, config={**config, **more})
        with ExitStack() as stack:
            tables, draw = [], Draw(ROWS)
            for name in ("plain", "traced"):
                table = stack.enter_context(headrace.Table(name, bootstrap_servers=servers))
                table.put_many((key(number), {"value": "v" * 100}) for number in range(ROWS))
                tables.append(table)
            used: list[list[float]] = [[], []]
            for _ in range(rounds):
                for table, spent in zip(tables, used, strict=True):
                    before = processor_seconds(pid)
                    for _ in range(GETS):
                        table.get(draw.one())
                    spent.append((processor_seconds(pid) - before) / GETS)
    plain, traced = map(statistics.median, used)
    return plain * 1e6, traced / plain - 1


def main(rounds: Annotated[int, typer.Option(help="Turns of each table.", min=1)] = 40) -> None:
    """Measure gets with a trace and without."""
    plain_us, added = traced_cost(rounds)
    figures = {
        "case": f"get, trace of {FRACTION:.0%}",
        "broker's processor us without": round(plain_us, 1),
        "added": round(added, 4),
        "asked": TARGET,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    typer.run(main)
