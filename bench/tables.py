"""`python -m bench.tables`: reads and writes of rows of a table, on one broker, over the native protocol and gRPC.

Loads rows by a producer, compacts nothing, and then measures: how long the broker takes until it answers reads after a
start, single reads and writes at a fixed rate and without one, reads of many keys at once, and absent keys. Prints a
line of JSON for each case.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Annotated

import headrace
import numpy as np
import typer
from headrace.wire.table_keys import table_key
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.stage import processor_seconds

TABLE = "users"
VALUE = b"v" * 100
MANY = 1_000


def key(number: int) -> bytes:
    """Return the key of a row."""
    return b"user-%012d" % number


def load(servers: str, rows: int) -> float:
    """Write the rows, a column each; return rows per second."""
    started = time.perf_counter()
    with headrace.Producer(bootstrap_servers=servers, return_futures=False) as producer:
        for start in range(0, rows, 10_000):
            numbers = range(start, min(start + 10_000, rows))
            keys = [table_key(key(number), b"value") for number in numbers]
            producer.send_many(TABLE, [VALUE] * len(keys), keys=keys, partition=0)
    return rows / (time.perf_counter() - started)


def paced(call: Callable[[], object], seconds: float, rate: float | None) -> list[float]:
    """Call again and again; return the latencies in ms, from when each call was due if there is a rate."""
    latencies: list[float] = []
    started = time.perf_counter()
    while True:
        due = started + len(latencies) / rate if rate else time.perf_counter()
        now = time.perf_counter()
        if due - started > seconds:
            return latencies
        if due > now:
            time.sleep(due - now)
        call()
        latencies.append((time.perf_counter() - due) * 1000)


def report(case: str, latencies: list[float], seconds: float, broker_seconds: float, items: int = 1) -> None:
    """Print one case."""
    p50, p99 = np.percentile(latencies, (50, 99))
    figures = {
        "case": case,
        "a second": round(len(latencies) * items / seconds),
        "p50 ms": round(float(p50), 3),
        "p99 ms": round(float(p99), 3),
        "broker's processor us each": round(broker_seconds / len(latencies) / items * 1e6, 1),
    }
    print(json.dumps(figures), flush=True)


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table.", min=1_000)] = 1_000_000,
    seconds: Annotated[float, typer.Option(help="Duration of each case.", min=0.1)] = 5.0,
    rate: Annotated[float, typer.Option(help="Reads a second of the paced case.", min=1)] = 2_000.0,
) -> None:
    """Measure reads and writes of rows."""
    settings = {"metrics_listen": "127.0.0.1:0", "table_cache_bytes": 512 << 20}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as cluster:
        servers, broker = cluster.bootstrap_servers, cluster.broker(1)
        with headrace.Admin(bootstrap_servers=servers) as admin:
            config = {"cleanup_policy": "compact", "table": "yes", "durability": "async"}
            admin.create_topic(TABLE, partitions=1, replication_factor=1, config=config)
        loaded = load(servers, rows)
        with headrace.Table(TABLE, bootstrap_servers=servers) as table:
            assert table.count(timeout=120).rows == rows
        broker.stop()
        started = time.perf_counter()
        cluster.restart(broker)
        ready = time.perf_counter()
        with headrace.Table(TABLE, bootstrap_servers=servers) as table:
            assert table.get(key(1), timeout=120) is not None
        figures = {"case": "start", "rows": rows, "rows loaded a second": round(loaded),
                   "seconds of the start": round(ready - started, 2),
                   "seconds until the first read after it": round(time.perf_counter() - ready, 2)}  # fmt: skip
        print(json.dumps(figures), flush=True)
        draw = random.Random(1)

        def drawn() -> bytes:
            return key(draw.randrange(rows))

        for transport in ("native", "grpc"):
            with headrace.Table(TABLE, bootstrap_servers=servers, transport=transport) as table:
                list(table.get_many([key(number) for number in range(0, rows, max(1, rows // 5_000))]))
                cases: list[tuple[str, Callable[[], object], float | None, int]] = [
                    (f"get at {rate:g}/s", lambda: table.get(drawn()), rate, 1),
                    ("get", lambda: table.get(drawn()), None, 1),
                    ("get of an absent row", lambda: table.get(b"none"), None, 1),
                    (f"get of {MANY}", lambda: table.get_many([drawn() for _ in range(MANY)]), None, MANY),
                    ("put", lambda: table.put(drawn(), {"value": "w" * 100}), None, 1),
                ]
                for name, call, pace, items in cases:
                    assert broker.pid is not None
                    used, begun = processor_seconds(broker.pid), time.perf_counter()
                    latencies = paced(call, seconds, pace)
                    took, used = time.perf_counter() - begun, processor_seconds(broker.pid) - used
                    report(f"{transport}: {name}", latencies, took, used, items)


if __name__ == "__main__":
    typer.run(main)
