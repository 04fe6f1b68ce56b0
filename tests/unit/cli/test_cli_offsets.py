"""The offset grammar: what parses, what it means, and that errors point at the place."""

import pytest
from headrace.cli.records.offsets import (
    END,
    MAX_OFFSET,
    MAX_TIMESTAMP_MS,
    START,
    LogBounds,
    OffsetSelection,
    OffsetSyntaxError,
    Position,
    PositionKind,
    clamp_start,
    parse_offsets,
    resolve_position,
)
from hypothesis import given
from hypothesis import strategies as st

HOUR_MS = 3_600_000
NOON_MS = 1_795_262_400_000  # 2026-11-21T12:00:00Z


def at(kind: PositionKind, amount: int) -> Position:
    return Position(kind, amount)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", OffsetSelection(START)),
        ("end", OffsetSelection(END)),
        ("42", OffsetSelection(at(PositionKind.OFFSET, 42))),
        ("+10", OffsetSelection(at(PositionKind.AFTER_START, 10))),
        ("-10", OffsetSelection(at(PositionKind.BEFORE_END, 10))),
        ("@1795262400000", OffsetSelection(at(PositionKind.TIME, NOON_MS))),
        ("@2026-11-21T12:00:00Z", OffsetSelection(at(PositionKind.TIME, NOON_MS))),
        ("@2026-11-21T12:00:00", OffsetSelection(at(PositionKind.TIME, NOON_MS))),
        ("@2026-11-21t12:00z", OffsetSelection(at(PositionKind.TIME, NOON_MS))),
        ("@2026-11-21T13:00+01:00", OffsetSelection(at(PositionKind.TIME, NOON_MS))),
        ("@2026-11-21T12:00:00.250Z", OffsetSelection(at(PositionKind.TIME, NOON_MS + 250))),
        ("@2026-11-21", OffsetSelection(at(PositionKind.TIME, NOON_MS - 12 * HOUR_MS))),
        ("@-1h", OffsetSelection(at(PositionKind.AGO, HOUR_MS))),
        ("@-1h:", OffsetSelection(at(PositionKind.AGO, HOUR_MS))),
        ("@-1h30m", OffsetSelection(at(PositionKind.AGO, HOUR_MS * 3 // 2))),
        ("@-1h:@-30m", OffsetSelection(at(PositionKind.AGO, HOUR_MS), at(PositionKind.AGO, HOUR_MS // 2))),
        ("5:10", OffsetSelection(at(PositionKind.OFFSET, 5), at(PositionKind.OFFSET, 10))),
        (":10", OffsetSelection(START, at(PositionKind.OFFSET, 10))),
        ("start:end", OffsetSelection(START, END)),
        ("-10:-5", OffsetSelection(at(PositionKind.BEFORE_END, 10), at(PositionKind.BEFORE_END, 5))),
        (":", OffsetSelection(START)),
        (
            "@2026-11-21T12:00:00:7",
            OffsetSelection(at(PositionKind.TIME, NOON_MS), at(PositionKind.OFFSET, 7)),
        ),
        (
            "@2026-11-21T12:00:@2026-11-21T13:00",
            OffsetSelection(at(PositionKind.TIME, NOON_MS), at(PositionKind.TIME, NOON_MS + HOUR_MS)),
        ),
    ],
)
def test_every_form_of_the_grammar_parses(text: str, expected: OffsetSelection) -> None:
    """Each form that the help shows means what it says."""
    assert parse_offsets(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "missing"),
        ("begin", 0, "unknown word 'begin'"),
        ("@-1x:", 3, "unknown unit 'x'"),
        ("@-1", 3, "unit is missing"),
        ("@-", 2, "length of time is missing"),
        ("@noon", 1, "expected a time"),
        ("@2026-13-01", 1, "no such time"),
        ("@1969-12-31", 1, "before 1970"),
        ("5-10", 1, "expected ':'"),
        ("5:10:15", 4, "nothing may follow"),
        ("+", 1, "count of records is missing"),
        ("+x", 1, "count of records is missing"),
        ("9223372036854775808", 0, "above"),
        ("1" * 5000, 0, "above"),
        ("@-99999999999999w", 2, "too long"),
        ("5:#", 2, "expected start, end"),
        ("٣", 0, "expected start, end"),
    ],
)
def test_a_bad_offset_points_at_the_place(text: str, position: int, says: str) -> None:
    """The error names what is wrong, puts a caret below the character and shows the grammar."""
    with pytest.raises(OffsetSyntaxError) as caught:
        parse_offsets(text)
    assert caught.value.position == position
    assert says in caught.value.problem
    lines = caught.value.explain().splitlines()
    assert lines[2].index("^") == position + 2
    assert any("@-1h30m" in line for line in lines)


positions = st.one_of(
    st.sampled_from([START, END]),
    st.builds(
        Position,
        st.sampled_from([PositionKind.OFFSET, PositionKind.AFTER_START, PositionKind.BEFORE_END]),
        st.integers(0, MAX_OFFSET),
    ),
    st.builds(Position, st.sampled_from([PositionKind.TIME, PositionKind.AGO]), st.integers(0, MAX_TIMESTAMP_MS)),
)


@given(positions, st.none() | positions)
def test_what_is_written_parses_to_the_same(start: Position, stop: Position | None) -> None:
    """`str` of a range is text that means the same range."""
    wanted = OffsetSelection(start, stop)
    assert parse_offsets(str(wanted)) == wanted


@given(st.text(alphabet="startend0123456789@:+-.TZhmsdw ", max_size=30))
def test_any_text_parses_or_raises_the_one_error(text: str) -> None:
    """Nothing but OffsetSyntaxError escapes, and its position lies within the text."""
    problem = None
    try:
        parse_offsets(text)
    except OffsetSyntaxError as error:
        problem = error
    if problem is not None:
        assert 0 <= problem.position <= len(text)
        assert problem.explain()


@given(positions, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_a_start_lies_within_the_log(position: Position, earliest: int, length: int, found: int) -> None:
    """Whatever was asked for, a reader starts between the log's start and its end."""
    bounds = LogBounds(earliest, earliest + length)
    offset = resolve_position(
        position, bounds, now_ms=NOON_MS, offset_at=lambda _: bounds.earliest + min(found, length)
    )
    assert bounds.earliest <= clamp_start(offset, bounds) <= bounds.latest
    if position.kind is not PositionKind.OFFSET:
        assert clamp_start(offset, bounds) == offset


def test_ago_counts_from_now() -> None:
    """`@-1h` looks for the timestamp one hour before now."""
    asked: list[int] = []

    def offset_at(timestamp_ms: int) -> int:
        asked.append(timestamp_ms)
        return 7

    position = parse_offsets("@-1h").start
    assert resolve_position(position, LogBounds(0, 10), now_ms=NOON_MS, offset_at=offset_at) == 7
    assert asked == [NOON_MS - HOUR_MS]
