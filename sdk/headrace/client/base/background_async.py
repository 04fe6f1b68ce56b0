"""Concurrent operations on an event loop: the background of an asyncio consumer or reader."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from headrace.client.base.background import LongPollCall, WaitSignal
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, Operation, aexecute_loop
from headrace.client.base.request_ids import outside_operations
from headrace.client.base.unclosed import close_in_loop


class LoopChanges:
    """Equivalent of `threading.Condition` for the tasks of one loop; it needs no lock."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self, n: int = 1) -> None:
        """See `Changes`; all waiters check, as that is cheap on a loop."""
        self._event.set()

    def notify_all(self) -> None:
        """See `Changes`."""
        self._event.set()

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate holds; return whether it does."""
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    self._event.clear()
                    await self._event.wait()
        except TimeoutError:
            return predicate()
        return True


class AsyncBackgroundLoop:
    """Background of one client. Its operations are tasks of the loop on which it was created."""

    def __init__(self, name: str, run_step: Callable[[Any], Awaitable[Any]]) -> None:
        """`name` is that of the tasks; `run_step` runs steps that the background does not handle."""
        self._name = name
        self._run_step = run_step
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.endings = LoopChanges()

    def make_signal(self) -> asyncio.Event:
        """See `Background`."""
        return asyncio.Event()

    def make_changes(self, lock: Any) -> LoopChanges:
        """See `Background`; tasks of the loop never run in parallel."""
        return LoopChanges()

    def spawn(self, operation: Operation[None]) -> "asyncio.Task[None]":
        """See `Background`."""
        task = self._loop.create_task(self._run(operation), name=self._name, context=outside_operations())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def start(self, call: Call, ended: Callable[[Any, Exception | None], None]) -> None:
        """See `Background`."""
        self.spawn(_begin(call, ended))

    def close_unclosed(self, client: object, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Close a client that was garbage-collected without a close."""
        close_in_loop(client, self._loop, close)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self.endings.notify_all()

    def close(self) -> None:
        """Close all operations. Calling it again does nothing."""
        for task in self._tasks:
            task.cancel()

    async def join(self, timeout: float) -> None:
        """Wait until all operations have ended, up to `timeout` seconds; closed ones end at once."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def _run(self, operation: Operation[None]) -> None:
        try:
            await aexecute_loop(operation, self._step)
        except ClosedError:
            return

    async def _step(self, step: Any) -> Any:
        match step:
            case WaitSignal():
                try:
                    async with asyncio.timeout(step.seconds):
                        await step.signal.wait()
                except TimeoutError:
                    pass
                return None
            case LongPollCall():
                return await self._long_poll(step)
        return await self._run_step(step)

    async def _long_poll(self, step: LongPollCall) -> Any:
        if step.signal.is_set():
            return None
        call = asyncio.ensure_future(self._run_step(step.call))
        signal = asyncio.ensure_future(step.signal.wait())
        try:
            await asyncio.wait({call, signal}, return_when=asyncio.FIRST_COMPLETED)
            return call.result() if call.done() else None
        finally:
            call.cancel()
            signal.cancel()
            await asyncio.wait({call, signal})


def _begin(call: Call, ended: Callable[[Any, Exception | None], None]) -> Operation[None]:
    answer, failure = None, None
    try:
        answer = yield call
    except Exception as error:
        failure = error
    ended(answer, failure)
