"""A connection that carries frames of the native protocol: what calls and streams have in common. One event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol, cast

import structlog
from google.protobuf.message import DecodeError
from headrace.v1 import native_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, UnsupportedVersionError, to_detail
from headrace.wire.frames import CONFIRMED, Frame, FrameError, FrameReader, Header, Kind, frame_head

from headrace_server.handshakes import check_handshake, own_handshake
from headrace_server.identity.certificate_names import names_of
from headrace_server.native.outgoing import OutgoingMessage, OutgoingQueue
from headrace_server.places import caller

log = structlog.get_logger(__name__)

HELLO_SECONDS = 5.0
"""For the first frame, from the connection on."""
FRAME_SECONDS = 30.0
"""For a whole frame, from its first byte on."""
STALL_SECONDS = 30.0
"""A peer that takes nothing of what waits for it for so long is cut off."""


def peer_name(host: str, port: int) -> str:
    """Return the name of a peer, as gRPC does."""
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


class Owner(Protocol):
    """The server or client that a connection belongs to."""

    executor: Executor | None
    """Runs what waits for a disk; `None` means the event loop's own."""

    def enter(self, connection: FramedConnection) -> bool:
        """Take a connection that is made; `False` means that there is no room."""

    def leave(self, connection: FramedConnection) -> None:
        """Forget a connection that is lost."""

    def count_broken(self, peer: str) -> None:
        """Count a connection of `peer` that broke the protocol, took too long, or was refused."""

    def count_sent(self, size_bytes: int) -> None:
        """Count bytes that `sendfile` has sent."""


