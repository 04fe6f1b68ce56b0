"""Transport of one asyncio client to a directory that this process has open; see `directory`. One event loop."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, InvokeCallback, Pause, WaitUntil
from headrace.client.net.directory import DirectoryProduce, UsedDirectory
from headrace.client.net.native_calls import Done, MakeRequest
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame


class AsyncDirectoryProduce(DirectoryProduce):
    """Produce calls whose results are processed on the event loop."""

    def begin(
        self, address: str, make_request: MakeRequest, done: Done, session: str = ""
    ) -> Callable[[], None] | None:
        """See `NativeCaller`."""
        loop = asyncio.get_running_loop()

        def ended(frame: Frame | None, error: HeadraceError | None) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(done, frame, error)

        return super().begin(address, make_request, ended, session)


class AsyncDirectoryConnections:
    """What an asyncio client has instead of connections."""

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Open the directory that `config` names, as `DirectoryConnections`: blocks on the disk if it is not open."""
        self._what = what
        self._directory = UsedDirectory(what, config)
        self._closed = asyncio.Event()
        self.native = AsyncDirectoryProduce(self._directory, what)
        self.sessions = None

    @property
    def is_open(self) -> bool:
        """Whether there is something to close."""
        return not self._closed.is_set()

    def endpoint(self, address: str) -> Any:
        """Refuse: nothing is called over gRPC."""
        raise ClosedError(self._what)

    async def answer(self, call: Any) -> Any:
        """Await a call."""
        return await call

    async def close(self) -> None:
        """Leave the directory, which is closed with its last client. Calling it again does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.native.is_closed = True
        self._directory.abandon(self)
        # As a future, which is not cancelled with the caller: the directory would stay open.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._directory.leave, self))

    async def run_step(self, step: Any) -> Any:
        """Run one step of `headrace.client.base.operations`; return its result. Raises as `DirectoryConnections`."""
        match step:
            case Call():
                return await self._call(step)
            case Pause():
                await self._pause(step.seconds)
                return None
            case InvokeCallback():
                result = step.callback(step.argument)
                return await result if inspect.isawaitable(result) else result
            case WaitUntil():
                return await step.changes.wait_for(step.condition, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

    async def _call(self, call: Call) -> Any:
        if self._closed.is_set():
            raise ClosedError(self._what)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def ended(answer: Any, error: Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(_settle, future, answer, error)

        def begin() -> Callable[[], None]:
            server = self._directory.server(call.service, call.method)
            return server.begin(self, call.service, call.method, call.request, ended)

        beginning = asyncio.ensure_future(asyncio.to_thread(begin))
        try:
            await asyncio.shield(beginning)
            return await future
        finally:
            if not future.done():
                beginning.add_done_callback(_cancel)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond `close`. Raises ClosedError."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise ClosedError(self._what)


def _settle(future: "asyncio.Future[Any]", answer: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _cancel(beginning: "asyncio.Future[Callable[[], None]]") -> None:
    """Cancel a call whose caller has gone, once it has begun."""
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result()()
