"""The limit of open files is raised and shared out (FAULTS of a flood: connections must not take the log's files)."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import subprocess
import sys

import pytest
from headrace.log.open_files import EXCESS
from headrace_server import connection_shares, descriptors
from headrace_server.connection_shares import end_beyond_shares
from headrace_server.descriptors import KEPT, MOST, share_out
from headrace_server.rpc import RpcLimits, RpcServer

from tests.fakes.open_gate import open_gate


def test_a_service_raises_the_soft_limit_to_the_hard_one() -> None:
    """A shell and systemd give 1,024 where far more is allowed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    code = (
        "import resource\n"
        "from headrace_server import lifecycle\n"
        "async def serve(stop):\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "lifecycle.run(serve, stop_timeout_seconds=1)\n"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -Sn 256 && exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == wanted


def test_a_system_with_a_hidden_limit_gets_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS reports no hard limit, and refuses more than its kernel allows: 10,240 files, or what there is."""
    most, now = [descriptors.MOST_OF_MACOS], [256]

    def set_limit(_: int, limits: tuple[int, int]) -> None:
        if limits[0] > most[0]:
            raise ValueError("current limit exceeds maximum limit")
        now[0] = limits[0]

    monkeypatch.setattr(resource, "getrlimit", lambda _: (now[0], resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    most[0] = 100
    assert descriptors.raise_limit() == now[0] == 256
    most[0] = descriptors.MOST_OF_MACOS
    assert descriptors.raise_limit() == now[0] == 10_240


@pytest.mark.parametrize("limit", [512, 1_024, 4_096, 65_536, MOST])
@pytest.mark.parametrize("natives", [1, 10**6])
def test_shares_fit_into_the_limit(limit: int, natives: int) -> None:
    """All that may be open at once, and what is kept back, is no more than there is."""
    shares = share_out(limit, max_connections=10**6, native_connections=natives)
    assert sum(shares) + KEPT <= limit
    assert EXCESS < KEPT
    assert min(shares) > 0


def test_ten_thousand_partitions_keep_their_files_open_at_a_low_limit() -> None:
    """Both kinds of connections share a quarter; a usual limit leaves both what they may have at most."""
    low, usual = (share_out(limit, native_connections=4_096) for limit in (16_384, 65_536))
    assert low.segment_files > 10_000
    assert low.clients + low.natives == 4_096
    assert (usual.clients, usual.natives) == (10_000, 4_096)


def greeted(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        return bool(connection.recv(9))
    except ConnectionResetError:
        return False


def is_over(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


async def test_a_caller_with_all_connections_leaves_others_their_share() -> None:
    """With one other caller it keeps a third of them; the other one's stay."""
    server = RpcServer(RpcLimits(max_connections=9), gate=open_gate())
    port = int((await server.start("127.0.0.1:0")).rpartition(":")[2])

    def connect(source: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), source_address=(source, 0))

    flood, honest = [connect("127.0.0.2") for _ in range(8)], connect("127.0.0.1")
    assert all([await asyncio.to_thread(greeted, each) for each in (honest, *flood)])
    await asyncio.to_thread(end_beyond_shares, port, 9)
    async with asyncio.timeout(20):
        while True:
            with connect("127.0.0.1") as another:
                if await asyncio.to_thread(greeted, another):
                    break
    assert [is_over(each) for each in flood].count(False) == 3
    assert not is_over(honest)
    for each in (honest, *flood):
        each.close()
    await server.stop(0)


async def test_a_look_without_a_descriptor_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """EMFILE of a flood must not end what guards against the flood."""
    looks: list[int] = []
    looked_twice = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(port: int, max_connections: int) -> None:
        looks.append(port)
        if len(looks) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        loop.call_soon_threadsafe(looked_twice.set)

    monkeypatch.setattr(connection_shares, "end_beyond_shares", look)
    monkeypatch.setattr(connection_shares, "LOOK_SECONDS", 0.0)
    sharing = asyncio.create_task(connection_shares.keep_shares(1, 9))
    async with asyncio.timeout(20):
        await asyncio.wait([sharing, asyncio.create_task(looked_twice.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert looked_twice.is_set()
    sharing.cancel()


async def test_connections_beyond_the_limit_are_closed_and_later_ones_served() -> None:
    """A flood costs the listener its own places and nothing else; when it ends the next caller is let in."""
    server = RpcServer(RpcLimits(max_connections=3), gate=open_gate())
    address = await server.start("127.0.0.1:0")
    port = int(address.rpartition(":")[2])

    flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
    assert sum([await asyncio.to_thread(greeted, each) for each in flood]) == 3
    for each in flood:
        each.close()
    async with asyncio.timeout(20):
        while True:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                if await asyncio.to_thread(greeted, connection):
                    break
    await server.stop(0)
