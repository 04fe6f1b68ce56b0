"""The one function that changes the members of a partition (I4, I11, H25)."""

from headrace_server.partition_state import Move, PartitionState, Replica, change


def test_who_is_moved_away_is_in_no_set():
    """Below the minimum those who leave become eligible, but for those who hold the partition no more."""
    first, second, third = Replica(1, 10), Replica(2, 11), Replica(3, 12)
    before = PartitionState((1, 2, 3), first, 0, (first, second, third), min_insync_replicas=3)
    after = change(before, leader=first, in_sync=[first], move=Move((1, 2)))
    assert after.replicas == (1, 2)
    assert after.eligible_leaders == (second,)
