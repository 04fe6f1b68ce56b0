"""`python -m spark_jobs.audit`: checks that all records have arrived; the paper's audit (section 4).

Producers with `audit_topic` report the number of sent records by topic and time window. The job counts the records in
the topics, or in a table of `load`, and compares. The claims are read first, so that all records acknowledged before
their claim are counted.

    state        meaning                                                                     exit code
    complete     all acknowledged records have arrived, without duplicates                   0
    incomplete   records are missing or duplicated                                           5
    unclaimed    records that no producer claims                                             8
    unconfirmed  a producer was killed or its counts are missing: its total is unknown       8
    open         the window is not over                                                      0
    removed      retention has begun to remove its records                                   0
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import headrace
import rich.table
import typer
from headrace.client.loading.formats import LoadFormat, open_table
from rich.console import Console

from spark_jobs.audit_verdict import (
    Arrived,
    Claimed,
    Limits,
    State,
    Verdict,
    WindowSizeError,
    judge,
    overall,
    window_sizes,
)
from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    INCOMPLETE,
    UNDECIDED,
    AsJson,
    BootstrapServers,
    JobError,
    Master,
    Quiet,
    run_job,
    show,
    usage_error,
)
from spark_jobs.progress import ProgressLine
from spark_jobs.queries import table_frame
from spark_jobs.session import spark_session
from spark_jobs.topic_frame import check_topics, names_of, read_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CLAIM = (
    "claim INT, topic STRING, window_start_ms BIGINT, window_ms BIGINT, application STRING, host STRING, "
    "instance STRING, sequence BIGINT, sent BIGINT, acknowledged BIGINT, failed BIGINT, unknown BIGINT, "
    "settled BOOLEAN, as_of_ms BIGINT"
)
MAX_OPEN_PRODUCERS = 5
"""Maximum number of producers named for one window."""
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Audit:
    """Parameters of an audit."""

    audit_topic: str
    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    """Topics to audit; empty means all topics with claims."""
    table: Path | None = None
    """Table in which to count instead of the topic; then `topics` is the topic of the table."""
    table_format: LoadFormat = LoadFormat.PARQUET
    identity: str = ""
    late_after_ms: int = 60_000
    grace_ms: int = 60_000
    since_ms: int = 0


def run_audit(spark: SparkSession, wanted: Audit, progress: ProgressLine) -> list[Verdict]:
    """Compare claims with the records that arrived.

    Raises:
        JobError: If there is nothing to compare, or producers use different windows.
    """
    progress.step(f"reading the claims in {wanted.audit_topic}")
    with progress.following(spark):
        claimed = [window for window in _claimed(spark, wanted) if window.start_ms >= wanted.since_ms]
    try:
        sizes = window_sizes(claimed)
    except WindowSizeError as error:
        raise JobError(str(error)) from None
    for topic in wanted.topics:
        if topic not in sizes:
            raise JobError(
                f"no producer has claims of {topic} in {wanted.audit_topic}; "
                f"set audit_topic={wanted.audit_topic!r} in them"
            )
    if not sizes:
        raise JobError(f"{wanted.audit_topic} has no claims; set audit_topic={wanted.audit_topic!r} in producers")
    arrived: dict[tuple[str, int], Arrived] = {}
    removed: dict[str, int] = {}
    for topic, window_ms in sorted(sizes.items()):
        progress.step(f"counting {topic}")
        with progress.following(spark):
            frame = _records(spark, wanted, topic)
            arrived.update({(topic, start): found for start, found in _arrived(frame, wanted, window_ms).items()})
            if wanted.table is None:
                removed[topic] = _removed_before_ms(frame, wanted, topic)
    limits = Limits(time.time_ns() // 1_000_000, wanted.grace_ms, removed)
    verdicts = judge(claimed, arrived, sizes, limits)
    return [verdict for verdict in verdicts if verdict.start_ms >= wanted.since_ms]


def _claimed(spark: SparkSession, wanted: Audit) -> list[Claimed]:
    """Add up the claims by topic and window."""
    from pyspark.sql import functions

    records = read_topic(spark, wanted.bootstrap_servers, wanted.audit_topic)
    claims = records.select(functions.from_json(functions.expr("string(value)"), CLAIM).alias("claim"))
    claims = claims.select("claim.*").where("claim = 1").dropDuplicates(["instance", "sequence"])
    named = functions.col("topic").isin(*wanted.topics) if wanted.topics else functions.lit(True)
    # A missing sequence number belongs to a claim about any of the instance's topics.
    gaps = claims.groupBy("instance").agg(functions.expr("max(sequence) - min(sequence) + 1 > count(*)").alias("gap"))
    counts = [functions.sum(name).alias(name) for name in ("sent", "acknowledged", "failed")]
    by_producer = (
        claims.where(named)
        .groupBy("topic", "window_start_ms", "window_ms", "instance", "application", "host")
        .agg(*counts, functions.max_by("settled", "sequence").alias("settled"))
        .join(gaps, "instance")
    )
    who = functions.expr("if(settled AND NOT gap, NULL, concat(application, '@', host))")
    windows = by_producer.groupBy("topic", "window_start_ms", "window_ms").agg(
        *counts, functions.count("*").alias("producers"), functions.sort_array(functions.collect_set(who)).alias("who")
    )
    return [
        Claimed(
            row["topic"],
            row["window_start_ms"],
            row["window_ms"],
            row["sent"],
            row["acknowledged"],
            row["failed"],
            row["producers"],
            tuple(row["who"][:MAX_OPEN_PRODUCERS]),
        )
        for row in windows.collect()
    ]


def _records(spark: SparkSession, wanted: Audit, topic: str) -> DataFrame:
    """Return the columns needed for counting: partition, offset, timestamp, and those of the identity."""
    if wanted.table is None:
        return read_topic(spark, wanted.bootstrap_servers, topic)
    table = open_table(str(wanted.table), wanted.table_format)
    source = table.state().source
    if source is None or source.name != topic:
        raise JobError(f"{wanted.table} holds {source or 'nothing'}, not {topic}; name its topic by --topic")
    frame = table_frame(spark, table)
    names = {name: entry for name, entry in (names_of(frame) if frame is not None else {}).items() if name != "key"}
    if frame is None or not set(names.values()) <= set(frame.columns):
        raise JobError(f"{wanted.table} has no columns partition, offset and timestamp; load it with them")
    others = [name for name in frame.columns if name not in names and name not in names.values()]
    return frame.selectExpr(*(f"{entry} AS {name}" for name, entry in names.items()), *(f"`{name}`" for name in others))


def _arrived(frame: DataFrame, wanted: Audit, window_ms: int) -> dict[int, Arrived]:
    """Count records by window.

    A record is late if its partition has an earlier record from later than its window and the allowance.
    """
    from pyspark.sql import functions
    from pyspark.sql.window import Window

    at_ms = functions.expr("unix_millis(timestamp)")
    start_ms = functions.expr(f"at_ms - pmod(at_ms, {window_ms})")
    before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    latest_ms = functions.max("at_ms").over(before)
    identity: Column | None = None
    if wanted.identity:
        identity = functions.expr(wanted.identity)
    elif wanted.table is not None:
        identity = functions.struct("partition", "offset")
    columns = [] if identity is None else [identity.alias("identity")]
    rows = frame.select("partition", "offset", at_ms.alias("at_ms"), *columns)
    rows = rows.withColumn("start_ms", start_ms).withColumn("latest_ms", latest_ms)
    late = functions.expr(f"count_if(latest_ms >= start_ms + {window_ms + wanted.late_after_ms})")
    distinct = functions.lit(None) if identity is None else functions.count_distinct("identity")
    counted = rows.groupBy("start_ms").agg(
        functions.count("*").alias("records"), distinct.alias("distinct"), late.alias("late")
    )
    return {row["start_ms"]: Arrived(row["records"], row["distinct"], row["late"]) for row in counted.collect()}


def _removed_before_ms(frame: DataFrame, wanted: Audit, topic: str) -> int:
    """Return the timestamp up to which records may have been deleted; `-1` if none were."""
    from pyspark.sql import functions

    with headrace.Admin(bootstrap_servers=wanted.bootstrap_servers, client_id="audit") as admin:
        starts = admin.list_offsets(topic, "earliest")
    cut = [where.partition for where, start in starts.items() if start.offset > 0]
    if not cut:
        return -1
    first = functions.min_by(functions.expr("unix_millis(timestamp)"), "offset").alias("at_ms")
    found = frame.where(functions.col("partition").isin(*cut)).groupBy("partition").agg(first).collect()
    if len(found) < len(cut):  # A partition has no records left.
        return time.time_ns() // 1_000_000
    return int(max(row["at_ms"] for row in found))


def summary_of(verdicts: list[Verdict], wanted: Audit, seconds: float) -> dict[str, Any]:
    """Return the JSON document of an audit."""
    state = overall(verdicts)
    judged = [verdict for verdict in verdicts if verdict.state not in (State.OPEN, State.REMOVED)]
    names = ("sent", "acknowledged", "failed", "arrived", "missing", "duplicates", "late")
    return {
        "job": "audit",
        "audit_topic": wanted.audit_topic,
        "counted_in": "topics" if wanted.table is None else str(wanted.table),
        "complete": state is State.COMPLETE,
        "state": state.value,
        "windows_judged": len(judged),
        **{name: sum(getattr(verdict, name) for verdict in judged) for name in names},
        "windows": [asdict(verdict) for verdict in verdicts],
        "seconds": round(seconds, 3),
    }


def show_audit(summary: Mapping[str, Any], console: Console) -> None:
    """Print the windows; if there are many, complete ones are omitted first."""
    names = ("acknowledged", "arrived", "missing", "duplicates", "late")
    table = rich.table.Table("topic", "window", "state", *names, "not final")
    for column in table.columns[3:8]:
        column.justify = "right"
    shown = [window for window in summary["windows"] if window["state"] != State.COMPLETE]
    complete = [window for window in summary["windows"] if window["state"] == State.COMPLETE]
    shown = sorted(
        [*shown, *complete[-max(0, 20 - len(shown)) :]], key=lambda window: (window["topic"], window["start_ms"])
    )
    for window in shown:
        start = datetime.fromtimestamp(window["start_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        numbers = [f"{window[name]:,}" for name in names]
        table.add_row(window["topic"], start, window["state"], *numbers, ", ".join(window["open_producers"]))
    console.print(table)
    left = len(summary["windows"]) - len(shown)
    if left:
        console.print(f"{left:,} more complete windows are not shown")
    console.print(
        f"{summary['state']}: {summary['windows_judged']:,} windows, {summary['acknowledged']:,} records acknowledged, "
        f"{summary['arrived']:,} arrived, {summary['missing']:,} missing, {summary['duplicates']:,} duplicates, "
        f"{summary['late']:,} late; producers reported {summary['failed']:,} as failed."
    )


def milliseconds(text: str, option: str) -> int:
    """Return a duration such as 90s, 10m or 1h in ms.

    Raises:
        JobError: If it is malformed; the message names the option.
    """
    found = _DURATION.fullmatch(text)
    if not found:
        raise usage_error(f"{option} {text!r} is not a duration, for example 90s, 10m, 1h or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]


def audit(
    audit_topic: Annotated[str, typer.Option(help="The producers' audit_topic.")],
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; repeatable. The default is every topic with claims.")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(file_okay=False, exists=True, help="Count the records of this table instead of the topic."),
    ] = None,
    table_format: Annotated[LoadFormat, typer.Option("--format", help="Format of that table.")] = LoadFormat.PARQUET,
    identity: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            help='Expression that is equal for copies of a record only, such as "sha2(value, 256)", so that '
            "missing and duplicated records in one window are distinguished.",
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="DURATION", help="Only windows in this most recent period, such as 1d or 6h.")
    ] = "",
    late_after: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time past the end of a window after which its records count as late."),
    ] = "1m",
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time after the end of a window within which its last counts arrive."),
    ] = "1m",
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare the numbers of records that producers sent and that arrived, by topic and window.

    Exit code 0: all records have arrived; 5: records are missing or duplicated; 8: unknown, since counts are missing.
    """
    started = time.monotonic()
    if table is not None and (topic is None or len(topic) != 1):
        raise usage_error("--table requires exactly one --topic, the topic of the table")
    wanted = Audit(
        audit_topic,
        bootstrap_servers,
        tuple(topic or ()),
        table and table.absolute(),
        table_format,
        identity,
        milliseconds(late_after, "--late-after"),
        milliseconds(grace, "--grace"),
        time.time_ns() // 1_000_000 - milliseconds(since, "--since") if since else 0,
    )
    check_topics(bootstrap_servers, audit_topic, *(wanted.topics if table is None else ()))
    progress = ProgressLine(quiet=quiet)
    with progress.shown():
        progress.step("starting Spark")
        with spark_session("audit", master) as spark:
            verdicts = run_audit(spark, wanted, progress)
    summary = summary_of(verdicts, wanted, time.monotonic() - started)
    show(summary, as_json, lambda console: show_audit(summary, console))
    if summary["state"] == State.INCOMPLETE:
        raise typer.Exit(INCOMPLETE)
    if not summary["complete"]:
        raise typer.Exit(UNDECIDED)


if __name__ == "__main__":
    run_job(audit)
