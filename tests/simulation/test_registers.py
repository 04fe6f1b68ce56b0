"""The checker of registers finds each planted violation, and nothing in good histories."""

import pytest

from tests.simulation.registers import ABSENT, FAILED, KEPT, LATE_MS, OK, REFUSED, UNKNOWN, Operation, check_registers


def write(client, begin, end, version, value, expected=None, outcome=OK, **fields):
    times = {"begin_ms": begin, "end_ms": end, **fields}
    return Operation(client, "r", begin, end, outcome, version, value, True, expected, **times)


def read(client, begin, end, version, value="", **fields):
    return Operation(client, "r", begin, end, OK, version, value, **{"begin_ms": begin, "end_ms": end, **fields})


GOOD = [
    read("c", 0, 1, ABSENT),
    write("a", 2, 9, 10, "1", ABSENT),
    read("c", 3, 4, ABSENT),
    read("c", 5, 6, 10, "1"),
    write("b", 7, 20, 12, "2", 10),
    write("c", 8, 21, 12, "x", 10, REFUSED),
    write("a", 22, 30, -1, "3", 12, UNKNOWN),
    read("c", 23, 24, 12, "2"),
    read("c", 25, 26, 15, "3"),
    read("d", 27, 28, 12, "2", from_replica=True),
    write("d", 40, 41, -1, "4", None, FAILED),
    write("d", 42, 43, 17, "5"),
]


def test_a_good_history_has_no_problem():
    assert check_registers(GOOD) == []
    assert check_registers([]) == []


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (read("z", 50, 51, 15, "3"), "saw r at 15 after d had 17"),
        (read("z", 50, 51, ABSENT), "saw r at -1 after"),
        (read("z", 50, 51, 17, "2"), "r at 17 is 5, and 2"),
        (read("z", 50, 51, 18, "9"), "which no one wrote"),
        (read("z", 50, 51, 18, "4"), "whose write was failed"),
        (read("z", 50, 51, 18, "x"), "whose write was refused"),
        (write("z", 50, 52, 19, "6", 15), "wrote r at 19 for 15, after 17"),
        (write("z", 50, 52, 14, "6"), "wrote r at 14 after"),
        (write("z", 50, 52, 17, "6", 17, REFUSED), "was refused r at 17, which it had expected"),
        (write("z", 50, 52, 15, "6", 16, REFUSED), "saw r at 15 after d had 17"),
        (read("z", 0, 1, 15, "3", from_replica=True), "before it was written"),
    ],
)
def test_each_violation_is_told(more, what):
    found = check_registers([*GOOD, more])
    assert any(what in problem for problem in found), found


FILLED = [
    write("a", 1, 2, 10, "1", filling="x"),
    write("a", 3, 4, 12, "2", 10, filling=KEPT),
    read("c", 5, 6, 12, "2", filling="x"),
    write("a", 7, 8, 15, "3", filling=None),
    write("b", 9, 10, 16, "4", 15, filling=KEPT),
    read("c", 11, 12, 16, "4"),
    write("b", 13, 14, -1, "5", 16, UNKNOWN, filling="y"),
    write("c", 15, 16, 19, "6", 18, filling=KEPT),
    read("d", 17, 18, 19, "6", filling="y"),
    read("d", 19, 20, 18, "5", filling="y", from_replica=True),
]


def test_a_row_has_both_columns_of_one_write_or_what_that_left():
    assert check_registers(FILLED) == []
    assert check_registers(each for each in FILLED if each.value != "5") == []


@pytest.mark.parametrize(
    "more",
    [
        read("z", 21, 22, 19, "6", filling="x"),
        read("z", 21, 22, 19, "6"),
        read("z", 21, 22, 10, "1", from_replica=True),
        read("z", 21, 22, 12, "2", filling="y", from_replica=True),
        read("z", 21, 22, 16, "4", filling="x", from_replica=True),
    ],
)
def test_a_column_of_another_write_is_told(more):
    (problem,) = check_registers([*FILLED, more])
    assert f"z read {more.filling} next to" in problem


