"""`python -m bench.typed_spark`: Spark over two of twenty typed columns, over the same rows as JSON, and over a range.

The rows are those of `bench.typed`, in four partitions; Spark runs as `local[2]` next to the broker. Prints a line of
JSON for each case and round, with the bytes that the broker sent; the first round warms up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import headrace
import typer
from headrace.spark.java import use_java
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from pyspark.sql import SparkSession

from bench.typed import BATCH_BYTES, JSON, TYPED, json_values, rows_of

PARTITIONS = 4
JSON_SCHEMA = "i0 BIGINT, s0 STRING"


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table.", min=100_000)] = 2_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds of all cases; the first one warms up.", min=2)] = 6,
) -> None:
    """Measure queries of Spark over a typed topic and over JSON."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    table = rows_of(rows)
    settings = {"metrics_listen": "127.0.0.1:0"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as cluster:
        servers, broker = cluster.bootstrap_servers, cluster.broker(1)
        with headrace.Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(TYPED, partitions=PARTITIONS, columns=table, config={"durability": "async"})
            admin.create_topic(JSON, partitions=PARTITIONS, config={"durability": "async"})
        share = rows // PARTITIONS
        with headrace.Producer(bootstrap_servers=servers, batch_bytes=BATCH_BYTES) as producer:
            for partition in range(PARTITIONS):
                part = table.slice(partition * share, share)
                producer.send_table(TYPED, part, partition=partition)
                producer.send_many(JSON, json_values(part), partition=partition)
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
        spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()

        def frame(topic: str, schema: str = "", **options: str) -> Any:
            reader = spark.read.format("headrace").option("headrace.bootstrap.servers", servers)
            reader = reader.option("subscribe", topic).options(**options)
            return (reader.schema(schema) if schema else reader).load()

        def ask(found: Any) -> None:
            assert found.selectExpr("max(i0)", "max(s0)", "count(*)").collect()[0][1] == "value-999"

        def over_json() -> None:
            parsed = frame(JSON, "value BINARY").selectExpr(f"from_json(string(value), '{JSON_SCHEMA}') as row")
            ask(parsed.selectExpr("row.i0", "row.s0"))

        def over_range() -> None:
            first = (rows - rows // 100) * 1_000
            found = frame(TYPED, "i0 BIGINT, s0 STRING, ts TIMESTAMP", typed="true", pushFilters="true")
            ask(found.where(f"ts >= timestamp_micros({first})"))

        cases: list[tuple[str, Callable[[], None]]] = [
            ("two of twenty typed columns", lambda: ask(frame(TYPED, "i0 BIGINT, s0 STRING", typed="true"))),
            ("all typed columns", lambda: ask(frame(TYPED, typed="true"))),
            ("two fields by from_json", over_json),
            ("the last hundredth, by a pushed range of a time", over_range),
        ]
        try:
            for turn in range(rounds):
                for name, run in cases:
                    sent = broker.metrics()["headrace_broker_fetched_bytes_total"]
                    started = time.perf_counter()
                    run()
                    took = time.perf_counter() - started
                    sent = broker.metrics()["headrace_broker_fetched_bytes_total"] - sent
                    figures = {"round": turn, "case": name, "seconds": round(took, 3),
                               "rows a second": round(rows / took), "MB sent": round(sent / 1e6, 2)}  # fmt: skip
                    print(json.dumps(figures), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    typer.run(main)
