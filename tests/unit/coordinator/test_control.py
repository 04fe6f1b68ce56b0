"""What the controller does to a partition: each step, and that all together come to rest (PROTOCOL section 1.2)."""

from __future__ import annotations

import dataclasses

import pytest
from headrace.partition.topic_configs import effective_min_insync_replicas
from headrace_coordinator.core.control import Step, change_partition, is_under_replicated, new_sessions
from headrace_coordinator.core.election import RegisteredBroker, carry_over, electable, is_session, sessions_of
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.partition_state import PartitionState, Replica, check_shape, check_step, hand_over
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.coordinator.partition_states import A, B, C, D, state


def live(*entries, **changed):
    """Sessions of these entries; `stopping` and `drained` name brokers, `suspected` too; `sessions` come on top."""
    sessions = {entry.broker_id: RegisteredBroker(entry.broker_epoch) for entry in entries}
    for broker_id in changed.get("stopping", ()):
        sessions[broker_id] = dataclasses.replace(sessions[broker_id], stopping=True)
    for broker_id in changed.get("drained", ()):
        sessions[broker_id] = dataclasses.replace(sessions[broker_id], drained=True)
    for broker_id in changed.get("suspected", ()):
        sessions[broker_id] = dataclasses.replace(sessions[broker_id], suspected_by=1)
    return sessions | changed.get("sessions", {})


def decide(found, sessions, minimum=0, *, rebalance=False):
    decision = change_partition(found, sessions, minimum, rebalance=rebalance)
    return (None, None) if decision is None else (decision.step, decision.after)


def settle(found, sessions, minimum=0, *, rebalance=False):
    """Apply what the controller says until it says nothing; the steps and the last state."""
    steps = []
    while (decision := change_partition(found, sessions, minimum, rebalance=rebalance)) is not None:
        check_shape(decision.after)
        check_step(found, decision.after)
        steps.append(decision.step)
        found = decision.after
        if found.successors:
            found = hand_over(found, found.successors[0], leaves=sessions[found.leader.broker_id].stopping)
        assert len(steps) < 20, f"no rest: {steps}"
    return steps, found


def test_a_healthy_partition_is_left_alone():
    """Level-triggered: where nothing is wrong nothing is written."""
    assert change_partition(state(), live(A, B, C), 0, rebalance=True) is None


def test_the_dead_leave_while_the_leader_lives():
    """Shrink by the controller: session not live. Enough stay, so no leader becomes eligible."""
    step, after = decide(state(), live(A, B))
    assert (step, after.leader, after.leader_epoch) == (Step.SWEEP, A, 5)
    assert (after.in_sync, after.eligible_leaders) == ((A, B), ())


def test_the_dead_below_the_minimum_become_eligible():
    """I4, KIP-966: who left while fewer than min_insync_replicas stayed holds every committed record."""
    _, after = decide(state(), live(A))
    assert (after.in_sync, after.eligible_leaders) == ((A,), (B, C))


def test_a_clean_return_is_rewritten_under_a_living_leader():
    """H16: the entry gets the session that resumed it; the leader's epoch stays."""
    step, after = decide(state(), live(A, C, sessions={2: RegisteredBroker(44, resumes=20, clean=True)}))
    assert (step, after.in_sync, after.leader_epoch) == (Step.SWEEP, (A, Replica(2, 44), C), 5)
    assert new_sessions(state(), after) == (Replica(2, 44),)


def test_an_election_compares_the_session_of_who_is_to_lead():
    """I12: also where the key named it before: it may be over when the write lands."""
    step, after = decide(state(), live(B, C))
    assert step is Step.ELECT
    assert new_sessions(state(), after) == (after.leader,)


@pytest.mark.parametrize(
    "session", [RegisteredBroker(44), RegisteredBroker(44, resumes=20), RegisteredBroker(44, resumes=30, clean=True)]
)
def test_a_return_in_doubt_is_dropped_and_never_eligible(session):
    """H17: an entry of doubt counts for nothing, although the set falls below the minimum."""
    _, after = decide(state(), live(A, sessions={2: session}))
    assert (after.in_sync, after.eligible_leaders) == ((A,), (C,))


def test_an_eligible_entry_in_doubt_is_dropped_while_the_leader_lives():
    """So that a later clean restart cannot bring it back."""
    before = state(in_sync=(A,), eligible_leaders=(B, C))
    _, after = decide(before, live(A, C, sessions={2: RegisteredBroker(44, resumes=20)}))
    assert after.eligible_leaders == (C,)


