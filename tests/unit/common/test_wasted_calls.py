"""Callers whose calls' requests never come are shut out, and no others are."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import grpc
import pytest
from headrace.v1 import broker_pb2, broker_pb2_grpc
from headrace_server import wasted_calls
from headrace_server.connections import Diversion, Filter
from headrace_server.places import PlaceLimits, Rates
from headrace_server.rpc import RpcLimits, RpcServer, unary
from prometheus_client import CollectorRegistry, Counter

from tests.fakes.open_gate import open_gate
from tests.security.http2 import Stranger, calls, is_served

LIST_OFFSETS = "/headrace.v1.BrokerService/ListOffsets"
WASTER, NEIGHBOUR = "127.0.0.2", "127.0.0.3"
PER_SECOND = 5
"""Calls that a caller may waste here; and as many at once as in ten seconds."""

ALL_PER_SECOND = 100

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what diverts connections is Linux's")


class Broker(broker_pb2_grpc.BrokerServiceServicer):
    call_errors = Counter("errors", "-", ["method", "code"], registry=CollectorRegistry())

    @unary
    async def ListOffsets(self, request, context):
        return broker_pb2.ListOffsetsResponse()


class Served:
    """A server whose wasted calls are paid for by this clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server = RpcServer(RpcLimits(places=PlaceLimits(clients=(64, 8))), gate=open_gate())
        self.server.add(broker_pb2_grpc.add_BrokerServiceServicer_to_server, Broker(), "headrace.v1.BrokerService")
        self.wasted = self.server._admission.wasted
        self.wasted._rates = Rates(lambda: self.now, calls=PER_SECOND, all=ALL_PER_SECOND)
        self.of_connections = 0
        self._counted = asyncio.Event()
        self._count, self.wasted.count = self.wasted.count, self._count_and_tell

    def wasted_by(self, caller: str) -> int:
        return round((self.wasted._rates.debt_seconds(caller, "calls") + self.now) * PER_SECOND)

    def _count_and_tell(self, peer, *, of_connection) -> None:
        self._count(peer, of_connection=of_connection)
        self.of_connections += of_connection
        self._counted.set()

    async def until(self, is_so) -> None:
        """Wait until it is so once a call was counted."""
        async with asyncio.timeout(20):
            while not is_so():
                self._counted.clear()
                await self._counted.wait()


async def until(is_so, *arguments) -> None:
    """Ask in a thread, again and again; a look takes its time by itself."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(is_so, *arguments):
            pass


@pytest.fixture
def served():
    """A broker's server that is started within."""

    @contextlib.asynccontextmanager
    async def serving():
        served = Served()
        served.address = await served.server.start("127.0.0.1:0")
        try:
            yield served
        finally:
            await served.server.stop(0)

    return serving()


@pytest.mark.parametrize("then", ["", "reset"])
async def test_who_wastes_calls_is_shut_out_until_they_are_paid_and_nobody_else_is(served, then):
    """Its connection is ended and no other one opened; an honest one at its address stays, and neighbours come."""
    with Stranger(served.address, WASTER) as honest, Stranger(served.address, WASTER) as waster:
        assert await asyncio.to_thread(honest.wait_until_read)
        waster.send(calls(70, LIST_OFFSETS, then=then))
        await served.until(lambda: served.wasted.is_shut_out(WASTER))
        await until(lambda: not is_served(served.address, WASTER))
        waster.send(calls(20, LIST_OFFSETS, then=then, first=100))
        await asyncio.to_thread(waster.wait_until_closed)
        assert await asyncio.to_thread(honest.wait_until_read)
        await until(is_served, served.address, NEIGHBOUR)
        served.now += 60
        await until(is_served, served.address, WASTER)


@pytest.mark.parametrize(
    ("frames", "wasted", "of_connection"),
    [
        pytest.param(calls(3, LIST_OFFSETS, then="reset"), 3, 3, id="taken back"),
        pytest.param(calls(3, LIST_OFFSETS, then="end"), 3, 3, id="ended"),
        pytest.param(calls(10, LIST_OFFSETS), 10, 8, id="silent, two without a place"),
        pytest.param(calls(3, "/headrace.v1.BrokerService/Nothing", then="reset"), 3, 3, id="of no method"),
    ],
)
async def test_a_call_that_ends_unread_is_wasted(served, frames, wasted, of_connection):
    """And its connection answers for it, unless there was no place: that may be another one's doing."""
    with Stranger(served.address, WASTER) as stranger:
        stranger.send(frames)
        await served.until(lambda: served.wasted_by(WASTER) >= wasted)
    assert (served.wasted_by(WASTER), served.of_connections) == (wasted, of_connection)


async def test_a_call_whose_request_came_is_not_wasted(served):
    """Whatever its answer is."""
    async with grpc.aio.insecure_channel(served.address) as channel:
        await channel.unary_unary(LIST_OFFSETS)(b"", timeout=30)
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(LIST_OFFSETS)(b"\xff", timeout=30)
    assert served.wasted_by("127.0.0.1") == 0


