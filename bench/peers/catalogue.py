"""The peers' cases, and the targets of headrace compared with them. Each client uses its best batch size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench import catalogue
from bench.case import Case, Catalogue, Target
from bench.catalogue import REPLICATED, ratio
from bench.peers.measure import Client, PeerIn, PeerLatency, PeerOut
from bench.peers.servers import ACTIVE, FLUSS_SERVER, KAFKA_3, KAFKA_4, KAFKA_REPLICATED, NATS, RABBIT, REDIS, Server

MEDIUM, SLOW, SLOWER = 0.2, 0.05, 0.02
"""Shares of the load for slower clients, so that no case takes more than half a minute."""
QUICK_FETCHES = {"fetch.queue.backoff.ms": 1}
KAFKAS = {"Kafka 3.9": KAFKA_3, "Kafka 4": KAFKA_4}
THREE_BROKERS = "Kafka three brokers"


def confluent(server: Server, batch: int = 0, share: float = 1.0, **settings: Any) -> Client:
    """Return confluent-kafka with a linger of 5 ms, none at batch 1."""
    linger = {"linger.ms": 0 if batch == 1 else 5}
    return Client(server, "confluent", "kafka", share, batch, {**linger, **settings})


def case_in(name: str, client: Client, operation: str = "in") -> Case:
    """Return a case of producing."""
    return Case(f"in/{name}", PeerIn(client, operation), daily=True, missing=client.missing)


def case_out(name: str, client: Client, filler: Client, operation: str = "out", *, drains: bool = False) -> Case:
    """Return a case of consuming."""
    return Case(f"out/{name}", PeerOut(client, filler, operation, drains), daily=True, missing=client.missing)


def case_latency(name: str, client: Client) -> Case:
    """Return a case of end-to-end latency at the usual rate."""
    return Case(f"latency/{name}, 10000 a second", PeerLatency(client), daily=True, missing=client.missing)


def kafka_cases(name: str, server: Server) -> list[Case]:
    """Return the cases of one Kafka by its clients in C, Java and Python."""
    c, java, python = f"{name}, librdkafka (C)", f"{name}, Java", f"{name}, confluent-kafka"

    def client(program: str, share: float = 1.0, batch: int = 0, **settings: Any) -> Client:
        return Client(server, program, "kafka", share, batch, settings)

    fast, pure = confluent(server, 10_000), client("python_kafka", SLOW)
    quick = client("confluent", **QUICK_FETCHES)
    return [
        case_in(f"{c}, batch 1", client("librdkafka", SLOWER, 1)),
        case_in(f"{c}, batch 50", client("librdkafka", 0.5, 50)),
        case_in(f"{c}, batch 10000", client("librdkafka", batch=10_000)),
        case_in(f"{java}, batch 1", client("java", SLOWER, 1)),
        case_in(f"{java}, batch 50", client("java", MEDIUM, 50)),
        case_in(java, client("java")),
        case_in(f"{python}, batch 1", confluent(server, 1, SLOWER)),
        case_in(f"{python}, batch 50", confluent(server, 50, 0.5)),
        case_in(f"{python}, batch 10000", fast),
        case_in(f"{python}, batch 10000, callbacks", fast, "in-callbacks"),
        case_in(f"{name}, aiokafka", client("aio_kafka", MEDIUM)),
        case_in(f"{name}, kafka-python", pure),
        case_out(c, client("librdkafka"), fast),
        case_out(java, client("java"), fast),
        case_out(f"{python} consume(500)", client("confluent"), fast),
        case_out(f"{python} consume(500), fetch.queue.backoff.ms=1", quick, fast),
        case_out(f"{python} poll()", quick, fast, "out-poll"),
        case_out(f"{name}, kafka-python", pure, fast),
        case_latency(python, confluent(server, **{"linger.ms": 0})),
    ]


def replicated_cases() -> list[Case]:
    """Return the cases of three brokers of Kafka, two of which acknowledge."""
    c = Client(KAFKA_REPLICATED, "librdkafka", "kafka", 0.5, 10_000, {"acks": "all"})
    python = Client(KAFKA_REPLICATED, "confluent", "kafka", settings={"linger.ms": 0, "acks": "all"})
    return [case_in(f"{THREE_BROKERS}, acks=all", c), case_latency(f"{THREE_BROKERS}, acks=all", python)]


def other_cases() -> list[Case]:
    """Return the cases of RabbitMQ, NATS, Redis and ActiveMQ, on a bare socket and in Python, and of Fluss in Arrow."""
    stream, rstream = Client(RABBIT, "wire_stream", "stream"), Client(RABBIT, "rabbit_rstream", "stream", MEDIUM)
    queue = Client(RABBIT, "wire_amqp", "amqp", SLOWER)
    nats, nats_py = Client(NATS, "wire_nats", "nats", 0.5), Client(NATS, "nats_client", "nats", SLOWER)
    redis, redis_py = Client(REDIS, "wire_redis", "redis", MEDIUM), Client(REDIS, "redis_py", "redis", SLOW)
    arrow = Client(FLUSS_SERVER, "fluss_arrow", "fluss")
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
        case_in("Fluss, Arrow", arrow),
        case_out("RabbitMQ streams, bare socket", stream, stream),
        case_out("RabbitMQ streams, rstream", rstream, stream),
        case_out("RabbitMQ queue, bare socket", queue, queue, drains=True),
        case_out("NATS JetStream, bare socket", nats, nats),
        case_out("NATS JetStream, nats-py", nats_py, nats),
        case_out("Redis streams, bare socket", redis, redis),
        case_out("Redis streams, redis-py", redis_py, redis),
        case_out("Fluss, Arrow", arrow, arrow),
        case_out("ActiveMQ, bare socket", stomp, stomp, drains=True),
    ]


def kafka_targets(name: str) -> list[Target]:
    """Return the targets of headrace compared with one Kafka."""
    c, python = f"in/{name}, librdkafka (C), batch", f"{name}, confluent-kafka"
    fast, quick = f"in/{python}, batch 10000", f"out/{python} consume(500), fetch.queue.backoff.ms=1"
    return [
        ratio(
            f"send with futures: of confluent-kafka with callbacks, {name}", "produce/send", f"{fast}, callbacks", 3.0
        ),
        ratio(f"send with futures: of librdkafka, batch 50, {name}", "produce/send", f"{c} 50", 1.0),
        ratio(f"send without futures: of confluent-kafka without callbacks, {name}", UNTRACKED, fast, 3.0),
        ratio(f"send_many: of librdkafka, batch 10,000, {name}", "produce/send_many", f"{c} 10000", 3.0),
        ratio(f"Arrow in: of librdkafka, batch 10,000, {name}", "produce/arrow", f"{c} 10000", 4.0),
        ratio(f"batch 1, acks 0: of librdkafka, batch 1, {name}", "produce/send, batch 1, acks 0", f"{c} 1", 1.0),
        ratio(f"for record in consumer: of confluent-kafka, {name}", "consume/loop", quick, 1.3),
        ratio(f"for record in consumer: of the Java consumer, {name}", "consume/loop", f"out/{name}, Java", 1.5),
        ratio(f"batches to Arrow: of librdkafka, {name}", "consume/arrow", f"out/{name}, librdkafka (C)", 1.5),
        *latency_targets(f"at 10,000/s: of {name}'s", "latency/10000 a second", python),
    ]


def latency_targets(text: str, case: str, other: str) -> list[Target]:
    """Return the targets of median and 99th percentile at most those of a peer."""
    return [
        replace(ratio(f"{figure[:3]} {text}", case, f"latency/{other}, 10000 a second", 1.0, figure), at_most=True)
        for figure in ("p50_ms", "p99_ms")
    ]


UNTRACKED = "produce/send, return_futures=False"
REPLICATED_LATENCY = "latency/10000 a second, replication 3, acks all, fsync"
TARGETS = [
    *(target for name in KAFKAS for target in kafka_targets(name)),
    ratio("three replicas, acks all: of Kafka's three brokers", REPLICATED, f"in/{THREE_BROKERS}, acks=all", 1.5),
    *latency_targets(
        "at 10,000/s, three replicas, acks all, fsync: of Kafka's three brokers without fsync",
        REPLICATED_LATENCY,
        f"{THREE_BROKERS}, acks=all",
    ),
    ratio("Arrow in: of Fluss", "produce/arrow", "in/Fluss, Arrow", None),
    ratio("batches to Arrow: of Fluss", "consume/arrow", "out/Fluss, Arrow", None),
    ratio("batches to Arrow: of RabbitMQ streams", "consume/arrow", "out/RabbitMQ streams, bare socket", 1.0),
]
"""Targets of headrace compared with its peers."""

COMPARED = frozenset(target.figure.case for target in TARGETS)
"""Cases of headrace that are compared with the peers'."""
CASES = [
    *(case for case in catalogue.CATALOGUE.cases if case.name in COMPARED or case.name.startswith("limit/")),
    *(case for name, server in KAFKAS.items() for case in kafka_cases(name, server)),
    *replicated_cases(),
    *other_cases(),
]
NAMES = {case.name for case in CASES}
CATALOGUE = Catalogue(CASES, [*TARGETS, *(each for each in catalogue.TARGETS if NAMES.issuperset(each.cases()))])
