"""`python -m spark_jobs.load`: loads a topic into a table; data and offsets are committed together.

This is the paper's load job (section 4): the loaded records and their offsets become visible in one step. It may be run
repeatedly, killed and restarted, from a timer or by hand: no record is missing or duplicated. A run loads the records
that exist at its start, in commits of at most `--commit-records`. The rows of a typed topic have its columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import headrace
import typer
from headrace.client.loading.columns import EMPTY_TEXT
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.tables.attempts import Attempt, begin, table_lock
from headrace.client.loading.tables.state import Source, StoredTable, TableState
from headrace.client.loading.topic_log import TopicLog
from rich.console import Console

from spark_jobs.batch_spans import commit_span
from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    AsJson,
    BootstrapServers,
    EventTime,
    JobError,
    Master,
    Quiet,
    TableDirectory,
    run_job,
    show,
)
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import VIEW, ask, show_answer
from spark_jobs.session import spark_session
from spark_jobs.topic_frame import check_topics, names_of, read_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR = "event_hour"
COMMIT_RECORDS = 20_000_000
_COPY = "__directory_of_"
"""Beginning of the name of a column by which Spark makes directories, in a table whose files keep the column."""
_COPIED_TYPES = frozenset({"string", "tinyint", "smallint", "int", "bigint", "boolean", "date"})


@dataclass(frozen=True, slots=True)
class Load:
    """Parameters of a load."""

    topic: str
    table: Path
    bootstrap_servers: str
    format: LoadFormat = LoadFormat.PARQUET
    event_time: str = ""
    """SQL expression of a row's event time; empty for the time of the record."""
    columns: Callable[[DataFrame], DataFrame] | None = None
    """Converts the topic's columns to the table's, row by row; `None` keeps them."""
    partition_by: tuple[str, ...] = (HOUR,)
    commit_records: int = COMMIT_RECORDS
    accept_loss: bool = False


