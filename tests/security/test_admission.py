"""What a stranger does at a listener before any handler runs, next to an honest client."""

import asyncio
import contextlib
import resource

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import broker_pb2, broker_pb2_grpc
from headrace.wire.errors import InvalidRequestError, ThrottledError, from_rpc_error
from headrace_server.admission import UnlistedMethodError
from headrace_server.arrivals import ARRIVAL_ROUNDS, LATE_BYTES, LATE_BYTES_OF_PEER, Arrivals
from headrace_server.methods import METHODS, Pool
from headrace_server.places import PlaceLimits, Places
from headrace_server.rpc import RpcLimits, RpcServer, unary
from prometheus_client import CollectorRegistry, Counter

from tests.fakes.open_gate import open_gate

SERVICE = "/headrace.v1.BrokerService/"
YEARS = 3.0e9
"""A deadline in seconds that never comes."""


class Broker(broker_pb2_grpc.BrokerServiceServicer):
    def __init__(self):
        self.call_errors = Counter("errors", "-", ["method", "code"], registry=CollectorRegistry())
        self.gate = asyncio.Event()
        self.fetching, self.full = 0, 4
        self.is_full = asyncio.Event()

    def errors(self, method, code):
        return self.call_errors.labels(method, code)._value.get()

    @unary
    async def ListOffsets(self, request, context):
        return broker_pb2.ListOffsetsResponse()

    @unary
    async def Fetch(self, request, context):
        self.fetching += 1
        if self.fetching == self.full:
            self.is_full.set()
        await self.gate.wait()
        return broker_pb2.FetchResponse()

    @unary
    async def Produce(self, request, context):
        return broker_pb2.ProduceResponse()


@contextlib.asynccontextmanager
async def serving(limits):
    server, broker = RpcServer(limits, gate=open_gate()), Broker()
    server.add(broker_pb2_grpc.add_BrokerServiceServicer_to_server, broker, "headrace.v1.BrokerService")
    address = broker.address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield broker, channel
    finally:
        broker.gate.set()
        await server.stop(0)


@pytest.fixture
def served(request):
    """A broker behind a server with places for this number of clients' calls, and a channel to it."""
    places = getattr(request, "param", 0)
    return serving(RpcLimits(places=PlaceLimits(clients=(places, places))) if places else None)


async def nothing():
    await asyncio.Event().wait()
    yield b""


def half_open(channel, method, deadline=YEARS):
    """A call whose headers are sent and whose message never is."""
    return channel.stream_unary(SERVICE + method)(nothing(), timeout=deadline)


async def error_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def is_healthy(channel):
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))
    return answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("served", [20], indirect=True)
async def test_a_half_open_call_loses_its_place_and_an_honest_one_finds_it(served):
    """F3: headers without a message end with RESOURCE_EXHAUSTED whatever their deadline; then places are free again."""
    _, channel = served
    calls = [half_open(channel, "ListOffsets") for _ in range(20)]
    errors = [await error_of(call) for call in calls]
    assert all(isinstance(error, ThrottledError) for error in errors)
    assert any("did not arrive within 1 s" in error.message for error in errors)
    await broker_pb2_grpc.BrokerServiceStub(channel).ListOffsets(broker_pb2.ListOffsetsRequest(), timeout=30)


@pytest.mark.parametrize("served", [4], indirect=True)
async def test_health_is_answered_while_clients_hold_every_place(served):
    """F3, F9: the health service has places of its own."""
    broker, channel = served
    stub = broker_pb2_grpc.BrokerServiceStub(channel)
    waiting = [asyncio.ensure_future(stub.Fetch(broker_pb2.FetchRequest(), timeout=60)) for _ in range(4)]
    await broker.is_full.wait()
    assert isinstance(await error_of(stub.Fetch(broker_pb2.FetchRequest(), timeout=60)), ThrottledError)
    assert await is_healthy(channel)
    broker.gate.set()
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("served", [12], indirect=True)
async def test_a_large_request_may_be_late_without_a_place_and_only_a_few_are(served):
    """A slow producer is not cut off after a second; it holds no place meanwhile, and there is a bound."""

    async def wait(call):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call

    broker, channel = served
    broker.full = 12
    of_peer = LATE_BYTES_OF_PEER // METHODS[SERVICE + "Produce"].max_bytes
    calls = [half_open(channel, "Produce") for _ in range(of_peer + 4)]
    late = {asyncio.ensure_future(wait(call)) for call in calls}
    async with asyncio.timeout(20):
        while len(late) > of_peer:
            _, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
    assert len(late) == of_peer
    stub = broker_pb2_grpc.BrokerServiceStub(channel)
    held = [asyncio.ensure_future(stub.Fetch(broker_pb2.FetchRequest(), timeout=60)) for _ in range(12)]
    await broker.is_full.wait()
    broker.gate.set()
    await asyncio.gather(*held)
    for call in calls:
        call.cancel()
    await asyncio.wait(late)


