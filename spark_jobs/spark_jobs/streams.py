"""Execution of one streaming query to a directory of Parquet files, with an exact account of all records.

The account is computed from stored data: a record that was read is in the results, in the state of an open window, or
it was late. Spark's own count of late rows is after a first aggregation and therefore too low; for a join, which has
none, it is exact and is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.client.loading.tables.attempts import META, table_lock
from headrace.spark.options import SERVERS

from spark_jobs.batch_spans import record_micro_batch
from spark_jobs.command import JobError
from spark_jobs.late_records import LossyBatch, late_records, watermark_of
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import Answer, answer_of
from spark_jobs.topic_frame import is_typed, names_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 0.3
SHOWN_ROWS = 20
SEEN = "records"
"""Name of the observation of a query's input."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Query that continues from run to run."""

    name: str
    output: Path
    bootstrap_servers: str
    follow: bool
    max_records: int
    event_time: str = ""
    """SQL expression of a record's event time; empty for the time of the record."""
    final_at: str = "event_time"
    """SQL expression over `event_time`: when the window of a record becomes final."""
    accept_loss: bool = False
    """Whether records that retention or an unclean election removed are skipped."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What else the results depend on, as JSON values: the topics, the keys, the length of a window."""

    @property
    def checkpoint(self) -> Path:
        """Directory of Spark's offsets and state."""
        return self.output / "_checkpoint"

    def results(self, spark: SparkSession) -> DataFrame | None:
        """Return the final results; `None` if there are none yet."""
        written = (self.output / "_spark_metadata").exists() and any(self.output.glob("*.parquet"))
        return spark.read.parquet(str(self.output)) if written else None


@dataclass(slots=True)
class StreamRun:
    """Result of one run."""

    records: int = 0
    without_event_time: int = 0
    """Records with event time NULL, which are in no window."""
    late: int = 0
    written: int = 0
    """Rows written."""
    open: int = 0
    """Rows of state at the end."""
    batches: int = 0
    watermark: str = ""
    seconds: float = 0.0
    late_records: Answer | None = None
    """First late records."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(slots=True)
class _Account:
    """Totals of a query's progress, each micro-batch counted once."""

    run: StreamRun
    checkpoint: Path
    query: str
    """Name of the query."""
    dropped: int = 0
    lossy: list[LossyBatch] = field(default_factory=list)
    seen: int = -1

    def add(self, progress: Mapping[str, Any]) -> None:
        batch = progress["batchId"]
        if batch <= self.seen:
            return
        if self.seen < 0:
            self.run.watermark = watermark_of(self.checkpoint, batch - 1)
        self.seen = batch
        self.run.batches += 1
        record_micro_batch(self.query, progress)
        for name, observed in (progress.get("observedMetrics") or {}).items():
            if name.startswith(SEEN):
                self.run.records += observed["records"]
                self.run.without_event_time += observed["untimed"]
        # Spark counts rows after a first aggregation in each task, so this only shows that records were late.
        dropped = sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        if dropped:
            sources = tuple((source["startOffset"], source["endOffset"]) for source in progress["sources"])
            self.lossy.append(LossyBatch(sources, self.run.watermark))
        self.dropped += dropped
        self.run.open = sum(operator["numRowsTotal"] for operator in progress["stateOperators"])
        self.run.watermark = (progress.get("eventTime") or {}).get("watermark", self.run.watermark)


def read_stream(spark: SparkSession, stream: Stream, topic: str) -> DataFrame:
    """Return a topic as a stream from its start, with the column `event_time`; a typed topic by its columns."""
    from pyspark.sql import functions

    reader = spark.readStream.format("headrace").option(SERVERS, stream.bootstrap_servers).option("subscribe", topic)
    if is_typed(stream.bootstrap_servers, topic):
        reader = reader.option("typed", "true")
    reader = reader.option("failOnDataLoss", str(not stream.accept_loss).lower())
    records = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", stream.max_records).load()
    event_time = stream.event_time or names_of(records)["timestamp"]
    return records.withColumn("event_time", functions.expr(event_time)).observe(
        f"{SEEN} {topic}",
        functions.count("*").alias("records"),
        functions.expr("count_if(event_time IS NULL)").alias("untimed"),
    )


