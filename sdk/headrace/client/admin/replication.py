"""Requests and responses of `Admin` for replicas: moves, elections, drains, logs. Pure, shared by both classes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from headrace.client.admin.rpc import error_of
from headrace.client.base.errors import ConfigError
from headrace.placement.load import ReplicaLoad
from headrace.v1 import broker_pb2, cluster_pb2, topics_pb2
from headrace.wire.errors import HeadraceError, from_detail
from headrace.wire.ids import TopicPartition

ElectionKind: TypeAlias = Literal["preferred", "unclean"]

_ELECTIONS: dict[str, "cluster_pb2.ElectionType"] = {
    "preferred": cluster_pb2.ELECTION_TYPE_PREFERRED,
    "unclean": cluster_pb2.ELECTION_TYPE_UNCLEAN,
}


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """Result for one partition of a request that changes several."""

    topic: str
    partition: int
    error: HeadraceError | None
    """Reason of a refusal; `None` means that the change is done, now or before."""
    unchanged: bool
    """Whether there was nothing to change."""
    leader_id: int
    """Leader after the change; -1 means none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """Replicas after the change, in order of preference."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Partition whose replicas are being moved."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """All current replicas, including those being added and removed."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    leader_id: int
    """-1 means no leader."""
    copy_bytes_per_second: int
    """Copy rate of each new replica; 0 means unlimited."""

    @property
    def target(self) -> tuple[int, ...]:
        """Replicas after the move."""
        return tuple(broker_id for broker_id in self.replicas if broker_id not in self.removing)


class DrainResult(NamedTuple):
    """Result of a drain or of its end."""

    leaders: int
    """Number of partitions that the broker led at that moment."""
    unchanged: bool
    """Whether it was in this state before."""


@dataclass(frozen=True, slots=True)
class FollowerInfo:
    """State of one follower on the partition's leader."""

    broker_id: int
    broker_epoch: int
    log_end_offset: int
    """Last reported log end offset; -1 means that it has not fetched in this leader epoch."""
    durable_offset: int
    """Offset below which all records are on its stable storage; -1 as above."""
    behind_ms: int
    """Milliseconds since it was last caught up; 0 means that it is."""
    in_sync: bool
    phi: float
    """Suspicion level (phi) of its broker's failure; each increase by 1 means ten times less doubt."""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """Replica on one broker's disk."""

    topic: str
    partition: int
    broker_id: int
    is_leader: bool
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    flushed_offset: int
    size_bytes: int
    segments: int
    offline_reason: str
    """Empty while the replica is online."""
    is_follower: bool = False
    """Whether it copies from the leader."""
    followers: tuple[FollowerInfo, ...] = field(default=())
    """On the leader: the other replicas."""
    load: ReplicaLoad = field(default=ReplicaLoad())
    """Moving averages of bytes and requests at this replica."""
    compacted_offset: int = 0
    """Offset below which compaction has compared the records of this replica; 0 if it has not, or in a directory."""


@dataclass(frozen=True, slots=True)
class UnclaimedLogInfo:
    """Log on a broker's disk that no key in etcd assigns to this broker."""

    topic: str
    """Empty if no topic has the id."""
    topic_id: bytes
    partition: int
    size_bytes: int
    kept_because: str
    """Reason why it is not deleted; empty if it was deleted, or may be."""


class DiskInfo(NamedTuple):
    """Volume of a broker's data."""

    broker_id: int
    total_bytes: int
    free_bytes: int


def topic_refs(names: Sequence[str] | None) -> list[topics_pb2.TopicRef]:
    """Return references to topics by name; no names mean all topics."""
    return [topics_pb2.TopicRef(name=name) for name in names or ()]


def reassign_request(
    moves: Mapping[TopicPartition, Sequence[int]], copy_bytes_per_second: int, *, validate_only: bool
) -> cluster_pb2.ReassignPartitionsRequest:
    """Return the request.

    Raises:
        ConfigError: For a negative rate, or a partition without replicas.
    """
    if copy_bytes_per_second < 0:
        raise ConfigError(f"copy_bytes_per_second={copy_bytes_per_second} is negative", action="Use 0 for no limit.")
    request = cluster_pb2.ReassignPartitionsRequest(
        copy_bytes_per_second=copy_bytes_per_second, validate_only=validate_only
    )
    for where, replicas in moves.items():
        if not replicas:
            raise ConfigError(f"{where.topic}-{where.partition}: empty replica list", action="Name its brokers.")
        request.partitions.add(
            topic=topics_pb2.TopicRef(name=where.topic), partition=where.partition, replicas=replicas
        )
    return request


