"""The leader's in-sync set: who counts, who joins, who leaves, and what becomes of writes without an answer."""

from __future__ import annotations

import pytest
from headrace.wire.errors import NotEnoughReplicasAfterAppendError, NotEnoughReplicasError, Outcome
from headrace.wire.ids import Offset
from headrace_broker.core.messages import (
    Abandon,
    AcknowledgementAwaited,
    Action,
    DurabilityChanged,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeadershipEnded,
    LeaveInSync,
    ProposalFailed,
    ProposalSucceeded,
    ProposalUnanswered,
    Propose,
    StateSeen,
    StorageFailed,
    Ticked,
)
from headrace_broker.core.replica import JOIN_RETRY_MS
from headrace_broker.core.roles import Role
from headrace_server.partition_state import PartitionState, Replica, change, join, leave, leave_failed, note_committed

from tests.unit.broker.three_replicas import LAG_MAX_MS, ThreeReplicas

LEADER, FOLLOWER, THIRD = 1, 2, 3


class Leading:
    """Broker 1 leads, with records; followers fetch as the test says, without logs of their own."""

    def __init__(
        self, *, in_sync: tuple[int, ...] = (1, 2, 3), records: int = 0, durable: bool = True, minimum: int = 1
    ) -> None:
        self.partition = ThreeReplicas(durable=durable, min_insync_replicas=minimum)
        for broker in self.partition.nodes:
            self.partition.register(broker)
        members = [self.partition.session_of(broker) for broker in in_sync]
        leader = self.partition.session_of(LEADER)
        self.partition.write(change(self.partition.state, leader=leader, in_sync=members, durable=durable))
        self.node = self.partition[LEADER]
        self.node.see()
        self.replica = self.node.replica
        for _ in range(records):
            self.node.produce()
        if records:
            self.node.flush()

    def fetch(
        self, broker: int, offset: int, *, durable: int | None = None, at_ms: int = 0, may_join: bool = True
    ) -> list[Action]:
        return self.node.handle(
            FollowerFetched(
                self.partition.session_of(broker),
                Offset(offset),
                Offset(offset if durable is None else durable),
                at_ms,
                may_join,
            )
        )

    def tick(self, at_ms: int, *, heard: tuple[int, ...] = (), may_join: tuple[int, ...] = ()) -> list[Action]:
        sessions = {broker: self.partition.session_of(broker) for broker in (FOLLOWER, THIRD)}
        return self.node.handle(
            Ticked(at_ms, {sessions[each]: at_ms for each in heard}, [sessions[each] for each in may_join])
        )

    def proposed(self, actions: list[Action]) -> Propose:
        (proposal,) = [action for action in actions if isinstance(action, Propose)]
        return proposal

    def members(self, state: PartitionState) -> list[int]:
        return [entry.broker_id for entry in state.in_sync]

    def session(self, broker: int) -> Replica:
        return self.partition.session_of(broker)


@pytest.fixture
def leading() -> Leading:
    """Brokers 1 and 2 are in sync, with one record."""
    return Leading(in_sync=(1, 2), records=1)


def advanced(actions: list[Action]) -> list[int]:
    return [action.high_watermark for action in actions if isinstance(action, HighWatermarkAdvanced)]


# --- the high watermark ---


def test_the_slowest_member_decides() -> None:
    """I8: the least offset that all of the set acknowledged in this epoch, the leader's own disk included."""
    leading = Leading(records=3)
    assert advanced(leading.fetch(FOLLOWER, 3)) == []
    assert advanced(leading.fetch(THIRD, 1)) == [1]
    assert advanced(leading.fetch(THIRD, 3)) == [3]
    leading.node.produce()
    leading.fetch(FOLLOWER, 4)
    assert advanced(leading.fetch(THIRD, 4)) == []
    assert advanced(leading.node.handle(StateSeen(leading.partition.state, leading.partition.key_revision))) == []
    leading.node.flush()
    assert leading.replica.high_watermark == 4


