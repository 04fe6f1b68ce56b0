"""One partition replica as a pure state machine: who may append and read, what is visible, what is acknowledged.

Driven by `headrace_broker.runtime.partition` and by the simulator. `handle(event)` gives the actions to perform; the
`check_*` methods answer for the hot path and change nothing. Keeps I4, I5, I8, I9, I10, I11, I20 for this replica.
Source: PROTOCOL section 1.2, after Kafka's replication (KIP-101, KIP-320, KIP-497, KIP-966). One replica is in effect
today: the high watermark's rule is written for n, and a follower's acknowledged offset has its place in
`_acknowledged`.
"""

from __future__ import annotations

import heapq
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
from headrace_server.partition_state import PartitionState, Replica, check_shape

from headrace_broker.core.messages import (
    Abandon,
    Acknowledge,
    AcknowledgementAwaited,
    AcknowledgementDropped,
    Action,
    Appended,
    DurabilityChanged,
    EpochPersisted,
    Event,
    Flushed,
    HighWatermarkAdvanced,
    LeadershipEnded,
    LeadershipStarted,
    LogStartRaised,
    PersistEpoch,
    SessionLost,
    SessionStarted,
    StateGone,
    StateSeen,
    StorageFailed,
)
from headrace_broker.core.producers import Duplicate, ProducerWindows


