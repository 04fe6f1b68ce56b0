"""`headrace produce`: sends lines or JSON lines from files and standard input."""

import enum
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.names import Topic
from headrace.cli.common.rendering import OutputFormat, Report, bytes_text, render
from headrace.cli.common.session import CommandFailed, DryRun, Session, UsageProblem, command, tell, write_out
from headrace.cli.records.line_source import STANDARD_INPUT, LineBlock, LineTooLongError, read_blocks, total_bytes
from headrace.cli.records.record_json import OutgoingRecord, parse_json_line, parse_row
from headrace.display.progress import ProgressBar, progress_bar, progress_of_a_command

if TYPE_CHECKING:
    from headrace.client.producer.producer import Producer
    from headrace.wire.typed.topic_columns import TopicColumns


class InputFormat(enum.StrEnum):
    """Format of an input line."""

    LINES = "lines"
    JSON = "json"
    ROWS = "rows"


class Acks(enum.StrEnum):
    """Acknowledgements required: all in-sync replicas, the leader, or none."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


class Compression(enum.StrEnum):
    """Compression codec of batches."""

    NONE = "none"
    GZIP = "gzip"
    LZ4 = "lz4"
    ZSTD = "zstd"


AcksOption = Annotated[
    Acks, typer.Option("--acks", help="Acknowledgements required: all in-sync replicas, the leader, or none.")
]
CompressionOption = Annotated[Compression, typer.Option("--compression", "-z", help="Compression of batches.")]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Conversion of lines to records."""

    input: InputFormat
    # Key of records without their own key.
    key: bytes | None = None
    # Splits a line into key and value.
    key_separator: bytes | None = None
    # Added to every record.
    headers: tuple[tuple[str, bytes], ...] = ()
    # Of a typed topic, for rows.
    columns: "TopicColumns | None" = None

    @property
    def plain(self) -> bool:
        """Whether each line is only a value, so that the bulk path can be used."""
        return self.input is InputFormat.LINES and self.key is None and self.key_separator is None and not self.headers

    def record(self, line: bytes) -> OutgoingRecord:
        """Return the record of a line.

        Raises:
            ValueError: If the line is invalid.
        """
        if self.input is InputFormat.JSON:
            found = parse_json_line(line)
            key = self.key if found.key is None else found.key
            return OutgoingRecord(found.value, key, (*found.headers, *self.headers), found.timestamp_ms)
        if self.columns is not None:
            return OutgoingRecord(parse_row(line, self.columns), self.key, self.headers, size_bytes=len(line))
        if self.key_separator is None:
            return OutgoingRecord(line, self.key, self.headers)
        key, separator, value = line.partition(self.key_separator)
        if not separator:
            raise ValueError(f"the key separator {self.key_separator.decode(errors='replace')!r} is not in the line")
        return OutgoingRecord(value, key, self.headers)


class BadLineError(ValueError):
    """A line is invalid; the message names file and line."""


@dataclass(slots=True)
class Tally:
    """Totals of the input so far. Changed only by the command."""

    records: int = 0
    # Size of keys and values.
    bytes: int = 0


@command()
def produce(
    session: Session,
    *,
    topic: Topic,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Files to read; standard input if - or none is given."),
    ] = None,
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--input",
            help="A line is a value, a record as JSON (`headrace help records`), or a typed topic's row as JSON.",
        ),
    ] = InputFormat.LINES,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of records without one.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Separator between key and value in a line."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record; repeatable."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Partition of all records; the default is by key, or spread."),
    ] = None,
    acks: AcksOption = Acks.ALL,
    compression: CompressionOption = Compression.NONE,
    dry_run: DryRun = False,
) -> None:
    """Produce one record per line of files or standard input. An empty line is an empty value.

    \b
    Examples:
      headrace produce clicks access.log
      headrace produce clicks -K : pairs.txt
      headrace produce clicks --input json records.jsonl --acks all
      headrace produce visits --input rows rows.jsonl
    """
    lines = LineFormat(input_format, _bytes(key), _separator(key_separator, input_format), _headers(header))
    names = list(files or ())
    with session.admin() as admin:
        described = admin.describe_topic(topic)
        if input_format is InputFormat.ROWS:
            lines = replace(lines, columns=_columns(topic, described.columns))
    if partition is not None and partition >= len(described.partitions):
        raise CommandFailed(
            ExitCode.NOT_FOUND, f"{topic} has partitions 0 to {len(described.partitions) - 1}, not {partition}"
        )
    typed_by_hand = sys.stdin.isatty() and (not names or STANDARD_INPUT in names)
    if not session.quiet and typed_by_hand:
        tell("reading lines from the terminal; end with Ctrl-D")
    tally, started = Tally(), time.monotonic()
    if dry_run:
        try:
            for block in read_blocks(names):
                for _ in _records(lines, block, tally):
                    pass
        except (BadLineError, LineTooLongError, OSError) as problem:
            raise UsageProblem(_sentence(problem)) from None
    else:
        settings = {
            **session.settings(),
            "acks": acks.value,
            "compression_type": compression.value,
            "return_futures": False,
        }
        with (
            progress_of_a_command(shown=not session.quiet and not typed_by_hand),
            session.clients.producer(**settings) as producer,
            progress_bar(f"produce to {topic}", "bytes", total_bytes(names)) as progress,
        ):
            _send_all(
                producer,
                topic=topic,
                partition=partition,
                lines=lines,
                names=names,
                tally=tally,
                progress=progress,
            )
    _summary(session, topic, tally, time.monotonic() - started, dry_run=dry_run)


