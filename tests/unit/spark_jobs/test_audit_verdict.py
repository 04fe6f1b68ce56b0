"""What can be said of a window from claims and counts. Pure."""

import pytest
from spark_jobs.audit_verdict import (
    Arrived,
    Claimed,
    Limits,
    State,
    Verdict,
    WindowSizeError,
    judge,
    overall,
    window_sizes,
)

MINUTE = 60_000
NOW = Limits(now_ms=100 * MINUTE)


def claimed(start=0, *, sent=10, acknowledged=10, failed=0, open_producers=(), window_ms=MINUTE, topic="t"):
    return Claimed(topic, start, window_ms, sent, acknowledged, failed, 1, open_producers)


def verdict(window, arrived=None, limits=NOW) -> Verdict:
    claims = [window]
    counts = {} if arrived is None else {(window.topic, window.start_ms): arrived}
    (found,) = judge(claims, counts, window_sizes(claims), limits)
    return found


@pytest.mark.parametrize(
    ("window", "arrived", "state", "missing", "duplicates"),
    [
        (claimed(), Arrived(10), State.COMPLETE, 0, 0),
        (claimed(), Arrived(9), State.INCOMPLETE, 1, 0),
        (claimed(), None, State.INCOMPLETE, 10, 0),
        (claimed(), Arrived(12), State.INCOMPLETE, 0, 2),
        # One missing and one duplicate cancel out unless an identity distinguishes records.
        (claimed(), Arrived(10, distinct=9), State.INCOMPLETE, 1, 1),
        (claimed(), Arrived(10, distinct=10), State.COMPLETE, 0, 0),
        # What was never answered for may be there or not; what failed may not.
        (claimed(sent=12, acknowledged=10), Arrived(10), State.COMPLETE, 0, 0),
        (claimed(sent=12, acknowledged=10), Arrived(12), State.COMPLETE, 0, 0),
        (claimed(sent=12, acknowledged=10, failed=2), Arrived(12), State.INCOMPLETE, 0, 2),
        # Who was killed may have sent any number more, but not fewer.
        (claimed(open_producers=("a@h",)), Arrived(10), State.UNCONFIRMED, 0, 0),
        (claimed(open_producers=("a@h",)), Arrived(99), State.UNCONFIRMED, 0, 0),
        (claimed(open_producers=("a@h",)), Arrived(9), State.INCOMPLETE, 1, 0),
        (claimed(open_producers=("a@h",)), Arrived(12, distinct=11), State.INCOMPLETE, 0, 1),
        # Late records are there all the same.
        (claimed(), Arrived(10, late=4), State.COMPLETE, 0, 0),
    ],
)
def test_a_window_that_is_over(window, arrived, state, missing, duplicates):
    """At least what was acknowledged, at most what may have been written."""
    found = verdict(window, arrived)
    assert (found.state, found.missing, found.duplicates) == (state, missing, duplicates)
    assert found.late == (arrived.late if arrived else 0)


def test_a_window_is_open_until_its_last_claims_may_have_come():
    """The grace runs from its end; a window that is settled is judged at once."""
    window = claimed(start=99 * MINUTE, open_producers=("a@h",))
    assert verdict(window, Arrived(3), Limits(100 * MINUTE, 5_000)).state is State.OPEN
    assert verdict(window, Arrived(3), Limits(100 * MINUTE + 4_999, 5_000)).missing == 0
    assert verdict(window, Arrived(3), Limits(100 * MINUTE + 5_000, 5_000)).state is State.INCOMPLETE
    assert verdict(claimed(start=99 * MINUTE), Arrived(3), Limits(99 * MINUTE)).state is State.INCOMPLETE


def test_what_retention_has_begun_to_remove_is_not_called_missing():
    """Up to the first record that is left."""
    limits = Limits(100 * MINUTE, removed_before_ms={"t": 3 * MINUTE + 5})
    assert verdict(claimed(start=3 * MINUTE), Arrived(2), limits).state is State.REMOVED
    assert verdict(claimed(start=4 * MINUTE), Arrived(2), limits).state is State.INCOMPLETE
    assert verdict(claimed(start=0, topic="other"), Arrived(2), limits).state is State.INCOMPLETE


def test_unclaimed_records_are_reported_but_not_those_before_the_first_claim():
    """Records before it were not counted."""
    claims = [claimed(2 * MINUTE)]
    arrived = {("t", start * MINUTE): Arrived(10) for start in (1, 2, 3)}
    found = judge(claims, arrived, window_sizes(claims), NOW)
    assert [(entry.start_ms, entry.state) for entry in found] == [
        (2 * MINUTE, State.COMPLETE),
        (3 * MINUTE, State.UNCLAIMED),
    ]


def test_producers_may_count_in_windows_that_fit_into_each_other():
    """Judged in the largest; sizes that do not fit are an error that names them."""
    claims = [
        claimed(0),
        claimed(MINUTE, sent=5, acknowledged=5),
        claimed(0, window_ms=2 * MINUTE, sent=1, acknowledged=1),
    ]
    sizes = window_sizes(claims)
    (found,) = judge(claims, {("t", 0): Arrived(16)}, sizes, NOW)
    assert (found.state, found.acknowledged, found.window_ms) == (State.COMPLETE, 16, 2 * MINUTE)
    with pytest.raises(WindowSizeError, match="60000 ms, 90000 ms"):
        window_sizes([claimed(0), claimed(0, window_ms=90_000)])


def test_the_worst_window_decides():
    """Missing over undecided over complete; open and removed windows say nothing."""
    complete, incomplete = verdict(claimed(), Arrived(10)), verdict(claimed())
    unconfirmed = verdict(claimed(open_producers=("a@h",)), Arrived(10))
    still_open = verdict(claimed(100 * MINUTE, open_producers=("a@h",)), Arrived(1))
    assert overall([complete, still_open]) is State.COMPLETE
    assert overall([complete, unconfirmed]) is State.UNCONFIRMED
    assert overall([incomplete, unconfirmed, complete]) is State.INCOMPLETE
