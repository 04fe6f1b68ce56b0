"""The peers' cases, and the targets of headrace compared with them. Each client uses its best batch size."""

from __future__ import annotations

from typing import Any

from bench import catalogue
from bench.case import Case, Catalogue, Figure, Target
from bench.catalogue import ratio
from bench.peers.measure import CONFLUENT, Client, PeerIn, PeerLatency, PeerOut
from bench.peers.servers import ACTIVE, KAFKA, NATS, RABBIT, REDIS

MEDIUM, SLOW, SLOWER = 0.2, 0.05, 0.02
"""Shares of the load for slower clients, so that no case takes more than half a minute."""
QUICK_FETCHES = {"fetch.queue.backoff.ms": 1}


def confluent(batch: int = 0, share: float = 1.0, **settings: Any) -> Client:
    """Return confluent-kafka with a linger of 5 ms, none at batch 1."""
    linger = {"linger.ms": 0 if batch == 1 else 5}
    return Client(KAFKA, "confluent", "kafka", share, batch, {**linger, **settings})


def case_in(name: str, client: Client, operation: str = "in") -> Case:
    """Return a case of producing."""
    return Case(f"in/{name}", PeerIn(client, operation), daily=True, missing=client.missing)


def case_out(name: str, client: Client, filler: Client, operation: str = "out", *, drains: bool = False) -> Case:
    """Return a case of consuming."""
    return Case(f"out/{name}", PeerOut(client, filler, operation, drains), daily=True, missing=client.missing)


def kafka_cases() -> list[Case]:
    """Return the cases of Kafka's clients in C, Java and Python."""
    c, java, aio = "librdkafka (C)", "Java", "aiokafka"
    python = Client(KAFKA, "python_kafka", "kafka", SLOW)
    fast = confluent(10_000)
    quick = Client(KAFKA, "confluent", "kafka", settings=QUICK_FETCHES)
    return [
        case_in(f"Kafka, {c}, batch 1", Client(KAFKA, "librdkafka", "kafka", SLOWER, 1)),
        case_in(f"Kafka, {c}, batch 50", Client(KAFKA, "librdkafka", "kafka", 0.5, 50)),
        case_in(f"Kafka, {c}, batch 10000", Client(KAFKA, "librdkafka", "kafka", batch=10_000)),
        case_in(f"Kafka, {java}, batch 1", Client(KAFKA, "java", "kafka", SLOWER, 1)),
        case_in(f"Kafka, {java}, batch 50", Client(KAFKA, "java", "kafka", MEDIUM, 50)),
        case_in(f"Kafka, {java}", Client(KAFKA, "java", "kafka")),
        case_in("Kafka, confluent-kafka, batch 1", confluent(1, SLOWER)),
        case_in("Kafka, confluent-kafka, batch 50", confluent(50, 0.5)),
        case_in("Kafka, confluent-kafka, batch 10000", fast),
        case_in("Kafka, confluent-kafka, batch 10000, callbacks", fast, "in-callbacks"),
        case_in(f"Kafka, {aio}", Client(KAFKA, "aio_kafka", "kafka", MEDIUM)),
        case_in("Kafka, kafka-python", python),
        case_out(f"Kafka, {c}", Client(KAFKA, "librdkafka", "kafka"), fast),
        case_out(f"Kafka, {java}", Client(KAFKA, "java", "kafka"), fast),
        case_out("Kafka, confluent-kafka consume(500)", Client(KAFKA, "confluent", "kafka"), fast),
        case_out("Kafka, confluent-kafka consume(500), fetch.queue.backoff.ms=1", quick, fast),
        case_out("Kafka, confluent-kafka poll()", quick, fast, "out-poll"),
        case_out("Kafka, kafka-python", python, fast),
        Case(
            "latency/Kafka, confluent-kafka, 10000 a second",
            PeerLatency(confluent(**{"linger.ms": 0})),
            daily=True,
            missing=CONFLUENT.missing,
        ),
    ]


