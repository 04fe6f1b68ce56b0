"""Purges of deleted rows from every replica of a table: operations of `Table`. No I/O."""

import random
import time
from collections.abc import Container
from typing import NamedTuple

from headrace.client.base.config import TableConfig
from headrace.client.base.operations import Call, Operation, Pause
from headrace.client.base.retry import Backoff
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import cluster_pb2, tables_pb2, topics_pb2
from headrace.wire.errors import HeadraceError, LeaderNotAvailableError, from_rpc_error, rpc_failures

PURGE_S = 600.0
"""Time for one replica."""
_TRY_S = 20.0
"""Maximum time of one call; a longer purge continues and is asked for again."""


class PurgedReplica(NamedTuple):
    """Result of a purge on one replica."""

    partition: int
    broker_id: int
    done: bool
    """Whether none of its files has any of the rows."""
    removed_records: int
    problem: str
    """Why it is not done; empty if it is."""


class PurgedPartition(NamedTuple):
    """What to purge of one partition."""

    partition: int
    keys: tuple[bytes, ...] = ()
    prefix: bytes | None = None
    deleted: bool = False


class _Place(NamedTuple):
    """Where a replica is."""

    broker_id: int
    address: str
    """Empty if the broker is not registered."""
    topic_id: bytes


class PurgeOperations:
    """Purges of one table; any thread."""

    def __init__(self, name: str, config: TableConfig, calls: BootstrapClient) -> None:
        self._name = name
        self._calls = calls
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.Random())

    def replicas(self, partition: int, timeout: float, purged: Container[int]) -> Operation[list[int]]:
        """Return the brokers with replicas of a partition that are not `purged`.

        The leader is the last: it knows then what others have removed.
        """
        found, leader = yield from self._places(partition, timeout)
        left = (each.broker_id for each in found if each.broker_id not in purged)
        return sorted(left, key=lambda broker_id: (broker_id == leader, broker_id))

    def _places(self, partition: int, timeout: float) -> Operation[tuple[list[_Place], int]]:
        request = cluster_pb2.GetMetadataRequest(topics=[topics_pb2.TopicRef(name=self._name)])
        response = yield from self._calls.metadata(request, timeout)
        addresses = {broker.broker_id: broker.address for broker in response.brokers}
        for topic in response.topics:
            for found in topic.partitions:
                if found.partition == partition:
                    places = [_Place(each, addresses.get(each, ""), topic.topic_id) for each in found.replicas]
                    return places, found.leader_id
        raise LeaderNotAvailableError(f"{self._name}-{partition} is not known")

    def purge(
        self, wanted: PurgedPartition, broker_id: int, before_offset: int, timeout: float
    ) -> Operation[PurgedReplica]:
        """Purge one replica, within `timeout` seconds; a problem is part of the result."""
        deadline = time.monotonic() + timeout
        problem, attempt = "", 0
        while (left := deadline - time.monotonic()) > 0:
            attempt += 1
            try:
                places, _ = yield from self._places(wanted.partition, left)
                place = next((each for each in places if each.broker_id == broker_id), None)
                if place is None:  # Its files go with the replica, which was moved.
                    return PurgedReplica(wanted.partition, broker_id, True, 0, "")
                if not place.address:
                    return self._failed(wanted, broker_id, "the broker is not registered: it is down or starts")
                response = yield from self._call(place, wanted, before_offset, min(left, _TRY_S))
            except HeadraceError as error:
                if not error.retriable:
                    return self._failed(wanted, broker_id, str(error))
                problem = str(error)
                yield Pause(min(max(0.0, left), self._backoff.delay_ms(attempt, error.retry_after_ms) / 1000))
                continue
            if response.done:
                return PurgedReplica(wanted.partition, broker_id, True, response.removed_records, "")
            problem = "it was not done in time; the broker continues"
        return self._failed(wanted, broker_id, problem or "it was not done in time")

    def _call(
        self, place: _Place, wanted: PurgedPartition, before_offset: int, seconds: float
    ) -> Operation[tables_pb2.PurgeRowsResponse]:
        request = tables_pb2.PurgeRowsRequest(
            table=topics_pb2.TopicRef(topic_id=place.topic_id),
            partition=wanted.partition,
            keys=wanted.keys,
            deleted=wanted.deleted,
            before_offset=before_offset,
            timeout_ms=max(1, int(seconds * 900)),
        )
        if wanted.prefix is not None:
            request.prefix = wanted.prefix
        try:
            response: tables_pb2.PurgeRowsResponse = yield Call(place.address, "tables", "PurgeRows", request, seconds)
        except rpc_failures() as error:
            raise from_rpc_error(error) from error
        return response

    def _failed(self, wanted: PurgedPartition, broker_id: int, problem: str) -> PurgedReplica:
        return PurgedReplica(wanted.partition, broker_id, False, 0, problem)