def check_parameters(stream: Stream) -> None:
    """Check that an output has results of the same query; store the parameters of one that has none yet.

    The caller has the lock of the output.

    Raises:
        JobError: If it has the results of another topic or of other windows, which the checkpoint would continue.
    """
    file = stream.output / META / "stream.json"
    wanted = {"query": stream.name, "event_time": stream.event_time, **stream.parameters}
    if file.exists() and stream.checkpoint.exists():
        known = json.loads(file.read_text())
        differing = [name for name, value in wanted.items() if known.get(name, value) != value]
        if differing:
            changes = "; ".join(f"{name} is {known[name]!r}, not {wanted[name]!r}" for name in differing)
            raise JobError(f"{stream.output} has results of another query ({changes}); give another --output")
        return
    written = file.with_suffix(".new")
    written.write_text(json.dumps(wanted, indent=1))
    written.replace(file)


def run_stream(spark: SparkSession, stream: Stream, frame: DataFrame, progress: ProgressLine) -> StreamRun:
    """Run a query to the end of its topics, or until Ctrl-C.

    Raises:
        TableBusyError: If another job writes to the output.
        JobError: If the output has the results of another query.
    """
    started = time.monotonic()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    with table_lock(stream.output):
        check_parameters(stream)
        rows_before, counted_before = _counted(spark, stream)
        account = _Account(StreamRun(), stream.checkpoint, stream.name)
        progress.step(f"{'following' if stream.follow else 'reading'}; Ctrl-C ends it")
        writer = frame.writeStream.queryName(stream.name).outputMode("append").format("parquet")
        writer = writer.option("checkpointLocation", str(stream.checkpoint)).option("path", str(stream.output))
        query = writer.start() if stream.follow else writer.trigger(availableNow=True).start()
        with progress.following(spark):
            _wait(query, account, follow=stream.follow)
        run = account.run
        rows_after, counted_after = _counted(spark, stream)
        run.written = rows_after - rows_before
        if stream.name == "join":
            run.late = account.dropped
        else:
            run.late = run.records - run.without_event_time - (counted_after - counted_before)
        if account.lossy:
            progress.step("looking for what was late")
            late = late_records(spark, stream.bootstrap_servers, account.lossy, stream.event_time, stream.final_at)
            run.late_records = None if late is None else answer_of("", late.limit(SHOWN_ROWS))
    run.seconds = round(time.monotonic() - started, 3)
    return run


def _wait(query: StreamingQuery, account: _Account, *, follow: bool) -> None:
    """Wait for the end of a query, and add up its progress.

    Raises:
        KeyboardInterrupt: After Ctrl-C, when the query has stopped; not with `follow`, for which it is the normal end.
    """
    try:
        while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]
            for entry in query.recentProgress:
                account.add(entry)
    except KeyboardInterrupt:
        query.stop()
        if not follow:
            raise
    for entry in query.recentProgress:
        account.add(entry)


def _counted(spark: SparkSession, stream: Stream) -> tuple[int, int]:
    """Return the number of result rows, and the number of records counted in results and open windows."""
    from pyspark.sql import functions

    results = stream.results(spark)
    rows = results.count() if results is not None else 0
    if stream.name == "join":
        return rows, 0
    total = functions.sum("records")
    counted = results.agg(total).first()[0] or 0 if results is not None else 0  # type: ignore[index]
    if (stream.checkpoint / "state").exists() and any((stream.checkpoint / "commits").glob("[0-9]*")):
        state = spark.read.format("statestore").load(str(stream.checkpoint))
        counted += state.agg(functions.sum(_records_of(state))).first()[0] or 0  # type: ignore[index]
    return rows, counted


def _records_of(state: DataFrame) -> Column:
    """Return the number of records of a row of state: the greatest count, because further aggregates have counts of a
    part of the records, in buffers of the same name.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import LongType, StructField, StructType

    buffers: Any = state.schema["value"].dataType
    # By place: Spark (4.3) reads the last of several fields of a name if only one is selected.
    numbered = StructType([StructField(str(place), each.dataType) for place, each in enumerate(buffers)])
    value = functions.col("value").cast(numbered)
    counts = [value.getField(str(place)) for place, each in enumerate(buffers) if each.name == "count"]
    return functions.greatest(*counts, functions.lit(0).cast(LongType()))
