"""Listener of the native protocol: connection limits, and timeouts checked once a second. Belongs to one event loop.

Connections are limited, and an idle one costs its client nothing. If `n` addresses have connections, none gets more
than `1 / (n + 1)` of the maximum, and a new connection beyond the limit replaces the one that has been idle longest.
An address whose connections break or are refused more often than its gRPC calls may be wasted is blocked like it.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from headrace.wire.errors import Outcome, ThrottledError
from prometheus_client import Counter, Gauge

from headrace_server.identity.gate import IdentityGate
from headrace_server.instruments import LoopCounter
from headrace_server.native.call import NativeMethod
from headrace_server.native.connection import NativeConnection
from headrace_server.native.framed_connection import FramedConnection, peer_name
from headrace_server.places import RETRY_AFTER_MS, Places, share_of
from headrace_server.rpc import check_free
from headrace_server.settings import split_address
from headrace_server.wasted_calls import WastedCalls

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
IDLE_SECONDS = 300.0
"""A connection without a request for this time is closed; its client reconnects when needed."""
HANDSHAKE_SECONDS = 10.0
"""Timeout of a TLS handshake."""
MAX_HANDSHAKES = 256
"""Maximum concurrent TLS handshakes; the kernel queues further connections."""
HURRIED_SECONDS = 1.0
"""Time after which a handshake ends if others wait for its place; clients of the SDK wait no longer."""
MAX_ARRIVING_BYTES = 128 << 20
"""Maximum total size of large requests that are being received, over all connections."""
TELL_SECONDS = 60.0
"""Minimum interval of log lines about rejected connections; the metric counts each."""


@dataclass(frozen=True, slots=True)
class NativeMetrics:
    """Metrics of a listener."""

    connections: Gauge
    refused: Counter
    broken: Counter
    sent_bytes: LoopCounter


class ArrivingRequests:
    """Large requests that have begun to arrive, over all connections."""

    def __init__(self) -> None:
        self._connections: dict[NativeConnection, None] = {}

    def begin(self, connection: NativeConnection) -> None:
        """Take note of a large request, or refuse it where too many arrive: of all, or of the caller's share.

        Raises:
            ThrottledError: try again later.
        """
        arriving = [(each.host, each.arriving_bytes) for each in self._connections]
        own = sum(size for host, size in arriving if host == connection.host)
        share = share_of(MAX_ARRIVING_BYTES, len({host for host, _ in arriving} | {connection.host}))
        if own > share or sum(size for _, size in arriving) > MAX_ARRIVING_BYTES:
            raise ThrottledError(
                "too many large requests have begun to arrive",
                outcome=Outcome.NOT_APPLIED,
                retry_after_ms=RETRY_AFTER_MS,
                action="Send smaller requests, or fewer at once.",
            )
        self._connections[connection] = None

    def end(self, connection: NativeConnection) -> None:
        """Take note that a request is there."""
        self._connections.pop(connection, None)


class NativeService:
    """What the connections of one listener serve as requests and answers."""

    def __init__(
        self, methods: Mapping[int, NativeMethod], call_errors: Counter, places: Places, gate: IdentityGate
    ) -> None:
        """`places` may be another server's, too."""
        self.methods = methods
        self.gate = gate
        self.call_errors = call_errors
        self.places = places
        self.arriving = ArrivingRequests()

    def connect(self, server: NativeServer) -> FramedConnection:
        """Return a new connection of `server`."""
        return NativeConnection(server, self)


class _Handshake(NamedTuple):
    peer: str
    begun: float