def test_what_a_follower_has_not_flushed_does_not_count_with_fsync() -> None:
    """H22: and does without."""
    for durable, expected in ((True, [1]), (False, [2])):
        leading = Leading(in_sync=(1, 2), records=2, durable=durable)
        assert advanced(leading.fetch(FOLLOWER, 2, durable=1)) == expected


def test_a_fetch_of_another_session_does_not_count_for_the_member() -> None:
    """H16, H17: the member of the set is (broker, session); the broker that came back is another one."""
    leading = Leading(in_sync=(1, 2), records=2)
    leading.fetch(FOLLOWER, 1)
    leading.partition.restart(FOLLOWER)
    assert advanced(leading.fetch(FOLLOWER, 2)) == []
    assert leading.replica.high_watermark == 1


def test_progress_of_an_earlier_epoch_does_not_count() -> None:
    """H5, KAFKA-13790: the table of followers begins empty with each epoch."""
    leading = Leading(in_sync=(1, 2))
    leading.node.produce(2)
    leading.fetch(FOLLOWER, 2)
    assert leading.replica.high_watermark == 0, "the leader has not flushed"
    state = leading.partition.state
    leading.partition.write(change(state, leader=None, in_sync=state.in_sync))
    leading.partition.write(change(leading.partition.state, leader=leading.session(LEADER), in_sync=state.in_sync))
    leading.node.see()
    assert (leading.replica.leader_epoch, leading.replica.flushed_offset) == (3, 2)
    assert leading.replica.high_watermark == 0, "the follower may have been cut since"
    assert advanced(leading.fetch(FOLLOWER, 2)) == [2]


def test_below_the_minimum_nothing_moves() -> None:
    """H13, I8, KAFKA-15583: neither by fetches nor by flushes, until the set is as large again."""
    leading = Leading(in_sync=(1, 2), records=2, minimum=2)
    shrunk = leave(leading.partition.state, [FOLLOWER])
    leading.partition.write(shrunk)
    assert advanced(leading.node.see()) == []
    with pytest.raises(NotEnoughReplicasError):
        leading.replica.check_leading(-1).check_in_sync()
    leading.node.produce()
    leading.node.flush()
    actions = leading.fetch(FOLLOWER, 3)
    assert advanced(actions) == []
    assert leading.replica.high_watermark == 0
    proposal = leading.proposed(actions)
    assert advanced(leading.node.handle(leading.partition.apply(proposal))) == [3]


def test_a_set_that_shrinks_below_the_minimum_leaves_waits_unknown() -> None:
    """H13, I22: they were appended, and may be committed later."""
    leading = Leading(in_sync=(1, 2), minimum=2)
    leading.node.produce(token=7)
    leading.partition.write(leave(leading.partition.state, [FOLLOWER]))
    (action,) = leading.node.see()
    assert isinstance(action, Abandon)
    assert isinstance(action.error, NotEnoughReplicasAfterAppendError)
    assert (action.token, action.error.outcome) == (7, Outcome.UNKNOWN)


def test_who_waits_is_answered_by_the_shrink_that_lets_go_of_the_late_one() -> None:
    """I9: with the minimum still met, the remaining members have committed it."""
    leading = Leading(records=2, minimum=2)
    leading.fetch(FOLLOWER, 2)
    leading.node.handle(AcknowledgementAwaited(5, Offset(2), leading.replica.leader_epoch))
    leading.partition.write(leave(leading.partition.state, [THIRD]))
    assert advanced(leading.node.see()) == [2]
    assert leading.node.acknowledged == [5]


# --- joining ---


@pytest.mark.parametrize("offset", [3, 4])
def test_a_follower_joins_at_the_high_watermark(offset: int) -> None:
    """KIP-16: it has all that is committed; the rest it will wait for as the others do."""
    leading = Leading(in_sync=(1, 2), records=4)
    leading.fetch(FOLLOWER, 3)
    assert leading.replica.high_watermark == 3
    proposal = leading.proposed(leading.fetch(THIRD, offset))
    assert proposal.state == note_committed(join(leading.partition.state, leading.session(THIRD)), 3)
    assert proposal.base_revision == leading.partition.key_revision
    assert proposal.sessions == (leading.session(LEADER), leading.session(THIRD)), "H17: compared in the write"