@pytest.mark.parametrize("how", ["stopping", "drained"])
def test_leadership_leaves_a_draining_broker(how):
    """H24: the leader is asked, once, and leads on until it hands over; a stopping one leaves the in-sync set, too."""
    sessions = live(A, B, C, **{how: [1]})
    step, asked = decide(state(), sessions)
    assert (step, asked.leader, asked.leader_epoch, asked.successors) == (Step.RELIEVE, A, 5, (B, C))
    assert new_sessions(state(), asked) == ()
    assert decide(asked, sessions) == (None, None)
    assert decide(asked, sessions, rebalance=True) == (None, None)
    _, after = settle(state(), sessions)
    assert (after.leader, after.leader_epoch, after.unclean, after.successors) == (B, 6, False, ())
    assert after.in_sync == ((B, C) if how == "stopping" else (A, B, C))


def test_a_stopping_leader_stays_in_sync_where_the_minimum_needs_it():
    """Never below min_insync_replicas by the controller's wish."""
    before = state(in_sync=(A, B))
    _, after = settle(before, live(A, B, C, stopping=[1]))
    assert (after.leader, after.in_sync) == (B, (A, B))


def test_leadership_stays_where_no_broker_is_better():
    """Draining is a preference: a broker that cannot be replaced leads on."""
    assert decide(state(), live(A, B, C, drained=[1, 2, 3])) == (None, None)
    assert decide(state(in_sync=(A,), eligible_leaders=()), live(A, B, drained=[1]))[0] is None


def test_a_stopping_leader_is_followed_by_a_drained_one_where_no_other_is():
    """What ends soon is worse than what is out of service."""
    _, after = decide(state(), live(A, B, C, stopping=[1], drained=[2, 3]))
    assert after.successors == (B, C)


def test_a_leader_is_asked_for_nobody_who_bears_more_than_it_does():
    """What speaks against a successor by now counts; one that left the in-sync set is asked for no more."""
    asked = state(leader=B, successors=(A,))
    assert decide(asked, live(A, B, C)) == (None, None)
    step, after = decide(asked, live(A, B, C, drained=[1]))
    assert (step, after.leader, after.successors) == (Step.RELIEVE, B, ())
    _, after = decide(asked, live(B, C))
    assert (after.in_sync, after.successors) == ((B, C), ())
    step, after = decide(asked, live(A, B, C, drained=[2]))
    assert (step, after.successors) == (Step.RELIEVE, (A, C))


def test_failure_reports_order_equals_and_move_no_leader():
    """It changes no in-sync set, and moves no leadership."""
    assert decide(state(), live(A, B, C, suspected=[1])) == (None, None)
    assert decide(state(), live(B, C, suspected=[2]))[1].leader == C
    assert decide(state(), live(A, B, C, drained=[1], suspected=[2]))[1].successors == (C, B)
    assert decide(state(), live(B, C, suspected=[2, 3]))[1].leader == B


def test_a_stopping_follower_leaves_the_in_sync_set():
    """KIP-841: its end stalls no partition."""
    step, after = decide(state(), live(A, B, C, stopping=[3]))
    assert (step, after.in_sync, after.eligible_leaders, after.leader_epoch) == (Step.LEAVE, (A, B), (), 5)


def test_of_several_stopping_followers_as_many_leave_as_the_minimum_allows():
    """Never below min_insync_replicas by the controller's wish."""
    steps, after = settle(state(), live(A, B, C, stopping=[2, 3]))
    assert (steps, after.in_sync) == ([Step.LEAVE], (A, B))


MOVE = {"replicas": (1, 2, 4, 3), "adding": (4,), "removing": (3,), "copy_bytes_per_second": 7}


def test_a_move_waits_for_what_is_added():
    """H25: no replica is removed before the added one is in sync; the minimum stays that of the former replicas."""
    assert decide(state(**MOVE), live(A, B, C, D)) == (None, None)


def test_a_move_is_finished_when_the_added_are_in_sync():
    """H25: then the removed leave replicas and in-sync set in one write, and the throttle ends."""
    before = state(**MOVE, in_sync=(A, B, C, D))
    step, after = decide(before, live(A, B, C, D))
    assert (step, after.replicas, after.in_sync) == (Step.FINISH_MOVE, (1, 2, 4), (A, B, D))
    assert (after.adding, after.removing, after.copy_bytes_per_second) == ((), (), 0)
    assert (after.leader, after.leader_epoch) == (A, 5)


def test_a_removed_leader_hands_over_first():
    """H25, H24: leadership moves to a member that stays, then the move is finished."""
    before = state(**MOVE, leader=C, in_sync=(A, B, C, D))
    steps, after = settle(before, live(A, B, C, D))
    assert steps == [Step.RELIEVE, Step.FINISH_MOVE]
    assert (after.leader, after.replicas, after.leader_epoch) == (A, (1, 2, 4), 6)


