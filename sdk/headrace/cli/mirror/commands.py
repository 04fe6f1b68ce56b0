"""`headrace mirror`: create, list, status, promote, failback, delete, run."""

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.arguments import parse_rate
from headrace.cli.common.rendering import Column, Facts, JsonValue, Report, Section, TableSection, duration_text
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, Yes, command, confirm

if TYPE_CHECKING:
    import logging

    from headrace.client.mirror.mirrors import Mirrors
    from headrace.client.mirror.rows import MirrorDescription, MirrorSettings


class LogFormat(StrEnum):
    """Form of log lines."""

    TEXT = "text"
    JSON = "json"


app = typer.Typer(
    help="Manage mirrors: copies of topics of another cluster, with the same offsets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="MIRROR", help="Name of the mirror.", show_default=False)]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times.", show_default=False),
]
Source = Annotated[
    str,
    typer.Option("--source", metavar="HOST:PORT,...", help="Bootstrap servers of the cluster that is copied."),
]
SourceSetting = Annotated[
    list[str] | None,
    typer.Option(
        "--source-setting",
        metavar="NAME=VALUE",
        help="Setting of the workers' connection to it, such as security_protocol=SSL, ssl_cafile=/certs/ca.pem or "
        "api_key_file=/keys/source; names of files are those of the workers.",
    ),
]
SourceRegistry = Annotated[
    str,
    typer.Option(
        "--source-registry",
        metavar="URL",
        help="Schema registry of the source, from which the topics' schemas are copied.",
    ),
]
Registry = Annotated[
    str,
    typer.Option("--registry", metavar="URL", help="Schema registry of this cluster, as the workers reach it."),
]
_STATE_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("STATE", "state"),
    Column("END", "end_offset"),
    Column("SOURCE END", "source_end_offset"),
    Column("LAG", "lag"),
    Column("BEHIND", "behind"),
    Column("AS OF", "as_of"),
    Column("WORKER", "worker", wide=True),
    Column("PROBLEM", "problem"),
)
_SUBJECT_COLUMNS = (Column("SUBJECT", "subject"), Column("STATE", "state"), Column("PROBLEM", "problem"))


@app.command("create")
@command()
def create(
    session: Session,
    *,
    name: Name,
    source: Source,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="PATTERN", help="Topics to copy, such as 'orders-*'. The default is all."),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--groups", metavar="PATTERN", help="Groups whose offsets are copied. The default is all."),
    ] = None,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", min=0, help="Replicas here; 0 means the cluster's default.")
    ] = 0,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Limit of each worker, such as 50MB; none by default.")
    ] = None,
    source_settings: SourceSetting = None,
    source_registry: SourceRegistry = "",
    registry: Registry = "",
    subjects: Annotated[
        list[str] | None,
        typer.Option(
            "--subjects", metavar="PATTERN", help="Subjects to copy besides TOPIC-key and TOPIC-value; none by default."
        ),
    ] = None,
) -> None:
    """Create a mirror in this cluster, or change its settings. Its workers (`headrace mirror run`) copy.

    Topics keep their names, offsets and settings, and are read only until they are promoted.

    \b
    Examples:
      headrace mirror create west --source west-1:7181 --topics 'orders-*' --topics clicks
      headrace mirror create west --source west-1:7181 --source-setting security_protocol=SSL --rate 50MB
      headrace mirror create west --source west-1:7181 --source-registry http://west-1:8081 --registry http://east-1:8081
    """
    settings = _settings(
        source,
        source_settings,
        rate,
        topics=tuple(topics or ("*",)),
        groups=tuple(groups or ("*",)),
        replication_factor=replication_factor,
        source_registry=source_registry,
        registry=registry,
        subjects=tuple(subjects or ()),
    )
    with _mirrors(session) as mirrors:
        mirrors.create(name, settings)
    session.show_change({"mirror": name, "source": source}, f"mirror {name} copies from {source}")


