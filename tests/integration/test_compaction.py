"""Compacted topics on a real cluster: every client reads the newest record of each key, every replica keeps it."""

from __future__ import annotations

import asyncio
import itertools
import random

import headrace
import pytest
from headrace import aio
from headrace.log.segment import LOG_SUFFIX, replaced_segments, segment_names
from headrace.spark.option_table import BATCH
from headrace.spark.options import read_options
from headrace.spark.ranges import OffsetRange
from headrace.spark.reader import RangePartition, read_partition
from headrace.spark.schema import full_schema
from headrace.wire.errors import InvalidRequestError
from headrace.wire.ids import TopicPartition
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import BROKER_SETTINGS, Replicated, until

KEYS = 300
ROUNDS = 20
SETTINGS = {**BROKER_SETTINGS, "compaction_interval_ms": 50, "producer_retry_window_ms": 0}
COMPACT = {
    "cleanup_policy": "compact",
    "segment_bytes": 1 << 16,
    "segment_ms": 1_000,
    "max_batch_bytes": 1 << 14,
    "file_delete_delay_ms": 0,
    # A compaction while a producer sends keeps the batches that it may retry, and a small rest would not be due.
    "min_dirty_percent": 0,
}


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(LocalClusterSpec(brokers=3, coordinators=1, broker_settings=SETTINGS)) as running:
        yield running


def client(cluster, **settings):
    return {"bootstrap_servers": cluster.bootstrap_servers, **settings}


def put_rounds(cluster, topic, rounds=range(ROUNDS), *, deleted=(), **settings):
    """Send a value of each key once a round, then delete some; return the newest value of each key."""
    newest = {}
    with headrace.Producer(**client(cluster, linger_ms=5, **settings)) as producer:
        for turn in rounds:
            for number in range(KEYS):
                key, value = b"key-%d" % number, random.Random(f"{number} {turn}").randbytes(100)
                producer.send(topic, value, key=key)
                newest[key] = value
        for key in deleted:
            producer.send(topic, None, key=key)
            newest[key] = None
    return newest


def read(cluster, topic, **settings):
    """Return the records of a topic, with their keys."""
    with headrace.Reader(topic, **client(cluster, **settings)) as reader:
        return list(reader)


def compacted(cluster, topic, newest):
    """Wait until little more than the newest records is left; return what is read then."""

    def look():
        found = read(cluster, topic)
        return found if len(found) <= 4 * KEYS else None

    found = until(look, "the topic is compacted")
    assert {record.key: record.value for record in found} == newest
    assert [record.offset for record in found] == sorted({record.offset for record in found})
    return found


def offsets_of_each_client(cluster, topic, group, end):
    """Read a topic in all ways there are; return the offsets found, by the way."""

    async def read_async():
        async with aio.Reader(topic, **client(cluster)) as reader:
            return [record.offset async for record in reader]

    def consume():
        got = []
        with headrace.Consumer(topic, group_id=group, auto_offset_reset="earliest", **client(cluster)) as consumer:
            while not got or got[-1] < end - 1:
                got += [record.offset for record in consumer.poll(timeout=10)]
            consumer.commit()
        return got

    def read_in_spark():
        options = read_options({"subscribe": topic, "headrace.bootstrap.servers": cluster.bootstrap_servers}, BATCH)
        part = RangePartition(OffsetRange(TopicPartition(topic, 0), 0, end))
        batches = read_partition(options, full_schema(False), part)
        return [row["offset"] for batch in batches for row in batch.to_pylist()]

    def read_arrow():
        with headrace.Reader(topic, **client(cluster)) as reader:
            return reader.to_arrow()["offset"].to_pylist()

    return {
        "Arrow": read_arrow(),
        "asyncio": asyncio.run(read_async()),
        "consumer": consume(),
        "Spark": read_in_spark(),
    }


