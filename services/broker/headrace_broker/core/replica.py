"""Pure state machine of one partition replica: roles, visibility of records, acknowledgements.

Driven by `headrace_broker.runtime.partition` and by the simulator. `handle(event)` returns the actions to perform; the
`check_*` methods serve the hot path and change nothing. Keeps I4, I5, I8, I9, I10, I11, I20 for this replica.
The module is longer than others because all events change the same few offsets and epochs.
Source: PROTOCOL section 1.2, after Kafka's replication (KIP-101, KIP-320, KIP-497, KIP-841, KIP-903, KIP-966).

Its parts: `roles`, `leadership` (while it leads), `follower_fetches` (while it follows), `producers` (sequences).
`replica_fetch` is the protocol between a leader and a follower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from headrace.partition.producers import ProducerWindows
from headrace.wire.errors import (
    FencedLeaderEpochError,
    HeadraceError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    Outcome,
    UnknownLeaderEpochError,
)
from headrace.wire.ids import BrokerId, LeaderEpoch, Offset
from headrace_server.partition_state import PartitionState, Replica, check_shape

from headrace_broker.core.follower_fetches import FollowerFetches
from headrace_broker.core.leadership import LEADER_EVENTS, Leadership
from headrace_broker.core.messages import (
    Abandon,
    AcknowledgementAwaited,
    Action,
    Appended,
    BatchesReplicated,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    Follow,
    HighWatermarkAdvanced,
    LeaderReported,
    LeadershipStarted,
    LeaveInSync,
    LogRestarted,
    LogStartAwaited,
    LogStartRaised,
    LogTruncated,
    PersistEpoch,
    ProposalFailed,
    ProposalSucceeded,
    SessionLost,
    SessionStarted,
    StateGone,
    StateSeen,
    StorageFailed,
    Unfollow,
)
from headrace_broker.core.roles import Role, leader_hint, not_leading

JOIN_RETRY_MS = 1_000
"""Minimum time between a rejected proposal to add a follower to the in-sync set and the next one (H23)."""


class PartitionReplica:
    """State machine of one replica. Not thread-safe; every state change goes through `handle`."""

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

        A follower that has not been caught up for more than `lag_max_ms` leaves the in-sync set. `join_retry_ms`: see
        `JOIN_RETRY_MS`; the driver varies it by partition, so that they do not all retry at once.
        """
        self.broker_id = broker_id
        self.role = Role.FENCED
        self.broker_epoch = -1
        self.state: PartitionState | None = None
        self.leader_high_watermark = Offset(0)
        """Of the leader that is followed, as of its last answer: an in-sync replica has everything below."""
        self.revision = 0
        self.leader_epoch = LeaderEpoch(-1)
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset
        self.high_watermark = high_watermark
        self.last_epoch = last_epoch
        self.flushes = flushed_only  # by the topic's settings every append is flushed
        self.producers = producers
        self.lag_max_ms = lag_max_ms
        self.join_retry_ms = join_retry_ms
        self.stops = False  # the broker is shutting down
        self.offline_reason = ""
        self.leadership: Leadership | None = None  # while the role is LEADING
        self.fetches = FollowerFetches()
        self._corrupt = False
        self._seen_unflushed = Offset(0)  # the high watermark when unflushed records stopped counting; it never falls
        self._proposal_numbers = itertools.count(1)  # shared by all leaderships, so that answers cannot be confused

    @property
    def me(self) -> Replica:
        """This broker in its current session, as it appears in keys."""
        return Replica(self.broker_id, self.broker_epoch)

    @property
    def flushed_only(self) -> bool:
        """Whether only flushed records count; for a leader see `Leadership.recount`."""
        if self.leadership is not None:
            return self.leadership.flushed_only
        return self.flushes or (self.state is not None and self.state.durable)

    # --- the hot path: questions ---

    def check_leading(self, known_epoch: int) -> Leadership:
        """Return the leadership if this replica leads in `known_epoch`; `-1` matches every epoch.

        Raises:
            NotLeaderError, LeaderNotAvailableError, FencedLeaderEpochError, UnknownLeaderEpochError,
            StorageOfflineError, FencedBrokerError, UnknownTopicIdError: Otherwise; all definite.
        """
        leadership = self.leadership
        if leadership is None:
            raise not_leading(self.role, leader_hint(self.state), self.offline_reason)
        if known_epoch not in (-1, self.leader_epoch):
            raise self._wrong_epoch(known_epoch)
        return leadership

    def check_serving(self, known_epoch: int) -> None:
        """Raise as `check_leading`, but accept a follower as well: for readers (KIP-392)."""
        if self.role not in (Role.LEADING, Role.FOLLOWING):
            raise not_leading(self.role, leader_hint(self.state), self.offline_reason)
        if known_epoch not in (-1, self.leader_epoch):
            raise self._wrong_epoch(known_epoch)

    def _wrong_epoch(self, known_epoch: int) -> HeadraceError:
        hint = leader_hint(self.state)
        message = f"the leader epoch is {self.leader_epoch}, the caller has {known_epoch}"
        if known_epoch < self.leader_epoch:
            return FencedLeaderEpochError(message, leader=hint)
        return UnknownLeaderEpochError(message, leader=hint)

    def counts_append(self, leader_epoch: int) -> bool:
        """Return whether an unfinished append of `leader_epoch` may be acknowledged: no successor can lack it."""
        leadership = self.leadership
        return leadership is not None and leadership.leader_epoch == leader_epoch and not leadership.names_successor

    def check_read(self, offset: int) -> None:
        """Raise an error if a consumer cannot read at `offset`.

        From the high watermark to the log end there is nothing to read yet, which is not an error (H10).

        Raises:
            OffsetNotAvailableError: If `offset` is above the log end of a follower, or of a leader whose high watermark
                is below its epoch's start, or below a log start that `Leadership.check_earliest` rejects; retriable.
            OffsetOutOfRangeError: If `offset` is outside log start .. log end otherwise.
        """
        if self.log_start_offset <= offset <= self.log_end_offset:
            return
        leadership = self.leadership
        if offset < self.log_start_offset and leadership is not None:
            leadership.check_earliest()
        start_offset = -1 if leadership is None else leadership.start_offset
        if offset > self.log_end_offset and (self.role is Role.FOLLOWING or self.high_watermark < start_offset):
            raise OffsetNotAvailableError(
                f"offset {offset} is above this replica's log end {self.log_end_offset}: it is not known here yet"
            )
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {self.log_start_offset} .. {self.log_end_offset}", outcome=Outcome.NOT_APPLIED
        )

    @property
    def known_log_start(self) -> Offset:
        """Log start for clients; `-1` if `Leadership.check_earliest` rejects it."""
        leadership = self.leadership
        is_known = leadership is None or leadership.replicated_log_start >= self.log_start_offset
        return self.log_start_offset if is_known else Offset(-1)

    # --- state changes ---

    def handle(self, event: Event) -> list[Action]:
        """Apply one event and return the actions, in order.

        `LEADER_EVENTS` has precedence while this replica leads, then `_TABLE`. A pair that is in neither is a bug.
        """
        if self.leadership is not None and (of_leader := LEADER_EVENTS.get(type(event))) is not None:
            return of_leader(self.leadership, event)
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
        return self._leave_role(Role.FENCED, "the broker lost its registration")

    def _see_state(self, event: StateSeen) -> list[Action]:
        if event.revision <= self.revision:
            return []
        check_shape(event.state)
        if self.state is not None:
            assert event.state.leader_epoch >= self.state.leader_epoch, "leader epochs never fall (I11)"
        self.state, self.revision = event.state, event.revision
        if self.leadership is not None:
            self.leadership.see_key(event.state)
        if self.role is Role.OFFLINE:
            # It was added meanwhile, but its log cannot be trusted (H33).
            named = any(member.broker_id == self.broker_id for member in event.state.members)
            return [LeaveInSync(self._corrupt)] if named else []
        return [] if self.role is Role.FENCED else [*self._take_committed(), *self._follow_key()]

    def _take_committed(self) -> list[Action]:
        """Adopt the key's high watermark if the key names this session: a member has all records below it (I3)."""
        state = self.state
        if state is None or self.me not in state.members:
            return []
        committed = min(Offset(state.high_watermark), self.log_end_offset)
        if committed <= self.high_watermark:
            return []
        self.high_watermark = committed
        return [HighWatermarkAdvanced(committed)]

    @property
    def lacks_committed(self) -> bool:
        """Whether the key names this session as a member but the log ends below the key's high watermark (I2, I3)."""
        state = self.state
        if state is None or self.role in (Role.OFFLINE, Role.DELETED, Role.FENCED):
            return False
        return self.log_end_offset < state.high_watermark and self.me in state.members

    def _see_gone(self, event: StateGone) -> list[Action]:
        self.revision = event.revision
        return self._leave_role(Role.DELETED, "the topic was deleted")

    def _fail(self, event: StorageFailed) -> list[Action]:
        self.offline_reason, self._corrupt = event.reason, event.corrupt
        return [*self._leave_role(Role.OFFLINE, "the log failed"), LeaveInSync(event.corrupt)]

    def _follow_key(self) -> list[Action]:
        """Assume the role in the key: leader if and only if the key names this broker in its current session (I12)."""
        state = self.state
        if state is None:
            return []
        if state.leader != self.me:
            return self._follow_leader(state)
        if self.role in (Role.STARTING, Role.LEADING) and state.leader_epoch == self.leader_epoch:
            return [] if self.leadership is None else self.leadership.judge_in_sync()
        actions = self._leave_role(Role.STARTING, "a new leader epoch began")
        self.leader_epoch = LeaderEpoch(state.leader_epoch)
        return [*actions, PersistEpoch(self.leader_epoch)]

    def _follow_leader(self, state: PartitionState) -> list[Action]:
        leader = state.leader
        if leader is None or leader.broker_id == self.broker_id or self.broker_id not in state.replicas:
            return self._leave_role(Role.IDLE, "leadership moved")
        if self.role is Role.FOLLOWING and state.leader_epoch == self.leader_epoch:
            return []
        actions = self._end_leadership("leadership moved")
        self.role = Role.FOLLOWING
        self.leader_epoch = LeaderEpoch(state.leader_epoch)
        self.fetches.follow(self.leader_epoch)
        return [*actions, Follow(leader, self.leader_epoch)]

    def _leave_role(self, role: Role, why: str) -> list[Action]:
        """Change to `role`, which neither leads nor follows, and stop leading or following."""
        actions = self._end_leadership(why)
        if self.role is Role.FOLLOWING:
            self.fetches.stop()
            actions.append(Unfollow())
        self.role = role
        return actions

    def _end_leadership(self, why: str) -> list[Action]:
        leadership, self.leadership = self.leadership, None
        return [] if leadership is None else leadership.end(why)

    def _finish_start(self, event: EpochPersisted) -> list[Action]:
        if event.leader_epoch != self.leader_epoch:
            return []
        assert self.state is not None
        self.role = Role.LEADING
        self.last_epoch = event.leader_epoch
        self.log_end_offset = event.start_offset
        self.flushed_offset = max(self.flushed_offset, event.start_offset)
        self.leadership = led = Leadership(self, self.state, event.at_ms, self._proposal_numbers)
        started = LeadershipStarted(self.leader_epoch, event.start_offset)
        return [started, *led.advance(), *led.advance_log_start()]

    # --- answers to a leader's writes of the key ---

    def _win_proposal(self, event: ProposalSucceeded) -> list[Action]:
        state = self._proposed(event.number)
        return [] if state is None else self._see_state(StateSeen(state, event.revision))

    def _fail_proposal(self, event: ProposalFailed) -> list[Action]:
        """Apply the stored state; if it is still the base of the write, the write failed because a session ended."""
        proposed = self._proposed(event.number)
        if event.state is not None and event.revision > self.revision:
            return self._see_state(StateSeen(event.state, event.revision))
        if self.leadership is None or proposed is None:
            return []
        return self.leadership.note_refused(event.number, proposed)

    def _proposed(self, number: int) -> PartitionState | None:
        return None if self.leadership is None else self.leadership.proposals.take_answer(number)

    # --- the log, in any role: the role may have changed during disk I/O ---

    def record_append(self, event: Appended) -> list[Action]:
        """Record appended batches; if leadership ended during the write, no reader sees them."""
        self.log_end_offset = max(self.log_end_offset, event.end_offset)
        if event.producer_id >= 0:
            self.producers.record(
                event.producer_id,
                event.producer_epoch,
                event.base_sequence,
                (event.end_offset - event.base_offset) // event.batches,
                base_offset=event.base_offset,
                at_ms=event.at_ms,
                batches=event.batches,
            )
        return []

    def _flush(self, event: Flushed) -> list[Action]:
        self.flushed_offset = max(self.flushed_offset, event.offset)
        return [] if self.leadership is None else self.leadership.advance()

    def _raise_log_start(self, event: LogStartRaised) -> list[Action]:
        assert event.log_start_offset >= self.log_start_offset, "the log start never falls (I18)"
        assert event.log_start_offset <= self.high_watermark, "retention stays below the high watermark (I18)"
        self.log_start_offset = event.log_start_offset
        return [] if self.leadership is None else self.leadership.note_log_start(event.log_start_offset)

    def _change_durability(self, event: DurabilityChanged) -> list[Action]:
        self.flushes = event.flushed_only
        self._seen_unflushed = self.high_watermark
        if self.leadership is None:
            return []
        self.leadership.recount()
        return self.leadership.advance()

    def may_cut_committed(self, last_batch_epoch: int) -> bool:
        """Return whether committed records may be truncated: the last batch precedes an unclean election."""
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
        """Adopt the leader's high watermark, limited to the log end; it never falls."""
        self.leader_high_watermark = Offset(event.high_watermark)
        high_watermark = min(self.leader_high_watermark, self.log_end_offset)
        if self.role is not Role.FOLLOWING or high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        return [HighWatermarkAdvanced(high_watermark)]

    # --- errors ---

    def _refuse_wait(self, event: AcknowledgementAwaited | LogStartAwaited) -> list[Action]:
        return [Abandon(event.token, self.lost("leadership was lost"))]

    def lost(self, why: str) -> HeadraceError:
        """Return the error for a wait of unknown outcome: the next leader may still commit the records (H52)."""
        return NotLeaderError(
            f"{why} while the acknowledgement was awaited", outcome=Outcome.UNKNOWN, leader=leader_hint(self.state)
        )

    # --- invariants ---

    def validate_state(self) -> None:
        """Assert the invariants of a single replica. Tests and the simulator call it after every event."""
        assert 0 <= self.log_start_offset <= self.high_watermark <= self.log_end_offset, "I8"
        assert self.flushed_offset <= self.log_end_offset
        leadership, state = self.leadership, self.state
        assert (leadership is not None) == (self.role is Role.LEADING), "a leadership exists exactly while it leads"
        if leadership is not None and state is not None:
            leadership.validate()
            if leadership.flushed_only and len(state.in_sync) >= state.min_insync_replicas:
                flushed = max(self.flushed_offset, leadership.start_offset, self._seen_unflushed)
                assert self.high_watermark <= flushed, "I9"
        self.producers.validate()


