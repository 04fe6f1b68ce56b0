"""PROTOCOL section 1.2, Election: one test a sentence, and the invariants over random keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_coordinator.core.election import RegisteredBroker, elect, elect_uncleanly
from headrace_server.partition_state import FetchFence, PartitionState, Replica, change, check_shape, leave_failed
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.coordinator.partition_states import A, B, C, state


def live(*entries, **changed):
    """Sessions of these entries; `resumed` are sessions by broker id that came after."""
    sessions = {entry.broker_id: RegisteredBroker(entry.broker_epoch) for entry in entries}
    return sessions | {int(number): session for number, session in changed.get("resumed", {}).items()}


def test_a_live_leader_stays():
    """leader's session not live -> ...: otherwise nothing is written."""
    assert elect(state(), live(A)) is None


def test_first_in_replica_order_that_is_in_sync_and_live():
    """first in replica order that is in isr and live."""
    assert elect(state(), live(B, C)).leader == B
    assert elect(state(replicas=(1, 3, 2)), live(B, C)).leader == C
    assert elect(state(in_sync=(A, C)), live(B, C)).leader == C


def test_epochs_rise_by_one():
    """lepoch +1 at every change of leader; pepoch +1 at every write (I11)."""
    after = elect(state(), live(B))
    assert (after.leader_epoch, after.partition_epoch) == (6, 10)


def test_the_dead_leave_the_in_sync_set_with_the_election():
    """Shrink by the controller: session not live. Enough stay, so no replica becomes eligible (I4)."""
    after = elect(state(), live(B, C))
    assert after.in_sync == (B, C)
    assert after.eligible_leaders == ()


def test_who_leaves_below_the_minimum_becomes_eligible_with_its_session():
    """removed members go to ELR with their bepoch iff |new isr| < min_isr."""
    after = elect(state(), live(C))
    assert after.in_sync == (C,)
    assert after.eligible_leaders == (A, B)


def test_else_in_elr_and_live_and_isr_is_it_alone():
    """else in elr and live (isr := {it}); the dead member of isr stays eligible."""
    before = state(in_sync=(A,), eligible_leaders=(B, C))
    after = elect(before, live(C))
    assert after.leader == C
    assert after.in_sync == (C,)
    assert after.eligible_leaders == (A, B)


def test_in_sync_comes_before_eligible():
    """isr first, even where an eligible one comes earlier in replica order."""
    before = state(leader=None, in_sync=(C,), eligible_leaders=(B,))
    assert elect(before, live(B, C)).leader == C


def test_else_there_is_no_leader():
    """else leader=None, in the next epoch; members stay what they were."""
    after = elect(state(), live())
    assert after.leader is None
    assert (after.leader_epoch, after.partition_epoch) == (6, 10)
    assert after.in_sync == (A, B, C)


def test_no_leader_is_written_once():
    """Level-triggered: where nothing changes nothing is written."""
    assert elect(state(leader=None), live()) is None


def test_never_outside_in_sync_and_eligible():
    """H20, H21: a live replica that is neither is not elected."""
    after = elect(state(in_sync=(A,), eligible_leaders=(B,)), live(C))
    assert after.leader is None
    assert after.in_sync == (A,)


@pytest.mark.parametrize("resumes", [10, 4])
def test_a_clean_resume_counts_and_is_rewritten(resumes):
    """An entry (b,e) whose broker now has session e' counts, rewritten to e', if its storage is continuous since e."""
    sessions = live(resumed={1: RegisteredBroker(44, resumes=resumes, clean=True)})
    after = elect(state(), sessions)
    assert after.leader == Replica(1, 44)
    assert after.leader_epoch == 6
    assert Replica(1, 44) in after.in_sync


