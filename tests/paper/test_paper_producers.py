"""Where producers depart from sections 3.2, 4 and 5 of the paper, on a real cluster by the SDK."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster

SECONDS = 60.0


@pytest.fixture
def servers(headrace_cluster: LocalCluster) -> str:
    """Where the shared cluster is."""
    return headrace_cluster.bootstrap_servers


@pytest.fixture
def make_topic(servers: str, topic_name: str) -> Iterator[Callable[..., str]]:
    """Makes this test's topics: `make_topic("events", partitions=2)`; deleted afterwards."""
    with contextlib.ExitStack() as stack, headrace.Admin(bootstrap_servers=servers) as admin:

        def make(suffix: str = "", **settings: object) -> str:
            name = f"{topic_name}{suffix}"
            admin.create_topic(name, **settings)
            stack.callback(admin.delete_topic, name)
            return name

        yield make
        stack.close()


def read_all(servers: str, topic: str) -> list[headrace.Record]:
    """All records that are visible now."""
    with headrace.Reader(topic, bootstrap_servers=servers) as reader:
        return list(reader)


def test_section_3_2_a_batch_goes_to_one_random_partition(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.2, a departure: the random partition is that of a batch and not of a message."""
    topic = make_topic(partitions=3)
    with headrace.Producer(bootstrap_servers=servers, linger_ms=60_000) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(100)]
        producer.flush(SECONDS)
        assert len({future.result(SECONDS).partition for future in futures}) == 1


def test_section_4_the_servers_name_is_in_the_counts_or_in_a_header(
    servers: str, make_topic: Callable[..., str]
) -> None:
    """Section 4, a departure: the paper's messages carry the server's name and the time when they were generated.

    Ours carry the time, one for the records of a batch that are sent without their own; the host is in the audit's
    counts, and in a record where the application puts it into a header.
    """
    topic, events = make_topic(partitions=1), make_topic("-events", partitions=1)
    settings = {"audit_topic": events, "audit_window_ms": 60_000, "linger_ms": 60_000}
    host = socket.gethostname()
    before_ms = time.time_ns() // 1_000_000
    with headrace.Producer(bootstrap_servers=servers, **settings) as producer:
        producer.send(topic, b"plain")
        producer.send(topic, b"plain")
        producer.send(topic, b"named", timestamp_ms=1_700_000_000_123, headers=[("host", host.encode())])
        producer.flush(SECONDS)
    after_ms = time.time_ns() // 1_000_000
    first, second, named = read_all(servers, topic)
    assert first.timestamp_ms == second.timestamp_ms
    assert before_ms <= first.timestamp_ms <= after_ms
    assert list(first.headers) == []
    assert named.timestamp_ms == 1_700_000_000_123
    assert list(named.headers) == [("host", host.encode())]
    claims = [json.loads(record.value) for record in read_all(servers, events)]
    assert claims
    assert {claim["host"] for claim in claims} == {host}


def test_section_4_clients_find_leaders_from_a_list_of_servers(
    headrace_cluster: LocalCluster, servers: str, make_topic: Callable[..., str]
) -> None:
    """Section 4, a departure: no hardware load-balancer distributes publish requests to the brokers.

    A client takes any server that responds of its list, learns the leaders from it and sends to each of them directly.
    """
    topic = make_topic(partitions=6, replication_factor=1)
    with headrace.Admin(bootstrap_servers=servers) as admin:
        leaders = {each.leader_id for each in admin.describe_topic(topic).partitions}
    assert leaders == {1, 2, 3}
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # Not listening: connections are refused.
        one_of_two = f"127.0.0.1:{unused.getsockname()[1]},{headrace_cluster.broker(1).address}"
        with headrace.Producer(bootstrap_servers=one_of_two) as producer:
            stored = [producer.send(topic, b"%d" % number, partition=number).result(SECONDS) for number in range(6)]
    assert [each.offset for each in stored] == [0] * 6
    assert len(read_all(servers, topic)) == 6


def test_section_5_producers_wait_by_default(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 5, a departure: the paper's producer knows of no acknowledgement; by default ours learns each offset.

    All in-sync replicas have the record then. `send` itself does not wait.
    """
    topic = make_topic(partitions=1, replication_factor=3)
    with headrace.Producer(bootstrap_servers=servers, linger_ms=60_000) as producer:
        future = producer.send(topic, b"asked")
        assert not future.done()
        producer.flush(SECONDS)
        assert future.result(SECONDS).offset == 0
    with headrace.Admin(bootstrap_servers=servers) as admin:
        replicas = admin.describe_logs(topic)
        in_sync = admin.describe_topic(topic).partitions[0].in_sync_replicas
    ends = {replica.broker_id: replica.log_end_offset for replica in replicas}
    assert len(in_sync) >= 2
    assert all(ends[broker] == 1 for broker in in_sync)
