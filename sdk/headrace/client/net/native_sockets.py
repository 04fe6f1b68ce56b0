"""Sockets of the native protocol for blocking clients, in plain text and with TLS. Linux and macOS."""

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from typing import TypeAlias, cast

from headrace.wire.crc import ReadableBuffer

LOOK_S = 0.25
"""Maximum delay until an expired deadline is detected."""
SEND_S = 0.2
"""Time for which a calling thread waits for the broker to accept its request."""
STEP_BYTES = 64 << 10
"""Size of what is encrypted or decrypted for one system call; more of it leaves the processor's cache in between."""
MAX_PARTS = 512
"""Maximum number of buffers of one system call; the kernel's limit is 1,024 (IOV_MAX)."""


def _poll(connection: socket.socket, events: int, seconds: float) -> int:
    """Wait for one of these events; return those that occurred, 0 on timeout."""
    poll = select.poll()
    poll.register(connection, events)
    return next((found for _, found in poll.poll(seconds * 1000)), 0)


def _can_receive(connection: socket.socket, seconds: float, *, to_send: bool) -> bool:
    found = _poll(connection, select.POLLIN | (select.POLLOUT if to_send else 0), seconds)
    return bool(found & ~select.POLLOUT)


class PlainSocket:
    """Socket in plain text. One thread receives; senders hold their own lock."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        for option, seconds in ((socket.SO_SNDTIMEO, SEND_S), (socket.SO_RCVTIMEO, LOOK_S)):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", 0, int(seconds * 1_000_000)))
        self.connection = connection

    def wait(self, seconds: float, *, to_send: bool = False) -> bool:
        """Wait until bytes can be received, or sent if `to_send`; return whether bytes can be received."""
        return _can_receive(self.connection, seconds, to_send=to_send)

    def receive_into(self, buffer: memoryview, is_whole: bool) -> int:
        """Receive available bytes; if `is_whole`, wait briefly for the buffer to fill.

        Returns the number of bytes; 0 if the connection has ended, -1 if there were none.
        """
        try:
            return self.connection.recv_into(buffer, len(buffer), socket.MSG_WAITALL if is_whole else 0)
        except BlockingIOError:
            return -1

    def send(self, parts: Sequence[ReadableBuffer], *, wait: bool) -> list[ReadableBuffer]:
        """Send parts in order as far as they are accepted; return the rest, not copied. `wait` waits up to `SEND_S`."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        left = list(parts)
        while left:
            some = left[:MAX_PARTS]
            try:
                sent = self.connection.sendmsg(some, (), flags)
            except BlockingIOError:
                sent = 0
            left = _without(left, sent)
            if sent < size_of(some):
                break
        return left