def test_a_follower_below_the_high_watermark_does_not_join() -> None:
    leading = Leading(in_sync=(1, 2), records=4)
    leading.fetch(FOLLOWER, 3)
    assert leading.fetch(THIRD, 2) == []
    assert leading.fetch(THIRD, 4, durable=2) == []


def test_a_follower_below_the_start_of_the_epoch_does_not_join() -> None:
    """H9, KAFKA-7128: the new leader's high watermark may be old; all that is committed lies below its start."""
    leading = Leading(in_sync=(1, 2), records=4)
    state = leading.partition.state
    leading.partition.write(change(state, leader=None, in_sync=state.in_sync))
    leading.partition.write(change(leading.partition.state, leader=leading.session(LEADER), in_sync=state.in_sync))
    leading.node.see()
    assert (leading.replica.high_watermark, leading.replica.check_leading(-1).start_offset) == (0, 4)
    assert leading.fetch(THIRD, 3) == []
    assert leading.members(leading.proposed(leading.fetch(THIRD, 4)).state) == [1, 2, 3]


def test_who_stops_or_is_not_registered_does_not_join(leading: Leading) -> None:
    """KIP-841, H18: neither by a fetch nor at a tick; later it does."""
    assert leading.fetch(THIRD, 1, may_join=False) == []
    assert leading.tick(100, may_join=(FOLLOWER,)) == []
    assert leading.members(leading.proposed(leading.tick(200, may_join=(THIRD,))).state) == [1, 2, 3]


def test_a_stranger_does_not_join(leading: Leading) -> None:
    """A replica that was moved away may still be fetching."""
    leading.node.handle(FollowerFetched(Replica(9, 10**6), Offset(1), Offset(1), 0, may_join=True))
    assert leading.node.proposals == []


def test_who_joins_counts_before_the_write_is_sent() -> None:
    """I4, H11: maximal in-sync set; the high watermark waits for it from then on, whatever becomes of the write."""
    leading = Leading(in_sync=(1, 2), records=2)
    leading.fetch(FOLLOWER, 2)
    assert leading.replica.high_watermark == 2
    leading.fetch(THIRD, 2)
    leading.node.produce()
    leading.node.flush()
    assert advanced(leading.fetch(FOLLOWER, 3)) == []
    assert advanced(leading.fetch(THIRD, 3)) == [3]


def test_who_leaves_counts_until_the_write_is_known() -> None:
    """I4, H11: the high watermark waits for a removed member until the shrink has succeeded."""
    leading = Leading(in_sync=(1, 2), records=2)
    proposal = leading.proposed(leading.tick(LAG_MAX_MS + 1))
    assert leading.members(proposal.state) == [1]
    assert leading.replica.high_watermark == 0
    assert advanced(leading.node.handle(leading.partition.apply(proposal))) == [2]


def test_a_session_that_ended_meanwhile_does_not_join_and_is_not_asked_again_at_once(leading: Leading) -> None:
    """H17, H23, KIP-903: the write compares the follower's session; where that fails there is a pause."""
    proposal = leading.proposed(leading.fetch(THIRD, 1, at_ms=50))
    before = leading.partition.live.pop(THIRD)
    answer = leading.partition.apply(proposal)
    assert isinstance(answer, ProposalFailed)
    assert answer.revision == proposal.base_revision
    leading.partition.live[THIRD] = before
    leading.node.handle(answer)
    assert not leading.replica.check_leading(-1).proposals.unresolved
    assert leading.fetch(THIRD, 1, at_ms=50 + JOIN_RETRY_MS - 1) == []
    assert leading.tick(50 + JOIN_RETRY_MS - 1, may_join=(THIRD,)) == []
    assert leading.members(leading.proposed(leading.fetch(THIRD, 1, at_ms=50 + JOIN_RETRY_MS)).state) == [1, 2, 3]


