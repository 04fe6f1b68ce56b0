"""Inflation of batches in separate threads and with a memory limit, so that appends and reads do not wait for it.

A batch of two KiB may inflate to `max_payload_bytes`. A caller first reserves the inflated size, and waits in a queue
if it does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace_broker.runtime.uninterrupted import uninterrupted

INFLATED_BYTES = 64 << 20
THREADS = 2

ResultT = TypeVar("ResultT")


class Inflation:
    """Thread pool and memory limit of inflation. Belongs to the event loop."""

    def __init__(self, max_bytes: int = INFLATED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="inflate")
        self._line: dict[asyncio.Future[None], int] = {}  # requested bytes of each waiter, in order
        self.used_bytes = 0

    async def run(self, size_bytes: int, call: Callable[[], ResultT]) -> ResultT:
        """Run `call` in a thread with `size_bytes` reserved; a call above the limit runs alone.

        A cancelled caller leaves the queue; a call that has started is completed first.
        """
        size_bytes = min(size_bytes, self._max_bytes)
        await self._take(size_bytes)
        return await uninterrupted(self._run(size_bytes, call))

    async def _take(self, size_bytes: int) -> None:
        if not self._line and self.used_bytes + size_bytes <= self._max_bytes:
            self.used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[turn] = size_bytes
        try:
            await turn
        except asyncio.CancelledError:
            self._line.pop(turn, None)
            self._give_back(0 if turn.cancelled() else size_bytes)  # It may have got its turn at the same time.
            raise

    async def _run(self, size_bytes: int, call: Callable[[], ResultT]) -> ResultT:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        finally:
            self._give_back(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        """Wake the next waiters that fit."""
        self.used_bytes -= size_bytes
        while self._line:
            turn, wanted_bytes = next(iter(self._line.items()))
            if self.used_bytes + wanted_bytes > self._max_bytes:
                return
            del self._line[turn]
            if not turn.cancelled():
                self.used_bytes += wanted_bytes
                turn.set_result(None)

    def close(self) -> None:
        """Stop the threads."""
        self._executor.shutdown()
