"""Moves of replicas: what the key becomes when one begins, changes, is cancelled, is finished (PROTOCOL H25)."""

from __future__ import annotations

import pytest
from headrace.placement.policy import RACK, parse_placement
from headrace.wire.errors import InvalidReplicationFactorError, InvalidRequestError, UnknownBrokerError
from headrace_coordinator.core.control import change_partition
from headrace_coordinator.core.election import RegisteredBroker, sessions_of
from headrace_coordinator.core.reassignment import check_target, plan_cancel, plan_move
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.partition_state import PartitionState, Replica, change, check_shape, check_step, hand_over, join
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.coordinator.partition_states import A, B, C, D, state


def test_a_move_adds_first_and_removes_last():
    """The wanted ones in their order, behind them those that are to go; leader and in-sync set stay."""
    after = plan_move(state(), (4, 2, 1), 1_000)
    assert (after.replicas, after.adding, after.removing) == ((4, 2, 1, 3), (4,), (3,))
    assert (after.copy_bytes_per_second, after.leader, after.leader_epoch) == (1_000, A, 5)
    assert set(after.in_sync) == {A, B, C}


def test_what_is_so_already_is_no_move():
    """Asked again for the same, also while it is under way."""
    assert plan_move(state(), (1, 2, 3), 7) is None
    under_way = plan_move(state(), (4, 2, 1), 1_000)
    assert plan_move(under_way, (4, 2, 1), 1_000) is None


def test_another_order_is_written_at_once():
    """Nothing has to be copied: only the preference changes."""
    after = plan_move(state(), (3, 2, 1), 7)
    assert (after.replicas, after.adding, after.removing, after.copy_bytes_per_second) == ((3, 2, 1), (), (), 0)
    assert after.leader == A


def test_the_throttle_of_a_move_under_way_is_changed():
    """Given again, it replaces the one in force, and nothing else changes."""
    under_way = plan_move(state(), (4, 2, 1), 1_000)
    after = plan_move(under_way, (4, 2, 1), 0)
    assert (after.copy_bytes_per_second, after.replicas, after.adding) == (0, (4, 2, 1, 3), (4,))


def test_a_changed_move_drops_what_it_had_not_copied():
    """Broker 4 had not caught up: it goes at once, and 5 comes in its place."""
    after = plan_move(plan_move(state(), (4, 2, 1), 0), (5, 2, 1), 0)
    assert (after.replicas, after.adding, after.removing) == ((5, 2, 1, 3), (5,), (3,))


@pytest.mark.parametrize("caught_up", [False, True])
def test_a_cancelled_move_is_back_where_it_was(caught_up):
    """An added one leaves at once, caught up or not, where enough stay without it."""
    under_way = plan_move(state(), (1, 2, 4), 5)
    if caught_up:
        under_way = join(under_way, D)
    after = plan_cancel(under_way)
    assert (after.replicas, after.adding, after.removing) == ((1, 2, 3), (), ())
    assert (after.in_sync, after.copy_bytes_per_second) == ((A, B, C), 0)


@pytest.mark.parametrize("needed", ["leader", "minimum"])
def test_a_cancelled_move_keeps_an_added_one_that_is_needed(needed):
    """The leader first hands over, or others catch up; then it goes as any removed one does."""
    before = {
        "leader": state(replicas=(1, 2, 4, 3), leader=D, in_sync=(A, B, D, C), adding=(4,), removing=(3,)),
        "minimum": state(replicas=(1, 2, 4, 3), leader=A, in_sync=(A, D), adding=(4,), removing=(3,)),
    }[needed]
    after = plan_cancel(before)
    assert (after.replicas, after.adding, after.removing) == ((1, 2, 3, 4), (), (4,))
    assert set(after.in_sync) == set(before.in_sync)


def test_nothing_is_cancelled_where_nothing_moves():
    """None: unchanged."""
    assert plan_cancel(state()) is None