@app.command("list")
@command()
def list_mirrors(session: Session) -> None:
    """List the mirrors of this cluster.

    \b
    Examples:
      headrace mirror list
      headrace mirror list --output json
    """
    columns = (
        Column("MIRROR", "mirror"), Column("STATE", "state"), Column("SOURCE", "source"), Column("TOPICS", "topics"),
        Column("LAG", "lag"), Column("WORKERS", "workers"),
    )  # fmt: skip
    with _mirrors(session) as mirrors:
        rows = [_summary(each) for each in mirrors.list_mirrors()]
    session.show(Report(list(rows), (TableSection(columns, rows, empty="no mirrors"),)))


@app.command("status")
@command()
def status(session: Session, *, name: Name) -> None:
    """Show how far each partition of a mirror is, as its workers reported it last.

    The exit code is 5 if no worker reports, or something is not copied.

    \b
    Examples:
      headrace mirror status west
      headrace mirror status west --output json
    """
    with _mirrors(session) as mirrors:
        described = mirrors.describe(name)
    rows, subjects = _rows(described), _subject_rows(described)
    summary = _summary(described)
    facts = Facts(tuple((key.replace("_", " "), value) for key, value in summary.items()))
    sections: list[Section] = [facts, TableSection(_STATE_COLUMNS, rows)]
    if subjects:
        sections.append(TableSection(_SUBJECT_COLUMNS, subjects))
    document: JsonValue = {**summary, "partitions": list(rows), "subjects": list(subjects)}
    session.show(Report(document, tuple(sections)))
    is_idle = not (described.promoted_ms or described.workers or described.problem)
    if is_idle or any(row["problem"] for row in [*rows, *subjects]) or described.problem:
        raise CommandFailed(5, "no worker reports: start headrace mirror run" if is_idle else "")


@app.command("promote")
@command()
def promote(
    session: Session,
    *,
    name: Name,
    topics: Topics = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="First wait until everything is copied; for a switch while the source is alive."),
    ] = False,
    wait_timeout: Annotated[
        float, typer.Option("--wait-timeout", min=1.0, metavar="SECONDS", help="Maximum time for --wait.")
    ] = 60.0,
    registry: Annotated[
        str,
        typer.Option(
            "--registry",
            envvar="HEADRACE_SCHEMA_REGISTRY_URL",
            metavar="URL",
            help="Schema registry of this cluster; needed with an API key for a mirror with schemas, since the key is "
            "sent to no URL of the table of mirrors.",
        ),
    ] = "",
    yes: Yes = False,
) -> None:
    """Let producers write to the topics of a mirror; nothing is copied to them afterwards. Asks first on a terminal.

    After a disaster, promote without --wait: the result has how many records were known not to be copied. For a planned
    switch, stop the producers of the source, then promote with --wait.

    \b
    Examples:
      headrace mirror promote west
      headrace mirror promote west --topic orders-eu --wait
      headrace mirror promote west --registry https://east-1:7370
    """
    confirm(f"Promote mirror {name}?", yes=yes, otherwise="nothing was promoted")
    with _mirrors(session) as mirrors:
        promoted = mirrors.promote(name, topics or None, wait=wait, timeout=wait_timeout, registry=registry)
    rows: list[dict[str, JsonValue]] = [
        {
            "topic": topic.name,
            "not_copied": sum(max(0, report.lag) for report in topic.partitions.values()),
            "known_ms_ago": _age_ms([report.at_ms for report in topic.partitions.values()]),
            "problem": topic.problem or None,
        }
        for topic in promoted
    ]
    columns = (
        Column("TOPIC", "topic"),
        Column("NOT COPIED", "not_copied"),
        Column("AS OF MS AGO", "known_ms_ago"),
        Column("PROBLEM", "problem"),
    )
    session.show(Report({"mirror": name, "topics": list(rows)}, (TableSection(columns, rows),)))


