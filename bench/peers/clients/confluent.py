"""Apache Kafka by confluent-kafka: Python over librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.open_loop import record_count, send_open_loop, waited_ms
from bench.peers.clients.task import Task, main, report_waits

WARM = b"warm"
PRODUCER_SETTINGS = ("acks", "linger.ms")


def connect(task: Task) -> dict[str, Any]:
    """Return the client's address settings."""
    return {"bootstrap.servers": f"127.0.0.1:{task.port}", **task.settings}


def producer(task: Task) -> Producer:
    """Return a producer that has sent one record."""
    batch = {"batch.num.messages": task.batch} if task.batch else {}
    own = {"acks": 1, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_000_000, **batch}
    made = Producer({**own, **connect(task)})
    made.produce(task.topic, WARM)
    assert made.flush(60) == 0, "the first record was not delivered"
    return made


def send(task: Task, callback: Any = None) -> Iterator[int]:
    """Call `produce()` in a loop."""
    sender, sent, topic = producer(task), 0, task.topic
    yield 0
    for chunk in task.chunks():
        for value in chunk:
            while True:
                try:
                    sender.produce(topic, value, on_delivery=callback)
                    break
                except BufferError:
                    sender.poll(0.01)
            sent += 1
            if sent % 1_000 == 0:
                sender.poll(0)
        yield max(0, sent - len(sender))
    assert sender.flush(300) == 0, "not all was delivered"


def send_with_callbacks(task: Task) -> Iterator[int]:
    """Call `produce()` in a loop, with a delivery callback per record."""
    delivered: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        delivered.append(None)

    yield from send(task, on_delivery)
    assert len(delivered) == task.records


def consumer(task: Task) -> Consumer:
    """Return a consumer at the start of the topic, after the first record."""
    own = {name: value for name, value in connect(task).items() if name not in PRODUCER_SETTINGS}
    made = Consumer({"group.id": "bench", "enable.auto.commit": False, **own})
    made.assign([TopicPartition(task.topic, 0, OFFSET_BEGINNING)])
    while made.poll(60) is None:
        pass
    return made


def consume(task: Task) -> Iterator[int]:
    """Consume by `consume(500)`."""
    reader, seen = consumer(task), 0
    yield 0
    while seen < task.records:
        seen += len([message.value() for message in reader.consume(500, 30.0)])
        yield seen


def poll(task: Task) -> Iterator[int]:
    """Consume by `poll()`, one message at a time."""
    reader, seen = consumer(task), 0
    yield 0
    while seen < task.records:
        for _ in range(min(10_000, task.records - seen)):
            reader.poll(30.0).value()
            seen += 1
        yield seen


def send_at_rate(task: Task) -> Iterator[int]:
    """Send records at a fixed rate, open loop."""
    sender = producer(task)
    yield 0

    def send_one(value: bytes) -> None:
        sender.produce(task.topic, value)
        sender.poll(0)

    send_open_loop(send_one, task.rate)
    sender.flush(60)


def receive_at_rate(task: Task) -> Iterator[int]:
    """Print `ready`, receive the records of `send_at_rate`, print their latencies."""
    reader, waits = consumer(task), []
    print("ready", flush=True)
    yield 0
    # The sender's first record is the warm-up.
    reader.poll(60)
    for _ in range(record_count(task.rate)):
        waits.append(waited_ms(reader.poll(60).value()))
    report_waits(waits)


def admin(task: Task) -> Iterator[int]:
    """Delete the topic."""
    client = AdminClient(connect(task))
    yield 0
    for future in client.delete_topics([task.topic]).values():
        future.result(60)
    while task.topic in client.list_topics(timeout=60).topics:
        time.sleep(0.02)


def warm(task: Task) -> Iterator[int]:
    """Create the topic by sending one record."""
    producer(task)
    yield 0


if __name__ == "__main__":
    main(
        {
            "in": send,
            "in-callbacks": send_with_callbacks,
            "out": consume,
            "out-poll": poll,
            "latency-in": send_at_rate,
            "latency-out": receive_at_rate,
            "delete": admin,
            "make": warm,
        }
    )
