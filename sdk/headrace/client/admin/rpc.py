"""Requests and responses of `Admin`. Pure, shared by the blocking and the asyncio class."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from headrace.client.base.errors import ConfigError
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.placement.policy import RACK
from headrace.v1 import broker_pb2, cluster_pb2, topics_pb2
from headrace.wire.errors import (
    HeadraceError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    UnknownPartitionError,
    UnknownTopicError,
    from_detail,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.topic_names import check_new_topic_name


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Partition of a topic."""

    partition: int
    leader_id: int
    """-1 means no leader."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """Replicas in order of preference, including those that a move adds and removes."""
    in_sync_replicas: tuple[int, ...]
    eligible_leaders: tuple[int, ...]
    """Replicas out of sync that may lead, because they have every committed record too (KIP-966)."""
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    unclean: bool = False
    """Whether its leader was elected although it may lack records."""
    min_insync_replicas: int = 0
    """Minimum number of in-sync replicas for `acks=all`; 0 means unknown."""

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """Replicas after a move; without a move, the present ones."""
        return tuple(broker_id for broker_id in self.replicas if broker_id not in self.removing_replicas)


@dataclass(frozen=True, slots=True, repr=False)
class TopicDescription:
    """Topic with its partitions."""

    name: str
    topic_id: bytes
    """16 bytes."""
    partitions: tuple[PartitionDescription, ...]
    max_batch_bytes: int
    warnings: tuple[str, ...] = field(default=())
    """Warnings of its creation, for example about a placement that could not be spread."""
    placement: str = "rack"
    """The topic config `placement`."""
    columns: str = ""
    """The topic config `columns`; empty for a topic that is not typed."""

    @property
    def replication_factor(self) -> int:
        """Number of replicas of the first partition; 0 until partitions are placed."""
        return len(self.partitions[0].target_replicas) if self.partitions else 0

    def __repr__(self) -> str:
        return (
            f"TopicDescription({self.name!r}, partitions={len(self.partitions)}, "
            f"replication_factor={self.replication_factor})"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the partitions."""
        from headrace.display.html_tables import MAX_TOPICS, count_text, html_table

        columns = ("partition", "leader", "leader epoch", "replicas", "in sync")
        lines = [
            (each.partition, each.leader_id, each.leader_epoch, _ids(each.replicas), _ids(each.in_sync_replicas))
            for each in self.partitions
        ]
        caption = f"Topic {self.name}: {count_text(len(lines), 'partition', MAX_TOPICS)}, id {self.topic_id.hex()}"
        return html_table(columns, lines, caption, most=MAX_TOPICS)


class TopicDescriptions(list[TopicDescription]):
    """List of topics, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from headrace.display.html_tables import MAX_TOPICS, count_text, html_table

        lines = [(each.name, len(each.partitions), each.replication_factor, each.topic_id.hex()) for each in self]
        columns = ("topic", "partitions", "replication factor", "id")
        return html_table(columns, lines, count_text(len(lines), "topic", MAX_TOPICS), most=MAX_TOPICS)


def _ids(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))


class ConfigValue(NamedTuple):
    """Setting of a topic."""

    value: str
    is_default: bool
    default: str
    documentation: str


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """Broker of the cluster."""

    broker_id: int
    address: str
    rack: str
    host: str
    broker_epoch: int
    draining: bool
    version: str
    data_center: str = ""


class CoordinatorDescription(NamedTuple):
    """Coordinator of the cluster."""

    coordinator_id: str
    address: str
    version: str


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """Cluster with its brokers and coordinators."""

    cluster_id: str
    generation: int
    format_version: int
    controller_id: str
    """Empty if none is elected."""
    controller_epoch: int
    brokers: tuple[BrokerDescription, ...]
    coordinators: tuple[CoordinatorDescription, ...]
    topics: int
    partitions: int
    offline_partitions: int
    under_replicated_partitions: int
    etcd_version: str
    revision: int
    undecodable_keys: int = 0
    """Number of metadata values that the responding coordinator cannot decode; their content is missing here."""

    def count_hidden(self, topics: Sequence[TopicDescription]) -> int:
        """Return how many topics of the cluster a list of all topics does not show to this caller."""
        return max(0, self.topics - len(topics))


class OffsetAt(NamedTuple):
    """Result of an offset look-up."""

    offset: int
    timestamp_ms: int
    """Timestamp of the record found by time, or -1."""
    leader_epoch: int = -1
    """Leader epoch of the responding leader."""


class DeletedRecords(NamedTuple):
    """Log start of a partition after a deletion."""

    topic: str
    partition: int
    log_start_offset: int


class MetadataEntry(NamedTuple):
    """Key of the cluster in etcd."""

    key: str
    value_json: str
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int


def by_name(name: str) -> topics_pb2.TopicRef:
    """Return a reference to a topic whose id is not known yet."""
    return topics_pb2.TopicRef(name=name)


def by_id(topic_id: bytes) -> topics_pb2.TopicRef:
    """Return a reference to a topic by its id."""
    return topics_pb2.TopicRef(topic_id=topic_id)


def metadata_request(topic: str) -> cluster_pb2.GetMetadataRequest:
    """Return a request for one topic by name."""
    return cluster_pb2.GetMetadataRequest(topics=[by_name(topic)])


def error_of(result: Any) -> HeadraceError | None:
    """Return the error of one result in a response, or `None`."""
    return from_detail(result.error) if result.HasField("error") else None


def raise_for(result: Any) -> None:
    """Raise the error of one result in a response, if it has one."""
    problem = error_of(result)
    if problem is not None:
        raise problem


def config_strings(config: Mapping[str, Any] | None) -> dict[str, str]:
    """Return topic settings in wire format: booleans in lower case, other values by `str`."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (config or {}).items()
    }


