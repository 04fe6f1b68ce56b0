"""Calls over the native protocol: what a service serves, what it is asked and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.wire.errors import REQUEST_ID_KEY
from headrace.wire.frames import Frame

from headrace_server.methods import Method
from headrace_server.native.answers import Piece
from headrace_server.places import Place
from headrace_server.requests import RequestReader


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """What a method answers."""

    message: bytes
    """Serialised."""
    attached: Sequence[Piece] = ()
    is_valid: Callable[[], bool] | None = None
    """Asked when everything has left: whether the client may use it. `None`: it may."""
    close: Callable[[], None] | None = None
    """Called once, when the answer has left or the connection is lost."""


@dataclass(frozen=True, slots=True)
class NativeMethod:
    """A method as it is served."""

    name: str
    row: Method
    reader: RequestReader
    splice: Callable[[Any, memoryview], Any] | None
    """Puts the attachments of a frame into the request; `None`: it has none."""
    handle: Callable[[Any, NativeCall], Awaitable[NativeAnswer]]


class Peer(Protocol):
    """The connection of a call."""

    name: str
    certified_names: dict[str, list[bytes]]


class NativeCall:
    """One request: what log lines and limits need of it, as of the context of a gRPC call."""

    __slots__ = ("_frame", "_peer", "deadline", "header", "is_overdue", "method", "place", "request_id", "task")

    def __init__(self, peer: Peer, method: NativeMethod, frame: Frame, place: Place, deadline: float) -> None:
        """`deadline` is of the event loop's clock."""
        self._peer = peer
        self.method = method
        self.header = frame.header
        self.request_id = frame.request_id
        self._frame: Frame | None = frame
        self.place = place
        self.deadline = deadline
        self.is_overdue = False
        self.task: asyncio.Task[None] | None = None

    def take_frame(self) -> Frame:
        """Return the request's frame, once: it may be large."""
        frame, self._frame = self._frame, None
        assert frame is not None, "the frame was taken"
        return frame

    def peer(self) -> str:
        """Return the connection, in gRPC's form."""
        return self._peer.name

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the request's id as metadata has it."""
        return ((REQUEST_ID_KEY, self.request_id),)

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the names of the client's certificate, as gRPC does."""
        return self._peer.certified_names
