"""The checker of look-ups by time finds each planted violation, and nothing in good answers."""

import pytest

from tests.simulation.time_lookups import TimeLookup, check_lookups

RECORDS = [(0, 100), (1, 110), (2, 90), (3, 120), (4, 115), (6, 130)]


def lookup(at_ms, offset):
    return TimeLookup("e0", at_ms, offset)


@pytest.mark.parametrize("good", [lookup(50, 0), lookup(105, 1), lookup(112, 2), lookup(112, 3), lookup(200, 7)])
def test_a_good_answer_has_no_problem(good):
    assert check_lookups([good], RECORDS, 0) == []


@pytest.mark.parametrize(
    ("bad", "offset"), [(lookup(105, 2), 1), (lookup(50, 7), 0), (lookup(112, 4), 3), (lookup(130, 7), 6)]
)
def test_each_skipped_record_is_told(bad, offset):
    assert check_lookups([bad], RECORDS, 0) == [f"{bad} skips the record at {offset}"]


def test_records_that_were_removed_may_be_skipped():
    assert check_lookups([lookup(50, 2)], RECORDS, 2) == []
