"""Metadata of the next generation after etcd was restored from a backup (PROTOCOL H81). Pure.

The logs on the brokers' disks are decisive, not the in-sync sets of the backup, because members may have left since and
others may have acknowledged more. The most complete log of a partition has every acknowledged record if fewer disks are
lost than `min_insync_replicas`, since each record with `acks=all` is on at least that many. Logs equal to it are in
sync. Leader epochs continue far above every epoch on any disk, so that no state from after the backup can appear newer.

The epoch of its last batch and its end make a log more complete. A log without batches has no epoch: all its records
were deleted, which only happens to committed ones, so it lacks nothing below its end. Of two logs with one end the one
that begins later is chosen, so that deleted records stay deleted (PROTOCOL I18).

Partitions of its topics that the backup lacks are added again, and topics that it lacks are restored under a name
derived from their id. Groups keep the offsets of the backup but no members; live members join again.

Records name columns and schemas by ids that were assigned since the backup. New ones continue far above these, because
a column or a schema with such an id would give old records the values of another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.groups.state import EPOCHS_PER_GENERATION, Group
from headrace.partition.topic_configs import effective_min_insync_replicas
from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.column_types import parse_type
from headrace.wire.typed.topic_columns import MAX_COLUMNS, TopicColumn, TopicColumns, parse_columns
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.partition_state import PartitionState, Replica, check_shape

GROUP_EPOCHS_APART = 1 << 20
"""Increment of a group's epochs, above any that were assigned since the backup."""
LEADER_EPOCHS_APART = 1 << 16
"""Increment of leader epochs: clients may have seen later epochs that no leader wrote to its disk."""
COLUMN_IDS_APART = MAX_COLUMNS
"""Increment of the ids of a topic's columns, at least the number that can be assigned between two recoveries."""
SCHEMA_IDS_APART = 1 << 20
"""Increment of the ids of schemas."""
_MAX_ID = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Log end of one replica, from its disk."""

    last_batch_epoch: int
    log_end_offset: int
    last_crc: int
    """`crc` of the last batch. Logs with equal epoch, end and CRC are equal."""
    last_epoch: int
    """Largest leader epoch in the log."""
    log_start_offset: int

    @property
    def is_empty(self) -> bool:
        """Whether it has no batch."""
        return self.log_start_offset == self.log_end_offset

    @property
    def contents(self) -> tuple[int, int]:
        """Epoch and end, which are equal for logs with the same records up to the end."""
        return self.last_batch_epoch, self.log_end_offset


@dataclass(frozen=True, slots=True)
class BrokerLogState:
    """Logs on one broker's disk."""

    broker_id: int
    generation: int
    storage_id: bytes
    storage_incarnation: bytes
    directory_version: int
    logs: Mapping[tuple[bytes, int], LogEnd]
    """Log ends by topic id and partition."""
    corrupt: Mapping[tuple[bytes, int], str] = field(default_factory=dict)
    """Ignored logs, with the reason."""


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """Partitions of the new generation, topics that the backup lacks, and notes for the operator."""

    states: Mapping[tuple[bytes, int], PartitionState]
    grown: Mapping[bytes, int]
    """Number of partitions of each topic that has more than in the backup, by id."""
    recovered_topics: Sequence[metadata_pb2.Topic]
    notes: Sequence[str]


def plan_partitions(
    names: Mapping[bytes, str],
    states: Mapping[tuple[bytes, int], PartitionState],
    deleted: Collection[bytes],
    log_states: Sequence[BrokerLogState],
    broker_epoch: int,
    now_ms: int,
) -> GenerationPlan:
    """Compute the state of every partition in the backup, and of every log without one.

    Args:
        names: topics of the backup by id.
        states: partitions of these topics in the backup.
        deleted: ids of topics that were deleted before the backup, whose logs are left to be deleted.
        log_states: of all brokers whose disks are available.
        broker_epoch: of the initial sessions of the new generation, equal for all these brokers.
        now_ms: for `created_ms` of restored topics.
    """
    present = {log_state.broker_id for log_state in log_states}
    notes: list[str] = []
    decided: dict[tuple[bytes, int], PartitionState] = {}
    for key, state in sorted(states.items()):
        ends = _ends_of(key, log_states)
        name = f"{names.get(key[0], key[0].hex())}-{key[1]}"
        decided[key] = _decide(name, state, ends, present, broker_epoch, notes)
    recovered: list[metadata_pb2.Topic] = []
    grown: dict[bytes, int] = {}
    logs = {key for log_state in log_states for key in log_state.logs if key[0] not in deleted}
    for topic_id in sorted({key[0] for key in logs - states.keys()}):
        count = 1 + max(number for found, number in (*logs, *states) if found == topic_id)
        minimum = states[(topic_id, 0)].min_insync_replicas if (topic_id, 0) in states else 0
        added = [number for number in range(count) if (topic_id, number) not in states]
        found = _recover_partitions(topic_id, added, minimum, log_states, broker_epoch)
        decided.update(found)
        if topic_id in names:
            grown[topic_id] = count
            notes.append(f"topic {names[topic_id]}: partitions {added} were added after the backup")
            continue
        topic = metadata_pb2.Topic(
            name=f"recovered-{topic_id.hex()}",
            topic_id=topic_id,
            partitions=count,
            replication_factor=max(len(state.replicas) for state in found.values()),
            created_ms=now_ms,
        )
        recovered.append(topic)
        notes.append(f"topic {topic.name}: created after the backup; its settings are the defaults")
    notes += [
        f"{names.get(topic_id, topic_id.hex())}-{number} at broker {log_state.broker_id}: not counted, {reason}"
        for log_state in log_states
        for (topic_id, number), reason in sorted(log_state.corrupt.items())
    ]
    return GenerationPlan(decided, grown, recovered, notes)


