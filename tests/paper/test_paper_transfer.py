"""How bytes leave a broker, where it departs from section 3.1 of the paper: by sendfile or not, and from where."""

from __future__ import annotations

from collections.abc import Callable

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster

SENT_BYTES = "headrace_broker_native_sent_bytes_total"
"""What sendfile has sent."""
SECONDS = 60.0
METRICS = {"metrics_listen": "127.0.0.1:0"}


def by_sendfile(cluster: LocalCluster, topic: str, size_bytes: int, transport: str) -> int:
    """Produce a record of a size to a new topic, read it, and return the bytes that sendfile sent for it."""
    settings = {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}
    with headrace.Admin(**settings) as admin:
        admin.create_topic(topic, partitions=1)
    with headrace.Producer(**settings) as producer:
        producer.send(topic, bytes(size_bytes)).result(SECONDS)
    before = cluster.broker(1).metrics()[SENT_BYTES]
    with headrace.Reader(topic, transport=transport, **settings) as reader:
        assert [record.value for record in reader] == [bytes(size_bytes)]
    return int(cluster.broker(1).metrics()[SENT_BYTES] - before)


@pytest.mark.native
def test_section_3_1_small_answers_and_grpc_do_without_sendfile(own_cluster: Callable[..., LocalCluster]) -> None:
    """Section 3.1, a departure: sendfile sends answers of the native protocol above 64 KiB.

    Smaller ones are read, because that costs less than the system calls; gRPC cannot send a file.
    """
    cluster = own_cluster(brokers=1, coordinators=1, broker_settings=METRICS)
    batch_bytes = 80 + 8
    assert by_sendfile(cluster, "small", (64 << 10) - batch_bytes, "native") == 0
    assert by_sendfile(cluster, "large", (64 << 10) - batch_bytes + 8, "native") == (64 << 10) + 8
    assert by_sendfile(cluster, "grpc", 1 << 20, "grpc") == 0


@pytest.mark.native
def test_section_3_1_tls_does_without_sendfile(own_cluster: Callable[..., LocalCluster]) -> None:
    """Section 3.1, a departure: with TLS the broker reads and encrypts, so that nothing leaves by sendfile."""
    cluster = own_cluster(brokers=1, coordinators=1, broker_settings=METRICS, tls=True)
    assert by_sendfile(cluster, "secret", 1 << 20, "native") == 0


def test_section_3_1_only_tables_are_cached_in_the_process(own_cluster: Callable[..., LocalCluster]) -> None:
    """Section 3.1, a departure: rows of tables are read from decoded batches in the broker's memory.

    A topic's messages are not; they only go through the page cache, as the paper's do.
    """
    cluster = own_cluster(brokers=1, coordinators=1, broker_settings=METRICS)
    settings = {"bootstrap_servers": cluster.bootstrap_servers}

    def reads() -> tuple[float, float]:
        found = cluster.broker(1).metrics()
        return found["headrace_broker_table_batch_misses_total"], found["headrace_broker_table_batch_hits_total"]

    with headrace.Admin(**settings) as admin:
        admin.create_topic("clicks", partitions=1)
        admin.create_topic("users", partitions=1, config={"cleanup_policy": "compact", "table": "yes"})
    with headrace.Producer(**settings) as producer:
        producer.send("clicks", b"click").result(SECONDS)
    for _ in range(2):
        with headrace.Reader("clicks", **settings) as reader:
            assert [record.value for record in reader] == [b"click"]
    assert reads() == (0, 0)
    with headrace.Table("users", **settings) as users:
        users.put("ann", {"city": "London"})
        for _ in range(3):
            assert dict(users.get("ann")) == {"city": "London"}
    misses, hits = reads()
    assert misses <= 1
    assert hits == 3 - misses