def replica_lists(assignments: Sequence[Sequence[int]] | None) -> list[cluster_pb2.ReplicaList]:
    """Return an explicit placement."""
    return [cluster_pb2.ReplicaList(broker_ids=brokers) for brokers in assignments or ()]


def create_topic_request(
    name: str,
    partitions: int,
    replication_factor: int,
    config: Mapping[str, Any] | None,
    assignments: Sequence[Sequence[int]] | None,
    *,
    validate_only: bool,
    timeout: float,
) -> cluster_pb2.CreateTopicsRequest:
    """Return the request; `timeout` is in seconds.

    Raises:
        InvalidTopicNameError: Before anything is sent.
    """
    check_new_topic_name(name)
    topic = cluster_pb2.NewTopic(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        configs=config_strings(config),
        assignments=replica_lists(assignments),
    )
    return cluster_pb2.CreateTopicsRequest(
        topics=[topic], validate_only=validate_only, timeout_ms=max(1, int(timeout * 1000))
    )


def created_topic(response: cluster_pb2.CreateTopicsResponse, exist_ok: bool) -> TopicDescription | None:
    """Return the created topic; `None` if it existed and `exist_ok` is set.

    The description's partitions have no leaders yet: the controller elects them after the response.
    """
    result = response.topics[0]
    problem = error_of(result)
    if isinstance(problem, TopicAlreadyExistsError) and exist_ok:
        return None
    if problem is not None:
        raise problem
    blank = (-1,) * result.replication_factor
    partitions = tuple(PartitionDescription(n, -1, -1, blank, (), ()) for n in range(result.partitions))
    return TopicDescription(result.name, result.topic_id, partitions, 0, tuple(result.warnings))


def topic_descriptions(response: cluster_pb2.GetMetadataResponse, names: Sequence[str] | None) -> TopicDescriptions:
    """Return topics in the order of `names`, or all by name.

    Raises:
        HeadraceError: The error of one of them in the response.
    """
    found: dict[str, TopicDescription] = {}
    for topic in response.topics:
        raise_for(topic)
        partitions = tuple(
            PartitionDescription(
                partition.partition,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replicas),
                tuple(partition.in_sync_replicas),
                tuple(partition.eligible_leaders),
                tuple(partition.adding_replicas),
                tuple(partition.removing_replicas),
                partition.unclean,
                partition.min_insync_replicas,
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition)
        )
        found[topic.name] = TopicDescription(
            topic.name,
            topic.topic_id,
            partitions,
            topic.max_batch_bytes,
            placement=topic.placement or RACK.text,
            columns=topic.columns,
        )
    if names is None:
        return TopicDescriptions(found[name] for name in sorted(found))
    missing = [name for name in names if name not in found]
    if missing:
        raise UnknownTopicError(f"there is no topic {missing[0]!r}")
    return TopicDescriptions(found[name] for name in names)


