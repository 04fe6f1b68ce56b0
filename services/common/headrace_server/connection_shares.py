"""Fair shares of a gRPC listener's connections, because gRPC's core accepts them without regard to the caller.

The sockets of the process are examined every few seconds. While more than half of the listener's connections are in
use and `n` addresses have some, no address keeps more than `1 / (n + 1)` of the maximum; beyond that its connections
with the highest descriptors, mostly the newest, are closed.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

import structlog

from headrace_server.connections import end, sockets
from headrace_server.places import caller, share_of

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0


async def keep_shares(port: int, max_connections: int) -> None:
    """Enforce the shares periodically, in a thread, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            await asyncio.to_thread(end_beyond_shares, port, max_connections)
        except OSError as error:  # For example out of file descriptors, when the next check matters most.
            log.warning("connections_not_checked", cause=str(error))


def end_beyond_shares(port: int, max_connections: int) -> None:
    """Close connections of this process's listener at `port` beyond the callers' shares. Thread-safe."""
    if 2 * len(os.listdir("/dev/fd")) <= max_connections:
        return
    peers: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for _, peer in sockets(port):
        if peer is not None:
            address = caller(peer[0])
            peers[address].append((address, peer[1]))
    if 2 * sum(map(len, peers.values())) <= max_connections:
        return
    share = share_of(max_connections, len(peers))
    end(port, {each for connections in peers.values() for each in connections[share:]})
    for address, connections in peers.items():
        if len(connections) > share:
            log.warning("connections_ended", peer=address, connections=len(connections), share=share)
