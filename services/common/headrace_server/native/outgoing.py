"""Queue of outgoing messages of one connection: bytes, and file ranges that the kernel sends from the page cache.

Messages are sent in the order in which they were queued. Without TLS a file range is sent by `sendfile` (the paper,
section 3.1); pages that are not in the page cache are loaded in a thread first, so that disk reads do not block the
event loop. With TLS the range is read and written. The owner must close a connection that accepts no data: see
`stalled_seconds`. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from headrace.log.slices import Slice
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError

Piece: TypeAlias = ReadableBuffer | Slice

NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK)
"""Errors of `sendfile` where it does not work with this file or socket; the range is then read and written."""
CHUNK_BYTES = 256 << 10
"""Size of one file read with TLS."""

LOADED_AHEAD = 2
"""Number of waiting messages of a connection whose file ranges are loaded before their turn."""

COPIED_BYTES = 64 << 10
"""Up to this, reading the slices of a message costs less than the turns of `sendfile`."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message with its attachments."""

    message: bytes
    """Serialised protobuf."""
    attached: Sequence[Piece] = ()
    is_valid: Callable[[], bool] | None = None
    """Called when everything has left: whether the receiver may use it. `None` means that it may."""
    close: Callable[[], None] | None = None
    """Called once, when the message has left or the connection is lost."""
    failed: Callable[[Slice, HeadraceError], None] | None = None
    """Called where a slice cannot be read; the connection then ends, because half a frame was sent."""


@dataclass(slots=True)
class _Waiting:
    pieces: Sequence[Piece]
    done: Callable[[], None]
    verdict: Callable[[], bytes] | None
    """Returns what follows the pieces, when they have left."""
    failed: Callable[[Slice, HeadraceError], None] | None
    loading: asyncio.Future[None] | None = None
    """Work of a thread that loads file ranges into the page cache."""
    is_examined: bool = False
    """Whether it was checked for ranges to load before its turn."""


