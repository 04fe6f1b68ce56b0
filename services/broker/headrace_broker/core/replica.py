"""One partition replica as a pure state machine: who may append and read, what is visible, what is acknowledged.

Driven by `headrace_broker.runtime.partition` and by the simulator. `handle(event)` gives the actions to perform; the
`check_*` methods answer for the hot path and change nothing. Keeps I4, I5, I8, I9, I10, I11, I20 for this replica.
Source: PROTOCOL section 1.2, after Kafka's replication (KIP-101, KIP-320, KIP-497, KIP-841, KIP-903, KIP-966).

Its parts: `producers` (sequences), `acknowledgements` (who waits for the high watermark), `followers` and `proposals`
(while it leads). `replica_fetch` holds what passes between a leader and a follower.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, assert_never

from headrace.wire.errors import (
    FencedBrokerError,
    FencedLeaderEpochError,
    HeadraceError,
    LeaderHint,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    Outcome,
    StorageOfflineError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
)
from headrace.wire.ids import BrokerId, LeaderEpoch, Offset
from headrace_server.partition_state import (
    PartitionState,
    Replica,
    ask_hand_over,
    change,
    check_shape,
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
    BatchesReplicated,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    Follow,
    FollowerFetched,
    HighWatermarkAdvanced,
    LeaderReported,
    LeadershipEnded,
    LeadershipStarted,
    LeaveInSync,
    LimitPause,
    LogRestarted,
    LogStartAwaited,
    LogStartRaised,
    LogStartWanted,
    LogTruncated,
    PauseOver,
    PersistEpoch,
    ProposalFailed,
    ProposalSucceeded,
    ProposalUnanswered,
    Propose,
    RaiseLogStart,
    SessionLost,
    SessionStarted,
    StateGone,
    StateSeen,
    StorageFailed,
    Ticked,
    Unfollow,
)
from headrace_broker.core.producers import Duplicate, ProducerWindows
from headrace_broker.core.proposals import Proposals

JOIN_RETRY_MS = 1_000
"""After a refused proposal to take a follower in, it is not proposed again for at least so long (H23)."""


class Role(Enum):
    """What the replica may do."""

    FENCED = auto()  # the broker has no session
    IDLE = auto()  # it has a session; the key names no leader, was not seen yet, or has no replica here any more
    FOLLOWING = auto()  # the key names another broker as leader: it is copied
    STARTING = auto()  # the key names this session; the epoch's start is being made durable
    LEADING = auto()  # serves
    OFFLINE = auto()  # its log failed; stays so for the life of the process
    DELETED = auto()  # its topic is gone; stays so


class PartitionReplica:
    """See the module. Not for several threads; every state change goes through `handle`."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        log_start_offset: Offset,
        log_end_offset: Offset,
        flushed_offset: Offset,
        high_watermark: Offset,
        last_epoch: LeaderEpoch,
        flushed_only: bool,
        producers: ProducerWindows,
        lag_max_ms: int = 10_000,
        join_retry_ms: int = JOIN_RETRY_MS,
    ) -> None:
        """Start fenced over an opened log. `high_watermark` is the checkpointed one, within log start .. log end.

        `lag_max_ms`: a follower that has not been caught up for longer leaves the in-sync set. `join_retry_ms`: see
        `JOIN_RETRY_MS`; a shell spreads its partitions, so that they do not all ask again in one moment.
        """
        self.broker_id = broker_id
        self.role = Role.FENCED
        self.broker_epoch = -1
        self.state: PartitionState | None = None
        self.revision = 0
        self.leader_epoch = LeaderEpoch(-1)
        self.start_offset = Offset(-1)
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset
        self.high_watermark = high_watermark
        self.last_epoch = last_epoch
        self.flushes = flushed_only  # the topic's settings: everything appended is flushed
        self.producers = producers
        self.lag_max_ms = lag_max_ms
        self.join_retry_ms = join_retry_ms
        self.stops = False  # the broker is about to end
        self.offline_reason = ""
        self._corrupt = False
        self.followers = FollowerTable(0)
        self.proposals = Proposals()
        self._hand_over = HandOver()
        self.wanted_log_start = log_start_offset  # while it leads: where all logs are to begin
        self._replicated_log_start = Offset(-1)  # while it leads: where every in-sync replica begins, or behind
        self.raising_to = Offset(-1)  # while it leads: the log is being made to begin there
        self._deletions = Acknowledgements()  # who waits until records are deleted, by the log start that answers them
        # The high watermark when unflushed records stopped counting: it never falls.
        self._seen_unflushed = Offset(0)
        self._acknowledgements = Acknowledgements()
        self._fetches = 0  # the token of the last fetch
        self._awaited: int | None = None  # the token of the fetch whose answer may be used (H6)
        self.fetches_ahead = Offset(0)  # where its answer begins, if it was sent before the log reached there

    @property
    def flushed_only(self) -> bool:
        """Whether only flushed records count: the topic says so, or the key still promises it, or may do so (H30)."""
        return self.flushes or (self.state is not None and self.state.durable) or self.proposals.durable

    # --- the hot path: questions ---

    def check_leading(self, known_epoch: int) -> None:
        """Raise unless this replica leads and `known_epoch` (-1: not known) is its epoch.

        Raises:
            NotLeaderError, LeaderNotAvailableError, FencedLeaderEpochError, UnknownLeaderEpochError,
            StorageOfflineError, FencedBrokerError, UnknownTopicIdError: all definite.
        """
        if self.role is not Role.LEADING:
            raise self._not_leading()
        self._check_epoch(known_epoch)

    def check_appending(self, known_epoch: int) -> None:
        """As `check_leading`, for appends: LeaderNotAvailableError, too, while this replica hands over."""
        self.check_leading(known_epoch)
        if self._hand_over.paused:
            raise LeaderNotAvailableError("this broker hands the partition over", outcome=Outcome.NOT_APPLIED)

    def counts_append(self, leader_epoch: int) -> bool:
        """Whether an append of `leader_epoch` that was under way may be acknowledged: no successor may lack it."""
        leads = self.role is Role.LEADING and self.leader_epoch == leader_epoch
        return leads and self._hand_over.proposal is None

    def check_serving(self, known_epoch: int) -> None:
        """As `check_leading`, for readers that take a follower, too (KIP-392)."""
        if self.role not in (Role.LEADING, Role.FOLLOWING):
            raise self._not_leading()
        self._check_epoch(known_epoch)

    def _check_epoch(self, known_epoch: int) -> None:
        if known_epoch in (-1, self.leader_epoch):
            return
        hint = self.leader_hint()
        message = f"the leader epoch is {self.leader_epoch}, the caller knows {known_epoch}"
        if known_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(message, leader=hint)
        raise UnknownLeaderEpochError(message, leader=hint)

    def check_in_sync(self) -> None:
        """Raise NotEnoughReplicasError (definite) where an append could not be committed now (H13)."""
        assert self.state is not None
        if len(self.state.in_sync) < self.state.min_insync_replicas:
            raise NotEnoughReplicasError(
                f"{len(self.state.in_sync)} replicas are in sync, "
                f"min_insync_replicas is {self.state.min_insync_replicas}"
            )

    def check_batch(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int, at_ms: int = 0
    ) -> Duplicate | None:
        """As `ProducerWindows.check`; None for a batch without a producer."""
        if producer_id < 0:
            return None
        return self.producers.check(producer_id, producer_epoch, base_sequence, record_count, at_ms)

    def check_read(self, offset: int) -> None:
        """Raise where a consumer may not read at `offset`.

        At or above the high watermark, up to the log end, there is nothing yet: that is no error (H10).

        Raises:
            OffsetNotAvailableError: above the log end while the high watermark is below this epoch's start, or below
                a log start that `check_earliest` refuses; retriable.
            OffsetOutOfRangeError: outside log start .. log end.
        """
        if self.log_start_offset <= offset <= self.log_end_offset:
            return
        if offset < self.log_start_offset and self.role is Role.LEADING:
            self.check_earliest()
        if offset > self.log_end_offset and (self.role is Role.FOLLOWING or self.high_watermark < self.start_offset):
            raise OffsetNotAvailableError(f"offset {offset} cannot be judged here yet")
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {self.log_start_offset} .. {self.log_end_offset}", outcome=Outcome.NOT_APPLIED
        )

    def check_latest(self) -> None:
        """Raise OffsetNotAvailableError until the high watermark has reached this epoch's start (H10)."""
        if self.high_watermark < self.start_offset:
            raise OffsetNotAvailableError("the high watermark is not known yet: the leader has just started")

    def check_earliest(self) -> None:
        """Raise OffsetNotAvailableError until every in-sync replica begins where this leader does, or behind (I18).

        A leader elected while a log start was on its way may begin behind others: should one of those lead next, the
        log start of the partition would fall.
        """
        if self._replicated_log_start < self.log_start_offset:
            raise OffsetNotAvailableError("the log start is not known yet: the leader has just started")

    @property
    def known_log_start(self) -> Offset:
        """The log start to tell clients; -1: `check_earliest` refuses it."""
        is_known = self.role is not Role.LEADING or self._replicated_log_start >= self.log_start_offset
        return self.log_start_offset if is_known else Offset(-1)

    # --- state changes ---

    def handle(self, event: Event) -> list[Action]:
        """Apply one event and return the actions, in order. A pair that `_TABLE` does not have is a bug."""
        handler = _TABLE.get((self.role, type(event)))
        assert handler is not None, f"{type(event).__name__} while {self.role.name}"
        return handler(self, event)

    def _ignore(self, event: Event) -> list[Action]:
        return []

    def _start_session(self, event: SessionStarted) -> list[Action]:
        assert event.broker_epoch > self.broker_epoch, "broker epochs rise (I13)"
        self.broker_epoch = event.broker_epoch
        self.role = Role.IDLE
        return [*self._take_committed(), *self._follow_key()]

    def _lose_session(self, event: SessionLost) -> list[Action]:
        actions = [*self._end_leadership("the broker lost its registration"), *self._unfollow()]
        self.role = Role.FENCED
        return actions

    def _see_state(self, event: StateSeen) -> list[Action]:
        if event.revision <= self.revision:
            return []
        check_shape(event.state)
        if self.state is not None:
            assert event.state.leader_epoch >= self.state.leader_epoch, "leader epochs never fall (I11)"
            self._fence_replicas(self.state, event.state)
        self.state, self.revision = event.state, event.revision
        self.proposals.clear()
        self._hand_over.end()  # The key has moved on: the followers' next fetches begin anew, where it is still asked.
        if self.role is Role.OFFLINE:
            # It was elected meanwhile: its log cannot be trusted for that (H33).
            members = (*event.state.in_sync, *event.state.eligible_leaders)
            named = any(member.broker_id == self.broker_id for member in members)
            return [LeaveInSync(self._corrupt)] if named else []
        return [] if self.role is Role.FENCED else [*self._take_committed(), *self._follow_key()]

    def _take_committed(self) -> list[Action]:
        """Take the high watermark of a key that names this session: a member has all below it (I3)."""
        state = self.state
        if state is None or not self._is_member(state):
            return []
        committed = min(Offset(state.high_watermark), self.log_end_offset)
        if committed <= self.high_watermark:
            return []
        self.high_watermark = committed
        return [HighWatermarkAdvanced(committed)]

    def _is_member(self, state: PartitionState) -> bool:
        return self._me() in (*state.in_sync, *state.eligible_leaders)

    @property
    def lacks_committed(self) -> bool:
        """Whether the key names this session as a member and the log ends below what was committed then (I2, I3)."""
        state = self.state
        if state is None or self.role in (Role.OFFLINE, Role.DELETED, Role.FENCED):
            return False
        return self.log_end_offset < state.high_watermark and self._is_member(state)

    def _fence_replicas(self, before: PartitionState, after: PartitionState) -> None:
        """Count nothing that was fetched before a fence in the key (H17, H33).

        The replica may have another log since, in the same session: an empty one where it was moved away and back, or
        where a corrupt one was set aside.
        """
        for fence in after.fetch_fences:
            if fence.partition_epoch > before.partition_epoch:
                self.followers.forget(fence.broker_id)

    def _see_gone(self, event: StateGone) -> list[Action]:
        actions = [*self._end_leadership("the topic was deleted"), *self._unfollow()]
        self.role = Role.DELETED
        self.revision = event.revision
        return actions

    def _follow_key(self) -> list[Action]:
        """Assume the role in the key: leader if and only if it names this broker in its current session (I12)."""
        state = self.state
        if state is None:
            return []
        if state.leader != Replica(self.broker_id, self.broker_epoch):
            return [*self._end_leadership("leadership moved"), *self._follow_leader(state)]
        if self.role in (Role.STARTING, Role.LEADING) and state.leader_epoch == self.leader_epoch:
            return self._judge_in_sync() if self.role is Role.LEADING else []
        actions = [*self._end_leadership("a new leader epoch began"), *self._unfollow()]
        self.role = Role.STARTING
        self.leader_epoch = LeaderEpoch(state.leader_epoch)
        actions.append(PersistEpoch(self.leader_epoch))
        return actions

    def _follow_leader(self, state: PartitionState) -> list[Action]:
        leader = state.leader
        if leader is None or leader.broker_id == self.broker_id or self.broker_id not in state.replicas:
            actions = self._unfollow()
            self.role = Role.IDLE
            return actions
        if self.role is Role.FOLLOWING and state.leader_epoch == self.leader_epoch:
            return []
        self.role = Role.FOLLOWING
        self.leader_epoch = LeaderEpoch(state.leader_epoch)
        self._awaited = None
        return [Follow(leader, self.leader_epoch)]

    def _unfollow(self) -> list[Action]:
        if self.role is not Role.FOLLOWING:
            return []
        self._awaited = None
        return [Unfollow()]

    def _finish_start(self, event: EpochPersisted) -> list[Action]:
        if event.leader_epoch != self.leader_epoch:
            return []
        self.role = Role.LEADING
        self.followers = FollowerTable(event.at_ms)
        self.last_epoch = event.leader_epoch
        self.start_offset = self.log_end_offset = event.start_offset
        self.flushed_offset = max(self.flushed_offset, event.start_offset)
        self.wanted_log_start = self.log_start_offset
        self._replicated_log_start = self.raising_to = Offset(-1)
        return [LeadershipStarted(self.leader_epoch, self.start_offset), *self._advance(), *self._advance_log_start()]

    def _end_leadership(self, why: str) -> list[Action]:
        if self.role not in (Role.STARTING, Role.LEADING):
            return []
        actions: list[Action] = [LeadershipEnded(self.leader_epoch)] if self.role is Role.LEADING else []
        self.start_offset = Offset(-1)
        self.proposals.clear()
        self._hand_over = HandOver()
        actions += [Abandon(token, self._lost(why)) for token in self._deletions.take_all()]
        return [*actions, *self._abandon_all(lambda: self._lost(why))]

    def _append(self, event: Appended) -> list[Action]:
        assert event.base_offset == self.log_end_offset, "offsets are contiguous (I6)"
        assert event.end_offset > event.base_offset
        self._append_only(event)
        return [] if self.flushed_only else self._advance()

    def _note_append(self, event: Appended) -> list[Action]:
        """Record a batch whose write was under way when leadership ended: it is in the log, and no reader sees it."""
        self._append_only(event)
        return []

    def _append_only(self, event: Appended) -> None:
        self.log_end_offset = max(self.log_end_offset, event.end_offset)
        if event.producer_id >= 0:
            count = event.end_offset - event.base_offset
            self.producers.record(
                event.producer_id,
                event.producer_epoch,
                event.base_sequence,
                count,
                base_offset=event.base_offset,
                at_ms=event.at_ms,
            )

    def _flush(self, event: Flushed) -> list[Action]:
        self.flushed_offset = max(self.flushed_offset, event.offset)
        return self._advance() if self.role is Role.LEADING else []

    def _await(self, event: AcknowledgementAwaited) -> list[Action]:
        if event.leader_epoch != self.leader_epoch:
            return [Abandon(event.token, self._lost("a new leader epoch began"))]
        if event.end_offset <= self.high_watermark:
            return [Acknowledge(event.token)]
        self._acknowledgements.add(event.end_offset, event.token)
        return []

    def _refuse_await(self, event: AcknowledgementAwaited) -> list[Action]:
        return [Abandon(event.token, self._lost("leadership was lost"))]

    def _drop(self, event: AcknowledgementDropped) -> list[Action]:
        self._acknowledgements.drop(event.token)
        self._deletions.drop(event.token)
        return []

    def _want_log_start(self, event: LogStartWanted) -> list[Action]:
        """Move the followers' log start first, so that the next leader does not restore deleted records (I18)."""
        assert event.offset <= self.high_watermark, "retention stays below the high watermark (I18)"
        if event.offset <= self.wanted_log_start:
            return []
        self.wanted_log_start = event.offset
        return [AnnounceLogStart(), *self._advance_log_start()]

    def _await_log_start(self, event: LogStartAwaited) -> list[Action]:
        if event.leader_epoch != self.leader_epoch:
            return [Abandon(event.token, self._lost("a new leader epoch began"))]
        self._deletions.add(event.offset, event.token)
        return self._release_deletions()

    def _refuse_log_start(self, event: LogStartAwaited) -> list[Action]:
        return [Abandon(event.token, self._lost("leadership was lost"))]

    def _raise_log_start(self, event: LogStartRaised) -> list[Action]:
        assert event.log_start_offset >= self.log_start_offset, "the log start never falls (I18)"
        assert event.log_start_offset <= self.high_watermark, "retention stays below the high watermark (I18)"
        self.log_start_offset = event.log_start_offset
        self.wanted_log_start = max(self.wanted_log_start, event.log_start_offset)
        return [] if self.role is not Role.LEADING else [*self._advance_log_start(), *self._release_deletions()]

    def _advance_log_start(self) -> list[Action]:
        """Let the log begin where all of the maximal in-sync set do, as the high watermark moves: I4, I8, I18."""
        if self.log_start_offset == self.wanted_log_start == self._replicated_log_start:
            return []
        state = self.state
        assert state is not None
        least = self.wanted_log_start
        for member in self._counted_members():
            follower = self.followers.get(member)
            least = min(least, Offset(-1 if follower is None else follower.log_start_offset))
        # What all begin at now, or are about to, stays so: who joins begins there, too, and sessions keep their logs.
        begun = max(self.log_start_offset, self.raising_to)
        self._replicated_log_start = max(least, min(self._replicated_log_start, begun))
        actions = self._release_deletions()
        if len(state.in_sync) >= state.min_insync_replicas and least > begun:
            self.raising_to = least
            actions.append(RaiseLogStart(least))
        return actions

    def _release_deletions(self) -> list[Action]:
        least = min(self.log_start_offset, self._replicated_log_start)
        return [Acknowledge(token) for token in self._deletions.release(least)]

    def _change_durability(self, event: DurabilityChanged) -> list[Action]:
        self.flushes = event.flushed_only
        self._seen_unflushed = self.high_watermark
        return self._advance() if self.role is Role.LEADING else []

    def _fail(self, event: StorageFailed) -> list[Action]:
        actions = [*self._end_leadership("the log failed"), *self._unfollow()]
        self.role = Role.OFFLINE
        self.offline_reason, self._corrupt = event.reason, event.corrupt
        return [*actions, LeaveInSync(event.corrupt)]

    def _judge_in_sync(self) -> list[Action]:
        """After a change of the in-sync set: pending appends may be committed, or cannot be any more (H13)."""
        assert self.state is not None
        actions = [*self._advance(), *self._advance_log_start()]
        if len(self.state.in_sync) < self.state.min_insync_replicas:
            actions += self._abandon_all(
                lambda: NotEnoughReplicasAfterAppendError("the in-sync set shrank below min_insync_replicas")
            )
        return actions

    def _own_offset(self) -> Offset:
        return self.flushed_offset if self.flushed_only else self.log_end_offset

    def _advance(self) -> list[Action]:
        """Raise the high watermark to the least acknowledged offset of the maximal in-sync set (I4, I8)."""
        state = self.state
        assert state is not None
        if len(state.in_sync) < state.min_insync_replicas:
            return []
        least = self._own_offset()
        for member in self._counted_members():
            least = min(least, self._acknowledged_by(member))
        least = min(least, self.log_end_offset)
        if least <= self.high_watermark:
            return []
        self.high_watermark = least
        released = self._acknowledgements.release(least)
        return [HighWatermarkAdvanced(least), *(Acknowledge(token) for token in released)]

    def _counted_members(self) -> list[Replica]:
        """Return the maximal in-sync set without this replica; an entry may come twice (H11, H12)."""
        assert self.state is not None
        me = self._me()
        return [member for member in (*self.state.in_sync, *self.proposals.members()) if member != me]

    def _acknowledged_by(self, member: Replica) -> Offset:
        follower = self.followers.get(member)
        return Offset(0) if follower is None else follower.acknowledged(self.flushed_only)

    def _abandon_all(self, error: Callable[[], HeadraceError]) -> list[Action]:
        """End the waits for the high watermark."""
        return [Abandon(token, error()) for token in self._acknowledgements.take_all()]

    # --- followers, while it leads ---

    def _take_fetch(self, event: FollowerFetched) -> list[Action]:
        """Count what a follower has; take it into the in-sync set where it has all that is committed (H9, H17)."""
        assert event.durable_offset <= event.offset <= self.log_end_offset, "verified fetches lie within this log"
        follower = self.followers.note(
            event.follower,
            event.offset,
            event.durable_offset,
            event.at_ms,
            log_start_offset=event.log_start_offset,
            log_end_offset=self.log_end_offset,
            flushed_only=self.flushed_only,
        )
        actions = [*self._advance(), *self._advance_log_start()]
        if self.state is not None and event.follower in self.state.successors:
            actions += self._try_hand_over(event.at_ms)
        if event.may_join:
            actions += self._join(follower, event.at_ms)
        return actions

    def _try_hand_over(self, at_ms: int) -> list[Action]:
        """After a fetch of a successor: name one, or stop appends so that it reaches the log end (H24)."""
        if self.proposals.under_way or not self._hand_over.may_pause(at_ms):
            return []
        actions = self._name_successor()
        return actions if actions or self._hand_over.paused else [LimitPause(self._hand_over.pause())]

    def _name_successor(self) -> list[Action]:
        """Propose the first successor that has all of this log; nothing is appended from now on (H24)."""
        state = self.state
        assert state is not None
        for successor in state.successors:
            follower = self.followers.get(successor)
            if follower is not None and follower.offset >= self.log_end_offset:
                wanted = hand_over(state, successor, leaves=self.stops)
                proposal = self._propose(wanted, (self._me(), successor))
                self._hand_over.propose(proposal.number)
                return [proposal]
        return []

    def _end_pause(self, event: PauseOver) -> list[Action]:
        """Keep leading if no successor caught up in time, and publish it; the requester may retry."""
        state = self.state
        assert state is not None
        if not self._hand_over.is_over(event.number):
            return []
        self._hand_over.fail()
        if self.proposals.under_way:
            return []
        return [self._propose(ask_hand_over(state, ()), (self._me(),))]

    def _join(self, follower: Follower, at_ms: int) -> list[Action]:
        """Propose to take a follower into the in-sync set where it is due."""
        state = self.state
        assert state is not None
        acknowledged = follower.acknowledged(self.flushed_only)
        if (
            follower.replica in state.in_sync
            or follower.replica.broker_id not in state.replicas
            or acknowledged < max(self.high_watermark, self.start_offset)
            or follower.log_start_offset < max(self.log_start_offset, self.raising_to)
            or at_ms < follower.join_after_ms
            or self.proposals.under_way
        ):
            return []
        follower.caught_up_ms = max(follower.caught_up_ms, at_ms)  # its time to fall behind begins now (H23)
        joined = join(state, follower.replica)
        return [self._propose(joined, (self._me(), follower.replica))]

    def _tick(self, event: Ticked) -> list[Action]:
        """Take late followers out of the in-sync set and others in; resolve a write without an answer by another."""
        state = self.state
        assert state is not None
        self.followers.note_heard(event.heard_ms, log_end_offset=self.log_end_offset, flushed_only=self.flushed_only)
        if self.proposals.under_way:
            return []
        if self._hand_over.may_pause(event.at_ms) and (actions := self._name_successor()):
            return actions
        others = [member for member in state.in_sync if member.broker_id != self.broker_id]
        late = self.followers.behind(others, event.at_ms, self.lag_max_ms)
        if late:
            wanted = leave(state, [member.broker_id for member in late])
            return [self._propose(wanted, (self._me(),))]
        for follower in self.followers:
            if follower.replica in event.may_join and (actions := self._join(follower, event.at_ms)):
                return actions
        durable = self._says_durable(state)
        if self.proposals.unresolved or durable != state.durable:
            wanted = change(state, leader=state.leader, in_sync=state.in_sync, durable=durable)
            return [self._propose(wanted, (self._me(),))]
        return []

    def _propose(self, wanted: PartitionState, sessions: tuple[Replica, ...]) -> Propose:
        return self.proposals.send(note_committed(wanted, self.high_watermark), self.revision, sessions)

    def _says_durable(self, state: PartitionState) -> bool:
        """What the key is to say: whether every member has all that is committed on stable storage (H30).

        It is taken back by who leads, and while enough are in sync: members that lost power before that outlive it.
        """
        if state.durable:
            return self.flushes or len(state.in_sync) < state.min_insync_replicas
        if not self.flushes or state.eligible_leaders or len(state.in_sync) < state.min_insync_replicas:
            return False
        committed = max(self.high_watermark, self.start_offset)
        others = [self.followers.get(member) for member in state.in_sync if member.broker_id != self.broker_id]
        on_others = all(follower is not None and follower.durable_offset >= committed for follower in others)
        return on_others and self.flushed_offset >= committed

    def _win_proposal(self, event: ProposalSucceeded) -> list[Action]:
        state = self.proposals.take_answer(event.number)
        return [] if state is None else self._see_state(StateSeen(state, event.revision))

    def _fail_proposal(self, event: ProposalFailed) -> list[Action]:
        """Apply the stored state; if it is still the one that the write was computed from, a session had ended."""
        proposed = self.proposals.take_answer(event.number)
        if event.state is not None and event.revision > self.revision:
            return self._see_state(StateSeen(event.state, event.revision))
        if proposed is None:
            return []
        self.proposals.discard(event.number)
        if event.number == self._hand_over.proposal:
            self._hand_over.fail()
        for follower in self.followers:
            if follower.replica in proposed.in_sync:
                follower.join_after_ms = follower.fetched_ms + self.join_retry_ms
        return [*self._advance(), *self._advance_log_start()]

    def _note_unanswered(self, event: ProposalUnanswered) -> list[Action]:
        self.proposals.take_answer(event.number)
        if event.number == self._hand_over.proposal:
            # It may still happen, and take what is appended from now on. Appends do not wait for etcd (H84).
            self._hand_over.fail()
        return []

    def _me(self) -> Replica:
        return Replica(self.broker_id, self.broker_epoch)

    # --- copying, while it follows ---

    def begin_fetch(self, *, replace: bool = False, ahead_offset: int = 0) -> int | None:
        """The token of a fetch to send; None: it does not follow, or awaits an answer (and `replace` is not wanted).

        `ahead_offset`: the answer is to begin there, and can be used once the log ends there. Such a fetch waits for
        nothing at the leader, so none takes its place.
        """
        if self.role is not Role.FOLLOWING:
            return None
        if self._awaited is not None and (not replace or self.fetches_ahead):
            return None
        self._fetches += 1
        self._awaited = self._fetches
        self.fetches_ahead = Offset(ahead_offset)
        return self._fetches

    def end_fetch(self) -> None:
        """The connection is gone: no answer is awaited any more, and one that comes is not used."""
        self._awaited = None

    def take_answer(self, token: int, leader_epoch: int) -> bool:
        """Whether an answer may be used: it is awaited, and neither role nor epoch has changed. Only once (H6)."""
        if self.role is not Role.FOLLOWING or token != self._awaited or leader_epoch != self.leader_epoch:
            return False
        self._awaited = None
        return True

    def may_cut_committed(self, last_batch_epoch: int) -> bool:
        """Whether records below the high watermark may go: an unclean election came after the log's last batch."""
        return self.state is not None and last_batch_epoch < self.state.unclean_epoch

    def _replicate(self, event: BatchesReplicated) -> list[Action]:
        for header in event.headers:
            assert header.base_offset == self.log_end_offset, "offsets are contiguous (I6)"
            self.log_end_offset = Offset(header.end_offset)
            self.last_epoch = LeaderEpoch(header.leader_epoch)
            self.producers.record_batch(header)
        return []

    def _log_truncated(self, event: LogTruncated) -> list[Action]:
        self.log_end_offset = event.log_end_offset
        self.flushed_offset = event.log_end_offset
        self.high_watermark = min(self.high_watermark, event.log_end_offset)
        self._seen_unflushed = min(self._seen_unflushed, event.log_end_offset)
        return []

    def _restart(self, event: LogRestarted) -> list[Action]:
        self.log_start_offset = self.log_end_offset = self.flushed_offset = self.high_watermark = event.offset
        self.last_epoch = LeaderEpoch(-1)
        return []

    def _report(self, event: LeaderReported) -> list[Action]:
        """Take the leader's high watermark, as far as the log goes; what was committed once stays so."""
        high_watermark = min(Offset(event.high_watermark), self.log_end_offset)
        if self.role is not Role.FOLLOWING or high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        return [HighWatermarkAdvanced(high_watermark)]

    # --- errors ---

    def _lost(self, why: str) -> HeadraceError:
        """Return the error of a wait without an outcome: the next leader may commit the records (H52)."""
        return NotLeaderError(
            f"{why} while the acknowledgement was awaited", outcome=Outcome.UNKNOWN, leader=self.leader_hint()
        )

    def _not_leading(self) -> HeadraceError:
        match self.role:
            case Role.OFFLINE:
                return StorageOfflineError(self.offline_reason, outcome=Outcome.NOT_APPLIED)
            case Role.DELETED:
                return UnknownTopicIdError("the topic was deleted", outcome=Outcome.NOT_APPLIED)
            case Role.FENCED:
                return FencedBrokerError("this broker has no registration now", outcome=Outcome.NOT_APPLIED)
            case Role.STARTING:
                return LeaderNotAvailableError("this broker is about to lead", outcome=Outcome.NOT_APPLIED)
            case Role.IDLE | Role.FOLLOWING:
                return NotLeaderError(
                    "this broker does not lead the partition", outcome=Outcome.NOT_APPLIED, leader=self.leader_hint()
                )
            case Role.LEADING:
                raise AssertionError("this replica leads")
            case _:
                assert_never(self.role)

    def leader_hint(self) -> LeaderHint:
        """Who leads, as the key says; the address is filled in by the shell."""
        state = self.state
        if state is None:
            return LeaderHint(-1, -1)
        return LeaderHint(-1 if state.leader is None else state.leader.broker_id, state.leader_epoch)

    # --- invariants ---

    def validate_state(self) -> None:
        """Assert the invariants that one replica can see. Tests and the simulator call it after every event."""
        assert 0 <= self.log_start_offset <= self.high_watermark <= self.log_end_offset, "I8"
        assert self.flushed_offset <= self.log_end_offset
        self._acknowledgements.validate(self.high_watermark)
        self._deletions.validate(min(self.log_start_offset, self._replicated_log_start))
        if self.role is Role.LEADING:
            assert self.state is not None
            assert self.state.leader == Replica(self.broker_id, self.broker_epoch), "I12"
            assert self.leader_epoch == self.state.leader_epoch == self.last_epoch, "I5"
            assert 0 <= self.start_offset <= self.log_end_offset
            assert self.log_start_offset <= self.wanted_log_start <= self.high_watermark, "I18"
            assert self._replicated_log_start <= self.wanted_log_start
            if self.flushed_only and len(self.state.in_sync) >= self.state.min_insync_replicas:
                assert self.high_watermark <= max(self.flushed_offset, self.start_offset, self._seen_unflushed), "I9"
        else:
            waits = bool(self._acknowledgements or self._deletions)
            assert not waits, f"waiters at a replica that is {self.role.name}"
            assert not self.proposals.unresolved, "only a leader proposes"
            assert not self._hand_over.paused, "only a leader hands over"
        self.producers.validate()


