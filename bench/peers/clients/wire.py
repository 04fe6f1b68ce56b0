"""Peer protocols on a bare socket: messages are encoded before the clock starts, responses are counted, not decoded.

This is faster than a client in any language, so that the server is measured. Standard library only.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

WAIT_SECONDS = 120.0
READ_BYTES = 1 << 20


class Occurrences:
    """Counter of a byte sequence in a stream, also across parts."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._rest = b""

    def __call__(self, data: bytes) -> int:
        """Return the occurrences that end in this part."""
        data = self._rest + data
        self._rest = data[max(0, len(data) - len(self._text) + 1) :]
        return data.count(self._text)


class Connection:
    """Socket on loopback."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream: Any = self.socket.makefile("rb", buffering=READ_BYTES)
        self._answered = 0
        self._changed = threading.Condition()

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        data: bytes = self.stream.read(count)
        assert len(data) == count, "the server closed the connection"
        return data

    def receive(self) -> bytes:
        """Return received bytes; wait for at least one."""
        data: bytes = self.stream.read1(READ_BYTES)
        assert data, "the server closed the connection"
        return data

    def count_answers(self, next_count: Callable[[], int]) -> None:
        """Start a thread that calls `next_count`, which waits for bytes and returns the number of responses in them."""

        def run() -> None:
            while True:
                found = next_count()
                with self._changed:
                    self._answered += found
                    self._changed.notify()

        threading.Thread(target=run, daemon=True).start()

    @property
    def answered(self) -> int:
        """Number of responses so far."""
        return self._answered

    def wait_for_answers(self, count: int) -> None:
        """Wait for `count` responses."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._answered >= count, WAIT_SECONDS), "answers stayed out"


def send_in_window(
    connection: Connection, blocks: Sequence[bytes], block_records: int, records: int, window: int
) -> Iterator[int]:
    """Send blocks repeatedly, with at most `window` records unanswered, until all are answered; `records` is a multiple
    of `block_records`."""
    sent = 0
    while sent < records:
        connection.send(blocks[sent // block_records % len(blocks)])
        sent += block_records
        connection.wait_for_answers(sent - window)
        yield connection.answered
    connection.wait_for_answers(records)