class TlsSocket:
    """Socket with TLS. OpenSSL connections do not support two threads at once, so senders and receivers take turns.

    OpenSSL works in memory, on several records for one system call. On a socket it makes one call for each record that
    it writes, and two for each that it reads.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str, seconds: float) -> None:
        """Make the handshake within `seconds`; raises OSError."""
        connection.setblocking(False)
        self.connection = connection
        self._lock = threading.Lock()
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=server_name)
        self._room = memoryview(bytearray(STEP_BYTES))
        self._has_more = False
        """Whether bytes of `_arrived` may still be decrypted. Belongs to the receiver, the next two to the sender."""
        self._encrypted = memoryview(b"")
        """Records that the kernel has not accepted yet."""
        self._encrypted_bytes = 0
        """Number of bytes that they contain: the first ones of the next `send`."""
        self._shake_hands(time.monotonic() + seconds)

    def wait(self, seconds: float, *, to_send: bool = False) -> bool:
        """See `PlainSocket`."""
        return self._has_more or _can_receive(self.connection, seconds, to_send=to_send)

    def receive_into(self, buffer: memoryview, is_whole: bool) -> int:
        """See `PlainSocket`; never waits. Unless `is_whole`, it returns one record of TLS, at most 16 KiB."""
        received = 0
        try:
            while received < len(buffer):
                if not self._has_more and (size := self._fetch()) <= 0:
                    return received or size
                try:
                    with self._lock:
                        count = cast("int", self._tls.read(len(buffer) - received, buffer[received:]))
                except ssl.SSLWantReadError:
                    self._has_more = False
                    continue
                received += count
                if count == 0 or not is_whole:
                    self._has_more = self._arrived.pending > 0 or self._tls.pending() > 0
                    break
        except OSError:
            if not received:  # What came before the end is returned first.
                raise
        return received

    def send(self, parts: Sequence[ReadableBuffer], *, wait: bool) -> list[ReadableBuffer]:
        """See `PlainSocket`. The next call must begin with the rest: some of it may be encrypted."""
        left, deadline = list(parts), time.monotonic() + (SEND_S if wait else 0.0)
        while self._flush(deadline):
            left, self._encrypted_bytes = _without(left, self._encrypted_bytes), 0
            step = _first(left, STEP_BYTES)
            if not step:
                break
            with self._lock:
                while self._encrypted_bytes < len(step):
                    self._encrypted_bytes += self._tls.write(step[self._encrypted_bytes :])
                self._encrypted = memoryview(self._leaving.read())
        return left

    def _shake_hands(self, deadline: float) -> None:
        is_over = False
        while not is_over:
            try:
                self._tls.do_handshake()
                is_over = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # An alert with the reason; the broker may have left.
                    self.connection.send(self._leaving.read())
                raise
            self._encrypted = memoryview(self._leaving.read())
            if not self._flush(deadline) or not (is_over or _poll(self.connection, select.POLLIN, _left(deadline))):
                raise TimeoutError("the TLS handshake took too long")
            if not is_over and self._fetch() == 0:
                self._arrived.write_eof()
        self._has_more = self._arrived.pending > 0

    def _fetch(self) -> int:
        """Take bytes from the socket; return their number, 0 if the connection has ended, -1 if there were none."""
        try:
            size = self.connection.recv_into(self._room)
        except BlockingIOError:
            return -1
        with self._lock:
            self._arrived.write(self._room[:size])
        self._has_more = size > 0
        return size

    def _flush(self, deadline: float) -> bool:
        """Send the records that are left; return whether none is left at the deadline."""
        while self._encrypted:
            try:
                self._encrypted = self._encrypted[self.connection.send(self._encrypted) :]
            except BlockingIOError:
                if not _poll(self.connection, select.POLLOUT, _left(deadline)):
                    return False
        return True


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _first(parts: Sequence[ReadableBuffer], size: int) -> memoryview:
    """Return the first `size` bytes of parts, copied only if they are of several."""
    found: list[memoryview] = []
    for part in parts:
        found.append(memoryview(part)[:size])
        size -= len(found[-1])
        if not size:
            break
    return found[0] if len(found) == 1 else memoryview(b"".join(found))


def _without(parts: list[ReadableBuffer], size: int) -> list[ReadableBuffer]:
    """Return parts without their first `size` bytes, and without empty ones there."""
    for place, part in enumerate(parts):
        if size < len(part):
            return [memoryview(part)[size:], *parts[place + 1 :]]
        size -= len(part)
    return []


NativeSocket: TypeAlias = PlainSocket | TlsSocket


def size_of(parts: Sequence[ReadableBuffer]) -> int:
    """Return the bytes of some buffers."""
    return sum(map(len, parts))


def shut(connection: NativeSocket) -> None:
    """End a connection from another thread than the one that receives."""
    with contextlib.suppress(OSError):  # It has already ended.
        connection.connection.shutdown(socket.SHUT_RDWR)


def notice_dead_peers(connection: socket.socket) -> None:
    """Enable TCP keepalive, which ends a connection after half a minute of silence, as gRPC's keepalive does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):  # Linux has all of them.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
