"""Redis streams by the Redis protocol on a bare socket."""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers.clients.task import Task, main
from bench.peers.clients.wire import Connection, Occurrences, send_in_window

BLOCK_RECORDS = 1_000
WINDOW_RECORDS = 10_000
READ_RECORDS = 10_000


def command(*words: bytes) -> bytes:
    """Return a command in the protocol's encoding."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def send(task: Task) -> Iterator[int]:
    """Send XADD in pipelines of 1,000; each response is an id."""
    connection = Connection(task.port)
    key, values = task.topic.encode(), task.values()
    connection.send(command(b"DEL", key))
    connection.receive()
    commands = [command(b"XADD", key, b"*", b"v", value) for value in values]
    blocks = [b"".join(commands[start : start + BLOCK_RECORDS]) for start in range(0, len(commands), BLOCK_RECORDS)]
    ids = Occurrences(b"$")
    yield 0
    connection.count_answers(lambda: ids(connection.receive()))
    yield from send_in_window(connection, blocks, BLOCK_RECORDS, task.records, WINDOW_RECORDS)


def receive(task: Task) -> Iterator[int]:
    """Read by XREAD, 10,000 entries after the last one."""
    connection = Connection(task.port)
    last, seen = b"0", 0
    yield 0
    while seen < task.records:
        wanted = min(READ_RECORDS, task.records - seen)
        connection.send(command(b"XREAD", b"COUNT", b"%d" % wanted, b"STREAMS", task.topic.encode(), last))
        # An entry ends with its value, the only string of that length.
        length = b"$%d\r\n" % task.value_bytes
        entries, found, end = Occurrences(length), 0, b""
        while found < wanted:
            data = connection.receive()
            found += entries(data)
            end = (end + data)[-2 * (task.value_bytes + 100) :]
        begin = end.rfind(length) + len(length)
        missing = begin + task.value_bytes + 2 - len(end)
        if missing > 0:
            connection.read(missing)
        last = end[:begin].rsplit(b"*2\r\n", 2)[1].split(b"\r\n")[1]
        seen += wanted
        yield seen


if __name__ == "__main__":
    main({"in": send, "out": receive})
