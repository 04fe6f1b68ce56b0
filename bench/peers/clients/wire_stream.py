"""RabbitMQ streams by the stream protocol on a bare socket."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bench.peers.clients.task import Task, main
from bench.peers.clients.wire import Connection, send_in_window

PUBLISH, CONFIRM, SUBSCRIBE, DELIVER, CREDIT = 0x0002, 0x0003, 0x0007, 0x0008, 0x0009
DECLARE_PUBLISHER, CREATE, DELETE, PROPERTIES = 0x0001, 0x000D, 0x000E, 0x0011
SASL_HANDSHAKE, SASL_AUTHENTICATE, TUNE, OPEN = 0x0012, 0x0013, 0x0014, 0x0015
OK = 1
BLOCK_RECORDS = 500
WINDOW_RECORDS = 50_000
CREDITS = 50
FRAME_BYTES = 16 << 20
CHUNK_HEADER = struct.Struct(">B BBHI")
"""Subscription; magic, type, entries, records. The rest of a chunk is not parsed."""


def text(value: str) -> bytes:
    """Return a string with its length."""
    return struct.pack(">H", len(value)) + value.encode()


def frame(key: int, body: bytes) -> bytes:
    """Return a command frame."""
    return struct.pack(">IHH", len(body) + 4, key, 1) + body


class Stream(Connection):
    """Authenticated connection."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._properties()
        self.ask(SASL_HANDSHAKE, b"")
        credentials = b"\0guest\0guest"
        self.ask(SASL_AUTHENTICATE, text("PLAIN") + struct.pack(">I", len(credentials)) + credentials)
        key, _ = self.next_frame()
        assert key == TUNE
        self.send(frame(TUNE, struct.pack(">II", 0, 0)))
        self.ask(OPEN, text("/"))

    def _properties(self) -> None:
        self.ask(PROPERTIES, struct.pack(">I", 0))

    def next_frame(self) -> tuple[int, bytes]:
        """Return key and body of the next frame."""
        size, key, _ = struct.unpack(">IHH", self.read(8))
        return key, self.read(size - 4)

    def ask(self, key: int, body: bytes, *, may_fail: bool = False) -> None:
        """Send a command and wait for its response."""
        self.send(frame(key, struct.pack(">I", 1) + body))
        answered, answer = self.next_frame()
        assert answered == key | 0x8000, f"{answered:#x} in answer to {key:#x}"
        code = struct.unpack(">H", answer[4:6])[0]
        assert may_fail or code == OK, f"command {key:#x} was refused: {code}"


def send(task: Task) -> Iterator[int]:
    """Publish frames of 500 messages, all with confirms."""
    connection = Stream(task.port)
    connection.ask(DELETE, text(task.topic), may_fail=True)
    connection.ask(CREATE, text(task.topic) + struct.pack(">I", 0))
    connection.ask(DECLARE_PUBLISHER, b"\1" + text("") + text(task.topic))
    values = task.values()
    blocks = [publish(values[start : start + BLOCK_RECORDS]) for start in range(0, len(values), BLOCK_RECORDS)]

    def confirmed() -> int:
        key, body = connection.next_frame()
        return int.from_bytes(body[1:5], "big") if key == CONFIRM else 0

    yield 0
    connection.count_answers(confirmed)
    yield from send_in_window(connection, blocks, BLOCK_RECORDS, task.records, WINDOW_RECORDS)


def publish(values: list[bytes]) -> bytes:
    """Return the frame that publishes `values`."""
    messages = [struct.pack(">QI", number, len(value)) + value for number, value in enumerate(values)]
    return frame(PUBLISH, b"\1" + struct.pack(">I", len(values)) + b"".join(messages))


def receive(task: Task) -> Iterator[int]:
    """Receive chunks from the first; count records by the chunk headers."""
    connection = Stream(task.port)
    first = struct.pack(">H", 1)
    yield 0
    connection.ask(SUBSCRIBE, b"\1" + text(task.topic) + first + struct.pack(">HI", CREDITS, 0))
    credit = frame(CREDIT, b"\1" + struct.pack(">H", 1))
    room, seen = memoryview(bytearray(FRAME_BYTES)), 0
    while seen < task.records:
        size, key, _ = struct.unpack(">IHH", connection.read(8))
        body = room[: size - 4]
        assert connection.stream.readinto(body) == len(body), "the server closed the connection"
        if key == DELIVER:
            seen += CHUNK_HEADER.unpack_from(body)[4]
            connection.send(credit)
            yield seen


if __name__ == "__main__":
    main({"in": send, "out": receive})
