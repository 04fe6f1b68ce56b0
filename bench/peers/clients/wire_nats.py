"""NATS JetStream by its protocol on a bare socket."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bench.peers.clients.task import Task, main
from bench.peers.clients.wire import Connection, Occurrences, send_in_window

BLOCK_RECORDS = 500
WINDOW_RECORDS = 4_000
ANSWERS = "answers"


def connect(task: Task) -> Connection:
    """Return a connection subscribed to its reply subject."""
    connection = Connection(task.port)
    assert connection.receive().startswith(b"INFO")
    connection.send(b'CONNECT {"verbose":false,"protocol":1}\r\nSUB %b 1\r\n' % ANSWERS.encode())
    return connection


def ask(connection: Connection, subject: str, body: object, *, may_fail: bool = False) -> None:
    """Send a JetStream request and wait for its response."""
    data = json.dumps(body).encode() if body else b""
    connection.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), ANSWERS.encode(), len(data), data))
    while not (line := connection.stream.readline()).startswith(b"MSG"):
        assert not line.startswith(b"-ERR"), line
    answer = json.loads(connection.read(int(line.split()[-1]) + 2))
    assert may_fail or "error" not in answer, answer


def send(task: Task) -> Iterator[int]:
    """Publish asynchronously, with up to 4,000 unacknowledged messages."""
    connection, name = connect(task), task.topic
    ask(connection, f"$JS.API.STREAM.DELETE.{name}", None, may_fail=True)
    ask(connection, f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "file"})
    values = task.values()
    head = b"PUB %b %b %d\r\n" % (name.encode(), ANSWERS.encode(), task.value_bytes)
    messages = [head + value + b"\r\n" for value in values]
    blocks = [b"".join(messages[start : start + BLOCK_RECORDS]) for start in range(0, len(messages), BLOCK_RECORDS)]
    acknowledged = Occurrences(b"MSG ")
    yield 0
    connection.count_answers(lambda: acknowledged(connection.receive()))
    yield from send_in_window(connection, blocks, BLOCK_RECORDS, task.records, WINDOW_RECORDS)


def receive(task: Task) -> Iterator[int]:
    """Receive pushed messages from the start, without acknowledgements."""
    connection = connect(task)
    connection.send(b"SUB records 2\r\n")
    configuration = {"deliver_subject": "records", "ack_policy": "none", "deliver_policy": "all"}
    yield 0
    body = json.dumps({"stream_name": task.topic, "config": configuration}).encode()
    subject = f"$JS.API.CONSUMER.CREATE.{task.topic}".encode()
    connection.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, ANSWERS.encode(), len(body), body))
    # A message contains its subject and the subscription by which it was delivered.
    messages, seen = Occurrences(b"MSG %b 2 " % task.topic.encode()), 0
    while seen < task.records:
        seen += messages(connection.receive())
        yield seen


if __name__ == "__main__":
    main({"in": send, "out": receive})
