"""A broker that gets another log in the same session: what it had before counts no more (H17, H33)."""

from __future__ import annotations

import pytest
from headrace.partition.producers import ProducerWindows
from headrace.wire.errors import FencedBrokerError
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_broker.core.messages import Action, EpochPersisted, FollowerFetched, SessionStarted, StateSeen, Ticked
from headrace_broker.core.replica import PartitionReplica
from headrace_broker.core.replica_fetch import FetchRequest, check_fetch
from headrace_server.partition_state import Move, PartitionState, Replica, change, leave_failed

ME, OTHER = Replica(1, 10), Replica(2, 11)


def leading(state: PartitionState) -> PartitionReplica:
    replica = PartitionReplica(
        1,  # type: ignore[arg-type]
        log_start_offset=Offset(0),
        log_end_offset=Offset(5),
        flushed_offset=Offset(5),
        high_watermark=Offset(0),
        last_epoch=LeaderEpoch(0),
        flushed_only=False,
        producers=ProducerWindows(max_producers=10, expiry_ms=1_000),
    )
    replica.handle(SessionStarted(ME.broker_epoch))
    replica.handle(StateSeen(state, 20))
    replica.handle(EpochPersisted(LeaderEpoch(state.leader_epoch), Offset(5)))
    replica.handle(FollowerFetched(OTHER, Offset(5), Offset(5), 1, may_join=True))
    return replica


def fetch(partition_epoch: int) -> FetchRequest:
    return FetchRequest(OTHER, 0, 1, 5, 5, 0, 0, 0, partition_epoch)


def ticked(replica: PartitionReplica) -> list[Action]:
    return replica.handle(Ticked(2, {OTHER: 2}, {ME, OTHER}))


def test_a_replica_moved_away_and_back_begins_anew() -> None:
    """Its progress is forgotten, and a fetch that was on its way all the time is refused; the next one counts."""
    state = PartitionState((1, 2), ME, 0, (ME, OTHER))
    replica = leading(state)
    away = change(state, leader=ME, in_sync=(ME,), move=Move((1,)))
    back = change(away, leader=ME, in_sync=(ME,), move=Move((1, 2), adding=(2,)))
    replica.handle(StateSeen(away, 21))
    replica.handle(StateSeen(back, 22))
    assert replica.check_leading(-1).followers.get(OTHER) is None
    assert ticked(replica) == []
    with pytest.raises(FencedBrokerError):
        check_fetch(replica, fetch(state.partition_epoch))
    check_fetch(replica, fetch(back.partition_epoch))


def test_a_removal_that_the_leader_missed_is_seen_by_the_adding() -> None:
    """A view that reads everything anew shows only the last of several writes; `adding` may be as it was before."""
    state = PartitionState((1, 2), ME, 0, (ME,), adding=(2,))
    replica = leading(state)
    away = change(state, leader=ME, in_sync=(ME,), move=Move((1,)))
    back = change(away, leader=ME, in_sync=(ME,), move=Move((1, 2), adding=(2,)))
    replica.handle(StateSeen(back, 22))
    assert replica.check_leading(-1).followers.get(OTHER) is None
    with pytest.raises(FencedBrokerError):
        check_fetch(replica, fetch(0))


def test_a_replica_that_left_is_not_taken_in_by_what_it_said_before() -> None:
    """Its log was corrupt and is set aside: the leader waits for what it says as of the key without it."""
    state = PartitionState((1, 2), ME, 0, (ME, OTHER))
    replica = leading(state)
    left = leave_failed(state, 2, corrupt=True)
    assert left is not None
    replica.handle(StateSeen(left, 21))
    assert ticked(replica) == []
    with pytest.raises(FencedBrokerError):
        check_fetch(replica, fetch(0))
    check_fetch(replica, fetch(left.partition_epoch))
