"""`python -m bench.spark`: Spark reads and writes topics, compared with an in-memory generator and with Kafka's source.

Spark runs as `local[2]` next to the brokers. In every round each case is measured once, so a slow minute affects all of
them, after a warm-up round; medians and targets are printed, and everything is written as JSON, which
`python -m bench.publish_spark` writes to the guide. Rows have values of 200 bytes, no keys. The generator is a Python
data source, too: its cost is that of Spark for rows in memory. With the rates it prints the CPU time per row of Java,
Python and brokers, which can be compared on a busy machine, too.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import headrace
import psutil
import pyarrow
import pyspark
import typer
from headrace.spark.java import use_java
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from rich.console import Console

from bench import spark_kafka
from bench.case import RATE, Case, Catalogue, Figure, Sample, Target
from bench.load import PAPER_BYTES
from bench.report import Report, machine
from bench.run import measure
from bench.stage import Stage, wait_until

BATCH_ROWS = 5_000
PARTITIONS = spark_kafka.PARTITIONS
BROKERS = 2
MASTER = "local[2]"
MICRO_BATCH_ROWS = 1_000_000
IDLE_TRIGGERS = 10
"""Triggers for which a streaming query is observed after it has read everything."""
MILLIONS = "million_rows_per_s"
"""Rate in the unit of the targets."""
TWO_COLUMNS = "offset LONG, value BINARY"
PARTS = {"java": ["org.apache.spark"], "python": ["pyspark"], "brokers": ["headrace_broker", "kafka.Kafka"]}
"""Processes whose CPU time is reported separately, by words in their commands."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.noDataProgressEventInterval": "0",
    "spark.python.unix.domain.socket.enabled": "true",
}