def _send_all(
    producer: "Producer",
    *,
    topic: str,
    partition: int | None,
    lines: LineFormat,
    names: Sequence[str],
    tally: Tally,
    progress: ProgressBar,
) -> None:
    """Send all records and wait for delivery; on invalid input, raise after the delivery of the records before it."""
    read_bytes = 0
    try:
        for block in read_blocks(names):
            if lines.plain:
                producer.send_many(topic, block.lines, partition=partition)
                tally.records += len(block.lines)
                tally.bytes += sum(map(len, block.lines))
            else:
                for record in _records(lines, block, tally):
                    producer.send(
                        topic,
                        record.value,
                        record.key,
                        headers=record.headers or None,
                        partition=partition,
                        timestamp_ms=record.timestamp_ms,
                    )
            read_bytes += block.read_bytes
            progress.reach(read_bytes, counted(tally.records, "record"))
    except (BadLineError, LineTooLongError, OSError) as problem:
        producer.flush()
        if not tally.records:
            raise UsageProblem(f"{_sentence(problem)}; nothing was sent") from None
        before = "record before it was" if tally.records == 1 else f"{tally.records} records before it were"
        raise CommandFailed(ExitCode.FAILED, f"{_sentence(problem)}; the {before} delivered") from None
    producer.flush()


def _columns(topic: str, text: str) -> "TopicColumns":
    from headrace.wire.typed.topic_columns import parse_columns

    if not text:
        raise UsageProblem(f"--input rows is for typed topics, and {topic} has no columns")
    return parse_columns(text)


def _sentence(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)


def _records(lines: LineFormat, block: LineBlock, tally: Tally) -> Iterator[OutgoingRecord]:
    for index, line in enumerate(block.lines):
        try:
            record = lines.record(line)
        except ValueError as error:
            raise BadLineError(f"{block.source}:{block.first_line + index}: {error}") from None
        yield record
        tally.records += 1
        tally.bytes += record.size_bytes


def _summary(session: Session, topic: str, tally: Tally, seconds: float, *, dry_run: bool) -> None:
    rate = tally.records / seconds if seconds > 0 else 0.0
    report = Report(
        {
            "topic": topic,
            "records": tally.records,
            "bytes": tally.bytes,
            "seconds": round(seconds, 3),
            "records_per_second": round(rate),
            "dry_run": dry_run,
        }
    )
    if session.output in (OutputFormat.JSON, OutputFormat.YAML):
        write_out(render(report, session.output))
    else:
        done = "would produce" if dry_run else "produced"
        session.note(
            f"{done} {counted(tally.records, 'record')}, {bytes_text(tally.bytes)}"
            + ("" if dry_run else f", in {seconds:.2f} s ({rate:,.0f} records/s)")
            + f" to {topic}"
        )


def _bytes(text: str | None) -> bytes | None:
    # Arguments are bytes; Python represents invalid UTF-8 by surrogates.
    return None if text is None else text.encode(errors="surrogateescape")


def _separator(text: str | None, input_format: InputFormat) -> bytes | None:
    if text is None:
        return None
    if input_format is not InputFormat.LINES:
        raise UsageProblem("--key-separator is for --input lines; a JSON record has its key in the field 'key'")
    separator = text.encode(errors="surrogateescape").replace(b"\\t", b"\t")
    if not separator:
        raise UsageProblem("--key-separator is empty; give the text between key and value, for example ':' or '\\t'")
    return separator


def _headers(entries: Sequence[str] | None) -> tuple[tuple[str, bytes], ...]:
    headers = []
    for entry in entries or ():
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise UsageProblem(f"--header {entry!r} is not NAME=VALUE")
        headers.append((name, value.encode(errors="surrogateescape")))
    return tuple(headers)