@pytest.mark.parametrize(
    "session",
    [
        RegisteredBroker(44, resumes=10, clean=False),
        RegisteredBroker(44, resumes=0, clean=True),
        RegisteredBroker(44, resumes=11, clean=True),
    ],
    ids=["not clean", "new storage", "broken after the entry's session"],
)
def test_otherwise_it_is_dropped_and_not_to_elr(session):
    """... otherwise it is dropped, not to ELR, although the set falls below the minimum."""
    after = elect(state(), live(C, resumed={1: session}))
    assert after.leader == C
    assert after.in_sync == (C,)
    assert after.eligible_leaders == (B,)


def test_a_dirty_return_is_dropped_also_without_a_possible_leader():
    """The entry goes with the first look, so that a later clean restart cannot bring it back."""
    before = state(leader=None, in_sync=(A, B))
    after = elect(before, live(resumed={1: RegisteredBroker(44, resumes=10, clean=False)}))
    assert after.in_sync == (B,)
    assert after.eligible_leaders == ()
    assert after.leader_epoch == before.leader_epoch
    assert elect(after, live(resumed={1: RegisteredBroker(55, resumes=44, clean=True)})) is None


def test_an_eligible_one_that_resumes_leads():
    """The resume rule holds for elr too."""
    before = state(leader=None, in_sync=(), eligible_leaders=(A, B))
    after = elect(before, live(resumed={2: RegisteredBroker(50, resumes=20, clean=True)}))
    assert after.leader == Replica(2, 50)
    assert after.in_sync == (Replica(2, 50),)
    assert after.eligible_leaders == (A,)


def test_the_same_broker_in_a_new_session_is_a_new_leader():
    """lepoch rises also for the same broker with a new session: its leadership of before is void (H16)."""
    sole = state(replicas=(1,), in_sync=(A,), min_insync_replicas=1)
    after = elect(sole, {1: RegisteredBroker(44, resumes=10, clean=True)})
    assert (after.leader, after.leader_epoch, after.unclean) == (Replica(1, 44), 6, False)


def test_a_draining_broker_leads_only_as_the_last_choice():
    """H18: draining is a matter of preference among equally entitled ones."""
    draining = {2: RegisteredBroker(20, drained=True)}
    assert elect(state(), live(C, resumed=draining)).leader == C
    assert elect(state(), live(resumed=draining)).leader == B


def test_a_sole_replica_with_a_cut_end_is_elected_and_marked():
    """No other replica has the data: what async durability may lose is lost, and the key records it."""
    sole = state(replicas=(1,), in_sync=(A,), min_insync_replicas=1)
    after = elect(sole, {1: RegisteredBroker(44, resumes=10, clean=False, storage_since=10)})
    assert (after.leader, after.unclean, after.leader_epoch) == (Replica(1, 44), True, 6)


def test_the_last_entry_of_several_replicas_is_no_sole_replica():
    """Others may hold what it lost: a dirty return is dropped, however few entries are left."""
    after = elect(state(in_sync=(A,)), {1: RegisteredBroker(44, resumes=10, clean=False)})
    assert after.leader is None
    assert after.in_sync == ()


def test_a_sole_replica_with_another_directory_is_not_elected():
    """An empty disk under the old id is not the old replica: the partition stays without a leader."""
    sole = state(replicas=(1,), in_sync=(A,), min_insync_replicas=1)
    after = elect(sole, {1: RegisteredBroker(44, resumes=0, clean=True)})
    assert after.leader is None
    assert after.in_sync == ()


def test_a_sole_replica_that_withdrew_is_not_elected():
    """Corruption below the flushed mark: the broker took itself out, and an administrator must look (H33)."""
    sole = state(replicas=(1,), leader=None, in_sync=(), min_insync_replicas=1)
    assert elect(sole, {1: RegisteredBroker(44, resumes=10, clean=True)}) is None


