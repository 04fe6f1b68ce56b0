"""Transport of one client to a directory that this process has open: its calls are answered in this process.

`headrace.embedded.server` answers them with the messages of the services. Handlers may block on the disk: a blocking
client makes calls on its own thread, an asyncio client in threads of the event loop's executor.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.base.operations import BeginCall, Call, InvokeCallback, Pause, StartCall, WaitUntil
from headrace.client.net.call_future import CallFuture
from headrace.client.net.native_calls import Done, MakeRequest
from headrace.embedded.server import DirectoryServer, acquire, release
from headrace.v1 import broker_pb2
from headrace.wire.attachments import splice_produce
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame, Header, Kind, MethodCode


class DirectoryProduce:
    """Produce calls of one client, in place of its native connections."""

    def __init__(self, server: DirectoryServer, what: str) -> None:
        self._server = server
        self._what = what
        self.ports = self
        self.fallbacks = 0
        """Number of calls over gRPC."""
        self.may_fall_back = False
        self.is_closed = False

    def begin(
        self, address: str, make_request: MakeRequest, done: Done, session: str = ""
    ) -> Callable[[], None] | None:
        """See `NativeCaller`; nothing is cancelled that was begun."""
        if self.is_closed:
            raise ClosedError(self._what)
        native = make_request()
        request = broker_pb2.ProduceRequest.FromString(native.message)
        spliced = splice_produce(request, memoryview(b"".join(native.attached)))

        def ended(response: broker_pb2.ProduceResponse | None, error: HeadraceError | None) -> None:
            done(None if response is None else _frame(response.SerializeToString()), error)

        self._server.produce(spliced, ended)
        return _nothing


def _frame(message: bytes) -> Frame:
    header = Header(len(message), Kind.ANSWER, MethodCode.PRODUCE, message_size=len(message))
    return Frame(header, memoryview(message))


def _nothing() -> None:
    """Cancel nothing."""


def share(what: str, config: ClientConfig) -> DirectoryServer:
    """Return the directory that `config` names, for a client of this kind; an Admin makes it if there is none.

    Raises:
        DirectoryInUseError: If another process writes to it, and the client is a producer.
        HeadraceError: As `acquire`.
    """
    server = acquire(config.directory, creates=what == "Admin")
    if what == "Producer":
        try:
            server.check_writable()
        except HeadraceError:
            release(server)
            raise
    return server


class DirectoryConnections:
    """What a blocking client has instead of connections. Any thread."""

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Open the directory that `config` names; raises as `share`."""
        self._what = what
        self._server = share(what, config)
        self._lock = threading.Lock()
        self._is_closed = False
        self.native = DirectoryProduce(self._server, what)
        self.sessions = None

    @property
    def is_open(self) -> bool:
        """Whether there is something to close."""
        return not self._is_closed

    def endpoint(self, address: str) -> Any:
        """Refuse: nothing is called over gRPC."""
        raise ClosedError(self._what)

    def close(self) -> None:
        """Leave the directory, which is closed with its last client. Ctrl-C meanwhile takes effect afterwards."""
        with DeferredKeyboardInterrupt():
            with self._lock:
                was_closed, self._is_closed, self.native.is_closed = self._is_closed, True, True
            if not was_closed:
                self._server.abandon(self, ClosedError(self._what))
                release(self._server)

    def run_step(self, step: Any) -> Any:
        """Run one step of `headrace.client.base.operations`; return its result.

        Raises:
            HeadraceError: If the call failed.
            ClosedError: If the client was closed before or during the step.
        """
        match step:
            case Call():
                self._check_open()
                return self._server.call(step.service, step.method, step.request)
            case StartCall():
                return self._start(step.call)
            case BeginCall():
                self._begin(step.call, step.ended)
                return None
            case Pause():
                time.sleep(step.seconds)
                return None
            case InvokeCallback():
                return step.callback(step.argument)
            case WaitUntil():
                with step.changes:
                    return step.changes.wait_for(step.condition, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(self._what)

    def _begin(self, call: Call, ended: Callable[[Any, Exception | None], None]) -> Callable[[], None]:
        self._check_open()
        return self._server.begin(self, call.service, call.method, call.request, ended)

    def _start(self, call: Call) -> CallFuture:
        future = CallFuture()
        future.begun(self._begin(call, future.ended))
        return future