class FramedConnection(asyncio.BufferedProtocol):
    """Receives frames and sends what `_outgoing` holds; subclasses decide what frames mean."""

    def __init__(self, owner: Owner, kinds: frozenset[Kind], preface: bytes) -> None:
        """`kinds` may arrive, behind `preface`."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(kinds, self._admit, preface)
        self._transport = cast("asyncio.Transport", None)
        self._outgoing = cast("OutgoingQueue", None)
        self._is_welcome = False
        """Whether the first frame of the other side has arrived."""
        self._is_broken = False
        self._is_held = False
        """Whether what has arrived waits for this side."""
        self._is_paused = False
        """Whether nothing more is read for now."""
        self._frame_since = self._loop.time()
        self.idle_since: float | None = self._frame_since
        """When it had nothing to do last; `None` means that it has."""
        self.is_retired = False
        """Whether it takes no more requests."""
        self._names: dict[str, list[bytes]] = {}
        self.name = ""
        self.host = ""

    # --- what subclasses decide ---

    def _admit(self, header: Header) -> bool:
        """Decide whether the body of a frame is received or skipped; raises `FrameError`, `HeadraceError`."""
        raise NotImplementedError

    def _take_frames(self) -> None:
        """Process what has arrived."""
        raise NotImplementedError

    async def answered(self) -> None:
        """Wait until nothing is being worked on."""
        raise NotImplementedError

    def say_goodbye(self) -> None:
        """Announce the end of the connection."""
        raise NotImplementedError

    def set_address(self, host: str, port: int) -> None:
        """Set the address of the other side."""
        self.host, self.name = caller(host), peer_name(host, port)

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if address is not None:  # Else the other side has reset the connection.
            self.set_address(address[0], address[1])
        self._names = _names_of(transport.get_extra_info("peercert"))
        self._outgoing = OutgoingQueue(self._transport, self._owner.executor, self._owner.count_sent)
        self._outgoing.begin()
        if not self._owner.enter(self):
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._outgoing.is_ending:
            return  # The next bytes overwrite these.
        if self._reader.is_between_frames:
            self._frame_since = self._loop.time()
        self._reader.received(nbytes)
        self._take_frames()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._outgoing.pause()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._outgoing.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._owner.leave(self)
        self._outgoing.close()
        self._reader.close()

    def peer(self) -> str:
        """Return the other side's address, as gRPC does."""
        return self.name

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the names in the certificate of the other side, as gRPC does; empty without TLS."""
        return self._names

    # --- its end ---

    @property
    def is_unfinished(self) -> bool:
        """Whether its first frame has not come, and it was not counted as broken."""
        return not self._is_welcome and not self._is_broken

    def look(self, now: float) -> None:
        """End what takes too long: a handshake, half a frame, a peer that does not read."""
        if not self._is_welcome and now - self._frame_since > HELLO_SECONDS:
            self.end("no Hello came")
        elif not self._is_held and not self._reader.is_between_frames and now - self._frame_since > FRAME_SECONDS:
            self.end("half a frame came")
        else:
            self.look_unread(now)

    def look_unread(self, now: float) -> None:
        """End a peer that does not read."""
        if self._outgoing.stalled_seconds(now) > STALL_SECONDS:
            self.end("it takes no answer")

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do and nothing to send."""
        return self.idle_since is not None and self._outgoing.is_empty

    def end(self, why: str) -> None:
        """Close the connection at once."""
        self._is_broken = True
        self._owner.count_broken(self.name)
        log.info("native_connection_ended", peer=self.name, cause=why)
        self._transport.abort()

    def close(self) -> None:
        """Close the connection when what waits has left."""
        self._transport.close()

    def _break(self, error: HeadraceError) -> None:
        """Send what is wrong with the connection, and close it."""
        self._is_broken = True
        self._owner.count_broken(self.name)
        is_of_protocol = isinstance(error, InvalidRequestError | UnsupportedVersionError)
        note = log.info if is_of_protocol else log.debug  # The gate logs refused identities, at a bounded rate.
        note("native_connection_broken", peer=self.name, cause=error.message)
        self._put(frame_head(Kind.ERROR, to_detail(error).SerializeToString()))
        self._end_when_sent()

    def _end_when_sent(self) -> None:
        """Close the connection when what waits has left; nothing of what still arrives is processed."""
        self._reader.clear()
        self._outgoing.end()

    @property
    def _is_closing(self) -> bool:
        """Whether nothing of what still arrives is processed."""
        return self._transport.is_closing() or self._outgoing.is_ending

    def _read_hello(self, frame: Frame, who: str) -> native_pb2.Hello:
        """Return the Hello of a client, which is called `who` in errors; raises FrameError, UnsupportedVersionError."""
        try:
            hello = native_pb2.Hello.FromString(frame.message)
        except DecodeError as error:
            raise FrameError("a Hello that is no such message") from error
        check_handshake(f"{who}{hello.client_id[:64]!r} at {self.name}", hello.handshake)
        return hello

    def _welcome(self, server_name: str, max_requests: int = 0) -> None:
        """Answer a Hello."""
        welcome = native_pb2.Welcome(answered_by=server_name, handshake=own_handshake(), max_requests=max_requests)
        self._put(frame_head(Kind.WELCOME, welcome.SerializeToString()))

    def _put(self, frame: bytes, done: Callable[[], None] | None = None) -> None:
        self._outgoing.put([frame], done or _nothing)

    def _send(
        self, kind: Kind, outgoing: OutgoingMessage, *, method: int, correlation: int, done: Callable[[], None]
    ) -> None:
        """Send a message with its attachments; `done` is called once, when it has left or the connection is lost."""
        is_valid = outgoing.is_valid
        head = frame_head(
            kind,
            outgoing.message,
            method=method,
            flags=0 if is_valid is None else CONFIRMED,
            correlation=correlation,
            attached=sum(map(len, outgoing.attached)),
        )

        def verdict() -> bytes:
            return frame_head(Kind.CONFIRM if is_valid is None or is_valid() else Kind.DISCARD, correlation=correlation)

        def left() -> None:
            if outgoing.close is not None:
                outgoing.close()
            done()

        pieces = [head, *outgoing.attached]
        self._outgoing.put(pieces, left, None if is_valid is None else verdict, outgoing.failed)

    def _set_held(self, is_held: bool, *, is_full: bool = True) -> None:
        """Leave what arrives where it is, or process it again; where `is_full`, in the socket."""
        if self._is_held and not is_held:
            self._frame_since = self._loop.time()
        self._is_held, is_paused = is_held, is_held and is_full
        if is_paused != self._is_paused and not self._transport.is_closing():
            self._is_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()


def _nothing() -> None:
    """Do nothing when a frame has left."""


def _names_of(certificate: dict[str, Any] | None) -> dict[str, list[bytes]]:
    common, alternatives = names_of(certificate)
    return {
        "x509_common_name": [name.encode() for name in common],
        "x509_subject_alternative_name": [name.encode() for name in alternatives],
    }
