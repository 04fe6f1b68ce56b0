"""Plan of one fetch: the broker, the partitions and the request. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.client.base.config import FetchConfig
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.ids import TopicPartition


class Wanted(NamedTuple):
    """One partition of a fetch."""

    where: TopicPartition
    topic_id: bytes
    """Topic id at the time of the plan; metadata may have changed when the response arrives."""
    generation: int
    offset: int
    leader_epoch: int
    last_epoch: int
    """Leader epoch of the batch before `offset`; -1 means unknown."""
    corruption_detected: bool
    from_leader: bool


@dataclass(frozen=True, slots=True, eq=False)
class FetchPlan:
    """One fetch to start."""

    broker_id: int
    address: str
    partitions: tuple[Wanted, ...]
    request: broker_pb2.FetchRequest


def fetch_plan(
    config: FetchConfig,
    broker_id: int,
    address: str,
    parts: Sequence[Wanted],
    *,
    names_place: bool = False,
    selection: broker_pb2.ColumnSelection | None = None,
) -> FetchPlan:
    """Return the plan of one fetch of some partitions from one broker.

    `selection` requests columns of typed topics. `names_place` requests the name of a nearer replica from the
    leader, and allows another replica to serve.
    """
    request = broker_pb2.FetchRequest(
        client_id=config.client_id,
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        rack=config.client_rack if names_place else "",
        data_center=config.client_data_center if names_place else "",
    )
    entries: dict[str, broker_pb2.TopicFetch] = {}
    for part in parts:
        entry = entries.get(part.where.topic)
        if entry is None:
            reference = topics_pb2.TopicRef(topic_id=part.topic_id)
            entry = entries[part.where.topic] = request.topics.add(topic=reference, selection=selection)
        entry.partitions.add(
            partition=part.where.partition,
            offset=part.offset,
            max_bytes=config.max_partition_fetch_bytes,
            leader_epoch=part.leader_epoch,
            last_epoch=part.last_epoch if part.last_epoch >= 0 else None,
            corruption_detected=part.corruption_detected,
        )
    return FetchPlan(broker_id, address, tuple(parts), request)
