"""Native protocol connections, one per broker. Blocking; any thread.

The calling thread sends a request; a thread of the connection receives and processes responses. That thread also
connects, so that no caller waits for it: requests made in the meantime are sent when the connection is open.
"""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from copy import copy
from typing import Any

from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import ClosedError
from headrace.client.net.native_calls import (
    Done,
    MakeRequest,
    NativeCallMethod,
    NativeCalls,
    NativeRequest,
    call_back,
    lost_connection,
    not_connected,
    not_sent,
    timed_out,
)
from headrace.client.net.native_ports import CONNECT_S, STALL_S, NativeCaller
from headrace.client.net.native_sockets import (
    LOOK_S,
    NativeSocket,
    PlainSocket,
    TlsSocket,
    notice_dead_peers,
    shut,
    size_of,
)
from headrace.client.net.security import ChannelSecurity
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame

_log = logging.getLogger("headrace.client")


class NativeClientConnection:
    """One connection. It opens with its first request, and is closed permanently by its first failure."""

    def __init__(self, address: str, client_id: str, connect: Callable[[], NativeSocket], session: str = "") -> None:
        """`connect` opens a socket; raises OSError. `session` is the token to begin with."""
        self._address = address
        self._connect = connect
        self._calls = NativeCalls(address, client_id, session)
        self._lock = threading.Lock()
        """Guards the calls."""
        self._send_lock = threading.Lock()
        """Keeps frames separate and in the order of their requests."""
        self._socket: NativeSocket | None = None
        self._unsent: list[ReadableBuffer] = []
        """Bytes that wait for the connection, or for a broker that accepts none now; changed under the send lock."""
        self._failure: HeadraceError | None = None
        self._closing: HeadraceError | None = None
        self.is_usable = True
        """Whether new requests may use it."""
        self._has_connected = False
        self._look_at = self._progress_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="headrace-native", daemon=True)
        self._thread.start()

    def begin(self, request: NativeRequest, done: Done, session: str = "") -> int:
        """Send a request; `done` is called with its result, on the thread of the connection or on this one."""
        with self._send_lock:
            with self._lock:
                failure = self._failure
                if failure is None:
                    number, parts = self._calls.begin(request, done, time.monotonic(), session)
            if failure is None:
                self._send(parts)
        if failure is not None:
            done(None, not_sent(failure))
            return 0
        return number

    def cancel(self, number: int) -> None:
        """Cancel a request: its `done` is called with an error, unless it was called already."""
        with self._lock:
            done = self._calls.forget(number)
        if done is not None:
            with self._send_lock:
                self._send([self._calls.cancellation(number)])
            done(None, timed_out(self._address))

    def close(self, error: HeadraceError) -> None:
        """End the connection; its requests end with `error`. Calling it again does nothing."""
        self.is_usable = False
        with self._lock:
            self._closing, connection = self._closing or error, self._socket
        if connection is not None:
            shut(connection)

    @property
    def has_ended(self) -> bool:
        """Whether it has failed or was closed: none of its requests waits."""
        return self._failure is not None

    def join(self, timeout: float) -> None:
        """Wait for the thread of the connection, up to `timeout` seconds."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _send(self, parts: list[ReadableBuffer]) -> None:
        """Send a frame, or queue its unaccepted bytes for the thread of the connection. Called under the send lock.

        A broker that hangs therefore does not block its callers. The other thread reports a failure.
        """
        connection = self._socket
        if connection is None or self._unsent:
            self._unsent += parts
            return
        try:
            self._unsent += connection.send(parts, wait=threading.current_thread() is not self._thread)
        except BaseException as error:  # After Ctrl-C it is unknown which bytes were sent.
            self.is_usable = False
            shut(connection)
            if not isinstance(error, OSError):
                raise

    # --- thread of the connection ---

    def _run(self) -> None:
        connection: NativeSocket | None = None
        try:
            connection = self._connect()
            self._greet(connection)
            while self._closing is None:
                self._turn(connection)
            failure = self._closing
        except HeadraceError as error:
            failure = error
        except OSError as error:
            failure = self._failed(error)
        except BaseException as error:  # Nothing else ends the requests of a connection whose thread has ended.
            _log.exception("the connection to %s has failed", self._address)
            failure = self._failed(repr(error))
        self._end(connection, self._closing or failure)

    def _failed(self, cause: OSError | str) -> HeadraceError:
        return (lost_connection if self._has_connected else not_connected)(self._address, cause)

    def _greet(self, connection: NativeSocket) -> None:
        """Wait for the server's greeting, then send the requests queued in the meantime."""
        if connection.send([self._calls.greeting()], wait=True):
            raise TimeoutError("it accepts no bytes")
        deadline = time.monotonic() + CONNECT_S
        while not self._calls.is_welcome:
            if time.monotonic() > deadline or self._closing is not None:
                raise TimeoutError("no Welcome came")
            self._receive(connection, LOOK_S)
        self._has_connected = True
        with self._send_lock:
            self._socket = connection
            self._send_rest(connection)

    def _turn(self, connection: NativeSocket) -> None:
        """Wait briefly, process received bytes, send queued bytes, and end overdue requests."""
        self._receive(connection, LOOK_S)  # Callers do not end the wait, not of an idle connection either.
        now = time.monotonic()
        if self._unsent:
            with self._send_lock:
                self._send_rest(connection)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._end_overdue(now)
        if self._calls.is_ending:
            self.is_usable = False
            if self._calls.is_idle:
                raise ConnectionResetError("the broker closes it")
        if (self._unsent or self._calls.is_within_frame) and now - self._progress_at > STALL_S:
            raise TimeoutError(f"no progress on a frame for {STALL_S:g} s")

    def _receive(self, connection: NativeSocket, seconds: float) -> None:
        if not connection.wait(seconds, to_send=bool(self._unsent) and self._has_connected):
            return
        count = connection.receive_into(self._calls.buffer(), self._calls.missing > 0)
        if count == 0:
            raise ConnectionResetError("the broker ended it")
        if count < 0:
            return
        self._progress_at = time.monotonic()
        with self._lock:
            over = self._calls.received(count)
            begun = self._calls.begun()
        for _, done, frame, error in over:
            call_back(done, frame, error)
        if begun is not None:
            call_back(*begun)
        if self._calls.failure is not None:
            raise self._calls.failure

    def _send_rest(self, connection: NativeSocket) -> None:
        """Send queued bytes as far as they are accepted at once. Called under the send lock."""
        before, self._unsent = self._unsent, connection.send(self._unsent, wait=False)
        if not before or size_of(self._unsent) < size_of(before):
            self._progress_at = time.monotonic()

    def _end_overdue(self, now: float) -> None:
        with self._lock:
            late = self._calls.overdue(now)
        for number, done in late:
            with self._send_lock:
                self._send([self._calls.cancellation(number)])
            call_back(done, None, timed_out(self._address))

    def _end(self, connection: NativeSocket | None, failure: HeadraceError) -> None:
        self.is_usable = False
        with self._lock:
            self._failure = failure
            lost = self._calls.abandon()
        with self._send_lock:
            self._socket = None
            self._unsent.clear()
            if connection is not None:
                connection.connection.close()
        for done in lost:
            call_back(done, None, copy(failure))