async def test_an_honest_call_finds_a_place_despite_a_waster_at_its_address(served):
    """Of who is shut out the call whose request was awaited longest makes room; without that it would be refused."""
    here = "127.0.0.1"
    with Stranger(served.address, here) as waster, Stranger(served.address, here) as holder:
        async with grpc.aio.insecure_channel(served.address) as channel:
            await channel.unary_unary(LIST_OFFSETS)(b"", timeout=30)
            waster.send(calls(70, LIST_OFFSETS, then="reset"))
            await served.until(lambda: served.wasted.is_shut_out(here))
            holder.send(calls(8, LIST_OFFSETS))
            assert await asyncio.to_thread(holder.wait_until_read)
            await channel.unary_unary(LIST_OFFSETS)(b"", timeout=30)


async def test_callers_of_both_families_are_kept_out_at_one_listener():
    """IPv6 callers are sites; who is kept out no longer is served again."""
    server = RpcServer(gate=open_gate())
    port = int((await server.start("[::]:0")).rpartition(":")[2])
    diversion = Diversion(port)
    everybody = {(WASTER, "127.0.0.1"), (NEIGHBOUR, "127.0.0.1"), ("::1", "::1")}
    for callers, out in (
        (["10.0.0.1", WASTER, "2001:db8::/64"], {(WASTER, "127.0.0.1")}),
        (["2001:db8::/64", "::/64", "10.0.0.1"], {("::1", "::1")}),
        ([], set()),
    ):
        if callers:
            await asyncio.to_thread(diversion.keep_out, Filter(tuple(callers)))
        else:
            diversion.close()
        for source, host in everybody - out:
            await until(is_served, f"{host}:{port}", source)
        for source, host in out:
            assert not await asyncio.to_thread(is_served, f"{host}:{port}", source)
    await server.stop(0)


async def test_of_many_callers_some_are_accepted_and_all_that_were_served():
    """One of a hundred connections, drawn by the kernel, in both families; always of a caller that was served."""
    server = RpcServer(gate=open_gate())
    port = int((await server.start("[::]:0")).rpartition(":")[2])
    diversion = Diversion(port)
    await asyncio.to_thread(diversion.keep_out, Filter((WASTER,), ("127.0.0.1", NEIGHBOUR), 100))

    def count_accepted(host, sources):
        return sum(is_served(f"{host}:{port}", source, 0.05) for source in sources)

    try:
        assert await asyncio.to_thread(count_accepted, "127.0.0.1", ["127.0.0.1", NEIGHBOUR] * 10) == 20
        assert await asyncio.to_thread(count_accepted, "127.0.0.1", [f"127.0.1.{at}" for at in range(1, 31)]) < 10
        assert await asyncio.to_thread(count_accepted, "::1", ["::1"] * 30) < 10
        assert await asyncio.to_thread(count_accepted, "127.0.0.1", [WASTER] * 3) == 0
        await asyncio.to_thread(diversion.keep_out, Filter(served=("::/64",), one_of=100))
        assert await asyncio.to_thread(count_accepted, "::1", ["::1"] * 10) == 10
    finally:
        diversion.close()
        await server.stop(0)


async def test_callers_that_together_waste_too_many_calls_open_few_connections(served, monkeypatch):
    """While each of them wastes few: new callers are drawn, connections that are open and served callers stay."""
    monkeypatch.setattr(wasted_calls, "ALL_PER_SECOND", ALL_PER_SECOND)
    monkeypatch.setattr(wasted_calls, "PASS_SECONDS", 0.02)

    async def waste():
        while True:
            for at in range(1_000):  # More than are blocked at once.
                served.wasted.count(f"ipv4:10.1.{at // 250}.{at % 250}:5000", of_connection=True)
            await asyncio.sleep(0.01)

    with Stranger(served.address, NEIGHBOUR) as silent:
        assert await asyncio.to_thread(silent.wait_until_read)
        wasting = asyncio.create_task(waste())
        await served.until(lambda: served.wasted._price > 100)
        new = [f"127.0.1.{at}" for at in range(1, 6)]
        found = [await asyncio.to_thread(is_served, served.address, each) for each in new]
        assert sum(found) < len(new)
        served.wasted.note_served("127.0.0.1")
        await until(is_served, served.address, "127.0.0.1")
        assert all([await asyncio.to_thread(is_served, served.address, "127.0.0.1") for _ in new])
        assert await asyncio.to_thread(silent.wait_until_read)
        wasting.cancel()
        await asyncio.wait([wasting])
        one = served.wasted
        one._shut_out[WASTER] = None
        before = one._counted, one._rates.debt_seconds("", "all")
        one.count(f"ipv4:{WASTER}:1", of_connection=False)
        assert (one._counted, one._rates.debt_seconds("", "all")) == before  # One caller alone limits no others.
    served.now += 1_000
    for each in new:
        await until(is_served, served.address, each)
