"""Spark's own Kafka source and sink, for `bench.spark`: one broker of Kafka with the partitions of headrace's topic.

The source returns eight columns with `includeHeaders` and prunes none. Batches are as large as those of the peers' Java
client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.peers.measure import Client, server_of, topic_of
from bench.peers.servers import PEERS, kafka, needs, needs_all
from bench.stage import Stage

PARTITIONS = 4
JARS = PEERS / "spark-kafka"
CLIENT = Client(kafka(4, partitions=PARTITIONS), "confluent", "kafka")
FILLED = "rows"
WRITE = {"kafka.batch.size": 1 << 19, "kafka.linger.ms": 5}
READ = {"includeHeaders": "true", "startingOffsets": "earliest", "kafka.max.partition.fetch.bytes": 8 << 20}

missing = needs_all(needs(JARS, "spark"), CLIENT.missing)


def jars() -> str:
    """Return the source's jars as Spark takes them; an empty string if they are not installed."""
    return ",".join(map(str, sorted(JARS.glob("*.jar"))))


def read(stage: Stage, spark: Any, rows: Any) -> Any:
    """Return a frame of a topic filled once with `rows`, which have the columns `partition` and `value`."""

    @contextmanager
    def fill() -> Iterator[str]:
        _save(stage, rows, FILLED)
        yield FILLED

    options = {**_servers(stage), **READ, "subscribe": stage.kept("kafka rows", fill)}
    return spark.read.format("kafka").options(**options).load()


@contextmanager
def new_topic(stage: Stage) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes a frame to a new topic, which is deleted at exit."""
    with topic_of(CLIENT, server_of(stage, CLIENT.server), "bench-spark") as topic:
        yield lambda rows: _save(stage, rows, topic)


def _save(stage: Stage, rows: Any, topic: str) -> None:
    rows.write.format("kafka").options(topic=topic, **WRITE, **_servers(stage)).mode("append").save()


def _servers(stage: Stage) -> dict[str, str]:
    return {"kafka.bootstrap.servers": f"127.0.0.1:{server_of(stage, CLIENT.server).ports['kafka']}"}
