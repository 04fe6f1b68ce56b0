"""`python -m bench.typed`: rows of a typed topic of twenty columns, and the same rows as JSON and as many bytes.

Writes a table, and reads it whole, by two of its columns and by a range of a column that grows; then the same two
columns from JSON, by DuckDB over all values and by `json.loads` of each; and the same rows in Fluss, if
`bench/peers/install.sh fluss pip` has installed it. Prints a line of JSON for each case.

How `send_table` compares with `send_many` of ready bytes is measured in pairs of both, which come first in turn: the
median of the pairs' ratios, of all pairs but the first, and an interval that has the median of all such pairs with a
probability of at least 95 %.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from math import comb
from typing import Annotated, Any

import duckdb
import headrace
import numpy as np
import pyarrow as pa
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.children import guarded
from bench.peers.measure import PROGRAM_SECONDS, PYTHON
from bench.peers.servers import FLUSS_SERVER, needs, needs_all
from bench.processor import processor_seconds

TYPED, JSON, BYTES = "typed", "json", "bytes"
BATCH_BYTES = 1 << 20
CONFIG = {"durability": "async", "segment_bytes": str(64 << 20), "file_delete_delay_ms": "0"}


def rows_of(count: int) -> pa.Table:
    """Return a table of ten integers, five floating point numbers, four words and a time that grows."""
    chance = np.random.default_rng(1)
    words = pa.array([f"value-{number}" for number in range(1_000)])
    columns = {f"i{place}": pa.array(chance.integers(0, 10**6, count)) for place in range(10)}
    columns |= {f"d{place}": pa.array(chance.random(count)) for place in range(5)}
    columns |= {f"s{place}": words.take(pa.array(chance.integers(0, 1_000, count))) for place in range(4)}
    columns["ts"] = pa.array(np.arange(count, dtype=np.int64) * 1_000, pa.timestamp("us", "UTC"))
    return pa.table(columns)


def json_values(table: pa.Table) -> pa.Array:
    """Return each row as a JSON object."""
    with duckdb.connect() as connection:
        connection.register("rows", table)
        found = connection.sql("select cast(to_json(rows) as varchar)::blob as value from rows").to_arrow_table()
    return found.column("value").combine_chunks()


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table.", min=1_000)] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds of all cases; the first one warms up.", min=1)] = 3,
    pairs: Annotated[int, typer.Option(help="Pairs of the two writes; one more warms up.", min=6)] = 40,
) -> None:
    """Measure writes, reads and queries of a typed topic."""
    table = rows_of(rows)
    values = json_values(table)
    plain = pa.array([b"v" * (table.nbytes // rows)] * rows, pa.binary())
    settings = {"metrics_listen": "127.0.0.1:0", "retention_interval_ms": 100}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as cluster:
        servers, broker = cluster.bootstrap_servers, cluster.broker(1)
        with headrace.Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(TYPED, partitions=1, columns=table, config=CONFIG)
            for name in (JSON, BYTES):
                admin.create_topic(name, partitions=1, config=CONFIG)
            print(json.dumps(paired_writes(admin, servers, {TYPED: table, BYTES: plain}, pairs)), flush=True)

        def write(topic: str, what: Any) -> None:
            write_to(servers, topic, what)

        def read(topic: str, **selection: Any) -> pa.Table:
            with headrace.Reader(topic, bootstrap_servers=servers, last_per_partition=rows, **selection) as reader:
                return reader.to_arrow()

        def query(text: str) -> list[Any]:
            with headrace.sql(text, bootstrap_servers=servers) as result:
                return list(result)

        def parse_by_duckdb() -> None:
            with duckdb.connect() as connection:
                connection.register("read", read(JSON))
                connection.sql(
                    "select count(i), max(s) from (select (j->>'$.i0')::bigint i, j->>'$.s0' s "
                    "from (select decode(value)::json j from read))"
                ).fetchall()

        def parse_by_python() -> None:
            with headrace.Reader(JSON, bootstrap_servers=servers, last_per_partition=rows // 10) as reader:
                for record in reader:
                    found = json.loads(record.value)
                    _ = found["i0"], found["s0"]

        last = rows * 99 // 100 * 1_000
        cases: list[tuple[str, int, Callable[[], object]]] = [
            ("send_table", rows, lambda: write(TYPED, table)),
            ("send_many of bytes, Arrow in", rows, lambda: write(BYTES, plain)),
            ("send_many of JSON, Arrow in", rows, lambda: write(JSON, values)),
            ("bytes to Arrow", rows, lambda: read(BYTES)),
            ("typed: all columns to Arrow", rows, lambda: read(TYPED)),
            ("typed: two of twenty to Arrow", rows, lambda: read(TYPED, columns=["i0", "s0"])),
            ("typed: a hundredth by a range", rows, lambda: read(TYPED, columns=["i0"], where={"ts": (last, None)})),
            ("JSON: two of twenty by DuckDB", rows, parse_by_duckdb),
            ("JSON: two of twenty by json.loads", rows // 10, parse_by_python),
        ]
        for turn in range(rounds):
            for name, count, run in cases:
                assert broker.pid is not None
                sent = broker.metrics()["headrace_broker_fetched_bytes_total"]
                used, started = processor_seconds(broker.pid), time.perf_counter()
                run()
                took, used = time.perf_counter() - started, processor_seconds(broker.pid) - used
                sent = broker.metrics()["headrace_broker_fetched_bytes_total"] - sent
                figures = {"round": turn, "case": name, "rows a second": round(count / took),
                           "MB sent": round(sent / 1e6, 1), "broker's processor s": round(used, 3)}  # fmt: skip
                print(json.dumps(figures), flush=True)
        for text in (f"select count(*) from {TYPED}", f"select s0, count(*), max(i0) from {TYPED} group by 1"):
            started = time.perf_counter()
            query(text)
            took = time.perf_counter() - started
            print(json.dumps({"case": text, "rows a second": round(rounds * rows / took)}), flush=True)
    measure_fluss(table, rounds)


def write_to(servers: str, topic: str, what: Any) -> None:
    """Write a table to the typed topic, or values to another one, by a producer of its own."""
    with headrace.Producer(bootstrap_servers=servers, batch_bytes=BATCH_BYTES) as producer:
        if topic == TYPED:
            producer.send_table(topic, what)
        else:
            producer.send_many(topic, what)


def paired_writes(admin: headrace.Admin, servers: str, rows: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Return the ratio of the rates of two topics' writes; what a pair has written is deleted: all are alike."""
    ratios = []
    for pair in range(pairs + 1):
        seconds = {}
        for topic in sorted(rows, reverse=pair % 2 == 1):
            started = time.perf_counter()
            write_to(servers, topic, rows[topic])
            seconds[topic] = time.perf_counter() - started
        for topic in rows:
            admin.delete_records(topic, {0: -1})
        ratios.append(seconds[BYTES] / seconds[TYPED])
    low, high = median_interval(ratios[1:])
    figures = {"median": statistics.median(ratios[1:]), "95 % from": low, "to": high}
    rounded = {name: round(figure, 3) for name, figure in figures.items()}
    return {"case": "rate of send_table to send_many of bytes", "pairs": pairs, **rounded}


def median_interval(found: Sequence[float]) -> tuple[float, float]:
    """Return two of at least 6 values between which the median of their distribution, any, lies: at least 95 %."""
    count, place = len(found), 0
    while 2 * sum(comb(count, below) for below in range(place + 2)) <= 0.05 * 2**count:
        place += 1
    ordered = sorted(found)
    return ordered[place], ordered[-1 - place]


def measure_fluss(table: pa.Table, rounds: int) -> None:
    """Measure the same rows in Fluss, whose broker then has the machine to itself."""
    missing = needs_all(FLUSS_SERVER.missing, needs(PYTHON, "pip"))()
    if missing:
        print(json.dumps({"case": "Fluss", "not measured": missing}), flush=True)
        return
    with FLUSS_SERVER.running() as running:
        path = running.directory / "rows.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        arguments = map(str, (running.ports["fluss"], path, rounds))
        command = guarded([str(PYTHON), "-m", "bench.peers.clients.fluss_table", *arguments])
        subprocess.run(command, timeout=PROGRAM_SECONDS, check=True)  # Its lines are printed as they are measured.


if __name__ == "__main__":
    typer.run(main)
