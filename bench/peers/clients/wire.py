"""A peer's protocol on a bare socket: messages are encoded before the clock starts, answers are counted, not decoded.

That is more than a client in any language does at best: what is measured is the server. Standard library only.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

WAIT_SECONDS = 120.0
READ_BYTES = 1 << 20


class Occurrences:
    """Counts a text in a stream of bytes, also where it is parted."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._rest = b""

    def __call__(self, data: bytes) -> int:
        """How often it is in this part."""
        data = self._rest + data
        self._rest = data[max(0, len(data) - len(self._text) + 1) :]
        return data.count(self._text)


class Connection:
    """A socket on loopback."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream: Any = self.socket.makefile("rb", buffering=READ_BYTES)
        self._answered = 0
        self._changed = threading.Condition()

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        data: bytes = self.stream.read(count)
        assert len(data) == count, "the server closed the connection"
        return data

    def receive(self) -> bytes:
        """What has come; waits for some."""
        data: bytes = self.stream.read1(READ_BYTES)
        assert data, "the server closed the connection"
        return data

    def count_answers(self, next_count: Callable[[], int]) -> None:
        """From now on a thread calls `next_count`, which waits for bytes and says how many answers were in them."""

        def run() -> None:
            while True:
                found = next_count()
                with self._changed:
                    self._answered += found
                    self._changed.notify()

        threading.Thread(target=run, daemon=True).start()

    @property
    def answered(self) -> int:
        """How many answers there were."""
        return self._answered

    def wait_for_answers(self, count: int) -> None:
        """Return when there were `count` of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._answered >= count, WAIT_SECONDS), "answers stayed out"


def send_in_window(
    connection: Connection, blocks: Sequence[bytes], block_records: int, records: int, window: int
) -> Iterator[int]:
    """Send blocks over and over, at most `window` records unanswered, until all are answered; `records` is a multiple
    of `block_records`."""
    sent = 0
    while sent < records:
        connection.send(blocks[sent // block_records % len(blocks)])
        sent += block_records
        connection.wait_for_answers(sent - window)
        yield connection.answered
    connection.wait_for_answers(records)