def config_values(response: cluster_pb2.DescribeConfigsResponse) -> dict[str, ConfigValue]:
    """Return one topic's settings by name."""
    topic = response.topics[0]
    raise_for(topic)
    return {
        entry.name: ConfigValue(
            entry.value, entry.source != cluster_pb2.CONFIG_SOURCE_TOPIC, entry.default_value, entry.documentation
        )
        for entry in topic.configs
    }


def cluster_description(response: cluster_pb2.DescribeClusterResponse) -> ClusterDescription:
    """Return the description of the cluster."""
    return ClusterDescription(
        response.cluster_id,
        response.generation,
        response.format_version,
        response.controller_id,
        response.controller_epoch,
        tuple(
            BrokerDescription(
                b.broker_id, b.address, b.rack, b.host, b.broker_epoch, b.draining, b.version, b.data_center
            )
            for b in response.brokers
        ),
        tuple(CoordinatorDescription(c.coordinator_id, c.address, c.version) for c in response.coordinators),
        response.topics,
        response.partitions,
        response.offline_partitions,
        response.under_replicated_partitions,
        response.etcd_version,
        response.revision,
        response.undecodable_keys,
    )


def milliseconds(when: datetime | float) -> int:
    """Return the ms since 1970 of a number of ms or a datetime (naive: local time, as in `datetime.timestamp`)."""
    return round(when.timestamp() * 1000) if isinstance(when, datetime) else int(when)


def offsets_request_part(at: str | float | datetime, by: str) -> Callable[[int, int], broker_pb2.PartitionListOffsets]:
    """Return a function from (partition, leader epoch) to a partition's part of a ListOffsets request.

    Raises:
        ConfigError: If `at` is neither a known word nor a time.
    """
    times = {"record": broker_pb2.OFFSET_SPEC_TIMESTAMP, "append": broker_pb2.OFFSET_SPEC_APPEND_TIMESTAMP}
    words = {"earliest": broker_pb2.OFFSET_SPEC_EARLIEST, "latest": broker_pb2.OFFSET_SPEC_LATEST}
    if by not in times:
        raise ConfigError(f"by={by!r} is neither 'record' nor 'append'")
    if isinstance(at, str) and at not in words:
        raise ConfigError(f"at={at!r} is neither 'earliest', 'latest' nor a time")
    spec = words[at] if isinstance(at, str) else times[by]
    when = 0 if isinstance(at, str) else milliseconds(at)

    def part(partition: int, epoch: int) -> broker_pb2.PartitionListOffsets:
        return broker_pb2.PartitionListOffsets(partition=partition, spec=spec, timestamp_ms=when, leader_epoch=epoch)

    return part


def by_leader(
    cluster_metadata: ClusterMetadata, topic: str, partitions: Sequence[int] | None
) -> dict[str, list[tuple[int, int]]]:
    """Group partitions by their leader's address: address -> [(partition, leader epoch)].

    Raises:
        UnknownTopicError, UnknownPartitionError: If the topic or a partition does not exist.
        LeaderNotAvailableError: If a partition has no leader now.
    """
    topic_leaders = cluster_metadata.require(topic)
    plan: dict[str, list[tuple[int, int]]] = {}
    for partition in range(topic_leaders.partitions) if partitions is None else partitions:
        if not 0 <= partition < topic_leaders.partitions:
            raise UnknownPartitionError(f"{topic} has partitions 0 to {topic_leaders.partitions - 1}, not {partition}")
        leader = cluster_metadata.leader(TopicPartition(topic, partition))
        if leader is None:
            raise LeaderNotAvailableError(f"{topic}-{partition} has no leader now")
        plan.setdefault(leader[1], []).append((partition, leader[2]))
    return plan


def metadata_entry(entry: cluster_pb2.DumpMetadataResponse) -> MetadataEntry:
    """Return one key of a dump."""
    return MetadataEntry(
        entry.key, entry.value_json, entry.create_revision, entry.mod_revision, entry.version, entry.lease_id
    )
