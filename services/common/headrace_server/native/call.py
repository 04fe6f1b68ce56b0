"""Methods, requests and responses of the native protocol at the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.wire.errors import REQUEST_ID_KEY
from headrace.wire.frames import Frame
from headrace.wire.trace_context import TRACEPARENT, traceparent_of

from headrace_server.identity.gate import Access
from headrace_server.methods import Method
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.places import Place
from headrace_server.requests import RequestReader


@dataclass(frozen=True, slots=True)
class NativeMethod:
    """Served method."""

    path: str
    """gRPC's, such as `/headrace.v1.BrokerService/Fetch`."""
    name: str
    row: Method
    reader: RequestReader
    splice: Callable[[Any, memoryview], Any] | None
    """Puts the attachments of a frame into the request; `None`: it has none."""
    handle: Callable[[Any, NativeCall], Awaitable[OutgoingMessage]]


class Peer(Protocol):
    """Connection of a call."""

    name: str

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the names of its certificate, as gRPC does."""


class NativeCall:
    """One request, with the attributes of a gRPC context that logs and limits use."""

    __slots__ = (
        "_frame",
        "_peer",
        "access",
        "deadline",
        "header",
        "is_overdue",
        "method",
        "place",
        "request_id",
        "task",
    )

    def __init__(
        self, peer: Peer, method: NativeMethod, frame: Frame, place: Place, access: Access, deadline: float
    ) -> None:
        """`deadline` is in loop time."""
        self._peer = peer
        self.access = access
        self.method = method
        self.header = frame.header
        self.request_id = frame.request_id
        self._frame: Frame | None = frame
        self.place = place
        self.deadline = deadline
        self.is_overdue = False
        self.task: asyncio.Task[None] | None = None

    def take_frame(self) -> Frame:
        """Return the request's frame and drop the reference, because it may be large. Call it once."""
        frame, self._frame = self._frame, None
        assert frame is not None, "the frame was taken"
        return frame

    def peer(self) -> str:
        """Return the connection, in gRPC's form."""
        return self._peer.name

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the request id, and the trace context with which it may begin, in the form of gRPC metadata."""
        found = ((REQUEST_ID_KEY, self.request_id),)
        traceparent = traceparent_of(self.request_id)
        return (*found, (TRACEPARENT, traceparent)) if traceparent else found

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the names of the client's certificate, as gRPC does."""
        return self._peer.auth_context()
