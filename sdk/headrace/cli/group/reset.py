"""`headrace group reset` and `seek`: change the committed offsets of a group without members."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted, parse_partition
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.names import Group, group_names
from headrace.cli.common.rendering import Column, JsonValue, Note, OutputFormat, Report, TableSection, render
from headrace.cli.common.session import (
    CommandFailed,
    DryRun,
    Session,
    UsageProblem,
    Yes,
    command,
    confirm,
    tell,
)
from headrace.cli.group.offset_files import read_offsets_file, write_offsets_file
from headrace.cli.group.options import member_list
from headrace.cli.records.offset_plan import (
    OffsetTarget,
    PlannedOffset,
    parse_duration,
    parse_position,
    parse_time,
    plan_from_json,
    plan_offset,
    time_of,
)
from headrace.cli.records.offsets import MAX_OFFSET, LogBounds, Position, PositionKind
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.groups import OffsetResult

TARGETS = (
    "--to-earliest, --to-latest, --to-offset, --to-time, --by-duration, --shift, --from-file, --from-group or --delete"
)
COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("FROM", "offset_before"),
    Column("TO", "offset"),
    Column("RECORDS", "records"),
    Column("LOG START", "log_start_offset", wide=True),
    Column("LOG END", "end_offset", wide=True),
    Column("NOTE", "note"),
)


@command()
def reset(
    session: Session,
    *,
    group: Group,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC[:P,...]", help="Only this topic or these partitions of it; repeatable."),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the log end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, max=MAX_OFFSET, help="To this offset.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="To the first record at or after a time (ISO 8601, else UTC)."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration", metavar="DURATION", help="To the first record of the last DURATION, for example 1h30m."
        ),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="N", help="Forward by N records, or back if N is negative.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", metavar="FILE", help="To the offsets in a file written by --to-file or --output json."
        ),
    ] = None,
    from_group: Annotated[
        str | None,
        typer.Option(
            "--from-group",
            metavar="GROUP",
            help="To the offsets of another group or reader.",
            autocompletion=group_names,
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the offsets, so that auto_offset_reset applies again.")
    ] = False,
    to_file: Annotated[
        Path | None,
        typer.Option(
            "--to-file",
            metavar="FILE",
            help="Write the offsets to a file, - for stdout; the current ones if no target is given.",
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Reset a group's committed offsets. Prints the plan, and asks first on a terminal.

    Without --topic, all partitions with a committed offset are reset, or those that the file or the other group has.
    An offset outside the log is moved to its nearer end, with a note. The group must have no members: stop them first.
    A group that does not exist is created. With --to-file alone the committed offsets are written to a file and not
    changed; the group may have members then.

    \b
    Examples:
      headrace group reset billing --to-earliest --dry-run
      headrace group reset billing --topic clicks --topic views:0,3 --to-time 2026-11-21T10:00
      headrace group reset billing --by-duration 1h
      headrace group reset billing --shift -100
      headrace group reset billing --to-file offsets.json
      headrace group reset billing --from-file offsets.json
      headrace group reset billing-new --from-group billing
    """
    target = _target(to_earliest, to_latest, to_offset, to_time, by_duration, shift, from_file, delete)
    if target is not None and from_group is not None:
        raise UsageProblem(f"one target: {TARGETS}")
    if target is None and from_group is None and to_file is None:
        raise UsageProblem(f"name the target: {TARGETS}")
    chosen = [_parse_topic(each) for each in topics or ()]
    with session.admin() as admin:
        current, epoch = _current(session, admin, group, changes=target is not None or from_group is not None)
        if from_group is not None:
            other = {where: each.offset for where, each in admin.describe_group(from_group).offsets.items()}
            target = OffsetTarget(offsets=other)
        if target is None:
            partitions = _choose(admin, chosen, current, None)
            write_offsets_file(to_file, group, [(where, current.get(where)) for where in partitions])
            return
        partitions = _choose(admin, chosen, current, target)
        plan = list(_plan(session, admin, partitions, current, target))
        if to_file is not None:
            write_offsets_file(to_file, group, [(each.where, each.offset) for each in plan])
        if to_file != Path("-"):
            _carry_out(session, admin, group, plan, epoch, yes=yes, dry_run=dry_run)


