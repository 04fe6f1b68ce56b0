"""Callers whose calls' requests never come are shut out, and no others are."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys

import grpc
import pytest
from headrace.v1 import auth_pb2, broker_pb2, broker_pb2_grpc
from headrace_server import connections, wasted_calls
from headrace_server.connections import LOAD_BYTE, LOAD_WORD, Diversion, Filter, program_of
from headrace_server.places import PlaceLimits, Rates
from headrace_server.rpc import RpcLimits, RpcServer, unary
from headrace_server.wasted_calls import CALLS_OF_CONNECTION, WastedCalls
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from tests.fakes.manual_clock import ManualClock
from tests.fakes.open_gate import gate_over, open_gate
from tests.fakes.written_keys import WrittenKeys
from tests.security.http2 import Stranger, calls, is_served

LIST_OFFSETS = "/headrace.v1.BrokerService/ListOffsets"
WASTER, NEIGHBOUR = "127.0.0.2", "127.0.0.3"
PER_SECOND = 5
"""Calls that a caller may waste here; and as many at once as in ten seconds."""

ALL_PER_SECOND = 100
LONG_SECONDS = 10.0
"""For an answer that must come, however busy the machine is."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what diverts connections is Linux's")


class Broker(broker_pb2_grpc.BrokerServiceServicer):
    call_errors = Counter("errors", "-", ["method", "code"], registry=CollectorRegistry())

    @unary
    async def ListOffsets(self, request, context):
        return broker_pb2.ListOffsetsResponse()


class Served:
    """A server whose wasted calls are paid for by this clock."""

    def __init__(self, posture=auth_pb2.POSTURE_OPEN) -> None:
        self.now = 0.0
        gate = gate_over(WrittenKeys(), ManualClock(), posture)
        self.server = RpcServer(RpcLimits(places=PlaceLimits(clients=(64, 8))), gate=gate)
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

        def is_served_later():
            served.now += 60  # Each time, because calls that were under way may be counted only now.
            return is_served(served.address, WASTER)

        await until(is_served_later)


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

    def count_accepted(host, sources, seconds=0.05):
        return sum(is_served(f"{host}:{port}", source, seconds) for source in sources)

    try:
        served = ["127.0.0.1", NEIGHBOUR] * 10
        assert await asyncio.to_thread(count_accepted, "127.0.0.1", served, LONG_SECONDS) == 20
        assert await asyncio.to_thread(count_accepted, "127.0.0.1", [f"127.0.1.{at}" for at in range(1, 31)]) < 10
        assert await asyncio.to_thread(count_accepted, "::1", ["::1"] * 30) < 10
        assert await asyncio.to_thread(count_accepted, "127.0.0.1", [WASTER] * 3) == 0
        await asyncio.to_thread(diversion.keep_out, Filter(served=("::/64",), one_of=100))
        assert await asyncio.to_thread(count_accepted, "::1", ["::1"] * 10, LONG_SECONDS) == 10
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
        for _ in new:
            assert await asyncio.to_thread(is_served, served.address, "127.0.0.1", LONG_SECONDS)
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


HEALTH_CHECK = "/grpc.health.v1.Health/Check"


@pytest.mark.parametrize(
    ("posture", "method", "noted"),
    [
        (auth_pb2.POSTURE_OPEN, LIST_OFFSETS, ["127.0.0.1"]),
        (auth_pb2.POSTURE_OPEN, HEALTH_CHECK, []),
        (auth_pb2.POSTURE_OBSERVE, LIST_OFFSETS, []),
    ],
)
async def test_calls_of_callers_without_an_identity_are_not_noted(posture, method, noted):
    """They would push honest callers out of the list; where no caller needs an identity, methods that would count."""
    served = Served(posture)
    address = await served.server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.unary_unary(method)(b"", timeout=30)
        assert list(served.wasted._served) == noted
    finally:
        await served.server.stop(0)


def test_a_connection_is_ended_each_time_that_it_wastes_too_many_calls():
    """A later connection from the same port, or the same one if it was not found the first time."""
    wasted = WastedCalls()
    for _ in range(2):
        for _ in range(CALLS_OF_CONNECTION):
            assert not wasted._ending
            wasted._count_of_connection((WASTER, 5000))
        assert wasted._ending == {(WASTER, 5000)}
        wasted._ending.clear()