def test_a_removed_leader_hands_over_even_to_a_drained_one():
    """And does not get it back before the move is finished: no flapping."""
    before = state(replicas=(4, 1), leader=A, in_sync=(A, D), adding=(4,), removing=(1,), min_insync_replicas=1)
    steps, after = settle(before, live(A, D, drained=[4]))
    assert steps == [Step.RELIEVE, Step.FINISH_MOVE]
    assert (after.leader, after.replicas, after.in_sync) == (D, (4,), (D,))


def test_leadership_moves_once_where_several_things_speak_against_members():
    """Straight to the least burdened, not by way of one that would have to hand over again."""
    before = state(**MOVE, in_sync=(A, B, C, D))
    sessions = live(A, B, C, D, stopping=[1], drained=[2, 4])
    steps, after = settle(before, sessions)
    assert steps == [Step.RELIEVE, Step.FINISH_MOVE]
    assert (after.leader, after.leader_epoch) == (B, 6)


def test_a_lower_minimum_waits_for_a_leader():
    """Without one nothing is committed, so that the eligible leaders remain complete and one of them can return."""
    before = state(leader=None, in_sync=(A,), eligible_leaders=(B,))
    assert settle(before, {}, 1) == ([], before)
    steps, after = settle(before, live(B), 1)
    assert (steps, after.leader, after.min_insync_replicas) == ([Step.ELECT, Step.CONFIGURE], B, 1)
    assert settle(before, {}, 3)[0] == [Step.CONFIGURE]


def test_a_move_waits_rather_than_leave_fewer_than_the_minimum_in_sync():
    """H25: never leaves isr < min_isr."""
    before = state(**MOVE, in_sync=(A, C, D))
    step, after = decide(before, live(A, B, C, D), 3)
    assert (step, after.min_insync_replicas) == (Step.CONFIGURE, 3)
    assert decide(after, live(A, B, C, D), 3) == (None, None)


def test_a_larger_replication_factor_raises_the_minimum_when_it_is_reached():
    """Adding replicas refuses no writes meanwhile."""
    growing = state(replicas=(1, 2, 3), in_sync=(A, B), adding=(2, 3), min_insync_replicas=1)
    assert decide(growing, live(A, B, C)) == (None, None)
    step, after = decide(dataclasses.replace(growing, in_sync=(A, B, C)), live(A, B, C))
    assert (step, after.min_insync_replicas) == (Step.FINISH_MOVE, 2)


def test_a_smaller_replication_factor_lowers_the_minimum_when_it_is_reached():
    """Else the removed ones could never go."""
    shrinking = state(removing=(2, 3))
    steps, after = settle(shrinking, live(A, B, C))
    assert (steps, after.replicas, after.min_insync_replicas) == ([Step.FINISH_MOVE], (1,), 1)


def test_the_first_replica_leads_again_on_request():
    """Only then, and only where it is in sync, not draining and not suspected."""
    before = state(leader=B)
    assert decide(before, live(A, B, C)) == (None, None)
    step, after = decide(before, live(A, B, C), rebalance=True)
    assert (step, after.leader, after.leader_epoch, after.successors) == (Step.PREFER, B, 5, (A,))
    assert decide(after, live(A, B, C), rebalance=True) == (None, None)
    assert settle(before, live(A, B, C), rebalance=True)[1].leader == A
    assert decide(state(leader=B, in_sync=(B, C)), live(A, B, C), rebalance=True) == (None, None)
    assert decide(before, live(A, B, C, drained=[1]), rebalance=True) == (None, None)
    assert decide(before, live(A, B, C, suspected=[1]), rebalance=True) == (None, None)
    assert decide(state(**MOVE, leader=B), live(A, B, C), rebalance=True) == (None, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, False), ({"in_sync": (A, B)}, True), (MOVE, False), (MOVE | {"in_sync": (A, B, D)}, True)],
    ids=["complete", "one missing", "one being added", "one being removed is missing"],
)
def test_a_replica_that_is_only_being_added_is_not_missed(fields, expected):
    """A move makes no partition under-replicated."""
    assert is_under_replicated(state(**fields)) is expected


def test_sessions_record_stopping_drained_and_suspected_brokers():
    """A failure report counts once per registered broker, and never of itself; a drained broker need not be
    registered.
    """
    value = metadata_pb2.BrokerLive
    brokers = [
        (2, 20, value(suspected_brokers=[1, 1, 3, 2])),
        (1, 10, value(resumes=4, clean=True)),
        (3, 30, value(draining=True, suspected_brokers=[1])),
    ]
    assert sessions_of(brokers, {2, 9}) == {
        1: RegisteredBroker(10, 4, True, suspected_by=2),
        2: RegisteredBroker(20, drained=True),
        3: RegisteredBroker(30, stopping=True, suspected_by=1),
    }


