"""`python -m spark_jobs.access_log`: loads a web server's access log into a table, and prints reports.

Lines in Apache's combined format come from a topic or from files. The table is loaded as by `load`, rows and positions
together, so that the job can be repeated as the log grows. Malformed lines are stored separately (`quality=bad`) with
the first invalid field; they are counted and not dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.load_target import LoadTarget
from headrace.client.loading.progress import LoadedTopic
from headrace.client.loading.tables.attempts import begin, table_lock
from headrace.client.loading.tables.state import Source
from rich.console import Console

from spark_jobs import access_lines
from spark_jobs.audit import milliseconds
from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    AcceptDataLoss,
    AsJson,
    BootstrapServers,
    JobError,
    Master,
    Quiet,
    TableDirectory,
    run_job,
    show,
    usage_error,
)
from spark_jobs.load import show_load
from spark_jobs.load_options import HOUR, Load
from spark_jobs.log_files import LogFileError, new_parts
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import Answer, answer_of, show_answer, table_frame
from spark_jobs.session import spark_session
from spark_jobs.topic_frame import check_topics
from spark_jobs.topic_loading import load_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BY = ("quality", HOUR)
FILES = Source("files", "access log")


@dataclass(slots=True)
class AccessSummary:
    """Result of a run, and reports over the whole table."""

    load: dict[str, Any]
    job: str = "access_log"
    hits: int = 0
    errors: int = 0
    """Responses with a status of 400 or above."""
    bytes: int = 0
    clients: int = 0
    sessions: int = 0
    bad_lines: int = 0
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0


def _parser() -> tuple[Callable[[Iterator[Any]], Iterator[Any]], Callable[[Iterator[Any]], Iterator[Any]]]:
    """Return the functions that workers run: over values of a topic, and over ranges of files."""
    from pyspark import cloudpickle
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    # The module is pickled by value, so that workers need only PySpark and pyarrow.
    cloudpickle.register_pickle_by_value(access_lines)  # type: ignore[no-untyped-call]
    schema = to_arrow_schema(cast(StructType, StructType.fromDDL(access_lines.COLUMNS)), timezone="UTC")
    row_of, lines_of, batches_of = access_lines.row_of, access_lines.lines_of, access_lines.batches_of

    def of_values(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            places = zip(*(batch.column(name).to_pylist() for name in ("origin", "position", "value")), strict=True)
            yield from batches_of((row_of(origin, position, line or b"") for origin, position, line in places), schema)

    def of_ranges(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for split in batch.to_pylist():
                lines = lines_of(split["path"], split["start"], split["end"], split["identity"])
                yield from batches_of((row_of(split["path"], position, line) for position, line in lines), schema)

    return of_values, of_ranges


def parsed_topic(frame: DataFrame) -> DataFrame:
    """Convert a topic's records to rows of the table."""
    of_values, _ = _parser()
    places = frame.selectExpr("concat(topic, '/', partition) AS origin", "offset AS position", "value")
    return places.mapInArrow(of_values, access_lines.COLUMNS)


