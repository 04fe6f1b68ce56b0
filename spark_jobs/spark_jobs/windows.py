"""`python -m spark_jobs.windows counts|sessions|join`: the paper's stream utilities, on Structured Streaming.

Windowed counts, sessions, and the join of two streams were future work in 2011 (section 6). Here they are three queries
over topics with a watermark: a window becomes final, and is written, when records later than its end by the watermark
have arrived. A record for a final window is late: it is counted and reported, and does not change written results.
Results are Parquet files with each row exactly once, also after restarts: Spark's checkpoint has the offsets and the
open windows.

A run processes the current records and ends; with `--follow` it runs until Ctrl-C. Windows that are open at the end are
shown and continue in the next run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from spark_jobs.audit import milliseconds
from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    AcceptDataLoss,
    AsJson,
    BootstrapServers,
    EventTime,
    Master,
    OutputDirectory,
    Quiet,
    run_app,
    show,
)
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import answer_of, show_answer
from spark_jobs.session import spark_session
from spark_jobs.streams import SHOWN_ROWS, Stream, StreamRun, read_stream, run_stream
from spark_jobs.topic_frame import check_topics, names_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Windowed counts, sessions and a join of topics, as streams.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


By = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SQL",
        help="Column or expression to group by, repeatable; one is the column `key` of the results, several keep their "
        "names. The default is the record's key.",
    ),
]
Aggregates = Annotated[
    list[str] | None,
    typer.Option(metavar="SQL", help='A further column of the results, as in "sum(price) AS revenue"; repeatable.'),
]
_SPAN = "__span"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Command-line options of every command; see `command`."""

    output: OutputDirectory
    watermark: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Maximum lateness, relative to the newest record, at which a record is still counted.",
        ),
    ] = "1m"
    event_time: EventTime = ""
    follow: Annotated[bool, typer.Option("--follow", help="Run until Ctrl-C instead of ending with the topic.")] = False
    max_records: Annotated[int, typer.Option(min=1, help="Maximum records of one micro-batch.")] = 1_000_000
    accept_data_loss: AcceptDataLoss = False
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS
    master: Master = DEFAULT_MASTER
    quiet: Quiet = False
    as_json: AsJson = False

    @property
    def watermark_ms(self) -> int:
        """Watermark in milliseconds.

        Raises:
            JobError: If it is not a duration.
        """
        return milliseconds(self.watermark, "--watermark")

    def stream(self, name: str, final_at: str) -> Stream:
        """Return the query that continues from run to run."""
        return Stream(
            name,
            self.output.absolute(),
            self.bootstrap_servers,
            self.follow,
            self.max_records,
            self.event_time,
            final_at,
            self.accept_data_loss,
        )


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command function with its own options to accept those of all commands as `shared`."""
    own = [each for each in inspect.signature(function, eval_str=True).parameters.values() if each.name != "shared"]
    common = list(inspect.signature(SharedOptions, eval_str=True).parameters.values())

    def run(**given: Any) -> None:
        shared = SharedOptions(**{option.name: given.pop(option.name) for option in common})
        function(shared=shared, **given)

    # typer reads the options from this signature.
    run.__dict__["__signature__"] = inspect.Signature([*own, *common])
    run.__doc__ = function.__doc__
    app.command(function.__name__)(run)
    return function


def end_of_window(window_ms: int) -> str:
    """Return an SQL expression for the end of the window of `event_time`."""
    return f"timestamp_millis(unix_millis(event_time) - pmod(unix_millis(event_time), {window_ms}) + {window_ms})"


def end_of_gap(gap_ms: int) -> str:
    """Return an SQL expression for the end of a session of one record."""
    return f"event_time + INTERVAL {gap_ms * 1000} MICROSECONDS"


def key_columns(records: DataFrame, by: Sequence[str]) -> list[Column]:
    """Return the columns by which records are grouped: one is named `key`, several keep their names.

    None given means the records' keys as text.
    """
    from pyspark.sql import functions

    if len(by) > 1:
        return [functions.expr(each) for each in by]
    return [functions.expr(by[0] if by else f"string({names_of(records)['key']})").alias("key")]


def counts_of(
    records: DataFrame, by: Sequence[str], window_ms: int, watermark_ms: int, aggregates: Sequence[str] = ()
) -> DataFrame:
    """Count records by window of event time and by keys, and compute further aggregates."""
    from pyspark.sql import functions

    window = functions.window("event_time", f"{window_ms} milliseconds").alias(_SPAN)
    return _aggregated(records, window, by, watermark_ms, aggregates)


def sessions_of(
    records: DataFrame, by: Sequence[str], gap_ms: int, watermark_ms: int, aggregates: Sequence[str] = ()
) -> DataFrame:
    """Group the records of a key into sessions with gaps of less than `gap_ms`; compute further aggregates of them."""
    from pyspark.sql import functions

    session = functions.session_window("event_time", f"{gap_ms} milliseconds").alias(_SPAN)
    return _aggregated(records, session, by, watermark_ms, aggregates)


def _aggregated(
    records: DataFrame, span: Column, by: Sequence[str], watermark_ms: int, aggregates: Sequence[str]
) -> DataFrame:
    from pyspark.sql import functions

    # `run_stream` looks for the count in the state.
    wanted = [functions.count("*").alias("records"), *map(functions.expr, aggregates)]
    late = records.withWatermark("event_time", f"{watermark_ms} milliseconds")
    found = late.groupBy(span, *key_columns(records, by)).agg(*wanted)
    others = [functions.col(f"`{name}`") for name in found.columns if name != _SPAN]
    return found.select(functions.expr(f"{_SPAN}.start"), functions.expr(f"{_SPAN}.end"), *others)


def joined(
    impressions: DataFrame, clicks: DataFrame, impression_id: str, click_id: str, within_ms: int, watermark_ms: int
) -> DataFrame:
    """Join each click to its impression; an impression without one in time has no click."""
    from pyspark.sql import functions

    delay = f"{watermark_ms} milliseconds"
    shown, clicked = names_of(impressions), names_of(clicks)
    left = impressions.selectExpr(
        f"{impression_id} AS id",
        "event_time AS shown_at",
        f"{shown['partition']} AS partition",
        f"{shown['offset']} AS offset",
    ).withWatermark("shown_at", delay)
    right = clicks.selectExpr(
        f"{click_id} AS click_of",
        "event_time AS clicked_at",
        f"{clicked['partition']} AS click_partition",
        f"{clicked['offset']} AS click_offset",
    ).withWatermark("clicked_at", delay)
    latest = f"shown_at + INTERVAL {within_ms * 1000} MICROSECONDS"
    condition = f"id = click_of AND clicked_at >= shown_at AND clicked_at <= {latest}"
    columns = ("id", "shown_at", "clicked_at", "partition", "offset", "click_partition", "click_offset")
    return left.join(right, functions.expr(condition), "leftOuter").select(*columns)


@command
def counts(
    *,
    topic: Annotated[str, typer.Option(help="The topic.")],
    by: By = None,
    aggregate: Aggregates = None,
    window: Annotated[str, typer.Option(metavar="DURATION", help="Length of a window.")] = "1m",
    shared: SharedOptions,
) -> None:
    """Count records by window of event time and by key."""
    window_ms, watermark_ms = milliseconds(window, "--window"), shared.watermark_ms
    stream = shared.stream("counts", end_of_window(window_ms))
    keys, aggregates = by or [], aggregate or []
    stream = _with_parameters(stream, [topic], by=keys, aggregate=aggregates, window_ms=window_ms)
    _run(stream, shared, (topic,), lambda records: counts_of(records, keys, window_ms, watermark_ms, aggregates))


@command
def sessions(
    *,
    topic: Annotated[str, typer.Option(help="The topic.")],
    by: By = None,
    aggregate: Aggregates = None,
    gap: Annotated[str, typer.Option(metavar="DURATION", help="Inactivity that ends a session.")] = "30m",
    shared: SharedOptions,
) -> None:
    """Group the records of each key into sessions, separated by gaps."""
    gap_ms, watermark_ms = milliseconds(gap, "--gap"), shared.watermark_ms
    stream = shared.stream("sessions", end_of_gap(gap_ms))
    keys, aggregates = by or [], aggregate or []
    stream = _with_parameters(stream, [topic], by=keys, aggregate=aggregates, gap_ms=gap_ms)
    _run(stream, shared, (topic,), lambda records: sessions_of(records, keys, gap_ms, watermark_ms, aggregates))


@command
def join(
    *,
    impressions: Annotated[str, typer.Option(metavar="TOPIC", help="Topic of impressions.")],
    clicks: Annotated[str, typer.Option(metavar="TOPIC", help="Topic of clicks.")],
    impression_id: Annotated[
        str, typer.Option(metavar="SQL", help="Id of an impression.")
    ] = "get_json_object(string(value), '$.id')",
    click_id: Annotated[
        str, typer.Option(metavar="SQL", help="Id of a click's impression.")
    ] = "get_json_object(string(value), '$.impression')",
    within: Annotated[
        str, typer.Option(metavar="DURATION", help="Maximum time from an impression to a click that counts.")
    ] = "1h",
    shared: SharedOptions,
) -> None:
    """Join each click to its impression."""
    within_ms, watermark_ms = milliseconds(within, "--within"), shared.watermark_ms

    def query(shown: DataFrame, clicked: DataFrame) -> DataFrame:
        return joined(shown, clicked, impression_id, click_id, within_ms, watermark_ms)

    topics, ids = (impressions, clicks), {"impression_id": impression_id, "click_id": click_id}
    stream = _with_parameters(shared.stream("join", "event_time"), topics, **ids, within_ms=within_ms)
    _run(stream, shared, topics, query)


def _with_parameters(stream: Stream, topics: Sequence[str], **parameters: Any) -> Stream:
    return replace(stream, parameters={"topics": list(topics), **parameters})


def _run(stream: Stream, shared: SharedOptions, topics: tuple[str, ...], query: Callable[..., DataFrame]) -> None:
    """Run a query over a frame of each topic, and show the result."""
    check_topics(stream.bootstrap_servers, *topics)
    progress = ProgressLine(quiet=shared.quiet)
    with progress.shown():
        progress.step("starting Spark")
        with spark_session(f"windows {stream.name}", shared.master) as spark:
            frames = [read_stream(spark, stream, topic) for topic in topics]
            run = run_stream(spark, stream, query(*frames), progress)
            document = _document(spark, stream, topics, run)
    show(document, shared.as_json, lambda console: _show(document, console))


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
    if document["late_records"]:
        show_answer("late", document["late_records"]["columns"], document["late_records"]["rows"], console)
    console.print(
        f"{document['records']:,} records in {document['batches']:,} micro-batches; {document['late']:,} late"
        f"{_unusable(document['without_event_time'])}; {document['written']:,} rows written; "
        f"{document['open']:,} rows of state are open."
    )
    console.print(f"The watermark is {document['watermark'] or 'not set yet'}; results are in {document['output']}")


def _unusable(records: int) -> str:
    return f", {records:,} without an event time" if records else ""


if __name__ == "__main__":
    run_app(app, "windows")
