"""Topics of a directory become topics of a real cluster: equal offsets, checksums and chain, groups along."""

from __future__ import annotations

import headrace
import pytest
from headrace import TopicPartition
from headrace.client.admin.partition_calls import PartitionCalls
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.operations import execute
from headrace.client.net.transport import open_connections
from headrace.wire.batch import iter_batches

WAIT = 60
STAMP_BYTES = 32


def batches_of(topic, number, end, **settings):
    """Return (base offset, append time, chain value before, bytes without the stamp) of each batch below an offset."""
    config = build(AdminConfig, settings)
    with headrace.Admin(**settings) as admin:
        described = admin.describe_topic(topic)
        offset = admin.list_offsets(topic, "earliest")[TopicPartition(topic, number)].offset
    calls, connections = PartitionCalls(topic, described.topic_id, config), open_connections("Test", config)
    found = []
    try:
        while offset < end:
            fetched = execute(calls.fetch(number, offset, max_wait_ms=100, max_bytes=1 << 20), connections.run_step)
            for header, view in iter_batches(fetched.batches):
                if header.base_offset < end:
                    stamp = header.base_offset, header.append_timestamp_ms, header.previous_crc
                    found.append((*stamp, bytes(view[STAMP_BYTES:])))
                    offset = header.end_offset
    finally:
        connections.close()
    return found


def fill(log, topic, values, **settings):
    with log.producer(batch_records=50, **settings) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, key=b"k%d" % (value % 7), partition=value % 2)


def test_a_directory_becomes_a_cluster_s_topics(headrace_cluster, topic_name, tmp_path):
    """The same batches under the same offsets, with settings and the groups' offsets; producers continue."""
    servers = headrace_cluster.bootstrap_servers
    group = f"{topic_name}-group"
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic(topic_name, partitions=2, config={"max_batch_bytes": 1 << 14})
        fill(log, topic_name, range(1000), compression_type="gzip")
        fill(log, topic_name, range(1000, 1100))
        log.admin.reset_group_offsets(group, {TopicPartition(topic_name, 0): 17})
    told = []
    (promoted,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers, progress=told.append)
    assert (promoted.name, promoted.end_offsets, promoted.groups) == (topic_name, {0: 550, 1: 550}, [group])
    assert told
    directory = f"dir:{tmp_path / 'events'}"
    for number in range(2):
        ours = batches_of(topic_name, number, 550, bootstrap_servers=directory)
        assert ours == batches_of(topic_name, number, 550, bootstrap_servers=servers) != []
    with headrace.Admin(bootstrap_servers=servers) as admin:
        configs = admin.describe_config(topic_name)
        assert (configs["max_batch_bytes"].value, configs["mirror"].value) == (str(1 << 14), "")
        assert admin.group_offsets(group)[TopicPartition(topic_name, 0)].offset == 17
    with headrace.Producer(bootstrap_servers=servers) as producer:
        assert producer.send(topic_name, b"next", partition=0).result(WAIT).offset == 550
    (again,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers)
    assert (again.was_promoted, again.size_bytes) == (True, 0)


def test_offsets_of_a_group_that_was_refused_are_stored_by_the_next_call(headrace_cluster, topic_name, tmp_path):
    """A partition for which the group has an offset in the cluster by then keeps it: the group has read there."""
    servers = headrace_cluster.bootstrap_servers
    group, other = f"{topic_name}-group", f"{topic_name}-other"
    first, second = (TopicPartition(topic_name, number) for number in range(2))
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic(topic_name, partitions=2)
        fill(log, topic_name, range(100))
        log.admin.reset_group_offsets(group, {first: 17, second: 18})
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(other, partitions=1)
        with headrace.Consumer(other, group_id=group, bootstrap_servers=servers) as member:
            while not member.assignment():
                member.poll(timeout=1)
            for _ in range(2):
                (refused,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers)
                assert (refused.groups, list(refused.refused_groups)) == ([], [group])
        admin.reset_group_offsets(group, {first: 3})
        (again,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers)
        assert (again.was_promoted, again.groups, again.refused_groups) == (True, [group], {})
        offsets = admin.group_offsets(group)
        assert (offsets[first].offset, offsets[second].offset) == (3, 18)


def test_an_empty_topic_is_promoted_again_while_nothing_is_written_to_it(headrace_cluster, topic_name, tmp_path):
    """The same call twice; afterwards it cannot be told from another topic of the name."""
    servers = headrace_cluster.bootstrap_servers
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic(topic_name, partitions=2)
    for was_promoted in (False, True):
        (promoted,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers)
        assert (promoted.end_offsets, promoted.was_promoted) == ({0: 0, 1: 0}, was_promoted)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send(topic_name, b"of another")
    with pytest.raises(headrace.TopicAlreadyExistsError):
        headrace.promote(tmp_path / "events", bootstrap_servers=servers)


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_emptied_partition_is_promoted_again(headrace_cluster, topic_name, tmp_path, partitions):
    """It has no record to compare; also where the cluster has further ones. A topic of its own is another one."""
    servers = headrace_cluster.bootstrap_servers
    for path in ("events", "others"):
        with headrace.open(tmp_path / path) as log:
            log.admin.create_topic(topic_name, partitions=partitions)
            with log.producer() as producer:
                for number in range(partitions):
                    producer.send(topic_name, path.encode(), partition=number)
            log.admin.delete_records(topic_name, {0: 1})
    for was_promoted in (False, True):
        (promoted,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers)
        assert promoted.was_promoted == was_promoted
    with headrace.Producer(bootstrap_servers=servers) as producer:
        assert producer.send(topic_name, b"next", partition=0).result(WAIT).offset == 1
    (promoted,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers)
    assert promoted.was_promoted
    with pytest.raises(headrace.TopicAlreadyExistsError):
        headrace.promote(tmp_path / "others", bootstrap_servers=servers)


