"""The gRPC server of a service: typed errors, deadlines, health, addresses."""

import asyncio
import contextlib
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from headrace.wire.errors import (
    DeadlineRequiredError,
    InternalError,
    LeaderHint,
    NotLeaderError,
    Outcome,
    from_rpc_error,
)
from headrace_server.health import HealthCause
from headrace_server.identity.gate import Access
from headrace_server.rpc import AddressInUseError, RpcServer, server_streaming, unary
from headrace_server.settings import SettingsError

from tests.fakes.open_gate import open_gate


class Broker(broker_pb2_grpc.BrokerServiceServicer):
    @unary
    async def Produce(self, request, context):
        raise NotLeaderError("broker 1 does not lead it", leader=LeaderHint(2, 7, "host:1"))

    @unary
    async def Fetch(self, request, context):
        raise ZeroDivisionError("secret")

    @unary
    async def ListOffsets(self, request, context):
        return broker_pb2.ListOffsetsResponse()


class Waiting(broker_pb2_grpc.BrokerServiceServicer):
    """Its ListOffsets are answered when they may be, its DescribeLogs at once."""

    def __init__(self):
        self.calls, self.hundred, self.may_answer = 0, asyncio.Event(), asyncio.Event()

    @unary
    async def ListOffsets(self, request, context):
        self.calls += 1
        if self.calls == 100:
            self.hundred.set()
        await self.may_answer.wait()
        return broker_pb2.ListOffsetsResponse()

    @unary
    async def DescribeLogs(self, request, context):
        return broker_pb2.DescribeLogsResponse()


class Cluster(cluster_pb2_grpc.ClusterServiceServicer):
    @server_streaming
    async def DumpMetadata(self, request, context):
        yield cluster_pb2.DumpMetadataResponse(key="a")
        raise NotLeaderError("gone")


@contextlib.asynccontextmanager
async def serving(broker):
    server = RpcServer(gate=open_gate())
    server.add(broker_pb2_grpc.add_BrokerServiceServicer_to_server, broker, "headrace.v1.BrokerService")
    server.add(cluster_pb2_grpc.add_ClusterServiceServicer_to_server, Cluster(), "headrace.v1.ClusterService")
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield server, channel
    finally:
        await server.stop(0)


@pytest.fixture
def served():
    """A server and a channel to it."""
    return serving(Broker())


async def test_a_typed_error_reaches_the_caller_whole(served):
    """Code, outcome and leader hint of an error raised by a handler arrive in the caller's exception."""
    _, channel = served
    stub = broker_pb2_grpc.BrokerServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Produce(broker_pb2.ProduceRequest(), timeout=10)
    error = from_rpc_error(caught.value)
    assert isinstance(error, NotLeaderError)
    assert error.outcome is Outcome.NOT_APPLIED
    assert error.leader == LeaderHint(2, 7, "host:1")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_stream_of_a_user_over_its_quota_begins_when_that_is_paid(served, monkeypatch):
    """It is held before its handler begins, as an answer is held before it is sent."""
    held, is_paid = asyncio.Event(), asyncio.Event()

    async def hold(access, use):
        held.set()
        await is_paid.wait()

    monkeypatch.setattr(Access, "hold", hold)
    _, channel = served
    call = cluster_pb2_grpc.ClusterServiceStub(channel).DumpMetadata(cluster_pb2.DumpMetadataRequest(), timeout=30)
    first = asyncio.ensure_future(call.read())
    await asyncio.wait_for(held.wait(), 30)
    assert not first.done()
    is_paid.set()
    assert (await first).key == "a"


async def test_others_wait_for_a_hundred_calls_of_a_connection_at_most():
    """gRPC hands calls over in the order in which they came; a client holds back what is over the limit."""
    broker = Waiting()
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with serving(broker) as (server, channel), grpc.aio.insecure_channel(server.address, options=own) as other:
        stub, honest = broker_pb2_grpc.BrokerServiceStub(channel), broker_pb2_grpc.BrokerServiceStub(other)
        await stub.DescribeLogs(broker_pb2.DescribeLogsRequest(), timeout=30)  # The client knows the limit.
        flood = [
            asyncio.ensure_future(stub.ListOffsets(broker_pb2.ListOffsetsRequest(), timeout=30)) for _ in range(150)
        ]
        await asyncio.wait_for(broker.hundred.wait(), 30)
        await honest.DescribeLogs(broker_pb2.DescribeLogsRequest(), timeout=30)
        assert broker.calls == 100
        broker.may_answer.set()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_an_unexpected_error_is_internal_unknown_and_keeps_its_text_to_itself(served):
    """A bug answers INTERNAL with outcome UNKNOWN; its message, which may hold data, stays in the server's log."""
    _, channel = served
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await broker_pb2_grpc.BrokerServiceStub(channel).Fetch(broker_pb2.FetchRequest(), timeout=10)
    error = from_rpc_error(caught.value)
    assert isinstance(error, InternalError)
    assert error.outcome is Outcome.UNKNOWN
    assert "secret" not in str(error)


async def test_a_call_without_a_deadline_is_refused(served):
    """No call may wait for ever: without a deadline it is refused, with one it is served."""
    _, channel = served
    stub = broker_pb2_grpc.BrokerServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListOffsets(broker_pb2.ListOffsetsRequest())
    assert isinstance(from_rpc_error(caught.value), DeadlineRequiredError)
    await stub.ListOffsets(broker_pb2.ListOffsetsRequest(), timeout=10)


async def test_a_stream_that_fails_ends_with_a_typed_error(served):
    """What was streamed before the error arrives, then the typed error."""
    _, channel = served
    stream = cluster_pb2_grpc.ClusterServiceStub(channel).DumpMetadata(cluster_pb2.DumpMetadataRequest(), timeout=10)
    assert (await stream.read()).key == "a"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert isinstance(from_rpc_error(caught.value), NotLeaderError)


async def test_health_has_three_names_and_the_empty_one_follows_readiness(served):
    """Health is asked without a deadline too, as probes do."""
    server, channel = served
    stub = health_pb2_grpc.HealthStub(channel)

    async def status(name):
        return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status

    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    for change, expected in (
        (lambda: None, [not_serving, serving, not_serving, not_serving]),
        (lambda: server.health.release(HealthCause.STARTING), [serving] * 4),
        (lambda: server.health.hold(HealthCause.DRAINED), [serving, serving, not_serving, not_serving]),
        (lambda: server.health.hold(HealthCause.EVENT_LOOP_BLOCKED), [serving, not_serving, not_serving, not_serving]),
        (lambda: server.health.release(HealthCause.DRAINED), [serving, not_serving, serving, serving]),
    ):
        change()
        assert [await status(name) for name in ("startup", "liveness", "readiness", "")] == expected


async def test_a_taken_address_is_one_clear_error():
    """A port in use is named, with its cause."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        server = RpcServer(gate=open_gate())
        with pytest.raises(AddressInUseError, match="in use") as caught:
            await server.start(address)
        assert address in str(caught.value)


async def test_a_second_server_cannot_share_a_listening_port(served):
    """gRPC's sockets share their address with another of this process, and with no other server."""
    server, _ = served
    with pytest.raises(AddressInUseError, match="in use"):
        await RpcServer(gate=open_gate()).start(server.address)


@pytest.mark.parametrize("address", ["", "7170", "host", "host:", "host:seven", "host:70000", ":1"])
async def test_a_malformed_address_is_refused(address):
    """Only host:port is an address to listen on."""
    with pytest.raises(SettingsError):
        await RpcServer(gate=open_gate()).start(address)
