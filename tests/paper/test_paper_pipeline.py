"""Section 4 of the paper: the audit of producers' own counts, and the load into a table, without Spark."""

import collections
import json
import socket

import headrace
import pyarrow
import pyarrow.parquet
import pytest
from headrace.client.loading.tables.attempts import begin, table_lock
from headrace.client.loading.tables.parquet_table import ParquetTable
from headrace.client.loading.tables.state import Source
from headrace_devcluster.cluster import LocalCluster

WINDOW_MS = 60_000


@pytest.fixture
def two_topics(headrace_cluster: LocalCluster, topic_name: str):
    """A topic for messages and one for monitoring events."""
    names = topic_name, f"{topic_name}-events"
    with headrace.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
        for name in names:
            admin.create_topic(name, partitions=2, replication_factor=1)
        yield names
        for name in names:
            admin.delete_topic(name)


def read_all(servers: str, topic: str) -> list[headrace.Record]:
    with headrace.Reader(topic, bootstrap_servers=servers, start="earliest", end="current") as reader:
        return list(reader)


def test_section_4_each_message_carries_the_time_when_it_was_generated(headrace_cluster, two_topics) -> None:
    """The producer's, whenever it is stored; the server's name is told with the counts, once and not a message."""
    topic, _ = two_topics
    servers = headrace_cluster.bootstrap_servers
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"x", timestamp_ms=1_700_000_000_123).result(30)
    assert [record.timestamp_ms for record in read_all(servers, topic)] == [1_700_000_000_123]


def test_section_4_producers_record_the_number_of_messages_of_each_window(headrace_cluster, two_topics) -> None:
    """To a separate topic, with the server's name; consumers count what they received and validate it by that."""
    topic, events = two_topics
    servers = headrace_cluster.bootstrap_servers
    settings = {"audit_topic": events, "audit_window_ms": WINDOW_MS, "audit_application": "shop"}
    for producer_number in range(2):
        with headrace.Producer(bootstrap_servers=servers, **settings) as producer:
            for number in range(500):
                producer.send(topic, b"x", timestamp_ms=1_700_000_000_000 + number * 500 * (producer_number + 1))
    received = collections.Counter(record.timestamp_ms // WINDOW_MS * WINDOW_MS for record in read_all(servers, topic))
    published: collections.Counter[int] = collections.Counter()
    for record in read_all(servers, events):
        event = json.loads(record.value)
        assert (event["topic"], event["host"], event["application"]) == (topic, socket.gethostname(), "shop")
        published[event["window_start_ms"]] += event["acknowledged"]
    assert published == received
    assert sum(received.values()) == 1_000
    assert len(received) > 5


def test_section_4_data_and_offsets_are_stored_only_when_the_job_has_succeeded(tmp_path) -> None:
    """An attempt that does not end leaves neither; one that does leaves both."""
    table = ParquetTable(tmp_path / "table")
    for succeeds in (False, True):
        with table_lock(table.root):
            table.recover()
            attempt = begin(table.root)
            attempt.data.mkdir()
            pyarrow.parquet.write_table(pyarrow.table({"offset": [0, 1, 2]}), attempt.data / "part.parquet")
            if succeeds:
                table.commit(attempt, Source("topic", "t", "01"), {"0": 3}, [])
        state = table.state()
        assert (dict(state.positions), state.rows) == (({"0": 3}, 3) if succeeds else ({}, 0))
        assert len(list(table.root.glob("*.parquet"))) == succeeds
