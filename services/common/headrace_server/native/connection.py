"""Server side of one connection of the native protocol: frames, calls, responses. Belongs to the event loop.

A request that waits becomes a task, so that a long poll blocks no other request; the others are answered at once. A
request is rejected at its header, before memory is allocated for its body, if its method is unknown, it is too large,
has no deadline, or its caller has no identity or no free slot; its body is then skipped. With `MAX_REQUESTS` unanswered
requests, refusals that have not left included, further ones wait: some in the receive buffer, in which a CANCEL is
noticed, the others in the client's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import TYPE_CHECKING, Any

import structlog
from headrace.wire.errors import (
    DeadlineRequiredError,
    ErrorCode,
    HeadraceError,
    InternalError,
    InvalidRequestError,
    MetastoreUnavailableError,
    NotAuthorizedError,
    Outcome,
    ShuttingDownError,
    ThrottledError,
    TimedOutError,
    UnauthenticatedError,
    to_detail,
)
from headrace.wire.frames import (
    CLIENT_KINDS,
    MAX_HELLO_BYTES,
    PREFACE,
    STAGE_BYTES,
    Frame,
    FrameError,
    Header,
    Kind,
    frame_head,
)

from headrace_server import calls
from headrace_server.call_spans import begin_call, current_span
from headrace_server.caller_turns import note_call
from headrace_server.calls import CALLER, CURRENT_CALL, certified_names
from headrace_server.identity.callers import ANONYMOUS, Caller
from headrace_server.identity.gate import Access, payer_of, set_access
from headrace_server.identity.quotas import Payer, Use
from headrace_server.native.begun_tasks import begin
from headrace_server.native.call import NativeCall, NativeMethod
from headrace_server.native.framed_connection import FramedConnection
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.places import Place
from headrace_server.requests import PENALTY_SECONDS

if TYPE_CHECKING:
    from headrace_server.native.server import NativeServer, NativeService

log = structlog.get_logger(__name__)

MAX_REQUESTS = 64
"""Unanswered requests of a connection."""
HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""Event of `poll`: the client has ended its side, whatever is unread. Only Linux has it."""


