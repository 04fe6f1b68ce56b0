"""Produce calls in flight of one producer: over the native protocol if possible, else over gRPC.

Shared by the blocking and the asyncio I/O layer, which make the gRPC calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.client.base.config import ProducerConfig
from headrace.client.net.native_calls import Done, MakeRequest, NotConnectedError, parse_answer
from headrace.client.producer.partition_queue import Request
from headrace.client.producer.produce_rpc import (
    GRACE_MS,
    cancelled_call,
    error_of,
    native_produce_request,
    parse_produced,
)
from headrace.client.producer.sender import Landed
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame

if TYPE_CHECKING:
    from headrace.client.net.sessions import Ended, Sessions


class Cancellable(Protocol):
    """Call that can be cancelled."""

    def cancel(self) -> Any:
        """Cancel the call; does nothing if it has ended."""


class ProduceTransport(Protocol):
    """Transport that is preferred to gRPC: native connections, or a directory of this process."""

    @property
    def ports(self) -> Any:
        """Tells by `may_fall_back` whether a call that could not be sent may use gRPC."""

    def begin(
        self, address: str, make_request: MakeRequest, done: Done, session: str = ""
    ) -> Callable[[], None] | None:
        """See `NativeCaller`."""


class _Flying:
    """Call in flight, or one that waits for the session of its client."""

    __slots__ = ("_cancels", "is_cancelled", "stop_waiting")

    def __init__(self) -> None:
        self._cancels: list[Callable[[], Any]] = []
        """Of each try: one over gRPC may begin before the one over the native protocol that it replaces is kept."""
        self.stop_waiting: Callable[[], None] = _nothing
        """Ends the call if it waits for the session."""
        self.is_cancelled = False

    def begun(self, cancel: Callable[[], Any]) -> None:
        """Keep what cancels the call."""
        self._cancels.append(cancel)
        if self.is_cancelled:
            cancel()

    def cancel(self) -> None:
        """Cancel the call, or do not begin it."""
        self.is_cancelled = True
        for cancel in list(self._cancels):
            cancel()


def _nothing() -> None:
    """Do nothing: the call has not begun."""


class ProduceCalls:
    """Calls of one I/O layer."""

    def __init__(
        self,
        config: ProducerConfig,
        native: ProduceTransport,
        sessions: Sessions | None,
        start_grpc: Callable[[Request, str, Ended], Cancellable],
    ) -> None:
        """`start_grpc` starts a call over gRPC with a token, which may be empty; raises ClosedError."""
        self._config = config
        self._native = native
        self._sessions = sessions
        self._start_grpc = start_grpc
        self._calls: dict[Request, _Flying] = {}

    def __len__(self) -> int:
        """Return the number of calls in flight."""
        return len(self._calls)

    def start(self, request: Request, landed: Landed) -> None:
        """Start a call; `landed` is called when it ends.

        Raises:
            ClosedError: If the connections are closed.
            ConfigError: If the credential would be sent in plain text.
            NotConnectedError: If the broker supports gRPC only, and transport='native'.
        """
        call = self._calls[request] = _Flying()
        attempt, ended = partial(self._begin, request, call), partial(self._ended, request, landed)
        try:
            if self._sessions is None:
                attempt("", ended)
            else:
                timeout = (request.timeout_ms + GRACE_MS) / 1000
                call.stop_waiting = self._sessions.begin(request.address, timeout, attempt, ended)
        except BaseException:
            self._calls.pop(request, None)
            raise

    def cancel(self, request: Request) -> None:
        """Cancel a call; its `landed` is called with an error."""
        call = self._calls.get(request)
        if call is not None:
            call.cancel()

    def stop_waiting(self, request: Request) -> None:
        """End a call that waits for the session of its client: its `landed` is called with the outcome NOT_APPLIED."""
        call = self._calls.get(request)
        if call is not None:
            call.stop_waiting()

    def _begin(self, request: Request, call: _Flying, token: str, ended: Ended) -> None:
        if call.is_cancelled:  # While it waited for the session; its batches may be encoded no longer.
            ended(None, cancelled_call())
            return
        make_request = partial(native_produce_request, request, self._config)
        answered = partial(self._answered, request, call, token, ended)
        cancel = self._native.begin(request.address, make_request, answered, token)
        if cancel is None:
            self._begin_grpc(request, call, token, ended)
        else:
            call.begun(cancel)

    def _begin_grpc(self, request: Request, call: _Flying, token: str, ended: Ended) -> None:
        call.begun(self._start_grpc(request, token, ended).cancel)

    def _answered(
        self,
        request: Request,
        call: _Flying,
        token: str,
        ended: Ended,
        frame: Frame | None,
        error: HeadraceError | None,
    ) -> None:
        """Process the end of a call over the native protocol, on the thread of its connection or on the loop."""
        response = None
        try:
            if isinstance(error, NotConnectedError) and self._native.ports.may_fall_back:
                self._begin_grpc(request, call, token, ended)
                return
            if frame is not None:
                response = parse_answer(parse_produced, frame, request.address)
        except HeadraceError as failure:
            error = failure
        ended(response, error)

    def _ended(self, request: Request, landed: Landed, response: Any, error: Exception | None) -> None:
        self._calls.pop(request, None)
        landed(request, response, error if error is None or isinstance(error, HeadraceError) else error_of(error))