def test_an_unclean_election_prefers_the_oldest_fence():
    """The log of the first replica was corrupt, the third replica was added later than the second."""
    fences = (FetchFence(2, 3), FetchFence(3, 7))
    before = leave_failed(state(in_sync=(), leader=None, fetch_fences=fences), A.broker_id, corrupt=True)
    assert elect_uncleanly(before, live(A, B, C)).leader == B
    assert elect_uncleanly(before, live(A, C)).leader == C
    assert elect_uncleanly(before, live(A)).leader == A
    assert elect_uncleanly(before, live(A, B, C), A.broker_id).leader == A


def test_a_clean_election_ends_the_mark():
    """`unclean` describes the election of the present leader only."""
    sole = state(replicas=(1,), in_sync=(A,), min_insync_replicas=1, unclean=True)
    assert not elect(sole, {1: RegisteredBroker(44, resumes=10, clean=True)}).unclean


@st.composite
def situations(draw):
    """A key of right shape, and any sessions."""
    count = draw(st.integers(1, 4))
    replicas = draw(st.permutations(range(1, count + 1)))
    minimum = draw(st.integers(1, count))
    roles = [draw(st.sampled_from(["isr", "elr", "out"])) for _ in replicas]
    in_sync = tuple(
        Replica(b, draw(st.integers(10, 12))) for b, role in zip(replicas, roles, strict=True) if role == "isr"
    )
    eligible = tuple(
        Replica(b, draw(st.integers(10, 12))) for b, role in zip(replicas, roles, strict=True) if role == "elr"
    )
    assume(len(in_sync) < minimum or not eligible)
    found = PartitionState(
        tuple(replicas), draw(st.sampled_from([None, *in_sync])), draw(st.integers(0, 5)), in_sync, eligible, minimum
    )
    sessions = draw(
        st.dictionaries(
            st.sampled_from(replicas),
            st.builds(RegisteredBroker, st.integers(10, 14), st.integers(0, 13), st.booleans(), st.booleans()),
        )
    )
    return found, sessions


@given(situations())
def test_whatever_the_key_the_result_is_sound_and_final(situation):
    """I11, I12, I3: right shape, a leader in its present session, named before; a second look changes nothing."""
    before, sessions = situation
    after = elect(before, sessions)
    if after is None:
        return
    check_shape(after)
    assert elect(after, sessions) is None
    named = {entry.broker_id: entry.broker_epoch for entry in (*before.in_sync, *before.eligible_leaders)}
    if after.leader is not None:
        session = sessions[after.leader.broker_id]
        assert after.leader.broker_epoch == session.broker_epoch
        assert after.leader.broker_id in named
        if session.broker_epoch != named[after.leader.broker_id]:
            assert session.clean or after.unclean
    for entry in (*after.in_sync, *after.eligible_leaders):
        assert entry.broker_id in named


def test_change_refuses_a_leader_out_of_sync():
    """I11 is asserted on every value that is computed."""
    with pytest.raises(AssertionError, match="leader is in sync"):
        change(state(), leader=A, in_sync=[B])


def test_lowering_the_minimum_ends_eligibility():
    """H15: with enough in sync the eligible set is empty, whatever write brings that about."""
    before = state(leader=C, in_sync=(C,), eligible_leaders=(A, B))
    after = change(before, leader=C, in_sync=[C], min_insync_replicas=1)
    assert after.eligible_leaders == ()
    assert after.leader_epoch == before.leader_epoch


def test_members_of_a_durable_partition_outlive_a_crash_of_their_machine():
    """What is committed is on their disks: the same directory is enough, however often it crashed meanwhile (I16)."""
    crashed = {1: RegisteredBroker(44, resumes=43, clean=False, storage_since=10)}
    before = state(in_sync=(A, B))
    assert elect(before, crashed).leader is None
    after = elect(replace(before, durable=True), crashed)
    assert (after.leader, after.in_sync, after.unclean, after.durable) == (
        Replica(1, 44),
        (Replica(1, 44),),
        False,
        True,
    )
    other_disk = {1: RegisteredBroker(44, storage_since=0)}
    assert elect(replace(before, durable=True), other_disk).leader is None
