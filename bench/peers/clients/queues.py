"""Queues of one process, over SQLite: diskcache and persist-queue, in transactions of a chunk where they have them.

persist-queue commits each put. The task's `topic` is the directory of the queue.
"""

from __future__ import annotations

from collections.abc import Iterator

import diskcache
import persistqueue

from bench.peers.clients.task import CHUNK_RECORDS, Task, main


def append_to_deque(task: Task) -> Iterator[int]:
    """Append to a `diskcache.Deque`."""
    deque = diskcache.Deque(directory=task.topic)
    yield 0
    for chunk in task.chunks():
        with deque.transact():
            for value in chunk:
                deque.append(value)
        yield len(deque)


def read_deque(task: Task) -> Iterator[int]:
    """Iterate over the deque that `append_to_deque` filled."""
    deque = diskcache.Deque(directory=task.topic)
    yield 0
    yield sum(1 for _ in deque)


def put_into_queue(task: Task) -> Iterator[int]:
    """Put into a `persistqueue.SQLiteQueue`."""
    queue = persistqueue.SQLiteQueue(task.topic, auto_commit=False)
    yield 0
    for chunk in task.chunks():
        for value in chunk:
            queue.put(value)
        yield queue.size


def get_from_queue(task: Task) -> Iterator[int]:
    """Take what `put_into_queue` has put into it."""
    queue = persistqueue.SQLiteQueue(task.topic, auto_commit=False)
    yield 0
    for _ in task.chunks():
        for _ in range(CHUNK_RECORDS):
            queue.get(block=False)
        queue.task_done()
        yield task.records - queue.size


if __name__ == "__main__":
    main(
        {
            "diskcache-in": append_to_deque,
            "diskcache-out": read_deque,
            "persistqueue-in": put_into_queue,
            "persistqueue-out": get_from_queue,
        }
    )
