"""What a `PartitionReplica` is told (events) and what it asks for (actions).

All are frozen. Whoever drives the replica performs the actions of one `handle` call in order before the next event.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.wire.errors import HeadraceError
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_server.partition_state import PartitionState

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
    """`token` is to be answered once the high watermark reaches `end_offset` in `leader_epoch`."""

    token: int
    end_offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class AcknowledgementDropped:
    """Nobody waits for `token` any more (its time is over)."""

    token: int


@dataclass(frozen=True, slots=True)
class LogStartRaised:
    """Retention or DeleteRecords moved the log start."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class DurabilityChanged:
    """The topic's settings say whether only flushed records count (durability=fsync, or a flush policy is set)."""

    flushed_only: bool


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The log met an I/O error or damage; it is not used again by this process."""

    reason: str


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
    | LogStartRaised
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
class Acknowledge:
    """Answer a waiting produce: its records are committed."""

    token: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Answer a waiting produce with an error; its outcome is unknown."""

    token: int
    error: HeadraceError


Action = PersistEpoch | LeadershipStarted | LeadershipEnded | HighWatermarkAdvanced | Acknowledge | Abandon
