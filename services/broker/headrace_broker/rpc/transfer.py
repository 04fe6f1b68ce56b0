"""The transfer port: Fetch answered by `sendfile`, whole batches straight from the page cache (the paper, section 3.1).

gRPC has to have the bytes of an answer in this process; here only the message around them is. What is asked, what is
answered and who may ask is as in `BrokerService.Fetch`: the same handler on the event loop decides it. Each connection
has a thread, because a disk may block `sendfile` and a reader may be slow: both then hold up that reader alone. The
frames are `headrace.wire.transfer`'s.

Connections are few, and a silent one costs its owner nothing. So where `n` addresses have some, none gets more than one
part in `n + 1` of all, and one that comes where there is no room takes the place of the connection that has been
without a request for longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import struct
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any

import structlog
from headrace.log.slices import Slice
from headrace.v1 import broker_pb2
from headrace.wire.errors import HeadraceError, InternalError, Outcome, ThrottledError, to_detail
from headrace.wire.transfer import (
    ANSWER,
    ANSWER_HEAD,
    DISCARD,
    MAX_REQUEST_BYTES,
    PREFACE,
    REFUSAL,
    REQUEST_HEAD,
    WHOLE,
)
from headrace.wire.zero_copy import fetch_response_buffers
from headrace_server.methods import METHODS, TRANSFER_FETCH
from headrace_server.places import caller, share_of
from headrace_server.requests import PENALTY_SECONDS, RequestReader
from headrace_server.rpc import check_free, split_address

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc.fetch import Located
from headrace_broker.rpc.service import BrokerService

log = structlog.get_logger(__name__)

IDLE_SECONDS = 60.0
"""A connection without a request for so long is closed; its client opens another when it needs one."""
PREFACE_SECONDS = 5.0
REQUEST_SECONDS = 10.0
"""For a whole request, from its first byte on."""
STALL_SECONDS = 30.0
"""A reader that takes nothing of an answer for so long is cut off."""
LOOK_SECONDS = 0.5
"""How soon a long poll ends whose reader is gone."""
STOP_SECONDS = 2.0
TELL_SECONDS = 60.0
"""How seldom the log says that connections are refused; the metric counts each."""


@dataclass(slots=True)
class _Connection:
    """What is known of a connection."""

    thread: threading.Thread
    peer: str
    idle_since: float | None
    """Seconds of the event loop's clock; `None`: a request of it is being answered. Set by the connection's thread."""


class TransferServer:
    """Owned by the broker's app. Started and stopped on the event loop."""

    def __init__(self, service: BrokerService, metrics: BrokerMetrics, *, max_connections: int) -> None:
        self._service = service
        self._metrics = metrics
        self._max_connections = max_connections
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: dict[socket.socket, _Connection] = {}  # changed on the event loop alone
        self._reader = RequestReader(
            "Fetch", METHODS[TRANSFER_FETCH], broker_pb2.FetchRequest.FromString, broker_pb2.FetchRequest.DESCRIPTOR
        )
        self._tell_at_seconds = -math.inf
        metrics.transfer_connections.set_function(lambda: len(self._connections))

    async def start(self, listen: str) -> str:
        """Listen at host:port; the address bound.

        Raises:
            AddressInUseError: the address is taken, not ours, or malformed.
        """
        check_free(listen)
        host, port = split_address(listen)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        self._listener = socket.create_server((host.strip("[]"), port), family=family, backlog=128)
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._listener))
        return f"{host}:{self._listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Stop accepting, and close all connections. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        if self._listener is not None:
            self._listener.close()
        threads = [each.thread for each in self._connections.values()]
        for connection in self._connections:
            _shut(connection)
        if threads:
            await asyncio.to_thread(_join, threads)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:  # For example no file descriptor left: the client falls back to gRPC.
                log.warning("transfer_not_accepted", cause=str(error))
                await asyncio.sleep(LOOK_SECONDS)
                continue
            if not self._make_room(caller(address[0])):
                connection.close()
                self._count_refused(loop.time())
                continue
            thread = threading.Thread(target=self._serve, args=(connection, loop), name="transfer", daemon=True)
            self._connections[connection] = _Connection(thread, caller(address[0]), loop.time())
            thread.start()

    def _make_room(self, peer: str) -> bool:
        """Whether one more connection of `peer` is taken; one that is idle may have to go for it."""
        peers = {each.peer for each in self._connections.values()}
        share = share_of(self._max_connections, len(peers | {peer}))
        own = {at: each for at, each in self._connections.items() if each.peer == peer}
        if len(own) >= share:
            return self._end_idle(own)
        return len(self._connections) < self._max_connections or self._end_idle(self._connections)

    def _end_idle(self, among: dict[socket.socket, _Connection]) -> bool:
        """Close the connection that has been without a request for longest; False: all have one."""
        idle = [(each.idle_since, at) for at, each in among.items() if each.idle_since is not None]
        if not idle:
            return False
        _, connection = min(idle, key=lambda found: found[0])
        del self._connections[connection]
        _shut(connection)
        return True

    def _count_refused(self, now_seconds: float) -> None:
        """Log that its reader falls back to gRPC, which costs this broker more."""
        self._metrics.transfer_refused.inc()
        if now_seconds >= self._tell_at_seconds:
            self._tell_at_seconds = now_seconds + TELL_SECONDS
            log.warning(
                "transfer_refused",
                max_transfer_connections=self._max_connections,
                advice="these readers fall back to gRPC; raise max_transfer_connections, or let fewer of them read",
            )

    # --- a connection's thread ---

    def _serve(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        try:
            connection.setblocking(True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _limit(connection, socket.SO_SNDTIMEO, STALL_SECONDS)
            _limit(connection, socket.SO_RCVTIMEO, PREFACE_SECONDS)
            if _receive(connection, len(PREFACE), PREFACE_SECONDS) == PREFACE:
                while (request := _receive_request(connection)) is not None:
                    self._note_idle(connection, None)
                    self._answer(connection, loop, request)
                    self._note_idle(connection, loop.time())
        except OSError as error:
            self._metrics.transfer_broken.inc()
            log.info("transfer_broken", cause=str(error))
        except Exception:
            log.exception("transfer_failed")
        finally:
            connection.close()
            with contextlib.suppress(RuntimeError):  # The loop is closed: the count no longer matters.
                loop.call_soon_threadsafe(self._connections.pop, connection, None)

    def _note_idle(self, connection: socket.socket, since_seconds: float | None) -> None:
        """Set since when a connection has no request; `None` means that it has one."""
        entry = self._connections.get(connection)
        if entry is None:
            raise ConnectionResetError("the place was given to another connection")
        entry.idle_since = since_seconds

    def _answer(self, connection: socket.socket, loop: asyncio.AbstractEventLoop, request: bytes) -> None:
        found: Located | None = None
        try:
            found = self._locate(connection, loop, request)
            buffers, size = fetch_response_buffers(found.response, found.slices)
            _send(connection, [ANSWER_HEAD.pack(ANSWER, size), *buffers])
            connection.sendall(WHOLE if self._may_stand(found) else DISCARD)
        except HeadraceError as error:
            self._metrics.common.call_errors.labels("TransferFetch", error.code.name).inc()
            body = to_detail(error).SerializeToString()
            connection.sendall(ANSWER_HEAD.pack(REFUSAL, len(body)) + body + WHOLE)
        finally:
            if found is not None:
                found.close()

    def _may_stand(self, found: Located) -> bool:
        """Whether what was sent is what the log holds, and was this broker's to send."""
        try:
            self._service.check_lease(Outcome.NOT_APPLIED)
        except HeadraceError:
            return False
        return not found.was_cut()

    def _locate(self, connection: socket.socket, loop: asyncio.AbstractEventLoop, request: bytes) -> Located:
        """Have the event loop find data to send; stop if the reader leaves meanwhile."""
        peer = caller(connection.getpeername()[0])
        try:
            message = self._reader.read(request, peer)
        except ThrottledError:
            time.sleep(PENALTY_SECONDS)
            raise
        future: Future[Located] = asyncio.run_coroutine_threadsafe(self._service.locate(message, peer), loop)
        while True:
            try:
                return future.result(LOOK_SECONDS)
            except NotYet:
                if _has_left(connection):
                    future.cancel()
                    raise ConnectionResetError("the reader left") from None
            except HeadraceError:
                raise
            except Exception as error:
                log.exception("transfer_not_located")
                raise InternalError(f"the fetch failed: {error!r}") from error


def _join(threads: list[threading.Thread]) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _send(connection: socket.socket, buffers: list[Any]) -> None:
    """Send bytes and ranges of files, in order; what lies between two ranges goes in one call.

    Raises:
        OSError: the reader left or takes nothing, or a file ended before its range did.
    """
    waiting: list[Any] = []
    for piece in buffers:
        if not isinstance(piece, Slice):
            waiting.append(piece)
            continue
        connection.sendall(b"".join(waiting), socket.MSG_MORE)
        waiting = []
        sent, end = piece.position, piece.position + piece.size_bytes
        while sent < end:
            count = os.sendfile(connection.fileno(), piece.fileno(), sent, end - sent)
            if count == 0:
                raise OSError(f"{piece.path} ends at {sent}, before {end}")
            sent += count
    if waiting:
        connection.sendall(b"".join(waiting), socket.MSG_MORE)


def _receive_request(connection: socket.socket) -> bytes | None:
    """Return the next request; None: there is none any more."""
    _limit(connection, socket.SO_RCVTIMEO, IDLE_SECONDS)
    try:
        head = _receive(connection, REQUEST_HEAD.size, IDLE_SECONDS)
    except BlockingIOError:
        return None
    _limit(connection, socket.SO_RCVTIMEO, REQUEST_SECONDS)
    if not head:
        return None
    (size,) = REQUEST_HEAD.unpack(head)
    if size > MAX_REQUEST_BYTES:
        raise OSError(f"a request of {size} bytes: the limit is {MAX_REQUEST_BYTES}")
    return _receive(connection, size, REQUEST_SECONDS) if size else b""


def _receive(connection: socket.socket, size: int, seconds: float) -> bytes:
    """Return as many bytes; none if the connection ended before the first one.

    Raises:
        OSError: it ended in the middle, nothing came for the time that is set, or not all within `seconds`.
    """
    received = bytearray()
    deadline = time.monotonic() + seconds
    while len(received) < size:
        if received and time.monotonic() > deadline:
            raise TimeoutError(f"{len(received)} of {size} bytes came within {seconds:g} s")
        some = connection.recv(size - len(received))
        if not some:
            if not received:
                return b""
            raise ConnectionResetError("the connection ended in the middle of a request")
        received += some
    return bytes(received)


def _has_left(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _limit(connection: socket.socket, option: int, seconds: float) -> None:
    """Have the kernel end a call without progress for that long: `sendfile` has no other timeout."""
    whole = int(seconds)
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", whole, int((seconds - whole) * 1_000_000)))


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It has ended by itself.
        connection.shutdown(socket.SHUT_RDWR)