class NativeConnections(NativeCaller):
    """Native connections of one client. Owned by its `Connections`; any thread."""

    def __init__(self, what: str, config: ClientConfig, security: ChannelSecurity) -> None:
        super().__init__(config)
        self._what = what
        self._client_id = config.client_id
        self._security = security
        self._lock = threading.Lock()
        self._connections: dict[str, NativeClientConnection] = {}
        self._retired: list[NativeClientConnection] = []
        """Replaced connections, on which requests may still be answered."""
        self._is_closed = False

    def call(
        self, address: str, method: NativeCallMethod, make_request: MakeRequest, session: str = ""
    ) -> tuple[bool, Any]:
        """Make a call and wait for its response; (False, None) means that gRPC must be used.

        Raises:
            HeadraceError: The broker's error, or the reason for which there is no response.
            ClosedError: If the client was closed before or during the call.
        """
        answers: queue.SimpleQueue[tuple[Frame | None, HeadraceError | None]] = queue.SimpleQueue()
        request: NativeRequest | None = None

        def make() -> NativeRequest:
            nonlocal request
            request = make_request()
            return request

        cancel = self.begin(address, make, lambda frame, error: answers.put((frame, error)), session)
        if cancel is None:
            return False, None
        assert request is not None
        try:
            answer = answers.get(timeout=min(request.timeout + 2 * LOOK_S, threading.TIMEOUT_MAX))
        except queue.Empty:  # The thread of the connection still connects: a name may take long to resolve.
            cancel()
            answer = answers.get()
        except BaseException:
            cancel()
            raise
        return self.outcome(address, method, *answer)

    def close(self, timeout: float = 1.0) -> None:
        """Close all connections; pending requests end with ClosedError."""
        with self._lock:
            self._is_closed = True
            connections = [*self._connections.values(), *self._retired]
            self._connections.clear()
            self._retired.clear()
        for connection in connections:
            connection.close(ClosedError(self._what))
        for connection in connections:
            connection.join(timeout)

    def connection(self, native_address: str, session: str = "") -> NativeClientConnection:
        """See `NativeCaller`."""
        with self._lock:
            if self._is_closed:
                raise ClosedError(self._what)
            found = self._connections.get(native_address)
            if found is None or not found.is_usable:
                self.check_session(native_address, session)
                self._retired = [each for each in self._retired if not each.has_ended]
                if found is not None:
                    self._retired.append(found)
                connect = lambda: self._connect(native_address)  # noqa: E731
                found = NativeClientConnection(native_address, self._client_id, connect, session)
                self._connections[native_address] = found
            return found

    def _connect(self, native_address: str) -> NativeSocket:
        host, _, port = native_address.rpartition(":")
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        except (ValueError, OverflowError) as error:  # of the name, or the port
            raise OSError(f"it is no address: {error}") from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_dead_peers(connection)
        context = self._security.context()
        if context is None:
            return PlainSocket(connection)
        try:
            return TlsSocket(connection, context, self._security.server_name or host.strip("[]"), CONNECT_S)
        except BaseException:
            connection.close()
            raise
