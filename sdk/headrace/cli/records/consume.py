"""`headrace consume`: prints records of one topic, in a range of offsets or times."""

import errno
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.names import Topic, group_names
from headrace.cli.common.session import Session, UsageProblem, command
from headrace.cli.records.consume_plan import LastRecords, PartitionPlan, plan_partitions, timestamps_of
from headrace.cli.records.offsets import (
    END,
    START,
    LogBounds,
    OffsetSelection,
    OffsetSyntaxError,
    Position,
    PositionKind,
    parse_offsets,
)
from headrace.cli.records.record_format import FormatSyntaxError
from headrace.cli.records.record_writers import RecordOutput, record_writer
from headrace.cli.records.row_table import RowTable
from headrace.display.visible_text import visible

if TYPE_CHECKING:
    from headrace.client.consumer.consumer import Consumer


class CorruptBatches(StrEnum):
    """Action for a batch that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"


RecordsWriter = Callable[[Sequence[Any]], bytes]
"""Formats some records."""
POLL_S = 0.5
MAX_POLL_RECORDS = 5_000
MAX_LAST = 1_000_000
_GROUP_STARTS = {OffsetSelection(START): "earliest", OffsetSelection(END): "latest"}
"""`auto_offset_reset` of a group by `--offsets`."""


@command()
def consume(
    session: Session,
    *,
    topic: Topic,
    offsets: Annotated[
        str | None,
        typer.Option(
            "--offsets",
            "-o",
            metavar="RANGE",
            help="Start offset, or FROM:TO: start, end, 42, +10, -10, @-1h, @2026-11-21 (`headrace help offsets`). "
            "Without: end; with -e start.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=0, help="Stop after this number of records.")
    ] = None,
    stop_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="Stop at the current log end.")] = False,
    last: Annotated[
        int | None,
        typer.Option(
            "--last", min=1, max=MAX_LAST, help="Print the last N records of all partitions by timestamp, then stop."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group, which shares the partitions, and commit what was printed.",
            autocompletion=group_names,
        ),
    ] = None,
    format_text: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="Format of a record, such as '%t %p %o %k %s\\n' (`headrace help format`).",
        ),
    ] = None,
    output: Annotated[
        RecordOutput | None,
        typer.Option(
            "--output",
            help="raw: one value per line; json: one object per line; table, wide: for people, of a typed topic by "
            "its columns. Without: raw; table for a typed topic on a terminal.",
        ),
    ] = None,
    on_corrupt_batch: Annotated[
        CorruptBatches,
        typer.Option(
            "--on-corrupt-batch",
            help="Action for a batch that cannot be decoded: fail, or skip it and log it to stderr.",
        ),
    ] = CorruptBatches.FAIL,
    dead_letter_topic: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-topic",
            metavar="TOPIC",
            help="Write batches that cannot be decoded to this topic, then skip them.",
        ),
    ] = None,
) -> None:
    """Print the records of a topic: new records, or those in a range of offsets or times.

    \b
    Examples:
      headrace consume clicks
      headrace consume clicks -e --output json
      headrace consume visits --last 20 --output table
      headrace consume clicks -o @-1h:@-30m
      headrace consume clicks --last 10
      headrace consume clicks --group billing -o start
    """
    wanted = _wanted(offsets, last, stop_at_end=stop_at_end)
    if group is not None and (last is not None or stop_at_end or partition or wanted not in _GROUP_STARTS):
        raise UsageProblem(
            "--group excludes --last, -e and -p, and -o other than start or end, which is where a new group starts"
        )
    try:
        heading, write_one = record_writer(output or RecordOutput.RAW, format_text)
    except FormatSyntaxError as error:
        raise UsageProblem(f"--format: {error}", error.explain().partition("\n")[2]) from None
    writer: RecordsWriter = lambda records: b"".join(map(write_one, records))  # noqa: E731
    is_table = sys.stdout.isatty() if output is None else output in {RecordOutput.TABLE, RecordOutput.WIDE}
    if is_table and format_text is None:
        names = _column_names(session, topic)
        if names:
            heading, writer = b"", RowTable(names, wide=output is RecordOutput.WIDE)
    policy = {"on_corrupt_batch": on_corrupt_batch.value}
    if dead_letter_topic is not None:
        policy = {"on_corrupt_batch": "dead_letter", "dead_letter_topic": dead_letter_topic}
    if group is not None:
        settings = {**policy, "group_id": group, "auto_offset_reset": _GROUP_STARTS[wanted]}
        _read_as_member(session, topic, settings, RecordSink(heading, writer, limit=count))
        return
    plans = _plans(session, topic, wanted, partition, stop_at_end=stop_at_end or last is not None)
    for plan in plans:
        if plan.note:
            session.note(plan.note)
    sink = RecordSink(heading, writer, limit=count if last is None else None)
    if offsets is None and last is None and not stop_at_end and sys.stderr.isatty():
        session.note("waiting for new records; -e prints those that are there, Ctrl-C ends it")
    collected = None if last is None else LastRecords(last)
    sink.begin()
    if not all(plan.empty for plan in plans) and not sink.full:
        follows = not partition and all(plan.stop is None for plan in plans)
        topics = (topic,) if follows else ()
        with session.clients.consumer(*topics, **session.settings(), **policy, auto_offset_reset="error") as consumer:
            if follows:
                _follow(consumer, plans, sink)
            else:
                _read(consumer, topic, plans, sink, collected)
            skipped = consumer.calls().corrupt_batches
        _note_skipped(session, skipped)
    if collected is not None:
        records = collected.take()
        sink.write(records if count is None else records[len(records) - min(count, len(records)) :])
    session.detail(f"{counted(sink.written, 'record')} of {counted(len(plans), 'partition')}")


def _column_names(session: Session, topic: str) -> list[str]:
    """Return the names of the columns of a typed topic; empty for another one."""
    from headrace.wire.typed.topic_columns import parse_columns

    with session.admin() as admin:
        text = admin.describe_topic(topic).columns
    return [column.name for column in parse_columns(text).current] if text else []


def _note_skipped(session: Session, skipped: int) -> None:
    if skipped:
        session.note(f"skipped {skipped} {'batch' if skipped == 1 else 'batches'} that could not be decoded")


def _read_as_member(session: Session, topic: str, settings: dict[str, str], sink: "RecordSink") -> None:
    """Print records of the group's assigned partitions up to the sink's limit; commit them at the latest in `close`."""
    with session.admin() as admin:
        admin.describe_topic(topic)  # Raises if it does not exist; a group member would wait for its creation.
    sink.begin()
    if sink.left != 0:
        with session.clients.consumer(topic, **session.settings(), **settings) as consumer:
            _write_polled(consumer, sink)
            skipped = consumer.calls().corrupt_batches
        _note_skipped(session, skipped)
    session.detail(counted(sink.written, "record"))


class RecordSink:
    """Writes records to stdout until its limit is reached. Belongs to one command."""

    def __init__(self, heading: bytes, writer: RecordsWriter, *, limit: int | None) -> None:
        self._heading = heading
        self._writer = writer
        self._limit = limit
        self._is_terminal = sys.stdout.isatty()
        self.written = 0

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.written >= self._limit

    @property
    def left(self) -> int | None:
        """Number of records up to the limit; `None` means no limit."""
        return None if self._limit is None else max(0, self._limit - self.written)

    def begin(self) -> None:
        """Write the heading."""
        sys.stdout.flush()
        sys.stdout.buffer.write(self._heading)
        sys.stdout.buffer.flush()

    def write(self, records: Sequence[object]) -> None:
        """Write records up to the limit, and flush, so that the reader of a pipe gets them at once.

        A pipe or a file gets the bytes unchanged; for a terminal control characters are escaped.
        """
        if self._limit is not None:
            records = records[: self._limit - self.written]
        data = self._writer(records)
        if self._is_terminal:
            data = visible(data.decode(errors="backslashreplace"), keep="\n\t").encode(errors="backslashreplace")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        self.written += len(records)


def check_pipe() -> None:
    """Detect a closed pipe without a write, so that `consume | head -2` ends even if no record arrives.

    Raises:
        BrokenPipeError: If standard output is a pipe whose reader has closed it.
    """
    if not hasattr(select, "poll"):
        return  # On Windows a write detects it.
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # Not a file descriptor.
    watch = select.poll()
    watch.register(descriptor, 0)
    if any(events & select.POLLERR for _, events in watch.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _wanted(offsets: str | None, last: int | None, *, stop_at_end: bool) -> OffsetSelection:
    if last is not None:
        if offsets is not None:
            raise UsageProblem("--last and --offsets exclude each other; -o -10 gives the last 10 of each partition")
        return OffsetSelection(Position(PositionKind.BEFORE_END, last))
    if offsets is None:
        return OffsetSelection(START if stop_at_end else END)
    try:
        return parse_offsets(offsets)
    except OffsetSyntaxError as error:
        raise UsageProblem(f"--offsets: {error}", error.explain().partition("\n")[2]) from None


def _plans(
    session: Session, topic: str, wanted: OffsetSelection, partitions: Sequence[int] | None, *, stop_at_end: bool
) -> list[PartitionPlan]:
    now_ms = time.time_ns() // 1_000_000
    chosen = sorted(set(partitions)) if partitions else None
    with session.admin() as admin:
        earliest = admin.list_offsets(topic, "earliest", partitions=chosen)
        latest = admin.list_offsets(topic, "latest", partitions=chosen)
        by_time: dict[int, dict[int, int]] = {}
        for timestamp_ms in timestamps_of(wanted, now_ms):
            for where, found in admin.list_offsets(topic, timestamp_ms, partitions=chosen).items():
                by_time.setdefault(where.partition, {})[timestamp_ms] = found.offset
    bounds = {where.partition: LogBounds(found.offset, latest[where].offset) for where, found in earliest.items()}
    return plan_partitions(wanted, bounds, by_time, now_ms=now_ms, stop_at_end=stop_at_end)


def _write_polled(consumer: "Consumer", sink: RecordSink) -> None:
    while not sink.full:
        left = MAX_POLL_RECORDS if sink.left is None else min(MAX_POLL_RECORDS, sink.left)
        records = consumer.poll(timeout=POLL_S, max_records=left)
        if records:
            sink.write(records)
        else:
            check_pipe()


def _follow(consumer: "Consumer", plans: Sequence[PartitionPlan], sink: RecordSink) -> None:
    """Read the whole topic up to the sink's limit; partitions that are added meanwhile from their start."""
    starts = {plan.partition: plan.start for plan in plans}
    for where in consumer.assignment():
        consumer.seek(where, starts.get(where.partition, 0))
    _write_polled(consumer, sink)


def _read(
    consumer: "Consumer",
    topic: str,
    plans: Sequence[PartitionPlan],
    sink: RecordSink,
    collected: LastRecords | None,
) -> None:
    """Read every partition to its stop offset, or to the sink's limit; of `collected` further back as needed."""
    from headrace.wire.ids import TopicPartition

    todo = [plan for plan in plans if not plan.empty]
    stops = {TopicPartition(topic, plan.partition): plan.stop for plan in todo}
    consumer.assign({TopicPartition(topic, plan.partition): plan.start for plan in todo})
    while stops and not sink.full:
        batch = consumer.poll(timeout=POLL_S, max_records=MAX_POLL_RECORDS)
        records = [
            record
            for record in batch
            if (stop := stops.get(TopicPartition(topic, record.partition), -1)) is None or record.offset < stop
        ]
        if collected is not None:
            collected.add(records)
        elif records:
            sink.write(records)
        else:
            check_pipe()
        for where, stop in list(stops.items()):
            if stop is not None and consumer.position(where) >= stop:
                del stops[where]
                consumer.pause(where)
    further = [] if collected is None else collected.further(plans)
    if further:
        _read(consumer, topic, further, sink, collected)