class GeneratorReader(DataSourceReader):
    """Reader that returns the same Arrow batch repeatedly."""

    def __init__(self, schema: StructType, rows: int) -> None:
        self._schema, self._rows = schema, rows

    def partitions(self) -> list[InputPartition]:
        """Return as many partitions as the topic has."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Make one batch, and yield it until there are enough rows."""
        import numpy as np
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        count = BATCH_ROWS
        values = pa.Array.from_buffers(
            pa.binary(),
            count,
            [
                None,
                pa.py_buffer(np.arange(count + 1, dtype=np.int32) * PAPER_BYTES),
                pa.py_buffer(bytes(count * PAPER_BYTES)),
            ],
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
    """Data source `generator`; the option `rows` is the number of rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "generator"

    def schema(self) -> StructType:
        """Return the seven columns of headrace's data source."""
        from headrace.spark.schema import full_schema

        return full_schema(True)

    def reader(self, schema: StructType) -> GeneratorReader:
        """Return a reader of `rows` rows."""
        return GeneratorReader(schema, int(self.options["rows"]))


class Watch:
    """Meter of the CPU time of Spark and brokers during a case, and of the largest of Spark's Python workers.

    Context manager; samples the memory ten times per second on its own thread.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._before = self._seconds()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            for child in psutil.Process().children(recursive=True):
                try:
                    if PARTS["python"][0] in " ".join(child.cmdline()) and "java" not in child.name():
                        self.peak_bytes = max(self.peak_bytes, child.memory_info().rss)
                except psutil.Error:
                    continue

    def _seconds(self) -> dict[str, float]:
        """Return the CPU time so far of Java, of Spark's Python workers and of the brokers."""
        found = dict.fromkeys(PARTS, 0.0)
        for process in psutil.Process().children(recursive=True):
            try:
                command, times = " ".join(process.cmdline()), process.cpu_times()
            except psutil.Error:
                continue
            for part, words in PARTS.items():
                if any(word in command for word in words):
                    found[part] += times.user + times.system
                    break
        return found

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def figures(self, rows: int) -> dict[str, float]:
        """Return the CPU time per row, and the memory of the largest worker."""
        spent = {part: (seconds - self._before[part]) * 1e9 / rows for part, seconds in self._seconds().items()}
        return {**{f"{part}_ns_per_row": ns for part, ns in spent.items()}, "python_peak_mb": self.peak_bytes / 1e6}


class SparkStage:
    """Spark session and a topic with the requested rows. Owned by the stage of a run."""

    def __init__(self, stage: Stage, spark: SparkSession, topic: str) -> None:
        self.stage, self.spark, self.topic = stage, spark, topic
        self.rows = stage.records
        self.options = {"headrace.bootstrap.servers": servers_of(stage)}

    def generated(self, schema: str = "") -> Any:
        """Return a frame of generated rows."""
        reader = self.spark.read.format("generator").option("rows", self.rows)
        return (reader.schema(schema) if schema else reader).load()

    def read(self, schema: str = "", **settings: str) -> Any:
        """Return a frame of the topic's rows."""
        options = {"subscribe": self.topic, "includeHeaders": "true", **self.options, **settings}
        reader = self.spark.read.format("headrace").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def read_kafka(self, *columns: str) -> Any:
        """Return a frame of the same rows in Kafka; all columns if none is named."""
        frame = spark_kafka.read(self.stage, self.spark, self.generated("partition INT, value BINARY"))
        return frame.select(*columns) if columns else frame

    def versions(self) -> dict[str, str]:
        """Return the versions of Spark and its environment."""
        jvm: Any = self.spark.sparkContext._jvm
        java = jvm.java.lang.System.getProperty("java.version")
        return {"pyspark": pyspark.__version__, "java": java, "pyarrow": pyarrow.__version__}


def servers_of(stage: Stage) -> str:
    """Return the bootstrap servers."""
    return stage.cluster(BROKERS).bootstrap_servers


def topic_of(stage: Stage) -> Any:
    """Return a new topic, removed at the end."""
    return stage.topic(brokers=BROKERS, partitions=PARTITIONS)


def fill(stage: Stage, topic: str, rows: int) -> None:
    """Write rows evenly to all partitions."""
    values = [bytes(PAPER_BYTES)] * BATCH_ROWS
    with headrace.Producer(bootstrap_servers=servers_of(stage)) as producer:
        for number in range(rows // BATCH_ROWS):
            producer.send_many(topic, values, partition=number % PARTITIONS)


def spark_of(stage: Stage) -> SparkStage:
    """Return the session of a run, started at first use."""

    @contextmanager
    def started() -> Iterator[SparkStage]:
        builder = SparkSession.builder.master(MASTER)
        for name, value in {**SETTINGS, "spark.jars": spark_kafka.jars()}.items():
            builder = builder.config(name, value)
        with topic_of(stage) as target:
            fill(stage, target.topic, stage.records)
            spark = builder.getOrCreate()
            try:
                spark.sparkContext.setLogLevel("ERROR")
                spark.dataSource.register(GeneratorSource)
                yield SparkStage(stage, spark, target.topic)
            finally:
                spark.stop()

    found: SparkStage = stage.kept("spark", started)
    return found


def rate(rows: int, seconds: float) -> dict[str, float]:
    """Return rows per second, in the unit of all benchmarks and in millions."""
    return {RATE: rows / seconds, MILLIONS: rows / seconds / 1e6}


def counted(frame: Callable[[SparkStage], Any]) -> Callable[[Stage], Sample]:
    """Return a case function that measures the count of a frame."""

    def run(stage: Stage) -> Sample:
        spark = spark_of(stage)
        with Watch() as watch:
            started = time.perf_counter()
            found = frame(spark).count()
            seconds = time.perf_counter() - started
        assert found == spark.rows
        return Sample({**rate(spark.rows, seconds), **watch.figures(spark.rows)})

    return run


def write(stage: Stage) -> Sample:
    """Write generated values to a topic that is deleted afterwards.

    Otherwise the rounds would fill the page cache, and the last ones would measure the write-back of the first ones: a
    broker then needs three times as long per row.
    """
    spark = spark_of(stage)
    frame = spark.generated("value BINARY")
    with topic_of(stage) as target:
        with Watch() as watch:
            started = time.perf_counter()
            frame.write.format("headrace").options(topic=target.topic, **spark.options).mode("append").save()
            seconds = time.perf_counter() - started
        with headrace.Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            assert sum(found.offset for found in admin.list_offsets(target.topic).values()) == spark.rows
    return Sample({**rate(spark.rows, seconds), **watch.figures(spark.rows)})


def write_kafka(stage: Stage) -> Sample:
    """Write the same values by Spark's Kafka sink, to a topic that is deleted afterwards."""
    spark = spark_of(stage)
    frame = spark.generated("value BINARY")
    with spark_kafka.new_topic(stage) as save, Watch() as watch:
        started = time.perf_counter()
        save(frame)
        seconds = time.perf_counter() - started
        figures = watch.figures(spark.rows)
    return Sample({**rate(spark.rows, seconds), **figures})


def micro_batch(stage: Stage) -> Sample:
    """Measure the second micro-batch of a streaming query, of a million rows, and triggers without new rows.

    The first micro-batch starts workers and compiles the query.
    """
    spark = spark_of(stage)
    with topic_of(stage) as target, tempfile.TemporaryDirectory() as checkpoint:
        fill(stage, target.topic, 2 * MICRO_BATCH_ROWS)
        stream = spark.spark.readStream.format("headrace").options(
            subscribe=target.topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(MICRO_BATCH_ROWS),
            **spark.options,
        )
        query = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()

        def triggers(rows: int) -> list[float]:
            """Return the milliseconds of the triggers that found `rows`."""
            progress = [each for each in query.recentProgress if each["numInputRows"] == rows]
            return [each["durationMs"]["triggerExecution"] for each in progress]

        try:
            query.processAllAvailable()
            wait_until(lambda: len(triggers(0)) >= IDLE_TRIGGERS, "a query that has read all polls")
        finally:
            query.stop()
        took = triggers(MICRO_BATCH_ROWS)
        assert len(took) == 2, took
        return Sample({**rate(MICRO_BATCH_ROWS, took[1] / 1000), "idle_ms": statistics.median(triggers(0))})


MEMORY, MEMORY_TWO = "memory/seven columns", "memory/two columns"
READ, READ_GRPC, READ_TWO = "read/seven columns", "read/seven columns, over gRPC", "read/two columns"
WRITE, MICRO_BATCH = "write/values", "stream/micro-batch of 1,000,000 rows"
KAFKA_READ, KAFKA_READ_TWO, KAFKA_WRITE = "kafka/read all columns", "kafka/read two columns", "kafka/write values"
CATALOGUE = Catalogue(
    (
        Case(MEMORY, counted(lambda spark: spark.generated())),
        Case(READ, counted(lambda spark: spark.read())),
        Case(READ_GRPC, counted(lambda spark: spark.read(**{"headrace.transport": "grpc"}))),
        Case(MEMORY_TWO, counted(lambda spark: spark.generated(TWO_COLUMNS))),
        Case(READ_TWO, counted(lambda spark: spark.read(TWO_COLUMNS))),
        Case(WRITE, write),
        Case(KAFKA_READ, counted(lambda spark: spark.read_kafka()), missing=spark_kafka.missing),
        Case(KAFKA_READ_TWO, counted(lambda spark: spark.read_kafka("offset", "value")), missing=spark_kafka.missing),
        Case(KAFKA_WRITE, write_kafka, missing=spark_kafka.missing),
        Case(MICRO_BATCH, micro_batch),
    ),
    (
        Target("count, seven columns, million rows/s", Figure(READ, MILLIONS), 1.5),
        Target("count, seven columns, of rows made in memory", Figure(READ), 0.4, Figure(MEMORY)),
        Target("the same over gRPC", Figure(READ_GRPC), None, Figure(MEMORY)),
        Target("count, two columns, million rows/s: 1.5 times the target of seven", Figure(READ_TWO, MILLIONS), 2.25),
        Target("count, two columns, of what seven reach in the same round", Figure(READ_TWO), 1.5, Figure(READ)),
        Target("the same of rows made in memory", Figure(MEMORY_TWO), None, Figure(MEMORY)),
        Target("count, two columns, of rows made in memory", Figure(READ_TWO), None, Figure(MEMORY_TWO)),
        Target("count, seven columns, of Spark's Kafka source", Figure(READ), 2.0, Figure(KAFKA_READ)),
        Target("count, two columns, of Spark's Kafka source", Figure(READ_TWO), 2.0, Figure(KAFKA_READ_TWO)),
        Target("writing, million rows/s", Figure(WRITE, MILLIONS), 1.5),
        Target("writing, of Spark's Kafka sink", Figure(WRITE), None, Figure(KAFKA_WRITE)),
        Target("a streaming micro-batch of 1,000,000 rows, million rows/s", Figure(MICRO_BATCH, MILLIONS), 1.0),
        Target("an idle micro-batch, ms", Figure(MICRO_BATCH, "idle_ms"), 250, at_most=True),
    ),
)
"""Cases and targets. "1.5 times" for two columns has two interpretations: both are reported."""


@contextmanager
def compiled_once() -> Iterator[None]:
    """Enable Python's bytecode cache, as by default.

    Spark starts several Python processes per query; without a bytecode cache each parses for half a second.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        with patch.dict(os.environ, {"PYTHONPYCACHEPREFIX": directory}):
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
            yield


def main(
    rows: Annotated[int, typer.Option(help="Rows per read or write.", min=100_000)] = 4_000_000,
    rounds: Annotated[int, typer.Option(help="Measured rounds, after a warm-up.", min=1)] = 5,
    output: Annotated[Path, typer.Option(help="Directory for spark.json.")] = Path("bench/results"),
) -> None:
    """Measure, print the tables and write JSON."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    rows -= rows % (PARTITIONS * BATCH_ROWS)
    before = machine()
    with compiled_once(), Stage(rows) as stage:
        found_on = {**before, **spark_of(stage).versions()}
        results, skipped = measure(stage, CATALOGUE.cases, rounds, Console(stderr=True), warm_rounds=1)
    told = {
        "rounds": rounds,
        "records": rows,
        "master": MASTER,
        "brokers": BROKERS,
        "partitions": PARTITIONS,
        **SETTINGS,
    }
    report = Report(CATALOGUE, results, told, skipped, found_on)
    output.mkdir(parents=True, exist_ok=True)
    (output / "spark.json").write_text(json.dumps(report.document(), indent=1) + "\n")
    report.show(Console(width=200 if not Console().is_terminal else None))


if __name__ == "__main__":
    typer.run(main)
