"""Produce and consume concurrently on one event loop: python asyncio_pipeline.py [host:port [topic]]."""

import asyncio
import sys

from headrace import aio

RECORDS = 1000


async def produce(cluster: str, topic: str) -> None:
    """Send records; leaving the block waits until all are acknowledged."""
    async with aio.Producer(bootstrap_servers=cluster) as producer:
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number)


async def consume(consumer: aio.Consumer) -> int:
    """Return the sum of the consumed values."""
    total = count = 0
    async for record in consumer:
        total += int(record.value)
        count += 1
        if count == RECORDS:
            break
    return total


async def run(cluster: str, topic: str) -> None:
    """Run both concurrently; if one fails, the other is cancelled."""
    async with aio.Admin(bootstrap_servers=cluster) as admin:
        await admin.create_topic(topic, partitions=2, exist_ok=True)
    async with aio.Consumer(topic, bootstrap_servers=cluster) as consumer, asyncio.TaskGroup() as tasks:
        total = tasks.create_task(consume(consumer))
        tasks.create_task(produce(cluster, topic))
    print("the sum is", total.result())


def main(cluster: str = "localhost:7170", topic: str = "example-asyncio") -> None:
    """Run the pipeline."""
    asyncio.run(run(cluster, topic))


if __name__ == "__main__":
    main(*sys.argv[1:])
