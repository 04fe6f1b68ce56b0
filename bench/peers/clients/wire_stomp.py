"""ActiveMQ by STOMP on a bare socket."""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers.clients.task import Task, main
from bench.peers.clients.wire import Connection, Occurrences

BLOCK_RECORDS = 100
PREFETCH = 1_000


def connect(task: Task) -> Connection:
    """Return a connected session."""
    connection = Connection(task.port)
    connection.send(b"CONNECT\naccept-version:1.1\nhost:localhost\n\n\0")
    assert connection.receive().startswith(b"CONNECTED")
    return connection


def send(task: Task) -> Iterator[int]:
    """Send persistent messages; request a receipt for every hundredth, and wait for the last receipt."""
    connection, values = connect(task), task.values()
    head = f"SEND\ndestination:/queue/{task.topic}\npersistent:true\ncontent-length:{task.value_bytes}\n".encode()
    blocks = []
    for start in range(0, len(values), BLOCK_RECORDS):
        *firsts, last = values[start : start + BLOCK_RECORDS]
        frames = [head + b"\n" + value + b"\0" for value in firsts]
        blocks.append(b"".join([*frames, head + b"receipt:x\n\n" + last + b"\0"]))
    receipts, sent = Occurrences(b"RECEIPT\n"), 0
    yield 0
    connection.count_answers(lambda: receipts(connection.receive()))
    while sent < task.records:
        connection.send(blocks[sent // BLOCK_RECORDS % len(blocks)])
        sent += BLOCK_RECORDS
        yield sent
    connection.wait_for_answers(sent // BLOCK_RECORDS)


def receive(task: Task) -> Iterator[int]:
    """Consume from the queue in mode `auto`, with a prefetch of a thousand."""
    connection = connect(task)
    yield 0
    head = f"SUBSCRIBE\nid:1\ndestination:/queue/{task.topic}\nack:auto\nactivemq.prefetchSize:{PREFETCH}\n\n\0"
    connection.send(head.encode())
    messages, seen = Occurrences(b"MESSAGE\n"), 0
    while seen < task.records:
        seen += messages(connection.receive())
        yield seen


if __name__ == "__main__":
    main({"in": send, "out": receive})
