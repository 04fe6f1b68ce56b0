"""Operations of `Admin`, shared by the blocking and the asyncio class. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from headrace.client.admin import replication, rpc
from headrace.client.admin.balance import BalanceBy, BalancePlan, check_balance, plan_balance
from headrace.client.admin.broker_calls import BrokerCalls
from headrace.client.admin.replication import DiskInfo, DrainResult, LogInfo, PartitionChange, Reassignment
from headrace.client.admin.rpc import (
    ClusterDescription,
    ConfigValue,
    DeletedRecords,
    OffsetAt,
    TopicDescription,
)
from headrace.client.base.config import ClientConfig
from headrace.client.base.operations import Operation
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import broker_pb2, cluster_pb2, topics_pb2
from headrace.wire.errors import (
    UnknownBrokerError,
    UnsupportedVersionError,
)
from headrace.wire.ids import TopicPartition


class AdminOperations:
    """Operations of one client; any thread. `timeout` is in seconds for all tries; `None` means request_timeout_ms.

    Arguments, results and errors are documented in the methods of `headrace.client.admin.admin.Admin`.
    """

    def __init__(self, config: ClientConfig, calls: BootstrapClient) -> None:
        self._config = config
        self._calls = calls
        self.brokers = BrokerCalls(config, calls)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, Any] | None,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
        exist_ok: bool,
        timeout: float | None,
    ) -> Operation[TopicDescription]:
        """Create a topic, or describe the existing one if `exist_ok`."""
        request = rpc.create_topic_request(
            name,
            partitions,
            replication_factor,
            config,
            assignments,
            validate_only=validate_only,
            timeout=self.brokers.seconds(timeout),
        )
        response = yield from self._coordinator("CreateTopics", request, timeout, repeatable=validate_only)
        created = rpc.created_topic(response, exist_ok)
        return created or (yield from self.describe_topics([name], timeout))[0]

    def delete_topic(self, name: str, *, validate_only: bool, timeout: float | None) -> Operation[None]:
        """Delete a topic."""
        request = cluster_pb2.DeleteTopicsRequest(topics=[rpc.by_name(name)], validate_only=validate_only)
        yield from self._delete(request, timeout)

    def delete_unclaimed_logs(self, topic_id: bytes, *, validate_only: bool, timeout: float | None) -> Operation[None]:
        """Allow brokers to delete the logs that they keep of an id that no topic has."""
        reference = topics_pb2.TopicRef(topic_id=topic_id)
        request = cluster_pb2.DeleteTopicsRequest(topics=[reference], validate_only=validate_only, unclaimed=True)
        yield from self._delete(request, timeout)

    def _delete(self, request: cluster_pb2.DeleteTopicsRequest, timeout: float | None) -> Operation[None]:
        response = yield from self._coordinator("DeleteTopics", request, timeout, repeatable=request.validate_only)
        for result in response.topics:
            rpc.raise_for(result)

    def describe_topics(self, names: Sequence[str] | None, timeout: float | None) -> Operation[list[TopicDescription]]:
        """Describe some topics, or all."""
        if names is not None and not names:
            return []
        request = cluster_pb2.GetMetadataRequest(topics=[rpc.by_name(name) for name in names or ()])
        response = yield from self._calls.metadata(request, self.brokers.seconds(timeout))
        return rpc.topic_descriptions(response, names)

    def create_partitions(
        self,
        name: str,
        total_partitions: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
        timeout: float | None,
    ) -> Operation[list[str]]:
        """Increase the number of a topic's partitions; return warnings."""
        request = cluster_pb2.CreatePartitionsRequest(
            topic=rpc.by_name(name),
            total_partitions=total_partitions,
            assignments=rpc.replica_lists(assignments),
            validate_only=validate_only,
        )
        response = yield from self._coordinator("CreatePartitions", request, timeout, repeatable=validate_only)
        rpc.raise_for(response.result)
        return list(response.warnings)

    def alter_config(
        self,
        name: str,
        changes: Mapping[str, Any] | None,
        unset: Sequence[str],
        *,
        validate_only: bool,
        timeout: float | None,
    ) -> Operation[None]:
        """Change a topic's settings."""
        request = cluster_pb2.AlterConfigsRequest(
            topic=rpc.by_name(name), set=rpc.config_strings(changes), unset=unset, validate_only=validate_only
        )
        response = yield from self._coordinator("AlterConfigs", request, timeout)
        rpc.raise_for(response.result)

    def describe_config(self, name: str, timeout: float | None) -> Operation[dict[str, ConfigValue]]:
        """Return every setting of a topic."""
        request = cluster_pb2.DescribeConfigsRequest(topics=[rpc.by_name(name)])
        return rpc.config_values((yield from self._coordinator("DescribeConfigs", request, timeout)))

    def describe_cluster(self, timeout: float | None) -> Operation[ClusterDescription]:
        """Describe the cluster."""
        request = cluster_pb2.DescribeClusterRequest()
        return rpc.cluster_description((yield from self._coordinator("DescribeCluster", request, timeout)))

    def find_offsets(
        self,
        topic: str,
        at: str | float | datetime,
        *,
        by: str = "record",
        partitions: Sequence[int] | None = None,
        timeout: float | None = None,
        topic_id: bytes = b"",
    ) -> Operation[tuple[bytes, dict[TopicPartition, OffsetAt]]]:
        """Find offsets of one incarnation of a topic, that of `topic_id` if given; also return its topic id.

        Raises:
            UnknownTopicIdError: If the topic was deleted and created again, before or during the call.
        """
        make = rpc.offsets_request_part(at, by)

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> Any:
            request = broker_pb2.ListOffsetsRequest(client_id=self._config.client_id)
            entry = request.topics.add(topic=rpc.by_id(topic_id))
            entry.partitions.extend(make(partition, epoch) for partition, epoch in parts)
            return request

        found: dict[TopicPartition, OffsetAt] = {}
        topic_id, results = yield from self.brokers.at_leaders(
            "ListOffsets", topic, partitions, build_request, timeout, topic_id
        )
        for result in results:
            found[TopicPartition(topic, result.partition)] = OffsetAt(
                result.offset, result.timestamp_ms, result.leader_epoch
            )
        return topic_id, dict(sorted(found.items()))

    def delete_records(
        self, topic: str, before: Mapping[int, int], timeout: float | None
    ) -> Operation[list[DeletedRecords]]:
        """Delete the records of partitions below offsets; -1 is resolved once, as its meaning changes over time."""
        to_end = [partition for partition, offset in before.items() if offset == -1]
        topic_id = b""
        if to_end:
            topic_id, ends = yield from self.find_offsets(topic, "latest", partitions=to_end, timeout=timeout)
            before = {**before, **{partition: ends[TopicPartition(topic, partition)].offset for partition in to_end}}

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> Any:
            request = broker_pb2.DeleteRecordsRequest(
                client_id=self._config.client_id, timeout_ms=int(self.brokers.seconds(timeout) * 1000)
            )
            entry = request.topics.add(topic=rpc.by_id(topic_id))
            for partition, _ in parts:
                entry.partitions.add(partition=partition, before_offset=before[partition])
            return request

        _, results = yield from self.brokers.at_leaders(
            "DeleteRecords", topic, list(before), build_request, timeout, topic_id
        )
        return sorted(DeletedRecords(topic, result.partition, result.log_start_offset) for result in results)

    def describe_logs(
        self, topic: str | None, brokers: Sequence[int] | None, timeout: float | None
    ) -> Operation[list[LogInfo]]:
        """Describe every replica on every broker, or on some."""
        responses = yield from self._broker_logs(rpc.by_name(topic) if topic is not None else None, brokers, timeout)
        found = [log for response in responses for log in replication.log_infos(response)]
        return sorted(found, key=lambda log: (log.topic, log.partition, log.broker_id))

    def delete_broker_logs(
        self, broker_id: int, logs: Sequence[tuple[bytes, int]], *, validate_only: bool, timeout: float | None
    ) -> Operation[list[replication.UnclaimedLogInfo]]:
        """Delete unclaimed logs of one broker, or check whether they may be deleted; no logs mean all of them."""
        request = broker_pb2.DeleteUnclaimedLogsRequest(client_id=self._config.client_id, validate_only=validate_only)
        for topic_id, partition in logs:
            request.logs.add(topic_id=topic_id, partition=partition)
        addresses = yield from self._broker_addresses(timeout)
        address = _address_of(addresses, broker_id)
        response = yield from self.brokers.broker(address, "DeleteUnclaimedLogs", request, timeout)
        return replication.unclaimed_log_infos(response)

    def describe_disks(self, brokers: Sequence[int] | None, timeout: float | None) -> Operation[list[DiskInfo]]:
        """Describe the volumes that hold the brokers' data."""
        responses = yield from self._broker_logs(None, brokers, timeout)
        return sorted(replication.disk_info(response) for response in responses)

    def reassign_partitions(
        self,
        moves: Mapping[TopicPartition, Sequence[int]],
        copy_bytes_per_second: int,
        *,
        validate_only: bool,
        timeout: float | None,
    ) -> Operation[list[PartitionChange]]:
        """Move replicas. The request is idempotent, so it is repeated after a lost response."""
        if not moves:
            return []
        request = replication.reassign_request(moves, copy_bytes_per_second, validate_only=validate_only)
        return replication.partition_changes((yield from self._coordinator("ReassignPartitions", request, timeout)))

    def plan_balance(self, by: BalanceBy, max_ratio: float, timeout: float | None) -> Operation[BalancePlan]:
        """Plan moves from what brokers report now. Nothing is changed."""
        check_balance(by, max_ratio)
        cluster = yield from self.describe_cluster(timeout)
        topics = yield from self.describe_topics(None, timeout)
        logs = yield from self.describe_logs(None, None, timeout)
        plan = plan_balance(cluster.brokers, topics, logs, by, max_ratio)
        return replace(plan, hidden_topics=cluster.count_hidden(topics))

    def cancel_reassignment(
        self, partitions: Sequence[TopicPartition], *, validate_only: bool, timeout: float | None
    ) -> Operation[list[PartitionChange]]:
        """Cancel moves."""
        if not partitions:
            return []
        request = replication.cancel_request(partitions, validate_only=validate_only)
        return replication.partition_changes((yield from self._coordinator("ReassignPartitions", request, timeout)))

    def list_reassignments(self, topics: Sequence[str] | None, timeout: float | None) -> Operation[list[Reassignment]]:
        """Return the moves in progress."""
        if topics is not None and not topics:
            return []
        request = cluster_pb2.ListReassignmentsRequest(topics=replication.topic_refs(topics))
        return replication.reassignments((yield from self._coordinator("ListReassignments", request, timeout)))

    def elect_leaders(
        self,
        kind: str,
        partitions: Iterable[TopicPartition] | None,
        broker_id: int | None,
        *,
        validate_only: bool,
        timeout: float | None,
    ) -> Operation[list[PartitionChange]]:
        """Elect leaders. An unclean election is not repeated: after a success, the second would be refused."""
        request = replication.elect_request(kind, partitions, broker_id, validate_only=validate_only)
        if partitions is not None and not request.topics:
            return []
        repeatable = validate_only or kind != "unclean"
        response = yield from self._coordinator("ElectLeaders", request, timeout, repeatable=repeatable)
        return replication.partition_changes(response)

    def drain_broker(self, broker_id: int, *, drain: bool, timeout: float | None) -> Operation[DrainResult]:
        """Move leadership and new replicas off a broker, or end that."""
        request = cluster_pb2.DrainBrokerRequest(broker_id=broker_id, drain=drain)
        response = yield from self._coordinator("DrainBroker", request, timeout)
        return DrainResult(response.leaders, response.unchanged)

    def drained_brokers(self, timeout: float | None) -> Operation[list[int]]:
        """Return the drained brokers as etcd has them."""
        request = cluster_pb2.DescribeClusterRequest(read_drained_brokers=True)
        response = yield from self._coordinator("DescribeCluster", request, timeout)
        if not response.HasField("drained_brokers"):
            raise UnsupportedVersionError(
                "the coordinator is of an older release and does not return the drained brokers",
                action="Upgrade the coordinators.",
            )
        rpc.raise_for(response.drained_brokers)
        return list(response.drained_brokers.broker_ids)

    def dump(self, prefix: str, timeout: float | None) -> Operation[Any]:
        """Start the dump; return the stream of its entries."""
        request = cluster_pb2.DumpMetadataRequest(prefix=prefix)
        return (yield from self._coordinator("DumpMetadata", request, timeout))

    def _broker_logs(
        self, topic: Any | None, brokers: Sequence[int] | None, timeout: float | None
    ) -> Operation[list[broker_pb2.DescribeLogsResponse]]:
        """Request the logs of brokers, one after another.

        Raises:
            UnknownBrokerError: If one of `brokers` is not registered.
        """
        addresses = yield from self._broker_addresses(timeout)
        request = broker_pb2.DescribeLogsRequest(client_id=self._config.client_id)
        if topic is not None:
            request.topics.append(topic)
        responses = []
        for broker_id in addresses if brokers is None else brokers:
            address = _address_of(addresses, broker_id)
            responses.append((yield from self.brokers.broker(address, "DescribeLogs", request, timeout)))
        return responses

    def _broker_addresses(self, timeout: float | None) -> Operation[dict[int, str]]:
        """Return the addresses of the registered brokers by id."""
        everyone = cluster_pb2.GetMetadataRequest(brokers_only=True)
        metadata = yield from self._calls.metadata(everyone, self.brokers.seconds(timeout))
        return {broker.broker_id: broker.address for broker in metadata.brokers}

    def _coordinator(
        self, method: str, request: Any, timeout: float | None, *, repeatable: bool = True
    ) -> Operation[Any]:
        return self._calls.coordinator(method, request, self.brokers.seconds(timeout), repeatable=repeatable)


def _address_of(addresses: Mapping[int, str], broker_id: int) -> str:
    if broker_id not in addresses:
        raise UnknownBrokerError(f"broker {broker_id} is not registered")
    return addresses[broker_id]
