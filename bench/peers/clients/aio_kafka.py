"""Apache Kafka by aiokafka: Python, asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiokafka import AIOKafkaProducer

from bench.peers.clients.loops import waited
from bench.peers.clients.task import Task, main


async def sending(task: Task) -> AsyncIterator[int]:
    """Await `producer.send()` in a loop, with batches of up to 1 MB and 5 ms of linger."""
    sender = AIOKafkaProducer(
        bootstrap_servers=f"127.0.0.1:{task.port}",
        acks=1,
        linger_ms=5,
        max_batch_size=1_000_000,
        max_request_size=10**7,
    )
    await sender.start()
    await sender.send_and_wait(task.topic, b"warm")
    yield 0
    sent = 0
    for chunk in task.chunks():
        for value in chunk:
            last = await sender.send(task.topic, value)
        sent += len(chunk)
        yield sent
    await last
    await sender.flush()


if __name__ == "__main__":
    main({"in": waited(sending)})
