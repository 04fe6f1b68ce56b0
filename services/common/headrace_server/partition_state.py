"""The state of one partition as its etcd key holds it, and the one function that changes its members.

Lives beside the metastore because two writers share it: the controller (elections, clean-up) and the partition's
leader (shrink and expand). Pure: no clock, no I/O. Keeps I11 (key shape) and the eligible-leader part of I4; the rules
are those of `docs/protocols` and KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace_server.internal_v1 import metadata_pb2


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """A broker in one session: every mention of a broker in a partition key is this pair (H16)."""

    broker_id: int
    #: The revision of the session's registration; strictly rises per broker.
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One value of `part/{topic_id}/{partition}`. Immutable; a change makes a new one by the functions below."""

    #: Broker ids in order of preference; the first is the preferred leader.
    replicas: tuple[int, ...]
    #: None: no leader; then `leader_epoch` is the epoch in which leadership ended.
    leader: Replica | None
    #: Rises by one whenever `leader` changes, also to None and also for the same broker in a new session.
    leader_epoch: int
    #: Replicas that hold every committed record and on which the high watermark waits.
    in_sync: tuple[Replica, ...]
    #: Replicas that left `in_sync` while it was below `min_insync_replicas`: they hold every committed record too.
    eligible_leaders: tuple[Replica, ...] = ()
    #: Fewest members of `in_sync` with which the high watermark moves.
    min_insync_replicas: int = 1
    #: Counts the writes of this key.
    partition_epoch: int = 0
    #: Brokers being added by a reassignment.
    adding: tuple[int, ...] = ()
    #: Brokers being removed by a reassignment.
    removing: tuple[int, ...] = ()
    #: The election that made this leader may have lost records.
    unclean: bool = False
    #: The last leader epoch that began so; 0: none. Logs that end before it may be cut below their high watermark.
    unclean_epoch: int = 0
    #: How fast a replica in `adding` may copy, in bytes a second; 0: as fast as it can.
    copy_bytes_per_second: int = 0
    #: Every committed record is on stable storage of every member: a crash takes nobody's membership (H30).
    durable: bool = False

    def replica_of(self, broker_id: int) -> Replica | None:
        """The entry of a broker in `in_sync`, or None."""
        return next((entry for entry in self.in_sync if entry.broker_id == broker_id), None)


def from_proto(message: metadata_pb2.PartitionState) -> PartitionState:
    """Decode one value; raises nothing: a state of wrong shape is found by `check_shape`."""
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
    )


def to_proto(state: PartitionState) -> metadata_pb2.PartitionState:
    """Encode one value."""
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
    )
    if state.leader is not None:
        message.leader.CopyFrom(_message(state.leader))
    return message


def encode(state: PartitionState) -> bytes:
    """Return the bytes that stand in etcd."""
    return to_proto(state).SerializeToString()


def decode(value: bytes) -> PartitionState:
    """Decode the bytes that stand in etcd; raises `google.protobuf.message.DecodeError` on foreign bytes."""
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
) -> PartitionState:
    """Compute the next value of a partition key: every write of a key goes through here (H15).

    `in_sync` is the new in-sync set. Members of the old one that are not in it become eligible leaders, with the
    session they had, iff the new set is smaller than `min_insync_replicas` and they are not `doubtful` (broker ids
    whose data may be incomplete). `eligible_leaders` are the entries to keep from before (default: all of them); they
    stay under the same condition. With enough in-sync members the eligible set is empty (I4). `leader_epoch` rises by
    one iff `leader` changes, `partition_epoch` always. `unclean` (default: False where the leader changes, else as it
    was) says that the election may lose records. `move` replaces the replicas; who is not among them leaves all sets.
    `durable` (default: as it was): set by the leader once it holds, cleared by it before it counts anything unflushed.
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
    if unclean is None:
        unclean = state.unclean and leader == state.leader
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
    )
    check_shape(after)
    check_step(state, after)
    return after


@dataclass(frozen=True, slots=True)
class Move:
    """Where a partition's replicas are and are going."""

    replicas: Sequence[int]
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()
    copy_bytes_per_second: int = 0


def join(state: PartitionState, replica: Replica) -> PartitionState:
    """Take a replica into the in-sync set, in place of an earlier session of its broker (the leader: expand)."""
    others = [entry for entry in state.in_sync if entry.broker_id != replica.broker_id]
    return change(state, leader=state.leader, in_sync=[*others, replica])


def leave(state: PartitionState, broker_ids: Iterable[int], *, doubtful: bool = False) -> PartitionState:
    """Take brokers out of the in-sync set (shrink); `doubtful`: out of the eligible leaders too, and out of the lead.

    A leader that leaves leads no more; who follows it is the controller's decision.
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
    )


def leave_failed(state: PartitionState, broker_id: int, *, damaged: bool) -> PartitionState | None:
    """Take out a replica whose log failed, with all it is counted for; None: the key stays as it is.

    `damaged`: it lacks records that it said it had (H33), so nobody may count on it. After an I/O error (H34) a restart
    finds what was flushed: where nobody else is in sync the replica stays named, so that its clean return is elected.
    """
    others = [entry for entry in state.in_sync if entry.broker_id != broker_id]
    named = len(others) < len(state.in_sync) or any(e.broker_id == broker_id for e in state.eligible_leaders)
    if not named or not (others or damaged):
        return None
    return leave(state, [broker_id], doubtful=True)


def check_shape(state: PartitionState) -> None:
    """Assert I11 on one value: who leads is in sync, sets are disjoint and drawn from the replicas, ids distinct."""
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
    assert state.min_insync_replicas >= 1, f"min_insync_replicas is at least 1: {state}"
    assert len(in_sync) < state.min_insync_replicas or not eligible, f"enough in sync, so none eligible: {state}"


def check_step(before: PartitionState, after: PartitionState) -> None:
    """Assert I11 on one write: epochs rise as they must."""
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