def empty_group(group: Group, generation: int, now_ms: int) -> Group:
    """Return the group without members, with epochs above any that were assigned before `generation`.

    Since the backup it may have been deleted and created again, so that its epochs began at a later revision of etcd.
    """
    epoch = max(group.group_epoch + GROUP_EPOCHS_APART, (generation - 1) * EPOCHS_PER_GENERATION)
    return Group(
        group_epoch=epoch, assignment_epoch=epoch, assignor=group.assignor, empty_since_ms=now_ms, user=group.user
    )


def reserve_column_ids(text: str) -> str:
    """Return the text of a topic's columns with a dropped column whose id is above all that were assigned.

    A text that has no room for it is unchanged: it has none for another column, either.

    Raises:
        InvalidConfigError: If this release does not know a type in it.
    """
    columns = parse_columns(text).columns
    last = min(max(column.id for column in columns) + COLUMN_IDS_APART, _MAX_ID)
    reserved = str(TopicColumns((*columns, TopicColumn(last, "recovered", parse_type("bool"), is_dropped=True))))
    try:
        parse_columns(reserved)
    except InvalidConfigError:
        return text
    return reserved


def reserve_schema_ids(state: metadata_pb2.SchemaRegistryState) -> metadata_pb2.SchemaRegistryState:
    """Return the state of the registry whose next schema has an id above all that were assigned."""
    after = metadata_pb2.SchemaRegistryState()
    after.CopyFrom(state)
    after.last_schema_id = min(state.last_schema_id + SCHEMA_IDS_APART, _MAX_ID)
    return after


def _ends_of(key: tuple[bytes, int], log_states: Sequence[BrokerLogState]) -> dict[int, LogEnd]:
    return {log_state.broker_id: log_state.logs[key] for log_state in log_states if key in log_state.logs}


def _decide(
    name: str,
    state: PartitionState,
    ends: Mapping[int, LogEnd],
    present: set[int],
    broker_epoch: int,
    notes: list[str],
) -> PartitionState:
    best = _most_complete([end for broker_id, end in ends.items() if broker_id in state.replicas])
    anywhere = _most_complete(list(ends.values()))
    replicas = state.replicas
    if anywhere is not None and (best is None or best.contents != anywhere.contents):
        # A move that ended after the backup, or an abandoned copy: it counts only if it has more than all others.
        moved = [broker_id for broker_id, end in sorted(ends.items()) if end == anywhere]
        best, replicas = anywhere, (*replicas, *(each for each in moved if each not in replicas))
    lost = [broker_id for broker_id in state.replicas if broker_id not in present]
    if len(lost) >= max(1, state.min_insync_replicas):
        notes.append(f"{name}: no log state of the brokers {lost}; records that only they had are lost")
    members: list[int] = []
    if best is not None:
        members = [broker_id for broker_id in replicas if broker_id in ends and _is_same(ends[broker_id], best)]
    elif first := next((broker_id for broker_id in replicas if broker_id in present), None):
        notes.append(f"{name}: no disk has its log, as after a deletion; it starts empty")
        members = [first]
    else:
        notes.append(f"{name}: no disk of its brokers is available; it has no leader until an unclean election")
    epoch = LEADER_EPOCHS_APART + max([state.leader_epoch, *(end.last_epoch for end in ends.values())])
    after = replace(
        state,
        replicas=replicas,
        leader=None,
        leader_epoch=epoch,
        in_sync=tuple(Replica(broker_id, broker_epoch) for broker_id in members),
        eligible_leaders=(),
        partition_epoch=state.partition_epoch + 1,
        unclean=False,
        # Logs of brokers that come back later may have more, and are truncated.
        unclean_epoch=epoch if lost else state.unclean_epoch,
        durable=True,
        successors=(),
        # A member whose log ended below it would count as one that lost records.
        high_watermark=min(state.high_watermark, 0 if best is None else best.log_end_offset),
    )
    check_shape(after)
    return after


def _most_complete(ends: Sequence[LogEnd]) -> LogEnd | None:
    """Return the log that has at least the acknowledged records of all others; `None` if there is no log."""
    written = max(
        (end for end in ends if not end.is_empty), key=lambda end: (*end.contents, end.log_start_offset), default=None
    )
    emptied = max((end for end in ends if end.is_empty), key=lambda end: end.log_end_offset, default=None)
    if written is None or emptied is None:
        return written or emptied
    is_older = 0 <= emptied.last_epoch < written.last_batch_epoch
    return written if is_older or emptied.log_end_offset < written.log_end_offset else emptied


def _is_same(one: LogEnd, other: LogEnd) -> bool:
    return (*one.contents, one.last_crc, one.log_start_offset) == (
        *other.contents, other.last_crc, other.log_start_offset
    )  # fmt: skip


def _recover_partitions(
    topic_id: bytes, numbers: Sequence[int], minimum: int, log_states: Sequence[BrokerLogState], broker_epoch: int
) -> dict[tuple[bytes, int], PartitionState]:
    """Return partitions that the backup lacks. `minimum` is the topic's `min_insync_replicas`; 0 is the default."""
    holders = [log_state.broker_id for log_state in log_states if any(key[0] == topic_id for key in log_state.logs)]
    states = {}
    for number in numbers:
        ends = _ends_of((topic_id, number), log_states)
        replicas = tuple(ends) or (holders[0],)
        before = PartitionState(
            replicas, None, 0, (), min_insync_replicas=effective_min_insync_replicas(minimum, len(replicas))
        )
        states[(topic_id, number)] = _decide(topic_id.hex(), before, ends, set(holders), broker_epoch, [])
    return states
