"""Produce calls in flight of one producer: over the native protocol if possible, else over gRPC.

Shared by the blocking and the asyncio I/O layer, which make the gRPC calls.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from headrace.client.base.config import ProducerConfig
from headrace.client.net.native_calls import NotConnectedError, parse_answer
from headrace.client.net.native_ports import NativeCaller
from headrace.client.producer.partition_queue import Request
from headrace.client.producer.produce_rpc import native_produce_request, parse_produced
from headrace.client.producer.sender import Landed
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame


class Cancellable(Protocol):
    """Call that can be cancelled."""

    def cancel(self) -> Any:
        """Cancel the call; does nothing if it has ended."""


class _NativeCall:
    __slots__ = ("cancel",)

    def __init__(self) -> None:
        self.cancel: Callable[[], None] = _nothing


def _nothing() -> None:
    """Do nothing: the call is being started, and its response will be ignored."""


class ProduceCalls:
    """Calls of one I/O layer."""

    def __init__(
        self, config: ProducerConfig, native: NativeCaller, start_grpc: Callable[[Request, Landed], None]
    ) -> None:
        """`start_grpc` starts a call over gRPC and adds it before it can end; raises ClosedError."""
        self._config = config
        self._native = native
        self._start_grpc = start_grpc
        self._calls: dict[Request, Cancellable] = {}

    def __len__(self) -> int:
        """Return the number of calls in flight."""
        return len(self._calls)

    def start(self, request: Request, landed: Landed) -> None:
        """Start a call; `landed` is called when it ends.

        Raises:
            ClosedError: If the connections are closed.
            NotConnectedError: If the broker supports gRPC only, and transport='native'.
        """
        call = _NativeCall()
        self._calls[request] = call
        try:
            make_request = partial(native_produce_request, request, self._config)
            cancel = self._native.begin(request.address, make_request, partial(self._answered, request, landed))
            if cancel is None:
                self._start_grpc(request, landed)
            else:
                call.cancel = cancel
        except BaseException:
            self.remove(request)
            raise

    def add(self, request: Request, call: Cancellable) -> None:
        """Keep a call over gRPC until `remove`."""
        self._calls[request] = call

    def remove(self, request: Request) -> None:
        """Forget a call that has ended."""
        self._calls.pop(request, None)

    def cancel(self, request: Request) -> None:
        """Cancel a call; its `landed` is called with an error."""
        call = self._calls.get(request)
        if call is not None:
            call.cancel()

    def _answered(self, request: Request, landed: Landed, frame: Frame | None, error: HeadraceError | None) -> None:
        """Process the end of a call over the native protocol, on the thread of its connection or on the loop."""
        response = None
        try:
            if isinstance(error, NotConnectedError) and self._native.ports.may_fall_back:
                self._start_grpc(request, landed)
                return
            if frame is not None:
                response = parse_answer(parse_produced, frame, request.address)
        except HeadraceError as failure:
            error = failure
        self.remove(request)
        landed(request, response, error)
