"""RabbitMQ's classic queues by AMQP 0-9-1 on a bare socket."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from bench.peers.clients.task import Task, main
from bench.peers.clients.wire import Connection, Occurrences

METHOD, HEADER, BODY, END = 1, 2, 3, b"\xce"
BLOCK_RECORDS = 100
PERSISTENT = struct.pack(">HB", 0x1000, 2)
DURABLE, NO_ACK = 2, 2


def short(text: str) -> bytes:
    """Return a short string."""
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def method(channel: int, group: int, number: int, arguments: bytes) -> bytes:
    """Return a method frame."""
    return frame(METHOD, channel, struct.pack(">HH", group, number) + arguments)


class Channel(Connection):
    """Connection with one open channel and a durable queue."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.port)
        self.queue = task.topic
        self.send(b"AMQP\0\0\x09\1")
        self.expect(10, 10)
        response = b"\0guest\0guest"
        login = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(response)) + response + short("en_US")
        self.send(method(0, 10, 11, login))
        channels, frame_bytes = struct.unpack(">HI", self.expect(10, 30)[:6])
        self.send(method(0, 10, 31, struct.pack(">HIH", channels, frame_bytes, 0)))
        self.send(method(0, 10, 40, short("/") + short("") + b"\0"))
        self.expect(10, 41)
        self.send(method(1, 20, 10, short("")))
        self.expect(20, 11)
        self.stored()

    def expect(self, group: int, number: int) -> bytes:
        """Return the arguments of the next method, which must be this one."""
        kind, _, size = struct.unpack(">BHI", self.read(7))
        payload = self.read(size + 1)[:-1]
        found = (kind, *struct.unpack(">HH", payload[:4]))
        assert found == (METHOD, group, number), f"{found} in place of {(METHOD, group, number)}: {payload!r}"
        return payload[4:]

    def stored(self) -> int:
        """Return the number of messages in the queue; create the queue if missing."""
        self.send(method(1, 50, 10, b"\0\0" + short(self.queue) + bytes([DURABLE]) + struct.pack(">I", 0)))
        answer = self.expect(50, 11)
        messages: int = struct.unpack_from(">I", answer, 1 + answer[0])[0]
        return messages


def send(task: Task) -> Iterator[int]:
    """Publish persistent messages without confirms, until the queue has them all."""
    channel = Channel(task)
    channel.send(method(1, 50, 30, b"\0\0" + short(task.topic) + b"\0"))
    channel.expect(50, 31)
    publish = method(1, 60, 40, b"\0\0" + short("") + short(task.topic) + b"\0")
    header = frame(HEADER, 1, struct.pack(">HHQ", 60, 0, task.value_bytes) + PERSISTENT)
    messages = [publish + header + frame(BODY, 1, value) for value in task.values()]
    blocks = [b"".join(messages[start : start + BLOCK_RECORDS]) for start in range(0, len(messages), BLOCK_RECORDS)]
    sent = 0
    yield 0
    while sent < task.records:
        channel.send(blocks[sent // BLOCK_RECORDS % len(blocks)])
        sent += BLOCK_RECORDS
        yield sent
    while channel.stored() < task.records:
        time.sleep(0.001)


def receive(task: Task) -> Iterator[int]:
    """Consume from the queue without acknowledgements."""
    channel = Channel(task)
    yield 0
    channel.send(method(1, 60, 20, b"\0\0" + short(task.topic) + short("") + bytes([NO_ACK]) + struct.pack(">I", 0)))
    delivered, seen = Occurrences(struct.pack(">HH", 60, 60)), 0
    while seen < task.records:
        seen += delivered(channel.receive())
        yield seen


if __name__ == "__main__":
    main({"in": send, "out": receive})