_Handler = Callable[[PartitionReplica, Any], list[Action]]

_IN_ANY_ROLE: dict[type[Event], _Handler] = {
    SessionStarted: PartitionReplica._start_session,
    SessionLost: PartitionReplica._lose_session,
    StateSeen: PartitionReplica._see_state,
    StateGone: PartitionReplica._see_gone,
    EpochPersisted: PartitionReplica._ignore,  # of an earlier epoch
    **dict.fromkeys(LEADER_EVENTS, PartitionReplica._ignore),  # leadership has ended since; the exceptions follow
    Appended: PartitionReplica.record_append,
    AcknowledgementAwaited: PartitionReplica._refuse_wait,
    LogStartAwaited: PartitionReplica._refuse_wait,
    ProposalSucceeded: PartitionReplica._win_proposal,
    ProposalFailed: PartitionReplica._fail_proposal,
    Flushed: PartitionReplica._flush,
    LogStartRaised: PartitionReplica._raise_log_start,
    BatchesReplicated: PartitionReplica._replicate,
    LogTruncated: PartitionReplica._log_truncated,
    LogRestarted: PartitionReplica._restart,
    LeaderReported: PartitionReplica._report,
    DurabilityChanged: PartitionReplica._change_durability,
    StorageFailed: PartitionReplica._fail,
}

_STAYS: dict[type[Event], _Handler] = dict.fromkeys(
    (SessionStarted, SessionLost, EpochPersisted, StorageFailed), PartitionReplica._ignore
)

# Handlers by role and event: a role's cells override `_IN_ANY_ROLE`; `None` means that the pair cannot occur.
_CELLS: dict[Role, dict[type[Event], _Handler | None]] = {
    Role.FENCED: {SessionLost: PartitionReplica._ignore},
    Role.IDLE: {SessionStarted: None},
    Role.FOLLOWING: {SessionStarted: None},
    Role.STARTING: {SessionStarted: None, EpochPersisted: PartitionReplica._finish_start},
    Role.LEADING: dict.fromkeys((SessionStarted, EpochPersisted, BatchesReplicated, LogTruncated, LogRestarted)),
    Role.OFFLINE: {**_STAYS},
    Role.DELETED: {**_STAYS, StateSeen: None, StateGone: None},
}

_TABLE: dict[tuple[Role, type[Event]], _Handler] = {
    (role, event): handler
    for role, cells in _CELLS.items()
    for event, handler in {**_IN_ANY_ROLE, **cells}.items()
    if handler is not None
}