def other_cases() -> list[Case]:
    """Return the cases of RabbitMQ, NATS, Redis and ActiveMQ: on a bare socket, and by the usual client in Python."""
    stream, rstream = Client(RABBIT, "wire_stream", "stream"), Client(RABBIT, "rabbit_rstream", "stream", MEDIUM)
    queue = Client(RABBIT, "wire_amqp", "amqp", SLOWER)
    nats, nats_py = Client(NATS, "wire_nats", "nats", 0.5), Client(NATS, "nats_client", "nats", SLOWER)
    redis, redis_py = Client(REDIS, "wire_redis", "redis", MEDIUM), Client(REDIS, "redis_py", "redis", SLOW)
    stomp = Client(ACTIVE, "wire_stomp", "stomp", SLOWER)
    return [
        case_in("RabbitMQ streams, bare socket", stream),
        case_in("RabbitMQ streams, rstream", rstream),
        case_in("RabbitMQ queue, bare socket", queue),
        case_in("NATS JetStream, bare socket", nats),
        case_in("NATS JetStream, nats-py", nats_py),
        case_in("Redis streams, bare socket", redis),
        case_in("Redis streams, redis-py", redis_py),
        case_in("ActiveMQ, bare socket", stomp),
        case_out("RabbitMQ streams, bare socket", stream, stream),
        case_out("RabbitMQ streams, rstream", rstream, stream),
        case_out("RabbitMQ queue, bare socket", queue, queue, drains=True),
        case_out("NATS JetStream, bare socket", nats, nats),
        case_out("NATS JetStream, nats-py", nats_py, nats),
        case_out("Redis streams, bare socket", redis, redis),
        case_out("Redis streams, redis-py", redis_py, redis),
        case_out("ActiveMQ, bare socket", stomp, stomp, drains=True),
    ]


CALLBACKS = "in/Kafka, confluent-kafka, batch 10000, callbacks"
CONSUME = "out/Kafka, confluent-kafka consume(500), fetch.queue.backoff.ms=1"
TARGETS = [
    ratio("send with futures: of confluent-kafka with callbacks", "produce/send", CALLBACKS, 3.0),
    ratio("send with futures: of librdkafka, batch 50", "produce/send", "in/Kafka, librdkafka (C), batch 50", 1.0),
    ratio(
        "send, return_futures=False: of confluent-kafka without callbacks",
        "produce/send, return_futures=False",
        "in/Kafka, confluent-kafka, batch 10000",
        3.0,
    ),
    ratio(
        "send_many: of librdkafka, batch 10,000",
        "produce/send_many",
        "in/Kafka, librdkafka (C), batch 10000",
        None,
    ),
    ratio("Arrow in: of librdkafka, batch 10,000", "produce/arrow", "in/Kafka, librdkafka (C), batch 10000", None),
    ratio("for record in consumer: of confluent-kafka", "consume/loop", CONSUME, 1.3),
    ratio("for record in consumer: of Kafka's Java consumer", "consume/loop", "out/Kafka, Java", 1.0),
    ratio("batches to Arrow: of librdkafka", "consume/arrow", "out/Kafka, librdkafka (C)", 1.0),
    ratio(
        "batches to Arrow: of RabbitMQ streams",
        "consume/arrow",
        "out/RabbitMQ streams, bare socket",
        0.6,
    ),
    ratio(
        "batch 1, acks 0: of librdkafka, batch 1",
        "produce/send, batch 1, acks 0",
        "in/Kafka, librdkafka (C), batch 1",
        1.0,
    ),
    Target(
        "p99 at 10,000/s: of Kafka's",
        Figure("latency/10000 a second", "p99_ms"),
        3.0,
        Figure("latency/Kafka, confluent-kafka, 10000 a second", "p99_ms"),
        at_most=True,
    ),
]
"""Targets of headrace compared with its peers."""

COMPARED = frozenset(target.figure.case for target in TARGETS)
"""Cases of headrace that are compared with the peers'."""

CATALOGUE = Catalogue(
    [
        *(case for case in catalogue.CATALOGUE.cases if case.name in COMPARED or case.name.startswith("limit/")),
        *kafka_cases(),
        *other_cases(),
    ],
    [*TARGETS, *(target for target in catalogue.TARGETS if target.figure.case in COMPARED and not target.at_most)],
)
