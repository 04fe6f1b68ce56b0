"""RabbitMQ streams by rstream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rstream import Consumer, Producer

from bench.peers.clients.loops import waited
from bench.peers.clients.task import Task, main

BATCH_RECORDS = 1_000
LOGIN = {"host": "127.0.0.1", "username": "guest", "password": "guest"}


async def sending(task: Task) -> AsyncIterator[int]:
    """Call `send_batch` with 1,000 messages, all with confirms."""
    confirmed, done = 0, asyncio.Event()

    def on_confirm(status: Any) -> None:
        nonlocal confirmed
        confirmed += 1
        if confirmed >= task.records:
            done.set()

    async with Producer(port=task.port, **LOGIN) as sender:
        await sender.delete_stream(task.topic, missing_ok=True)
        await sender.create_stream(task.topic)
        yield 0
        sent = 0
        for chunk in task.chunks():
            for start in range(0, len(chunk), BATCH_RECORDS):
                batch = chunk[start : start + BATCH_RECORDS]
                await sender.send_batch(task.topic, batch, on_publish_confirm=on_confirm)
            sent += len(chunk)
            yield sent
        await done.wait()


async def receiving(task: Task) -> AsyncIterator[int]:
    """Receive each message by a callback, without decoding."""
    seen, progress = 0, asyncio.Event()

    def on_message(message: bytes, context: Any) -> None:
        nonlocal seen
        seen += 1
        if seen % 10_000 == 0 or seen == task.records:
            progress.set()

    async with Consumer(port=task.port, **LOGIN) as reader:
        yield 0
        await reader.subscribe(task.topic, on_message, decoder=bytes, initial_credit=50)
        running = asyncio.create_task(reader.run())
        while seen < task.records:
            await progress.wait()
            progress.clear()
            yield seen
        running.cancel()


if __name__ == "__main__":
    main({"in": waited(sending), "out": waited(receiving)})
