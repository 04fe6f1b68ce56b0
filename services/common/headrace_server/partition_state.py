"""State of one partition in its etcd key, and the only function that changes its members.

It is in the common package because it has two writers: the controller (elections, clean-up) and the partition's leader
(shrink and expand). Pure: no clock, no I/O. Keeps I11 (key shape) and the eligible-leader part of I4; the rules are
those of `docs/protocols` and KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headrace_server.internal_v1 import metadata_pb2


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """Broker in one session; partition keys refer to brokers by this pair (H16)."""

    broker_id: int
    #: Revision of the session's registration; strictly increases per broker.
    broker_epoch: int


@dataclass(frozen=True, slots=True, order=True)
class FetchFence:
    """Version of the key since which a broker may have another log in the same session (H17)."""

    broker_id: int
    #: Fetches with an earlier `partition_epoch` do not count.
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Value of `partitions/{topic_id}/{partition}`. Immutable; the functions below return changed copies."""

    #: Broker ids in order of preference; the first is the preferred leader.
    replicas: tuple[int, ...]
    #: `None` means no leader; then `leader_epoch` is the epoch in which leadership ended.
    leader: Replica | None
    #: Rises by one whenever `leader` changes, also to `None` and for the same broker in a new session.
    leader_epoch: int
    #: Replicas that have every committed record and on which the high watermark depends.
    in_sync: tuple[Replica, ...]
    #: Replicas that left `in_sync` while it was below `min_insync_replicas`; they also have every committed record.
    eligible_leaders: tuple[Replica, ...] = ()
    #: Minimum members of `in_sync` with which the high watermark advances.
    min_insync_replicas: int = 1
    #: Number of writes of this key.
    partition_epoch: int = 0
    #: Brokers being added by a reassignment.
    adding: tuple[int, ...] = ()
    #: Brokers being removed by a reassignment.
    removing: tuple[int, ...] = ()
    #: The election that made this leader may have lost records.
    unclean: bool = False
    #: Last unclean leader epoch; 0: none. Logs that end before it may be truncated below their high watermark.
    unclean_epoch: int = 0
    #: Throttle of a replica in `adding`, in bytes per second; 0 means none.
    copy_bytes_per_second: int = 0
    #: Every committed record is on stable storage of every member, so that a crash ends no membership (H30).
    durable: bool = False
    #: Ascending by broker, at most one per replica.
    fetch_fences: tuple[FetchFence, ...] = ()
    #: Requested successors in order of preference; the leader hands over to the first that has its whole log (H24).
    successors: tuple[Replica, ...] = ()
    #: Lower bound of the high watermark, which the log of every member contains; 0 after an unclean election.
    high_watermark: int = 0

    @property
    def leader_id(self) -> int:
        """Broker id of the leader; `-1` if there is none."""
        return -1 if self.leader is None else self.leader.broker_id

    @property
    def members(self) -> tuple[Replica, ...]:
        """Replicas that have every committed record: `in_sync`, then `eligible_leaders`."""
        return self.in_sync + self.eligible_leaders

    def fetches_count_from(self, broker_id: int) -> int:
        """Return the minimum `partition_epoch` of valid fetches of a broker."""
        return next((fence.partition_epoch for fence in self.fetch_fences if fence.broker_id == broker_id), 0)

    def replica_of(self, broker_id: int) -> Replica | None:
        """Return the entry of a broker in `in_sync`, or `None`."""
        return next((entry for entry in self.in_sync if entry.broker_id == broker_id), None)


