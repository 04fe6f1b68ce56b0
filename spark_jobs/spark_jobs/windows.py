"""`python -m spark_jobs.windows counts|sessions|join`: the paper's stream utilities, on Structured Streaming.

Windowed counts, sessions, and the join of two streams were future work in 2011 (section 6). Here they are three queries
over topics, with a watermark: a window is final, and written, when records from so much later than its end have come,
and a record that comes for a final window is late. Late records are counted and told; they change nothing that was
written. Results are Parquet files, each row once, whatever was killed and started again: Spark's checkpoint has the
offsets and the open windows.

A run takes what there is and ends; `--follow` goes on until Ctrl-C. Windows that are open at the end are shown, and go
on in the next run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from spark_jobs.audit import milliseconds
from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    AsJson,
    BootstrapServers,
    EventTime,
    Master,
    Quiet,
    run_app,
    show,
)
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import answer_of, show_answer
from spark_jobs.session import spark_session
from spark_jobs.streams import Stream, StreamRun, read_stream, run_stream
from spark_jobs.topic_frame import check_topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SHOWN_ROWS = 20

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Windowed counts, sessions and a join of topics, as they grow.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Output = Annotated[Path, typer.Option(file_okay=False, help="Where the results and the checkpoint lie.")]
Watermark = Annotated[
    str, typer.Option(metavar="DURATION", help="How much later than the newest record one may come and still count.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C, in place of ending with the topic.")]
MaxRecords = Annotated[int, typer.Option(min=1, help="The most that one micro-batch takes.")]
DEFAULT_MAX_RECORDS = 1_000_000


def counts_of(records: DataFrame, by: str, window_ms: int, watermark_ms: int) -> DataFrame:
    """Count records by window of event time and by a key."""
    from pyspark.sql import functions

    window = functions.window("event_time", f"{window_ms} milliseconds")
    return (
        records.withWatermark("event_time", f"{watermark_ms} milliseconds")
        .groupBy(window.alias("window"), functions.expr(by).alias("key"))
        .agg(functions.count("*").alias("records"))
        .selectExpr("window.start AS start", "window.end AS end", "key", "records")
    )


def sessions_of(records: DataFrame, by: str, gap_ms: int, watermark_ms: int) -> DataFrame:
    """Put the records of a key together that follow each other with gaps of less than `gap_ms`."""
    from pyspark.sql import functions

    session = functions.session_window("event_time", f"{gap_ms} milliseconds")
    return (
        records.withWatermark("event_time", f"{watermark_ms} milliseconds")
        .groupBy(session.alias("session"), functions.expr(by).alias("key"))
        .agg(functions.count("*").alias("records"))
        .selectExpr("session.start AS start", "session.end AS end", "key", "records")
    )


def joined(
    impressions: DataFrame, clicks: DataFrame, impression_id: str, click_id: str, within_ms: int, watermark_ms: int
) -> DataFrame:
    """Put each click beside its impression; an impression without one in time has no click."""
    from pyspark.sql import functions

    delay = f"{watermark_ms} milliseconds"
    left = impressions.selectExpr(
        f"{impression_id} AS id", "event_time AS shown_at", "partition", "offset"
    ).withWatermark("shown_at", delay)
    right = clicks.selectExpr(
        f"{click_id} AS click_of", "event_time AS clicked_at", "partition AS click_partition", "offset AS click_offset"
    ).withWatermark("clicked_at", delay)
    latest = f"shown_at + INTERVAL {within_ms * 1000} MICROSECONDS"
    condition = f"id = click_of AND clicked_at >= shown_at AND clicked_at <= {latest}"
    columns = ("id", "shown_at", "clicked_at", "partition", "offset", "click_partition", "click_offset")
    return left.join(right, functions.expr(condition), "leftOuter").select(*columns)


@app.command("counts")
def counts(
    topic: Annotated[str, typer.Option(help="The topic.")],
    output: Output,
    by: Annotated[str, typer.Option(metavar="SQL", help="What is counted for itself.")] = "string(key)",
    window: Annotated[str, typer.Option(metavar="DURATION", help="The length of a window.")] = "1m",
    watermark: Watermark = "1m",
    event_time: EventTime = "timestamp",
    follow: Follow = False,
    max_records: MaxRecords = DEFAULT_MAX_RECORDS,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Count records by window of event time and by key."""
    window_ms, watermark_ms = milliseconds(window, "--window"), milliseconds(watermark, "--watermark")
    stream = Stream("counts", output.absolute(), bootstrap_servers, follow, max_records)

    def query(spark: SparkSession) -> DataFrame:
        return counts_of(read_stream(spark, stream, topic, event_time), by, window_ms, watermark_ms)

    _run(stream, (topic,), query, master, quiet=quiet, as_json=as_json)


