"""Native protocol connections for asyncio, one per broker; see `headrace.client.net.native`. One event loop."""

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

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
from headrace.client.net.native_sockets import notice_dead_peers
from headrace.client.net.security import ChannelSecurity
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame

MAX_JOINED_BYTES = 16 << 10
"""Size up to which a copy of a part costs less than a system call."""


class AsyncNativeClientConnection(asyncio.BufferedProtocol):
    """One connection. It opens with its first request, and is closed permanently by its first failure."""

    def __init__(self, address: str, client_id: str, session: str = "") -> None:
        """`session` is the token to begin with."""
        self._address = address
        self._calls = NativeCalls(address, client_id, session)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._backlog: list[list[ReadableBuffer]] = []
        self._failure: HeadraceError | None = None
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._received_at = self._loop.time()
        self.is_usable = True
        """Whether new requests may use it."""

    def start(self, connect: Callable[[asyncio.BufferedProtocol], Any]) -> None:
        """Start connecting; `connect` awaits a transport for this protocol."""
        self._connecting = self._loop.create_task(self._open(connect))

    async def _open(self, connect: Callable[[asyncio.BufferedProtocol], Any]) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await connect(self)
        except TimeoutError:
            self._end(not_connected(self._address, "no connection in time"))
            return
        except Exception as error:  # of the network, of TLS, or an address that is none
            self._end(not_connected(self._address, error))
            return
        self._timers[0] = self._loop.call_later(CONNECT_S, self._not_welcome)

    def _not_welcome(self) -> None:
        if not self._calls.is_welcome:
            self._end(not_connected(self._address, "no Welcome came"))

    def begin(self, request: NativeRequest, done: Done, session: str = "") -> int:
        """Send a request; `done` is called with its result, on the loop."""
        if self._failure is not None:
            done(None, not_sent(self._failure))
            return 0
        number, parts = self._calls.begin(request, done, self._loop.time(), session)
        self._timers[number] = self._loop.call_later(request.timeout, self._overdue, number)
        if self._calls.is_welcome:
            self._send(parts)
        else:
            self._backlog.append(parts)
        return number

    def cancel(self, number: int) -> None:
        """Cancel a request: its `done` is called with an error, unless it was called already."""
        done = self._calls.forget(number)
        self._stop_timer(number)
        if done is None:
            return
        if self._calls.is_welcome:
            self._send([self._calls.cancellation(number)])
        else:
            self._backlog.append([self._calls.cancellation(number)])
        done(None, timed_out(self._address))

    def _overdue(self, number: int) -> None:
        """End a request without a response, and a connection that has stopped within a frame."""
        self.cancel(number)
        if self._calls.is_within_frame and self._loop.time() - self._received_at > STALL_S:
            self._end(lost_connection(self._address, f"no progress on a frame for {STALL_S:g} s"))

    def close(self, error: HeadraceError) -> None:
        """End the connection; its requests end with `error`. Calling it again does nothing."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._end(error)

    @property
    def has_ended(self) -> bool:
        """Whether it has failed or was closed: none of its requests waits."""
        return self._failure is not None

    def _send(self, parts: Sequence[ReadableBuffer]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        small: list[ReadableBuffer] = []
        for part in parts:
            if len(part) <= MAX_JOINED_BYTES:
                small.append(part)
                continue
            if small:
                self._transport.write(b"".join(small))
                small.clear()
            self._transport.write(part)
        if small:
            self._transport.write(b"".join(small))

    def _end(self, failure: HeadraceError) -> None:
        self.is_usable = False
        if self._failure is not None:
            return
        self._failure = failure
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._backlog.clear()
        if self._transport is not None:
            self._transport.abort()
        for done in self._calls.abandon():
            call_back(done, None, copy(failure))

    def _stop_timer(self, number: int) -> None:
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()

    # --- asyncio protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            notice_dead_peers(connection)
        self._transport.write(self._calls.greeting())

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._calls.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self._received_at = self._loop.time()
        was_welcome = self._calls.is_welcome
        over = self._calls.received(nbytes)
        if self._calls.is_welcome and not was_welcome:
            self._stop_timer(0)
            backlog, self._backlog = self._backlog, []
            for parts in backlog:
                self._send(parts)
        if self._calls.is_ending:
            self.is_usable = False
        for number, done, frame, failure in over:
            self._stop_timer(number)
            call_back(done, frame, failure)
        begun = self._calls.begun()
        if begun is not None:
            call_back(*begun)
        if self._calls.failure is not None:
            self._end(self._calls.failure)
        elif self._calls.is_ending and self._calls.is_idle:
            self._end(lost_connection(self._address, "the broker closes it"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        cause = exc or "the broker ended it"
        is_welcome = self._calls.is_welcome
        self._end(lost_connection(self._address, cause) if is_welcome else not_connected(self._address, cause))


class AsyncNativeConnections(NativeCaller):
    """Native connections of one client. Owned by its `AsyncConnections`."""

    def __init__(self, what: str, config: ClientConfig, security: ChannelSecurity) -> None:
        super().__init__(config)
        self._what = what
        self._client_id = config.client_id
        self._security = security
        self._connections: dict[str, AsyncNativeClientConnection] = {}
        self._retired: list[AsyncNativeClientConnection] = []
        """Replaced connections, on which requests may still be answered."""
        self._is_closed = False

    async def call(
        self, address: str, method: NativeCallMethod, make_request: MakeRequest, session: str = ""
    ) -> tuple[bool, Any]:
        """See `NativeConnections.call`."""
        answered: asyncio.Future[tuple[Frame | None, HeadraceError | None]]
        answered = asyncio.get_running_loop().create_future()

        def done(frame: Frame | None, error: HeadraceError | None) -> None:
            if not answered.done():
                answered.set_result((frame, error))

        cancel = self.begin(address, make_request, done, session)
        if cancel is None:
            return False, None
        try:
            frame, error = await answered
        except asyncio.CancelledError:
            cancel()
            raise
        return self.outcome(address, method, frame, error)

    def close(self) -> None:
        """Close all connections; pending requests end with ClosedError."""
        self._is_closed = True
        for connection in (*self._connections.values(), *self._retired):
            connection.close(ClosedError(self._what))
        self._connections.clear()
        self._retired.clear()

    def connection(self, native_address: str, session: str = "") -> AsyncNativeClientConnection:
        """See `NativeCaller`."""
        if self._is_closed:
            raise ClosedError(self._what)
        found = self._connections.get(native_address)
        if found is None or not found.is_usable:
            self.check_session(native_address, session)
            self._retired = [each for each in self._retired if not each.has_ended]
            if found is not None:
                self._retired.append(found)
            found = AsyncNativeClientConnection(native_address, self._client_id, session)
            self._connections[native_address] = found
            found.start(partial(self._connect, native_address))
        return found

    async def _connect(self, native_address: str, protocol: asyncio.BufferedProtocol) -> None:
        host, _, port = native_address.rpartition(":")
        context = self._security.context()
        name = None if context is None else self._security.server_name or host.strip("[]")
        await asyncio.get_running_loop().create_connection(
            lambda: protocol, host.strip("[]"), int(port), ssl=context, server_hostname=name
        )
