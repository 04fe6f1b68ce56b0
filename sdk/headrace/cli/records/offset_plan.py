"""Plan of a group's offsets: a target, and its offset in each partition. Pure; no clock, no network.

Every offset is limited to the log, with a note, because a member with an offset outside the log would apply its
`auto_offset_reset` instead of the requested offset.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from headrace.cli.common.rendering import JsonValue
from headrace.cli.common.session import UsageProblem
from headrace.cli.records.offsets import (
    LogBounds,
    OffsetSyntaxError,
    Position,
    PositionKind,
    clamp_start,
    parse_offsets,
    resolve_position,
)
from headrace.wire.ids import TopicPartition

MAX_FILE_BYTES = 64 << 20
"""Maximum size of a file of offsets."""


@dataclass(frozen=True, slots=True)
class OffsetTarget:
    """Target of a reset; exactly one of the fields is set."""

    position: Position | None = None
    # Number of records from the committed offset; negative means backwards.
    shift: int | None = None
    # Offset by partition.
    offsets: Mapping[TopicPartition, int] | None = None
    # Remove the stored offsets.
    delete: bool = False

    @property
    def time_kind(self) -> bool:
        """Whether the target is a time, whose offset brokers look up."""
        return self.position is not None and self.position.kind in (PositionKind.TIME, PositionKind.AGO)


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """Partition of a plan."""

    where: TopicPartition
    # None means that no offset is stored.
    before: int | None
    # None means that no offset will be stored.
    offset: int | None
    bounds: LogBounds
    note: str = ""

    @property
    def changes(self) -> bool:
        """Whether the plan changes the stored offset."""
        return self.offset != self.before

    def row(self) -> dict[str, JsonValue]:
        """Return the partition as fields of a document, which `plan_from_json` reads."""
        both = self.offset is not None and self.before is not None
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "offset_before": self.before,
            "offset": self.offset,
            "records": (self.offset or 0) - (self.before or 0) if both else None,
            "log_start_offset": self.bounds.earliest,
            "end_offset": self.bounds.latest,
            "note": self.note or None,
        }


def plan_offset(
    target: OffsetTarget,
    where: TopicPartition,
    before: int | None,
    bounds: LogBounds,
    *,
    now_ms: int,
    offset_at: Callable[[int], int],
) -> PlannedOffset:
    """Plan one partition.

    Args:
        target: the target.
        where: the partition, which a target by partition contains.
        before: the committed offset; `None` if there is none.
        bounds: log bounds of the partition.
        now_ms: ms since 1970, from which a duration counts.
        offset_at: returns for a time in ms the offset of the first record at or after it.
    """
    if target.delete:
        return PlannedOffset(where, before, None, bounds)
    if target.shift is not None:
        if before is None:
            return PlannedOffset(where, None, None, bounds, "no stored offset to shift; left unchanged")
        wanted = before + target.shift
    elif target.offsets is not None:
        wanted = target.offsets[where]
    else:
        assert target.position is not None, "a target is one of four"
        wanted = resolve_position(target.position, bounds, now_ms=now_ms, offset_at=offset_at)
    taken = clamp_start(wanted, bounds)
    note = ""
    if taken != wanted:
        side, edge = ("after the end", bounds.latest) if wanted > taken else ("before the start", bounds.earliest)
        note = f"offset {wanted} is {side} of the log; {edge} is taken"
    return PlannedOffset(where, before, taken, bounds, note)


def time_of(target: OffsetTarget, now_ms: int) -> int:
    """Return the time of a target by time, in ms since 1970."""
    assert target.position is not None, "a time is a position"
    if target.position.kind is PositionKind.AGO:
        return max(0, now_ms - target.position.amount)
    return target.position.amount


def parse_time(text: str, option: str) -> Position:
    """Parse a time in the form of `consume -o @TIME`.

    Raises:
        UsageProblem: If it is invalid.
    """
    return _parse(f"@{text}", option, text, PositionKind.TIME, "a time, for example 2026-11-21T10:00:00Z")


def parse_duration(text: str, option: str) -> Position:
    """Parse a duration before now.

    Raises:
        UsageProblem: If it is invalid.
    """
    return _parse(f"@-{text}", option, text, PositionKind.AGO, "a duration, for example 1h30m")


def parse_position(text: str, option: str) -> Position:
    """Parse a position in the form of `consume -o`, without a stop.

    Raises:
        UsageProblem: If it is invalid.
    """
    return _parse(text, option, text, None, "a position: start, end, 1234, +10, -10, @TIME or @-1h")


def _parse(text: str, option: str, shown: str, kind: PositionKind | None, what: str) -> Position:
    problem = UsageProblem(f"{option} {shown!r} is not {what}")
    try:
        found = parse_offsets(text)
    except OffsetSyntaxError as error:
        raise UsageProblem(f"{problem} ({error.problem})") from None
    if found.stop is not None or text.endswith(":") or kind not in (None, found.start.kind):
        raise problem
    return found.start


def plan_from_json(text: str, source: str) -> dict[TopicPartition, int]:
    """Return offsets written by `group reset --to-file`, or by a dry run with `--output json`.

    Raises:
        UsageProblem: If the text is invalid, or has a partition twice; names `source`.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageProblem(f"{source} is not JSON: {error}") from None
    rows = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise UsageProblem(f'{source} has no list "partitions"; group reset --to-file writes one')
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(rows):
        where, offset = _file_row(row, f"{source}, partitions[{number}]")
        if where in found:
            raise UsageProblem(f"{source} names {where.topic}:{where.partition} twice")
        if offset is not None:
            found[where] = offset
    return found


def _file_row(row: Any, where: str) -> tuple[TopicPartition, int | None]:
    if not isinstance(row, dict):
        raise UsageProblem(f"{where} is not an object")
    topic, partition, offset = (row.get(name) for name in ("topic", "partition", "offset"))
    if not isinstance(topic, str) or not topic:
        raise UsageProblem(f"{where} has no topic")
    if not _is_count(partition) or not (offset is None or _is_count(offset)):
        raise UsageProblem(f"{where}: partition and offset are numbers from 0 on")
    return TopicPartition(topic, partition), offset


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def offsets_file(group: str, offsets: Sequence[tuple[TopicPartition, int | None]]) -> str:
    """Return the text of a file of offsets, without partitions that have no offset."""
    rows = [
        {"topic": where.topic, "partition": where.partition, "offset": offset}
        for where, offset in sorted(offsets)
        if offset is not None
    ]
    return json.dumps({"group": group, "partitions": rows}, indent=2) + "\n"
