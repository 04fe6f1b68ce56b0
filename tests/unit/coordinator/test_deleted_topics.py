"""How long etcd keeps that topics were deleted: by time, and by how many they are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from headrace_coordinator.runtime import deleted_topics
from headrace_coordinator.runtime.deleted_topics import INTERVAL_MS, MIN_RETENTION_MS, DeletedTopics
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metadata_view import DeletedTopic
from headrace_server.metastore.api import MAX_TXN_OPERATIONS, Put

from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryMetastore

WEEK_MS = 604_800_000
DELAY_MS = 60_000
"""`file_delete_delay_ms` of a topic that does not say."""


class Cluster:
    """Topics that were deleted, and the controller's looks at them."""

    def __init__(self):
        self.deleted = {}
        self.undecodable = {}
        self.clock = ManualClock()
        self.topics = DeletedTopics(None, self, self.clock, retention_ms=WEEK_MS)

    def delete(self, *numbers):
        for number in numbers:
            topic_id = number.to_bytes(16, "big")
            topic = metadata_pb2.Topic(topic_id=topic_id)
            message = metadata_pb2.DeletedTopic(topic=topic, deleted_ms=self.clock.now_ms())
            self.deleted[topic_id] = DeletedTopic(message, number + 1)

    def look(self):
        """All that is forgotten after an interval; the numbers of the topics."""
        self.clock.advance(INTERVAL_MS)
        forgotten = []
        while some := self.topics.expired():
            assert len(some) < MAX_TXN_OPERATIONS
            for topic_id, revision in some.items():
                assert revision == self.deleted.pop(topic_id).mod_revision
                forgotten.append(int.from_bytes(topic_id, "big"))
        return forgotten


@pytest.fixture
def cluster():
    return Cluster()


def test_deletions_are_forgotten_after_their_time(cluster):
    """After the retention and the delay of their files, in transactions that fit; none if a value is unreadable."""
    cluster.delete(*range(300))
    cluster.clock.advance(WEEK_MS)
    assert cluster.look() == list(range(300))
    cluster.delete(1)
    cluster.clock.advance(2 * WEEK_MS)
    cluster.undecodable["topics/x"] = b""
    assert cluster.look() == []
    cluster.undecodable.clear()
    assert cluster.look() == [1]


def test_the_oldest_deletions_are_forgotten_early_where_there_are_too_many(cluster, monkeypatch):
    """Those of the last ten minutes never: a broker that runs needs them."""
    monkeypatch.setattr(deleted_topics, "MAX_DELETED_TOPICS", 5)
    cluster.delete(*range(4))
    cluster.clock.advance(1_000)
    cluster.delete(*range(4, 8))
    assert cluster.look() == []
    cluster.clock.advance(MIN_RETENTION_MS + DELAY_MS)
    cluster.delete(8, 9)
    assert cluster.look() == [0, 1, 2, 3, 4]
    assert cluster.look() == []


def test_who_is_no_controller_any_more_forgets_nothing():
    """I14: the write compares the controller's key, whatever its sender believes to be."""
    store, keyspace, topic_id = MemoryMetastore(), Keyspace("c", 1), b"t" * 16
    topics = DeletedTopics(store, SimpleNamespace(keyspace=keyspace), ManualClock(), retention_ms=WEEK_MS)

    async def scenario():
        key = keyspace.deleted_topic(topic_id)
        deleted = (await store.txn([], [Put(key, b"")])).revision
        epoch = (await store.txn([], [Put(keyspace.controller(), b"another")])).revision
        await topics.remove({topic_id: deleted}, epoch - 1)
        assert (await store.get(key)).key_value
        await topics.remove({topic_id: deleted}, epoch)
        assert not (await store.get(key)).key_value

    asyncio.run(scenario())
