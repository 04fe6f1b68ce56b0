"""Periodic background work of an asyncio client; see `worker`."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable


class AsyncWorker:
    """Equivalent of `Worker` in a task; `stop` cancels a running call."""

    def __init__(self, name: str, work: Callable[[], Awaitable[object]], *, interval_s: float, pause_s: float) -> None:
        self._name = name
        self._work = work
        self._interval_s = interval_s
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._is_stopped = False

    def wake(self) -> None:
        """Call `work` soon."""
        if self._task is None and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)
        self._woken.set()

    async def stop(self, timeout: float) -> bool:
        """Stop the calls; return whether one may have been running."""
        self._is_stopped = True
        if self._task is None:
            return False
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
        return True

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._woken.wait()
            self._woken.clear()
            await self._work()
            await asyncio.sleep(self._pause_s)
