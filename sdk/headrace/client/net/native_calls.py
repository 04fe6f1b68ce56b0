"""Client side of one native protocol connection: requests out, responses in. Pure; its owner locks.

`headrace.client.net.native` transfers its bytes with a thread, `native_async` on an event loop.
"""

import logging
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from headrace.client.base.operations import Call
from headrace.client.base.request_ids import operation_request_id
from headrace.client.net.bootstrap_client import own_handshake
from headrace.v1 import broker_pb2, errors_pb2, native_pb2, tables_pb2
from headrace.wire.attachments import attach_batches, splice_fetch
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import (
    ErrorCode,
    HeadraceError,
    InternalError,
    Outcome,
    TimedOutError,
    TransportError,
    from_detail,
)
from headrace.wire.frames import (
    CONFIRMED,
    MAX_REQUEST_ID_BYTES,
    MAX_TIMEOUT_MS,
    PREFACE,
    SERVER_KINDS,
    Frame,
    FrameError,
    FrameReader,
    Header,
    Kind,
    MethodCode,
    frame_head,
)
from headrace.wire.releases import CLIENT_NEEDS, check_peer
from headrace.wire.zero_copy import BufferVector, SplicedMessage

_log = logging.getLogger("headrace.client")

Done: TypeAlias = Callable[[Frame | None, HeadraceError | None], None]
"""Called once with the frame of a response, or with the error."""

Over: TypeAlias = tuple[int, Done, Frame | None, HeadraceError | None]
"""Completed request: its number, its `done`, and the arguments of `done`."""

Begun: TypeAlias = tuple[Callable[[Frame], None], Frame]
"""Callback for a response in progress, and its argument."""


class NotConnectedError(TransportError):
    """No connection could be made: nothing was sent, and the call may use gRPC."""


class NativeRequest(NamedTuple):
    """One request."""

    method: MethodCode
    message: bytes
    """Serialised message."""
    attached: Sequence[ReadableBuffer]
    """Batches of the request, in parts."""
    timeout: float
    """Timeout in seconds from the send."""
    request_id: str
    begun: Callable[[Frame], None] | None = None
    """Called at most once, if the response is large: with its message, before its attachments have arrived."""


MakeRequest: TypeAlias = Callable[[], NativeRequest]
"""Creates a request once the native protocol was selected for it."""


class _Waiting:
    """Request without a response yet."""

    __slots__ = ("answer", "begun", "deadline", "done")

    def __init__(self, request: NativeRequest, done: Done, now: float) -> None:
        self.done = done
        self.deadline = now + request.timeout
        self.begun = request.begun
        self.answer: Frame | None = None
        """Response that waits for its CONFIRM or DISCARD."""


