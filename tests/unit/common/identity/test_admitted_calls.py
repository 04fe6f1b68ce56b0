"""Calls of a real server after their admission: acts are in the audit log, streams end with their caller's right."""

import asyncio
import contextlib

import grpc
import pytest
from headrace.v1 import auth_pb2, broker_pb2, broker_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from headrace.wire.errors import NotAuthorizedError, UnauthenticatedError, from_rpc_error
from headrace_server.rpc import RpcServer, server_streaming, unary

from tests.unit.common.identity.test_gate import Known


class Broker(broker_pb2_grpc.BrokerServiceServicer):
    """Its DeleteRecords begin and never end."""

    def __init__(self):
        self.begun = asyncio.Event()

    @unary
    async def DeleteRecords(self, request, context):
        self.begun.set()
        await asyncio.Event().wait()


class Cluster(cluster_pb2_grpc.ClusterServiceServicer):
    """Streams one key, and the next one when it may."""

    def __init__(self):
        self.may_continue = asyncio.Event()

    @server_streaming
    async def DumpMetadata(self, request, context):
        yield cluster_pb2.DumpMetadataResponse(key="a")
        await self.may_continue.wait()
        yield cluster_pb2.DumpMetadataResponse(key="b")


class Served:
    """A server over keys that a test writes, with an administrator."""

    def __init__(self, known, address, channel, broker, cluster):
        self.known = known
        self.address = address
        self.broker, self.cluster = broker, cluster
        self._api_key = known.user()
        self.grant = known.grant("ada", "admin", "cluster")
        self.delete_records = broker_pb2_grpc.BrokerServiceStub(channel).DeleteRecords
        self.dump_metadata = cluster_pb2_grpc.ClusterServiceStub(channel).DumpMetadata

    def options(self, timeout=30):
        return {"timeout": timeout, "metadata": (("authorization", f"Bearer {self._api_key}"),)}

    async def act(self):
        """Return the method and error of the one act in the audit log, once it is there."""
        async with asyncio.timeout(30):
            await self.known.gate.audit_log.wait()
        (event,) = [each for each in self.known.gate.audit_log.take(10) if each.kind == "act"]
        return event.user, event.method, event.error


@pytest.fixture
def served():
    """A server that requires identities."""
    return serving()


@contextlib.asynccontextmanager
async def serving():
    known, broker, cluster = Known(auth_pb2.POSTURE_REQUIRED), Broker(), Cluster()
    server = RpcServer(gate=known.gate)
    server.add(broker_pb2_grpc.add_BrokerServiceServicer_to_server, broker, "headrace.v1.BrokerService")
    server.add(cluster_pb2_grpc.add_ClusterServiceServicer_to_server, cluster, "headrace.v1.ClusterService")
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield Served(known, address, channel, broker, cluster)
    finally:
        await server.stop(0)


async def test_an_act_whose_caller_leaves_is_in_the_audit_log(served):
    """What it began may have its effect: hanging up, or a short deadline, hides no deletion."""
    call = served.delete_records(broker_pb2.DeleteRecordsRequest(), **served.options())
    waiting = asyncio.ensure_future(call)
    await served.broker.begun.wait()
    call.cancel()
    assert await served.act() == ("ada", "DeleteRecords", "CANCELLED")
    await asyncio.wait([waiting])


@pytest.mark.parametrize("leaves", [False, True])
async def test_an_act_that_streams_is_in_the_audit_log_once(served, leaves):
    """At its end, and if its caller reads a part of it only."""
    call = served.dump_metadata(cluster_pb2.DumpMetadataRequest(), **served.options())
    assert (await call.read()).key == "a"
    if leaves:
        call.cancel()
    else:
        served.cluster.may_continue.set()
        assert (await call.read()).key == "b"
        assert await call.read() is grpc.aio.EOF
    assert await served.act() == ("ada", "DumpMetadata", "CANCELLED" if leaves else "")


@pytest.mark.parametrize(("is_deleted", "error"), [(False, NotAuthorizedError), (True, UnauthenticatedError)])
async def test_a_stream_ends_with_the_right_of_its_caller(served, is_deleted, error):
    """The next message is refused, as the next call would be, and the audit log has how the act ended."""
    call = served.dump_metadata(cluster_pb2.DumpMetadataRequest(), **served.options())
    assert (await call.read()).key == "a"
    if is_deleted:
        served.known.user()  # a new key in the place of the one of the call
    else:
        served.known.keys.write({served.grant: None})
    served.cluster.may_continue.set()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert isinstance(from_rpc_error(refused.value), error)
    kinds = [(event.kind, event.error) for event in served.known.gate.audit_log.take(10)]
    code = error.default_code.name
    assert sorted(kinds) == [("act", code), ("refusal", code)]