@dataclass(slots=True)
class LoadSummary:
    """Result of a run."""

    topic: str
    table: str
    format: str
    job: str = "load"
    commits: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    lost: int = 0
    """Records that retention deleted before they were loaded; only with --accept-data-loss."""
    lag: int = 0
    """Records of the topic that are not in the table after the run."""
    lag_by_partition: dict[int, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    table_rows: int = 0
    table_bytes: int = 0
    table_files: int = 0
    seconds: float = 0.0
    answers: list[dict[str, Any]] = field(default_factory=list)


def load_topic(spark: SparkSession, wanted: Load, progress: ProgressLine) -> LoadSummary:
    """Load the records of the topic that are not in the table.

    Raises:
        JobError: If Spark read another number of records, or the table cannot have their columns.
        LoadError: If records were removed before they were loaded, the table is ahead of the log, has another source or
            is in use, or the commit fails.
    """
    started = time.monotonic()
    summary = LoadSummary(wanted.topic, str(wanted.table), wanted.format.value)
    with (
        headrace.Admin(bootstrap_servers=wanted.bootstrap_servers, client_id="load") as admin,
        table_lock(wanted.table),
    ):
        log = TopicLog(admin, wanted.topic)
        typed = bool(log.columns())
        table = open_table(str(wanted.table), wanted.format, is_typed=typed)
        table.recover()
        state = table.state()
        state.check_source(log.source)
        state.check_partitioning(wanted.partition_by)
        positions = {int(partition): at for partition, at in state.positions.items()}
        plan = log.plan(positions, accept_data_loss=wanted.accept_loss)
        summary.lost = sum(loss.earliest - loss.wanted for loss in plan.losses)
        while plan.records:
            ends = plan.first(wanted.commit_records)
            records = sum(ends.values()) - sum(plan.starts.values())
            progress.step(f"loading {records:,} of {plan.records:,} records")
            with progress.following(spark), commit_span(wanted.topic, records):
                after = _load_commit(spark, log, wanted, typed, table, plan.starts, ends)
            summary.commits += 1
            summary.rows += after.rows - state.rows
            summary.bytes += after.bytes - state.bytes
            summary.files += after.files - state.files
            plan, state = plan.after(ends), after
        _describe(summary, state, log.offsets("latest"))
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _load_commit(
    spark: SparkSession,
    log: TopicLog,
    wanted: Load,
    typed: bool,
    table: StoredTable,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> TableState:
    """Load a range of offsets and commit it."""
    records = read_topic(spark, wanted.bootstrap_servers, wanted.topic, starts, ends, typed=typed)
    attempt = begin(table.root)
    try:
        _write(_rows(records, wanted), records, wanted, table, attempt.data)
        expected = sum(ends.values()) - sum(starts.values())
        written = sum(file.rows for file in attempt.files())
        if written != expected and not (wanted.accept_loss and written < expected):
            raise JobError(f"Spark read {written:,} records where offsets say {expected:,}; nothing was committed")
        log.check_source()
        positions = {str(partition): end for partition, end in ends.items()}
        _check_columns(attempt, table, log.source, wanted.partition_by)
        return table.commit(attempt, log.source, positions, wanted.partition_by)
    except BaseException:
        table.recover()
        raise


def _check_columns(attempt: Attempt, table: StoredTable, source: Source, partition_by: tuple[str, ...]) -> None:
    """Create the table if that must be done before a commit; check that the columns of the rows have the types that
    they have in it. Further ones may be new.

    Raises:
        JobError: If one has another type, for example because the topic's column was widened.
    """
    if files := attempt.files():
        columns = attempt.columns(files[0]).remove_metadata()
        table.prepare(columns, source, partition_by)
        found = table.conflicts(columns)
        if found:
            raise JobError(f"{'; '.join(found)}: cast it by --select, or load into another directory")


def _rows(records: DataFrame, wanted: Load) -> DataFrame:
    """Return the rows of the table.

    Raises:
        JobError: If they lack a column of the partitioning.
    """
    from pyspark.sql import functions

    frame = records if wanted.columns is None else wanted.columns(records)
    if HOUR in wanted.partition_by and (wanted.event_time or HOUR not in frame.columns):
        event_time = functions.expr(wanted.event_time or names_of(records)["timestamp"])
        frame = frame.withColumn(HOUR, functions.date_format(event_time, "yyyy-MM-dd-HH"))
    for name in wanted.partition_by:
        if name not in frame.columns:
            raise JobError(f"--partition-by {name}: the table has the columns {', '.join(frame.columns)}")
    if len(frame.columns) == len(wanted.partition_by):
        raise JobError("--partition-by has every column of the table; one at least must be in its files")
    return frame


def _write(rows: DataFrame, records: DataFrame, wanted: Load, table: StoredTable, data: Path) -> None:
    """Write the rows to files in directories by the columns of the partitioning.

    Spark takes these columns out of the files. In a table whose files keep them the directories are made by copies, but
    not by one of the hour of the record's time, which the table derives itself.

    Raises:
        JobError: If files of such a table cannot have one value of a column each.
    """
    from pyspark.sql import functions

    is_derived = not wanted.event_time and wanted.columns is None and HOUR not in records.columns
    copied = [name for name in wanted.partition_by if table.keeps_columns and not (is_derived and name == HOUR)]
    for name in copied:
        kind = rows.schema[name].dataType.simpleString()
        if kind not in _COPIED_TYPES:
            raise JobError(f"--partition-by {name}: it is {kind}; name a string, an integer, a bool or a date")
        column = functions.col(f"`{name}`")
        text = functions.when(column == "", EMPTY_TEXT).otherwise(column) if kind == "string" else column
        rows = rows.withColumn(_COPY + name, text)
    directories = [_COPY + name if name in copied else name for name in wanted.partition_by]
    rows.write.partitionBy(*directories).parquet(str(data))
    for path in sorted(data.rglob(f"{_COPY}*"), reverse=True):  # The innermost first.
        path.rename(path.with_name(path.name.removeprefix(_COPY)))


def _describe(summary: LoadSummary, state: TableState, latest: Mapping[int, int]) -> None:
    summary.positions = dict(state.positions)
    summary.lag_by_partition = {
        partition: end - state.positions.get(str(partition), 0) for partition, end in sorted(latest.items())
    }
    summary.lag = sum(summary.lag_by_partition.values())
    summary.table_rows, summary.table_bytes, summary.table_files = state.rows, state.bytes, state.files


def show_load(summary: Mapping[str, Any], console: Console) -> None:
    """Print a summary for people."""
    if not summary["commits"]:
        console.print(f"Nothing new in {summary['topic']}.")
    else:
        console.print(
            f"Loaded {summary['rows']:,} rows, {summary['bytes']:,} bytes in {summary['files']:,} files "
            f"by {summary['commits']} commit{'s' * (summary['commits'] > 1)}, in {summary['seconds']:.1f} s."
        )
    if summary["lost"]:
        console.print(f"{summary['lost']:,} records were removed before they could be loaded.")
    console.print(
        f"The table has {summary['table_rows']:,} rows, {summary['table_bytes']:,} bytes "
        f"in {summary['table_files']:,} files; lag: {summary['lag']:,} records."
    )
    console.print(f"It lies in {summary['table']}")
    for answer in summary["answers"]:
        show_answer(answer["sql"], answer["columns"], answer["rows"], console)


def load(
    topic: Annotated[str, typer.Option(help="The topic.")],
    table: TableDirectory,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    table_format: Annotated[LoadFormat, typer.Option("--format", help="Format of the table.")] = LoadFormat.PARQUET,
    event_time: EventTime = "",
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column by whose values the table has directories; repeatable. "
            f"{HOUR}, the default, is the hour of the event time.",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SQL",
            help="A column of the table, computed from those of the topic, as in "
            "\"from_json(string(value), 'user STRING') AS view\"; repeatable. "
            "The default is key, value, topic, partition, offset, timestamp, and of a typed topic its columns and "
            "_partition, _offset, _timestamp, _key.",
        ),
    ] = None,
    commit_records: Annotated[
        int, typer.Option(min=1, help="Maximum records per commit; a larger backlog requires several.")
    ] = COMMIT_RECORDS,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Continue after retention removed records that were not loaded.")
    ] = False,
    query: Annotated[
        list[str] | None,
        typer.Option(metavar="SQL", help=f"Query to run on the table, which is named {VIEW}; repeatable."),
    ] = None,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Load the new records of a topic into a table, by event hour or by columns.

    Each run continues where the last one ended.
    """
    wanted = Load(
        topic,
        table.absolute(),
        bootstrap_servers,
        table_format,
        event_time,
        (lambda frame: frame.selectExpr(*select)) if select else None,
        tuple(partition_by or (HOUR,)),
        commit_records=commit_records,
        accept_loss=accept_data_loss,
    )
    check_topics(bootstrap_servers, topic)
    progress = ProgressLine(quiet=quiet)
    with progress.shown():
        progress.step("starting Spark")
        with spark_session("load", master) as spark:
            summary = load_topic(spark, wanted, progress)
            if query:
                progress.step("asking the table")
                answers = ask(spark, open_table(str(wanted.table), wanted.format), query)
                summary.answers = [answer.as_json() for answer in answers]
    document = asdict(summary)
    show(document, as_json, lambda console: show_load(document, console))


if __name__ == "__main__":
    run_job(load)
