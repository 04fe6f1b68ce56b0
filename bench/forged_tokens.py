"""Strangers that send session tokens which no key of the cluster has signed, from many addresses of the loopback.

For `bench.connections.strangers`: `work(address, count, pipe)` runs in a process of its own, sends from `count`
addresses until the pipe has a message, at most `FORGED_PER_SECOND`, and reports how many tokens were refused.
The HTTP/2 is by hand: a gRPC client cannot choose its address, and costs more than the server.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from headrace.client.net.native_calls import NativeCalls
from headrace_server.descriptors import raise_limit
from headrace_server.identity.session_tokens import sign_session
from headrace_server.internal_v1 import metadata_pb2

FORGED_PER_SECOND = 10_000
AT_ONCE = 50
"""Tokens in flight, half of what a connection of gRPC may have."""
SECONDS = 2.0
"""After it a connection that gets no answer is given up."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS = 1, 4
END_STREAM, END_HEADERS = 1, 4
FRAME_HEAD_BYTES = 9
PATH = "/headrace.v1.BrokerService/GetMetadata"


def forged_tokens() -> list[str]:
    """Return a thousand different tokens."""
    now_ms = round(time.time() * 1000)
    claims = (
        metadata_pb2.SessionClaims(user=f"user-{number}", issued_ms=now_ms, expires_ms=2 * now_ms)
        for number in range(1_000)
    )
    return [sign_session(each, "forged", b"x" * 32) for each in claims]


def greet_with_forged(address: str, count: int, pipe: Connection) -> None:
    """Open connections of the native protocol, each with a forged token in its Hello, and wait for their ends."""
    greetings = itertools.cycle([NativeCalls("", "forger", token).greeting() for token in forged_tokens()])
    sources = itertools.cycle(range(count))

    def refuse_some() -> int:
        refused = 0
        with contextlib.ExitStack() as stack:
            opened = []
            for _ in range(AT_ONCE):
                with contextlib.suppress(OSError):
                    opened.append(stack.enter_context(_connect(address, next(sources))))
                    opened[-1].sendall(next(greetings))
            for connection in opened:
                with contextlib.suppress(OSError):
                    refused += bool(connection.recv(1 << 16))
        return refused

    _repeat(refuse_some, pipe)


def call_with_forged(address: str, count: int, pipe: Connection) -> None:
    """Call over gRPC, each time with a forged token, on a connection from each address, and wait for the refusals."""
    tokens, sources = itertools.cycle(forged_tokens()), itertools.cycle(range(count))
    connections: dict[int, _Calls] = {}

    def refuse_some() -> int:
        source = next(sources)
        try:
            if source not in connections:
                connections[source] = _Calls(_connect(address, source))
            return connections[source].refuse(tokens)
        except OSError:  # The server has closed it, or does not accept one from there now.
            connections.pop(source, None)
            return 0

    _repeat(refuse_some, pipe)


class _Calls:
    """One connection to a gRPC server."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._stream = 1
        connection.sendall(PREFACE + _frame(SETTINGS, 0, 0))

    def refuse(self, tokens: Iterator[str]) -> int:
        """Make `AT_ONCE` calls, and wait until they have ended; raise OSError if the connection does not last."""
        calls = []
        for _ in range(AT_ONCE):
            calls.append(_frame(HEADERS, END_HEADERS, self._stream, _headers(next(tokens))))
            self._stream += 2
        self._socket.sendall(b"".join(calls))
        received, ended = b"", 0
        while ended < AT_ONCE:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            received += data
            while len(received) >= FRAME_HEAD_BYTES:
                size = FRAME_HEAD_BYTES + int.from_bytes(received[:3], "big")
                if len(received) < size:
                    break
                ended += received[3] == HEADERS and bool(received[4] & END_STREAM)
                received = received[size:]
        return ended


def _repeat(refuse_some: Callable[[], int], pipe: Connection) -> None:
    raise_limit()
    pipe.send(None)
    started, refused = time.monotonic(), 0
    while not pipe.poll():
        refused += refuse_some()
        time.sleep(max(0.0, started + refused / FORGED_PER_SECOND - time.monotonic()))
    pipe.send(refused)


def _connect(address: str, number: int) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS, (f"127.0.{2 + number // 250}.{1 + number % 250}", 0))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _headers(token: str) -> bytes:
    headers = {
        ":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "x", "te": "trailers",
        "content-type": "application/grpc", "grpc-timeout": "20S", "authorization": f"Bearer {token}",
    }  # fmt: skip
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers.items())


def _text(text: str) -> bytes:
    """Return a string of a header without compression (RFC 7541, 5.2)."""
    size = len(text)
    prefix = bytes([size]) if size < 127 else bytes([127, (size - 127) & 127 | 128, (size - 127) >> 7])
    return prefix + text.encode()
