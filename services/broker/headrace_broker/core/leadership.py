"""State of a replica while it leads: high watermark, in-sync set, acknowledgements, hand-over, log start.

A `PartitionReplica` makes a `Leadership` when the start of a leader epoch is on stable storage, passes it the events of
`LEADER_EVENTS`, and drops it when the role ends, with its follower positions, proposals and waits.
Keeps I4, I8, I9, I18. Its parts: `acknowledgements`, `followers`, `proposals`, `hand_over`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.wire.errors import (
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetNotAvailableError,
    Outcome,
)
from headrace.wire.ids import Offset
from headrace_server.partition_state import (
    PartitionState,
    Replica,
    ask_hand_over,
    change,
    hand_over,
    join,
    leave,
    note_committed,
)

from headrace_broker.core.acknowledgements import Acknowledgements
from headrace_broker.core.followers import Follower, FollowerTable
from headrace_broker.core.hand_over import HandOver
from headrace_broker.core.messages import (
    Abandon,
    Acknowledge,
    AcknowledgementAwaited,
    AcknowledgementDropped,
    Action,
    AnnounceLogStart,
    Appended,
    Event,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeadershipEnded,
    LimitPause,
    LogStartAwaited,
    LogStartWanted,
    PauseOver,
    ProposalUnanswered,
    Propose,
    RaiseLogStart,
    Ticked,
)
from headrace_broker.core.proposals import Proposals

if TYPE_CHECKING:
    from headrace_broker.core.replica import PartitionReplica


class Leadership:
    """Leadership of one replica in one leader epoch and session. Of its replica it changes only the high watermark."""

    def __init__(self, replica: PartitionReplica, state: PartitionState, at_ms: int, numbers: Iterator[int]) -> None:
        """Begin at the log end of `replica`, whose key is `state`; `numbers` are for its proposals."""
        self._replica = replica
        self._me = replica.me
        self.state = state
        self.leader_epoch = replica.leader_epoch
        self.start_offset = replica.log_end_offset
        self.followers = FollowerTable(at_ms)
        self.proposals = Proposals(numbers)
        self.wanted_log_start = replica.log_start_offset  # target log start of all replicas
        self.replicated_log_start = Offset(-1)  # no in-sync replica has a lower log start
        self.raising_to = Offset(-1)  # the log start is being raised to here
        self._hand_over = HandOver()
        self._acknowledgements = Acknowledgements()
        self._deletions = Acknowledgements()  # waits for record deletions, by the log start that completes them
        self.recount()

    # --- questions ---

    def check_appending(self, *, committed: bool) -> None:
        """Raise LeaderNotAvailableError (definite) during a hand-over; if `committed`, also as `check_in_sync`."""
        if self._hand_over.paused:
            raise LeaderNotAvailableError("this broker is handing the partition over", outcome=Outcome.NOT_APPLIED)
        if committed:
            self.check_in_sync()

    def check_in_sync(self) -> None:
        """Raise NotEnoughReplicasError (definite) if an append could not be committed now (H13)."""
        if len(self.state.in_sync) < self.state.min_insync_replicas:
            raise NotEnoughReplicasError(
                f"{len(self.state.in_sync)} replicas are in sync, "
                f"min_insync_replicas is {self.state.min_insync_replicas}"
            )

    def check_latest(self) -> None:
        """Raise OffsetNotAvailableError until the high watermark has reached this epoch's start (H10)."""
        if self._replica.high_watermark < self.start_offset:
            raise OffsetNotAvailableError("the high watermark is not known yet: the leader has just started")

    def check_earliest(self) -> None:
        """Raise OffsetNotAvailableError until no in-sync replica has a lower log start than this leader (I18).

        A leader elected while a log start was being replicated may have a later one than others. If one of those led
        next, the log start of the partition would fall.
        """
        if self.replicated_log_start < self._replica.log_start_offset:
            raise OffsetNotAvailableError("the log start is not known yet: the leader has just started")

    @property
    def names_successor(self) -> bool:
        """Whether a write that names a successor may take effect; the successor may lack later appends (H24)."""
        return self._hand_over.proposal is not None

    # --- the key ---

    def see_key(self, state: PartitionState) -> None:
        """Apply the new version of the key; forget fetches that precede a fence in it (H17, H33).

        After a fence a follower may have another log in the same session: an empty one, because the replica was moved
        away and back or a corrupt log was set aside.
        """
        for fence in state.fetch_fences:
            if fence.partition_epoch > self.state.partition_epoch:
                self.followers.forget(fence.broker_id)
        self.state = state
        self.proposals.clear()
        self._hand_over.end()  # The next fetch of a successor starts it again if it is still requested.
        self.recount()

    def judge_in_sync(self) -> list[Action]:
        """Commit pending appends after a change of the in-sync set, or fail them if too few are in sync (H13)."""
        actions = [*self.advance(), *self.advance_log_start()]
        if len(self.state.in_sync) < self.state.min_insync_replicas:
            why, tokens = "the in-sync set shrank below min_insync_replicas", self._acknowledgements.take_all()
            actions += [Abandon(token, NotEnoughReplicasAfterAppendError(why)) for token in tokens]
        return actions

    def end(self, why: str) -> list[Action]:
        """Fail all waits; this leadership is not used again."""
        tokens = [*self._deletions.take_all(), *self._acknowledgements.take_all()]
        return [LeadershipEnded(self.leader_epoch), *(Abandon(token, self._replica.lost(why)) for token in tokens)]

    # --- the high watermark ---

    def recount(self) -> None:
        """Recompute which members count, and whether only flushed records do, after key, proposals or settings change.

        The members are the maximal in-sync set without this replica; one may occur twice (H11, H12). Only flushed
        records count if the topic, the key or an unresolved proposal requires it (H30).
        """
        entries = (*self.state.in_sync, *self.proposals.members())
        self._counted = [member for member in entries if member != self._me]
        self.flushed_only = self._replica.flushes or self.state.durable or self.proposals.durable

    def advance(self) -> list[Action]:
        """Raise the high watermark to the least acknowledged offset of the maximal in-sync set (I4, I8)."""
        replica, state = self._replica, self.state
        if len(state.in_sync) < state.min_insync_replicas:
            return []
        least = replica.flushed_offset if self.flushed_only else replica.log_end_offset
        for member in self._counted:
            follower = self.followers.get(member)
            least = min(least, Offset(0) if follower is None else follower.acknowledged(self.flushed_only))
        least = min(least, replica.log_end_offset)
        if least <= replica.high_watermark:
            return []
        replica.high_watermark = least
        return [HighWatermarkAdvanced(least), *map(Acknowledge, self._acknowledgements.release(least))]

    def _append(self, event: Appended) -> list[Action]:
        assert event.base_offset == self._replica.log_end_offset, "offsets are contiguous (I6)"
        assert event.end_offset > event.base_offset
        assert (event.end_offset - event.base_offset) % event.batches == 0
        self._replica.record_append(event)
        return [] if self.flushed_only else self.advance()

    def _await(self, event: AcknowledgementAwaited) -> list[Action]:
        if event.leader_epoch != self.leader_epoch:
            return [Abandon(event.token, self._replica.lost("a new leader epoch began"))]
        if event.end_offset <= self._replica.high_watermark:
            return [Acknowledge(event.token)]
        self._acknowledgements.add(event.end_offset, event.token)
        return []

    def _drop(self, event: AcknowledgementDropped) -> list[Action]:
        self._acknowledgements.drop(event.token)
        self._deletions.drop(event.token)
        return []

    # --- the log start ---

    def _want_log_start(self, event: LogStartWanted) -> list[Action]:
        """Raise the followers' log start first, so that the next leader does not restore deleted records (I18)."""
        assert event.offset <= self._replica.high_watermark, "retention stays below the high watermark (I18)"
        if event.offset <= self.wanted_log_start:
            return []
        self.wanted_log_start = event.offset
        return [AnnounceLogStart(), *self.advance_log_start()]

    def _await_log_start(self, event: LogStartAwaited) -> list[Action]:
        if event.leader_epoch != self.leader_epoch:
            return [Abandon(event.token, self._replica.lost("a new leader epoch began"))]
        self._deletions.add(event.offset, event.token)
        return self._release_deletions()

    def note_log_start(self, log_start_offset: Offset) -> list[Action]:
        """Apply the new log start of this replica."""
        self.wanted_log_start = max(self.wanted_log_start, log_start_offset)
        return [*self.advance_log_start(), *self._release_deletions()]

    def advance_log_start(self) -> list[Action]:
        """Raise the log start to the least one of the maximal in-sync set, as for the high watermark (I4, I8, I18)."""
        log_start_offset = self._replica.log_start_offset
        if log_start_offset == self.wanted_log_start == self.replicated_log_start:
            return []
        least = self.wanted_log_start
        for member in self._counted:
            follower = self.followers.get(member)
            least = min(least, Offset(-1 if follower is None else follower.log_start_offset))
        # A replicated log start does not fall: joining replicas start at or after it, and sessions keep their logs.
        begun = max(log_start_offset, self.raising_to)
        self.replicated_log_start = max(least, min(self.replicated_log_start, begun))
        actions = self._release_deletions()
        if len(self.state.in_sync) >= self.state.min_insync_replicas and least > begun:
            self.raising_to = least
            actions.append(RaiseLogStart(least))
        return actions

    def _release_deletions(self) -> list[Action]:
        least = min(self._replica.log_start_offset, self.replicated_log_start)
        return [Acknowledge(token) for token in self._deletions.release(least)]

    # --- followers ---

    def _take_fetch(self, event: FollowerFetched) -> list[Action]:
        """Record a follower's progress; propose it for the in-sync set if it has all committed records (H9, H17)."""
        log_end_offset = self._replica.log_end_offset
        assert event.durable_offset <= event.offset <= log_end_offset, "verified fetches lie within this log"
        follower = self.followers.note(
            event.follower,
            event.offset,
            event.durable_offset,
            event.at_ms,
            log_start_offset=event.log_start_offset,
            log_end_offset=log_end_offset,
            flushed_only=self.flushed_only,
        )
        actions = [*self.advance(), *self.advance_log_start()]
        if event.follower in self.state.successors:
            actions += self._try_hand_over(event.at_ms)
        if event.may_join:
            actions += self._join(follower, event.at_ms)
        return actions

    def _join(self, follower: Follower, at_ms: int) -> list[Action]:
        """Propose to add a follower to the in-sync set if it qualifies."""
        replica, state = self._replica, self.state
        acknowledged = follower.acknowledged(self.flushed_only)
        if (
            follower.replica in state.in_sync
            or follower.replica.broker_id not in state.replicas
            or acknowledged < max(replica.high_watermark, self.start_offset)
            or follower.log_start_offset < max(replica.log_start_offset, self.raising_to)
            or at_ms < follower.join_after_ms
            or self.proposals.under_way
        ):
            return []
        follower.caught_up_ms = max(follower.caught_up_ms, at_ms)  # its lag is counted from now (H23)
        joined = join(state, follower.replica)
        return [self._propose(joined, (self._me, follower.replica))]

    def _tick(self, event: Ticked) -> list[Action]:
        """Propose to remove late followers from the in-sync set or add others; repeat a write that got no answer."""
        replica, state = self._replica, self.state
        self.followers.note_heard(event.heard_ms, log_end_offset=replica.log_end_offset, flushed_only=self.flushed_only)
        if self.proposals.under_way:
            return []
        if self._hand_over.may_pause(event.at_ms) and (actions := self._name_successor()):
            return actions
        others = [member for member in state.in_sync if member.broker_id != self._me.broker_id]
        late = self.followers.behind(others, event.at_ms, replica.lag_max_ms)
        if late:
            wanted = leave(state, [member.broker_id for member in late])
            return [self._propose(wanted, (self._me,))]
        for follower in self.followers:
            if follower.replica in event.may_join and (actions := self._join(follower, event.at_ms)):
                return actions
        durable = self._says_durable()
        if self.proposals.unresolved or durable != state.durable:
            wanted = change(state, leader=state.leader, in_sync=state.in_sync, durable=durable)
            return [self._propose(wanted, (self._me,))]
        return []

    def _says_durable(self) -> bool:
        """Return `durable` for the next key: whether every member has all committed records on stable storage (H30).

        Only a leader clears it, and only with enough replicas in sync, so that it survives members that lost power.
        """
        replica, state = self._replica, self.state
        if state.durable:
            return replica.flushes or len(state.in_sync) < state.min_insync_replicas
        if not replica.flushes or state.eligible_leaders or len(state.in_sync) < state.min_insync_replicas:
            return False
        committed = max(replica.high_watermark, self.start_offset)
        others = [self.followers.get(member) for member in state.in_sync if member.broker_id != self._me.broker_id]
        on_others = all(follower is not None and follower.durable_offset >= committed for follower in others)
        return on_others and replica.flushed_offset >= committed

    # --- hand-over ---

    def _try_hand_over(self, at_ms: int) -> list[Action]:
        """Name a successor after it has fetched, or pause appends so that it can reach the log end (H24)."""
        if self.proposals.under_way or not self._hand_over.may_pause(at_ms):
            return []
        actions = self._name_successor()
        return actions if actions or self._hand_over.paused else [LimitPause(self._hand_over.pause())]

    def _name_successor(self) -> list[Action]:
        """Propose the first successor that has the whole log; no appends are accepted from then on (H24)."""
        for successor in self.state.successors:
            follower = self.followers.get(successor)
            if follower is not None and follower.offset >= self._replica.log_end_offset:
                wanted = hand_over(self.state, successor, leaves=self._replica.stops)
                proposal = self._propose(wanted, (self._me, successor))
                self._hand_over.propose(proposal.number)
                return [proposal]
        return []

    def _end_pause(self, event: PauseOver) -> list[Action]:
        """Keep leading if no successor caught up in time, and withdraw the request; the requester may retry."""
        if not self._hand_over.is_over(event.number):
            return []
        self._hand_over.fail()
        if self.proposals.under_way:
            return []
        return [self._propose(ask_hand_over(self.state, ()), (self._me,))]

    # --- proposals ---

    def _propose(self, wanted: PartitionState, sessions: tuple[Replica, ...]) -> Propose:
        replica = self._replica
        proposal = self.proposals.send(note_committed(wanted, replica.high_watermark), replica.revision, sessions)
        self.recount()
        return proposal

    def note_refused(self, number: int, proposed: PartitionState) -> list[Action]:
        """Discard the write `number`, which was not applied because a session had ended; the key is unchanged."""
        self.proposals.discard(number)
        self.recount()
        if number == self._hand_over.proposal:
            self._hand_over.fail()
        for follower in self.followers:
            if follower.replica in proposed.in_sync:
                follower.join_after_ms = follower.fetched_ms + self._replica.join_retry_ms
        return [*self.advance(), *self.advance_log_start()]

    def _note_unanswered(self, event: ProposalUnanswered) -> list[Action]:
        self.proposals.take_answer(event.number)
        if event.number == self._hand_over.proposal:
            # It may still be applied, and later appends would then be lost. Appends do not wait for etcd (H84).
            self._hand_over.fail()
        return []

    # --- invariants ---

    def validate(self) -> None:
        """Assert the invariants of a leader."""
        replica, state = self._replica, self.state
        assert state is replica.state
        assert state.leader == self._me == replica.me, "I12"
        assert self.leader_epoch == state.leader_epoch == replica.last_epoch == replica.leader_epoch, "I5"
        assert 0 <= self.start_offset <= replica.log_end_offset
        assert replica.log_start_offset <= self.wanted_log_start <= replica.high_watermark, "I18"
        assert self.replicated_log_start <= self.wanted_log_start
        counted, flushed_only = self._counted, self.flushed_only
        self.recount()
        assert (counted, flushed_only) == (self._counted, self.flushed_only), "recount after every change"
        self._acknowledgements.validate(replica.high_watermark)
        self._deletions.validate(min(replica.log_start_offset, self.replicated_log_start))


LEADER_EVENTS: dict[type[Event], Callable[[Leadership, Any], list[Action]]] = {
    Appended: Leadership._append,
    AcknowledgementAwaited: Leadership._await,
    AcknowledgementDropped: Leadership._drop,
    LogStartWanted: Leadership._want_log_start,
    LogStartAwaited: Leadership._await_log_start,
    FollowerFetched: Leadership._take_fetch,
    Ticked: Leadership._tick,
    PauseOver: Leadership._end_pause,
    ProposalUnanswered: Leadership._note_unanswered,
}
"""Handlers of the events that only a leader handles."""
