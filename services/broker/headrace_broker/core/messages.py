"""The events that a `PartitionReplica` handles and the actions that it returns.

All are immutable. The driver performs the actions of one `handle` call, in order, before it passes the next event.
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
    """The broker registered: it may lead partitions whose key names `broker_epoch`."""

    broker_epoch: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The registration ended (lease TTL of 0 received, or own key deleted): the broker must not lead or serve."""


@dataclass(frozen=True, slots=True)
class StateSeen:
    """The watch delivered the partition's key; `revision` is that of its last write."""

    state: PartitionState
    revision: int


@dataclass(frozen=True, slots=True)
class StateGone:
    """The partition's key was deleted, because its topic was."""

    revision: int


@dataclass(frozen=True, slots=True)
class EpochPersisted:
    """`PersistEpoch` is complete: the epoch's start and all records below it are on stable storage."""

    leader_epoch: LeaderEpoch
    start_offset: Offset
    at_ms: int = 0  # monotonic


@dataclass(frozen=True, slots=True)
class Appended:
    """This leader appended one batch, or a run of one producer that continues its sequence, at consecutive offsets."""

    base_offset: Offset
    end_offset: Offset
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    at_ms: int = 0
    batches: int = 1
    """Number of batches, which have the same number of records."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything below `offset` is on stable storage."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AcknowledgementAwaited:
    """A call, `token`, waits until the high watermark reaches `end_offset` in `leader_epoch`."""

    token: int
    end_offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class AcknowledgementDropped:
    """The caller of `token` no longer waits: its deadline has passed."""

    token: int


@dataclass(frozen=True, slots=True)
class LogStartWanted:
    """Retention or DeleteRecords requests deletion of the records below `offset`, at most the high watermark."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class LogStartAwaited:
    """A call, `token`, waits until the log start of every in-sync replica of `leader_epoch` is `offset` or later."""

    token: int
    offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LogStartRaised:
    """The log start is now `log_start_offset`, on stable storage."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class FollowerFetched:
    """A follower's fetch was verified: its log equals this one below `offset` (`replica_fetch.compare_logs`)."""

    follower: Replica
    offset: Offset
    durable_offset: Offset
    at_ms: int  # monotonic
    may_join: bool  # registered in this session and not stopping (KIP-841)
    log_start_offset: int = 0  # of the follower


@dataclass(frozen=True, slots=True)
class Ticked:
    """Periodic check for followers that have fallen behind and for writes without an answer that are due again."""

    at_ms: int  # monotonic
    heard_ms: Mapping[Replica, int]  # when the last heartbeat of each follower arrived
    may_join: Collection[Replica]  # registered sessions of brokers that are not stopping (KIP-841)


@dataclass(frozen=True, slots=True)
class PauseOver:
    """`HAND_OVER_MS` have passed since the `LimitPause` with this number."""

    number: int
    at_ms: int  # monotonic


@dataclass(frozen=True, slots=True)
class ProposalSucceeded:
    """The write of the `Propose` with this number was applied at `revision`."""

    number: int
    revision: int


@dataclass(frozen=True, slots=True)
class ProposalFailed:
    """A compare of the write failed, so it was not applied. `state` is the key at that time; `None` means deleted."""

    number: int
    state: PartitionState | None
    revision: int  # mod_revision of `state`


@dataclass(frozen=True, slots=True)
class ProposalUnanswered:
    """The outcome of the write is unknown: it may have been applied, or may be applied later (C2)."""

    number: int


@dataclass(frozen=True, slots=True)
class BatchesReplicated:
    """The batches of a response that `FollowerFetches.take_answer` accepted were appended."""

    headers: Sequence[BatchHeader]


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The log was truncated to `log_end_offset` and flushed; `producers` are rebuilt."""

    log_end_offset: Offset


@dataclass(frozen=True, slots=True)
class LogRestarted:
    """The log was reset: log start, log end and high watermark are `offset` (H8)."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class LeaderReported:
    """The leader's high watermark, from a response whose batches, if any, were appended."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class DurabilityChanged:
    """The topic's settings changed whether only flushed records count (durability=fsync or a flush policy)."""

    flushed_only: bool


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The log had an I/O error or is corrupt; this process does not use it again."""

    reason: str
    corrupt: bool = False  # records that were on stable storage are missing or changed


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
    """Persist `leader_epoch` with the log end as its start, flush all below it, then report `EpochPersisted`."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LeadershipStarted:
    """Serve produce and fetch requests from now on."""

    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """Reject produce and fetch requests from now on."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Wake waiting fetches: records below `high_watermark` are visible."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class AnnounceLogStart:
    """Answer waiting fetches of followers, so that they receive the new log start."""


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    """Move the log start to `offset`, as every in-sync replica has done, then report `LogStartRaised`."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Complete a waiting call: its records are committed, or deleted on every in-sync replica."""

    token: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Fail a waiting call; its outcome is unknown."""

    token: int
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Propose:
    """Replace the version at `base_revision` by `state`, comparing the registrations of `sessions` (C1).

    The driver reports one of the three `Proposal...` events with the same number.
    """

    number: int
    state: PartitionState
    base_revision: int
    sessions: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class LimitPause:
    """Report `PauseOver` with the same number after `hand_over.HAND_OVER_MS`; appends are paused until then."""

    number: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Fetch from `leader` instead of any previous leader."""

    leader: Replica
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Stop fetching."""


@dataclass(frozen=True, slots=True)
class LeaveInSync:
    """Remove this broker from the key by compare-and-swap; see `partition_state.leave_failed`."""

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
