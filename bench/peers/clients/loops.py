"""Adapter of asyncio clients' operations to the generators of `task.main`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from bench.peers.clients.task import Operation, Task


def waited(steps_of: Callable[[Task], AsyncIterator[int]]) -> Operation:
    """Return the operation of an asynchronous generator."""

    def run(task: Task) -> Iterator[int]:
        loop, steps = asyncio.new_event_loop(), steps_of(task)
        while (count := loop.run_until_complete(anext(steps, -1))) >= 0:
            yield count

    return run
