"""Apache Kafka by kafka-python: pure Python."""

from __future__ import annotations

from collections.abc import Iterator

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.peers.clients.task import Task, main


def send(task: Task) -> Iterator[int]:
    """Call `send()` in a loop, with batches of up to 1 MB and 5 ms of linger."""
    sender = KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{task.port}",
        acks=1,
        linger_ms=5,
        batch_size=900_000,
        enable_idempotence=False,
    )
    sender.send(task.topic, b"warm").get(60)
    yield 0
    sent = 0
    for chunk in task.chunks():
        for value in chunk:
            sender.send(task.topic, value)
        sent += len(chunk)
        yield sent
    sender.flush(300)


def receive(task: Task) -> Iterator[int]:
    """Consume by `poll()`, which returns dictionaries of lists."""
    reader = KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{task.port}", max_poll_records=5_000, max_partition_fetch_bytes=8 << 20
    )
    where = TopicPartition(task.topic, 0)
    reader.assign([where])
    reader.seek_to_beginning(where)
    reader.position(where)
    yield 0
    seen = 0
    while seen < task.records:
        seen += sum(map(len, reader.poll(30_000).values()))
        yield seen


if __name__ == "__main__":
    main({"in": send, "out": receive})
