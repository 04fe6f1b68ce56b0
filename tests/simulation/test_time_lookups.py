"""The checker of look-ups by time finds each planted violation, and nothing in good answers."""

import pytest

from tests.simulation.time_lookups import TimedBatch, TimeLookup, check_lookups

BATCHES = [
    TimedBatch(0, 1, True, [(0, 100), (1, 110)]),
    TimedBatch(2, 1, True, [(2, 90), (3, 120), (4, 115)]),
    TimedBatch(5, 2, False, [(6, 130)]),
    TimedBatch(8, 2, True, [(8, 140)]),
]
APPENDED = {(0, 1): 10, (2, 1): 20, (8, 2): 80}


def lookup(at_ms, offset, begin_ms=90):
    return TimeLookup("e0", at_ms, offset, begin_ms)


@pytest.mark.parametrize(
    "good",
    [
        lookup(50, 0),
        lookup(105, 1),
        lookup(112, 2),  # At or before the record, in a compressed batch.
        lookup(112, 3),
        lookup(125, 5),
        lookup(200, 9),
        lookup(200, 8, begin_ms=70),  # The end at that time.
    ],
)
def test_a_good_answer_has_no_problem(good):
    assert check_lookups([good], BATCHES, 0, APPENDED) == []


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (lookup(105, 2), "skips the record at 1"),
        (lookup(50, 9), "skips the record at 0"),
        (lookup(112, 4), "skips the record at 3"),
        (lookup(125, 4), "begins before the time, in the batch at 2"),
        (lookup(200, 8), "begins before the time, in the batch at 8"),
    ],
)
def test_each_violation_is_told(bad, what):
    found = check_lookups([bad], BATCHES, 0, APPENDED)
    assert any(what in problem for problem in found), found


def test_records_that_were_removed_may_be_skipped():
    assert check_lookups([lookup(50, 2)], BATCHES, 2, APPENDED) == []