EXPIRING = [
    write("a", 1, 2, 10, "1"),
    write("a", 3, 4, 12, "2", 10, lives_ms=1),
    read("b", 5, 6, 12, "2"),
    read("b", 7, 8, ABSENT),
    read("c", 9, 10, 12, "2"),
    write("b", 11, 12, 14, "3", ABSENT),
    write("b", 13, 20, -1, "4", 14, UNKNOWN, lives_ms=1),
    read("c", 14, 15, ABSENT),
    write("a", 21, 22, 18, "5", ABSENT),
]


def test_what_expires_may_be_absent_from_its_time_on():
    assert check_registers(EXPIRING) == []


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (read("z", 7, 8, 10, "1"), "saw r at 10 after"),
        (read("z", 30, 31, ABSENT), "saw r at -1 after a had 18"),
        (write("z", 30, 31, 19, "6", ABSENT), "wrote r at 19 for -1, after 18"),
        (write("z", 30, 31, 19, "6", ABSENT, lives_ms=1), "wrote r at 19 for -1, after 18"),
    ],
)
def test_what_has_expired_brings_nothing_back(more, what):
    known = [each for each in EXPIRING if each.outcome != UNKNOWN]  # One that is in doubt may expire at any time.
    found = check_registers([*known, more])
    assert any(what in problem for problem in found), found


def test_what_expires_is_there_before_its_time():
    """By no clock of a broker was it over."""
    history = [write("a", 1, 2, 10, "1", lives_ms=50), read("b", 3, 4, ABSENT, end_ms=40)]
    assert check_registers(history) == ["b saw r at -1 after a had 10"]
    assert check_registers(history, clocks_differ_ms=11) == []
    again = [history[0], write("b", 3, 4, 12, "2", ABSENT, end_ms=40)]
    assert check_registers(again) == ["b wrote r at 12 for -1, after 10"]
    assert check_registers(again, clocks_differ_ms=11) == []


def test_a_write_in_doubt_may_come_after_a_deletion_that_began_when_it_had_ended():
    late = [write("b", 2, 5, ABSENT, "2", ABSENT, UNKNOWN), read("c", 12, 13, 14, "2")]
    history = [write("a", 1, 3, 10, "1"), write("a", 8, 9, 12, "3", 10, lives_ms=0), *late]
    assert check_registers(history) == []
    answered = [late[0]._replace(outcome=OK, version=14), late[1]]
    assert "b wrote r at 14 for -1, after 12" in check_registers([*history[:2], *answered])


DELETED = [write("a", 1, 2, 10, "1"), write("b", 3, 6, ABSENT, "2", deletes=True)]


@pytest.mark.parametrize(
    "more",
    [
        [read("c", 4, 5, ABSENT)],
        [read("c", 7, 8, ABSENT)],
        [write("c", 4, 8, 12, "3", ABSENT), read("c", 9, 10, 12, "3")],
        [write("c", 4, 5, 12, "3"), read("c", 7, 8, ABSENT)],
    ],
)
def test_a_deleted_row_is_absent(more):
    """It is while the call lasts or after it, and so is what was written meanwhile."""
    assert check_registers([*DELETED, *more]) == []


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ([write("c", 7, 8, 12, "3"), read("d", 9, 10, ABSENT)], "d saw r at -1 after c had 12"),
        ([write("c", 7, 8, 12, "3"), write("d", 9, 10, 14, "4", ABSENT)], "d wrote r at 14 for -1, after 12"),
        ([read("c", 2, 3, ABSENT)], "c saw r at -1 after a had 10"),
    ],
)
def test_a_deletion_takes_nothing_that_was_written_after_it(more, what):
    begun = DELETED if more[0].writes else [DELETED[0]._replace(begin=0, end=1), DELETED[1]._replace(begin=3)]
    assert what in check_registers([*begun, *more])


def test_a_deletion_in_doubt_may_come_late_and_a_refused_one_never():
    row, doubtful = write("a", 7, 8, 12, "1"), DELETED[1]._replace(outcome=UNKNOWN)
    gone = read("c", 9, 10, ABSENT)
    assert check_registers([doubtful, row, gone]) == []
    late = row._replace(begin_ms=doubtful.end_ms + LATE_MS + 1)
    assert check_registers([doubtful, late, gone]) == ["c saw r at -1 after a had 12"]
    assert check_registers([doubtful._replace(outcome=FAILED), row, gone]) == ["c saw r at -1 after a had 12"]
