"""Transport of one client to a directory that this process has open: its calls are answered in this process.

`headrace.embedded.server` answers them with the messages of the services. Handlers may block on the disk: a blocking
client makes calls on its own thread, an asyncio client in threads of the event loop's executor.
"""

import contextlib
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
from headrace.embedded.server import CHANGING_CALLS, DirectoryServer, OpenMode, acquire, release
from headrace.v1 import broker_pb2
from headrace.wire.attachments import splice_produce
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame, Header, Kind, MethodCode


class DirectoryProduce:
    """Produce calls of one client, in place of its native connections."""

    def __init__(self, directory: "UsedDirectory", what: str) -> None:
        self._directory = directory
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

        self._directory.first.produce(spliced, ended)
        return _nothing


def _frame(message: bytes) -> Frame:
    header = Header(len(message), Kind.ANSWER, MethodCode.PRODUCE, message_size=len(message))
    return Frame(header, memoryview(message))


def _nothing() -> None:
    """Cancel nothing."""


def reading_mode(config: ClientConfig) -> OpenMode:
    """Return how a client that changes nothing opens the directory that `config` names."""
    return OpenMode.READ if config.is_directory_read_only else OpenMode.ANY


class UsedDirectory:
    """Directory as one client uses it: the client reads it, and becomes its writer when it changes something.

    So a process that only reads keeps none from writing. A producer writes from the beginning. Thread-safe.
    """

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Open the directory that `config` names, for a client of this kind; an Admin makes it if there is none.

        Raises:
            DirectoryInUseError: If the client is a producer, and another process writes or `config` is read only.
            HeadraceError: As `acquire`.
        """
        self._what = what
        self._path = config.directory
        self._is_read_only = config.is_directory_read_only
        self._lock = threading.Lock()
        """Held while the writer is opened, and while all are closed."""
        self._is_closed = False
        writes = what == "Producer" and not self._is_read_only
        mode = OpenMode.WRITE if writes else reading_mode(config)
        self.first = acquire(self._path, mode, creates=what == "Admin")
        """What answers until something is changed."""
        self._servers = [self.first]
        if what == "Producer":
            try:
                self.first.check_writable()
            except HeadraceError:
                release(self.first)
                raise

    def server(self, service: str, method: str) -> DirectoryServer:
        """Return what answers a call.

        Raises:
            DirectoryInUseError: If the call changes something, and another process writes.
            ClosedError: If the client is closed.
            HeadraceError: As `acquire`.
        """
        server = self._servers[-1]
        if server.is_writer or self._is_read_only or (service, method) not in CHANGING_CALLS:
            return server
        with self._lock:
            if self._is_closed:
                raise ClosedError(self._what)
            if not self._servers[-1].is_writer:
                self._servers.append(acquire(self._path, OpenMode.WRITE))
            return self._servers[-1]

    def abandon(self, owner: object) -> None:
        """End the waiting calls of the client with ClosedError."""
        for server in list(self._servers):
            server.abandon(owner, ClosedError(self._what))

    def leave(self, owner: object) -> None:
        """End the client's calls and leave the directory, which is closed with its last client; again does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self.abandon(owner)
                with contextlib.ExitStack() as leaving:
                    for server in self._servers:
                        leaving.callback(release, server)


class DirectoryConnections:
    """What a blocking client has instead of connections. Any thread."""

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Open the directory that `config` names; raises as `UsedDirectory`."""
        self._what = what
        self._directory = UsedDirectory(what, config)
        self._is_closed = False
        self.native = DirectoryProduce(self._directory, what)
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
            self._is_closed = self.native.is_closed = True
            self._directory.leave(self)

    def run_step(self, step: Any) -> Any:
        """Run one step of `headrace.client.base.operations`; return its result.

        Raises:
            HeadraceError: If the call failed.
            ClosedError: If the client was closed before or during the step.
        """
        match step:
            case Call():
                self._check_open()
                server = self._directory.server(step.service, step.method)
                return server.call(step.service, step.method, step.request)
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
        server = self._directory.server(call.service, call.method)
        return server.begin(self, call.service, call.method, call.request, ended)

    def _start(self, call: Call) -> CallFuture:
        future = CallFuture()
        future.begun(self._begin(call, future.ended))
        return future
