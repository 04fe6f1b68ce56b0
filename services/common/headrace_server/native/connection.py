"""Server side of one connection of the native protocol: frames, calls, responses. Belongs to the event loop.

Each request is a task, so that a long poll blocks no other request, and responses are sent when they are ready. A
request is rejected at its header, before memory is allocated for its body, if its method is unknown, it is too large,
has no deadline, or its caller has no free slot; its body is then skipped. With `MAX_REQUESTS` unanswered requests the
connection reads no more, and the client's socket fills up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import structlog
from google.protobuf.message import DecodeError
from headrace.v1 import native_pb2
from headrace.wire.errors import (
    DeadlineRequiredError,
    ErrorCode,
    HeadraceError,
    InternalError,
    InvalidRequestError,
    Outcome,
    ShuttingDownError,
    ThrottledError,
    TimedOutError,
    to_detail,
)
from headrace.wire.frames import (
    CLIENT_KINDS,
    CONFIRMED,
    MAX_HELLO_BYTES,
    PREFACE,
    STAGE_BYTES,
    Frame,
    FrameError,
    FrameReader,
    Header,
    Kind,
    frame_head,
)

from headrace_server import calls
from headrace_server.caller_turns import note_call
from headrace_server.calls import CALLER, CURRENT_CALL
from headrace_server.handshakes import check_handshake, own_handshake
from headrace_server.native.answers import AnswerQueue
from headrace_server.native.call import NativeAnswer, NativeCall, NativeMethod
from headrace_server.places import Place, caller
from headrace_server.requests import PENALTY_SECONDS

if TYPE_CHECKING:
    from headrace_server.native.server import NativeServer

log = structlog.get_logger(__name__)

MAX_REQUESTS = 64
"""Maximum unanswered requests of a connection."""
HELLO_SECONDS = 5.0
"""Timeout of the first frame after the connection is made."""
FRAME_SECONDS = 30.0
"""Timeout of a whole frame after its first byte."""
STALL_SECONDS = 30.0
"""A client that accepts no data of a response for this time is disconnected."""


class NativeConnection(asyncio.BufferedProtocol):
    """Connection, owned by its server; see the module."""

    def __init__(self, server: NativeServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(CLIENT_KINDS, self._admit, PREFACE)
        self._transport = cast("asyncio.Transport", None)
        self._answers = cast("AnswerQueue", None)
        self._calls: dict[int, NativeCall] = {}
        self._admitted: tuple[NativeMethod, Place] | None = None
        self._refused: HeadraceError | None = None
        self._refused_method = ""
        self._is_welcome = False
        self._is_paused = False
        self._frame_since = self._loop.time()
        self.is_retired = False
        """Whether it accepts no more requests."""
        self.idle_since: float | None = self._frame_since
        """When the last request was answered; `None` while requests are unanswered."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.certified_names: dict[str, list[bytes]] = {}
        self.name = ""
        self.host = ""

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername") or ("", 0)
        self.host = caller(address[0])
        family = "ipv6:[{}]:{}" if ":" in address[0] else "ipv4:{}:{}"
        self.name = family.format(address[0], address[1])
        self._answers = AnswerQueue(self._transport, self._server.executor, self._server.metrics.sent_bytes.inc)
        self._answers.begin()
        if not self._server.enter(self):
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._reader.is_between_frames:
            self._frame_since = self._loop.time()
        self._reader.received(nbytes)
        self._take_frames()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._answers.pause()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._answers.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._server.leave(self)
        self._answers.close()
        if self._admitted is not None:
            self._admitted[1].release()
        for call in list(self._calls.values()):
            if call.task is not None:
                call.task.cancel()

    # --- for the server ---

    async def answered(self) -> None:
        """Wait until every request is answered."""
        await self._is_idle.wait()

    def look(self, now: float) -> None:
        """Enforce the timeouts: handshake, partial frame, client that does not read, overdue request."""
        if not self._is_welcome and now - self._frame_since > HELLO_SECONDS:
            self.end("no Hello came")
        elif not self._is_paused and not self._reader.is_between_frames and now - self._frame_since > FRAME_SECONDS:
            self.end("half a frame came")
        elif self._answers.stalled_seconds(now) > STALL_SECONDS:
            self.end("it takes no answer")
        for call in self._calls.values():
            if call.deadline < now and call.task is not None and not call.is_overdue:
                call.is_overdue = True
                call.task.cancel()

    def end(self, why: str) -> None:
        """Close the connection at once."""
        self._server.metrics.broken.inc()
        log.info("native_connection_ended", peer=self.name, cause=why)
        self._transport.abort()

    def say_goodbye(self) -> None:
        """Announce that no further requests are accepted; later ones are rejected."""
        self.is_retired = True
        if self._is_welcome:
            self._answers.put([frame_head(Kind.GOODBYE)], _nothing)

    def close(self) -> None:
        """Close the connection after the transport's buffer is sent."""
        self._transport.close()

    # --- frames ---

    def _take_frames(self) -> None:
        if self._transport.is_closing():
            return
        try:
            while len(self._calls) < MAX_REQUESTS:
                frame = self._reader.next_frame()
                if frame is None:
                    break
                self._take(frame)
                self._frame_since = self._loop.time()
        except FrameError as error:
            self._break(InvalidRequestError(f"{error}", action="Speak the native protocol to this port, or use gRPC."))
            return
        except HeadraceError as error:  # from the handshake
            self._break(error)
            return
        is_full = len(self._calls) >= MAX_REQUESTS
        if is_full != self._is_paused:
            self._is_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _break(self, error: HeadraceError) -> None:
        """Send an error of the connection, and close it."""
        self._server.metrics.broken.inc()
        log.info("native_connection_broken", peer=self.name, cause=error.message)
        self._answers.put([frame_head(Kind.ERROR, to_detail(error).SerializeToString())], _nothing)
        self._transport.close()

    def _admit(self, header: Header) -> bool:
        """Check the header of a frame; return whether to receive its body."""
        if header.kind == Kind.HELLO:
            if header.size > MAX_HELLO_BYTES or self._is_welcome:
                raise FrameError("a second Hello" if self._is_welcome else f"a Hello of {header.size} bytes")
            return True
        if not self._is_welcome:
            raise FrameError("the first frame is not a Hello")
        if header.kind == Kind.CANCEL:
            return True
        if header.correlation in self._calls:
            raise FrameError(f"correlation {header.correlation} names a request that is not answered yet")
        try:
            self._admitted = self._admit_request(header)
        except HeadraceError as error:
            self._refused = error
        return self._admitted is not None

    def _admit_request(self, header: Header) -> tuple[NativeMethod, Place]:
        method = self._server.methods.get(header.method)
        self._refused_method = str(header.method) if method is None else method.name
        if method is None:
            raise InvalidRequestError(
                f"method {header.method} is not served over the native protocol", action="Call it over gRPC."
            )
        if header.timeout_ms == 0:
            raise DeadlineRequiredError("the request has no deadline")
        attached = header.size - header.request_id_size - header.message_size
        if attached and method.splice is None:
            raise InvalidRequestError(
                f"{attached} bytes are attached to the request, and {method.name} takes no attachments",
                action="Send the message alone.",
            )
        if header.size > method.row.max_bytes:
            raise InvalidRequestError(
                f"the request has {header.size} bytes, and {method.name} takes at most {method.row.max_bytes}",
                action="Send several smaller requests.",
            )
        if self.is_retired:
            raise ShuttingDownError("the connection is ending", outcome=Outcome.NOT_APPLIED)
        if header.size > STAGE_BYTES:
            self._server.begin_arriving(self)
        return method, self._server.places.take(method.row.pool, self.host)

    @property
    def arriving_bytes(self) -> int:
        """Bytes of a large frame that have not arrived yet."""
        return self._reader.missing

    def _take(self, frame: Frame) -> None:
        header = frame.header
        self._server.end_arriving(self)
        if header.kind == Kind.HELLO:
            self._greet(frame)
        elif header.kind == Kind.CANCEL:
            cancelled = self._calls.get(header.correlation)
            if cancelled is not None and cancelled.task is not None:
                cancelled.task.cancel()
        elif self._admitted is None:
            error, self._refused = self._refused, None
            assert error is not None
            self._refuse(header.correlation, self._refused_method, error)
        else:
            (method, place), self._admitted = self._admitted, None
            deadline = self._loop.time() + header.timeout_ms / 1000
            call = self._calls[header.correlation] = NativeCall(self, method, frame, place, deadline)
            self.idle_since = None
            self._is_idle.clear()
            call.task = self._loop.create_task(self._serve(call))
            call.task.add_done_callback(lambda task: self._end(call) if task.cancelled() else None)

    def _greet(self, frame: Frame) -> None:
        try:
            hello = native_pb2.Hello.FromString(frame.message)
        except DecodeError as error:
            raise FrameError("a Hello that is no such message") from error
        check_handshake(f"the client {hello.client_id[:64]!r} at {self.name}", hello.handshake)
        self.certified_names = _names_of(self._transport.get_extra_info("peercert"))
        self._is_welcome = True
        welcome = native_pb2.Welcome(
            answered_by=self._server.name, handshake=own_handshake(), max_requests=MAX_REQUESTS
        )
        self._answers.put([frame_head(Kind.WELCOME, welcome.SerializeToString())], _nothing)

    # --- calls ---

    async def _serve(self, call: NativeCall) -> None:
        CURRENT_CALL.set(call)
        CALLER.set(self.host)
        note_call(self.host)
        method, correlation = call.method, call.header.correlation
        try:
            answer = await method.handle(await self._read(call), call)
        except HeadraceError as error:
            self._refuse(correlation, method.name, error, call)
        except asyncio.CancelledError:
            if not call.is_overdue:
                raise  # No response is sent. A task cancelled before it starts does not get here.
            self._refuse(correlation, method.name, TimedOutError("the deadline has passed"), call)
        except Exception as error:
            log.exception("native_call_failed", method=method.name)
            failure = InternalError(
                f"the server met an unexpected {type(error).__name__}; its log has it as request {call.request_id}"
            )
            self._refuse(correlation, method.name, failure, call)
        else:
            if calls.calls_are_traced():
                log.debug("call_answered", method=method.name, peer=self.name, principal=calls.principal())
            self._answer(call, answer)

    async def _read(self, call: NativeCall) -> Any:
        """Parse a request; raise as `RequestReader`."""
        method, frame = call.method, call.take_frame()
        try:
            request = method.reader.read(frame.message, self.host)
        except ThrottledError as error:
            error.__traceback__ = None  # It references the frame.
            refused = error
            del frame
            await asyncio.sleep(PENALTY_SECONDS)
            raise refused from None
        return request if method.splice is None else method.splice(request, frame.attachments)

    def _answer(self, call: NativeCall, answer: NativeAnswer) -> None:
        correlation, is_valid = call.header.correlation, answer.is_valid
        head = frame_head(
            Kind.ANSWER,
            answer.message,
            method=call.header.method,
            flags=0 if is_valid is None else CONFIRMED,
            correlation=correlation,
            attached=sum(map(len, answer.attached)),
        )

        def verdict() -> bytes:
            return frame_head(Kind.CONFIRM if is_valid is None or is_valid() else Kind.DISCARD, correlation=correlation)

        def done() -> None:
            if answer.close is not None:
                answer.close()
            self._end(call)

        self._answers.put([head, *answer.attached], done, None if is_valid is None else verdict)

    def _refuse(self, correlation: int, method: str, error: HeadraceError, call: NativeCall | None = None) -> None:
        code = error.code or ErrorCode.INTERNAL
        self._server.call_errors.labels(method, code.name).inc()
        if calls.calls_are_traced():
            log.debug("call_refused", method=method, peer=self.name, code=code.name, reason=error.message)
        error.__traceback__ = error.__cause__ = error.__context__ = None
        head = frame_head(Kind.ERROR, to_detail(error).SerializeToString(), correlation=correlation)
        self._answers.put([head], _nothing if call is None else lambda: self._end(call))

    def _end(self, call: NativeCall) -> None:
        """Remove a call whose response was sent; resume reading if there were too many."""
        call.place.release()
        self._calls.pop(call.header.correlation, None)
        if not self._calls:
            self.idle_since = self._loop.time()
            self._is_idle.set()
        if self._is_paused:
            self._loop.call_soon(self._take_frames)


def _nothing() -> None:
    """Do nothing when a response was sent."""


def _names_of(certificate: dict[str, Any] | None) -> dict[str, list[bytes]]:
    """Return the names of a certificate in the form of gRPC's `auth_context`."""
    if not certificate:
        return {}
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ())]
    return {
        "x509_common_name": [name.encode() for name in common],
        "x509_subject_alternative_name": [name.encode() for name in others],
    }
