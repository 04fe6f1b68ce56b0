"""Health of a local cluster: whether its coordinators see all brokers and a controller, and all servers know its
administrator.
"""

from __future__ import annotations

import grpc
from headrace.v1 import cluster_pb2, cluster_pb2_grpc

from headrace_devcluster.session_check import find_refusal, open_channel

RPC_TIMEOUT_SECONDS = 5.0

Metadata = tuple[tuple[str, str], ...]


def describe_cluster(
    address: str, credentials: grpc.ChannelCredentials | None = None, metadata: Metadata = ()
) -> cluster_pb2.DescribeClusterResponse:
    """Return the description of the cluster from one coordinator.

    Raises:
        grpc.RpcError: If it does not respond.
    """
    with open_channel(address, credentials) as channel:
        stub = cluster_pb2_grpc.ClusterServiceStub(channel)
        request = cluster_pb2.DescribeClusterRequest(client_id="devcluster")
        answer: cluster_pb2.DescribeClusterResponse = stub.DescribeCluster(
            request, timeout=RPC_TIMEOUT_SECONDS, wait_for_ready=True, metadata=metadata
        )
        return answer


def what_is_missing(
    address: str, wanted: set[int], credentials: grpc.ChannelCredentials | None, metadata: Metadata
) -> str:
    """Return a clause about parts that the coordinator at `address` does not see yet; empty if it sees all."""
    try:
        answer = describe_cluster(address, credentials, metadata)
    except grpc.RpcError as error:
        return f"the coordinator at {address} does not answer ({error.code().name})"
    absent = sorted(wanted - {broker.broker_id for broker in answer.brokers})
    if absent:
        return f"brokers {', '.join(map(str, absent))} are not registered"
    if not answer.controller_id:
        return "no controller is elected"
    api_key = "".join(bearer.removeprefix("Bearer ") for _, bearer in metadata)
    return find_refusal([address, *(each.address for each in answer.brokers)], credentials, api_key) if api_key else ""
