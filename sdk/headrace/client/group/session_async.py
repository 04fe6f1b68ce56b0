"""A consumer's session with its group on an event loop: a task for each loop of `group_loops`."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import grpc

from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, Operation, aexecute_loop
from headrace.client.group.loops import AwaitCommit, GroupLoops, InvokeCallback, LongPollCall, WaitEvent


class AsyncGroupSession(GroupLoops):
    """Owned by one consumer; its loop alone touches it."""

    def __init__(
        self,
        *arguments: Any,
        run_step: Callable[[Any], Any],
        answer: Callable[[Any], Any],
        **rest: Any,
    ) -> None:
        """As `GroupLoops`; `answer` awaits a call that was only started."""
        super().__init__(*arguments, run_step=run_step, **rest)
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._flying: Any = None
        self._resolved = asyncio.Event()

    def begin(self) -> None:
        """Begin."""
        for what in (self.heartbeats, self.committing, self.starting):
            task = asyncio.get_running_loop().create_task(self._run(what), name=f"headrace-group-{what.__name__}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, what: Callable[[], Operation[None]]) -> None:
        try:
            await aexecute_loop(what(), self.run_step)
        except ClosedError:
            return
        except Exception as error:
            self._fail(error)

    async def run_step(self, step: Any) -> Any:
        """Do one step, and give what came of it."""
        match step:
            case WaitEvent():
                await _wait(step.event, step.seconds)
                step.event.clear()
                return None
            case LongPollCall():
                return await self._long_poll(step.call)
            case InvokeCallback():
                result = step.callback(step.partitions)
                return await result if inspect.isawaitable(result) else result
            case AwaitCommit():
                await self._await_resolved(step)
                return step.ticket.is_done
        return await self._run_step(step)

    async def _await_resolved(self, step: AwaitCommit) -> None:
        try:
            async with asyncio.timeout(step.timeout):
                while not (step.ticket.is_done or self._ends):
                    self._resolved.clear()
                    await self._resolved.wait()
        except TimeoutError:
            return

    async def _long_poll(self, call: Call) -> Any:
        """Make a call that `_interrupt` ends."""
        flying = self._flying = await self._run_step(call._replace(starts=True))
        if self.membership.needs_heartbeat or self._ends:
            flying.cancel()
        try:
            return await self._answer(flying)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if flying.cancelled() and not (task is not None and task.cancelling()):
                return None
            raise
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED and flying.cancelled():
                return None
            raise
        finally:
            self._flying = None

    def _interrupt(self) -> None:
        if self._flying is not None:
            self._flying.cancel()

    def _tell_waiters(self) -> None:
        self._resolved.set()

    def shutting(self, seconds: float) -> Operation[None]:
        """End the loops, then leave."""
        self.end()
        yield from self.leaving(seconds)

    def end(self) -> None:
        """End the loops. Again: nothing."""
        self._ends = True
        self._tell_waiters()
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until the loops have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _make_event(self) -> Any:
        return asyncio.Event()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
