"""`python -m spark_jobs.load`: loads a topic into a table; data and offsets are committed together.

This is the paper's load job (section 4): the loaded records and their offsets become visible in one step. It may be run
repeatedly, killed and restarted, from a timer or by hand: no record is missing or duplicated. A run loads the records
that exist at its start, in commits of at most `--commit-records`; with `--follow` it stays and commits the new records
every few seconds. The rows of a typed topic have its columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headrace.client.loading.formats import LoadFormat, open_table, target_of
from headrace.client.loading.progress import LoadProgress
from headrace.client.loading.tables.errors import LoadError
from rich.console import Console

from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    AcceptDataLoss,
    AsJson,
    BootstrapServers,
    EventTime,
    Master,
    Quiet,
    run_job,
    show,
    usage_error,
)
from spark_jobs.load_options import COMMIT_RECORDS, HOUR, Load
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import VIEW, ask, show_answer
from spark_jobs.session import spark_session
from spark_jobs.topic_frame import check_topics
from spark_jobs.topic_loading import load_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVERY_SECONDS = 5.0


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
        f"in {summary['table_files']:,} files; lag: {summary['lag_records']:,} records."
    )
    console.print(f"It lies in {summary['table']}")
    for answer in summary.get("answers", ()):
        show_answer(answer["sql"], answer["columns"], answer["rows"], console)


def load(
    topic: Annotated[str, typer.Option(help="The topic.")],
    table: Annotated[
        str,
        typer.Option(
            help="Table: a directory on a local disk or a shared file system, created if missing; the URL of an object "
            "store, such as s3://lake/clicks, for Delta; with --catalog its name in the catalog, namespace.table."
        ),
    ],
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    table_format: Annotated[LoadFormat, typer.Option("--format", help="Format of the table.")] = LoadFormat.PARQUET,
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="Catalog of pyiceberg's configuration, instead of one in the directory.")
    ] = "",
    staging: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="For a table on object storage or in a catalog, and required there: a directory, the same for the "
            "driver and all executors, in which Spark writes the files of a commit before they are copied.",
        ),
    ] = None,
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
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Load new records until Ctrl-C or SIGTERM, and compact small files."),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --follow: time between commits.")
    ] = EVERY_SECONDS,
    accept_data_loss: AcceptDataLoss = False,
    query: Annotated[
        list[str] | None,
        typer.Option(metavar="SQL", help=f"Query to run on the table, which is named {VIEW}; repeatable."),
    ] = None,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Load the new records of a topic into a table, by event hour or by columns.

    Each run continues where the last one ended. With --follow and --json each commit is one line, with the lag of each
    partition, and so is every ten seconds without a commit; the summary is the last line.
    """
    wanted = Load(
        topic,
        _target(table, catalog),
        bootstrap_servers,
        table_format,
        event_time,
        _selecting(select) if select else None,
        tuple(partition_by or (HOUR,)),
        commit_records,
        accept_data_loss,
        catalog,
        staging.absolute() if staging is not None else None,
        every if follow else None,
    )
    _check_place(wanted, query)
    check_topics(bootstrap_servers, topic)
    progress = ProgressLine(quiet=quiet)
    with progress.shown():
        progress.step("starting Spark")
        with spark_session("load", master) as spark:
            summary = load_topic(spark, wanted, progress, _print_line if as_json and follow else _ignore)
            document = {"job": "load", **summary.as_json()}
            if query:
                progress.step("asking the table")
                answers = ask(spark, open_table(table, table_format), query)
                document["answers"] = [answer.as_json() for answer in answers]
    show(document, as_json, lambda console: show_load(document, console))


def _target(table: str, catalog: str) -> Path | str:
    try:
        return target_of(table, catalog)
    except LoadError as error:
        raise usage_error(str(error)) from error


def _selecting(select: list[str]) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.selectExpr(*select)


def _check_place(wanted: Load, query: list[str] | None) -> None:
    """Check where the table is before Spark is started.

    Raises:
        JobError: If options exclude each other, or the format is not possible there.
    """
    if not wanted.is_elsewhere:
        if wanted.staging is not None:
            raise usage_error("--staging is for a table on object storage or in a catalog")
        return
    try:
        open_table(str(wanted.table), wanted.format, wanted.catalog)
    except LoadError as error:
        raise usage_error(str(error)) from error
    if wanted.staging is None:
        raise usage_error(f"{wanted.table} needs --staging DIRECTORY, in which Spark writes its files first")
    if query:
        raise usage_error("--query is for a table in a directory")


def _print_line(commit: LoadProgress) -> None:
    print(json.dumps(commit.as_json()), flush=True)


def _ignore(_commit: LoadProgress) -> None:
    pass


if __name__ == "__main__":
    run_job(load)
