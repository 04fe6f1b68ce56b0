"""Who leaves a partition's key, and who stays although its log failed."""

from __future__ import annotations

import pytest
from headrace_server.partition_state import PartitionState, Replica, leave_failed

A, B, C = Replica(1, 10), Replica(2, 11), Replica(3, 12)


def state(in_sync: tuple[Replica, ...], eligible: tuple[Replica, ...] = ()) -> PartitionState:
    return PartitionState(
        (1, 2, 3), in_sync[0] if in_sync else None, 4, in_sync, eligible, min_insync_replicas=2 if eligible else 1
    )


@pytest.mark.parametrize("damaged", [False, True])
def test_a_failed_replica_leaves_where_others_are_in_sync(damaged: bool) -> None:
    """H33, H34: out of in-sync set, eligible leaders and lead."""
    after = leave_failed(state((A, B)), 1, damaged=damaged)
    assert after is not None
    assert (after.leader, after.in_sync, after.eligible_leaders, after.leader_epoch) == (None, (B,), (), 5)


def test_the_last_in_sync_replica_stays_named_after_an_io_error() -> None:
    """A restart finds what was flushed; without its name nobody could be elected again."""
    assert leave_failed(state((A,)), 1, damaged=False) is None
    assert leave_failed(state((A,), eligible=(B,)), 1, damaged=False) is None


def test_a_damaged_replica_is_counted_on_by_nobody() -> None:
    """H33: also as the last one; then an administrator has the word."""
    after = leave_failed(state((A,), eligible=(B,)), 1, damaged=True)
    assert after is not None
    assert (after.leader, after.in_sync, after.eligible_leaders) == (None, (), (B,))


def test_a_replica_that_is_not_named_has_nothing_to_leave() -> None:
    """No write for nothing."""
    assert leave_failed(state((A, B)), 3, damaged=True) is None