@pytest.mark.parametrize("peer", ["ipv4::0", "unix:", "ipv4:broker-1:1"])
async def test_who_has_no_address_is_neither_charged_nor_blocked_nor_accepted(served, peer):
    """A filter cannot name it: the task that sets filters would end, and no caller would be blocked."""
    caller = wasted_calls.peer_host(peer)
    served.wasted.note_served(caller)
    for _ in range(100):
        served.wasted.count(peer, of_connection=False)
    assert (served.wasted_by(caller), served.wasted.is_shut_out(caller)) == (0, False)
    assert not served.wasted._served


def bytes_in_kernel(program):
    """The most that a program takes as eBPF, where a load is eight instructions and others at most two."""
    return sum(8 * (8 if code in (LOAD_BYTE, LOAD_WORD) else 2) for code, *_ in program) + 256


@pytest.mark.parametrize("family", ["10.0.{}.1", "2001:db8:0:{:x}::/64"])
@pytest.mark.parametrize("blocked", [10, 1_000])
def test_a_filter_fits_into_the_kernel(family, blocked):
    """Of 20,480 bytes blocked callers take what they need, and those that were served last the rest."""
    wasted = WastedCalls()
    wasted._price = 2.0
    for at in range(blocked):
        wasted._block(family.format(at % 250))
    for at in range(1_000, 2_000):
        wasted.note_served(f"2001:db8:1:{at:x}::/64")
    wanted = wasted._wanted()
    assert bytes_in_kernel(program_of(wanted)) <= 20_480
    assert len(wanted.callers) == min(blocked, 110 if ":" in family else 200)
    assert all(wasted.is_shut_out(each) for each in wanted.callers)
    room = 19_456 - sum(176 if ":" in each else 32 for each in wanted.callers)
    assert wanted.served == tuple(sorted(list(wasted._served)[::-1][: room // 176]))


async def test_filters_that_cannot_be_set_are_logged_once_a_minute_with_their_number(served, monkeypatch):
    """Also where a filter names no blocked caller, and the one that is wanted changes; each pass tries again."""
    monkeypatch.setattr(wasted_calls, "PASS_SECONDS", 0.0)
    wasted, tried, loop = served.wasted, asyncio.Queue(), asyncio.get_running_loop()

    def keep_out(_, wanted):
        loop.call_soon_threadsafe(tried.put_nowait, wanted)
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async def tried_twice(price):
        """A failure has been counted when the next one is made."""
        count = 0
        async with asyncio.timeout(20):
            for _ in range(2):
                while (await tried.get()).one_of != price:
                    count += 1
                count += 1
        return count

    monkeypatch.setattr(Diversion, "keep_out", keep_out)
    monkeypatch.setattr(wasted, "_set_price", lambda _: None)
    wasted._price = 7.0
    with capture_logs() as logs:
        wasted._rates.charge("", "all", 10_000)
        wasted.count(f"ipv4:{WASTER}:1", of_connection=False)
        failures = await tried_twice(7)
        wasted._price = 8.0
        failures += await tried_twice(8)
        wasted._log_at -= wasted_calls.LOG_SECONDS
        await tried_twice(8)
    noted = [each for each in logs if each["event"] == "callers_not_blocked"]
    assert [(each["peers"], each["accepted_one_of"]) for each in noted] == [((), 7), ((), 8)]
    assert noted[0]["failures"] == 1
    assert noted[1]["failures"] in range(failures - 1, failures + 3)


async def test_all_addresses_of_a_listener_are_filtered_after_a_failure(monkeypatch):
    """If the second diversion could not be opened, the first one alone would look like all of them."""
    server = RpcServer(gate=open_gate())
    port = int((await server.start("127.0.0.1:0")).rpartition(":")[2])
    sockets, listen_beside, opened = connections.sockets, connections._listen_beside, []

    def twice(port):
        listener = next(found.dup() for found, peer in sockets(port) if peer is None)
        with listener:
            yield listener, None
            yield listener, None

    def fail_second(listener):
        opened.append(listen_beside(listener))
        if len(opened) == 2:
            opened[-1].close()
            raise OSError(errno.EMFILE, "Too many open files")
        return opened[-1]

    monkeypatch.setattr(connections, "sockets", twice)
    monkeypatch.setattr(connections, "_listen_beside", fail_second)
    diversion = Diversion(port)
    try:
        with pytest.raises(OSError, match="Too many"):
            diversion.keep_out(Filter((WASTER,)))
        assert opened[0].fileno() == -1
        diversion.keep_out(Filter((WASTER,)))
        assert len(opened) == 4
    finally:
        diversion.close()
        await server.stop(0)