class NativeConnection(FramedConnection):
    """See the module. Owned by its server."""

    def __init__(self, server: NativeServer, service: NativeService) -> None:
        super().__init__(server, CLIENT_KINDS, PREFACE)
        self._server = server
        self._service = service
        self._calls: dict[int, NativeCall] = {}
        self._caller = ANONYMOUS
        self._unproven_session: str | None = None
        """Session that has replaced the one before, and could not be checked yet."""
        self._counted: Payer | None = None
        """User whose quota of connections has this one."""
        self._admitted: tuple[NativeMethod, Place, Access] | None = None
        self._refused: HeadraceError | None = None
        self._refused_method = ""
        self._refusals = 0
        """Refusals at a header that have not left."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        self._uncount()
        self._service.arriving.end(self)
        if self._admitted is not None:
            self._admitted[1].release()
        for call in list(self._calls.values()):
            if call.task is not None:
                call.task.cancel()

    async def answered(self) -> None:
        """Wait until every request is answered."""
        await self._is_idle.wait()

    def look(self, now: float) -> None:
        """As `FramedConnection.look`, and cancel overdue requests."""
        super().look(now)
        for call in self._calls.values():
            if call.deadline < now and call.task is not None and not call.is_overdue:
                call.is_overdue = True
                call.task.cancel()
        if self._is_paused and self._has_hung_up():
            self._transport.abort()

    def _has_hung_up(self) -> bool:
        """Return whether the client has ended the connection, which is not noticed while nothing is read."""
        peer = self._transport.get_extra_info("socket")
        if not HUNG_UP or peer is None:
            return False
        poll = select.poll()
        poll.register(peer.fileno(), HUNG_UP)
        return bool(poll.poll(0))

    def say_goodbye(self) -> None:
        """Announce that no further requests are accepted; later ones are rejected."""
        self.is_retired = True
        if self._is_welcome:
            self._put(frame_head(Kind.GOODBYE))

    # --- frames ---

    def _take_frames(self) -> None:
        if self._is_closing:
            return
        try:
            while self._has_room:
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
        if self._has_room:
            self._set_held(False)
            return
        for header in self._reader.look_ahead():
            if header.kind == Kind.CANCEL:
                self._cancel(header.correlation)
        self._set_held(True, is_full=not self._reader.buffer())

    @property
    def _has_room(self) -> bool:
        """Whether one more request may begin."""
        return len(self._calls) + self._refusals < MAX_REQUESTS

    def _admit(self, header: Header) -> bool:
        """See `FramedConnection`."""
        if header.kind == Kind.HELLO:
            if header.size > MAX_HELLO_BYTES or self._is_welcome:
                raise FrameError("a second Hello" if self._is_welcome else f"a Hello of {header.size} bytes")
            return True
        if not self._is_welcome:
            raise FrameError("the first frame is not a Hello")
        if header.kind == Kind.CANCEL:
            return True
        if header.kind == Kind.SESSION:
            if header.size > MAX_HELLO_BYTES:
                raise FrameError(f"a session token of {header.size} bytes")
            return True
        if header.correlation in self._calls:
            raise FrameError(f"correlation {header.correlation} names a request that is not answered yet")
        try:
            self._admitted = self._admit_request(header)
        except HeadraceError as error:
            self._refused = error
        return self._admitted is not None

    def _identify(self, session: str) -> Caller:
        """Return the caller with a session token, or else the certificate of the connection.

        Raises:
            HeadraceError: As `Identification.caller`, and if the user has as many connections as its quota allows.
        """
        gate = self._service.gate
        caller = gate.identify(session, certified_names(self), "Hello", self.host)
        payer = payer_of(caller, self.host)
        if self._counted != payer:
            if payer is not None:
                gate.quotas.connect(payer)
            self._uncount()
            self._counted = payer
        return caller

    def _change_session(self, session: str) -> None:
        """Change the caller of later requests; raise as `_identify`, which is then called again for each of them."""
        self._unproven_session = session
        self._caller = self._identify(session)
        self._unproven_session = None

    def _uncount(self) -> None:
        if self._counted is not None:
            self._service.gate.quotas.disconnect(self._counted)
            self._counted = None

    def _admit_request(self, header: Header) -> tuple[NativeMethod, Place, Access]:
        method = self._service.methods.get(header.method)
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
        if self._unproven_session is not None:
            self._change_session(self._unproven_session)
        access = self._service.gate.admit(self._caller, method.name, method.row, self.host)
        if header.size > STAGE_BYTES:
            self._service.arriving.begin(self)
        return method, self._service.places.take(method.row.pool, self.host), access

    @property
    def arriving_bytes(self) -> int:
        """Memory of a large frame that has begun to arrive: it is held until the last byte is there."""
        return self._reader.body_bytes

    def _take(self, frame: Frame) -> None:
        header = frame.header
        self._service.arriving.end(self)
        if header.kind == Kind.HELLO:
            self._caller = self._identify(self._read_hello(frame, "the client ").session)
            self._welcome(self._server.name, MAX_REQUESTS)
            self._is_welcome = True
        elif header.kind == Kind.SESSION:
            with contextlib.suppress(MetastoreUnavailableError, ThrottledError):  # They say nothing of the session.
                self._change_session(frame.message.decode(errors="replace"))
        elif header.kind == Kind.CANCEL:
            self._cancel(header.correlation)
        elif self._admitted is None:
            error, self._refused = self._refused, None
            assert error is not None
            if isinstance(error, UnauthenticatedError | NotAuthorizedError):
                self._server.count_refused(self)
            self._refusals += 1
            self._refuse(header.correlation, self._refused_method, error)
        else:
            (method, place, access), self._admitted = self._admitted, None
            if access.is_proven(method.row):
                self._server.note_served(self)
            deadline = self._loop.time() + header.timeout_ms / 1000
            call = self._calls[header.correlation] = NativeCall(self, method, frame, place, access, deadline)
            self.idle_since = None
            self._is_idle.clear()
            call.task = begin(self._serve(call), self._loop)

    # --- calls ---

    def _cancel(self, correlation: int) -> None:
        call = self._calls.get(correlation)
        if call is not None and call.task is not None:
            call.task.cancel()

    async def _serve(self, call: NativeCall) -> None:
        span = begin_call(call.method.path, "headrace", call)
        if span is None:
            await self._answer(call)
        else:
            with span:
                await self._answer(call)

    async def _answer(self, call: NativeCall) -> None:
        CURRENT_CALL.set(call)
        caller = call.access.share_key(self.host)
        CALLER.set(caller)
        set_access(call.access)
        note_call(caller)
        method, correlation = call.method, call.header.correlation
        try:
            self._service.gate.admit_arrived(call.access, method.row)
            request = await self._read(call)
            call.access.charge(Use.REQUEST)
            answer = await method.handle(request, call)
            if call.access.owes(Use.REQUEST):
                await self._hold(call, answer)
        except HeadraceError as error:
            self._refuse(correlation, method.name, error, call)
        except asyncio.CancelledError:
            if not call.is_overdue:
                self._end(call)  # No response is sent.
                raise
            self._refuse(correlation, method.name, TimedOutError("the deadline has passed"), call)
        except Exception as error:
            log.exception("native_call_failed", method=method.name)
            failure = InternalError(
                f"the server met an unexpected {type(error).__name__}; its log has it as request {call.request_id}"
            )
            self._refuse(correlation, method.name, failure, call)
        else:
            if calls.calls_are_traced():
                log.debug("call_answered", method=method.name, peer=self.name, user=calls.user())
            self._send(
                Kind.ANSWER, answer, method=call.header.method, correlation=correlation, done=lambda: self._end(call)
            )

    async def _hold(self, call: NativeCall, answer: OutgoingMessage) -> None:
        """Hold an answer while the user has had more requests than its quota."""
        try:
            await call.access.hold(Use.REQUEST)
        except BaseException:
            if answer.close is not None:
                answer.close()
            raise

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

    def _refuse(self, correlation: int, method: str, error: HeadraceError, call: NativeCall | None = None) -> None:
        code = error.code or ErrorCode.INTERNAL
        self._service.call_errors.labels(method, code.name).inc()
        if call is not None and (span := current_span()) is not None:
            span.refused(code)
        if calls.calls_are_traced():
            log.debug("call_refused", method=method, peer=self.name, code=code.name, reason=error.message)
        error.__traceback__ = error.__cause__ = error.__context__ = None
        head = frame_head(Kind.ERROR, to_detail(error).SerializeToString(), correlation=correlation)
        self._put(head, lambda: self._end(call))

    def _end(self, call: NativeCall | None) -> None:
        """Remove a call whose response was sent, or a refusal; take further frames if there were too many."""
        if call is None:
            self._refusals -= 1
        else:
            call.place.release()
            self._calls.pop(call.header.correlation, None)
            if not self._calls:
                self.idle_since = self._loop.time()
                self._is_idle.set()
        if self._is_held:
            self._loop.call_soon(self._take_frames)
