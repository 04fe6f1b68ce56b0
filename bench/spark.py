"""`python -m bench.spark`: topics read and written by Spark, beside rows that an Arrow generator makes in memory.

`local[2]` on one machine with the brokers. In every round each case is measured once, so that a slow minute slows all
of them; medians over the rounds are printed, and everything is written as JSON. Rows have values of 200 bytes, no keys.
The generator is a Python data source, too: what it costs is what Spark takes for rows that are there already. Beside
the rates stands the processor time that a row takes of Java, Python and brokers, which can be compared where the
machine has other things to do as well.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import headrace
import psutil
import typer
from headrace.spark.java import use_java
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

VALUE_BYTES = 200
BATCH_ROWS = 5_000
PARTITIONS = 4
TWO_COLUMNS = "offset LONG, value BINARY"
PARTS = {"Java": "org.apache.spark", "Python": "pyspark", "brokers": "headrace_broker"}
"""Whose processor time is told apart, and by which word in the command."""
TARGETS = {
    "count, seven columns": "1,500,000 rows/s and 40 % of the generator",
    "count, two columns": "1.5 times seven columns",
    "write": "1,000,000 rows/s",
    "micro-batch of 1,000,000 rows": "1,000,000 rows/s",
    "idle micro-batch": "under 250 ms",
}


class GeneratorReader(DataSourceReader):
    """Gives the same Arrow batch again and again."""

    def __init__(self, schema: StructType, rows: int) -> None:
        self._schema, self._rows = schema, rows

    def partitions(self) -> list[InputPartition]:
        """As many as the topic has."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Make one batch, and give it until there are enough rows."""
        import numpy as np
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        count = BATCH_ROWS
        values = pa.Array.from_buffers(
            pa.binary(),
            count,
            [None, pa.py_buffer(np.arange(count + 1, dtype=np.int32) * VALUE_BYTES), pa.py_buffer(bytes(count * 200))],
        )
        schema = to_arrow_schema(self._schema, timezone="UTC")
        made = {
            "key": pa.nulls(count, pa.binary()),
            "value": values,
            "topic": pa.array(["bench"] * count, pa.string()),
            "partition": pa.array(np.full(count, partition.value, np.int32)),
            "offset": pa.array(np.arange(count)),
            "timestamp": pa.array(np.zeros(count, np.int64), pa.timestamp("us", "UTC")),
        }
        columns = [made[field.name] if field.name in made else pa.array([[]] * count, field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        for _ in range(self._rows // PARTITIONS // count):
            yield batch


class GeneratorSource(DataSource):
    """The format `generator`; the option `rows` says how many."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "generator"

    def schema(self) -> StructType:
        """The same seven columns."""
        from headrace.spark.schema import full_schema

        return full_schema(True)

    def reader(self, schema: StructType) -> GeneratorReader:
        """Make a reader of `rows` rows."""
        return GeneratorReader(schema, int(self.options["rows"]))


class Memory:
    """Looks how much memory Spark's Python workers take, ten times a second. A context manager."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            for child in psutil.Process().children(recursive=True):
                try:
                    if "pyspark" in " ".join(child.cmdline()) and "java" not in child.name():
                        self.peak_bytes = max(self.peak_bytes, child.memory_info().rss)
                except psutil.Error:
                    continue

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


class Bench:
    """The cases, over one session and one cluster."""

    def __init__(self, spark: SparkSession, servers: str, rows: int) -> None:
        self.spark, self.rows = spark, rows
        self.options = {"headrace.bootstrap.servers": servers}
        self.admin = headrace.Admin(bootstrap_servers=servers)
        for topic in ("bench", "streamed"):
            self.create(topic)
        self.fill("bench", rows)

    def create(self, topic: str) -> None:
        """Make a topic that is not synced to disk, as in `python -m bench`, and whose files go when it is deleted."""
        config = {"durability": "async", "file_delete_delay_ms": 0}
        self.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1, config=config)

    def fill(self, topic: str, rows: int) -> None:
        """Write rows evenly."""
        values = [bytes(VALUE_BYTES)] * BATCH_ROWS
        with headrace.Producer(bootstrap_servers=self.options["headrace.bootstrap.servers"]) as producer:
            for number in range(rows // BATCH_ROWS):
                producer.send_many(topic, values, partition=number % PARTITIONS)

    def generator(self, schema: str = "") -> Any:
        """A frame of generated rows."""
        reader = self.spark.read.format("generator").option("rows", self.rows)
        return (reader.schema(schema) if schema else reader).load()

    def topic(self, schema: str = "", **settings: str) -> Any:
        """A frame of the topic's rows."""
        options = {"subscribe": "bench", "includeHeaders": "true", **self.options, **settings}
        reader = self.spark.read.format("headrace").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def counted(self, frame: Any) -> float:
        """Rows a second of a count."""
        started = time.perf_counter()
        assert frame.count() == self.rows
        return self.rows / (time.perf_counter() - started)

    def write(self) -> float:
        """Rows a second of writing generated values, to a topic that goes afterwards.

        Else the rounds would fill the page cache, and the last ones measure how fast the disk takes the first ones: a
        broker then needs three times as long for a row.
        """
        frame = self.generator("value BINARY")
        topic = f"written-{secrets.token_hex(4)}"
        self.create(topic)
        started = time.perf_counter()
        frame.write.format("headrace").options(topic=topic, **self.options).mode("append").save()
        seconds = time.perf_counter() - started
        written = sum(found.offset for found in self.admin.list_offsets(topic).values())
        assert written == self.rows
        self.admin.delete_topic(topic)
        return self.rows / seconds

    def micro_batches(self, count: int) -> tuple[list[float], list[float]]:
        """Rows a second of micro-batches of a million rows, and ms of triggers that find nothing."""
        self.fill("streamed", count * 1_000_000)
        stream = self.spark.readStream.format("headrace").options(
            subscribe="streamed", startingOffsets="earliest", maxOffsetsPerTrigger="1000000", **self.options
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.start()
            query.processAllAvailable()
            deadline = time.monotonic() + 30
            while sum(not each["numInputRows"] for each in query.recentProgress) < 10 and time.monotonic() < deadline:
                time.sleep(0.1)
            query.stop()
        took = [(each["numInputRows"], each["durationMs"]["triggerExecution"]) for each in query.recentProgress]
        return [rows / (ms / 1000) for rows, ms in took if rows == 1_000_000], [ms for rows, ms in took if not rows]


@contextmanager
def compiled_once() -> Iterator[None]:
    """Let Python keep what it has compiled, as it does unless told otherwise.

    Spark starts several processes of Python a query: where they may write no bytecode, each parses for half a second.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        with patch.dict(os.environ, {"PYTHONPYCACHEPREFIX": directory}):
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            yield


def cpu_seconds() -> dict[str, float]:
    """Processor time so far of Java, of Spark's Python workers and of the brokers; what else runs takes none."""
    found = dict.fromkeys(PARTS, 0.0)
    for process in psutil.Process().children(recursive=True):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.Error:
            continue
        for part, word in PARTS.items():
            if word in command:
                found[part] += times.user + times.system
                break
    return found


def measured(bench: Bench, rounds: int) -> tuple[dict[str, list[float]], dict[str, dict[str, list[float]]]]:
    """Run every case once a round, after a round that is not counted: rows a second, and ns of a processor a row."""
    cases: dict[str, Callable[[], float]] = {
        "generator, seven columns": lambda: bench.counted(bench.generator()),
        "count, seven columns": lambda: bench.counted(bench.topic()),
        "count, over gRPC": lambda: bench.counted(bench.topic(**{"headrace.use.transfer.port": "false"})),
        "generator, two columns": lambda: bench.counted(bench.generator(TWO_COLUMNS)),
        "count, two columns": lambda: bench.counted(bench.topic(TWO_COLUMNS)),
        "write": bench.write,
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    spent: dict[str, dict[str, list[float]]] = {name: {part: [] for part in PARTS} for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            before = cpu_seconds()
            figure = case()
            if number:
                found[name].append(figure)
                for part, seconds in cpu_seconds().items():
                    spent[name][part].append((seconds - before[part]) * 1e9 / bench.rows)
    return found, spent


def main(
    rows: Annotated[int, typer.Option(help="Rows of a read or a write.", min=100_000)] = 4_000_000,
    rounds: Annotated[int, typer.Option(help="Rounds that count.", min=1)] = 5,
    output: Annotated[Path, typer.Option(help="Where JSON goes.")] = Path("bench/results"),
) -> None:
    """Print a table and write JSON."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    rows -= rows % (PARTITIONS * BATCH_ROWS)
    load = os.getloadavg()[0]
    spec = LocalClusterSpec(brokers=2, coordinators=1, broker_settings={"transfer_listen": "127.0.0.1:0"})
    with compiled_once(), LocalCluster(spec) as cluster:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.streaming.noDataProgressEventInterval", "0")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(GeneratorSource)
        bench = Bench(spark, cluster.bootstrap_servers, rows)
        with Memory() as memory:
            figures, spent = measured(bench, rounds)
            batches, idle = bench.micro_batches(rounds)
        spark.stop()
    medians = {name: statistics.median(each) for name, each in figures.items()}
    medians["micro-batch of 1,000,000 rows"] = statistics.median(batches[1:] or batches)
    medians["idle micro-batch"] = statistics.median(idle)
    result = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": load,
        "rows": rows,
        "medians": medians,
        "all": {**figures, "micro-batch of 1,000,000 rows": batches, "idle micro-batch": idle},
        "cpu_ns_per_row": {
            name: {part: statistics.median(each) for part, each in parts.items()} for name, parts in spent.items()
        },
        "worker_peak_rss_bytes": memory.peak_bytes,
    }
    output.mkdir(parents=True, exist_ok=True)
    (output / "spark.json").write_text(json.dumps(result, indent=2) + "\n")
    show(result)


def show(result: dict[str, Any]) -> None:
    """Print the medians beside what is asked."""
    medians = result["medians"]
    table = Table("case", "rows/s", "of the generator", *(f"{part}, ns" for part in PARTS), "asked")
    for name, figure in medians.items():
        beside = medians.get(name.replace("count", "generator").replace("over gRPC", "seven columns"))
        share = f"{figure / beside:.0%}" if beside and name.startswith("count") else ""
        shown = f"{figure:,.0f} ms" if name == "idle micro-batch" else f"{figure:,.0f}"
        spent = result["cpu_ns_per_row"].get(name, {})
        parts = (f"{spent[part]:,.0f}" if part in spent else "" for part in PARTS)
        table.add_row(name, shown, share, *parts, TARGETS.get(name, ""))
    Console().print(table)
    ratio = medians["count, two columns"] / medians["count, seven columns"]
    peak = result["worker_peak_rss_bytes"] / 2**20
    print(f"two columns: {ratio:.2f} times seven; the largest Python worker had {peak:,.0f} MiB")
    print(f"load of the machine before: {result['load_before']:.1f}")


if __name__ == "__main__":
    typer.run(main)
