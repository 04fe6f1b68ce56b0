"""Replica fetch: what a leader makes of a follower's request, and a follower of the leader's answer.

Both replicas' halves of the protocol over a `ReplicaLog`, without I/O of their own: the shell performs the steps and
reports them to the core. Used by the broker and by the simulator. Source: PROTOCOL section 1.2 "Fetch"; KIP-101 and
KIP-279 (truncation by epoch), KIP-320 (epochs in fetches), KIP-595 (divergence in the answer).
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
    """What the protocol reads of a log; `headrace.log.log_reader.LogReader`."""

    def batch_before(self, offset: int) -> BatchHeader | None:
        """Return the header of the batch that ends at `offset`, or None."""
        ...

    def batch_with(self, offset: int) -> BatchHeader:
        """Return the header of the batch that holds `offset`."""
        ...

    def verify_from(self, offset: int, max_bytes: int) -> tuple[Offset, int]:
        """Check at least the batch that holds `offset`; raises where it is corrupt."""
        ...

    def first_batch(self) -> tuple[Offset, int]:
        """Base offset and `previous_crc` of the batch that holds the log start."""
        ...


class ReplicaLog(Protocol):
    """What the protocol asks of a log; `headrace.log.log.PartitionLog`."""

    @property
    def reader(self) -> ReplicaReader:
        """What reads its batches."""
        ...

    @property
    def log_start_offset(self) -> Offset:
        """The first offset that may be read."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """The offset that the next record will get."""
        ...

    @property
    def last_crc(self) -> int:
        """The `crc` of the last batch."""
        ...

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last batch; -1: none."""
        ...

    def epoch_end(self, leader_epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch <= `leader_epoch` and where it ends; (-1, log start) for none."""
        ...


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One fetch of one partition, as its follower sends it."""

    follower: Replica
    leader_epoch: int
    token: int
    offset: int  # the follower's log end
    durable_offset: int  # fsynced there
    last_epoch: int  # of its last batch; -1: none
    last_crc: int  # of its last batch
    high_watermark: int  # as it knows it
    partition_epoch: int  # of the key as it knows it
    read_offset: int = 0  # where the answer begins while what lies before is being written; 0: at `offset`
    log_start_offset: int = 0  # where its log begins


@dataclass(frozen=True, slots=True)
class Diverged:
    """The logs part at `end_offset` of `leader_epoch` or before."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """What the follower has lies below the leader's log start: begin at `offset`."""

    offset: int
    previous_crc: int


FetchDecision: TypeAlias = Diverged | Restart


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """What the leader says to one fetch. With a `decision` there is neither data nor high watermark (H7)."""

    token: int
    leader_epoch: int
    decision: FetchDecision | None = None
    batches: ReadableBuffer = b""
    high_watermark: int = 0
    log_start_offset: int = 0  # where the follower's log is to begin; the leader's begins there later
    more: bool = False  # the leader's log continues after `batches`
    next_offset: int = 0  # where it does; 0: not said


# --- the leader's side ---


def check_fetch(replica: PartitionReplica, request: FetchRequest) -> None:
    """Raise where this replica must not answer the fetch.

    Raises:
        As `PartitionReplica.check_leading`; FencedBrokerError: a newer session of the follower has fetched, or the
        fetch was sent before the replica's fence in the key, so that it is of another log;
        InvalidRequestError: the broker holds no replica, the epoch is left open, or the offsets contradict each other.
    """
    if request.leader_epoch < 0:
        raise InvalidRequestError(f"a replica fetch names its leader epoch, not {request.leader_epoch}")
    leadership = replica.check_leading(request.leader_epoch)
    follower = request.follower
    state = leadership.state
    if follower.broker_id not in state.replicas or follower.broker_id == replica.broker_id:
        raise InvalidRequestError(
            f"broker {follower.broker_id} holds no replica of this partition",
            action="Wait for the metadata: the replicas were moved.",
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


def compare_logs(log: ReplicaLog, request: FetchRequest) -> FetchDecision | None:
    """Compare the follower's log with this one; None: below `offset` it is a copy (H1, H2, H3).

    May read one batch header. Truncation is by epoch only: the answer names the largest epoch that both may know and
    where it ends here. Where the epochs agree and the chain does not, the follower goes back one batch.
    """
    offset = request.offset
    if offset < log.log_start_offset:
        start, previous_crc = log.reader.first_batch()
        if offset < start:
            return Restart(start, previous_crc)
    if request.last_epoch >= 0:
        epoch, end_offset = log.epoch_end(request.last_epoch)
        if epoch < 0:  # All that is left here is of later epochs.
            return Restart(*log.reader.first_batch())
        if epoch != request.last_epoch or end_offset < offset:
            return Diverged(epoch, end_offset)
    elif offset > log.log_end_offset:
        return Diverged(-1, log.log_end_offset)
    if offset <= log.log_start_offset:
        is_copy = (offset, request.last_crc) == log.reader.first_batch()
    elif offset == log.log_end_offset and request.last_crc == log.last_crc:
        is_copy = True
    else:  # Also where a thread appends concurrently and the end has just moved: what lies before `offset` stays.
        before = log.reader.batch_before(offset)
        is_copy = before is not None and before.crc == request.last_crc
    return None if is_copy else _one_batch_back(log, request)


def _one_batch_back(log: ReplicaLog, request: FetchRequest) -> FetchDecision:
    """The same epoch and another chain: let the follower ask again from the batch before its last one.

    One of the two logs is corrupt. Raises where it is this one: a good follower must not be sent back (I17).
    """
    if request.offset <= log.log_start_offset:
        return Restart(*log.reader.first_batch())
    base_offset = log.reader.batch_with(request.offset - 1).base_offset
    log.reader.verify_from(max(base_offset, log.log_start_offset), 1)
    return Restart(*log.reader.first_batch()) if request.last_epoch < 0 else Diverged(request.last_epoch, base_offset)


# --- the follower's side ---


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the log to `offset`, rebuild the producers, report `LogTruncated`."""

    offset: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Reset the log to `offset`, forget the producers, report `LogRestarted`."""

    offset: int
    previous_crc: int


@dataclass(frozen=True, slots=True)
class AppendBatches:
    """Append (nothing where empty), report `BatchesReplicated`, then `LeaderReported`; raise the log start."""

    batches: ReadableBuffer
    high_watermark: int
    log_start_offset: int
    more: bool
    next_offset: int = 0


@dataclass(frozen=True, slots=True)
class Refetch:
    """Discard the answer and fetch from the log end."""


Step: TypeAlias = TruncateTo | ResetLog | AppendBatches | Refetch


def next_step(replica: PartitionReplica, log: ReplicaLog, answer: FetchAnswer) -> Step | None:
    """Return what the follower must do with a response; `None`: the response is late or unexpected (H6).

    The fetch is over then: whatever comes of the step, the next one may be sent.

    Raises:
        StorageOfflineError: the answer asks to cut records that were committed here, and no unclean election explains
            it (I18): the replica must not continue.
    """
    ahead_offset = replica.fetches.ahead_offset
    if not replica.fetches.take_answer(answer.token, answer.leader_epoch):
        return None
    if ahead_offset and (answer.decision is not None or log.log_end_offset != ahead_offset):
        return Refetch()  # A decision is on the log as it was before the batches that have been written since.
    match answer.decision:
        case Diverged(leader_epoch, end_offset):
            target = min(log.epoch_end(leader_epoch)[1], end_offset)
            _check_cut(replica, log, answer, target)
            return TruncateTo(target) if _truncated_end(log, target) >= log.log_start_offset else ResetLog(target, 0)
        case Restart(offset, previous_crc):
            _check_cut(replica, log, answer, offset)
            return ResetLog(offset, previous_crc)
        case None:
            return AppendBatches(
                answer.batches, answer.high_watermark, answer.log_start_offset, answer.more, answer.next_offset
            )


def _truncated_end(log: ReplicaLog, target: int) -> int:
    """Return where the log ends when it is cut to `target`: at the batch before it if that lies inside one."""
    if not log.log_start_offset <= target < log.log_end_offset:
        return target
    return log.reader.batch_with(target).base_offset


def _check_cut(replica: PartitionReplica, log: ReplicaLog, answer: FetchAnswer, target: int) -> None:
    if target < replica.high_watermark and not replica.may_cut_committed(log.last_batch_epoch):
        raise StorageOfflineError(
            f"the leader of epoch {answer.leader_epoch} asks to go back to offset {target}, below the high watermark "
            f"{replica.high_watermark}, and there was no unclean election",
            outcome=Outcome.NOT_APPLIED,
            action="Keep this broker's data and the leader's: one of them lost records.",
        )


# --- readers ---


def check_reader(replica: PartitionReplica, log: ReplicaLog, offset: int, last_epoch: int) -> Diverged | None:
    """Where the log that a consumer has read up to `offset`, last in `last_epoch`, parts from this one; None: nowhere.

    An epoch that retention has taken cannot be judged, and its records are gone for everybody. A follower judges what
    it knows to be committed, nothing else: behind that its log may be short, or not the leader's.

    Raises:
        UnknownLeaderEpochError: the reader has read in an epoch that this replica has not heard of; retriable.
        OffsetNotAvailableError: a follower that has not `offset` yet; retriable.
    """
    if last_epoch > replica.leader_epoch:
        raise UnknownLeaderEpochError(
            f"the reader knows leader epoch {last_epoch}, this replica {replica.leader_epoch}",
            leader=leader_hint(replica.state),
        )
    if replica.role is Role.FOLLOWING and offset > replica.high_watermark:
        raise OffsetNotAvailableError(f"offset {offset} is not known to be committed here yet")
    if last_epoch == replica.leader_epoch and offset <= log.log_end_offset:
        return None
    epoch, end_offset = log.epoch_end(last_epoch)
    if epoch < 0 or (epoch == last_epoch and offset <= end_offset):
        return None
    return Diverged(epoch, end_offset)
