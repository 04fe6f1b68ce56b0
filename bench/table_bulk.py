"""`python -m bench.table_bulk`: many rows into a table and out of it, compared with records of the same bytes.

On three brokers with three replicas and the defaults of topics: `send_many` of the records that the rows are,
`put_many` of pairs and of Arrow tables into one partition and into eight, then reads of all rows and of many keys.
Prints a line of JSON for each case, with the median of some runs.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

import headrace
import pyarrow as pa
import typer
from headrace.wire.table_keys import table_key
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

NAMES = ("name", "plan", "city", "note")
VALUE = "v" * 25


def key(number: int) -> str:
    """Return the key of a row."""
    return f"user-{number:012}"


def put_pairs(table: headrace.Table, keys: list[str], row: dict[str, str]) -> None:
    """Put equal rows."""
    table.put_many((each, row) for each in keys)


def send_records(producer: headrace.Producer, topic: str, keys: list[bytes], values: list[bytes]) -> None:
    """Send the records of rows, and wait for their acknowledgement."""
    producer.send_many(topic, values, keys=keys, partition=0).result(60)


def scan_all(table: headrace.Table) -> int:
    """Read all rows; return their number."""
    return sum(1 for _ in table.scan())


def measure(
    items: int, runs: int, cases: dict[str, Callable[[], object]], settle: Callable[[], object] | None = None
) -> None:
    """Run the cases in turns, and print each; `settle` waits after each run until the brokers have caught up."""
    rates: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(runs):
        for case, call in cases.items():
            started = time.perf_counter()
            call()
            rates[case].append(items / (time.perf_counter() - started))
            if settle is not None:
                settle()
    for case, found in rates.items():
        figures = {"case": case, "columns": items, "columns a second": round(statistics.median(found))}
        print(json.dumps(figures), flush=True)


def main(
    rows: Annotated[int, typer.Option(help="Rows of 4 columns of 25 bytes.", min=1_000)] = 100_000,
    runs: Annotated[int, typer.Option(help="Runs of each case.", min=1)] = 5,
) -> None:
    """Measure bulk writes and reads of rows."""
    columns, row = rows * len(NAMES), dict.fromkeys(NAMES, VALUE)
    keys = [key(number) for number in range(rows)]
    arrow = pa.table({"key": keys, **{name: [VALUE] * rows for name in NAMES}})
    record_keys = [table_key(each.encode(), name.encode()) for each in keys for name in NAMES]
    values, some = [VALUE.encode()] * columns, keys[:: max(1, rows // 1_000)]
    with LocalCluster(LocalClusterSpec(brokers=3, coordinators=1)) as cluster:
        servers = cluster.bootstrap_servers
        for partitions in (1, 8):
            name = f"table-{partitions}"
            with headrace.Admin(bootstrap_servers=servers) as admin:
                while len(admin.describe_cluster().brokers) < 3:
                    time.sleep(0.1)
                config = {"cleanup_policy": "compact", "table": "yes"}
                admin.create_topic(name, partitions=partitions, replication_factor=3, config=config)
            with (
                headrace.Table(name, bootstrap_servers=servers) as table,
                headrace.Producer(bootstrap_servers=servers) as producer,
            ):
                table.put_many([(keys[0], row)])
                writes: dict[str, Callable[[], object]] = {
                    f"put_many of pairs, {name}": partial(put_pairs, table, keys, row),
                    f"put_many of Arrow, {name}": partial(table.put_many, arrow),
                }
                if partitions == 1:
                    sent = partial(send_records, producer, name, record_keys, values)
                    writes["send_many of the records"] = sent
                measure(columns, runs, writes, partial(table.count, timeout=120))
                reads: dict[str, Callable[[], object]] = {
                    f"to_arrow, {name}": table.to_arrow,
                    f"scan, {name}": partial(scan_all, table),
                }
                measure(columns, runs, reads)
                many: dict[str, Callable[[], object]] = {
                    f"get_many of {len(some)}, {name}": partial(table.get_many, some)
                }
                measure(len(some) * len(NAMES), runs, many)


if __name__ == "__main__":
    typer.run(main)