_Handler = Callable[[PartitionReplica, Any], list[Action]]

_IN_ANY_ROLE: dict[type[Event], _Handler] = {
    SessionStarted: PartitionReplica._start_session,
    SessionLost: PartitionReplica._lose_session,
    StateSeen: PartitionReplica._see_state,
    StateGone: PartitionReplica._see_gone,
    EpochPersisted: PartitionReplica._ignore,  # of an epoch that is over
    Appended: PartitionReplica._note_append,  # was under way in a thread when leadership ended
    Flushed: PartitionReplica._flush,
    AcknowledgementAwaited: PartitionReplica._refuse_await,
    AcknowledgementDropped: PartitionReplica._drop,
    LogStartWanted: PartitionReplica._ignore,  # leadership has ended
    LogStartAwaited: PartitionReplica._refuse_log_start,
    LogStartRaised: PartitionReplica._raise_log_start,
    FollowerFetched: PartitionReplica._ignore,
    Ticked: PartitionReplica._ignore,
    PauseOver: PartitionReplica._ignore,
    ProposalSucceeded: PartitionReplica._win_proposal,
    ProposalFailed: PartitionReplica._fail_proposal,
    ProposalUnanswered: PartitionReplica._note_unanswered,
    BatchesReplicated: PartitionReplica._replicate,  # the rest: the role may have changed while the disk was at work
    LogTruncated: PartitionReplica._log_truncated,
    LogRestarted: PartitionReplica._restart,
    LeaderReported: PartitionReplica._report,
    DurabilityChanged: PartitionReplica._change_durability,
    StorageFailed: PartitionReplica._fail,
}

