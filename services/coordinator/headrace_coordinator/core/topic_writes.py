"""Transactions that create, grow, change and delete topics: at most 128 operations each, crash-safe.

A topic is visible if and only if `topics/{name}` exists (docs/decisions/0015-use-name-key-for-visibility.md). A change
that fits is written by one transaction. A larger one is written in steps:

1. `topic_ids/{topic_id}` is put with `partitions` as they are visible now (0 for a new topic).
2. Partition keys are put in chunks, each comparing the mod_revision of `topic_ids/{topic_id}`.
3. `topics/{name}` and `topic_ids/{topic_id}` are put together with the new number of partitions, comparing the same.

The clean-up after a dead coordinator writes or deletes `topic_ids/{topic_id}` first, so that the old attempt can write
no more. A deletion is always one transaction, because partition keys are deleted by prefix.
Every partition put compares the registration of each broker it names (C1, I12).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace_server.identity.rights import OWNER, ResourceKind
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    MAX_TXN_OPERATIONS,
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    ModRevisionIs,
    Operation,
    Put,
    VersionIs,
)
from headrace_server.partition_state import PartitionState, encode

MAX_COMPARES = MAX_TXN_OPERATIONS - 2
"""Of a write, whose fences take two more (`ambiguous_writes`)."""


@dataclass(frozen=True, slots=True)
class Write:
    """Contents of one transaction."""

    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()

    def fits(self) -> bool:
        """Return whether etcd accepts it as one transaction."""
        return len(self.compares) <= MAX_COMPARES and len(self.success) <= MAX_TXN_OPERATIONS


@dataclass(frozen=True, slots=True)
class OwnerGrant:
    """Grant to the user that creates a topic, put when the topic becomes visible."""

    user: str
    put: Put
    compares: tuple[Compare, ...]
    """Fail if the user was deleted."""


def create(
    keyspace: Keyspace,
    topic: metadata_pb2.Topic,
    states: Mapping[int, PartitionState],
    owner: OwnerGrant | None = None,
) -> Write:
    """Create a complete topic. Failure branch: `topics/{name}`, `topic_ids/{topic_id}`."""
    return _with_owner(
        Write(
            _is_new(keyspace, topic) + _registered(keyspace, states),
            _put_topic(keyspace, topic) + _put_states(keyspace, topic.topic_id, states),
            _get_topic(keyspace, topic),
        ),
        owner,
    )


def reserve(keyspace: Keyspace, topic: metadata_pb2.Topic) -> Write:
    """Write the id of a topic without visible partitions, the first step of a creation. Failure branch as `create`."""
    value = metadata_pb2.Topic()
    value.CopyFrom(topic)
    value.partitions = 0
    put = Put(keyspace.topic_by_id(topic.topic_id), value.SerializeToString())
    return Write(_is_new(keyspace, topic), (put,), _get_topic(keyspace, topic))


def publish(keyspace: Keyspace, topic: metadata_pb2.Topic, tid_revision: int, owner: OwnerGrant | None = None) -> Write:
    """Make a reserved topic visible after all its partitions were put. Failure branch as `create`."""
    compares = (
        VersionIs(keyspace.topic(topic.name), 0),
        ModRevisionIs(keyspace.topic_by_id(topic.topic_id), tid_revision),
    )
    return _with_owner(Write(compares, _put_topic(keyspace, topic), _get_topic(keyspace, topic)), owner)


def put_partitions(
    keyspace: Keyspace, topic_id: bytes, tid_revision: int, states: Mapping[int, PartitionState]
) -> Iterator[Write]:
    """Put invisible partitions in chunks, in order. Failure branch: `topic_ids/{topic_id}`."""
    tid_key = keyspace.topic_by_id(topic_id)
    for chunk in _chunks(states):
        yield Write(
            (ModRevisionIs(tid_key, tid_revision), *_registered(keyspace, chunk)),
            _put_states(keyspace, topic_id, chunk),
            (Get(tid_key),),
        )


def grow(
    keyspace: Keyspace,
    topic: metadata_pb2.Topic,
    topic_revision: int,
    tid_revision: int,
    states: Mapping[int, PartitionState],
) -> Write:
    """Write the new number of partitions, with those in `states` not put before. Failure branch as `create`."""
    return Write(
        (*_unchanged(keyspace, topic, topic_revision, tid_revision), *_registered(keyspace, states)),
        _put_topic(keyspace, topic) + _put_states(keyspace, topic.topic_id, states),
        _get_topic(keyspace, topic),
    )


def configure(keyspace: Keyspace, topic: metadata_pb2.Topic, topic_revision: int, tid_revision: int) -> Write:
    """Write changed settings. Failure branch as `create`."""
    return Write(
        _unchanged(keyspace, topic, topic_revision, tid_revision),
        _put_topic(keyspace, topic),
        _get_topic(keyspace, topic),
    )


def delete(keyspace: Keyspace, topic: metadata_pb2.Topic, topic_revision: int, now_ms: int) -> Write:
    """Delete a topic, all its partitions and its owner's grant at once, and record that. Failure branch as `create`."""
    deleted = metadata_pb2.DeletedTopic(topic=topic, deleted_ms=now_ms)
    owned = f"{ResourceKind.TOPIC.value}:{topic.name}"
    return Write(
        (ModRevisionIs(keyspace.topic(topic.name), topic_revision),),
        (
            Delete(keyspace.topic(topic.name)),
            Delete(keyspace.topic_by_id(topic.topic_id)),
            DeletePrefix(keyspace.partition_prefix(topic.topic_id)),
            Put(keyspace.deleted_topic(topic.topic_id), deleted.SerializeToString(deterministic=True)),
            *([Delete(keyspace.grant(topic.owner, OWNER, owned))] if topic.owner else ()),
        ),
        _get_topic(keyspace, topic),
    )


