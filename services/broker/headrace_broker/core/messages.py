"""The events that a `PartitionReplica` handles and the actions that it returns.

All are frozen. The driver of the replica performs the actions of one `handle` call in order before the next event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.wire.batch import BatchHeader
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_server.partition_state import PartitionState, Replica

# --- events ---


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """The broker registered: it may lead what names this epoch."""

    broker_epoch: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The registration is gone (a received time-to-live of 0, the own key deleted): nothing may be led or served."""


@dataclass(frozen=True, slots=True)
class StateSeen:
    """The partition's key, as the watch brought it, at the revision of its last write."""

    state: PartitionState
    revision: int


@dataclass(frozen=True, slots=True)
class StateGone:
    """The partition's key was deleted: the topic is gone."""

    revision: int


@dataclass(frozen=True, slots=True)
class EpochPersisted:
    """`PersistEpoch` is done: the epoch's start is on stable storage, and all below it too."""

    leader_epoch: LeaderEpoch
    start_offset: Offset
    at_ms: int = 0  # monotonic


@dataclass(frozen=True, slots=True)
class Appended:
    """One batch was appended by this leader; only after `check_batch` gave its place."""

    base_offset: Offset
    end_offset: Offset
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything below `offset` is on stable storage."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AcknowledgementAwaited:
    """Answer `token` once the high watermark reaches `end_offset` in `leader_epoch`."""

    token: int
    end_offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class AcknowledgementDropped:
    """The caller of `token` no longer waits (its time is over)."""

    token: int


@dataclass(frozen=True, slots=True)
class LogStartWanted:
    """Retention, or DeleteRecords, wants the records below `offset` gone; at most the high watermark."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class LogStartAwaited:
    """Answer `token` once every in-sync replica of `leader_epoch` begins at `offset` or behind."""

    token: int
    offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LogStartRaised:
    """The log begins at `log_start_offset` from now on, also after a loss of power."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class FollowerFetched:
    """A follower's fetch was verified: below `offset` its log is this one's (`replica_fetch.compare_logs`)."""

    follower: Replica
    offset: Offset
    durable_offset: Offset
    at_ms: int  # monotonic
    may_join: bool  # it is registered in this session and does not stop (KIP-841)
    log_start_offset: int = 0  # where its log begins


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: followers may have fallen behind, a write without an answer may be due again."""

    at_ms: int  # monotonic
    heard_ms: Mapping[Replica, int]  # when each follower sent its last heartbeat
    may_join: Collection[Replica]  # registered sessions of brokers that do not stop (KIP-841)


@dataclass(frozen=True, slots=True)
class PauseOver:
    """`LimitPause` number `number` was `HAND_OVER_MS` ago."""

    number: int
    at_ms: int  # monotonic


@dataclass(frozen=True, slots=True)
class ProposalSucceeded:
    """The write of `Propose` number `number` happened, at `revision`."""

    number: int
    revision: int


@dataclass(frozen=True, slots=True)
class ProposalFailed:
    """A compare of the write failed: certainly it did not happen. `state` is the key as it stood then, None: gone."""

    number: int
    state: PartitionState | None
    revision: int  # mod_revision of `state`


@dataclass(frozen=True, slots=True)
class ProposalUnanswered:
    """Whether the write happened, or will, is unknown (C2)."""

    number: int


@dataclass(frozen=True, slots=True)
class BatchesReplicated:
    """Batches of the leader were appended, as an answer said that `FollowerFetches.take_answer` let pass."""

    headers: Sequence[BatchHeader]


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The end of the log was cut, and it and all that was left is on stable storage; `producers` are rebuilt."""

    log_end_offset: Offset


@dataclass(frozen=True, slots=True)
class LogRestarted:
    """Everything was thrown away: log start, log end and high watermark are `offset` (H8)."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class LeaderReported:
    """The leader's high watermark, of an answer whose batches, if any, were appended."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class DurabilityChanged:
    """The topic's settings say whether only flushed records count (durability=fsync, or a flush policy is set)."""

    flushed_only: bool


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The log met an I/O error or corruption; it is not used again by this process."""

    reason: str
    corrupt: bool = False  # records are missing or changed that were on stable storage


Event = (
    SessionStarted
    | SessionLost
    | StateSeen
    | StateGone
    | EpochPersisted
    | Appended
    | Flushed
    | AcknowledgementAwaited
    | AcknowledgementDropped
    | LogStartWanted
    | LogStartAwaited
    | LogStartRaised
    | FollowerFetched
    | Ticked
    | PauseOver
    | ProposalSucceeded
    | ProposalFailed
    | ProposalUnanswered
    | BatchesReplicated
    | LogTruncated
    | LogRestarted
    | LeaderReported
    | DurabilityChanged
    | StorageFailed
)

# --- actions ---


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Make (leader_epoch, log end) durable, flush all below it, then report `EpochPersisted`."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LeadershipStarted:
    """Produce and fetch are served from now on."""

    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """Produce and fetch are refused from now on."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Records below `high_watermark` are visible: wake fetches."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class AnnounceLogStart:
    """Answer the followers' fetches that wait: they take up a new log start."""


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    """Every in-sync replica begins at `offset` or behind: make the log begin there, then report `LogStartRaised`."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Answer a waiting call: its records are committed, or deleted at every in-sync replica."""

    token: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Answer a waiting call with an error; its outcome is unknown."""

    token: int
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Propose:
    """Write `state` over the version at `base_revision`, comparing the registrations of `sessions` (C1).

    Answered by one of the three `Proposal...` events with the same number.
    """

    number: int
    state: PartitionState
    base_revision: int
    sessions: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class LimitPause:
    """Appends stop for a hand-over: report `PauseOver` with the same number in `hand_over.HAND_OVER_MS`."""

    number: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Fetch from `leader`; in place of whom was followed before."""

    leader: Replica
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Fetch no more."""


@dataclass(frozen=True, slots=True)
class LeaveInSync:
    """Take this broker out of the key by compare-and-swap, as `partition_state.leave_failed` says."""

    corrupt: bool


Action = (
    PersistEpoch
    | LeadershipStarted
    | LeadershipEnded
    | HighWatermarkAdvanced
    | AnnounceLogStart
    | RaiseLogStart
    | Acknowledge
    | Abandon
    | Propose
    | LimitPause
    | Follow
    | Unfollow
    | LeaveInSync
)