def test_a_refused_join_frees_the_high_watermark(leading: Leading) -> None:
    """C3: a failed compare proves that the write did not happen, so the leader does not wait for that follower."""
    leading.fetch(FOLLOWER, 1)
    proposal = leading.proposed(leading.fetch(THIRD, 1))
    leading.node.produce()
    leading.node.flush()
    leading.fetch(FOLLOWER, 2)
    assert leading.replica.high_watermark == 1
    failed = ProposalFailed(proposal.number, leading.partition.state, leading.partition.key_revision)
    assert advanced(leading.node.handle(failed)) == [2]


def test_who_was_taken_in_has_its_time() -> None:
    """H23: it joined at the high watermark, not at the log end: it is not late at the next tick."""
    leading = Leading(in_sync=(1, 2), records=2)
    now = 5 * LAG_MAX_MS
    leading.fetch(FOLLOWER, 2, at_ms=now)
    leading.node.produce()
    leading.node.flush()
    proposal = leading.proposed(leading.fetch(THIRD, 2, at_ms=now))
    leading.node.handle(leading.partition.apply(proposal))
    assert leading.tick(now + 500, heard=(FOLLOWER,)) == []


# --- leaving ---


def test_a_late_follower_leaves() -> None:
    """KIP-16: by time since it was caught up, on the leader's monotonic clock; the leader itself never."""
    leading = Leading(records=1)
    leading.fetch(FOLLOWER, 1, at_ms=1_000)
    leading.fetch(THIRD, 0, at_ms=1_000)
    assert leading.tick(LAG_MAX_MS) == []
    proposal = leading.proposed(leading.tick(LAG_MAX_MS + 1))
    assert leading.members(proposal.state) == [1, 2]
    assert proposal.sessions == (leading.session(LEADER),)


def test_an_idle_follower_that_lives_stays() -> None:
    leading = Leading(records=1)
    for broker in (FOLLOWER, THIRD):
        leading.fetch(broker, 1)
    assert leading.tick(9 * LAG_MAX_MS, heard=(FOLLOWER, THIRD)) == []
    assert leading.tick(10 * LAG_MAX_MS, heard=(FOLLOWER,)) == []
    assert leading.members(leading.proposed(leading.tick(10 * LAG_MAX_MS + 1, heard=(FOLLOWER,))).state) == [1, 2]


def test_a_member_that_came_back_in_a_new_session_keeps_its_time(leading: Leading) -> None:
    """H23: the controller carries a clean resumption over; the leader does not throw it out before it can fetch."""
    now = 9 * LAG_MAX_MS
    leading.fetch(FOLLOWER, 1, at_ms=now)
    leading.partition.restart(FOLLOWER)
    assert leading.partition.sweep()
    leading.node.see()
    assert leading.partition.state.in_sync[1] == leading.session(FOLLOWER)
    assert leading.tick(now + LAG_MAX_MS) == []
    assert leading.members(leading.proposed(leading.tick(now + LAG_MAX_MS + 1)).state) == [1]


def test_the_last_replica_standing_is_kept_eligible() -> None:
    """H14, KIP-966: who leaves a set that gets too small has all that is committed, and may be elected for it."""
    leading = Leading(in_sync=(1, 2), records=1, minimum=2)
    leading.fetch(FOLLOWER, 1)
    proposal = leading.proposed(leading.tick(2 * LAG_MAX_MS))
    assert (leading.members(proposal.state), proposal.state.eligible_leaders) == ([1], (leading.session(FOLLOWER),))
    leading.node.handle(leading.partition.apply(proposal))
    leading.node.produce()
    leading.node.flush()
    assert leading.replica.high_watermark == 1, "the eligible one has all that is committed, because no more is"
    leading.partition.unregister(LEADER)
    assert leading.partition.elect()
    assert leading.partition.state.leader == leading.session(FOLLOWER)


# --- durability in the key ---


def test_the_key_says_durable_once_every_member_is() -> None:
    """H30: a durable member stays in sync after a crash, so every member must first flush the committed records."""
    leading = Leading(in_sync=(1, 2), durable=False)
    state = leading.partition.state
    leading.node.produce()
    leading.fetch(FOLLOWER, 1, durable=0)
    assert leading.replica.high_watermark == 1
    assert leading.tick(100) == [], "the topic does not ask for it"
    leading.node.handle(DurabilityChanged(True))
    leading.node.flush()
    assert leading.tick(200) == [], "the follower has not flushed it"
    leading.fetch(FOLLOWER, 1)
    proposal = leading.proposed(leading.tick(300))
    promised = change(leading.partition.state, leader=state.leader, in_sync=state.in_sync, durable=True)
    assert proposal.state == note_committed(promised, 1)
    leading.node.handle(leading.partition.apply(proposal))
    assert leading.tick(400) == []