def load_files(spark: SparkSession, paths: list[Path], root: Path, progress: ProgressLine) -> LoadedTopic:
    """Load the new parts of files.

    Raises:
        JobError: If a file cannot be loaded.
        LoadError: If the table has another source, is in use, or the commit fails.
    """
    from pyspark.sql import functions

    started = time.monotonic()
    summary = LoadedTopic(", ".join(map(str, paths)), str(root), LoadFormat.PARQUET.value)
    with table_lock(root):
        table = open_table(str(root), LoadFormat.PARQUET)
        target = LoadTarget(table, FILES, PARTITION_BY, summary)
        try:
            parts = [part for part in new_parts(paths, target.state.positions) if part.start < part.end]
        except LogFileError as error:
            raise JobError(str(error)) from None
        if parts:
            progress.step(f"loading {sum(part.end - part.start for part in parts):,} bytes of {len(parts)} files")
            splits = [split for part in parts for split in part.splits()]
            ranges = spark.createDataFrame(
                splits, "path STRING, start BIGINT, end BIGINT, identity STRING"
            ).repartition(len(splits))
            _, of_ranges = _parser()
            rows = ranges.mapInArrow(of_ranges, access_lines.COLUMNS)
            rows = rows.withColumn(HOUR, functions.date_format("at", "yyyy-MM-dd-HH"))
            attempt = begin(root)
            try:
                with progress.following(spark):
                    rows.write.partitionBy(*PARTITION_BY).parquet(str(attempt.data))
            except BaseException:
                table.recover()
                raise
            target.commit(attempt, {part.identity: part.end for part in parts})
        target.finish()
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def describe(spark: SparkSession, root: Path, loaded: LoadedTopic, top: int, session_gap_ms: int) -> AccessSummary:
    """Return reports over the whole table: hits, errors, bytes, pages, sessions."""
    summary = AccessSummary(loaded.as_json())
    frame = table_frame(spark, open_table(str(root), LoadFormat(loaded.format)))
    if frame is None:
        return summary
    frame.createOrReplaceTempView("lines")
    spark.sql("CREATE OR REPLACE TEMP VIEW hits AS SELECT * FROM lines WHERE quality = 'good'")
    spark.sql(
        "CREATE OR REPLACE TEMP VIEW sessions AS SELECT client, count(*) AS hits, sum(bytes) AS bytes, "
        "min(at) AS first, bigint(max(unix_seconds(at)) - min(unix_seconds(at))) AS seconds "
        f"FROM hits GROUP BY client, session_window(at, '{session_gap_ms} milliseconds')"
    )
    reports: dict[str, Answer] = {}
    for name, sql in {
        "totals": "SELECT count(*) AS hits, count_if(status >= 400) AS errors, sum(bytes) AS bytes, "
        "count(DISTINCT client) AS clients, (SELECT count(*) FROM sessions) AS sessions, "
        "(SELECT count(*) FROM lines WHERE quality = 'bad') AS bad_lines FROM hits",
        "answers by status": "SELECT status, count(*) AS hits, sum(bytes) AS bytes FROM hits GROUP BY 1 ORDER BY 1",
        "top pages": "SELECT split_part(path, '?', 1) AS page, count(*) AS hits, count(DISTINCT client) AS clients, "
        f"sum(bytes) AS bytes, count_if(status >= 400) AS errors FROM hits GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {top}",
        "most sessions by client": "SELECT client, count(*) AS sessions, sum(hits) AS hits, sum(bytes) AS bytes, "
        "bigint(avg(seconds)) AS mean_seconds, max(seconds) AS longest_seconds "
        f"FROM sessions GROUP BY 1 ORDER BY 2 DESC, 3 DESC, 1 LIMIT {top}",
        "lines that could not be read": "SELECT reason AS first_wrong_field, count(*) AS lines, "
        "min(concat(origin, ' at ', position)) AS for_example "
        "FROM lines WHERE quality = 'bad' GROUP BY 1 ORDER BY 2 DESC, 1",
    }.items():
        reports[name] = answer_of(sql, spark.sql(sql))
    totals = reports.pop("totals")
    for name, value in zip(totals.columns, totals.rows[0], strict=True):
        setattr(summary, name, value or 0)
    summary.reports = {name: answer.as_json() for name, answer in reports.items()}
    return summary


def show_access(summary: Mapping[str, Any], console: Console) -> None:
    """Print the reports."""
    show_load(summary["load"], console)
    console.print(
        f"{summary['hits']:,} hits, {summary['errors']:,} errors, {summary['bytes']:,} bytes, {summary['clients']:,} "
        f"clients in {summary['sessions']:,} sessions; {summary['bad_lines']:,} lines could not be read."
    )
    for name, report in summary["reports"].items():
        if report["rows"]:
            show_answer(name, report["columns"], report["rows"], console)


def access_log(
    table: TableDirectory,
    file: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="Log file; repeatable. Excludes --topic.")
    ] = None,
    topic: Annotated[str, typer.Option(help="Topic whose values are the lines. Excludes --file.")] = "",
    top: Annotated[int, typer.Option(min=1, max=1_000, help="Number of pages and clients shown.")] = 10,
    session_gap: Annotated[
        str, typer.Option(metavar="DURATION", help="Inactivity of a client that ends its session.")
    ] = "30m",
    accept_data_loss: AcceptDataLoss = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Load a web server's log into a table and print reports of it. Run it again to load the new lines."""
    started = time.monotonic()
    if bool(topic) == bool(file):
        raise usage_error("give either --file or --topic")
    if file and accept_data_loss:
        raise usage_error("--accept-data-loss is for --topic")
    session_gap_ms = milliseconds(session_gap, "--session-gap")
    root = table.absolute()
    if topic:
        check_topics(bootstrap_servers, topic)
    progress = ProgressLine(quiet=quiet)
    with progress.shown():
        progress.step("starting Spark")
        with spark_session("access_log", master) as spark:
            if file:
                loaded = load_files(spark, file, root, progress)
            else:
                wanted = Load(
                    topic,
                    root,
                    bootstrap_servers,
                    event_time="at",
                    columns=parsed_topic,
                    partition_by=PARTITION_BY,
                    accept_loss=accept_data_loss,
                )
                loaded = load_topic(spark, wanted, progress)
            progress.step("asking the table")
            with progress.following(spark):
                summary = describe(spark, root, loaded, top, session_gap_ms)
    summary.seconds = round(time.monotonic() - started, 3)
    document = asdict(summary)
    show(document, as_json, lambda console: show_access(document, console))
    check_readable(summary)


def check_readable(summary: AccessSummary) -> None:
    """Check that some lines are well-formed.

    Raises:
        JobError: If there are lines and all of them are malformed.
    """
    if summary.bad_lines and not summary.hits:
        raise JobError(
            f"none of the {summary.bad_lines:,} lines could be read. Give a log in Apache's combined format, and "
            "another table: this one has the lines under quality=bad"
        )


if __name__ == "__main__":
    run_job(access_log)
