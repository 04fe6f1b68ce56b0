"""Connections of the native protocol that carry one stream of messages in both directions. One event loop.

After HELLO and WELCOME each side sends MESSAGE frames as it likes and counts them. Neither side receives more than it
has read: one message waits for `read`, and what follows it stays in the sender's socket. Both ends are here: the server
makes a `ServedStream` for each connection, `open_stream` connects to one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import NamedTuple

import structlog
from google.protobuf.message import DecodeError
from headrace.v1 import errors_pb2, native_pb2
from headrace.wire.errors import HeadraceError, InternalError, InvalidRequestError, from_detail
from headrace.wire.frames import (
    CONFIRMED,
    FOLLOWER_KINDS,
    LEADER_KINDS,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    PREFACE,
    Frame,
    FrameError,
    Header,
    Kind,
    MethodCode,
    frame_head,
)

from headrace_server.handshakes import own_handshake
from headrace_server.native.framed_connection import FramedConnection, Owner
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.server import NativeServer
from headrace_server.settings import split_address

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 3.0
"""For a connection, with TLS."""
WAKING_BYTES = 1 << 20
"""The event loop wakes for so much of a large message, or for its end: each time costs about 40 us."""


class Received(NamedTuple):
    """A message that has arrived."""

    message: bytes
    """Protobuf."""
    attachments: memoryview
    """The attachments, one behind the other; no other message is written there."""
    is_discarded: bool
    """Whether the other side has taken it back: its log changed while it was sent."""


class MessageStream(FramedConnection):
    """One end of a stream. `read` has one caller, and `write` has one."""

    def __init__(self, owner: Owner, kinds: frozenset[Kind], preface: bytes, method: MethodCode) -> None:
        super().__init__(owner, kinds, preface)
        self._method = method
        self.max_message_bytes = MAX_HELLO_BYTES
        """Of one message of the other side with its attachments; a larger one ends the stream."""
        self._inbox: deque[Received] = deque()
        self._unconfirmed: Frame | None = None
        self._received = self._sent = 0
        self._socket: socket.socket | None = None
        """`None` with TLS, which receives other bytes than those of the messages."""
        self._waking_bytes = 1
        self.heard_bytes = 0
        """Number of bytes that have arrived, those of incomplete messages included."""
        self._wake = asyncio.Event()
        self._is_over = False
        self._error: HeadraceError | None = None

    async def read(self) -> Received | None:
        """Return the next message; `None` means that the stream has ended.

        Raises:
            HeadraceError: the other side ended it with this error.
        """
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return None
            self._wake.clear()
            await self._wake.wait()
        received = self._inbox.popleft()
        self._take_frames()
        return received

    async def write(self, outgoing: OutgoingMessage) -> None:
        """Send a message, and return when it has left or the connection holds nothing else.

        Raises:
            ConnectionError: If the stream has ended.
        """
        self._sent += 1
        left = self._loop.create_future()

        def done() -> None:
            if not left.done():
                left.set_result(None)

        self._send(Kind.MESSAGE, outgoing, method=self._method, correlation=self._sent, done=done)
        await left
        if self._is_over:
            raise ConnectionResetError("the stream has ended")

    def admit(self, max_message_bytes: int) -> None:
        """Take messages of such a size from now on: the other side has proven who it is."""
        self.max_message_bytes, self.idle_since = max_message_bytes, None

    def abort(self) -> None:
        """End the stream from this side."""
        self._finish()
        self._transport.abort()

    def hear_all(self) -> None:
        """Count what has arrived of a large message, too, and waits in the socket for more of it."""
        self._set_waking_bytes(1)

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended."""
        return self._is_over

    # --- for the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        super().connection_made(transport)
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket")

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self.heard_bytes += nbytes
        super().buffer_updated(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._finish()
        super().connection_lost(exc)

    def _finish(self, error: HeadraceError | None = None) -> None:
        if not self._is_over:
            self._is_over, self._error = True, error
        self._wake.set()

    def _admit(self, header: Header) -> bool:
        """See `FramedConnection`."""
        if header.kind in (Kind.HELLO, Kind.WELCOME):
            if self._is_welcome or header.size > MAX_HELLO_BYTES:
                raise FrameError(f"a greeting of {header.size} bytes" if not self._is_welcome else "a second greeting")
        elif header.kind == Kind.ERROR:
            if header.size > MAX_HELLO_BYTES:
                raise FrameError(f"an error of {header.size} bytes")
        elif not self._is_welcome:
            raise FrameError("the first frame is no greeting")
        elif header.kind == Kind.MESSAGE:
            if header.correlation != self._received + 1 or self._unconfirmed is not None:
                raise FrameError(f"message {header.correlation} follows message {self._received}")
            if header.method != self._method:
                raise FrameError(f"a message of method {header.method}")
            if header.size > self.max_message_bytes:
                raise FrameError(f"a message of {header.size} bytes: the limit is {self.max_message_bytes}")
        elif self._unconfirmed is None or header.correlation != self._received:
            raise FrameError(f"message {header.correlation} is confirmed or discarded, {self._received} is the last")
        return True

    def _take_frames(self) -> None:
        if self._is_over or self._is_closing:
            return
        try:
            while not self._inbox:
                frame = self._reader.next_frame()
                if frame is None:
                    break
                self._frame_since = self._loop.time()
                self._take(frame)
        except FrameError as error:
            action = "Let only brokers of this cluster connect to this port."
            self._refuse(InvalidRequestError(f"{error}", action=action))
            return
        except HeadraceError as error:  # of the handshake
            self._refuse(error)
            return
        self._set_held(bool(self._inbox))
        self._set_waking_bytes(min(self._reader.missing, WAKING_BYTES) or 1)

    def _set_waking_bytes(self, least: int) -> None:
        """Let the socket count as readable from `least` bytes on; at its end, or when it is full, it always does."""
        if least != self._waking_bytes and self._socket is not None and not self._is_closing:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._waking_bytes = least

    def _take(self, frame: Frame) -> None:
        header = frame.header
        if header.kind in (Kind.HELLO, Kind.WELCOME):
            self._greeted(frame)
            self._is_welcome = True
        elif header.kind == Kind.ERROR:
            self._finish(_error_of(frame))
            self._transport.abort()
        elif header.kind == Kind.MESSAGE and header.flags & CONFIRMED:
            self._received += 1
            self._unconfirmed = frame
        else:
            if header.kind == Kind.MESSAGE:
                self._received += 1
            else:
                assert self._unconfirmed is not None
                frame, self._unconfirmed = self._unconfirmed, None
            self._inbox.append(Received(frame.message, frame.attachments, header.kind == Kind.DISCARD))
            self._wake.set()

    def _greeted(self, frame: Frame) -> None:
        """Process the first frame of the other side; raises `FrameError`, `HeadraceError`."""
        raise NotImplementedError

    def _refuse(self, error: HeadraceError) -> None:
        """End the stream because the other side broke the protocol, or is refused."""
        self._break(error)


class ServedStream(MessageStream):
    """The server's end."""

    def __init__(
        self, server: NativeServer, method: MethodCode, serve: Callable[[MessageStream], Awaitable[None]]
    ) -> None:
        """`serve` has the stream from the greeting on; what it raises ends it, and it is cancelled at its end."""
        super().__init__(server, FOLLOWER_KINDS, PREFACE, method)
        self._server = server
        self._serve = serve
        self._serving: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        if self._serving is not None:
            self._serving.cancel()

    def admit(self, max_message_bytes: int) -> None:
        """See `MessageStream`."""
        super().admit(max_message_bytes)
        self._server.note_served(self)

    async def answered(self) -> None:
        """See `FramedConnection`."""
        if self._serving is not None:
            await asyncio.wait([self._serving])

    def say_goodbye(self) -> None:
        """See `FramedConnection`: the stream ends."""
        self.is_retired = True
        self._finish()
        self.close()

    def _greeted(self, frame: Frame) -> None:
        self._read_hello(frame, "")
        self._welcome(self._server.name)
        self._serving = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except ConnectionError:
            pass  # The other side is gone.
        except HeadraceError as error:
            self._break(error)
        except Exception as error:
            log.exception("native_stream_failed", peer=self.name)
            self._break(InternalError(f"the server met an unexpected {type(error).__name__}"))
        finally:
            self._finish()
            self._end_when_sent()


class _OpenedStream(MessageStream):
    """The client's end."""

    def __init__(self, method: MethodCode, client_id: str) -> None:
        super().__init__(_Client(), LEADER_KINDS, b"", method)
        self.max_message_bytes = MAX_FRAME_BYTES
        self._client_id = client_id

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        super().connection_made(transport)
        hello = native_pb2.Hello(client_id=self._client_id, handshake=own_handshake())
        self._put(PREFACE + frame_head(Kind.HELLO, hello.SerializeToString()))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. An error may have arrived behind a message that is still to be read."""
        with contextlib.suppress(FrameError, HeadraceError):
            while not self._is_over and (frame := self._reader.next_frame()) is not None:
                self._take(frame)
        super().connection_lost(exc)

    def _greeted(self, frame: Frame) -> None:
        try:
            welcome = native_pb2.Welcome.FromString(frame.message)
        except DecodeError as error:
            raise FrameError("a Welcome that is no such message") from error
        if welcome.max_requests:
            raise InvalidRequestError(
                f"{welcome.answered_by} serves requests at this address, not followers",
                action="Let its replication_advertised_address name the port of its replication_listen.",
            )

    def _refuse(self, error: HeadraceError) -> None:
        self._finish(error)
        self._transport.abort()


class _Client:
    """The `Owner` of a client's end, which counts nothing."""

    executor: Executor | None = None

    def enter(self, connection: FramedConnection) -> bool:
        """See `Owner`."""
        return True

    def leave(self, connection: FramedConnection) -> None:
        """See `Owner`."""

    def count_broken(self, peer: str) -> None:
        """See `Owner`."""

    def count_sent(self, size_bytes: int) -> None:
        """See `Owner`."""


async def open_stream(
    address: str, method: MethodCode, client_id: str, context: ssl.SSLContext | None
) -> MessageStream:
    """Connect to host:port, with TLS where there is a context. The caller aborts the stream.

    Raises:
        OSError: no connection; of TLS, of the time and of the name, too.
        HeadraceError: the address is malformed.
    """
    host, port = split_address(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, stream = await asyncio.get_running_loop().create_connection(
                lambda: _OpenedStream(method, client_id), host.strip("[]"), port, ssl=context
            )
    except UnicodeError as error:
        raise OSError(f"{host!r} is not the name of a host: {error}") from error
    return stream


def _error_of(frame: Frame) -> HeadraceError:
    try:
        return from_detail(errors_pb2.ErrorDetail.FromString(frame.message))
    except DecodeError:
        return InternalError("the other side ended the stream with an error that cannot be read")
