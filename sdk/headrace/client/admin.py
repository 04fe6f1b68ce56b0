"""The blocking `Admin`: topics, settings, offsets, logs. Any thread."""

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import grpc

from headrace.client import admin_rpc as rpc
from headrace.client.admin_rpc import (
    ClusterDescription,
    ConfigValue,
    DeletedRecords,
    LogInfo,
    MetadataEntry,
    OffsetAt,
    TopicDescription,
)
from headrace.client.config import AdminConfig, build
from headrace.client.connection import ClusterClient, Connections, status_of
from headrace.client.errors import ForkedError
from headrace.client.forking import ForkGuard
from headrace.client.retry import Backoff
from headrace.client.routing import RoutingTable
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.errors import (
    HeadraceError,
    LeaderNotAvailableError,
    NotLeaderError,
    Outcome,
    TransportError,
    from_rpc_error,
)
from headrace.wire.ids import TopicPartition


class Admin:
    """Looks at and changes a cluster.

    Every method takes `timeout` in seconds for all tries together (default: request_timeout_ms) and raises the typed
    errors of `headrace.wire.errors`, or `NoBrokersAvailableError`. What changes something is not sent again when its
    answer was lost: the error's outcome is then UNKNOWN.
    """

    def __init__(self, **settings: Any) -> None:
        """See `AdminConfig` for the settings. Connects when first used.

        Raises:
            ConfigError: an unknown setting or a value out of range.
        """
        self._config = build(AdminConfig, settings)
        self._connections = Connections("Admin")
        self._cluster = ClusterClient(self._config, self._connections)
        self._backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, random.Random())
        self._fork = ForkGuard(self._forked)
        self._is_forked = False

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        if not self._is_forked:
            self._connections.close()

    def create_topic(
        self,
        name: str,
        partitions: int = 0,
        replication_factor: int = 0,
        config: Mapping[str, Any] | None = None,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> TopicDescription:
        """Create a topic and give what was created.

        Args:
            name: 1 to 249 of `a-z A-Z 0-9 . _ -`.
            partitions: how many; 0 takes the cluster's default.
            replication_factor: how many replicas each has; 0 takes the cluster's default.
            config: topic settings by name.
            assignments: brokers of each partition, in place of the two numbers.
            validate_only: check everything, create nothing.
            exist_ok: describe a topic that is there already, in place of raising.
            timeout: in seconds.

        Raises:
            TopicAlreadyExistsError: unless `exist_ok`.
            InvalidTopicNameError, InvalidPartitionsError, InvalidReplicationFactorError, InvalidConfigError: correct
            it.
        """
        request = rpc.create_topic_request(
            name,
            partitions,
            replication_factor,
            config,
            assignments,
            validate_only=validate_only,
            timeout=self._timeout(timeout),
        )
        response = self._coordinator("CreateTopics", request, timeout, repeatable=validate_only)
        return rpc.created_topic(response, exist_ok) or self.describe_topic(name, timeout=timeout)

    def delete_topic(self, name: str, *, validate_only: bool = False, timeout: float | None = None) -> None:
        """Delete a topic and all its records.

        Raises:
            UnknownTopicError: there is none of that name.
        """
        request = cluster_pb2.DeleteTopicsRequest(topics=[rpc.by_name(name)], validate_only=validate_only)
        response = self._coordinator("DeleteTopics", request, timeout, repeatable=validate_only)
        for result in response.topics:
            rpc.raise_for(result)

    def list_topics(self, *, timeout: float | None = None) -> list[str]:
        """Give the names of all topics, ascending."""
        return sorted(topic.name for topic in self.describe_topics(timeout=timeout))

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """Give a topic's id, partitions, leaders, replicas.

        Raises:
            UnknownTopicError: there is none of that name.
        """
        return self.describe_topics([name], timeout=timeout)[0]

    def describe_topics(
        self, names: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> list[TopicDescription]:
        """Describe some topics in the order given, or all by name.

        Raises:
            UnknownTopicError: one of the names is not there.
        """
        request = cluster_pb2.GetMetadataRequest(topics=[rpc.by_name(name) for name in names or ()])
        if names is not None and not names:
            return []
        self._check_fork()
        return rpc.topic_descriptions(self._cluster.get_metadata(request, self._timeout(timeout)), names)

    def create_partitions(
        self,
        name: str,
        total_partitions: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> list[str]:
        """Raise the number of a topic's partitions to `total_partitions`; gives warnings. Keys map anew."""
        request = cluster_pb2.CreatePartitionsRequest(
            topic=rpc.by_name(name),
            total_partitions=total_partitions,
            assignments=rpc.replica_lists(assignments),
            validate_only=validate_only,
        )
        response = self._coordinator("CreatePartitions", request, timeout, repeatable=True)
        rpc.raise_for(response.result)
        return list(response.warnings)

    def alter_config(
        self,
        name: str,
        set: Mapping[str, Any] | None = None,
        unset: Sequence[str] = (),
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change a topic's settings; `unset` names go back to their defaults.

        Raises:
            InvalidConfigError: an unknown setting or a value out of range.
        """
        request = cluster_pb2.AlterConfigsRequest(
            topic=rpc.by_name(name), set=rpc.config_strings(set), unset=unset, validate_only=validate_only
        )
        rpc.raise_for(self._coordinator("AlterConfigs", request, timeout, repeatable=True).result)

    def describe_config(self, name: str, *, timeout: float | None = None) -> dict[str, ConfigValue]:
        """Give every setting of a topic: value, whether it is set or the default, and what it does."""
        request = cluster_pb2.DescribeConfigsRequest(topics=[rpc.by_name(name)])
        return rpc.config_values(self._coordinator("DescribeConfigs", request, timeout))

    def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        """Give the cluster's id, controller, brokers, coordinators and counts."""
        return rpc.cluster_description(
            self._coordinator("DescribeCluster", cluster_pb2.DescribeClusterRequest(), timeout)
        )

    def list_offsets(
        self,
        topic: str,
        at: str | int | float | datetime = "latest",
        *,
        by: str = "record",
        partitions: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt]:
        """Find offsets of a topic's partitions.

        Args:
            topic: its name.
            at: `earliest`, `latest` (where the next visible record will be), a datetime, or ms since 1970.
            by: for times: `record` timestamps or `append` time.
            partitions: which; None for all.
            timeout: in seconds.
        """
        make = rpc.offsets_request_part(at, by)
        found: dict[TopicPartition, OffsetAt] = {}

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> Any:
            request = broker_pb2.ListOffsetsRequest(client_id=self._config.client_id)
            entry = request.topics.add(topic=rpc.by_id(topic_id))
            entry.partitions.extend(make(partition, epoch) for partition, epoch in parts)
            return request

        for result in self._at_leaders("ListOffsets", topic, partitions, build_request, timeout):
            found[TopicPartition(topic, result.partition)] = OffsetAt(result.offset, result.timestamp_ms)
        return dict(sorted(found.items()))

    def delete_records(
        self, topic: str, before: Mapping[int, int], *, timeout: float | None = None
    ) -> list[DeletedRecords]:
        """Delete the records of partitions below offsets; -1 stands for the high watermark.

        Raises:
            OffsetOutOfRangeError: an offset above the high watermark.
        """

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> Any:
            request = broker_pb2.DeleteRecordsRequest(
                client_id=self._config.client_id, timeout_ms=int(self._timeout(timeout) * 1000)
            )
            entry = request.topics.add(topic=rpc.by_id(topic_id))
            for partition, _ in parts:
                entry.partitions.add(partition=partition, before_offset=before[partition])
            return request

        results = self._at_leaders("DeleteRecords", topic, list(before), build_request, timeout)
        return sorted(DeletedRecords(topic, result.partition, result.log_start_offset) for result in results)

    def describe_logs(self, topic: str | None = None, *, timeout: float | None = None) -> list[LogInfo]:
        """Give size and offsets of every replica on every broker, or of one topic's."""
        self._check_fork()
        metadata = self._cluster.get_metadata(cluster_pb2.GetMetadataRequest(brokers_only=True), self._timeout(timeout))
        request = broker_pb2.DescribeLogsRequest(client_id=self._config.client_id)
        if topic is not None:
            request.topics.append(rpc.by_name(topic))
        found: list[LogInfo] = []
        for broker in metadata.brokers:
            found.extend(rpc.log_infos(self._broker(broker.address, "DescribeLogs", request, timeout)))
        return sorted(found, key=lambda log: (log.topic, log.partition, log.broker_id))

    def dump(self, prefix: str = "", *, timeout: float | None = None) -> Iterator[MetadataEntry]:
        """Give every key of the cluster in etcd with its decoded value, for administrators."""
        request = cluster_pb2.DumpMetadataRequest(prefix=prefix)
        stream = self._coordinator("DumpMetadata", request, timeout)
        try:
            for entry in stream:
                yield rpc.metadata_entry(entry)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def _timeout(self, timeout: float | None) -> float:
        return self._config.request_timeout_ms / 1000 if timeout is None else timeout

    def _coordinator(self, method: str, request: Any, timeout: float | None, *, repeatable: bool = True) -> Any:
        self._check_fork()
        return self._cluster.call_coordinator(method, request, self._timeout(timeout), repeatable=repeatable)

    def _broker(self, address: str, method: str, request: Any, timeout: float | None) -> Any:
        self._check_fork()
        try:
            return getattr(self._connections.endpoint(address).broker, method)(request, timeout=self._timeout(timeout))
        except grpc.RpcError as error:
            typed = from_rpc_error(error)
            typed.add_note(f"asked {address}: {status_of(error)[1]}")
            raise typed from error

    def _at_leaders(
        self, method: str, topic: str, partitions: Sequence[int] | None, build_request: Any, timeout: float | None
    ) -> list[Any]:
        """Ask each partition's leader. What was definitely not done and may succeed later is asked again, with fresh
        metadata and back-off, until the time is up: a new topic's leaders are just being elected, another's moves.
        """
        seconds = self._timeout(timeout)
        deadline = time.monotonic() + seconds
        results: list[Any] = []
        wanted = partitions
        for attempt in itertools.count(1):
            left = max(0.001, deadline - time.monotonic())
            wanted, problem = self._ask_leaders(method, topic, wanted, build_request, left, results)
            if problem is None:
                return results
            delay = self._backoff.delay_ms(attempt, problem.retry_after_ms) / 1000
            if time.monotonic() + delay >= deadline:
                raise problem
            time.sleep(delay)
        raise AssertionError("unreachable: the count has no end")

    def _ask_leaders(
        self,
        method: str,
        topic: str,
        wanted: Sequence[int] | None,
        build_request: Any,
        timeout: float,
        results: list[Any],
    ) -> tuple[Sequence[int] | None, HeadraceError | None]:
        """One round: adds to `results`; gives the partitions to ask again and why, or (nothing, None)."""
        routes = RoutingTable()
        self._check_fork()
        routes.update(self._cluster.get_metadata(rpc.metadata_request(topic), timeout))
        try:
            plan = rpc.by_leader(routes, topic, wanted)
        except HeadraceError as error:
            return wanted, _if_repeatable(error)
        again: list[int] = []
        problem: HeadraceError | None = None
        for address, parts in plan.items():
            request = build_request(parts, routes.require(topic).topic_id)
            try:
                response = self._broker(address, method, request, timeout)
            except HeadraceError as error:
                problem = _if_repeatable(error)
                again.extend(partition for partition, _ in parts)
                continue
            for result in response.topics[0].partitions:
                error_here = rpc.error_of(result)
                if error_here is None:
                    results.append(result)
                else:
                    problem = _if_repeatable(error_here)
                    again.append(result.partition)
        return again, problem

    def _forked(self) -> None:
        self._is_forked = True

    def _check_fork(self) -> None:
        if self._is_forked:
            raise ForkedError("Admin")


def _if_repeatable(error: HeadraceError) -> HeadraceError:
    """Give an error back if asking again is right; raise any other."""
    repeatable = error.retriable and (error.outcome == Outcome.NOT_APPLIED or isinstance(error, TransportError))
    if not repeatable and not isinstance(error, NotLeaderError | LeaderNotAvailableError):
        raise error
    return error


__all__ = ["Admin", "HeadraceError"]
