"""Fetches over the transfer ports of brokers, where metadata names them; see `headrace.wire.transfer`. Blocking.

A connection carries one fetch at a time, and is kept for the next one. Whatever goes wrong with a connection, the same
fetch goes over gRPC at once, and the port is left alone for a while: it is a faster way, never the only one. In plain
text, so not for clients that speak TLS.
"""

import os
import socket
import struct
import threading
import time

import numpy as np

from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import ClosedError
from headrace.v1 import broker_pb2, errors_pb2
from headrace.wire.errors import HeadraceError, from_detail
from headrace.wire.transfer import ANSWER, ANSWER_HEAD, PREFACE, REFUSAL, REQUEST_HEAD, WHOLE
from headrace.wire.zero_copy import SplicedMessage, parse_fetch_response

AVOID_S = 10.0
"""How long a port that failed is left alone."""
CONNECT_S = 1.0
MAX_ANSWER_BYTES = 1 << 30
KEPT = 4
"""Idle connections an address."""


class TransferPorts:
    """Which ports may be used now; what the blocking and the asyncio client share. Pure but for the clock."""

    def __init__(self, config: FetchConfig) -> None:
        self._is_on = config.use_transfer_port and config.security_protocol != "SSL" and os.name == "posix"
        self._avoided: dict[str, float] = {}

    def may_use(self, address: str) -> bool:
        """Whether a fetch may go there."""
        return self._is_on and bool(address) and time.monotonic() >= self._avoided.get(address, 0.0)

    def avoid(self, address: str) -> None:
        """Leave a port alone for a while."""
        self._avoided[address] = time.monotonic() + AVOID_S


def request_frame(request: broker_pb2.FetchRequest) -> bytes:
    """Write a request with its size."""
    body = request.SerializeToString()
    return REQUEST_HEAD.pack(len(body)) + body


def answer_buffer(head: bytes | bytearray) -> memoryview:
    """Return an uninitialised buffer for the body of an answer, the verdict included.

    Raises:
        OSError: it is none.
    """
    kind, size = ANSWER_HEAD.unpack(head)
    if kind not in (ANSWER, REFUSAL) or size > MAX_ANSWER_BYTES:
        raise OSError(f"no answer of a transfer port: kind {kind}, {size} bytes")
    return np.empty(int(size) + len(WHOLE), np.uint8).data  # A bytearray would be zeroed first.


def parse_answer(head: bytes | bytearray, rest: memoryview) -> SplicedMessage:
    """Return the FetchResponse, whose batches are views of `rest`.

    Raises:
        HeadraceError: the broker refused the request.
        OSError: throw the answer away.
    """
    if rest[-1:] != WHOLE:
        raise OSError("the log changed while the broker sent it")
    body = rest[:-1]
    if ANSWER_HEAD.unpack(head)[0] == REFUSAL:
        raise from_detail(errors_pb2.ErrorDetail.FromString(bytes(body)))
    return parse_fetch_response(body)


def address_of(address: str) -> tuple[str, int]:
    """Split host:port as the socket functions take it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class Transfers:
    """The connections of one client. Owned by its fetcher, closed with it; any thread."""

    def __init__(self, what: str, config: FetchConfig) -> None:
        """`what` names the owner in errors."""
        self._what = what
        self._ports = TransferPorts(config)
        self._lock = threading.Lock()
        self._idle: dict[str, list[socket.socket]] = {}
        self._open: set[socket.socket] = set()
        self._closed = False

    def fetch(self, address: str, request: broker_pb2.FetchRequest, timeout: float) -> SplicedMessage | None:
        """Fetch from a transfer port; `None` means: fetch over gRPC.

        Raises:
            HeadraceError: the broker refused the request as a whole.
            ClosedError: the client was closed meanwhile.
        """
        while self._ports.may_use(address):
            kept = self._take(address)
            connection = kept
            try:
                if connection is None:
                    connection = self._connect(address)
                answer = _exchange(connection, request, timeout)
            except OSError:
                if connection is not None:
                    self._drop(connection)
                if self._closed:
                    raise ClosedError(self._what) from None
                if kept is None:  # One that was kept may have been closed for being idle: the next may do.
                    self._ports.avoid(address)
                continue
            except HeadraceError:
                if connection is not None:  # None: the client was closed while it connected.
                    self._give_back(address, connection)
                raise
            except BaseException:
                if connection is not None:
                    self._drop(connection)
                raise
            self._give_back(address, connection)
            return answer
        return None

    def close(self) -> None:
        """Close every connection; fetches in flight end with ClosedError. Again: nothing."""
        with self._lock:
            self._closed = True
            connections = list(self._open)
            idle = [each for kept in self._idle.values() for each in kept]
            self._idle.clear()
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for connection in idle:
            self._drop(connection)

    def _connect(self, address: str) -> socket.socket:
        connection = socket.create_connection(address_of(address), CONNECT_S)
        with self._lock:
            self._open.add(connection)
            is_closed = self._closed
        if is_closed:
            self._drop(connection)
            raise ClosedError(self._what)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(PREFACE)
        return connection

    def _take(self, address: str) -> socket.socket | None:
        with self._lock:
            kept = self._idle.get(address)
            return kept.pop() if kept else None

    def _give_back(self, address: str, connection: socket.socket) -> None:
        with self._lock:
            kept = self._idle.setdefault(address, [])
            if not self._closed and len(kept) < KEPT:
                kept.append(connection)
                return
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()


def _exchange(connection: socket.socket, request: broker_pb2.FetchRequest, timeout: float) -> SplicedMessage:
    """Ask and receive. The kernel waits for all bytes, so that this thread wakes once an answer."""
    connection.settimeout(timeout)
    connection.sendall(request_frame(request))
    connection.setblocking(True)
    whole = int(timeout)
    limit = struct.pack("@ll", whole, int((timeout - whole) * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    head = bytearray(ANSWER_HEAD.size)
    _receive(connection, memoryview(head))
    rest = answer_buffer(head)
    _receive(connection, rest)
    return parse_answer(head, rest.toreadonly())


def _receive(connection: socket.socket, into: memoryview) -> None:
    """Fill a buffer.

    Raises:
        OSError: the connection ended, or nothing came for the time that is set.
    """
    while len(into):
        count = connection.recv_into(into, len(into), socket.MSG_WAITALL)
        if not count:
            raise ConnectionResetError("the broker ended the connection")
        into = into[count:]