def delete_unclaimed(keyspace: Keyspace, topic_id: bytes, now_ms: int) -> Write:
    """Record that logs of an id without a topic may be deleted. Failure branch: `topic_ids/{topic_id}`."""
    deleted = metadata_pb2.DeletedTopic(topic=metadata_pb2.Topic(topic_id=topic_id), deleted_ms=now_ms)
    tid_key = keyspace.topic_by_id(topic_id)
    put = Put(keyspace.deleted_topic(topic_id), deleted.SerializeToString(deterministic=True))
    return Write((VersionIs(tid_key, 0),), (put,), (Get(tid_key),))


def remove_deleted(keyspace: Keyspace, revisions: Mapping[bytes, int]) -> Write:
    """Remove the keys of deleted topics (mod_revision by topic id, at most 127) after their retention time."""
    compares = tuple(ModRevisionIs(keyspace.deleted_topic(topic_id), found) for topic_id, found in revisions.items())
    return Write(compares, tuple(Delete(keyspace.deleted_topic(topic_id)) for topic_id in revisions))


def _with_owner(write: Write, owner: OwnerGrant | None) -> Write:
    if owner is None:
        return write
    return Write(write.compares + owner.compares, (*write.success, owner.put), write.failure)


def _is_new(keyspace: Keyspace, topic: metadata_pb2.Topic) -> tuple[Compare, ...]:
    return (VersionIs(keyspace.topic(topic.name), 0), VersionIs(keyspace.topic_by_id(topic.topic_id), 0))


def _unchanged(
    keyspace: Keyspace, topic: metadata_pb2.Topic, topic_revision: int, tid_revision: int
) -> tuple[Compare, ...]:
    return (
        ModRevisionIs(keyspace.topic(topic.name), topic_revision),
        ModRevisionIs(keyspace.topic_by_id(topic.topic_id), tid_revision),
    )


def _registered(keyspace: Keyspace, states: Mapping[int, PartitionState]) -> tuple[Compare, ...]:
    sessions = {entry.broker_id: entry.broker_epoch for state in states.values() for entry in state.in_sync}
    return tuple(CreateRevisionIs(keyspace.broker(broker_id), sessions[broker_id]) for broker_id in sorted(sessions))


def _put_topic(keyspace: Keyspace, topic: metadata_pb2.Topic) -> tuple[Operation, ...]:
    value = topic.SerializeToString(deterministic=True)
    return (Put(keyspace.topic(topic.name), value), Put(keyspace.topic_by_id(topic.topic_id), value))


def _put_states(keyspace: Keyspace, topic_id: bytes, states: Mapping[int, PartitionState]) -> tuple[Operation, ...]:
    return tuple(Put(keyspace.partition(topic_id, number), encode(states[number])) for number in sorted(states))


def _get_topic(keyspace: Keyspace, topic: metadata_pb2.Topic) -> tuple[Operation, ...]:
    return (Get(keyspace.topic(topic.name)), Get(keyspace.topic_by_id(topic.topic_id)))


def _chunks(states: Mapping[int, PartitionState]) -> Iterator[dict[int, PartitionState]]:
    """Split `states` so that neither puts nor compares exceed the limit of a transaction."""
    chunk: dict[int, PartitionState] = {}
    brokers: set[int] = set()
    for number in sorted(states):
        named = {entry.broker_id for entry in states[number].in_sync}
        if chunk and (len(chunk) == MAX_TXN_OPERATIONS or len(brokers | named) >= MAX_COMPARES):
            yield chunk
            chunk, brokers = {}, set()
        chunk[number] = states[number]
        brokers |= named
    if chunk:
        yield chunk


def clear_orphan(
    keyspace: Keyspace, topic_id: bytes, tid_revision: int, tid_value: bytes | None, partitions: Sequence[int]
) -> Write:
    """Remove the remains of an interrupted creation or growth of a topic.

    With `tid_value` `None` the topic has no name and all its keys are deleted. Otherwise it is visible:
    `topic_ids/{topic_id}` is rewritten so that the attempt that left `partitions` cannot continue, and these are
    deleted (at most 127 at once).
    """
    tid_key = keyspace.topic_by_id(topic_id)
    compare = ModRevisionIs(tid_key, tid_revision)
    if tid_value is None:
        return Write((compare,), (Delete(tid_key), DeletePrefix(keyspace.partition_prefix(topic_id))))
    gone = partitions[: MAX_TXN_OPERATIONS - 1]
    return Write(
        (compare,),
        (Put(tid_key, tid_value), *(Delete(keyspace.partition(topic_id, number)) for number in gone)),
    )