def test_a_durable_key_binds_every_leader() -> None:
    """H30: while the key promises it only flushed records count; who leads takes the promise back, then they do."""
    leading = Leading(in_sync=(1, 2))
    leading.node.handle(DurabilityChanged(False))
    leading.node.produce()
    leading.fetch(FOLLOWER, 1)
    assert leading.replica.high_watermark == 0
    state = leading.partition.state
    proposal = leading.proposed(leading.tick(100))
    assert proposal.state == change(state, leader=state.leader, in_sync=state.in_sync, durable=False)
    assert advanced(leading.node.handle(leading.partition.apply(proposal))) == [1]
    assert leading.tick(200) == []


def test_the_promise_stays_while_too_few_are_in_sync() -> None:
    """H30: eligible leaders that have no power now outlive it by what the key says."""
    leading = Leading(in_sync=(1,), minimum=2)
    leading.node.handle(DurabilityChanged(False))
    assert leading.tick(100) == []


def test_a_promise_that_may_be_in_the_key_binds() -> None:
    """H30, C3: a write that says durable has no answer, and the topic asks for no flush any more."""
    leading = Leading(in_sync=(1, 2), durable=False)
    leading.node.handle(DurabilityChanged(True))
    leading.node.produce()
    leading.node.flush()
    leading.fetch(FOLLOWER, 1)
    proposal = leading.proposed(leading.tick(100))
    assert proposal.state.durable
    leading.node.handle(ProposalUnanswered(proposal.number))
    leading.node.handle(DurabilityChanged(False))
    leading.node.produce()
    leading.fetch(FOLLOWER, 2, durable=1)
    assert leading.replica.high_watermark == 1
    settled = leading.proposed(leading.tick(200))
    assert not settled.state.durable
    assert advanced(leading.node.handle(leading.partition.apply(settled))) == [2]


# --- writes without an answer ---


def test_a_write_without_an_answer_counts_and_is_resolved_by_another(leading: Leading) -> None:
    """C2, C3, H12: its member counts; the next tick writes over the same version until one wins."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    assert leading.tick(100) == [], "H23: one in flight"
    assert leading.node.handle(ProposalUnanswered(first.number)) == []
    leading.node.produce()
    leading.node.flush()
    leading.fetch(FOLLOWER, 2, may_join=False)
    assert leading.replica.high_watermark == 1, "it waits for the one that may be in the set"
    second = leading.proposed(leading.tick(200))
    assert (second.base_revision, leading.members(second.state)) == (first.base_revision, [1, 2])
    assert second.state.partition_epoch == first.state.partition_epoch
    assert advanced(leading.node.handle(leading.partition.apply(second))) == [2]
    assert isinstance(leading.partition.apply(first), ProposalFailed), "the late one has lost"


def test_unanswered_then_won(leading: Leading) -> None:
    """C3: the first write was applied, so the next one over the same version fails and returns the stored state."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    leading.partition.apply(first)
    leading.node.handle(ProposalUnanswered(first.number))
    second = leading.proposed(leading.tick(200, may_join=()))
    answer = leading.partition.apply(second)
    assert isinstance(answer, ProposalFailed)
    leading.node.handle(answer)
    assert leading.replica.state == first.state
    assert not leading.replica.check_leading(-1).proposals.unresolved


