"""The limit of open files is raised and shared out (FAULTS of a flood: connections must not take the log's files)."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys

import pytest
from headrace_server.descriptors import KEPT, MOST, share_out
from headrace_server.rpc import RpcLimits, RpcServer


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


@pytest.mark.parametrize("limit", [512, 1_024, 4_096, 65_536, MOST])
@pytest.mark.parametrize("transfers", [0, 128])
def test_shares_fit_into_the_limit(limit: int, transfers: int) -> None:
    """All that may be open at once, and what is kept back, is no more than there is."""
    shares = share_out(limit, max_connections=10**6, transfers=transfers)
    assert shares.clients + shares.peers + shares.cached_files + shares.partitions + transfers + KEPT <= limit
    assert min(shares) > 0


async def test_connections_beyond_the_limit_are_closed_and_later_ones_served() -> None:
    """A flood costs the listener its own places and nothing else; when it ends the next caller is let in."""
    server = RpcServer(RpcLimits(max_connections=3))
    address = await server.start("127.0.0.1:0")
    port = int(address.rpartition(":")[2])

    def greeted(connection: socket.socket) -> bool:
        connection.settimeout(20)
        try:
            return bool(connection.recv(9))
        except ConnectionResetError:
            return False

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