@st.composite
def situations(draw):
    """A key of right shape, any sessions, any setting."""
    count = draw(st.integers(1, 5))
    replicas = tuple(draw(st.permutations(range(1, count + 1))))
    minimum = draw(st.integers(1, count))
    roles = [draw(st.sampled_from(["in sync", "in sync", "eligible", "out"])) for _ in replicas]
    moves = [draw(st.sampled_from(["stays", "stays", "adding", "removing"])) for _ in replicas]
    entries = [Replica(broker_id, draw(st.integers(10, 12))) for broker_id in replicas]
    in_sync = tuple(entry for entry, role in zip(entries, roles, strict=True) if role == "in sync")
    eligible = tuple(entry for entry, role in zip(entries, roles, strict=True) if role == "eligible")
    removing = tuple(broker_id for broker_id, move in zip(replicas, moves, strict=True) if move == "removing")
    found = PartitionState(
        replicas,
        draw(st.sampled_from([None, *in_sync])),
        draw(st.integers(0, 5)),
        in_sync,
        eligible if len(in_sync) < minimum else (),
        minimum,
        adding=tuple(broker_id for broker_id, move in zip(replicas, moves, strict=True) if move == "adding"),
        removing=removing if len(removing) < count else (),
    )
    check_shape(found)
    sessions = draw(
        st.dictionaries(
            st.sampled_from(replicas),
            st.builds(
                RegisteredBroker,
                st.integers(10, 14),
                st.integers(0, 13),
                st.booleans(),
                st.booleans(),
                st.booleans(),
                st.integers(0, 2),
            ),
        )
    )
    return found, sessions, draw(st.integers(0, 4)), draw(st.booleans())


def check_decision(before, sessions, setting, decision):
    """What every single write keeps."""
    after = decision.after
    check_shape(after)
    check_step(before, after)
    members = {entry.broker_id for entry in before.in_sync + before.eligible_leaders}
    assert {entry.broker_id for entry in after.in_sync + after.eligible_leaders} <= members
    if after.leader is not None and after.leader != before.leader:
        assert is_session(after.leader, sessions)
        assert after.leader in electable(before, sessions) or after.unclean
    if after.unclean and not before.unclean:
        assert len(before.replicas) == 1
    if decision.step in (Step.RELIEVE, Step.PREFER):
        assert (after.leader, after.in_sync) == (before.leader, before.in_sync)
    gone = {entry.broker_id for entry in before.in_sync} - {entry.broker_id for entry in after.in_sync}
    alive = {entry.broker_id for entry in before.in_sync if is_session(entry, sessions)}
    if decision.step in (Step.LEAVE, Step.RELIEVE, Step.FINISH_MOVE):
        assert len(after.in_sync) >= min(len(before.in_sync), after.min_insync_replicas)
    elif before.leader is not None and is_session(before.leader, sessions):
        assert not gone & alive
    if len(before.replicas) > 1:
        _, doubtful = carry_over(before.in_sync + before.eligible_leaders, sessions, durable=before.durable)
        if decision.step in (Step.ELECT, Step.SWEEP):
            assert not set(doubtful) & {entry.broker_id for entry in after.in_sync + after.eligible_leaders}
    if decision.step is not Step.FINISH_MOVE:
        assert after.replicas == before.replicas
        assert (after.adding, after.removing) == (before.adding, before.removing)
    else:
        assert set(before.adding) <= {entry.broker_id for entry in after.in_sync}
        assert set(after.replicas) == set(before.replicas) - set(before.removing)
        assert after.min_insync_replicas == effective_min_insync_replicas(setting, len(after.replicas))
        assert len(after.in_sync) >= after.min_insync_replicas
    if decision.step is Step.LEAVE:
        assert all(sessions[broker_id].stopping for broker_id in gone)


@settings(max_examples=500)
@given(situations(), st.booleans())
@example(
    (
        PartitionState((4, 1), A, 0, (D, A), (), 1, adding=(4,), removing=(1,)),
        {1: RegisteredBroker(10), 4: RegisteredBroker(40, drained=True)},
        0,
        True,
    ),
    True,
)
def test_whatever_the_key_the_controller_comes_to_rest_and_breaks_nothing(situation, hands_over):
    """I3, I4, I11, I12, and no flapping: at rest after at most one write a member and a few more."""
    found, sessions, setting, rebalance = situation
    for _ in range(2 * len(found.replicas) + 6):
        decision = change_partition(found, sessions, setting, rebalance=rebalance)
        if decision is None:
            break
        check_decision(found, sessions, setting, decision)
        found = decision.after
        if found.successors and hands_over:
            found = hand_over(found, found.successors[-1], leaves=sessions[found.leader.broker_id].stopping)
    else:
        pytest.fail(f"no rest: {found}")
    if found.leader is None:
        assert not electable(found, sessions)
    else:
        assert all(is_session(entry, sessions) for entry in found.in_sync)
        assert is_session(found.leader, sessions)