@app.command("failback")
@command()
def failback(
    session: Session,
    *,
    name: Name,
    source: Source,
    topics: Topics = None,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard", help="Delete records that only this cluster has: copy those topics again from the start."
        ),
    ] = False,
    wait_timeout: Annotated[
        float,
        typer.Option(
            "--wait-timeout", min=1.0, metavar="SECONDS", help="Maximum time for a worker to compare the logs."
        ),
    ] = 600.0,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Limit of each worker, such as 50MB; none by default.")
    ] = None,
    source_settings: SourceSetting = None,
    source_registry: SourceRegistry = "",
    registry: Registry = "",
    yes: Yes = False,
) -> None:
    """Make topics of this cluster mirrors of those that were promoted in another one, from where their logs are equal.

    Producers are refused here from then on. Records that only this cluster has are never deleted without --discard.

    \b
    Examples:
      headrace mirror failback east --source east-1:7181 --topic orders-eu
      headrace mirror failback east --source east-1:7181 --topic orders-eu --discard
    """
    if not topics:
        raise UsageProblem("name the topics with --topic")
    if discard:
        confirm(
            f"Delete the records of {', '.join(topics)} that only this cluster has?",
            yes=yes,
            otherwise="nothing was changed",
        )
    settings = _settings(
        source, source_settings, rate, topics=tuple(topics), source_registry=source_registry, registry=registry
    )
    with _mirrors(session) as mirrors:
        found = mirrors.fail_back(name, settings, topics, discard=discard, timeout=wait_timeout)
    rows: list[dict[str, JsonValue]] = [
        {
            "topic": topic,
            "partition": number,
            "equal_to": ends.common,
            "deleted": max(0, ends.here - ends.common),
            "to_copy": max(0, ends.there - ends.common),
        }
        for topic, partitions in found.items()
        for number, ends in partitions.items()
    ]
    columns = (
        Column("TOPIC", "topic"), Column("PARTITION", "partition"), Column("EQUAL TO", "equal_to"),
        Column("DELETED", "deleted"), Column("TO COPY", "to_copy"),
    )  # fmt: skip
    session.show(Report({"mirror": name, "partitions": list(rows)}, (TableSection(columns, rows),)))


@app.command("delete")
@command()
def delete(session: Session, *, name: Name, yes: Yes = False) -> None:
    """Delete a mirror. Its topics stay: those that were not promoted are read only. Asks first on a terminal.

    \b
    Examples:
      headrace mirror delete west
      headrace mirror delete west --yes
    """
    confirm(f"Delete mirror {name}? Its topics stay as they are.", yes=yes, otherwise="nothing was deleted")
    with _mirrors(session) as mirrors:
        mirrors.delete(name)
    session.show_change({"deleted": name}, f"deleted mirror {name}")


@app.command("run")
@command()
def run(
    session: Session,
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MIRROR]...", help="Mirrors to copy; the default is all.", show_default=False),
    ] = None,
    worker_id: Annotated[
        str, typer.Option("--worker-id", metavar="ID", help="Name of this worker in reports; random by default.")
    ] = "",
    metrics_port: Annotated[
        int,
        typer.Option("--metrics-port", min=0, max=65535, help="Port for Prometheus; 0 means none."),
    ] = 0,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="Address for Prometheus.")
    ] = "127.0.0.1",
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Lines on stderr: text, or json as the servers write.")
    ] = LogFormat.TEXT,
) -> None:
    """Copy mirrors of this cluster, until it is stopped (Ctrl-C, SIGTERM). Several workers share the partitions.

    The port for Prometheus also answers /health/liveness and /health/readiness.

    \b
    Examples:
      headrace mirror run
      headrace mirror run west --metrics-port 9090
      headrace mirror run --metrics-host 0.0.0.0 --metrics-port 9464 --log-format json
    """
    import asyncio
    import signal

    from headrace.client.mirror.workers import run_workers

    log = _configured_log(log_format, is_verbose=session.verbose)

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None, "this is a task"
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        if not metrics_port:
            await run_workers(names or None, session.settings(), worker_id)
            return
        from headrace.client.mirror.endpoint import MirrorEndpoint
        from headrace.client.mirror.metrics import MirrorCollector

        collector = MirrorCollector()
        async with MirrorEndpoint(collector).serving(metrics_host, metrics_port):
            await run_workers(names or None, session.settings(), worker_id, collector.report)

    tell = session.note if log_format is LogFormat.TEXT else log.info
    tell(f"copying {', '.join(names) if names else 'all mirrors'}; Ctrl-C stops")
    try:
        asyncio.run(work())
    except asyncio.CancelledError:
        tell("stopped")


