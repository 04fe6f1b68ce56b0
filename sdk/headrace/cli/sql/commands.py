"""`headrace sql`: queries over topics, by DuckDB in this process."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.session import Session, UsageProblem, command, report_error
from headrace.cli.common.watching import pause
from headrace.cli.sql.output import SqlOutput, write_result

PROMPT, MORE = "headrace> ", "      ... "


@command()
def sql(
    session: Session,
    *,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="One SELECT statement; without it, a prompt or standard input."),
    ] = None,
    output: Annotated[
        SqlOutput, typer.Option("--output", "-o", help="table, json (one object per line), csv, arrow or parquet.")
    ] = SqlOutput.TABLE,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Write the result to a file.")
    ] = None,
    follow: Annotated[
        float | None,
        typer.Option(
            "--follow",
            min=0.1,
            metavar="SECONDS",
            help="Run the query again and again, over what came in these seconds.",
        ),
    ] = None,
    memory_limit: Annotated[
        str,
        typer.Option("--memory-limit", metavar="SIZE", help="Memory for the query, such as 2GB; the rest is spilled."),
    ] = "",
) -> None:
    """Run a query over topics.

    A table is a topic, in double quotes if its name has dots or hyphens. A typed topic has its columns, and `_offset`,
    `_partition`, `_timestamp` and `_key`. Another one has `offset`, `partition`, `timestamp`, `key`, `value`, and the
    value as `text` and as `json`. Brokers send the columns that the query names, and skip what its WHERE clause
    excludes.

    \b
    Examples:
      headrace sql "select page, count(*) from clicks where ts between '2026-11-01' and now() group by 1"
      headrace sql "select json->>'$.page' as page, count(*) from events group by 1" -o csv
      headrace sql "select * from clicks" -o parquet -f clicks.parquet
      headrace sql "select count(*) from clicks" --follow 10
    """
    settings = {**session.settings(), "memory_limit": memory_limit}
    if query is None and follow is not None:
        raise UsageProblem("--follow needs a query")
    if follow is not None and query is not None:
        _follow(session, query, follow, output, file, settings)
    elif query is not None:
        _run(session, query, output, file, settings)
    elif sys.stdin.isatty():
        _prompt(session, output, settings)
    else:
        _run(session, sys.stdin.read(), output, file, settings)


def _run(
    session: Session, query: str, output: SqlOutput, file: Path | None, settings: dict[str, Any], **bounds: Any
) -> None:
    from headrace.client.sql.query import sql as run

    if output in {SqlOutput.ARROW, SqlOutput.PARQUET} and file is None and sys.stdout.isatty():
        raise UsageProblem(f"{output.value} is not for a terminal: give --file, or redirect the output")
    with run(query, **settings, **bounds) as result, _stream(file) as stream:
        count = write_result(result.arrow_batches(), output, stream)
    session.detail(counted(count, "row"))


@contextmanager
def _stream(file: Path | None) -> Iterator[IO[bytes]]:
    """Open the destination; a file appears whole or not at all."""
    if file is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        return
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _follow(
    session: Session, query: str, seconds: float, output: SqlOutput, file: Path | None, settings: dict[str, Any]
) -> None:
    """Run the query over one window after the other, each from where the one before it ended.

    While the topic does not exist, or a server is not available, there is no window; the next one has its records.
    """
    from headrace.client.sql.query import topics_of
    from headrace.wire.errors import HeadraceError, UnknownTopicError

    if output in {SqlOutput.ARROW, SqlOutput.PARQUET} or file is not None:
        raise UsageProblem("--follow prints table, json or csv to standard output")
    topics = topics_of(query)
    if len(topics) != 1:
        raise UsageProblem(f"--follow needs a query of one topic, this one has {len(topics)}")

    def ends() -> _Ends:
        with session.admin() as admin:
            topic_id = admin.describe_topic(topics[0]).topic_id  # First: the ends may be those of a newer topic.
            found = admin.list_offsets(topics[0], "latest")
        return _Ends(topic_id, {where.partition: each.offset for where, each in found.items()})

    started, before = time.monotonic(), ends()
    session.note(f"every {seconds:g} s the records of that time; Ctrl-C ends it")
    windows = 0
    while True:
        windows += 1
        pause(started + windows * seconds - time.monotonic())
        try:
            now = ends()
        except HeadraceError as error:
            if not error.retriable and not isinstance(error, UnknownTopicError):
                raise
            session.note(f"no window: {error.message}")
            continue
        if now.topic_id != before.topic_id:
            session.note(f"{topics[0]} was deleted and created again")
        session.note(f"-- {datetime.now(UTC).isoformat(timespec='seconds').replace('+00:00', 'Z')}")
        try:
            _run(session, query, output, None, settings, start=now.since(before), end=now.offsets)
        except UnknownTopicError as error:
            session.note(f"no window: {error.message}")
        else:
            before = now


class _Ends(NamedTuple):
    """Ends of a topic's partitions, at which a window ends."""

    topic_id: bytes
    offsets: dict[int, int]

    def since(self, before: "_Ends") -> dict[int, int]:
        """Return the starts of the window from `before` to here: of another topic of the same name, all records."""
        known = before.offsets if before.topic_id == self.topic_id else {}
        return {partition: known.get(partition, 0) for partition in self.offsets}


def _prompt(session: Session, output: SqlOutput, settings: dict[str, Any]) -> None:
    """Read statements that end with a semicolon, and run them, until the end of the input."""
    import readline  # noqa: F401  (editing and history of `input`)

    session.note("a statement ends with a semicolon; Ctrl-D ends the prompt")
    lines: list[str] = []
    while True:
        try:
            line = input(MORE if lines else PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            lines.clear()
            continue
        lines.append(line)
        if not line.rstrip().endswith(";"):
            continue
        query, lines = "\n".join(lines), []
        try:
            _run(session, query, output, None, settings)
        except (Exception, KeyboardInterrupt) as error:
            report_error(error)