@command()
def seek(
    session: Session,
    *,
    group: Group,
    partition: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", help="The partition.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="POSITION", help="start, end, 1234, +10, -10, @TIME or @-1h, as for `headrace consume`."
        ),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Reset a group's committed offset of one partition. Prints the plan, and asks first on a terminal.

    Positions are those of `headrace consume -o`, see `headrace help offsets`. The group must have no members.

    \b
    Examples:
      headrace group seek billing clicks:3 --to 1234
      headrace group seek billing clicks:3 --to @-1h
    """
    where = parse_partition(partition)
    target = OffsetTarget(position=parse_position(to, "--to"))
    with session.admin() as admin:
        current, epoch = _current(session, admin, group, changes=True)
        partitions = _choose(admin, [(where.topic, (where.partition,))], current, target)
        plan = list(_plan(session, admin, partitions, current, target))
        _carry_out(session, admin, group, plan, epoch, yes=yes, dry_run=dry_run)


def _target(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    shift: int | None,
    from_file: Path | None,
    delete: bool,
) -> OffsetTarget | None:
    """Return the target of the options, or `None` without one.

    Raises:
        UsageProblem: If there are several targets, or one is invalid.
    """
    found: list[OffsetTarget] = []
    if to_earliest:
        found.append(OffsetTarget(position=Position(PositionKind.START)))
    if to_latest:
        found.append(OffsetTarget(position=Position(PositionKind.END)))
    if to_offset is not None:
        found.append(OffsetTarget(position=Position(PositionKind.OFFSET, to_offset)))
    if to_time is not None:
        found.append(OffsetTarget(position=parse_time(to_time, "--to-time")))
    if by_duration is not None:
        found.append(OffsetTarget(position=parse_duration(by_duration, "--by-duration")))
    if shift is not None:
        found.append(OffsetTarget(shift=shift))
    if from_file is not None:
        found.append(OffsetTarget(offsets=plan_from_json(read_offsets_file(from_file), str(from_file))))
    if delete:
        found.append(OffsetTarget(delete=True))
    if len(found) > 1:
        raise UsageProblem(f"one target: {TARGETS}")
    return found[0] if found else None


def _parse_topic(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parse `TOPIC` or `TOPIC:P,...`.

    Raises:
        UsageProblem: If the text has another form.
    """
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not numbers):
        raise UsageProblem(f"--topic {text!r} is not TOPIC or TOPIC:P,..., for example clicks:0,3")
    if not colon:
        return topic, None
    return topic, tuple(parse_partition(f"{topic}:{number.strip()}").partition for number in numbers.split(","))


def _current(session: Session, admin: "Admin", group: str, *, changes: bool) -> tuple[dict[TopicPartition, int], int]:
    """Return the group's current offsets and epoch; empty and `0` if there is no such group.

    Raises:
        CommandFailed: If `changes` is set and the group has members.
    """
    from headrace.wire.errors import UnknownGroupError

    try:
        found = admin.describe_group(group)
    except UnknownGroupError:
        if not changes:
            raise
        session.note(f"group {group} does not exist yet; storing offsets creates it")
        return {}, 0
    if changes and found.members:
        members = f"{counted(len(found.members), 'member')}: {member_list(found.members)}"
        raise CommandFailed(ExitCode.FAILED, f"group {group} has {members}. Stop them first, then try again.")
    return {where: each.offset for where, each in found.offsets.items()}, found.group_epoch


def _choose(
    admin: "Admin",
    chosen: Sequence[tuple[str, tuple[int, ...] | None]],
    current: Mapping[TopicPartition, int],
    target: OffsetTarget | None,
) -> list[TopicPartition]:
    """Return the named partitions, or without names those of the file, the other group, or the group itself.

    Raises:
        UnknownTopicError, UnknownPartitionError: If a named one does not exist.
        UsageProblem: If there are no partitions.
    """
    from headrace.wire.errors import UnknownPartitionError

    source = target.offsets if target is not None and target.offsets is not None else current
    if not chosen:
        if not source:
            raise UsageProblem("the group has no stored offsets; name the partitions by --topic")
        return sorted(source)
    found: dict[TopicPartition, None] = {}
    for topic, numbers in chosen:
        count = len(admin.describe_topic(topic).partitions)
        for number in range(count) if numbers is None else numbers:
            if number >= count:
                raise UnknownPartitionError(f"{topic} has the partitions 0 to {count - 1}, not {number}")
            where = TopicPartition(topic, number)
            if source is current or where in source:
                found[where] = None
    return sorted(found)


