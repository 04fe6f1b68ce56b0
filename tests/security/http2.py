"""HTTP/2 by hand, as far as a stranger needs it: frames on a plain socket."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4
PING_ANSWER = b"\x00\x00\x08\x06\x01"
"""How the frame begins."""
ADDRESSES = (f"127.{high}.{low}.1" for high in itertools.count(1) for low in range(256))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """One header that no table is used for; name and value under 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: str, **more: str) -> bytes:
    """The headers of a gRPC call with a deadline of a hundred million hours."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    headers |= {"content-type": "application/grpc", "grpc-timeout": "99999999H", **more}
    return b"".join(literal(name.encode(), value.encode()) for name, value in headers.items())


def calls(count: int, path: str, *, then: str = "", first: int = 0) -> bytes:
    """Headers of calls and nothing more; `then`: "reset", each is taken back, or "end", each ends without a request.

    `first`: how many calls the connection has made before.
    """
    headers, flags = call_headers(path), END_HEADERS | (END_STREAM if then == "end" else 0)
    reset = bytes([0, 0, 0, 8])
    return b"".join(
        frame(HEADERS, flags, stream, headers) + (frame(RST_STREAM, 0, stream, reset) if then == "reset" else b"")
        for stream in range(2 * first + 1, 2 * (first + count) + 1, 2)
    )


def is_served(address: str, source: str, seconds: float = 0.3) -> bool:
    """Whether gRPC answers a connection from there; where it does not, only the time shows it."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds, (source, 0)) as connection:
            return bool(connection.recv(9))
    except OSError:  # No answer, or our socket was closed just then.
        return False


class Stranger:
    """A connection to a gRPC server at an IPv4 address of the machine; a context manager."""

    def __init__(self, address: str, source: str = "") -> None:
        """`source`: the local address; an empty one means an unused address."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60, (source or next(ADDRESSES), 0))
        self.send(PREFACE + frame(SETTINGS, 0, 0))  # A listener that draws may have closed the connection already.

    def __enter__(self) -> Stranger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Send frames; False: the server has closed the connection."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def wait_until_read(self) -> bool:
        """Wait until the server has read all frames and answered a ping; False: it has closed the connection."""
        received = b""
        if self.send(frame(PING, 0, 0, bytes(8))):
            with contextlib.suppress(OSError):
                while PING_ANSWER not in received and (data := self._socket.recv(1 << 16)):
                    received = received[-len(PING_ANSWER) :] + data
        return PING_ANSWER in received

    def wait_for_ends(self, count: int) -> None:
        """Wait until the server has ended this many calls, with their status."""
        received = b""
        while count:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"the server has closed the connection, {count} calls before the end")
            received += data
            while len(received) >= 9 and len(received) >= (size := 9 + int.from_bytes(received[:3], "big")):
                count -= received[3] == HEADERS and bool(received[4] & END_STREAM)
                received = received[size:]

    def wait_until_closed(self) -> None:
        """Read until the server has closed the connection; TimeoutError: it does not."""
        with contextlib.suppress(ConnectionResetError):
            while self._socket.recv(1 << 16):
                pass