def cancel_request(
    partitions: Iterable[TopicPartition], *, validate_only: bool
) -> cluster_pb2.ReassignPartitionsRequest:
    """Return the request that cancels moves."""
    request = cluster_pb2.ReassignPartitionsRequest(validate_only=validate_only)
    for topic, partition in partitions:
        request.partitions.add(topic=topics_pb2.TopicRef(name=topic), partition=partition, cancel=True)
    return request


def elect_request(
    kind: str, partitions: Iterable[TopicPartition] | None, broker_id: int | None, *, validate_only: bool
) -> cluster_pb2.ElectLeadersRequest:
    """Return the request, with partitions grouped by topic.

    Raises:
        ConfigError: For an unknown kind, an unclean election without partitions, or a preferred one with a broker.
    """
    if kind not in _ELECTIONS:
        raise ConfigError(f"kind={kind!r} is neither 'preferred' nor 'unclean'")
    if kind == "unclean" and partitions is None:
        raise ConfigError("an unclean election may lose records", action="Name the partitions.")
    if kind == "preferred" and broker_id is not None:
        raise ConfigError(
            "broker_id is not allowed for a preferred election", action="The first replica in order is elected."
        )
    request = cluster_pb2.ElectLeadersRequest(type=_ELECTIONS[kind], broker_id=broker_id, validate_only=validate_only)
    of_topic: dict[str, list[int]] = {}
    for topic, partition in partitions or ():
        of_topic.setdefault(topic, []).append(partition)
    for topic, numbers in of_topic.items():
        request.topics.add(topic=topics_pb2.TopicRef(name=topic), partitions=numbers)
    return request


def partition_changes(
    response: cluster_pb2.ReassignPartitionsResponse | cluster_pb2.ElectLeadersResponse,
) -> list[PartitionChange]:
    """Return the result for each partition."""
    return [
        PartitionChange(
            result.name,
            result.partition,
            error_of(result),
            result.unchanged,
            result.leader_id,
            result.leader_epoch,
            tuple(result.replicas),
        )
        for result in response.partitions
    ]


def reassignments(response: cluster_pb2.ListReassignmentsResponse) -> list[Reassignment]:
    """Return the moves in progress, by topic and partition."""
    found = [
        Reassignment(
            move.name,
            move.partition,
            tuple(move.replicas),
            tuple(move.adding),
            tuple(move.removing),
            tuple(move.in_sync_replicas),
            move.leader_id,
            move.copy_bytes_per_second,
        )
        for move in response.partitions
    ]
    return sorted(found, key=lambda move: (move.topic, move.partition))


def log_infos(response: broker_pb2.DescribeLogsResponse) -> list[LogInfo]:
    """Return one broker's logs."""
    return [
        LogInfo(
            log.name,
            log.partition,
            response.broker_id,
            log.is_leader,
            log.leader_epoch,
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.flushed_offset,
            log.size_bytes,
            log.segments,
            log.offline_reason,
            log.is_follower,
            tuple(
                FollowerInfo(
                    each.broker_id,
                    each.broker_epoch,
                    each.log_end_offset,
                    each.durable_offset,
                    each.behind_ms,
                    each.in_sync,
                    each.phi,
                )
                for each in sorted(log.followers, key=lambda each: each.broker_id)
            ),
            ReplicaLoad(log.bytes_in_per_second, log.bytes_out_per_second, log.requests_per_second),
            log.compacted_offset,
        )
        for log in response.logs
    ]


def unclaimed_log_infos(response: broker_pb2.DeleteUnclaimedLogsResponse) -> list[UnclaimedLogInfo]:
    """Return the unclaimed logs of one broker."""
    return [
        UnclaimedLogInfo(
            log.name,
            log.topic_id,
            log.partition,
            log.size_bytes,
            from_detail(log.error).message if log.HasField("error") else "",
        )
        for log in response.logs
    ]


def disk_info(response: broker_pb2.DescribeLogsResponse) -> DiskInfo:
    """Return the volume of one broker's data."""
    return DiskInfo(response.broker_id, response.disk_total_bytes, response.disk_free_bytes)
