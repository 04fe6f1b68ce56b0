"""`python -m bench.table_trace_cost`: what the request trace of a table costs its broker.

Processor time of a broker that answers gets of one table, whose trace is turned on and off in turn: other load matters
little, and the place of the table in memory, which makes one table a hundredth slower than another, is the same. Prints
a line of JSON.
"""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack
from typing import Annotated

import headrace
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.metrics import median_interval
from bench.processor import processor_seconds
from bench.rows import Draw, key

TARGET = 0.02
"""Greatest part of a get's processor time that a trace may add."""
FRACTION = 0.01
ROWS = 50_000
GETS = 2_000
"""Gets of a turn."""
METRICS = {"metrics_listen": "127.0.0.1:0"}
WARM_UP = 300
"""Gets before it, in which the setting reaches the broker."""


def traced_cost(rounds: int) -> tuple[float, float, tuple[float, float]]:
    """Return the processor time of a broker for a get in microseconds, and the part of it that a trace adds: the median
    of the rounds, and the interval that has it with a probability of 95 %.
    """
    with (
        LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=METRICS)) as cluster,
        ExitStack() as stack,
    ):
        servers, pid = cluster.bootstrap_servers, cluster.broker(1).pid
        assert pid is not None
        admin = stack.enter_context(headrace.Admin(bootstrap_servers=servers))
        config = {"cleanup_policy": "compact", "table": "yes", "durability": "async"}
        admin.create_topic("users", partitions=1, replication_factor=1, config=config)
        table, draw = stack.enter_context(headrace.Table("users", bootstrap_servers=servers)), Draw(ROWS)
        table.put_many((key(number), {"value": "v" * 100}) for number in range(ROWS))

        def spent(fraction: float) -> float:
            admin.alter_config("users", {"trace_sample": str(fraction)})
            for _ in range(WARM_UP):
                table.get(draw.one())
            before = processor_seconds(pid)
            for _ in range(GETS):
                table.get(draw.one())
            return (processor_seconds(pid) - before) / GETS

        pairs = []
        for number in range(rounds):
            used = {fraction: spent(fraction) for fraction in ((0, FRACTION) if number % 2 else (FRACTION, 0))}
            pairs.append((used[0], used[FRACTION]))
        assert cluster.broker(1).metrics()["headrace_broker_table_trace_requests_total"] > 0
    added = sorted(traced / plain - 1 for plain, traced in pairs)
    return statistics.median(plain for plain, _ in pairs) * 1e6, statistics.median(added), median_interval(added)


def main(rounds: Annotated[int, typer.Option(help="Turns of each table.", min=1)] = 40) -> None:
    """Measure gets with a trace and without."""
    plain_us, added, interval = traced_cost(rounds)
    figures = {
        "case": f"get, trace of {FRACTION:.0%}",
        "broker's processor us without": round(plain_us, 1),
        "added": round(added, 4),
        "added, 95 %": [round(each, 4) for each in interval],
        "asked": TARGET,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    typer.run(main)