class Role(Enum):
    """What the replica may do."""

    FENCED = auto()  # the broker has no session
    IDLE = auto()  # it has a session; the key names another leader, or none, or was not seen yet
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
    ) -> None:
        """Start fenced over an opened log. `high_watermark` is the checkpointed one, within log start .. log end."""
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
        self.flushed_only = flushed_only
        self.producers = producers
        self.offline_reason = ""
        # The high watermark when unflushed records stopped counting: it never falls.
        self._seen_unflushed = Offset(0)
        # Offsets that other replicas acknowledged in this leader epoch (H5): empty until followers come.
        self._acknowledged: dict[Replica, Offset] = {}
        # Members of proposals to change the in-sync set that are not resolved (H11, H12).
        self._proposed: tuple[Replica, ...] = ()
        self._pending: list[tuple[int, int]] = []  # heap of (end offset, token)
        self._waiting: set[int] = set()  # tokens of `_pending` that somebody still waits for

    # --- the hot path: questions ---

    def check_leading(self, known_epoch: int) -> None:
        """Raise unless this replica leads and `known_epoch` (-1: not known) is its epoch.

        Raises:
            NotLeaderError, LeaderNotAvailableError, FencedLeaderEpochError, UnknownLeaderEpochError,
            StorageOfflineError, FencedBrokerError, UnknownTopicIdError: all definite.
        """
        if self.role is not Role.LEADING:
            raise self._not_leading()
        if known_epoch in (-1, self.leader_epoch):
            return
        hint = LeaderHint(self.broker_id, self.leader_epoch)
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
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
    ) -> Duplicate | None:
        """As `ProducerWindows.check`; None for a batch without a producer."""
        if producer_id < 0:
            return None
        return self.producers.check(producer_id, producer_epoch, base_sequence, record_count)

    def check_read(self, offset: int) -> None:
        """Raise where a consumer may not read at `offset`.

        At or above the high watermark, up to the log end, there is nothing yet: that is no error (H10).

        Raises:
            OffsetNotAvailableError: above the log end while the high watermark is below this epoch's start; retriable.
            OffsetOutOfRangeError: outside log start .. log end.
        """
        if self.log_start_offset <= offset <= self.log_end_offset:
            return
        if offset > self.log_end_offset and self.high_watermark < self.start_offset:
            raise OffsetNotAvailableError(f"offset {offset} cannot be judged yet: the leader has just started")
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {self.log_start_offset} .. {self.log_end_offset}", outcome=Outcome.NOT_APPLIED
        )

    def check_latest(self) -> None:
        """Raise OffsetNotAvailableError until the high watermark has reached this epoch's start (H10)."""
        if self.high_watermark < self.start_offset:
            raise OffsetNotAvailableError("the high watermark is not known yet: the leader has just started")

    # --- state changes ---

    def handle(self, event: Event) -> list[Action]:
        """Take one event and give what is to be done, in order. A pair that `_TABLE` does not have is a bug."""
        handler = _TABLE.get((self.role, type(event)))
        assert handler is not None, f"{type(event).__name__} while {self.role.name}"
        return handler(self, event)

    def _ignore(self, event: Event) -> list[Action]:
        return []

    def _start_session(self, event: SessionStarted) -> list[Action]:
        assert event.broker_epoch > self.broker_epoch, "broker epochs rise (I13)"
        self.broker_epoch = event.broker_epoch
        self.role = Role.IDLE
        return self._follow_key()

    def _lose_session(self, event: SessionLost) -> list[Action]:
        actions = self._end_leadership("the broker lost its registration")
        self.role = Role.FENCED
        return actions

    def _see_state(self, event: StateSeen) -> list[Action]:
        if event.revision <= self.revision:
            return []
        check_shape(event.state)
        if self.state is not None:
            assert event.state.leader_epoch >= self.state.leader_epoch, "leader epochs never fall (I11)"
        self.state, self.revision = event.state, event.revision
        self._proposed = ()
        if self.role in (Role.FENCED, Role.OFFLINE):
            return []
        return self._follow_key()

    def _see_gone(self, event: StateGone) -> list[Action]:
        actions = self._end_leadership("the topic was deleted")
        self.role = Role.DELETED
        self.revision = event.revision
        return actions

    def _follow_key(self) -> list[Action]:
        """Take the role that the key gives: leader iff it names this broker in its current session (I12)."""
        state = self.state
        if state is None:
            return []
        if state.leader != Replica(self.broker_id, self.broker_epoch):
            actions = self._end_leadership("leadership moved")
            self.role = Role.IDLE
            return actions
        if self.role in (Role.STARTING, Role.LEADING) and state.leader_epoch == self.leader_epoch:
            return self._judge_in_sync() if self.role is Role.LEADING else []
        actions = self._end_leadership("a new leader epoch began")
        self.role = Role.STARTING
        self.leader_epoch = LeaderEpoch(state.leader_epoch)
        self._acknowledged = {}
        actions.append(PersistEpoch(self.leader_epoch))
        return actions

    def _finish_start(self, event: EpochPersisted) -> list[Action]:
        if event.leader_epoch != self.leader_epoch:
            return []
        self.role = Role.LEADING
        self.last_epoch = event.leader_epoch
        self.start_offset = self.log_end_offset = event.start_offset
        self.flushed_offset = max(self.flushed_offset, event.start_offset)
        return [LeadershipStarted(self.leader_epoch, self.start_offset), *self._advance()]

    def _end_leadership(self, why: str) -> list[Action]:
        if self.role not in (Role.STARTING, Role.LEADING):
            return []
        actions: list[Action] = [LeadershipEnded(self.leader_epoch)] if self.role is Role.LEADING else []
        self.start_offset = Offset(-1)
        return [*actions, *self._abandon_all(lambda: self._lost(why))]

    def _append(self, event: Appended) -> list[Action]:
        assert event.base_offset == self.log_end_offset, "offsets are contiguous (I6)"
        assert event.end_offset > event.base_offset
        self.log_end_offset = event.end_offset
        if event.producer_id >= 0:
            self.producers.record(
                event.producer_id,
                event.producer_epoch,
                event.base_sequence,
                event.end_offset - event.base_offset,
                base_offset=event.base_offset,
                at_ms=event.at_ms,
            )
        return [] if self.flushed_only else self._advance()

    def _note_append(self, event: Appended) -> list[Action]:
        """Take in a batch that was being written while leadership ended: it is in the log, visible to nobody."""
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
        heapq.heappush(self._pending, (event.end_offset, event.token))
        self._waiting.add(event.token)
        return []

    def _refuse_await(self, event: AcknowledgementAwaited) -> list[Action]:
        return [Abandon(event.token, self._lost("leadership was lost"))]

    def _drop(self, event: AcknowledgementDropped) -> list[Action]:
        self._waiting.discard(event.token)
        return []

    def _raise_log_start(self, event: LogStartRaised) -> list[Action]:
        assert event.log_start_offset >= self.log_start_offset, "the log start never falls (I18)"
        assert event.log_start_offset <= self.high_watermark, "retention stays below the high watermark (I18)"
        self.log_start_offset = event.log_start_offset
        return []

    def _change_durability(self, event: DurabilityChanged) -> list[Action]:
        self.flushed_only = event.flushed_only
        self._seen_unflushed = self.high_watermark
        return self._advance() if self.role is Role.LEADING else []

    def _fail(self, event: StorageFailed) -> list[Action]:
        actions = self._end_leadership("the log failed")
        self.role = Role.OFFLINE
        self.offline_reason = event.reason
        return actions

    def _judge_in_sync(self) -> list[Action]:
        """After a change of the in-sync set: pending appends may be committed, or cannot be any more (H13)."""
        assert self.state is not None
        actions = self._advance()
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
        own = Replica(self.broker_id, self.broker_epoch)
        least = self._own_offset()
        for member in (*state.in_sync, *self._proposed):
            if member != own:
                least = min(least, self._acknowledged.get(member, Offset(0)))
        least = min(least, self.log_end_offset)
        if least <= self.high_watermark:
            return []
        self.high_watermark = least
        actions: list[Action] = [HighWatermarkAdvanced(least)]
        while self._pending and self._pending[0][0] <= least:
            token = heapq.heappop(self._pending)[1]
            if token in self._waiting:
                self._waiting.remove(token)
                actions.append(Acknowledge(token))
        return actions

    def _abandon_all(self, error: Callable[[], HeadraceError]) -> list[Action]:
        tokens = [token for _, token in sorted(self._pending) if token in self._waiting]
        self._pending.clear()
        self._waiting.clear()
        return [Abandon(token, error()) for token in tokens]

    # --- errors ---

    def _lost(self, why: str) -> HeadraceError:
        """Say that a wait ended without an answer: the records may be committed by the next leader (H52)."""
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
            case Role.IDLE:
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
        assert all(end > self.high_watermark for end, token in self._pending if token in self._waiting), "I9"
        assert self._waiting <= {token for _, token in self._pending}
        if self.role is Role.LEADING:
            assert self.state is not None
            assert self.state.leader == Replica(self.broker_id, self.broker_epoch), "I12"
            assert self.leader_epoch == self.state.leader_epoch == self.last_epoch, "I5"
            assert 0 <= self.start_offset <= self.log_end_offset
            if self.flushed_only and len(self.state.in_sync) >= self.state.min_insync_replicas:
                assert self.high_watermark <= max(self.flushed_offset, self.start_offset, self._seen_unflushed), "I9"
        else:
            assert not self._waiting, f"nobody waits at a replica that is {self.role.name}"
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
    LogStartRaised: PartitionReplica._raise_log_start,
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
    Role.STARTING: {SessionStarted: None, EpochPersisted: PartitionReplica._finish_start},
    Role.LEADING: {
        SessionStarted: None,
        EpochPersisted: None,
        Appended: PartitionReplica._append,
        AcknowledgementAwaited: PartitionReplica._await,
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
