"""Sockets of the native protocol for blocking clients, in plain text and with TLS. Linux and macOS."""

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from typing import TypeAlias

from headrace.wire.crc import ReadableBuffer

LOOK_S = 0.25
"""Maximum delay until an expired deadline is detected."""
SEND_S = 0.2
"""Time for which a calling thread waits for the broker to accept its request."""
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
        for first in range(0, len(parts), MAX_PARTS):
            some = parts[first : first + MAX_PARTS]
            try:
                sent = self.connection.sendmsg(some, (), flags)
            except BlockingIOError:
                sent = 0
            for place, part in enumerate(some, first):
                if sent < len(part):
                    return [memoryview(part)[sent:], *parts[place + 1 :]]
                sent -= len(part)
        return []


class TlsSocket:
    """Socket with TLS. OpenSSL connections do not support two threads at once, so senders and receivers take turns."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._lock = threading.Lock()

    def wait(self, seconds: float, *, to_send: bool = False) -> bool:
        """See `PlainSocket`."""
        with self._lock:
            if self.connection.pending():
                return True
        return _can_receive(self.connection, seconds, to_send=to_send)

    def receive_into(self, buffer: memoryview, is_whole: bool) -> int:
        """See `PlainSocket`; never waits. OpenSSL returns at most one record of TLS at a time, 16 KiB."""
        received = 0
        try:
            while received < len(buffer):
                with self._lock:
                    count = self.connection.recv_into(buffer[received:])
                received += count
                if count == 0 or not is_whole:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return received or -1
        except OSError:
            if not received:  # What came before the end is returned first.
                raise
        return received

    def send(self, parts: Sequence[ReadableBuffer], *, wait: bool) -> list[ReadableBuffer]:
        """See `PlainSocket`; the rest is a copy, as OpenSSL takes one buffer."""
        left = memoryview(b"".join(parts))
        deadline = time.monotonic() + (SEND_S if wait else 0.0)
        while left:
            try:
                with self._lock:
                    left = left[self.connection.send(left) :]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    return [left]
                _poll(self.connection, select.POLLOUT, seconds)
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