def _plan(
    session: Session,
    admin: "Admin",
    partitions: Sequence[TopicPartition],
    current: Mapping[TopicPartition, int],
    target: OffsetTarget,
) -> Iterator[PlannedOffset]:
    """Yield the plan topic by topic; deleted topics are omitted with a note."""
    from headrace.wire.errors import InvalidTopicNameError, UnknownTopicError

    now_ms = time.time_ns() // 1_000_000
    for topic in dict.fromkeys(where.topic for where in partitions):
        numbers = [where.partition for where in partitions if where.topic == topic]
        session.detail(f"looking at {counted(len(numbers), 'partition')} of {topic}")
        try:
            starts = admin.list_offsets(topic, "earliest", partitions=numbers)
            ends = admin.list_offsets(topic, "latest", partitions=numbers)
            at_time = admin.list_offsets(topic, time_of(target, now_ms), partitions=numbers) if target.time_kind else {}
        except (UnknownTopicError, InvalidTopicNameError):
            session.note(f"{topic}: the topic does not exist; left unchanged")
            continue
        for where in sorted(starts):
            bounds = LogBounds(starts[where].offset, ends[where].offset)
            found = _look_up(where, {each: answer.offset for each, answer in at_time.items()})
            yield plan_offset(target, where, current.get(where), bounds, now_ms=now_ms, offset_at=found)


def _look_up(where: TopicPartition, found: Mapping[TopicPartition, int]) -> Callable[[int], int]:
    return lambda _: found[where]


def _carry_out(
    session: Session,
    admin: "Admin",
    group: str,
    plan: Sequence[PlannedOffset],
    epoch: int,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Store a plan if the group has not changed, and print it with rejected partitions; a dry run only prints it."""
    changes = [each for each in plan if each.changes]
    if dry_run:
        session.show(_report(group, plan, {}, dry_run=True))
        return
    if changes:
        if sys.stdin.isatty() and not yes:
            # To stderr, because stdout is only for the result.
            print(render(_report(group, plan, {}, dry_run=True), OutputFormat.TABLE), end="", file=sys.stderr)
        confirm(f"Store {counted(len(changes), 'offset')} of {group}?", yes=yes, otherwise="nothing was changed")
    results: list[OffsetResult] = []
    if changes:
        offsets = {each.where: -1 if each.offset is None else each.offset for each in changes}
        results = admin.reset_group_offsets(group, offsets, expected_group_epoch=epoch)
    refused = {TopicPartition(each.topic, each.partition): str(each.error) for each in results if each.error}
    if refused or not session.quiet:
        session.show(_report(group, plan, refused, dry_run=False))
    if refused:
        tell(f"{counted(len(refused), 'offset')} refused")
        raise CommandFailed(ExitCode.FAILED)


def _report(
    group: str, plan: Sequence[PlannedOffset], refused: Mapping[TopicPartition, str], *, dry_run: bool
) -> Report:
    """Return the plan as rows, with a sentence about what was or would be stored."""
    rows: list[dict[str, JsonValue]] = [
        {**each.row(), "changed": each.changes and each.where not in refused, "error": refused.get(each.where)}
        for each in plan
    ]
    stored = sum(each.changes for each in plan) - len(refused)
    verb = "would store" if dry_run else "stored"
    sentence = f"{verb} {counted(stored, 'offset')} of {counted(len(plan), 'partition')}"
    columns = (*COLUMNS, Column("REFUSED", "error")) if refused else COLUMNS
    document: dict[str, JsonValue] = {"group_id": group, "dry_run": dry_run, "partitions": rows}
    return Report(document, (TableSection(columns, rows, empty="no partitions"), Note(sentence)))
