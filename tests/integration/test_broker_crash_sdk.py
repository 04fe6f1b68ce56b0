"""kill -9 of a broker under the real producer: nothing acknowledged is lost, moved or duplicated."""

from __future__ import annotations

import threading
from collections.abc import Callable

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster

PARTITIONS = 2
BEFORE_KILL = 2_000
RECORDS = 12_000
WINDOW = 3_000
DEADLINE_SECONDS = 60


def send_all(producer: headrace.Producer, topic: str, futures: list[headrace.RecordFuture]) -> None:
    """Send the numbers from 0 on, at most WINDOW of them unacknowledged; a failure ends the thread, and the test."""
    for number in range(RECORDS):
        if number >= WINDOW:
            futures[number - WINDOW].result(DEADLINE_SECONDS)
        futures.append(producer.send(topic, b"%d" % number, partition=number % PARTITIONS))


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_kill_and_restart_under_the_producer(own_cluster: Callable[..., LocalCluster], durability: str) -> None:
    """I15, I16, I20, H48: every acknowledged record lies at its offset, in order, and none is there twice."""
    cluster = own_cluster(brokers=1, coordinators=1)
    servers = cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("crash", partitions=PARTITIONS, config={"durability": durability})
    futures: list[headrace.RecordFuture] = []
    with headrace.Producer(bootstrap_servers=servers, acks="all", batch_bytes=2_000, linger_ms=1) as producer:
        sender = threading.Thread(target=send_all, args=(producer, "crash", futures), daemon=True)
        sender.start()
        while len(futures) <= BEFORE_KILL:
            sender.join(0.001)
            assert sender.is_alive()
        futures[BEFORE_KILL].result(DEADLINE_SECONDS)
        cluster.broker(1).kill()
        # Everything else was not sent or not answered when the broker died.
        acknowledged_before = [future.done() for future in tuple(futures)].count(True)
        assert BEFORE_KILL / PARTITIONS < acknowledged_before < RECORDS
        cluster.restart(cluster.broker(1))
        sender.join(DEADLINE_SECONDS)
        assert not sender.is_alive()
        assert len(futures) == RECORDS
        metadata = [future.result(DEADLINE_SECONDS) for future in futures]
    for partition in range(PARTITIONS):
        with headrace.Reader("crash", partitions=[partition], bootstrap_servers=servers) as reader:
            found = [(record.offset, record.value) for record in reader]
        assert found == list(enumerate(b"%d" % number for number in range(partition, RECORDS, PARTITIONS)))
        assert [at.offset for at in metadata[partition::PARTITIONS]] == [offset for offset, _ in found]