LIVE = {
    1: RegisteredBroker(10),
    3: RegisteredBroker(30),
    4: RegisteredBroker(40),
    5: RegisteredBroker(50, drained=True),
    6: RegisteredBroker(60, stopping=True),
    7: RegisteredBroker(70, takes_no_replicas="its volume is too small"),
}


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ((), InvalidRequestError, "at least one"),
        ((1, 1), InvalidRequestError, "each once"),
        (tuple(range(1, 11)), InvalidReplicationFactorError, "more than 9"),
        ((1, 9), UnknownBrokerError, "broker 9 .* 1, 3, 4"),
        ((1, 5), UnknownBrokerError, "broker 5"),
        ((1, 6), UnknownBrokerError, "broker 6"),
        ((1, 7), UnknownBrokerError, "broker 7 .* its volume is too small"),
    ],
)
def test_bad_targets_are_refused(target, error, words):
    """Typed, and the message says what would be right."""
    with pytest.raises(error, match=words):
        check_target(state(), target, LIVE, RACK)


def test_a_registration_says_why_it_takes_no_replicas():
    """As the broker put it."""
    live = metadata_pb2.BrokerLive(broker_id=7, takes_no_replicas="its volume is too small")
    assert sessions_of([(7, 70, live)], ())[7] == LIVE[7]


def test_who_holds_the_partition_already_need_not_live():
    """Broker 2 is dead and stays a replica; broker 4 is new and lives."""
    check_target(state(), (4, 2, 1), LIVE, RACK)


def test_a_target_keeps_the_numbers_of_the_placement():
    """Other numbers are refused; a dead broker may be anywhere; the present replicas, in any order, always may be."""
    live = {1: RegisteredBroker(10, data_center="a"), 3: RegisteredBroker(30, data_center="b")}
    live |= {4: RegisteredBroker(40, data_center="a"), 7: RegisteredBroker(70, data_center="b")}
    policy = parse_placement("a:2,b:1")
    check_target(state(), (4, 1, 7), live, policy)
    check_target(state(), (2, 1, 7), live, policy)
    check_target(state(), (3, 2, 1), live, parse_placement("a:3"))
    check_target(state(removing=(3,), adding=(4,), replicas=(4, 2, 1, 3)), (1, 2, 4), live, parse_placement("b:3"))
    for target, found in [((1, 3, 7), "a:1,b:2"), ((1, 7), "a:1,b:1"), ((1, 2, 4, 7), "a:2,b:1,unknown:1")]:
        with pytest.raises(InvalidRequestError, match=f"are {found} by data center, and the topic has placement = a:2"):
            check_target(state(), target, live, policy)


@given(st.permutations(range(1, 7)), st.data())
def test_requests_in_any_order_reach_the_last_target(order, data):
    """I11 in every write; once all added ones are in sync the replicas are exactly the last target, never too few."""
    size = data.draw(st.integers(1, 4))
    entries = {broker_id: Replica(broker_id, 10 * broker_id) for broker_id in order}
    live = {broker_id: RegisteredBroker(entry.broker_epoch) for broker_id, entry in entries.items()}
    replicas = tuple(order[:size])
    found = PartitionState(replicas, entries[replicas[0]], 0, tuple(entries[b] for b in replicas), (), min(size, 2))
    target = replicas
    for _ in range(data.draw(st.integers(1, 4))):
        asked = data.draw(st.sampled_from(["move", "cancel", "catch up", "lead"]))
        after = None
        if asked == "move":
            wanted = tuple(data.draw(st.lists(st.sampled_from(order), min_size=1, max_size=4, unique=True)))
            after, target = plan_move(found, wanted, 0), wanted
        elif asked == "cancel":
            after = plan_cancel(found)
            target = (after and tuple(b for b in after.replicas if b not in after.removing)) or target
        elif asked == "catch up" and (missing := [b for b in found.replicas if found.replica_of(b) is None]):
            after = join(found, entries[data.draw(st.sampled_from(missing))])
        elif asked == "lead":
            found = change(found, leader=data.draw(st.sampled_from(found.in_sync)), in_sync=found.in_sync)
        if after is not None:
            check_shape(after)
            check_step(found, after)
            assert len(after.in_sync) >= min(len(found.in_sync), found.min_insync_replicas)
            assert after.leader == found.leader
            found = after
    for _ in range(30):
        missing = [b for b in found.replicas if found.replica_of(b) is None and b not in found.removing]
        decision = change_partition(found, live, 0)
        if decision is None and not missing:
            break
        found = join(found, entries[missing[0]]) if decision is None else decision.after
        if found.successors:
            found = hand_over(found, data.draw(st.sampled_from(found.successors)))
    assert set(found.replicas) == set(target)
    assert (found.adding, found.removing) == ((), ())
    assert found.leader is not None
