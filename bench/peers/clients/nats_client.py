"""NATS JetStream by nats-py."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import NotFoundError

from bench.peers.clients.loops import waited
from bench.peers.clients.task import Task, main


async def sending(task: Task) -> AsyncIterator[int]:
    """Call `publish_async`, with up to 4,000 unacknowledged messages."""
    client = await nats.connect(f"nats://127.0.0.1:{task.port}")
    stream = client.jetstream(publish_async_max_pending=4_000, timeout=60)
    with contextlib.suppress(NotFoundError):
        await stream.delete_stream(task.topic)
    await stream.add_stream(StreamConfig(name=task.topic, subjects=[task.topic]))
    yield 0
    sent = 0
    for chunk in task.chunks():
        for value in chunk:
            await stream.publish_async(task.topic, value, wait_stall=60)
        sent += len(chunk)
        yield sent
    await stream.publish_async_completed()


async def receiving(task: Task) -> AsyncIterator[int]:
    """Receive pushed messages from the start, without acknowledgements."""
    client = await nats.connect(f"nats://127.0.0.1:{task.port}")
    stream = client.jetstream(timeout=60)
    yield 0
    reader = await stream.subscribe(
        task.topic,
        config=ConsumerConfig(ack_policy=AckPolicy.NONE),
        pending_msgs_limit=-1,
        pending_bytes_limit=-1,
    )
    for seen in range(1, task.records + 1):
        await reader.next_msg(timeout=60)
        if seen % 10_000 == 0:
            yield seen


if __name__ == "__main__":
    main({"in": waited(sending), "out": waited(receiving)})
