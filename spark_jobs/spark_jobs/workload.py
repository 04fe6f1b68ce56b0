"""`python -m spark_jobs.workload`: how a table is used, from the request trace of its brokers.

Reads trace blocks (`headrace.wire.request_trace`) of a topic or of Parquet files and writes a page for people, a table
of its numbers, and the model of the workload, which `headrace bench --workload fitted:FILE` replays.

With Spark, requests are distributed by key: each task counts the requests of its keys (`trace_analysis.summary`), then
its keys between the requests of the gets that were drawn in all tasks. The driver adds the counts and fits
distributions. Executors need this package. `--local` does the same in this process, within its memory: about 100 bytes
a request.
"""

from __future__ import annotations

import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import typer
from headrace.wire.errors import UnknownTopicError
from headrace.wire.request_trace import TRACE_TOPIC, TraceBlock, TraceFormatError, decode_block
from rich.console import Console

from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    AsJson,
    BootstrapServers,
    JobError,
    Master,
    Quiet,
    local_directory,
    run_job,
    show,
    usage_error,
)
from spark_jobs.progress import ProgressLine
from spark_jobs.session import spark_session
from spark_jobs.topic_frame import check_topics, read_topic
from spark_jobs.trace_analysis.curves import Between, share_of_requests
from spark_jobs.trace_analysis.requests import (
    DTYPES,
    TableTrace,
    TraceCollector,
    TracedRequests,
    TraceError,
    chosen_trace,
    digest_of,
    in_order_of_time,
    joined,
    key_of,
    read_parquet,
    requests_of,
    topic_values,
)
from spark_jobs.trace_analysis.summary import (
    Summary,
    between_of_part,
    merged,
    summarise,
    summary_of_part,
    with_between,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.trace_analysis.analysis import Analysis

_Counted = TypeVar("_Counted")
PART_REQUESTS = 8_000_000
"""Requests of one task, on average: less than a gigabyte."""
_HEADS = "digest BINARY, table STRING, table_id BINARY, threshold BIGINT, requests BIGINT, seen BIGINT, dropped BIGINT"
_ROWS = (
    "key_hash BIGINT, at_us BIGINT, gap_us BIGINT, latency_us BIGINT, value_bytes BIGINT, key_bytes INT, "
    "operation SMALLINT, outcome SMALLINT"
)
"""Requests in Spark, which has no unsigned numbers: `key_hash` is reinterpreted, the others fit."""


def local_summary(
    topic: str, file: Path | None, table: str | None, bootstrap_servers: str
) -> tuple[TableTrace, Summary, int]:
    """Return the trace of a table, its counts, and the number of damaged records, without Spark.

    Raises:
        TraceError: If there is no such trace.
    """
    collector = TraceCollector(table)
    if file is not None:
        read_parquet(file, collector, table)
    else:
        for value in topic_values(bootstrap_servers, topic):
            collector.add(value)
    trace = chosen_trace(collector.traces.values(), table, str(file or topic))
    return trace, summarise(collector.requests(trace)), collector.damaged


def spark_summary(
    spark: SparkSession, values: DataFrame, table: str | None, source: str, progress: ProgressLine
) -> tuple[TableTrace, Summary, int]:
    """Return the same from a frame with the blocks in the column `value`, on Spark.

    Raises:
        TraceError: If there is no such trace.
    """
    from pyspark import StorageLevel

    progress.step("reading the heads of blocks")
    with progress.following(spark):
        found, repeated, damaged = _traces_of(values)
    trace = chosen_trace(found, table, source)
    parts = max(spark.sparkContext.defaultParallelism, -(-trace.requests // PART_REQUESTS))
    frame = _requests_of(values, trace, repeated).repartition(parts, "key_hash")
    rows = frame.persist(StorageLevel.DISK_ONLY)
    try:
        progress.step(f"counting {trace.requests:,} requests")
        with progress.following(spark):
            share = share_of_requests(trace.requests)
            summary = merged(_of_tasks(rows, lambda requests: summary_of_part(requests, share)))
        progress.step(f"counting the keys between {len(summary.reuses.end_us):,} gets and the uses before")
        with progress.following(spark):
            reuses = summary.reuses
            between: list[Between] = _of_tasks(rows, lambda requests: between_of_part(requests, reuses))
    finally:
        rows.unpersist()
    return trace, with_between(summary, between), damaged


def _values(spark: SparkSession, topic: str, file: Path | None, bootstrap_servers: str) -> DataFrame:
    if file is None:
        return read_topic(spark, bootstrap_servers, topic).select("value")
    rows = spark.read.parquet(str(file.absolute()))
    if "value" not in rows.columns:
        raise usage_error(f"{file} has no column value with trace blocks; requests as rows are read with --local")
    return rows.select("value")


def _traces_of(values: DataFrame) -> tuple[list[TableTrace], frozenset[bytes], int]:
    """Return the traces, the digests of blocks that are there several times, and the number of damaged records."""
    from pyspark.sql import functions

    key, counts = ("table", "table_id", "threshold"), ("requests", "seen", "dropped")
    blocks = values.mapInArrow(_heads, _HEADS).groupBy("digest", *key, *counts)
    several = functions.collect_list(functions.expr("CASE WHEN copies > 1 THEN digest END"))
    sums = [functions.sum(name).alias(name) for name in (*counts, "copies")]
    heads = blocks.agg(functions.count("*").alias("copies")).groupBy(*key)
    found, damaged = [], 0
    repeated: set[bytes] = set()
    for row in heads.agg(functions.count("*").alias("blocks"), *sums, several.alias("repeated")).collect():
        if row["table"] is None:
            damaged = row["copies"]
            continue
        trace = TableTrace(row["table"], row["threshold"], table_id=bytes(row["table_id"]))
        trace.repeated_blocks = row["copies"] - row["blocks"]
        trace.add(row["blocks"], row["requests"], row["seen"], row["dropped"])
        found.append(trace)
        repeated.update(map(bytes, row["repeated"]))
    return found, frozenset(repeated), damaged


def _heads(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield a row for each block, and one of nulls for each damaged record."""
    import pyarrow

    names = [column.split()[0] for column in _HEADS.split(", ")]
    types = [pyarrow.binary(), pyarrow.string(), pyarrow.binary(), *[pyarrow.int64()] * (len(names) - 3)]
    for batch in batches:
        rows: list[tuple[bytes | str | int | None, ...]] = []
        for value, block in _decoded(batch):
            if block is None:
                rows.append((None,) * len(names))
                continue
            counts = (block.requests, block.seen_requests, block.dropped_requests)
            rows.append((digest_of(value), *key_of(block), *counts))
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        arrays = [pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, names)


def _decoded(batch: pyarrow.RecordBatch) -> Iterator[tuple[bytes, TraceBlock | None]]:
    """Yield values with their blocks; None for one that is none."""
    for value in batch.column(0):
        held = value.as_py() or b""
        try:
            yield held, decode_block(held)
        except TraceFormatError:
            yield held, None


def _requests_of(values: DataFrame, trace: TableTrace, repeated: frozenset[bytes]) -> DataFrame:
    """Return the requests of a trace; those of blocks that are there several times are in it once."""
    rows = values.mapInArrow(_rows_of(trace, lambda value: digest_of(value) not in repeated), _ROWS)
    if not repeated:
        return rows
    # Few values, of which Spark may compare all bytes.
    several = values.mapInArrow(_only(repeated), "value BINARY").dropDuplicates(["value"])
    return rows.unionAll(several.mapInArrow(_rows_of(trace, lambda value: True), _ROWS))


def _only(digests: frozenset[bytes]) -> Callable[..., Iterator[pyarrow.RecordBatch]]:
    """Return the function of a task that yields the blocks with these digests."""

    def only(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        for batch in batches:
            held = [value for value, block in _decoded(batch) if block is not None and digest_of(value) in digests]
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array(held, pyarrow.binary())], ["value"])

    return only


def _rows_of(trace: TableTrace, is_wanted: Callable[[bytes], bool]) -> Callable[..., Iterator[pyarrow.RecordBatch]]:
    """Return the function of a task that yields the requests of the wanted blocks of a trace."""
    key = trace.key

    def rows(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        for batch in batches:
            for value, block in _decoded(batch):
                if block is not None and key_of(block) == key and is_wanted(value):
                    yield pyarrow.RecordBatch.from_arrays(_signed(requests_of(block)), list(DTYPES))

    return rows


def _of_tasks(rows: DataFrame, count: Callable[[TracedRequests], _Counted]) -> list[_Counted]:
    """Return what each task counts of its requests, which are in order of time."""

    def counted(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        held = [
            TracedRequests(*(column.to_numpy().view(dtype) if dtype.itemsize == 8 else column.to_numpy().astype(dtype)
            for column, dtype in zip(batch.columns, DTYPES.values(), strict=True)))
            for batch in batches if batch.num_rows
        ]  # fmt: skip
        if held:
            found = pickle.dumps(count(in_order_of_time(joined(held))))
            values = pyarrow.array([zlib.compress(found, 1)], pyarrow.binary())
            yield pyarrow.RecordBatch.from_arrays([values], ["found"])

    collected = rows.mapInArrow(counted, "found BINARY").collect()
    return [pickle.loads(zlib.decompress(row["found"])) for row in collected]


def _signed(requests: TracedRequests) -> list[Any]:
    import pyarrow

    kinds = [np.int64, np.int64, np.int64, np.int64, np.int64, np.int32, np.int16, np.int16]
    columns: list[Any] = [requests.key_hash.view(np.int64), *requests[1:]]
    return [pyarrow.array(column.astype(kind)) for column, kind in zip(columns, kinds, strict=True)]


def show_workload(summary: Mapping[str, Any], console: Console) -> None:
    """Print the main results for people."""
    console.print(
        f"{summary['requests']:,} requests of {summary['keys']:,} keys of {summary['table']} in "
        f"{summary['seconds_of_trace']:,.0f} s; {summary['sampled_fraction']:.3g} of the keys are sampled."
    )
    mix = ", ".join(f"{share:.1%} {name}" for name, share in summary["operations"].items())
    console.print(f"Operations: {mix}; {summary['hit_rate']:.1%} of the gets found a value.")
    for name, fit in summary["fits"].items():
        parameters = ", ".join(f"{key} {value:.5g}" for key, value in fit["parameters"].items())
        verdict = "" if fit["describes"] else "; it does not describe the data"
        distance = fit["kolmogorov_smirnov_distance"]
        shown = "unknown" if distance is None else f"{distance:.3f}"
        console.print(f"{name}: {fit['family']}, {parameters} (distance {shown}){verdict}")
    console.print(f"The page is {summary['page']}; the model {summary['model']}")


def workload(
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            callback=local_directory,
            help="Directory for workload.html, workload.parquet and model.json, created if missing.",
        ),
    ],
    topic: Annotated[
        str | None, typer.Option(help=f"Topic with a request trace; the default is {TRACE_TOPIC}.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="Parquet file, or directory of files, with a trace, instead of the topic: blocks in a column "
            "value, as spark_jobs.load writes them, or with --local one request a row.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Table to analyse; the default is the only one in the trace.")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Analyse in this process, without Spark, as much as memory holds.")
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Analyse the request trace of a table: sizes, load, misses, popularity, reuse, cache sizes, and a model of it."""
    started = time.monotonic()
    try:
        import scipy  # noqa: F401
    except ImportError:
        raise JobError("the analysis needs scipy; install 'headrace-spark-jobs[workload]'") from None
    if file is not None and topic is not None:
        raise usage_error("give either --file or --topic, not both")
    topic = topic or TRACE_TOPIC
    if file is None:
        _check_trace(bootstrap_servers, topic)
    progress = ProgressLine(quiet=quiet)
    with progress.shown():
        try:
            if local:
                progress.step("reading the trace")
                analysis = _analysed(*local_summary(topic, file, table, bootstrap_servers))
            else:
                progress.step("starting Spark")
                with spark_session("workload", master) as spark:
                    values = _values(spark, topic, file, bootstrap_servers)
                    analysis = _analysed(*spark_summary(spark, values, table, str(file or topic), progress))
        except TraceError as error:
            raise JobError(str(error)) from None
        progress.step("writing the page")
        analysis.write(output)
    document = {"job": "workload", **analysis.as_json(), "seconds": round(time.monotonic() - started, 3)}
    document |= {"page": str(output / "workload.html"), "model": str(output / "model.json")}
    show(document, as_json, lambda console: show_workload(document, console))


def _analysed(trace: TableTrace, summary: Summary, damaged: int) -> Analysis:
    """Return the analysis; scipy is imported here, so that the command line works without it."""
    from spark_jobs.trace_analysis.analysis import analysed

    return analysed(trace, summary, damaged)


def _check_trace(bootstrap_servers: str, topic: str) -> None:
    try:
        check_topics(bootstrap_servers, topic)
    except UnknownTopicError as error:
        if topic == TRACE_TOPIC:  # Brokers create it.
            error.action = (
                "No table has had a trace: begin one by `headrace topic alter TABLE --config trace_sample=0.01`."
            )
        raise


if __name__ == "__main__":
    run_job(workload)