@app.command("sessions")
def sessions(
    topic: Annotated[str, typer.Option(help="The topic.")],
    output: Output,
    by: Annotated[str, typer.Option(metavar="SQL", help="Whose sessions.")] = "string(key)",
    gap: Annotated[
        str, typer.Option(metavar="DURATION", help="A session ends when nothing comes for so long.")
    ] = "30m",
    watermark: Watermark = "1m",
    event_time: EventTime = "timestamp",
    follow: Follow = False,
    max_records: MaxRecords = DEFAULT_MAX_RECORDS,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Put the records of a key together that follow each other without a long gap."""
    gap_ms, watermark_ms = milliseconds(gap, "--gap"), milliseconds(watermark, "--watermark")
    stream = Stream("sessions", output.absolute(), bootstrap_servers, follow, max_records)

    def query(spark: SparkSession) -> DataFrame:
        return sessions_of(read_stream(spark, stream, topic, event_time), by, gap_ms, watermark_ms)

    _run(stream, (topic,), query, master, quiet=quiet, as_json=as_json)


@app.command("join")
def join(
    impressions: Annotated[str, typer.Option(metavar="TOPIC", help="What was shown.")],
    clicks: Annotated[str, typer.Option(metavar="TOPIC", help="What was clicked.")],
    output: Output,
    impression_id: Annotated[
        str, typer.Option(metavar="SQL", help="What an impression is known by.")
    ] = "get_json_object(string(value), '$.id')",
    click_id: Annotated[
        str, typer.Option(metavar="SQL", help="The impression that a click belongs to.")
    ] = "get_json_object(string(value), '$.impression')",
    within: Annotated[
        str, typer.Option(metavar="DURATION", help="How long after its impression a click counts.")
    ] = "1h",
    watermark: Watermark = "1m",
    event_time: EventTime = "timestamp",
    follow: Follow = False,
    max_records: MaxRecords = DEFAULT_MAX_RECORDS,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Put clicks beside the impressions that they belong to."""
    within_ms, watermark_ms = milliseconds(within, "--within"), milliseconds(watermark, "--watermark")
    stream = Stream("join", output.absolute(), bootstrap_servers, follow, max_records)

    def query(spark: SparkSession) -> DataFrame:
        left = read_stream(spark, stream, impressions, event_time)
        right = read_stream(spark, stream, clicks, event_time)
        return joined(left, right, impression_id, click_id, within_ms, watermark_ms)

    _run(stream, (impressions, clicks), query, master, quiet=quiet, as_json=as_json)


def _run(
    stream: Stream,
    topics: tuple[str, ...],
    query: Callable[[SparkSession], DataFrame],
    master: str,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    check_topics(stream.bootstrap_servers, *topics)
    progress = ProgressLine(quiet=quiet)
    with progress.shown():
        progress.step("starting Spark")
        with spark_session(f"windows {stream.name}", master) as spark:
            run = run_stream(spark, stream, query(spark), progress)
            document = _document(spark, stream, topics, run)
    show(document, as_json, lambda console: _show(document, console))


def _document(spark: SparkSession, stream: Stream, topics: tuple[str, ...], run: StreamRun) -> dict[str, Any]:
    newest = None
    results = stream.results(spark)
    if results is not None:
        order = [results.columns[1], results.columns[0], results.columns[2]]
        newest = answer_of("", results.orderBy(*order, ascending=False).limit(SHOWN_ROWS))
    return {
        "job": f"windows {stream.name}",
        "topics": list(topics),
        **run.as_json(),
        "output": str(stream.output),
        "newest": None if newest is None else {"columns": newest.columns, "rows": newest.rows},
    }


def _show(document: dict[str, Any], console: Console) -> None:
    if document["newest"]:
        show_answer("the newest that are final", document["newest"]["columns"], document["newest"]["rows"], console)
    console.print(
        f"{document['records']:,} records in {document['batches']:,} micro-batches; {document['late']:,} late"
        f"{_unusable(document['without_event_time'])}; {document['written']:,} rows written; "
        f"{document['open']:,} rows of state are open."
    )
    console.print(f"The watermark is {document['watermark'] or 'not set yet'}; results lie in {document['output']}")


def _unusable(records: int) -> str:
    return f", {records:,} without an event time" if records else ""


if __name__ == "__main__":
    run_app(app, "windows")