def test_an_interrupted_promotion_is_continued_and_refuses_producers_meanwhile(headrace_cluster, topic_name, tmp_path):
    """The mirror holds what was copied, and the next call copies the rest only."""
    servers = headrace_cluster.bootstrap_servers
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic(topic_name, partitions=2)
        fill(log, topic_name, range(100))

    class Interrupted(Exception):
        pass

    def interrupt(state):
        raise Interrupted

    with pytest.raises(Interrupted):
        headrace.promote(tmp_path / "events", bootstrap_servers=servers, progress=interrupt)
    producer = headrace.Producer(bootstrap_servers=servers)
    with pytest.raises(headrace.ReadOnlyTopicError):
        producer.send(topic_name, b"mine", partition=0).result(WAIT)
    with pytest.raises(headrace.DeliveryError):
        producer.close()
    (promoted,) = headrace.promote(tmp_path / "events", bootstrap_servers=servers)
    assert promoted.end_offsets == {0: 50, 1: 50}
    with headrace.Reader(topic_name, bootstrap_servers=servers) as reader:
        assert sorted(int(record.value) for record in reader) == list(range(100))


def test_another_topic_of_the_name_is_kept(headrace_cluster, topic_name, tmp_path):
    """Promotion onto it is refused; under another name it is not."""
    servers = headrace_cluster.bootstrap_servers
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic(topic_name)
        with log.producer() as producer:
            producer.send(topic_name, b"a").result(WAIT)
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=1)
    with pytest.raises(headrace.TopicAlreadyExistsError, match="another topic named"):
        headrace.promote(tmp_path / "events", bootstrap_servers=servers)
    (promoted,) = headrace.promote(
        tmp_path / "events", names={topic_name: f"{topic_name}-2"}, bootstrap_servers=servers
    )
    assert promoted.end_offsets == {0: 1}


def test_a_directory_whose_start_has_moved(headrace_cluster, topic_name, tmp_path):
    """Offsets that the directory does not have any more are a gap; records, offsets and chain of the rest are equal."""
    servers = headrace_cluster.bootstrap_servers
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic(topic_name, partitions=2)
        fill(log, topic_name, range(400))
        log.admin.delete_records(topic_name, {0: 130, 1: -1})
        with log.producer() as producer:
            producer.send(topic_name, b"last", key=b"k0", partition=0)
        start = {
            number: log.admin.list_offsets(topic_name, "earliest")[TopicPartition(topic_name, number)].offset
            for number in range(2)
        }
    assert start == {0: 130, 1: 200}
    headrace.promote(tmp_path / "events", bootstrap_servers=servers)
    with headrace.Admin(bootstrap_servers=servers) as admin:
        found = admin.list_offsets(topic_name, "earliest")
        assert {tp.partition: at.offset for tp, at in found.items()} == start
    with headrace.Reader(topic_name, bootstrap_servers=servers) as reader:
        records = [(record.partition, record.offset, record.value) for record in reader]
    with headrace.open(tmp_path / "events") as log, log.reader(topic_name) as reader:
        assert sorted(records) == sorted((record.partition, record.offset, record.value) for record in reader)


def test_a_typed_topic_and_a_table(headrace_cluster, topic_name, tmp_path):
    """Columns keep their ids, so that rows of both are read by one schema; a table's rows can be read by key."""
    servers = headrace_cluster.bootstrap_servers
    typed, table = f"{topic_name}-typed", f"{topic_name}-table"
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic(typed, columns="page string required, user int64")
        log.admin.alter_config(typed, {"columns": "page string required, ms int64"})
        log.admin.create_topic(table, config={"cleanup_policy": "compact", "table": "yes"})
        with log.producer() as producer:
            producer.send(typed, {"page": "/", "ms": 12}).result(WAIT)
        with log.table(table) as rows:
            rows.put("u1", {"name": "Ada"})
    headrace.promote(tmp_path / "events", bootstrap_servers=servers)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send(typed, {"page": "/next", "ms": 13}).result(WAIT)
    with headrace.Reader(typed, bootstrap_servers=servers) as reader:
        assert [record.value for record in reader] == [{"page": "/", "ms": 12}, {"page": "/next", "ms": 13}]
    with headrace.Table(table, bootstrap_servers=servers) as rows:
        assert rows.get("u1")["name"] == "Ada"
        rows.put("u1", {"name": "Ada L."})
