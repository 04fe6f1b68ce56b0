"""Offset grammar of `headrace consume -o`: text to positions, positions to offsets.

Pure: no clock and no network; the caller passes the time, the bounds of each log and a look-up by timestamp.

    range    = position | [position] ":" [position]
    position = "start" | "end" | number | "+" number | "-" number | "@" time
    time     = ISO 8601 date or date and time (UTC where no zone is given)
             | milliseconds since 1970
             | "-" duration                      (before now)
    duration = (number ("ms" | "s" | "m" | "h" | "d" | "w"))+

The stop of a range is exclusive. A range without a stop has no end. A time is read greedily, so that the minute and
second of `@2026-11-21T10:00:30` belong to the time and a stop follows a second colon at most.
"""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, assert_never

MAX_OFFSET = 2**63 - 1
"""Offsets and counts are int64."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""Last millisecond of the year 9999."""

GRAMMAR = """\
  start, end     the first record; after the last one
  1234           offset 1234
  +10            10 offsets after the start
  -10            10 offsets before the end, in each partition; after compaction some have no record
  @TIME          the first record at or after a time: 2026-11-21, 2026-11-21T10:00, 2026-11-21T10:00:30.5Z
                 (UTC where no zone is given) or milliseconds since 1970
  @-1h30m        a duration before now, in w d h m s ms
  FROM:TO        a range, TO excluded: 5:10, @-1h:@-30m, start:end, :100, @-1h: (no end)"""

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[Tt]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:[Zz]|[+-]\d{2}:\d{2}|[+-]\d{4}(?!\d))?)?"
)
_NUMBER = re.compile(r"[0-9]+")
_WORD = re.compile(r"[A-Za-z]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PositionKind(enum.Enum):
    """Meaning of the number in a position."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    AFTER_START = "after_start"
    BEFORE_END = "before_end"
    TIME = "time"
    AGO = "ago"


@dataclass(frozen=True, slots=True)
class Position:
    """One end of a range. `str()` returns text that parses to the same position."""

    kind: PositionKind
    # Number of offsets, offset or milliseconds, by kind; 0 for START and END.
    amount: int = 0

    def __str__(self) -> str:
        match self.kind:
            case PositionKind.START | PositionKind.END:
                return str(self.kind.value)
            case PositionKind.OFFSET:
                return str(self.amount)
            case PositionKind.AFTER_START:
                return f"+{self.amount}"
            case PositionKind.BEFORE_END:
                return f"-{self.amount}"
            case PositionKind.TIME:
                return f"@{self.amount}"
            case PositionKind.AGO:
                return f"@-{self.amount}ms"
            case _:
                assert_never(self.kind)


START = Position(PositionKind.START)
END = Position(PositionKind.END)


@dataclass(frozen=True, slots=True)
class OffsetSelection:
    """Range from `start` to `stop`, exclusive; `stop=None` means without end."""

    start: Position
    stop: Position | None = None

    def __str__(self) -> str:
        return str(self.start) if self.stop is None else f"{self.start}:{self.stop}"


class OffsetSyntaxError(ValueError):
    """The text is not a valid offset or range. `position` is the index of the first invalid character."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text = text
        self.position = position
        self.problem = problem
        super().__init__(f"bad offset {text!r}: {problem}")

    def explain(self) -> str:
        """Return the problem, the text with a caret below the position, and the grammar."""
        shown = "".join(character if character.isprintable() else "?" for character in self.text)
        return f"{self}\n  {shown}\n  {' ' * self.position}^ {self.problem}\nOffsets are:\n{GRAMMAR}"


class LogBounds(NamedTuple):
    """Readable offsets of one partition: `earliest` to `latest`, exclusive (the high watermark)."""

    earliest: int
    latest: int


def parse_offsets(text: str) -> OffsetSelection:
    """Parse a range.

    Raises:
        OffsetSyntaxError: If the text is invalid; show `explain()` to the user.
    """
    reader = _OffsetReader(text)
    start: Position = START
    if not reader.at(":"):
        start = reader.position_expression()
    if reader.finished():
        return OffsetSelection(start)
    reader.expect_colon()
    if reader.finished():
        return OffsetSelection(start)
    stop = reader.position_expression()
    if not reader.finished():
        raise reader.error("nothing may follow the end of a range")
    return OffsetSelection(start, stop)


def resolve_position(position: Position, bounds: LogBounds, *, now_ms: int, offset_at: Callable[[int], int]) -> int:
    """Return the offset of `position` in one partition, within `earliest .. latest` for every kind except OFFSET.

    Args:
        position: the position to resolve.
        bounds: log bounds of the partition.
        now_ms: milliseconds since 1970, from which AGO counts.
        offset_at: returns for a timestamp in milliseconds the offset of the first record at or after it (the latest
            offset if there is none). Called only for TIME and AGO.
    """
    match position.kind:
        case PositionKind.START:
            return bounds.earliest
        case PositionKind.END:
            return bounds.latest
        case PositionKind.OFFSET:
            return position.amount
        case PositionKind.AFTER_START:
            return min(bounds.earliest + position.amount, bounds.latest)
        case PositionKind.BEFORE_END:
            return max(bounds.latest - position.amount, bounds.earliest)
        case PositionKind.TIME:
            return offset_at(position.amount)
        case PositionKind.AGO:
            return offset_at(max(now_ms - position.amount, 0))
        case _:
            assert_never(position.kind)


def clamp_start(offset: int, bounds: LogBounds) -> int:
    """Return the nearest offset in the log, because an absolute offset may be outside."""
    return max(bounds.earliest, min(offset, bounds.latest))


class _OffsetReader:
    """Cursor over the text of one call of `parse_offsets`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._index = 0

    def finished(self) -> bool:
        return self._index == len(self._text)

    def at(self, character: str) -> bool:
        return self._text.startswith(character, self._index)

    def error(self, problem: str, index: int | None = None) -> OffsetSyntaxError:
        return OffsetSyntaxError(self._text, self._index if index is None else index, problem)

    def expect_colon(self) -> None:
        if not self.at(":"):
            raise self.error("expected ':' or the end of the text here")
        self._index += 1

    def position_expression(self) -> Position:
        if self.finished():
            raise self.error("an offset is missing here")
        if self.at("@"):
            self._index += 1
            return self._time()
        if self.at("+"):
            self._index += 1
            return Position(PositionKind.AFTER_START, self._number("the count of records", MAX_OFFSET))
        if self.at("-"):
            self._index += 1
            return Position(PositionKind.BEFORE_END, self._number("the count of records", MAX_OFFSET))
        word = _WORD.match(self._text, self._index)
        if word is not None:
            if word[0] not in ("start", "end"):
                raise self.error(f"unknown word {word[0]!r}, expected start, end, a number, +n, -n or @time")
            self._index = word.end()
            return START if word[0] == "start" else END
        if _NUMBER.match(self._text, self._index) is None:
            raise self.error("expected start, end, a number, +n, -n or @time")
        return Position(PositionKind.OFFSET, self._number("the offset", MAX_OFFSET))

    def _number(self, what: str, maximum: int) -> int:
        match = _NUMBER.match(self._text, self._index)
        if match is None:
            raise self.error(f"{what} is missing here")
        # Check the length first: int() of a huge text is slow, and fails beyond 4,300 digits.
        if len(match[0]) > 19 or int(match[0]) > maximum:
            raise self.error(f"{what} is above {maximum}")
        self._index = match.end()
        return int(match[0])

    def _time(self) -> Position:
        if self.at("-"):
            self._index += 1
            return Position(PositionKind.AGO, self._duration_ms())
        begin = self._index
        iso = _ISO.match(self._text, begin)
        if iso is None:
            if _NUMBER.match(self._text, begin) is None:
                raise self.error("expected a time: 2026-11-21T10:00:00Z, milliseconds since 1970, or -1h")
            return Position(PositionKind.TIME, self._number("the time in milliseconds", MAX_TIMESTAMP_MS))
        self._index = iso.end()
        try:
            when = datetime.fromisoformat(iso[0].upper())
        except ValueError as error:
            raise self.error(f"there is no such time ({error})", begin) from None
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        timestamp_ms = (when - _EPOCH) // timedelta(milliseconds=1)
        if timestamp_ms < 0:
            raise self.error("the time is before 1970", begin)
        return Position(PositionKind.TIME, timestamp_ms)

    def _duration_ms(self) -> int:
        begin = self._index
        total_ms = 0
        while True:
            amount = self._number("the length of time", MAX_TIMESTAMP_MS)
            unit = _WORD.match(self._text, self._index)
            if unit is None:
                raise self.error("a unit is missing here: w, d, h, m, s or ms")
            if unit[0] not in _UNIT_MS:
                raise self.error(f"unknown unit {unit[0]!r}, expected w, d, h, m, s or ms")
            total_ms += amount * _UNIT_MS[unit[0]]
            self._index = unit.end()
            if total_ms > MAX_TIMESTAMP_MS:
                raise self.error("the duration is too long", begin)
            if _NUMBER.match(self._text, self._index) is None:
                return total_ms