async def test_what_is_late_is_bounded_in_bytes_of_a_peer_and_of_all():
    """Each counts as the largest message of its method, until it has come."""

    async def late_calls(peers, size_bytes):
        """How many calls, one of each of `peers`, are late at once."""
        arrivals, pool = Arrivals(), Places(PlaceLimits())
        loop = asyncio.get_running_loop()
        messages = [loop.create_future() for _ in peers]

        class Call:
            def __init__(self, message):
                self.message = message

            async def read(self):
                return await self.message

        calls = [
            asyncio.ensure_future(
                arrivals.read(Call(message), pool.take(Pool.CLIENTS, peer), Pool.CLIENTS, late_bytes=size_bytes)
            )
            for peer, message in zip(peers, messages, strict=True)
        ]
        await asyncio.sleep(0)
        for _ in range(ARRIVAL_ROUNDS):
            arrivals._sweep()
        await asyncio.sleep(0)
        for message in messages:
            if not message.done():
                message.set_result(b"")
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert arrivals._late == {}
        return ends.count(b"")

    assert await late_calls(["a"] * 10, 32 << 20) == LATE_BYTES_OF_PEER // (32 << 20)
    assert await late_calls([f"{number}" for number in range(20)], 32 << 20) == LATE_BYTES // (32 << 20)
    assert await late_calls(["a"] * 10, 1 << 20) == 10
    assert await late_calls(["a"] * 10, 0) == 0


@pytest.mark.parametrize(
    ("method", "element"), [("Produce", b"\x22\x00"), ("Fetch", b"\x2a\x00"), ("ListOffsets", b"\x12\x00")]
)
async def test_a_flood_of_empty_elements_costs_next_to_nothing(served, method, element):
    """F1: a mebibyte of empty topics costs 0.2 s of processor time at most, and what it took is given back at once.

    After a few of them further ones are not even parsed.
    """
    data = element * (1 << 19)
    broker, channel = served
    before = resource.getrusage(resource.RUSAGE_SELF)
    errors = [await error_of(channel.unary_unary(SERVICE + method)(data, timeout=60)) for _ in range(5)]
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert isinstance(errors[0], InvalidRequestError)
    assert isinstance(errors[-1], ThrottledError)
    assert after.ru_utime - before.ru_utime < 1.0
    assert after.ru_maxrss - before.ru_maxrss < 128 << 10
    assert broker.errors(method, "INVALID_REQUEST") + broker.errors(method, "THROTTLED") == 5


async def test_undecodable_requests_are_the_callers_mistake_and_are_counted(served):
    """F22: INVALID_ARGUMENT with a plain sentence, in call_errors, and no text of a Python exception."""
    broker, channel = served
    error = await error_of(channel.unary_unary(SERVICE + "ListOffsets")(b"\xff\xff\xff", timeout=30))
    assert isinstance(error, InvalidRequestError)
    assert error.message == "the request of 3 bytes is no ListOffsetsRequest"
    assert broker.errors("ListOffsets", "INVALID_REQUEST") == 1


async def test_a_call_that_ends_without_a_message_is_refused(served):
    """A stream of no messages is no request."""
    _, channel = served
    call = channel.stream_unary(SERVICE + "ListOffsets")(timeout=30)
    await call.done_writing()
    assert "ended without a request" in (await error_of(call)).message


async def test_messages_that_grpc_compressed_are_refused(served):
    """Nothing is inflated before it is admitted."""
    _, channel = served
    call = channel.unary_unary(SERVICE + "ListOffsets")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\x12\x00" * 1000, timeout=30, compression=grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_server_refuses_a_method_without_a_row(monkeypatch):
    """A new call needs a declared size of request."""
    monkeypatch.delitem(METHODS, SERVICE + "ListOffsets")
    with pytest.raises(UnlistedMethodError, match="BrokerService/ListOffsets has no row"):
        RpcServer(gate=open_gate()).add(
            broker_pb2_grpc.add_BrokerServiceServicer_to_server, Broker(), "headrace.v1.BrokerService"
        )


async def test_half_open_calls_leave_an_honest_client_its_answers(served):
    """F3: every honest call is answered while attackers use all the streams of a connection."""
    broker, channel = served
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(broker.address, options=own) as other:
        strangers = [half_open(other, "ListOffsets") for _ in range(200)]
        stub = broker_pb2_grpc.BrokerServiceStub(channel)
        for _ in range(200):
            await stub.ListOffsets(broker_pb2.ListOffsetsRequest(), timeout=60)
        for call in strangers:
            call.cancel()
