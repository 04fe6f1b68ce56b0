"""Replica fetch protocol: the leader validates and compares a follower's fetch, the follower applies the response.

Both sides read a `ReplicaLog` and write nothing: the driver performs the returned steps and reports their completion
to the core. Used by the broker and by the simulator. Source: PROTOCOL section 1.2 "Fetch"; KIP-101 and KIP-279
(truncation by epoch), KIP-320 (epochs in fetches), KIP-595 (divergence in the response).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headrace.wire.batch import BatchHeader
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import (
    FencedBrokerError,
    InvalidRequestError,
    OffsetNotAvailableError,
    Outcome,
    StorageOfflineError,
    UnknownLeaderEpochError,
)
from headrace.wire.ids import LeaderEpoch, Offset
from headrace_server.partition_state import Replica

from headrace_broker.core.replica import PartitionReplica
from headrace_broker.core.roles import Role, leader_hint


class ReplicaReader(Protocol):
    """Read access to batches, implemented by `headrace.log.log_reader.LogReader`, or without blocking."""

    def batch_with(self, offset: int) -> BatchHeader:
        """Return the header of the batch that contains `offset`."""
        ...

    def verify_from(self, offset: int, max_bytes: int) -> tuple[Offset, int]:
        """Verify at least the batch that contains `offset`; raise if it is corrupt."""
        ...

    def first_batch(self) -> tuple[Offset, int]:
        """Return base offset and `previous_crc` of the batch that contains the log start."""
        ...


class ReplicaLog(Protocol):
    """Log of one replica, implemented by `headrace.log.log.PartitionLog`."""

    @property
    def reader(self) -> ReplicaReader:
        """Reader of the log's batches."""
        ...

    @property
    def log_start_offset(self) -> Offset:
        """First readable offset."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record to be appended."""
        ...

    @property
    def last_crc(self) -> int:
        """`crc` of the last batch."""
        ...

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last batch; `-1` means that the log is empty."""
        ...

    @property
    def deletions_end(self) -> int:
        """Offset below which compaction may have removed deletions."""
        ...

    def epoch_end(self, leader_epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch <= `leader_epoch` and its end offset; `(-1, log start)` if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch request of a follower for one partition."""

    follower: Replica
    leader_epoch: int
    token: int
    offset: int  # log end offset of the follower
    durable_offset: int  # the follower has fsynced all below it
    last_epoch: int  # of the follower's last batch; -1 means that its log is empty
    last_crc: int  # of the follower's last batch
    high_watermark: int  # of the follower
    partition_epoch: int  # of the newest version of the key that the follower has seen
    read_offset: int = 0  # the response begins here if the follower is still writing what lies below; 0 means `offset`
    log_start_offset: int = 0  # of the follower
    deletions_end: int = 0  # of the follower
    leader_flushed_offset: int | None = None  # last one that the follower has used; `None` if its release uses none


@dataclass(frozen=True, slots=True)
class Diverged:
    """The logs diverge at or before `end_offset`, the leader's end of `leader_epoch`.

    With `is_compacted` they are of the same records, but the leader has no batch any more that ends where the
    follower's log does.
    """

    leader_epoch: int
    end_offset: int
    is_compacted: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """The follower's log has no part in common with the leader's; the follower must restart at `offset`.

    With `is_compacted` it lacks deletions that the leader does not have any more.
    """

    offset: int
    previous_crc: int
    is_compacted: bool = False


