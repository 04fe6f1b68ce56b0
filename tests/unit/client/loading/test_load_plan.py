"""Which offsets a load takes next. Pure."""

import pytest
from headrace.client.loading.load_plan import MissingOffsets, TruncatedError, plan_load
from hypothesis import given
from hypothesis import strategies as st

LOGS = st.dictionaries(
    st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1
)


def test_a_new_table_begins_where_the_log_does():
    """Also where retention has removed the log's beginning: nothing of the table is lost by that."""
    plan = plan_load({}, {0: 10, 1: 0}, {0: 30, 1: 5})
    assert (dict(plan.starts), dict(plan.ends), plan.losses) == ({0: 10, 1: 0}, {0: 30, 1: 5}, ())
    assert plan.records == 25


def test_a_partition_that_is_new_is_loaded_from_its_first_record():
    """What retention has removed of it was never loaded."""
    assert plan_load({0: 7}, {0: 0, 1: 0}, {0: 9, 1: 5}).losses == ()
    plan = plan_load({0: 7}, {0: 0, 1: 2}, {0: 9, 1: 5})
    assert plan.losses == (MissingOffsets(1, 0, 2),)
    assert dict(plan.starts) == {0: 7, 1: 2}


def test_what_retention_removed_is_named():
    """Partition, wanted and earliest offset and the count."""
    plan = plan_load({0: 5, 1: 5}, {0: 9, 1: 0}, {0: 20, 1: 5})
    assert plan.losses == (MissingOffsets(0, 5, 9),)
    assert str(plan.losses[0]) == "partition 0 begins at offset 9 and the table ends at 5: 4 records were deleted"
    assert dict(plan.starts) == {0: 9, 1: 5}


def test_a_table_that_is_ahead_of_its_log_is_not_continued():
    """The offsets that come next mean other records than those that were loaded."""
    with pytest.raises(TruncatedError, match="another directory"):
        plan_load({0: 9, 1: 4}, {0: 0, 1: 0}, {0: 9, 1: 3})


@given(LOGS, st.integers(1, 200))
def test_commits_cover_the_backlog_without_gap_or_overlap(logs, limit):
    """Every commit moves some partition on, takes about `limit` records at most, and the last one ends at the end."""
    earliest = {partition: first for partition, (first, _, _) in logs.items()}
    positions = {partition: first + loaded for partition, (first, loaded, _) in logs.items()}
    latest = {partition: first + loaded + left for partition, (first, loaded, left) in logs.items()}
    plan = plan_load(positions, earliest, latest)
    at = dict(plan.starts)
    assert at == positions
    while plan.records:
        ends = plan.first(limit)
        taken = {partition: end - at[partition] for partition, end in ends.items()}
        assert all(count >= 0 for count in taken.values())
        assert 0 < sum(taken.values()) <= limit + len(taken)
        at = dict(ends)
        plan = plan.after(ends)
    assert at == latest
