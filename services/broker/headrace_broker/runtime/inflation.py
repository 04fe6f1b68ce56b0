"""Work on inflated batches: threads of its own and a bound on bytes, so that appends and reads never wait for it.

A batch of two KiB may inflate to `max_payload_bytes`. Whoever inflates one takes its bytes here first, and waits in
line where they do not fit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace_broker.runtime.uninterrupted import uninterrupted

INFLATED_BYTES = 64 << 20
THREADS = 2

ResultT = TypeVar("ResultT")


class Inflation:
    """Runs calls that inflate batches. Belongs to the event loop."""

    def __init__(self, max_bytes: int = INFLATED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="inflate")
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_bytes = 0

    async def run(self, size_bytes: int, call: Callable[[], ResultT]) -> ResultT:
        """Run `call` in a thread while it holds `size_bytes`; one that needs more than there is runs alone."""
        return await uninterrupted(self._run(min(size_bytes, self._max_bytes), call))

    async def _run(self, size_bytes: int, call: Callable[[], ResultT]) -> ResultT:
        loop = asyncio.get_running_loop()
        if self._line or self.used_bytes + size_bytes > self._max_bytes:
            turn: asyncio.Future[None] = loop.create_future()
            self._line.append((size_bytes, turn))
            await turn
        else:
            self.used_bytes += size_bytes
        try:
            return await loop.run_in_executor(self._executor, call)
        finally:
            self.used_bytes -= size_bytes
            self._admit()

    def _admit(self) -> None:
        """Let those go on who are next in line and fit."""
        while self._line and self.used_bytes + self._line[0][0] <= self._max_bytes:
            size_bytes, turn = self._line.popleft()
            self.used_bytes += size_bytes
            turn.set_result(None)

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown()