FetchDecision: TypeAlias = Diverged | Restart


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Response of the leader to one fetch. With a `decision` it has neither data nor high watermark (H7)."""

    token: int
    leader_epoch: int
    decision: FetchDecision | None = None
    batches: ReadableBuffer = b""
    high_watermark: int = 0
    log_start_offset: int = 0  # the follower must move its log start here; the leader moves its own later
    more: bool = False  # the leader's log continues after `batches`
    next_offset: int = 0  # where it continues; 0 means unknown
    deletions_end: int = 0  # of the leader
    flushed_offset: int = 0  # of the leader


# --- the leader's side ---


def check_fetch(replica: PartitionReplica, request: FetchRequest) -> None:
    """Raise an error if this replica must not answer the fetch.

    Raises:
        HeadraceError: As `PartitionReplica.check_leading`.
        FencedBrokerError: If a newer session of the follower has fetched, or if the fetch was sent before the
            follower's fence in the key and therefore describes an older log.
        InvalidRequestError: If the follower has no replica, the leader epoch is missing, or offsets are inconsistent.
    """
    if request.leader_epoch < 0:
        raise InvalidRequestError(f"a replica fetch names its leader epoch, not {request.leader_epoch}")
    leadership = replica.check_leading(request.leader_epoch)
    follower = request.follower
    state = leadership.state
    if follower.broker_id not in state.replicas or follower.broker_id == replica.broker_id:
        raise InvalidRequestError(
            f"broker {follower.broker_id} holds no replica of this partition",
            action="Wait for the metadata: the partition was reassigned.",
        )
    if request.partition_epoch < state.fetches_count_from(follower.broker_id):
        raise FencedBrokerError(
            f"the fetch is of a replica that broker {follower.broker_id} had before", outcome=Outcome.NOT_APPLIED
        )
    if follower.broker_epoch < leadership.followers.last_session(follower.broker_id):
        raise FencedBrokerError(
            f"broker {follower.broker_id} fetched in a later session already", outcome=Outcome.NOT_APPLIED
        )
    if not 0 <= request.durable_offset <= request.offset:
        raise InvalidRequestError(f"durable offset {request.durable_offset} is not within 0 to {request.offset}")
    if request.read_offset and not request.offset < request.read_offset < replica.log_end_offset:
        raise InvalidRequestError(
            f"a fetch of what has been sent up to {request.read_offset} is behind {request.offset} and before this "
            f"log's end, {replica.log_end_offset}"
        )


def compare_logs(log: ReplicaLog, request: FetchRequest, reader: ReplicaReader | None = None) -> FetchDecision | None:
    """Compare the follower's log with this one; `None` means that they are equal below `offset` (H1, H2, H3).

    May read batch headers by `reader`; `None` means `log.reader`, which may block. Truncation is by epoch only: the
    response contains the largest epoch that both logs may have and its end in this log. If the epochs agree but the CRC
    chain differs, the follower goes back one batch.

    A compacted log has the same offsets, epochs and chain (`headrace.log.log_compaction`). But a follower that was away
    may end within a batch that compaction has made of several: it goes back to the start of that. Or it may have
    missed the deletion of a record that it has, if the deletion is gone here: it copies the log from its start.
    """
    offset, reader = request.offset, reader or log.reader
    first = reader.first_batch() if offset <= log.log_start_offset else None
    if first is not None and offset < log.log_start_offset:
        if offset < first[0]:
            return Restart(*first)
        if offset > first[0] and reader.batch_with(log.log_start_offset).is_compacted:
            return Restart(*first, is_compacted=True)  # The follower ends within the first batch.
    elif (offset, request.last_crc) == first:
        return None  # Of an emptied log only a later epoch may be left.
    if request.last_epoch >= 0:
        epoch, end_offset = log.epoch_end(request.last_epoch)
        if epoch < 0:  # This log has only later epochs left.
            return Restart(*reader.first_batch())
        if epoch != request.last_epoch or end_offset < offset:
            return Diverged(epoch, end_offset)
    elif offset > log.log_end_offset:
        return Diverged(-1, log.log_end_offset)
    if _may_miss(log.log_start_offset, offset, request.deletions_end, log.deletions_end):
        return Restart(*reader.first_batch(), is_compacted=True)
    if first is not None:
        is_copy = (offset, request.last_crc) == first
    elif offset == log.log_end_offset and request.last_crc == log.last_crc:
        is_copy = True
    else:  # Also reached if a concurrent append has just moved the log end; data before `offset` does not change.
        before = reader.batch_with(offset - 1)
        if before.is_compacted and before.end_offset > offset:
            return Diverged(request.last_epoch, before.base_offset, is_compacted=True)
        is_copy = before.end_offset == offset and before.chain_crc == request.last_crc
    if is_copy:
        return None
    return Restart(*first) if first is not None else _one_batch_back(log, request, reader)


def must_report_flush(replica: PartitionReplica, request: FetchRequest) -> bool:
    """Return whether a waiting fetch must be answered with the flushed offset: the follower has not flushed as far.

    Each replica counts the records and the time of its next flush for itself, and would flush as far only by its own.
    """
    leadership, known_offset = replica.leadership, request.leader_flushed_offset
    if known_offset is None or leadership is None or not leadership.flushed_only:
        return False
    return max(known_offset, request.durable_offset) < min(replica.flushed_offset, request.offset)


def _may_miss(start_offset: int, end_offset: int, deletions_end: int, leaders_deletions_end: int) -> bool:
    """Return whether a follower's log may have records whose deletions the leader has removed (H151).

    `start_offset` is the leader's log start, or what it will be.
    """
    return start_offset < end_offset < leaders_deletions_end and deletions_end < leaders_deletions_end


def _one_batch_back(log: ReplicaLog, request: FetchRequest, reader: ReplicaReader) -> FetchDecision:
    """Send the follower back by one batch: the epochs agree but the CRC chain differs, so that one log is corrupt.

    Raise if the corrupt log is this one: a follower with an intact log must not truncate it (I17).
    """
    base_offset = reader.batch_with(request.offset - 1).base_offset
    reader.verify_from(max(base_offset, log.log_start_offset), 1)
    return Restart(*reader.first_batch()) if request.last_epoch < 0 else Diverged(request.last_epoch, base_offset)


# --- the follower's side ---


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the log to `offset`, rebuild the producers, then report `LogTruncated`; see `truncate_or_reset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Reset the log to `offset`, forget the producers, then report `LogRestarted`."""

    offset: int
    previous_crc: int


