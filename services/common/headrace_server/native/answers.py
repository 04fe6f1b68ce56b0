"""Answers on their way out of one connection: bytes, and ranges of files that the kernel sends from the page cache.

Answers leave in the order in which they were put. Without TLS a range goes by `sendfile` (the paper, section 3.1); what
of it is not in the page cache is loaded in a thread first, so that a disk does not hold up the event loop. With TLS it
is read and written. A connection that takes nothing is its owner's to end: see `stalled_seconds`. One event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeAlias

from headrace.log.slices import Slice
from headrace.wire.crc import ReadableBuffer

Piece: TypeAlias = ReadableBuffer | Slice

CHUNK_BYTES = 256 << 10
"""With TLS: what is read from a file at once."""


@dataclass(slots=True)
class _Answer:
    pieces: Sequence[Piece]
    verdict: Callable[[], bytes] | None
    """Returns what follows the pieces, when they have left."""
    done: Callable[[], None]


class AnswerQueue:
    """Owned by one connection, which calls `pause`, `resume` and `close`."""

    def __init__(self, transport: asyncio.Transport, executor: Executor, count_sent: Callable[[int], None]) -> None:
        """`count_sent` takes the bytes that `sendfile` has sent."""
        self._transport = transport
        self._executor = executor
        self._count_sent = count_sent
        self._loop = asyncio.get_running_loop()
        self._is_plain = transport.get_extra_info("ssl_object") is None
        self._waiting: deque[_Answer] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_full = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._descriptor = -1
        self._is_closed = False
        self._progress_at = self._loop.time()

    def begin(self) -> None:
        """Have the transport call `pause` as soon as the socket does not take all, and `resume` when it has."""
        # At 0 that of TLS would call `pause` with nothing left over.
        self._transport.set_write_buffer_limits(high=0 if self._is_plain else 1, low=0)

    def put(
        self, pieces: Sequence[Piece], done: Callable[[], None], verdict: Callable[[], bytes] | None = None
    ) -> None:
        """Send an answer behind those that wait; `done` is called once, when it has left or the connection is lost."""
        if self._is_closed:
            done()
        elif self._sending is None and not self._is_full and not any(type(piece) is Slice for piece in pieces):
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))  # type: ignore[arg-type]
            self._progress_at = self._loop.time()
            done()
        else:
            self._waiting.append(_Answer(pieces, verdict, done))
            if self._sending is None:
                self._progress_at = self._loop.time()
                self._sending = self._loop.create_task(self._send_all())

    def stalled_seconds(self, now: float) -> float:
        """Return for how long the other side has taken nothing although something waits for it."""
        return now - self._progress_at if self._is_full or self._sending is not None else 0.0

    def pause(self) -> None:
        """Take note that the transport holds what the socket does not take."""
        self._is_full = True
        self._has_room.clear()

    def resume(self) -> None:
        """Take note that all of it has left."""
        self._is_full = False
        self._progress_at = self._loop.time()
        self._has_room.set()

    def close(self) -> None:
        """Drop what waits: the connection is lost."""
        self._is_closed = True
        if self._sending is None:
            self._release()
        else:
            self._sending.cancel()  # Perhaps before it has begun.
            self._sending.add_done_callback(lambda _: self._release())

    def _release(self) -> None:
        while self._waiting:
            self._waiting.popleft().done()
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                answer = self._waiting.popleft()
                try:
                    for piece in answer.pieces:
                        if type(piece) is Slice:
                            await self._send_slice(piece)
                        else:
                            self._transport.write(piece)  # type: ignore[arg-type]
                            await self._has_room.wait()
                    if answer.verdict is not None:
                        self._transport.write(answer.verdict())
                finally:
                    answer.done()
        except OSError:
            self._transport.abort()  # Half an answer is there: nothing else can follow it.
        except Exception:
            self._transport.abort()
            raise
        finally:
            self._sending = None

    async def _send_slice(self, piece: Slice) -> None:
        if not piece.is_cached():
            await self._loop.run_in_executor(self._executor, piece.load)
        if self._is_plain:
            await self._send_file(piece)
            return
        for start in range(0, piece.size_bytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, piece.size_bytes - start)
            self._transport.write(os.pread(piece.fileno(), size, piece.position + start))
            await self._has_room.wait()

    async def _send_file(self, piece: Slice) -> None:
        """Have the kernel send a range; the transport has nothing of its own meanwhile."""
        await self._has_room.wait()
        if self._descriptor < 0:  # A second one, as the event loop keeps the first for the transport.
            self._descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
        sent, end = piece.position, piece.position + piece.size_bytes
        while sent < end:
            try:
                count = os.sendfile(self._descriptor, piece.fileno(), sent, end - sent)
            except BlockingIOError:
                await self._writable()
                continue
            if count == 0:
                raise OSError(f"{piece.path} ends at {sent}, before {end}")
            sent += count
            self._progress_at = self._loop.time()
            self._count_sent(count)

    async def _writable(self) -> None:
        writable = self._loop.create_future()
        self._loop.add_writer(self._descriptor, _resolve, writable)
        try:
            await writable
        finally:
            self._loop.remove_writer(self._descriptor)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