_STAYS: dict[type[Event], _Handler] = {
    SessionStarted: PartitionReplica._ignore,
    SessionLost: PartitionReplica._ignore,
    EpochPersisted: PartitionReplica._ignore,
    StorageFailed: PartitionReplica._ignore,
}

# What each role does with each event. A role's row is the common one with its own cells over it; None: cannot happen.
_CELLS: dict[Role, dict[type[Event], _Handler | None]] = {
    Role.FENCED: {SessionLost: PartitionReplica._ignore},
    Role.IDLE: {SessionStarted: None},
    Role.FOLLOWING: {SessionStarted: None},
    Role.STARTING: {SessionStarted: None, EpochPersisted: PartitionReplica._finish_start},
    Role.LEADING: {
        SessionStarted: None,
        EpochPersisted: None,
        Appended: PartitionReplica._append,
        AcknowledgementAwaited: PartitionReplica._await,
        LogStartWanted: PartitionReplica._want_log_start,
        LogStartAwaited: PartitionReplica._await_log_start,
        FollowerFetched: PartitionReplica._take_fetch,
        Ticked: PartitionReplica._tick,
        PauseOver: PartitionReplica._end_pause,
        BatchesReplicated: None,
        LogTruncated: None,
        LogRestarted: None,
    },
    Role.OFFLINE: {**_STAYS},
    Role.DELETED: {**_STAYS, StateSeen: None, StateGone: None},
}

_TABLE: dict[tuple[Role, type[Event]], _Handler] = {
    (role, event): handler
    for role, cells in _CELLS.items()
    for event, handler in {**_IN_ANY_ROLE, **cells}.items()
    if handler is not None
}
