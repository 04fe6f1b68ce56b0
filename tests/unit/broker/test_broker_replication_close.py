"""The replication of a broker that stops."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from headrace_broker.runtime.replication import Replication
from headrace_server.partition_state import Replica


class Gauge:
    """Takes what it is told."""

    def set(self, value: float) -> None:
        self.value = value


async def test_a_broker_that_stops_opens_no_new_stream() -> None:
    """A leader that is elected while calls end begins no stream: it would have no end, and the stop would time out."""
    view = SimpleNamespace(brokers={}, keyspace=None)
    context = SimpleNamespace(
        broker_id=1, metrics=SimpleNamespace(follower_partitions=Gauge(), connected_followers=Gauge())
    )
    partition = SimpleNamespace(topic_id=b"t", number=0)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        replication = Replication(view, None, context, None, tasks, None, tuple)  # type: ignore[arg-type]
        replication.follow(partition, Replica(2, 20))  # type: ignore[arg-type]
        assert context.metrics.follower_partitions.value == 1
        replication.close()
        replication.follow(partition, Replica(3, 30))  # type: ignore[arg-type]
        replication.fetch(partition)  # type: ignore[arg-type]
