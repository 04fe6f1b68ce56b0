"""Redis streams by redis-py."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from bench.peers.clients.task import Task, main

PIPELINE_RECORDS = 1_000
READ_RECORDS = 10_000


def send(task: Task) -> Iterator[int]:
    """Send XADD in pipelines of 1,000."""
    client = redis.Redis(port=task.port)
    client.delete(task.topic)
    yield 0
    sent = 0
    for chunk in task.chunks():
        for start in range(0, len(chunk), PIPELINE_RECORDS):
            pipeline = client.pipeline(transaction=False)
            for value in chunk[start : start + PIPELINE_RECORDS]:
                pipeline.xadd(task.topic, {b"v": value})
            pipeline.execute()
        sent += len(chunk)
        yield sent


def receive(task: Task) -> Iterator[int]:
    """Read by XREAD, 10,000 entries after the last one."""
    client = redis.Redis(port=task.port)
    last, seen = b"0", 0
    yield 0
    while seen < task.records:
        ((_, entries),) = client.execute_command("XREAD", "COUNT", READ_RECORDS, "STREAMS", task.topic, last)
        last = entries[-1][0]
        seen += len(entries)
        yield seen


if __name__ == "__main__":
    main({"in": send, "out": receive})
