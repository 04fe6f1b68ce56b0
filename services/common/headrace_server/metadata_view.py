"""View of the cluster's metadata in etcd: brokers, topics, partitions, decoded once and kept up to date.

Brokers and coordinators both have one `ClusterView`, so that `GetMetadata` has one code path (PROTOCOL I19). It reads
from a `KeySource`, a `metastore.view.PrefixView` over the generation's prefix, which reports the changed keys after
each whole revision. Belongs to the event loop. The view may be stale: safety depends only on compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeVar

import structlog
from google.protobuf.message import DecodeError
from headrace.partition.topic_configs import TopicConfig, read_stored_topic_config
from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import (
    HeadraceError,
    InvalidRequestError,
    MetastoreUnavailableError,
    Outcome,
    UnknownTopicError,
    UnknownTopicIdError,
    to_detail,
)
from headrace.wire.ids import BrokerId, TopicId

from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.handshakes import check_handshake, own_handshake
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import (
    BrokerKey,
    ControllerKey,
    CoordinatorKey,
    DeletedTopicKey,
    DrainedBrokerKey,
    ParsedKey,
    PartitionKey,
    TopicKey,
)
from headrace_server.metastore.api import KeyValue
from headrace_server.partition_state import PartitionState, decode

log = structlog.get_logger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

ChangeCallback = Callable[[int, Sequence[str]], None]


class KeySource(Protocol):
    """View of etcd's keys that a `ClusterView` reads."""

    @property
    def revision(self) -> int:
        """Revision of the view."""

    def age_ms(self) -> int:
        """Return the milliseconds since etcd last confirmed the view."""

    def get(self, key: str) -> KeyValue | None:
        """Return one key, or `None`."""

    def items(self, prefix: str) -> Sequence[KeyValue]:
        """Return all keys of a prefix, ascending."""

    def subscribe(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call `callback(revision, changed keys)` after each revision; return a function that unsubscribes."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Registered broker in its current session."""

    broker_id: BrokerId
    broker_epoch: int
    """create_revision of its key."""
    live: metadata_pb2.BrokerLive
    lease_id: int


@dataclass(frozen=True, slots=True)
class Topic:
    """Visible topic."""

    name: str
    topic_id: TopicId
    partitions: int
    replication_factor: int
    config: TopicConfig
    overrides: Mapping[str, str]
    """Settings that differ from the defaults, as stored in etcd."""
    mod_revision: int


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """State of a partition, and the revision for a compare-and-swap."""

    topic_id: TopicId
    partition: int
    state: PartitionState
    mod_revision: int


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """Deleted topic; see `key_table.KEY_TABLE`."""

    message: metadata_pb2.DeletedTopic
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Registered coordinator, or the elected controller with its epoch."""

    live: metadata_pb2.CoordinatorLive
    create_revision: int


class ClusterView:
    """Decoded metadata. All attributes are read-only for callers.

    A value that cannot be decoded, for example of a newer release, is omitted, logged and listed in `undecodable`. An
    absent key is no proof that it does not exist: do not delete anything because of it, and delete nothing at all
    while `undecodable` is not empty (H26).
    """

    def __init__(self, identity: ClusterIdentity, source: KeySource) -> None:
        self.identity = identity
        self.keyspace = identity.keyspace
        self.source = source
        self.brokers: dict[BrokerId, Broker] = {}
        self.coordinators: dict[str, Coordinator] = {}
        self.controller: Coordinator | None = None
        self.drained: dict[BrokerId, KeyValue] = {}
        self.undecodable: dict[str, str] = {}
        self.deleted: dict[TopicId, DeletedTopic] = {}
        self._topics: dict[str, Topic] = {}
        self._names: dict[TopicId, str] = {}
        self._partitions: dict[TopicId, dict[int, PartitionEntry]] = {}
        self._described: dict[TopicId, cluster_pb2.TopicMetadata] = {}  # cached messages for clients
        self._callbacks: list[ChangeCallback] = []
        for key_value in source.items(self.keyspace.prefix):
            self._apply(key_value.key, key_value)
        self._unsubscribe = source.subscribe(self._on_change)

    def close(self) -> None:
        """Unsubscribe from the source."""
        self._unsubscribe()

    def subscribe(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call `callback(revision, changed keys)` after each applied revision; return a function that unsubscribes."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Visible topics by name, unordered."""
        return MappingProxyType(self._topics)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """Return the visible topic with that id, or `None`."""
        name = self._names.get(TopicId(topic_id))
        return self._topics.get(name) if name is not None else None

    def partition(self, topic_id: bytes, partition: int) -> PartitionEntry | None:
        """Return a partition of a visible topic, or `None`."""
        topic = self.topic_by_id(topic_id)
        if topic is None or not 0 <= partition < topic.partitions:
            return None
        return self._partitions.get(topic.topic_id, {}).get(partition)

    def partitions(self, topic_id: bytes) -> list[PartitionEntry]:
        """Return the partitions of a visible topic, ascending; none if it is not visible."""
        topic = self.topic_by_id(topic_id)
        if topic is None:
            return []
        states = self._partitions.get(topic.topic_id, {})
        return [states[number] for number in range(topic.partitions) if number in states]

    def resolve(self, reference: topics_pb2.TopicRef) -> Topic:
        """Return the topic that a request names.

        Raises:
            InvalidRequestError: If it has neither name nor id, or the id is not 16 bytes.
            UnknownTopicError: If there is no topic with that name.
            UnknownTopicIdError: If there is no topic with that id; it was deleted, and perhaps recreated. Refresh the
                metadata; do not retry by name.
            MetastoreUnavailableError: If it may be a topic whose value this release cannot decode.
        """
        match reference.WhichOneof("topic"):
            case "topic_id":
                if len(reference.topic_id) != 16:
                    raise InvalidRequestError(f"a topic id has 16 bytes, not {len(reference.topic_id)}")
                topic = self.topic_by_id(reference.topic_id)
                if topic is None:
                    for name in self._unreadable_topics():
                        raise _unreadable(name)
                    raise UnknownTopicIdError(f"there is no topic with id {reference.topic_id.hex()}")
                return topic
            case "name":
                found = self._topics.get(reference.name)
                if found is None:
                    if reference.name in self._unreadable_topics():
                        raise _unreadable(reference.name)
                    raise UnknownTopicError(f"there is no topic named {reference.name[:249]!r}")
                return found
        raise InvalidRequestError("the request has neither the name nor the id of a topic")

    def metadata(
        self,
        request: cluster_pb2.GetMetadataRequest,
        answered_by: str,
        resolve: Callable[[topics_pb2.TopicRef], Topic],
        is_shown: Callable[[str], bool],
    ) -> cluster_pb2.GetMetadataResponse:
        """Return the response to `GetMetadata`; an unknown topic is an error in its own result, not of the call.

        Args:
            request: the request.
            answered_by: name of this process.
            resolve: as `resolve`, for the caller's rights.
            is_shown: whether a list of all topics shows one, by its name.

        Raises:
            UnsupportedVersionError: If the client's release is incompatible.
        """
        check_handshake(f"client {request.client_id[:64]!r}", request.handshake)
        response = cluster_pb2.GetMetadataResponse(
            cluster_id=self.identity.cluster_id,
            generation=self.identity.generation,
            revision=self.source.revision,
            age_ms=self.source.age_ms(),
            brokers=self.broker_metadata(),
            coordinators=[self.coordinators[name].live.address for name in sorted(self.coordinators)],
            max_batch_bytes=TopicConfig().max_batch_bytes,
            answered_by=answered_by,
            handshake=own_handshake(),
        )
        if request.brokers_only:
            return response
        if not request.topics:
            shown = filter(is_shown, sorted(self._topics))
            response.topics.extend(self._topic_metadata(self._topics[name]) for name in shown)
            for name in filter(is_shown, self._unreadable_topics()):
                response.topics.add(name=name, error=to_detail(_unreadable(name)))
            return response
        for reference in request.topics:
            try:
                response.topics.append(self._topic_metadata(resolve(reference)))
            except HeadraceError as error:
                response.topics.add(name=reference.name, topic_id=reference.topic_id, error=to_detail(error))
        return response

    def broker_metadata(self) -> list[cluster_pb2.BrokerMetadata]:
        """Return the public description of all registered brokers, by id."""
        return [
            cluster_pb2.BrokerMetadata(
                broker_id=broker_id,
                address=broker.live.address,
                native_address=broker.live.native_address,
                data_center=broker.live.data_center,
                rack=broker.live.rack,
                host=broker.live.host,
                broker_epoch=broker.broker_epoch,
                draining=self.is_draining(broker_id),
                version=broker.live.version,
            )
            for broker_id, broker in sorted(self.brokers.items())
        ]

    def is_draining(self, broker_id: int) -> bool:
        """Return whether a broker should not lead, because it is shutting down or drained by an administrator."""
        broker = self.brokers.get(BrokerId(broker_id))
        return BrokerId(broker_id) in self.drained or (broker is not None and broker.live.draining)

    def _unreadable_topics(self) -> list[str]:
        """Return the names of topics whose values in etcd cannot be decoded."""
        parsed = map(self.keyspace.parse, self.undecodable)
        return [key.name for key in parsed if isinstance(key, TopicKey)]

    def _topic_metadata(self, topic: Topic) -> cluster_pb2.TopicMetadata:
        described = self._described.get(topic.topic_id)
        if described is None:
            described = self._described[topic.topic_id] = cluster_pb2.TopicMetadata(
                name=topic.name,
                topic_id=topic.topic_id,
                max_batch_bytes=topic.config.max_batch_bytes,
                placement=topic.overrides.get("placement", ""),
                columns=topic.config.columns,
                partitions=[_partition_metadata(partition) for partition in self.partitions(topic.topic_id)],
            )
        return described

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        for key in keys:
            self._apply(key, self.source.get(key))
        for callback in tuple(self._callbacks):
            callback(revision, keys)

    def _apply(self, key: str, key_value: KeyValue | None) -> None:
        """Apply the current value of one key; `None` means that it was deleted."""
        parsed = self.keyspace.parse(key)
        self.undecodable.pop(key, None)
        try:
            self._take(parsed, key_value)
        except (DecodeError, HeadraceError) as error:
            self._take(parsed, None)
            self.undecodable[key] = str(error)
            log.error("metadata_value_undecodable", key=key, cause=str(error))

    def _take(self, parsed: ParsedKey | None, key_value: KeyValue | None) -> None:
        match parsed:
            case BrokerKey(broker_id):
                _set(self.brokers, broker_id, key_value, lambda found: _broker(broker_id, found))
            case CoordinatorKey(coordinator_id):
                _set(self.coordinators, coordinator_id, key_value, _coordinator)
            case DrainedBrokerKey(broker_id):
                _set(self.drained, broker_id, key_value, lambda found: found)
            case ControllerKey():
                self.controller = None if key_value is None else _coordinator(key_value)
            case TopicKey(name):
                self._take_topic(name, key_value)
            case DeletedTopicKey(topic_id):
                _set(self.deleted, topic_id, key_value, _deleted_topic)
            case PartitionKey(topic_id, number):
                self._described.pop(topic_id, None)
                states = self._partitions.setdefault(topic_id, {})
                _set(states, number, key_value, lambda found: _partition(topic_id, number, found))
                if not states:
                    del self._partitions[topic_id]

    def _take_topic(self, name: str, key_value: KeyValue | None) -> None:
        before = self._topics.pop(name, None)
        if before is not None:
            del self._names[before.topic_id]
            self._described.pop(before.topic_id, None)
        if key_value is not None:
            topic = _topic(name, key_value)
            self._topics[name] = topic
            self._names[topic.topic_id] = name


def _unreadable(name: str) -> HeadraceError:
    """Return the error for a topic that exists but whose value cannot be decoded."""
    return MetastoreUnavailableError(
        f"topic {name} is in etcd with a value that this release cannot read",
        outcome=Outcome.NOT_APPLIED,
        action="Run the release that wrote it, or repair the value.",
    )


def _partition_metadata(partition: PartitionEntry) -> cluster_pb2.PartitionMetadata:
    state = partition.state
    return cluster_pb2.PartitionMetadata(
        partition=partition.partition,
        leader_id=state.leader_id,
        leader_epoch=state.leader_epoch,
        replicas=state.replicas,
        in_sync_replicas=[member.broker_id for member in state.in_sync],
        eligible_leaders=[member.broker_id for member in state.eligible_leaders],
        adding_replicas=state.adding,
        removing_replicas=state.removing,
        unclean=state.unclean,
        min_insync_replicas=state.min_insync_replicas,
    )


def _set(
    target: dict[KeyT, ValueT], key: KeyT, key_value: KeyValue | None, build: Callable[[KeyValue], ValueT]
) -> None:
    if key_value is None:
        target.pop(key, None)
    else:
        target[key] = build(key_value)


def _broker(broker_id: BrokerId, found: KeyValue) -> Broker:
    live = metadata_pb2.BrokerLive.FromString(found.value)
    return Broker(broker_id, found.create_revision, live, found.lease_id)


def _coordinator(found: KeyValue) -> Coordinator:
    return Coordinator(metadata_pb2.CoordinatorLive.FromString(found.value), found.create_revision)


def _deleted_topic(found: KeyValue) -> DeletedTopic:
    return DeletedTopic(metadata_pb2.DeletedTopic.FromString(found.value), found.mod_revision)


def _partition(topic_id: TopicId, number: int, found: KeyValue) -> PartitionEntry:
    return PartitionEntry(topic_id, number, decode(found.value), found.mod_revision)


def _topic(name: str, found: KeyValue) -> Topic:
    message = metadata_pb2.Topic.FromString(found.value)
    overrides = dict(sorted(message.configs.items()))
    return Topic(
        name=name,
        topic_id=TopicId(message.topic_id),
        partitions=message.partitions,
        replication_factor=message.replication_factor,
        config=read_stored_topic_config(overrides)[0],
        overrides=overrides,
        mod_revision=found.mod_revision,
    )