def test_unanswered_then_failed_at_the_same_version_keeps_the_first(leading: Leading) -> None:
    """C3: that the second failed for a session says nothing of the first."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    leading.node.handle(ProposalUnanswered(first.number))
    second = leading.proposed(leading.fetch(THIRD, 1))
    leading.node.handle(ProposalFailed(second.number, leading.partition.state, leading.partition.key_revision))
    assert leading.replica.check_leading(-1).proposals.members() == list(first.state.in_sync)
    leading.node.produce()
    leading.node.flush()
    leading.fetch(FOLLOWER, 2)
    assert leading.replica.high_watermark == 1


def test_a_newer_version_settles_all(leading: Leading) -> None:
    """C3: once the key is seen past it, a write computed from the version before can happen no more."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    leading.node.handle(ProposalUnanswered(first.number))
    leading.fetch(FOLLOWER, 1)
    state = leading.partition.state
    leading.partition.write(change(state, leader=state.leader, in_sync=state.in_sync))
    leading.node.produce()
    leading.node.flush()
    leading.fetch(FOLLOWER, 2)
    assert advanced(leading.node.see()) == [2]
    assert not leading.replica.check_leading(-1).proposals.unresolved


def test_a_read_of_the_same_version_settles_nothing(leading: Leading) -> None:
    """C3: it proves nothing; the write may still come."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    leading.node.handle(ProposalUnanswered(first.number))
    leading.node.see()
    assert leading.replica.check_leading(-1).proposals.unresolved


@pytest.mark.parametrize("answer", ["won", "failed", "unanswered"])
def test_answers_of_old_numbers_change_nothing(answer: str, leading: Leading) -> None:
    """The key was seen past that write already; what is under way now is another one."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    state = leading.partition.state
    old_revision = leading.partition.key_revision
    leading.partition.write(change(state, leader=state.leader, in_sync=state.in_sync))
    leading.node.see()
    second = leading.proposed(leading.fetch(THIRD, 1))
    event = {
        "won": ProposalSucceeded(first.number, old_revision),
        "failed": ProposalFailed(first.number, state, old_revision),
        "unanswered": ProposalUnanswered(first.number),
    }[answer]
    assert leading.node.handle(event) == []
    assert leading.replica.check_leading(-1).proposals.under_way
    assert leading.replica.state == leading.partition.state
    leading.node.handle(leading.partition.apply(second))
    assert leading.members(leading.partition.state) == [1, 2, 3]
    assert leading.replica.state == second.state


def test_a_late_answer_that_brings_a_newer_key_is_taken(leading: Leading) -> None:
    """Level-triggered: whatever shows a newer version may, the role included."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    leading.partition.lead(FOLLOWER)
    actions = leading.node.handle(leading.partition.apply(first))
    assert LeadershipEnded(leading.replica.leader_epoch) not in actions  # it is of the epoch that ended
    assert any(isinstance(action, LeadershipEnded) for action in actions)
    assert leading.replica.role is Role.FOLLOWING


def test_a_gone_key_fails_a_write(leading: Leading) -> None:
    """The topic was deleted; its watch says so by itself."""
    first = leading.proposed(leading.fetch(THIRD, 1))
    assert leading.node.handle(ProposalFailed(first.number, None, 10**6)) == []
    assert not leading.replica.check_leading(-1).proposals.unresolved


# --- a broken log ---


@pytest.mark.parametrize("corrupt", [False, True])
@pytest.mark.parametrize("broker", [LEADER, FOLLOWER])
def test_a_broken_log_leaves_the_set(broker: int, corrupt: bool) -> None:
    """H33, H34: the leader or follower requests its removal from the key and handles nothing else."""
    partition = ThreeReplicas().start(LEADER)
    actions = partition[broker].handle(StorageFailed("disk gone", corrupt))
    assert actions[-1] == LeaveInSync(corrupt)
    assert partition[broker].replica.role is Role.OFFLINE
    assert partition[broker].handle(StorageFailed("again")) == []
    assert partition[broker].see() == [], "that version is known"
    partition.write(change(partition.state, leader=partition.state.leader, in_sync=partition.state.in_sync))
    assert partition[broker].see() == [LeaveInSync(corrupt)], "it is named still, or again"
    left = leave_failed(partition.state, broker, corrupt=corrupt)
    assert left is not None
    assert broker not in {entry.broker_id for entry in (*left.in_sync, *left.eligible_leaders)}
    assert (left.leader is None) == (broker == LEADER)
    partition.write(left)
    assert partition[broker].see() == []
