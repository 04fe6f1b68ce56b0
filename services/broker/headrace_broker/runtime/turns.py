"""Keeps the calls of one connection in order where one of them works in slices and others have the loop in between.

Calls of one connection come in the order in which their client sent them, and a producer that sends several at once
counts on it, batch by batch of a partition. Other connections wait for nothing. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """See the module."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def must_wait(self, connection: str) -> bool:
        """Return whether a call that comes now must `take` its turn: another one is at work or waits for its own."""
        return connection in self._locks

    @asynccontextmanager
    async def take(self, connection: str) -> AsyncIterator[None]:
        """Within: it is this call's turn; turns come in the order of the calls to this."""
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
