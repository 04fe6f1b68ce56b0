"""The two listeners of a broker, and TLS among real processes: brokers, coordinators, etcd."""

import grpc
import pytest
from headrace.wire.errors import NotAuthorizedError, from_rpc_error
from headrace_server.internal_v1 import replication_pb2 as internal

from tests.integration.replicated import LOCAL_CHANNEL, REPLICA_FETCH


def replica_fetch(channel):
    open_stream = channel.stream_stream(
        REPLICA_FETCH,
        request_serializer=internal.ReplicaFetchRequest.SerializeToString,
        response_deserializer=internal.ReplicaFetchResponse.FromString,
    )
    return next(open_stream(iter([internal.ReplicaFetchRequest()]), timeout=10))


def test_replica_fetches_are_refused_where_clients_are_served(headrace_cluster):
    """A replica fetch on the clients' listener ends with NOT_AUTHORIZED and names the setting to mend."""
    with grpc.insecure_channel(headrace_cluster.broker(1).address, options=LOCAL_CHANNEL) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            replica_fetch(channel)
    error = from_rpc_error(caught.value)
    assert isinstance(error, NotAuthorizedError)
    assert not error.retriable
    assert "internal_advertised_address" in str(error)