class OutgoingQueue:
    """Outgoing messages of one connection, which calls `pause`, `resume` and `close`."""

    def __init__(
        self, transport: asyncio.Transport, executor: Executor | None, count_sent: Callable[[int], None]
    ) -> None:
        """`count_sent` takes the bytes that `sendfile` has sent."""
        self._transport = transport
        self._executor = executor
        self._count_sent = count_sent
        self._loop = asyncio.get_running_loop()
        self._is_plain = transport.get_extra_info("ssl_object") is None
        self._sends_files = self._is_plain and hasattr(os, "sendfile")
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_full = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._descriptor = -1
        self._is_closed = False
        self.is_ending = False
        """Whether the connection is closed when what waits has left."""
        self._progress_at = self._loop.time()
        self._is_loading = False
        """Whether the disk is waited for, not the peer."""

    def begin(self) -> None:
        """Make the transport call `pause` as soon as the socket is full, and `resume` when all data is written."""
        # At 0 the TLS transport would call `pause` with an empty buffer.
        self._transport.set_write_buffer_limits(high=0 if self._is_plain else 1, low=0)

    def put(
        self,
        pieces: Sequence[Piece],
        done: Callable[[], None],
        verdict: Callable[[], bytes] | None = None,
        failed: Callable[[Slice, HeadraceError], None] | None = None,
    ) -> None:
        """Send a message behind those that wait; `done` is called once, when it has left or the connection ends.

        `verdict` and `failed`: see `OutgoingMessage`; the first returns the frame that follows.
        """
        if self._is_closed or self.is_ending:
            done()
        elif self._sending is None and not self._is_full and not any(type(piece) is Slice for piece in pieces):
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))  # type: ignore[arg-type]
            self._progress_at = self._loop.time()
            done()
        else:
            self._waiting.append(_Waiting(pieces, done, verdict, failed))
            if self._sending is None:
                self._progress_at = self._loop.time()
                self._sending = self._loop.create_task(self._send_all())
            else:
                self._load_ahead()

    @property
    def is_empty(self) -> bool:
        """Whether everything has been accepted by the socket."""
        return not self._is_full and self._sending is None

    def stalled_seconds(self, now: float) -> float:
        """Return the time in seconds since the peer last accepted data, or `0` if it is offered none."""
        return 0.0 if self.is_empty or self._is_loading else now - self._progress_at

    def pause(self) -> None:
        """Handle a full socket buffer."""
        self._is_full = True
        self._has_room.clear()

    def resume(self) -> None:
        """Handle an empty transport buffer."""
        self._is_full = False
        self._progress_at = self._loop.time()
        self._has_room.set()

    def end(self) -> None:
        """Close the connection when what waits has left."""
        self.is_ending = True
        if self._sending is None:
            self._transport.close()

    def close(self) -> None:
        """Drop queued messages after the connection was lost."""
        self._is_closed = True
        if self._sending is None:
            self._release()
        else:
            self._sending.cancel()  # Perhaps before it has started.
            self._sending.add_done_callback(lambda _: self._release())

    def _release(self) -> None:
        while self._waiting:
            _finish(self._waiting.popleft())
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                message = self._waiting.popleft()
                self._load_ahead()
                try:
                    if message.loading is not None:
                        await self._loaded(message.loading)  # An error occurs again where the slice is sent.
                    for piece in message.pieces:
                        if type(piece) is Slice:
                            await self._send_slice(piece, message)
                        else:
                            self._transport.write(piece)  # type: ignore[arg-type]
                            await self._has_room.wait()
                    if message.verdict is not None:
                        self._transport.write(message.verdict())
                finally:
                    _finish(message)
        except (OSError, HeadraceError):
            self._transport.abort()  # Half a message is there: nothing else can follow it.
        except Exception:
            self._transport.abort()
            raise
        finally:
            self._sending = None
            if self.is_ending:
                self._transport.close()

    def _load_ahead(self) -> None:
        """Load the slices of the messages whose turn is next, so that the disk works while the socket does."""
        for message in islice(self._waiting, LOADED_AHEAD):
            if message.is_examined:
                continue
            message.is_examined = True
            try:
                cold = [each for each in message.pieces if type(each) is Slice and len(each) and not each.is_cached()]
            except HeadraceError:
                continue  # It occurs again where the slice is sent.
            if cold:
                self._load(message, cold)

    def _load(self, message: _Waiting, slices: Sequence[Slice]) -> asyncio.Future[None]:
        message.loading = loading = self._loop.run_in_executor(self._executor, _load_all, slices)
        loading.add_done_callback(_retrieve)
        return loading

    async def _loaded(self, loading: asyncio.Future[None]) -> None:
        """Wait for a thread, which may wait for others and the disk."""
        self._is_loading = True
        try:
            await asyncio.wait([loading])
        finally:
            self._is_loading, self._progress_at = False, self._loop.time()

    async def _send_slice(self, piece: Slice, message: _Waiting) -> None:
        if not piece.size_bytes:
            return
        try:
            if not piece.is_cached():
                loading = self._load(message, [piece])
                await self._loaded(loading)
                loading.result()
            sent = await self._send_file(piece) if self._sends_files else 0
            for start in range(sent, piece.size_bytes, CHUNK_BYTES):
                self._transport.write(piece.read_part(start, min(CHUNK_BYTES, piece.size_bytes - start)))
                await self._has_room.wait()
        except HeadraceError as error:
            if message.failed is not None:
                message.failed(piece, error)
            raise

    async def _send_file(self, piece: Slice) -> int:
        """Send a range by `sendfile`, while the transport's buffer is empty; return the number of bytes sent.

        It is the whole range, unless the disk fails, or the system has no `sendfile` from such a file to a socket.
        """
        await self._has_room.wait()
        if self._descriptor < 0:  # A duplicate, because the event loop reserves the first one for the transport.
            self._descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
        sent = 0
        while sent < piece.size_bytes:
            try:
                count = os.sendfile(self._descriptor, piece.fileno(), piece.position + sent, piece.size_bytes - sent)
            except BlockingIOError:
                await self._writable()
                continue
            except OSError as error:
                if error.errno == errno.EIO:
                    break  # Of the file: who reads it learns which one.
                if error.errno not in NO_SENDFILE:
                    raise
                self._sends_files = False
                break
            if count == 0:
                raise piece.too_short(sent)
            sent += count
            self._progress_at = self._loop.time()
            self._count_sent(count)
        return sent

    async def _writable(self) -> None:
        writable = self._loop.create_future()
        self._loop.add_writer(self._descriptor, _resolve, writable)
        try:
            await writable
        finally:
            self._loop.remove_writer(self._descriptor)


def _load_all(slices: Sequence[Slice]) -> None:
    for piece in slices:
        piece.load()


def _finish(message: _Waiting) -> None:
    """Call `done`, which releases the files: only after a thread has left them."""
    if message.loading is None or message.loading.done():
        message.done()
    else:
        message.loading.add_done_callback(lambda _: message.done())


def _retrieve(loading: asyncio.Future[None]) -> None:
    if not loading.cancelled():
        loading.exception()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def read_small(slices: Sequence[Slice]) -> list[Piece] | None:
    """Return the bytes of slices; `None` if they are many, one is not in the page cache, or one cannot be read."""
    if sum(map(len, slices)) > COPIED_BYTES:
        return None
    pieces: list[Piece] = []
    for found in slices:
        try:
            data = found.try_read_nowait()
        except HeadraceError:
            return None
        if data is None:
            return None
        pieces.append(data)
    return pieces