def _configured_log(log_format: LogFormat, *, is_verbose: bool) -> "logging.Logger":
    """Send log lines to stderr; return the logger of this command, which always has its start and stop."""
    import logging

    handler = logging.StreamHandler()
    if log_format is LogFormat.JSON:
        from headrace.cli.mirror.json_lines import JsonLines

        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO if is_verbose else logging.WARNING)
    log = logging.getLogger("headrace.mirror")
    log.setLevel(logging.INFO)
    return log


def _mirrors(session: Session) -> "Mirrors":
    from headrace.client.mirror.mirrors import Mirrors

    return Mirrors(**session.settings())


def _settings(source: str, given: list[str] | None, rate: str | None, **more: Any) -> "MirrorSettings":
    from headrace.client.base.config import AdminConfig, settings_from_text
    from headrace.client.mirror.rows import MirrorSettings

    texts: dict[str, str] = {}
    for each in given or ():
        setting, is_given, value = each.partition("=")
        if not is_given:
            raise UsageProblem(f"--source-setting {each!r} is not NAME=VALUE")
        texts[setting] = value
    return MirrorSettings(
        {"bootstrap_servers": source, **settings_from_text(AdminConfig, texts)},
        bytes_per_second=parse_rate(rate, "--rate") if rate else 0,
        **more,
    )


def _summary(described: "MirrorDescription") -> dict[str, JsonValue]:
    state = "promoted" if described.promoted_ms else "copying" if described.workers else "no worker"
    return {
        "mirror": described.name,
        "state": "failed" if described.problem else state,
        "source": str(described.settings.source.get("bootstrap_servers", "")),
        "topics": len(described.topics),
        "lag": described.lag,
        "workers": len(described.workers),
        "problem": described.problem or None,
    }


def _rows(described: "MirrorDescription") -> list[dict[str, JsonValue]]:
    rows: list[dict[str, JsonValue]] = []
    for topic in described.topics:
        if not topic.partitions:
            state = "promoted" if topic.is_promoted else "refused" if topic.problem else "waiting"
            rows.append({"topic": topic.name, "state": state, "problem": topic.problem or None})
        for number, report in sorted(topic.partitions.items()):
            state = "promoted" if topic.is_promoted else "failed" if report.problem or topic.problem else "copying"
            rows.append(
                {
                    "topic": topic.name,
                    "partition": number,
                    "state": state,
                    "end_offset": report.end_offset if report.end_offset >= 0 else None,
                    "source_end_offset": report.source_end_offset if report.source_end_offset >= 0 else None,
                    "lag": report.lag if report.lag >= 0 else None,
                    "lag_ms": report.lag_ms if report.lag_ms >= 0 else None,
                    "behind": duration_text(report.lag_ms) if report.lag_ms >= 0 else None,
                    "as_of": None
                    if (age := _age_ms([report.at_ms])) is None
                    else f"{duration_text(age // 1000 * 1000)} ago",
                    "as_of_ms_ago": age,
                    "worker": report.worker,
                    "problem": topic.problem or report.problem or None,
                }
            )
    return rows


def _subject_rows(described: "MirrorDescription") -> list[dict[str, JsonValue]]:
    from headrace.client.mirror.rows import is_left_alone

    return [
        {
            "subject": subject.name,
            "state": "promoted" if subject.is_promoted else "failed" if subject.problem else "copied",
            "problem": subject.problem or None,
        }
        for subject in described.subjects
        if subject.is_copied or not is_left_alone(described, subject.name)
    ]


def _age_ms(answered_ms: list[int]) -> int | None:
    return max(0, time.time_ns() // 1_000_000 - min(answered_ms)) if all(answered_ms) and answered_ms else None