class NativeServer:
    """Listener and its connections, owned by a service's listeners."""

    def __init__(
        self,
        name: str,
        metrics: NativeMetrics,
        connect: Callable[[NativeServer], FramedConnection],
        *,
        executor: Executor,
        max_connections: int,
    ) -> None:
        """`name` is the process's, as `broker-1`. `connect` makes connections; `executor` runs blocking reads."""
        self.name = name
        self.executor: Executor | None = executor
        self._metrics = metrics
        self._connect_to = connect
        self._max_connections = max_connections
        self._connections: dict[FramedConnection, None] = {}
        self._hosts: dict[str, dict[FramedConnection, None]] = {}
        """The same by address, so that a new one is not compared with all."""
        self._evicted: dict[FramedConnection, None] = {}
        """Connections that ended for another one, and are not lost yet."""
        self._has_none = asyncio.Event()
        self._has_none.set()
        self._listener: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], _Handshake] = {}
        """The oldest first."""
        self._tell_at_seconds = -math.inf
        self._wasted = WastedCalls()
        metrics.connections.set_function(lambda: len(self._connections))

    async def start(self, listen: str, make_context: Callable[[], ssl.SSLContext] | None = None) -> str:
        """Listen at host:port; return the bound address. `make_context`, called per connection, enables TLS.

        Raises:
            AddressInUseError: If the address is in use, not local, or malformed.
        """
        check_free(listen)
        host, port = split_address(listen)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        self._listener = socket.create_server((host.strip("[]"), port), family=family, backlog=1024, reuse_port=True)
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._accept(self._listener, make_context)), loop.create_task(self._look())]
        bound = self._listener.getsockname()[1]
        self._wasted.start(bound)
        return f"{host}:{bound}"

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more connections and requests, wait for those in progress, and close all. Idempotent.

        A connection without a request stays open for `LOOK_SECONDS` or until its client closes it.
        """
        for task in (*self._tasks, *self._handshakes):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._handshakes, return_exceptions=True)
        self._wasted.stop()
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections:
            connection.say_goodbye()
        looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(grace_seconds):
                await asyncio.gather(self._has_none.wait(), *(each.answered() for each in self._connections))
        except TimeoutError:
            pass
        finally:
            looking.cancel()
        for connection in list(self._connections):
            connection.close()

    async def _accept(self, listener: socket.socket, make_context: Callable[[], ssl.SSLContext] | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (host, port, *_) = await loop.sock_accept(listener)
            except OSError as error:  # For example out of file descriptors; the client falls back to gRPC.
                log.warning("native_not_accepted", cause=str(error))
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                context = None if make_context is None else make_context()
            except Exception:  # For example no descriptor for new certificates; the next connection may succeed.
                log.exception("native_not_accepted")
                accepted.close()
                await asyncio.sleep(LOOK_SECONDS)
                continue
            task = loop.create_task(self._connect(accepted, context, host, port))
            self._handshakes[task] = _Handshake(peer_name(host, port), loop.time())
            task.add_done_callback(self._handshakes.pop)
            await asyncio.sleep(0)  # `sock_accept` does not, while connections wait: others would for all of them.
            while len(self._handshakes) >= MAX_HANDSHAKES:
                await self._hurry(loop.time())

    async def _hurry(self, now: float) -> None:
        """Wait for the end of a handshake; end the oldest if it is late, because others wait for its place."""
        oldest, handshake = next(iter(self._handshakes.items()))
        left = handshake.begun + HURRIED_SECONDS - now
        if left <= 0 and oldest.cancel():
            self.count_broken(handshake.peer)
            log.info("native_handshake_failed", cause="others waited for its place")
        await asyncio.wait(self._handshakes, timeout=max(0.0, left) or None, return_when=asyncio.FIRST_COMPLETED)

    async def _connect(self, accepted: socket.socket, context: ssl.SSLContext | None, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        timeout = None if context is None else HANDSHAKE_SECONDS

        def connect() -> FramedConnection:
            connection = self._connect_to(self)
            connection.set_address(host, port)  # A socket that was reset before it was accepted has none.
            return connection

        try:
            await loop.connect_accepted_socket(connect, accepted, ssl=context, ssl_handshake_timeout=timeout)
        except OSError as error:  # of TLS, too
            self.count_broken(peer_name(host, port))
            log.info("native_handshake_failed", cause=str(error))

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = loop.time()
            for connection in list(self._evicted):
                connection.look_unread(now)
            for connection in list(self._connections):
                connection.look(now)
                if connection.idle_since is None:
                    continue
                if connection.is_retired:  # One look later, because a request may have been in transit.
                    connection.close()
                elif now - connection.idle_since > IDLE_SECONDS:
                    connection.say_goodbye()

    # --- for connections ---

    def enter(self, connection: FramedConnection) -> bool:
        """Take a connection; one that is idle may have to go for it. False: there is no room."""
        own = self._hosts.get(connection.host, {})
        share = share_of(self._max_connections, len(self._hosts) + (not own))
        if len(own) >= share:
            has_room = self._end_idle(own, connection)
        else:
            is_full = len(self._connections) >= self._max_connections
            has_room = not is_full or self._end_idle(self._connections, connection)
        if has_room:
            self._connections[connection] = None
            self._has_none.clear()
            self._hosts.setdefault(connection.host, {})[connection] = None
        else:
            self._count_refused()
        return has_room

    def leave(self, connection: FramedConnection) -> None:
        """Forget a connection that is lost."""
        self._evicted.pop(connection, None)
        if connection in self._connections:
            if connection.is_unfinished:
                self._wasted.count(connection.name, of_connection=False)
            self._forget(connection)

    def _forget(self, connection: FramedConnection) -> None:
        del self._connections[connection]
        own = self._hosts[connection.host]
        del own[connection]
        if not own:
            del self._hosts[connection.host]
        if not self._connections:
            self._has_none.set()

    def note_served(self, connection: FramedConnection) -> None:
        """Take note of a request that is admitted."""
        self._wasted.note_served(connection.host)

    def count_refused(self, connection: FramedConnection) -> None:
        """Count a request of a caller without an identity or right."""
        self._wasted.count(connection.name, of_connection=True)

    def count_broken(self, peer: str) -> None:
        """See `Owner`."""
        self._metrics.broken.inc()
        self._wasted.count(peer, of_connection=False)  # The connection ends by itself.

    def count_sent(self, size_bytes: int) -> None:
        """See `Owner`."""
        self._metrics.sent_bytes.inc(size_bytes)

    def _end_idle(self, among: Iterable[FramedConnection], new: FramedConnection) -> bool:
        """Close the connection that has been without a request for longest; False: all have one. If it is unfinished,
        it is its client's waste only where the new connection is of the same address.
        """
        idle = [each for each in among if each.is_idle]
        if not idle:
            return False
        longest = min(idle, key=lambda each: each.idle_since or 0.0)
        if longest.is_unfinished and longest.host != new.host:
            self._wasted.count_evicted()
            self._forget(longest)
        else:
            self.leave(longest)
        self._evicted[longest] = None
        longest.say_goodbye()
        longest.close()
        return True

    def _count_refused(self) -> None:
        """Count a connection whose client falls back to gRPC, which costs this broker more; log it seldom."""
        self._metrics.refused.inc()
        now = asyncio.get_running_loop().time()
        if now >= self._tell_at_seconds:
            self._tell_at_seconds = now + TELL_SECONDS
            log.warning(
                "native_connections_refused",
                max_native_connections=self._max_connections,
                advice="these clients fall back to gRPC; raise max_native_connections",
            )