def test_every_client_reads_a_compacted_topic(cluster):
    """Readers and consumers, both transports, Arrow and Spark see the same; a group has no lag at the end."""
    with headrace.Admin(**client(cluster)) as admin:
        admin.create_topic("all", partitions=1, replication_factor=3, config=COMPACT)
        newest = put_rounds(cluster, "all", deleted=(b"key-3", b"key-4"), compression_type="zstd")
        compacted(cluster, "all", newest)

        groups = (f"g-{turn}" for turn in itertools.count())

        def look():
            """Return what was read, once no compaction came in between."""
            group, before = next(groups), read(cluster, "all")
            by_client = offsets_of_each_client(cluster, "all", group, ROUNDS * KEYS + 2)
            after = read(cluster, "all", transport="grpc")
            return (group, before, by_client, after) if len(before) == len(after) else None

        group, before, by_client, after = until(look, "one round without a compaction")
        assert before == after
        offsets = [record.offset for record in before]
        assert [name for name, found in by_client.items() if found != offsets] == []
        assert [lag.records for lag in admin.group_lag(group)] == [0]
        last = sorted({record.key: record.offset for record in before}.values())
        middle = last[len(last) // 2]  # No compaction removes it.
        with headrace.Reader("all", start=middle - 1, end=middle + 1, **client(cluster)) as reader:
            assert [record.offset for record in reader][-1] == middle


def test_records_need_keys(cluster):
    """A record without a key is refused, with what to do."""
    with headrace.Admin(**client(cluster)) as admin:
        admin.create_topic("keys", partitions=1, replication_factor=3, config=COMPACT)
    producer = headrace.Producer(**client(cluster))
    with pytest.raises(InvalidRequestError, match="a record has no key"):
        producer.send("keys", b"v").result()
    with pytest.raises(headrace.DeliveryError):
        producer.close()
    with headrace.Producer(**client(cluster)) as producer:
        assert producer.send("keys", b"v", key=b"k").result().offset == 0


def test_a_replica_that_was_away_has_the_newest_records(cluster):
    """A broker is killed, the others compact; back again it holds the same, and leads with it."""
    with headrace.Admin(**client(cluster)) as admin:
        admin.create_topic("away", assignments=[[1, 2, 3]], config=COMPACT)
        put_rounds(cluster, "away", range(5))
        cluster.broker(3).kill()
        newest = put_rounds(cluster, "away", range(5, ROUNDS), deleted=(b"key-7",))
        compacted(cluster, "away", newest)
        cluster.restart(cluster.broker(3))
        until(lambda: admin.describe_topic("away").partitions[0].in_sync_replicas == (1, 2, 3), "the broker is in sync")
        cluster.broker(1).kill()
        cluster.broker(2).kill()
        try:
            until(lambda: admin.describe_topic("away").partitions[0].leader_id == 3, "the broker leads")
            found = until(lambda: read(cluster, "away"), "it serves")
            assert {record.key: record.value for record in found} == newest
        finally:
            cluster.restart(cluster.broker(1))
            cluster.restart(cluster.broker(2))
            cluster.wait_until_healthy()


def begun_logs(admin, topic, broker_id):
    """Return the logs of a topic at a broker that have records."""
    return [log for log in admin.describe_logs(topic) if log.broker_id == broker_id and log.log_end_offset]


def test_a_new_replica_copies_the_compacted_log(cluster):
    """A replica that is added has the newest records, and no more than the leader of the others; a limit holds it."""
    with headrace.Admin(**client(cluster)) as admin:
        admin.create_topic("moved", assignments=[[1, 2]], config={**COMPACT, "min_insync_replicas": 1})
        newest = put_rounds(cluster, "moved")
        compacted(cluster, "moved", newest)
        assert 0 < max(log.compacted_offset for log in admin.describe_logs("moved")) <= KEYS * ROUNDS
        target = {TopicPartition("moved", 0): [3]}
        admin.reassign_partitions(target, copy_bytes_per_second=1)
        until(lambda: begun_logs(admin, "moved", 3), "the copy has begun")
        read(cluster, "moved")
        (move,) = admin.list_reassignments(["moved"])
        assert (move.adding, 3 in move.in_sync_replicas) == ((3,), False), "a byte a second"
        admin.reassign_partitions(target, copy_bytes_per_second=1 << 30)
        until(lambda: admin.describe_topic("moved").partitions[0].replicas == (3,), "it was moved")
        found = until(lambda: read(cluster, "moved"), "the new replica serves")
        assert {record.key: record.value for record in found} == newest
        assert len(found) <= 4 * KEYS


def compacted_files(directory):
    """Return the compacted segments without those that others replace, which a restart removes."""
    names = segment_names([path.name for path in directory.iterdir()])
    left = set(names) - set(replaced_segments(names))
    return [directory / f"{name.stem}{LOG_SUFFIX}" for name in left if name.end_offset >= 0]


def test_a_compacted_segment_that_rots_is_copied_anew(cluster):
    """A flipped bit on one replica of a table: its state finds it, no read returns it, and the log is copied again."""
    replicated = Replicated(cluster)
    replicated.create("rotten", [[1, 2, 3]], **COMPACT, table="yes")
    with headrace.Table("rotten", **client(cluster)) as users:
        for turn in range(ROUNDS):
            users.put_many((f"u{number}", {"value": f"{turn} " * 30}) for number in range(KEYS))
        directory = replicated.log_directory(1, "rotten")
        until(lambda: compacted_files(directory), "broker 1 has compacted")
        cluster.broker(1).kill()
        rotten = max(compacted_files(directory), key=lambda path: path.stat().st_size)
        with rotten.open("r+b") as file:
            place = rotten.stat().st_size // 2
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 4]))
        cluster.restart(cluster.broker(1))
        until(lambda: directory.with_name(f"{directory.name}.corrupt-0").exists(), "the log was set aside")
        replicated.wait_in_sync("rotten")
        until(lambda: replicated.admin.elect_leaders() is not None and replicated.leader("rotten") == 1, "it leads")
        rows = users.get_many([f"u{number}" for number in range(KEYS)])
    assert [row["value"] for row in rows] == [f"{ROUNDS - 1} " * 30] * KEYS
    replicated.close()