def from_proto(message: metadata_pb2.PartitionState) -> PartitionState:
    """Convert a message to a state, without validation; see `check_shape`."""
    return PartitionState(
        replicas=tuple(message.replicas),
        leader=_replica(message.leader) if message.HasField("leader") else None,
        leader_epoch=message.leader_epoch,
        in_sync=tuple(_replica(entry) for entry in message.in_sync),
        eligible_leaders=tuple(_replica(entry) for entry in message.eligible_leaders),
        min_insync_replicas=message.min_insync_replicas,
        partition_epoch=message.partition_epoch,
        adding=tuple(message.adding),
        removing=tuple(message.removing),
        unclean=message.unclean,
        unclean_epoch=message.unclean_epoch,
        copy_bytes_per_second=message.copy_bytes_per_second,
        durable=message.durable,
        fetch_fences=tuple(FetchFence(fence.broker_id, fence.partition_epoch) for fence in message.fetch_fences),
        successors=tuple(_replica(entry) for entry in message.successors),
        high_watermark=message.high_watermark,
    )


def to_proto(state: PartitionState) -> metadata_pb2.PartitionState:
    """Convert a state to a message."""
    message = metadata_pb2.PartitionState(
        replicas=state.replicas,
        adding=state.adding,
        removing=state.removing,
        leader_epoch=state.leader_epoch,
        in_sync=[_message(entry) for entry in state.in_sync],
        eligible_leaders=[_message(entry) for entry in state.eligible_leaders],
        min_insync_replicas=state.min_insync_replicas,
        unclean=state.unclean,
        partition_epoch=state.partition_epoch,
        unclean_epoch=state.unclean_epoch,
        copy_bytes_per_second=state.copy_bytes_per_second,
        durable=state.durable,
        fetch_fences=[
            metadata_pb2.FetchFence(broker_id=fence.broker_id, partition_epoch=fence.partition_epoch)
            for fence in state.fetch_fences
        ],
        successors=[_message(entry) for entry in state.successors],
        high_watermark=state.high_watermark,
    )
    if state.leader is not None:
        message.leader.CopyFrom(_message(state.leader))
    return message


def encode(state: PartitionState) -> bytes:
    """Return the value for etcd."""
    return to_proto(state).SerializeToString()


def decode(value: bytes) -> PartitionState:
    """Decode a value from etcd; raise `google.protobuf.message.DecodeError` if it is malformed."""
    return from_proto(metadata_pb2.PartitionState.FromString(value))


def change(
    state: PartitionState,
    *,
    leader: Replica | None,
    in_sync: Sequence[Replica],
    doubtful: Iterable[int] = (),
    eligible_leaders: Sequence[Replica] | None = None,
    min_insync_replicas: int | None = None,
    unclean: bool | None = None,
    move: Move | None = None,
    durable: bool | None = None,
    replaced: Iterable[int] = (),
    successors: Sequence[Replica] | None = None,
) -> PartitionState:
    """Return the next value of a partition key. Every write of a key uses this function (H15).

    `in_sync` is the new in-sync set. Members of the old one that are not in it become eligible leaders, with their
    session, iff the new set is smaller than `min_insync_replicas` and they are not `doubtful` (broker ids whose data
    may be incomplete). `eligible_leaders` are the previous entries to keep (default: all), under the same condition.
    With enough in-sync members the eligible set is empty (I4). `leader_epoch` rises by one iff `leader` changes,
    `partition_epoch` always. `unclean` (default: False if the leader changes, else unchanged) marks an election that
    may lose records. `move` replaces the replicas; brokers that are no longer replicas leave all sets. `durable`
    (default: unchanged) is set by the leader once it holds, and cleared before it counts unflushed records.
    `replaced` are brokers that may have another log from now on; they get a fence, as replicas that `move` adds do.
    `successors` (default: unchanged) stay while the leader does not change and they are in sync.
    """
    minimum = state.min_insync_replicas if min_insync_replicas is None else min_insync_replicas
    if move is None:
        move = Move(state.replicas, state.adding, state.removing, state.copy_bytes_per_second)
    in_sync = _in_replica_order(move.replicas, in_sync)
    kept: tuple[Replica, ...] = ()
    if len(in_sync) < minimum:
        members = {entry.broker_id for entry in in_sync}
        barred = members | set(doubtful) | (set(state.replicas) - set(move.replicas))
        before = state.eligible_leaders if eligible_leaders is None else eligible_leaders
        candidates = {entry.broker_id: entry for entry in (*before, *state.in_sync) if entry.broker_id not in barred}
        kept = _in_replica_order(move.replicas, list(candidates.values()))
    leader_epoch = state.leader_epoch + (leader != state.leader)
    unclean = (state.unclean and leader == state.leader) if unclean is None else unclean
    after = PartitionState(
        replicas=tuple(move.replicas),
        leader=leader,
        leader_epoch=leader_epoch,
        in_sync=in_sync,
        eligible_leaders=kept,
        min_insync_replicas=minimum,
        partition_epoch=state.partition_epoch + 1,
        adding=tuple(move.adding),
        removing=tuple(move.removing),
        unclean=unclean,
        unclean_epoch=leader_epoch if unclean and leader != state.leader else state.unclean_epoch,
        copy_bytes_per_second=move.copy_bytes_per_second,
        durable=state.durable if durable is None else durable,
        fetch_fences=_fences(state, move, replaced),
        successors=_successors(state, leader, in_sync, state.successors if successors is None else successors),
        high_watermark=0 if unclean and leader != state.leader else state.high_watermark,
    )
    check_shape(after)
    check_step(state, after)
    return after