@dataclass(frozen=True, slots=True)
class AppendBatches:
    """Append `batches` (may be empty), report `BatchesReplicated`, then `LeaderReported`, and raise the log start."""

    batches: ReadableBuffer
    high_watermark: int
    log_start_offset: int
    more: bool
    next_offset: int = 0
    deletions_end: int = 0
    flushed_offset: int = 0


@dataclass(frozen=True, slots=True)
class Refetch:
    """Discard the answer and fetch from the log end."""


Step: TypeAlias = TruncateTo | ResetLog | AppendBatches | Refetch


def next_step(replica: PartitionReplica, log: ReplicaLog, answer: FetchAnswer) -> Step | None:
    """Return the step that the follower must perform, or `None` if the response is late or unexpected (H6).

    The fetch is then complete: the next one may be sent, whether or not the step succeeds.

    Raises:
        StorageOfflineError: If the response would truncate records that are committed here and there was no unclean
            election (I18). The replica must stop.
    """
    ahead_offset = replica.fetches.ahead_offset
    if not replica.fetches.take_answer(answer.token, answer.leader_epoch):
        return None
    if ahead_offset and (answer.decision is not None or log.log_end_offset != ahead_offset):
        return Refetch()  # The decision is about the log before the batches that have been written since.
    start_offset = max(log.log_start_offset, answer.log_start_offset)
    if len(answer.batches) and _may_miss(start_offset, log.log_end_offset, log.deletions_end, answer.deletions_end):
        return Refetch()  # The leader has removed deletions since it compared the logs.
    match answer.decision:
        case Diverged(leader_epoch, end_offset) as decision:
            target = min(log.epoch_end(leader_epoch)[1], end_offset)
            _check_cut(replica, log, decision, answer.leader_epoch, target)
            return TruncateTo(target)
        case Restart(offset, previous_crc) as decision:
            _check_cut(replica, log, decision, answer.leader_epoch, offset)
            return ResetLog(offset, previous_crc)
        case None:
            return AppendBatches(
                answer.batches,
                answer.high_watermark,
                answer.log_start_offset,
                answer.more,
                answer.next_offset,
                answer.deletions_end,
                answer.flushed_offset,
            )


def truncate_or_reset(log: ReplicaLog, step: TruncateTo) -> TruncateTo | ResetLog:
    """Return the reset that takes the place of a truncation below the log start, else `step`. May read a batch header.

    A truncation removes the whole batch that `offset` lies inside.
    """
    end_offset = step.offset
    if log.log_start_offset <= end_offset < log.log_end_offset:
        end_offset = log.reader.batch_with(end_offset).base_offset
    return step if end_offset >= log.log_start_offset else ResetLog(step.offset, 0)


def _check_cut(
    replica: PartitionReplica, log: ReplicaLog, decision: FetchDecision, leader_epoch: int, target: int
) -> None:
    may_cut = decision.is_compacted or replica.may_cut_committed(log.last_batch_epoch)
    if target < replica.high_watermark and not may_cut:
        raise StorageOfflineError(
            f"the response of leader epoch {leader_epoch} would truncate to offset {target}, below the high "
            f"watermark {replica.high_watermark}, and there was no unclean election",
            outcome=Outcome.NOT_APPLIED,
            action="Keep this broker's data and the leader's: one of them lost records.",
        )


# --- readers ---


def check_reader(replica: PartitionReplica, log: ReplicaLog, offset: int, last_epoch: int) -> Diverged | None:
    """Return where the log that a consumer has read diverges from this one, or `None` if it does not.

    The consumer has read up to `offset`, its last record in `last_epoch`. Epochs that retention has deleted are not
    checked: their records are gone on every replica. A follower checks only committed offsets, because above the high
    watermark its log may be shorter than the leader's or differ from it.

    Raises:
        UnknownLeaderEpochError: If `last_epoch` is newer than the epoch of this replica; retriable.
        OffsetNotAvailableError: If this replica is a follower and `offset` is above its high watermark; retriable.
    """
    if last_epoch > replica.leader_epoch:
        raise UnknownLeaderEpochError(
            f"the reader has leader epoch {last_epoch}, this replica has {replica.leader_epoch}",
            leader=leader_hint(replica.state),
        )
    if replica.role is Role.FOLLOWING and offset > replica.high_watermark:
        raise OffsetNotAvailableError(
            f"offset {offset} is above this follower's high watermark {replica.high_watermark}"
        )
    if last_epoch == replica.leader_epoch and offset <= log.log_end_offset:
        return None
    epoch, end_offset = log.epoch_end(last_epoch)
    if epoch < 0 or (epoch == last_epoch and offset <= end_offset):
        return None
    return Diverged(epoch, end_offset)
