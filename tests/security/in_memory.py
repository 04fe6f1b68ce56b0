"""An event loop without sockets in virtual time, and a transport on it whose other side is a fuzzer."""

from __future__ import annotations

import asyncio
import selectors
from concurrent.futures import Executor, Future
from typing import Any, cast


class Broken(AssertionError):
    """The code under test broke a promise."""


class _NoSockets(selectors.SelectSelector):
    """Finds nothing ready, and never waits."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class MemoryLoop(asyncio.SelectorEventLoop):
    """Event loop whose time is `now`, and which collects what is reported to its exception handler."""

    def __init__(self) -> None:
        super().__init__(_NoSockets())
        self.now = 1_000.0
        self.reported: list[str] = []
        self.set_exception_handler(self._report)

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def _report(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.reported.append(f"{context.get('message')}: {context.get('exception')!r}")


class InlineExecutor(Executor):
    """Runs what it is given at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class MemoryTransport(asyncio.Transport):
    """One end of a connection, as asyncio's with TLS: files are read and written. Its other side has `feed` and `take`.

    The other side reads what is sent unless `is_read` is false; its socket buffer then holds `WINDOW_BYTES`.
    """

    WINDOW_BYTES = 4 << 10

    def __init__(
        self, loop: MemoryLoop, protocol: asyncio.BufferedProtocol, host: str, *, is_read: bool = True
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = bytearray()
        """What the other side has read or will read."""
        self.is_read = is_read
        self.is_paused = False
        self.is_lost = False
        """Whether nothing goes either way any more."""
        self._loop = loop
        self._host = host
        self._is_full = False
        self._is_ending = False
        protocol.connection_made(self)

    # --- the other side ---

    def feed(self, data: memoryview) -> int:
        """Deliver bytes as asyncio does; return how many, which are fewer if the protocol pauses or closes."""
        taken = 0
        while taken < len(data) and not self.is_paused and not self._is_ending:
            buffer = self.protocol.get_buffer(-1)
            if not len(buffer):
                raise Broken("get_buffer() returned an empty buffer")
            count = min(len(buffer), len(data) - taken)
            cast("memoryview", buffer)[:count] = data[taken : taken + count]
            taken += count
            self.protocol.buffer_updated(count)
        return taken

    def end(self) -> None:
        """End the connection from the other side: asyncio notices unless reading is paused."""
        if not self.is_paused and not self._is_ending:
            self.protocol.eof_received()
            self.close()

    def take(self) -> None:
        """Read from now on, and everything that was sent."""
        self.is_read = True
        if self._is_full:
            self._is_full = False
            if not self.is_lost:
                self.protocol.resume_writing()
        if self._is_ending:
            self._lose()

    # --- asyncio.Transport ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        return {"peername": (self._host, 4_711), "ssl_object": "none"}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio: the limit is `WINDOW_BYTES`."""

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_ending

    def pause_reading(self) -> None:
        """See asyncio."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self.is_paused = False

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self.is_lost:
            return
        self.sent += data
        if not self.is_read and len(self.sent) > self.WINDOW_BYTES and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def close(self) -> None:
        """See asyncio: what was written leaves before."""
        self._is_ending = True
        if not self._is_full:
            self._lose()

    def abort(self) -> None:
        """See asyncio."""
        self._is_ending = True
        self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_soon(self.protocol.connection_lost, None)