def _fences(state: PartitionState, move: Move, replaced: Iterable[int]) -> tuple[FetchFence, ...]:
    fences = {fence.broker_id: fence for fence in state.fetch_fences}
    for broker_id in (*replaced, *(set(move.replicas) - set(state.replicas))):
        fences[broker_id] = FetchFence(broker_id, state.partition_epoch + 1)
    return tuple(sorted(fence for fence in fences.values() if fence.broker_id in move.replicas))


def _successors(
    state: PartitionState, leader: Replica | None, in_sync: Sequence[Replica], wanted: Sequence[Replica]
) -> tuple[Replica, ...]:
    if leader is None or leader != state.leader:
        return ()
    return tuple(entry for entry in wanted if entry in in_sync and entry != leader)


@dataclass(frozen=True, slots=True)
class Move:
    """Replicas of a partition, with those being added and removed."""

    replicas: Sequence[int]
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()
    copy_bytes_per_second: int = 0


def ask_hand_over(state: PartitionState, successors: Sequence[Replica]) -> PartitionState:
    """Request a hand-over to one of `successors`, or cancel it if empty (by the controller or an administrator)."""
    return change(state, leader=state.leader, in_sync=state.in_sync, successors=successors)


def hand_over(state: PartitionState, successor: Replica, *, leaves: bool = False) -> PartitionState:
    """Make a successor that has the leader's whole log the new leader (by the leader).

    `leaves` means that the leader is shutting down: it also leaves the in-sync set if `min_insync_replicas` stay
    (KIP-841).
    """
    in_sync = state.in_sync
    if leaves and len(in_sync) > state.min_insync_replicas:
        in_sync = tuple(entry for entry in in_sync if entry != state.leader)
    return change(state, leader=successor, in_sync=in_sync)


def join(state: PartitionState, replica: Replica) -> PartitionState:
    """Add a replica to the in-sync set, in place of an earlier session of its broker (expand, by the leader)."""
    others = [entry for entry in state.in_sync if entry.broker_id != replica.broker_id]
    return change(state, leader=state.leader, in_sync=[*others, replica])


def leave(
    state: PartitionState, broker_ids: Iterable[int], *, doubtful: bool = False, replaced: Iterable[int] = ()
) -> PartitionState:
    """Remove brokers from the in-sync set (shrink); with `doubtful` also from the eligible leaders and leadership.

    If the leader is removed, the controller elects the next one. `replaced` is as for `change`.
    """
    gone = set(broker_ids)
    leader = None if state.leader is None or state.leader.broker_id in gone else state.leader
    eligible = [entry for entry in state.eligible_leaders if not doubtful or entry.broker_id not in gone]
    return change(
        state,
        leader=leader,
        in_sync=[entry for entry in state.in_sync if entry.broker_id not in gone],
        eligible_leaders=eligible,
        doubtful=gone if doubtful else (),
        replaced=replaced,
    )