class NativeCalls:
    """Requests of one connection, and its received bytes."""

    def __init__(self, address: str, client_id: str, session: str = "") -> None:
        """`address` is used in messages; `session` is the token that the greeting carries, if any."""
        self._address = address
        self._client_id = client_id
        self._session = session
        """Token that the server has."""
        self._reader = FrameReader(SERVER_KINDS, self._admit)
        self._waiting: dict[int, _Waiting] = {}
        self._last = 0
        self.is_welcome = False
        self.is_ending = False
        """Whether the server accepts no more requests on this connection."""
        self.failure: HeadraceError | None = None
        """Reason to close the connection: the server violated the protocol, or refused this client."""

    def greeting(self) -> bytes:
        """Return the first bytes of the connection."""
        hello = native_pb2.Hello(client_id=self._client_id, handshake=own_handshake(), session=self._session)
        return PREFACE + frame_head(Kind.HELLO, hello.SerializeToString())

    def begin(
        self, request: NativeRequest, done: Done, now: float, session: str = ""
    ) -> tuple[int, list[ReadableBuffer]]:
        """Return the number of a request, and its bytes in order; `done` is called with its result.

        `session` is the token of the request; a new one is sent before it.
        """
        self._last += 1
        self._waiting[self._last] = _Waiting(request, done, now)
        head = frame_head(
            Kind.REQUEST,
            request.message,
            method=request.method,
            correlation=self._last,
            attached=sum(map(len, request.attached)),
            timeout_ms=max(1, round(min(request.timeout * 1000, MAX_TIMEOUT_MS))),
            request_id=request.request_id.encode()[:MAX_REQUEST_ID_BYTES],
        )
        if session == self._session:
            return self._last, [head, *request.attached]
        self._session = session
        return self._last, [frame_head(Kind.SESSION, session.encode()), head, *request.attached]

    def forget(self, number: int) -> Done | None:
        """Stop waiting for a response; return its `done`, or `None` if that was called."""
        waiting = self._waiting.pop(number, None)
        return None if waiting is None else waiting.done

    def cancellation(self, number: int) -> bytes:
        """Return the frame that cancels a request."""
        return frame_head(Kind.CANCEL, correlation=number)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its response."""
        return not self._waiting

    def overdue(self, now: float) -> list[tuple[int, Done]]:
        """Remove overdue requests; return their numbers and the callbacks for their error."""
        late = [number for number, waiting in self._waiting.items() if waiting.deadline <= now]
        return [(number, self._waiting.pop(number).done) for number in late]

    def abandon(self) -> list[Done]:
        """Remove every request after the connection was lost."""
        found = [waiting.done for waiting in self._waiting.values()]
        self._waiting.clear()
        return found

    # --- received bytes ---

    @property
    def missing(self) -> int:
        """Number of missing bytes of a large response."""
        return self._reader.missing

    @property
    def is_within_frame(self) -> bool:
        """Whether a part of a frame has arrived, of a response that nothing waits for, too."""
        return not self._reader.is_between_frames

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._reader.buffer()

    def received(self, count: int) -> list[Over]:
        """Process received bytes; return the completed requests, whose callbacks must be called without a lock.

        If `failure` is set afterwards, the connection must be closed.
        """
        self._reader.received(count)
        over: list[Over] = []
        try:
            while (frame := self._reader.next_frame()) is not None:
                self._take(frame, over)
        except FrameError as error:
            make_error = lost_connection if self.is_welcome else not_connected
            self.failure = make_error(self._address, error)
        except HeadraceError as error:
            self.failure = error
        return over

    def begun(self) -> Begun | None:
        """Return the callback of the large response in progress once, after its message has arrived; else `None`."""
        frame = self._reader.begun
        waiting = None if frame is None else self._waiting.get(frame.header.correlation)
        if frame is None or waiting is None or waiting.begun is None or frame.header.kind != Kind.ANSWER:
            return None
        callback, waiting.begun = waiting.begun, None
        return callback, frame

    def _take(self, frame: Frame, over: list[Over]) -> None:
        if frame.header.kind == Kind.WELCOME:
            self._welcome(frame)
        elif frame.header.kind == Kind.GOODBYE:
            self.is_ending = True
        elif frame.header.kind == Kind.ERROR and not frame.header.correlation:
            raise self._connection_error(_error_of(frame))
        else:
            self._answered(frame, over)

    def _connection_error(self, error: HeadraceError) -> HeadraceError:
        """Return the error of all requests after an error of the connection: the server may have applied some."""
        if not self.is_welcome:
            # The user has as many connections as its quota allows: gRPC is not one of them.
            return not_connected(self._address, error.message) if error.code == ErrorCode.THROTTLED else error
        if error.code in (ErrorCode.UNAUTHENTICATED, ErrorCode.THROTTLED):
            # A new connection begins with the session of then, and its quota applies to that.
            return lost_connection(self._address, error.message)
        error.outcome = Outcome.UNKNOWN
        return error

    def _admit(self, header: Header) -> bool:
        """Skip responses of abandoned requests."""
        if not self.is_welcome and header.kind not in (Kind.WELCOME, Kind.ERROR):
            raise FrameError("the first frame is not a Welcome")
        return header.correlation == 0 or header.correlation in self._waiting

    def _welcome(self, frame: Frame) -> None:
        if self.is_welcome:
            raise FrameError("a second Welcome")
        try:
            welcome = native_pb2.Welcome.FromString(frame.message)
        except DecodeError as error:
            raise FrameError("a Welcome that is no such message") from error
        said = welcome.handshake
        check_peer(f"{welcome.answered_by} at {self._address}", said.release, said.capabilities, CLIENT_NEEDS)
        self.is_welcome = True

    def _answered(self, frame: Frame, over: list[Over]) -> None:
        number, kind = frame.header.correlation, frame.header.kind
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        if kind == Kind.ANSWER and frame.header.flags & CONFIRMED:
            waiting.answer = frame
            return
        if kind == Kind.ERROR:
            over.append((number, waiting.done, None, _error_of(frame)))
        elif kind == Kind.ANSWER:
            over.append((number, waiting.done, frame, None))
        elif waiting.answer is None:
            raise FrameError(f"a frame of kind {kind} without its answer")
        elif kind == Kind.CONFIRM:
            over.append((number, waiting.done, waiting.answer, None))
        else:
            error = TransportError(
                f"the log changed while {self._address} sent it", outcome=Outcome.NOT_APPLIED, retriable=True
            )
            over.append((number, waiting.done, None, error))
        del self._waiting[number]


def call_back(callback: Callable[..., None], *arguments: Any) -> None:
    """Call a `done` or a `begun`; log its exception, which concerns neither the connection nor its other requests."""
    try:
        callback(*arguments)
    except Exception:
        _log.exception("the end of a request could not be processed")


def lost_connection(address: str, cause: BaseException | str) -> TransportError:
    """Return the error of requests on a lost connection; not raised. Their outcome is unknown."""
    return TransportError(
        f"the connection to {address} is lost: {cause}", outcome=Outcome.UNKNOWN, retriable=True,
        action="Try again or elsewhere.",
    )  # fmt: skip


def not_sent(failure: HeadraceError) -> HeadraceError:
    """Return the error of a request that began after the connection had failed; not raised."""
    error = copy(failure)
    error.outcome = Outcome.NOT_APPLIED
    return error


def not_connected(address: str, cause: BaseException | str) -> NotConnectedError:
    """Return the error of requests that were not sent; not raised."""
    return NotConnectedError(f"{address} cannot be reached: {cause}", outcome=Outcome.NOT_APPLIED, retriable=True)


def timed_out(address: str) -> TimedOutError:
    """Return the error of a request that timed out or was cancelled; not raised."""
    return TimedOutError(f"{address} did not answer", outcome=Outcome.UNKNOWN, retriable=True)


class NativeCallMethod(NamedTuple):
    """Method of a `Call` that can use the native protocol."""

    method: MethodCode
    parse: Callable[[Frame], Any]
    parse_begun: Callable[[Frame], Any] | None = None
    """Parses the message of a response whose attachments have not arrived."""
    pack: Callable[[Any], tuple[bytes, Sequence[ReadableBuffer]]] | None = None
    """Returns the message and the attachments of a request that has some."""


def _fetched(frame: Frame) -> Any:
    return splice_fetch(broker_pb2.FetchResponse.FromString(frame.message), frame.attachments)


def _produced(request: SplicedMessage) -> tuple[bytes, Sequence[ReadableBuffer]]:
    message = broker_pb2.ProduceRequest()
    message.CopyFrom(request.message)
    attached = attach_batches(message, [[BufferVector([batch]) for batch in batches] for batches in request.batches])
    return message.SerializeToString(), attached


NATIVE_METHODS = {
    ("broker", "FetchZeroCopy"): NativeCallMethod(
        MethodCode.FETCH, _fetched, lambda frame: broker_pb2.FetchResponse.FromString(frame.message)
    ),
    ("broker", "ProduceZeroCopy"): NativeCallMethod(
        MethodCode.PRODUCE, lambda frame: broker_pb2.ProduceResponse.FromString(frame.message), pack=_produced
    ),
    ("broker", "ListOffsets"): NativeCallMethod(
        MethodCode.LIST_OFFSETS, lambda frame: broker_pb2.ListOffsetsResponse.FromString(frame.message)
    ),
    ("tables", "GetRows"): NativeCallMethod(
        MethodCode.GET_ROWS, lambda frame: tables_pb2.GetRowsResponse.FromString(frame.message)
    ),
    ("tables", "WriteRow"): NativeCallMethod(
        MethodCode.WRITE_ROW, lambda frame: tables_pb2.WriteRowResponse.FromString(frame.message)
    ),
}
"""By service and method of a `Call`; producers start their calls themselves."""


def native_request(method: NativeCallMethod, call: Call, *, is_traced: bool = False) -> NativeRequest:
    """Return the request of a call; `is_traced` as for `operation_request_id`."""
    attached: Sequence[ReadableBuffer] = ()
    begun = None
    if method.pack is not None:
        message, attached = method.pack(call.request)
    else:
        message = call.request.SerializeToString()
    if method.parse_begun is not None and call.begun is not None:
        begun = partial(_announce, method.parse_begun, call.begun)
    request_id = operation_request_id(is_traced=is_traced)
    return NativeRequest(method.method, message, attached, call.timeout, request_id, begun)


def _announce(parse: Callable[[Frame], Any], begun: Callable[[Any], None], frame: Frame) -> None:
    try:
        response = parse(frame)
    except DecodeError:
        return  # Parsing the whole response reports it.
    begun(response)


def parse_answer(parse: Callable[[Frame], Any], frame: Frame, address: str) -> Any:
    """Parse a response.

    Raises:
        InternalError: If the frame is not a valid response.
    """
    try:
        return parse(frame)
    except (DecodeError, ValueError) as error:
        raise InternalError(f"{address} sent an invalid response: {error}", outcome=Outcome.UNKNOWN) from error


def _error_of(frame: Frame) -> HeadraceError:
    try:
        return from_detail(errors_pb2.ErrorDetail.FromString(frame.message))
    except DecodeError as error:
        raise FrameError("an error that is no such message") from error
