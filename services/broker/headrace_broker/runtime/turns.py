"""Order of the calls of one connection when one of them yields to the event loop between slices.

Calls of one connection arrive in the order in which their client sent them, and a producer with several batches of a
partition in flight depends on that order. Other connections do not wait. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Turns of the calls of each connection."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def must_wait(self, connection: str) -> bool:
        """Return whether a new call must `take` its turn, because another one runs or waits."""
        return connection in self._locks

    @asynccontextmanager
    async def take(self, connection: str) -> AsyncIterator[None]:
        """Wait for this call's turn, which lasts for the block; turns are in the order of the calls."""
        lock, users = self._locks.get(connection) or (asyncio.Lock(), 0)
        self._locks[connection] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            users = self._locks[connection][1] - 1
            if users:
                self._locks[connection] = lock, users
            else:
                del self._locks[connection]