def note_committed(state: PartitionState, high_watermark: int) -> PartitionState:
    """Return the state with a high watermark of at least `high_watermark`, for a leader's proposal."""
    return replace(state, high_watermark=max(state.high_watermark, high_watermark))


def leave_failed(state: PartitionState, broker_id: int, *, corrupt: bool) -> PartitionState | None:
    """Remove a replica whose log failed from all sets; return `None` if the key does not change.

    `corrupt` means that it lacks records that it reported (H33): it must not count, and another log replaces it. Then
    a replica outside the sets is written, too: the write invalidates earlier proposals that would add it, and the
    fence invalidates fetches of the corrupt log. After an I/O error (H34) a restart recovers flushed records: if no
    other replica is in sync this one stays in the set, so that it can be elected after a clean return.
    """
    if corrupt:
        return leave(state, [broker_id], doubtful=True, replaced=[broker_id]) if broker_id in state.replicas else None
    others = [entry for entry in state.in_sync if entry.broker_id != broker_id]
    named = len(others) < len(state.in_sync) or any(e.broker_id == broker_id for e in state.eligible_leaders)
    return leave(state, [broker_id], doubtful=True) if named and others else None


def check_shape(state: PartitionState) -> None:
    """Assert I11 on one value: the leader is in sync, sets are disjoint subsets of the replicas, ids are distinct."""
    in_sync = {entry.broker_id for entry in state.in_sync}
    eligible = {entry.broker_id for entry in state.eligible_leaders}
    assert state.replicas, "a partition has at least one replica"
    assert len(set(state.replicas)) == len(state.replicas), f"replicas are distinct: {state.replicas}"
    assert len(in_sync) == len(state.in_sync), f"in-sync replicas are distinct: {state.in_sync}"
    assert len(eligible) == len(state.eligible_leaders), f"eligible leaders are distinct: {state.eligible_leaders}"
    assert state.leader is None or state.leader in state.in_sync, f"the leader is in sync: {state}"
    assert not in_sync & eligible, f"no replica is both in sync and eligible: {state}"
    assert (in_sync | eligible) <= set(state.replicas), f"members are replicas: {state}"
    assert set(state.adding) | set(state.removing) <= set(state.replicas), f"moving replicas are replicas: {state}"
    assert not set(state.adding) & set(state.removing), f"no replica is both added and removed: {state}"
    successors = set(state.successors)
    assert successors <= set(state.in_sync) - {state.leader}, f"successors are other in-sync replicas: {state}"
    assert state.leader is not None or not successors, f"a hand-over needs a leader: {state}"
    assert state.min_insync_replicas >= 1, f"min_insync_replicas is at least 1: {state}"
    assert len(in_sync) < state.min_insync_replicas or not eligible, f"enough in sync, so none eligible: {state}"
    fenced = [fence.broker_id for fence in state.fetch_fences]
    assert fenced == sorted(set(fenced)), f"fences are distinct and ascending: {state}"
    assert set(fenced) <= set(state.replicas), f"fences are of replicas: {state}"


def check_step(before: PartitionState, after: PartitionState) -> None:
    """Assert I11 on one write: the epochs rise correctly."""
    assert after.partition_epoch == before.partition_epoch + 1, "each write raises partition_epoch by 1"
    expected = before.leader_epoch + (before.leader != after.leader)
    assert after.leader_epoch == expected, "leader_epoch rises by 1 exactly when the leader changes"


def _in_replica_order(replicas: Sequence[int], entries: Sequence[Replica]) -> tuple[Replica, ...]:
    rank = {broker_id: index for index, broker_id in enumerate(replicas)}
    return tuple(sorted(entries, key=lambda entry: rank.get(entry.broker_id, len(rank))))


def _replica(message: metadata_pb2.Replica) -> Replica:
    return Replica(message.broker_id, message.broker_epoch)


def _message(entry: Replica) -> metadata_pb2.Replica:
    return metadata_pb2.Replica(broker_id=entry.broker_id, broker_epoch=entry.broker_epoch)
