"""`ClusterService`: topics, partitions and brokers. Every coordinator serves every call.

Reads are served from the view, with its revision and age, also while etcd is unavailable. Writes then fail with
METASTORE_UNAVAILABLE, whose outcome states whether they may have been applied. Belongs to the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sized
from typing import Any, TypeVar

from headrace.v1 import cluster_pb2, cluster_pb2_grpc
from headrace.wire.errors import ErrorCode, InvalidRequestError, NotAuthorizedError
from headrace.wire.ids import OWN_PRODUCER_IDS
from headrace_server.cluster_identity import FORMAT_VERSION
from headrace_server.identity.gate import access
from headrace_server.identity.producer_owners import place_producer
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.identity.topic_access import describe_metadata
from headrace_server.keys import Keyspace, meta_key, value_json
from headrace_server.metadata_view import ClusterView, Coordinator
from headrace_server.metastore.api import KeyValue, Metastore
from headrace_server.requests import check_client_id
from headrace_server.rpc import server_streaming, unary

from headrace_coordinator.core.control import is_under_replicated
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.broker_requests import BrokerRequests
from headrace_coordinator.rpc.partition_requests import PartitionRequests
from headrace_coordinator.rpc.topic_requests import TopicRequests
from headrace_coordinator.settings import CoordinatorSettings

SERVICE_NAME = "headrace.v1.ClusterService"
MAX_DUMP_PREFIX_CHARACTERS = 1_024
IDENTITY_SCOPE = "identity/"
"""Prefix in a request that selects users and grants."""

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """The servicer of one coordinator."""

    def __init__(
        self,
        metastore: Metastore,
        view: ClusterView,
        *,
        topics: TopicRequests,
        partitions: PartitionRequests,
        brokers: BrokerRequests,
        settings: CoordinatorSettings,
        metrics: CoordinatorMetrics,
        etcd_version: str,
        draw: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        """`draw` returns an unpredictable random number below its argument."""
        self._metastore = metastore
        self._view = view
        self._topics = topics
        self._partitions = partitions
        self._brokers = brokers
        self._draw = draw
        self._settings = settings
        self.call_errors = metrics.common.call_errors
        self.call_seconds = metrics.timers(SERVICE_NAME)
        self._etcd_version = etcd_version

    @unary
    async def GetMetadata(
        self, request: cluster_pb2.GetMetadataRequest, context: Any
    ) -> cluster_pb2.GetMetadataResponse:
        """Return brokers, topics and leaders from the view."""
        self._check(request.client_id, request.topics)
        return describe_metadata(self._view, request, f"coordinator-{self._settings.coordinator_id}")

    @unary
    async def CreateTopics(
        self, request: cluster_pb2.CreateTopicsRequest, context: Any
    ) -> cluster_pb2.CreateTopicsResponse:
        """Create topics; return when they have leaders or the deadline has passed."""
        self._check(request.client_id, request.topics)
        return await self._topics.create(request, context.time_remaining())

    @unary
    async def DeleteTopics(
        self, request: cluster_pb2.DeleteTopicsRequest, context: Any
    ) -> cluster_pb2.DeleteTopicsResponse:
        """Delete topics with all their records."""
        self._check(request.client_id, request.topics)
        return await self._topics.delete(request, context.time_remaining())

    @unary
    async def CreatePartitions(
        self, request: cluster_pb2.CreatePartitionsRequest, context: Any
    ) -> cluster_pb2.CreatePartitionsResponse:
        """Add partitions to a topic."""
        self._check(request.client_id, ())
        return await self._topics.grow(request, context.time_remaining())

    @unary
    async def DescribeConfigs(
        self, request: cluster_pb2.DescribeConfigsRequest, context: Any
    ) -> cluster_pb2.DescribeConfigsResponse:
        """Return all settings of topics, with defaults and documentation."""
        self._check(request.client_id, request.topics)
        return self._topics.describe_configs(request)

    @unary
    async def AlterConfigs(
        self, request: cluster_pb2.AlterConfigsRequest, context: Any
    ) -> cluster_pb2.AlterConfigsResponse:
        """Change settings of a topic at run time."""
        self._check(request.client_id, ())
        return await self._topics.alter_configs(request, context.time_remaining())

    @unary
    async def DescribeCluster(
        self, request: cluster_pb2.DescribeClusterRequest, context: Any
    ) -> cluster_pb2.DescribeClusterResponse:
        """Return a summary of the cluster from the view, and on request the drained brokers from etcd."""
        self._check(request.client_id, ())
        response = self._describe_cluster()
        if request.read_drained_brokers:
            response.drained_brokers.CopyFrom(await self._brokers.drained(context.time_remaining()))
        return response

    @unary
    async def InitProducerId(
        self, request: cluster_pb2.InitProducerIdRequest, context: Any
    ) -> cluster_pb2.InitProducerIdResponse:
        """Return a random producer id of the caller's, and its epoch: unique without any stored state (H53)."""
        self._check(request.client_id, ())
        producer_id, epoch = place_producer(access().producer_tag, self._draw(OWN_PRODUCER_IDS))
        return cluster_pb2.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    @unary
    async def ReassignPartitions(
        self, request: cluster_pb2.ReassignPartitionsRequest, context: Any
    ) -> cluster_pb2.ReassignPartitionsResponse:
        """Start, change or cancel reassignments."""
        self._check(request.client_id, ())
        return await self._partitions.reassign(request, context.time_remaining())

    @unary
    async def ListReassignments(
        self, request: cluster_pb2.ListReassignmentsRequest, context: Any
    ) -> cluster_pb2.ListReassignmentsResponse:
        """Return the reassignments in progress from the view."""
        self._check(request.client_id, request.topics)
        return self._partitions.list_reassignments(request)

    @unary
    async def ElectLeaders(
        self, request: cluster_pb2.ElectLeadersRequest, context: Any
    ) -> cluster_pb2.ElectLeadersResponse:
        """Elect the preferred replicas, or, on explicit request, replicas that may lack records."""
        self._check(request.client_id, request.topics)
        return await self._partitions.elect(request, context.time_remaining())

    @unary
    async def DrainBroker(
        self, request: cluster_pb2.DrainBrokerRequest, context: Any
    ) -> cluster_pb2.DrainBrokerResponse:
        """Drain a broker, or end its drain."""
        self._check(request.client_id, ())
        return await self._brokers.drain(request, context.time_remaining())

    @server_streaming
    async def DumpMetadata(
        self, request: cluster_pb2.DumpMetadataRequest, context: Any
    ) -> AsyncIterator[cluster_pb2.DumpMetadataResponse]:
        """Stream every key of etcd without its secrets: those of the cluster first, then those with other prefixes.

        Users and grants are for administrators whatever the posture, as in `ListUsers`; a dump of all leaves them out.
        """
        self._check(request.client_id, ())
        if len(request.prefix) > MAX_DUMP_PREFIX_CHARACTERS:
            raise InvalidRequestError(f"the prefix has more than {MAX_DUMP_PREFIX_CHARACTERS} characters")
        keyspace = self._view.keyspace
        if not request.prefix:
            meta = (await self._metastore.get(meta_key(keyspace.cluster))).key_value
            if meta is not None:
                yield self._dump(meta)
        sees_identity = access().caller.allows(Operation.ADMIN, ResourceKind.CLUSTER)
        if request.prefix.startswith(IDENTITY_SCOPE) and not sees_identity:
            access().note_refusal(ErrorCode.NOT_AUTHORIZED, "admin cluster")
            raise NotAuthorizedError(f"{access().caller.name} has no grant of admin, which users and grants need")
        for prefix in _dump_prefixes(keyspace, request.prefix):
            if prefix.startswith(keyspace.identity_prefix) and not sees_identity:
                continue
            for key_value in (await self._metastore.range(prefix)).key_values:
                yield self._dump(key_value)

    def _dump(self, found: KeyValue) -> cluster_pb2.DumpMetadataResponse:
        return cluster_pb2.DumpMetadataResponse(
            key=found.key,
            value_json=value_json(self._view.keyspace, found.key, found.value),
            create_revision=found.create_revision,
            mod_revision=found.mod_revision,
            version=found.version,
            lease_id=found.lease_id,
        )

    def _describe_cluster(self) -> cluster_pb2.DescribeClusterResponse:
        view = self._view
        states = [partition.state for topic in view.topics.values() for partition in view.partitions(topic.topic_id)]
        controller = view.controller
        return cluster_pb2.DescribeClusterResponse(
            cluster_id=view.identity.cluster_id,
            generation=view.identity.generation,
            format_version=FORMAT_VERSION,
            controller_id="" if controller is None else controller.live.coordinator_id,
            controller_epoch=0 if controller is None else controller.create_revision,
            brokers=view.broker_metadata(),
            coordinators=[_coordinator_metadata(view.coordinators[name]) for name in sorted(view.coordinators)],
            topics=len(view.topics),
            partitions=len(states),
            offline_partitions=sum(state.leader is None for state in states),
            under_replicated_partitions=sum(map(is_under_replicated, states)),
            etcd_version=self._etcd_version,
            revision=view.source.revision,
            undecodable_keys=len(view.undecodable),
        )

    def _check(self, client_id: str, topics: Sized) -> None:
        """Check the limits that apply to every call.

        Raises:
            InvalidRequestError: If the client id is too long, or the request names too many topics.
        """
        check_client_id(client_id)
        if len(topics) > self._settings.max_request_topics:
            raise InvalidRequestError(
                f"the request names {len(topics)} topics, more than {self._settings.max_request_topics}",
                action="Send several smaller requests.",
            )


def _dump_prefixes(keyspace: Keyspace, prefix: str) -> list[str]:
    """Return the key prefixes of a dump; `groups/...` and others select keys that have separate prefixes."""
    scopes = {
        "groups/": keyspace.groups_prefix,
        "directories/": keyspace.directories_prefix,
        IDENTITY_SCOPE: keyspace.identity_prefix,
        "schema_registry/": keyspace.schema_registry_prefix,
        "write_fences/": keyspace.write_fences_prefix,
    }
    for scope, whole in scopes.items():
        if prefix.startswith(scope):
            return [whole + prefix.removeprefix(scope)]
    return [keyspace.prefix + prefix] if prefix else [keyspace.prefix, *scopes.values()]


def _coordinator_metadata(coordinator: Coordinator) -> cluster_pb2.CoordinatorMetadata:
    live = coordinator.live
    return cluster_pb2.CoordinatorMetadata(
        coordinator_id=live.coordinator_id, address=live.address, version=live.version
    )
