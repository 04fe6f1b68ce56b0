"""`python -m bench.tables`: reads and writes of rows of a table, on one broker, over the native protocol and gRPC.

Loads rows by a producer, compacts nothing, and then measures: how long the broker takes until it answers reads after a
start, single reads and writes at a fixed rate and without one, reads and writes of many keys at once, and absent keys.
Then the same in Redis and Cassandra, if `bench/peers/install.sh debian cassandra pip` has installed them. Prints a line
of JSON for each case.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated

import headrace
import typer
from headrace.wire.table_keys import table_key
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.peers.measure import PYTHON, output_of
from bench.peers.servers import CASSANDRA, REDIS, Server, needs, needs_all
from bench.rows import MANY, OTHER_VALUE, VALUE, Draw, key, measure

TABLE = "users"
ABSENT_ROWS = 10_000
READS = "headrace_broker_table_batch_misses_total"


def load(servers: str, rows: int) -> float:
    """Write the rows, a column each; return rows per second."""
    started = time.perf_counter()
    with headrace.Producer(bootstrap_servers=servers, return_futures=False) as producer:
        for start in range(0, rows, 10_000):
            numbers = range(start, min(start + 10_000, rows))
            keys = [table_key(key(number), b"value") for number in numbers]
            producer.send_many(TABLE, [VALUE] * len(keys), keys=keys, partition=0)
    return rows / (time.perf_counter() - started)


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
        draw, value = Draw(rows), OTHER_VALUE.decode()
        for transport in ("native", "grpc"):
            with headrace.Table(TABLE, bootstrap_servers=servers, transport=transport) as table:
                list(table.get_many([key(number) for number in range(0, rows, max(1, rows // 5_000))]))
                cases: list[tuple[str, Callable[[], object], float | None, int]] = [
                    (f"get at {rate:g}/s", lambda: table.get(draw.one()), rate, 1),
                    ("get", lambda: table.get(draw.one()), None, 1),
                    ("get of an absent row", lambda: table.get(b"none"), None, 1),
                    (f"get of {MANY}", lambda: table.get_many(draw.many()), None, MANY),
                    ("put", lambda: table.put(draw.one(), {"value": value}), None, 1),
                    (f"put of {MANY}", lambda: table.put_many((k, {"value": value}) for k in draw.many()), None, MANY),
                ]
                assert broker.pid is not None
                for name, call, pace, items in cases:
                    measure(f"{transport}: {name}", call, seconds, pid=broker.pid, rate=pace, items=items)
        with headrace.Table(TABLE, bootstrap_servers=servers) as table:
            before = broker.metrics()[READS]
            found = table.get_many(b"none-%d" % number for number in range(ABSENT_ROWS))
            reads = broker.metrics()[READS] - before
        assert found == [None] * ABSENT_ROWS
        figures = {"case": "absent rows", "answered without a read of a batch": 1 - reads / ABSENT_ROWS, "asked": 0.95}
        print(json.dumps(figures), flush=True)
    for server in (REDIS, CASSANDRA):
        measure_peer(server, rows, seconds, rate)


def measure_peer(server: Server, rows: int, seconds: float, rate: float) -> None:
    """Measure the same in a peer, whose log is synced by the kernel, by its Python client in another environment."""
    missing = needs_all(server.missing, needs(PYTHON, "pip"))()
    if missing:
        print(json.dumps({"case": server.name, "not measured": missing}), flush=True)
        return
    with server.running() as running:
        arguments = map(str, (running.ports[server.name], running.pids[0], rows, seconds, rate))
        print(output_of([str(PYTHON), "-m", f"bench.peers.clients.{server.name}_rows", *arguments]), end="", flush=True)


if __name__ == "__main__":
    typer.run(main)
