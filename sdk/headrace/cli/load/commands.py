"""`headrace load`: topics as tables of files, by this process."""

import enum
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.moments import offset_or_time
from headrace.cli.common.rendering import Column, JsonValue, OutputFormat, Report, TableSection, bytes_text
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, command
from headrace.cli.common.watching import Screen

if TYPE_CHECKING:
    from headrace.client.loading.progress import LoadedTopic, LoadProgress

TOLD_SECONDS = 10.0
"""Interval of lines about commits if the output is no terminal."""
_SUMMARY = (
    Column("TOPIC", "topic"),
    Column("COMMITS", "commits"),
    Column("ROWS", "rows"),
    Column("BYTES", "bytes"),
    Column("FILES", "files"),
    Column("COMPACTED", "compacted", wide=True),
    Column("LOST", "lost"),
    Column("LAG", "lag_records"),
    Column("TABLE-ROWS", "table_rows"),
    Column("TABLE-FILES", "table_files"),
    Column("SECONDS", "seconds"),
)
_PARTITIONS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("POSITION", "position"),
    Column("LAG", "lag_records"),
    Column("LAG-MS", "lag_ms"),
)


class Format(enum.StrEnum):
    """Formats of tables."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


@command()
def load(
    session: Session,
    *,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to load.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TABLE",
            help="Directory or URL of the table; of several topics, each has one of its name in it.",
        ),
    ],
    table_format: Annotated[Format, typer.Option("--format", help="Format of the table.")] = Format.PARQUET,
    catalog: Annotated[
        str,
        typer.Option(
            "--catalog",
            metavar="NAME",
            help="Catalog of pyiceberg's configuration, in which --to is namespace.table; else one in the directory.",
        ),
    ] = "",
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            "--partition-by",
            metavar="COLUMN",
            help="A column by whose values the table has directories; repeatable. The default is event_hour.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Load new records until Ctrl-C or SIGTERM.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="With --follow: time between commits.")
    ] = 5.0,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", min=1, help="Size of rows from which they are committed at once.")
    ] = 256 << 20,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="OFFSET|TIME",
            help="End of the load: an offset, or a time such as 2026-11-21T10:00Z; what there is now by default.",
        ),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", case_sensitive=False, help="Format of the result.")
    ] = OutputFormat.TABLE,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Continue after retention removed records that were not loaded.")
    ] = False,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Skip batches that cannot be decoded, and log them.")
    ] = False,
) -> None:
    """Load topics into tables of Parquet, Delta or Iceberg, each from where its table ends.

    Rows and positions are committed together: after a kill, the same command continues without a gap or a duplicate. A
    typed topic becomes a table of its columns. Ctrl-C commits what was read. With `-o json` each commit is one line,
    with the lag of each partition.

    \b
    Examples:
      headrace load clicks --to /data/clicks
      headrace load clicks visits --to /data --follow --every 10 -o json
      headrace load visits --to s3://lake/visits --format delta --partition-by page --follow
    """
    from headrace.client.loading.load import load as run

    if until is not None and follow:
        raise UsageProblem("--until and --follow exclude each other: a load that follows has no end")
    session = replace(session, output=output)
    told = _Told(session)
    with _stopped_by_signals() as stop, _little_memory():
        found = run(
            *topics,
            to=to,
            format=table_format.value,
            catalog=catalog,
            partition_by=partition_by or ["event_hour"],
            follow=follow,
            every=every,
            max_bytes=max_bytes,
            until=offset_or_time(until, "--until"),
            accept_data_loss=accept_data_loss,
            on_corrupt_batch="skip" if skip_corrupt else "fail",
            stop=stop,
            progress=told.commit,
            **session.settings(),
        )
    told.end(_report(found))
    if stop.is_set() and not follow:
        raise CommandFailed(ExitCode.INTERRUPTED, "interrupted; what was read is committed, run it again for the rest")


class _Told:
    """Tells commits as they come: on a terminal as a screen, to programs as documents, else as lines."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = Screen(session.output)
        self._is_document = session.output in (OutputFormat.JSON, OutputFormat.YAML)
        self._told_at = time.monotonic()
        self._rows = 0

    def end(self, report: Report) -> None:
        """Tell the result."""
        if self._is_document:
            self._screen.draw(report)
        else:
            self._session.show(report)

    def commit(self, commit: "LoadProgress") -> None:
        """Tell one commit, or that there was none."""
        rows: list[dict[str, JsonValue]] = [{"topic": commit.topic, **each._asdict()} for each in commit.partitions]
        if self._is_document:
            self._screen.draw(Report(commit.as_json()))
            return
        if self._screen.is_redrawn:
            self._screen.draw(Report(None, (TableSection(_PARTITIONS, rows),)))
            return
        self._rows += commit.rows  # Of all topics.
        if time.monotonic() - self._told_at >= TOLD_SECONDS:
            behind = sum(each.lag_records or 0 for each in commit.partitions)
            self._session.note(f"{self._rows:,} rows are in the tables; {commit.topic} is {behind:,} records behind")
            self._told_at = time.monotonic()


def _report(found: "list[LoadedTopic]") -> Report:
    document: list[JsonValue] = [each.as_json() for each in found]
    rows: list[dict[str, JsonValue]] = [{**each.as_json(), "bytes": bytes_text(each.bytes)} for each in found]
    return Report({"loaded": document}, (TableSection(_SUMMARY, rows),))


class _NoPandas:
    """Importer that does not find pandas, which pyarrow imports wherever it is installed: 40 MB of no use here."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextmanager
def _little_memory() -> Iterator[None]:
    """Let Arrow return memory to the system at once, and import nothing that is not needed."""
    finder: Any = _NoPandas
    sys.meta_path.insert(0, finder)
    try:
        with suppress(ImportError):  # Reported by the load.
            import pyarrow

            pyarrow.set_memory_pool(pyarrow.system_memory_pool())
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set; a second one ends the process as usual."""
    stop = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
