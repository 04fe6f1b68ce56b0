"""A stream whose log was cut by an unclean election: what was read is compared by leader epoch. No Spark runs."""

import logging
from collections.abc import Iterator
from unittest.mock import ANY

import pytest
from headrace.spark.errors import DataLossError
from headrace.spark.range_reader import read_range
from headrace.spark.schema import full_schema
from headrace.spark.stream_offsets import EPOCHS, IDS
from headrace.spark.stream_reader import HeadraceStreamReader
from headrace.wire.columns import encode_batch
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.fakes.cluster import FakeCluster, FakePartition, running_fake


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """One partition with 100 records of leader epoch 0."""
    with running_fake() as cluster:
        cluster.create_topic("t")
        fill(cluster, "old", 0, 100)
        yield cluster


def fill(fake, word, first, end):
    for base in range(first, end, 10):
        fake.append(
            "t", encode_batch([b"%s-%d" % (word.encode(), n) for n in range(base, base + 10)], base_timestamp_ms=5)
        )


def cut(fake, offset):
    """An unclean election: the log ends at `offset`, in a new leader epoch."""
    fake.topics["t"].partitions[0].truncate(offset)


class Stream:
    """A query that reads all there is, batch by batch, with the checkpoint at hand."""

    def __init__(self, fake, **options):
        given = {"headrace.bootstrap.servers": fake.address, "subscribe": "t", "startingoffsets": "earliest", **options}
        self.reader = HeadraceStreamReader(given, full_schema(False))
        self.settings = {"bootstrap_servers": fake.address}
        self.at = self.reader.initialOffset()

    def plan(self, limit=None):
        """The end of the next micro-batch and its ranges; (None, []) while there is nothing new."""
        end = self.reader.latestOffset(self.at, limit or ReadAllAvailable())
        if end == self.at:
            return None, []
        return end, [task.part for task in self.reader.partitions(self.at, end)]

    def batch(self, limit=None):
        """What the next micro-batch reads."""
        end, _ = self.plan(limit)
        return [] if end is None else self.run(self.at, end)

    def run(self, start, end):
        """What a micro-batch between offsets of the checkpoint reads."""
        found = []
        for task in self.reader.partitions(start, end):
            for decoded in read_range(self.settings, task.part, fail_on_data_loss=True):
                found += decoded.columns.values()[decoded.start : decoded.end]
        self.at = end
        return found


def values(word, first, end):
    return [b"%s-%d" % (word.encode(), n) for n in range(first, end)]


def forget_epochs(at):
    """The checkpoint as a release before epochs wrote it."""
    return {name: value for name, value in at.items() if name != EPOCHS}


def test_the_checkpoint_has_the_leader_epoch_of_the_last_record(fake):
    stream = Stream(fake)
    assert stream.batch() == values("old", 0, 100)
    assert stream.at[EPOCHS] == {"t": {"0": 0}}
    cut(fake, 100)  # A clean election: nothing is lost.
    fill(fake, "new", 100, 120)
    assert stream.batch(ReadMaxRows(10)) == values("new", 100, 110)
    assert stream.at[EPOCHS] == {"t": {"0": 1}}
    assert stream.batch() == values("new", 110, 120)


def test_an_election_without_records_is_no_loss(fake):
    stream = Stream(fake)
    stream.batch()
    cut(fake, 100)
    cut(fake, 100)
    assert stream.batch() == []
    fill(fake, "new", 100, 110)
    assert stream.batch() == values("new", 100, 110)


@pytest.mark.parametrize("end", [90, 100, 130])
def test_records_that_an_election_replaced_are_a_loss(fake, end):
    """Whether the log is shorter by now, as long as it was, or longer."""
    stream = Stream(fake)
    stream.batch()
    cut(fake, 60)
    fill(fake, "new", 60, end)
    if end == 100:  # Nothing to be read until there is more.
        assert stream.batch() == []
        fill(fake, "new", 100, 110)
    with pytest.raises(DataLossError, match=r"t-0 was truncated.* below offset 100, the 40 records from 60 on"):
        stream.batch()


@pytest.mark.parametrize("end", [60, 90, 130])
def test_without_fail_on_data_loss_reading_continues_at_the_truncation_point(fake, end, caplog):
    stream = Stream(fake, failondataloss="false")
    stream.batch()
    cut(fake, 60)
    fill(fake, "new", 60, end)
    with caplog.at_level(logging.WARNING):
        assert stream.batch() == values("new", 60, end)
    assert any("the 40 records from 60 on" in message for message in caplog.messages)
    fill(fake, "newer", end, end + 10)
    assert stream.batch() == values("newer", end, end + 10)


def test_a_batch_that_is_planned_again_is_the_same(fake):
    stream = Stream(fake, failondataloss="false")
    stream.batch()
    cut(fake, 60)
    fill(fake, "new", 60, 80)
    assert stream.plan() == stream.plan()


@pytest.mark.parametrize("end", [150, 180, 230])
def test_a_planned_batch_ends_where_its_records_are_lost(fake, end, caplog):
    """After a restart, with a log that is shorter by now, or as long: each record of the present log is read once."""
    first, again = Stream(fake, failondataloss="false"), Stream(fake, failondataloss="false")
    first.batch()
    fill(fake, "old", 100, 200)
    planned, _ = first.plan()
    cut(fake, 150)
    fill(fake, "new", 150, end)
    with caplog.at_level(logging.WARNING):
        assert again.run(first.at, planned) == values("old", 100, 150)
    assert any("t-0 was truncated" in text and "the 50 records from 150 on" in text for text in caplog.messages)
    fill(fake, "newer", end, end + 10)
    assert again.batch() == values("new", 150, end) + values("newer", end, end + 10)


def test_a_planned_batch_whose_records_are_lost_is_an_error(fake):
    """Also the first of a query, which no batch precedes."""
    first = Stream(fake)
    planned, _ = first.plan()
    cut(fake, 60)
    with pytest.raises(DataLossError, match=r"t-0 was truncated.*, up to offset 100, the 40 records from 60 on"):
        Stream(fake).run(first.at, planned)


@pytest.mark.parametrize("options", [{}, {"failondataloss": "false"}])
@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(50)])
def test_a_partition_that_outdated_metadata_omits_is_not_read_again(fake, options, limit):
    """A server that cannot reach etcd responds with the partitions that it knew."""
    fake.topics["t"].partitions.append(FakePartition())
    fake.append("t", encode_batch([b"other"], base_timestamp_ms=5), partition=1)
    stream = Stream(fake, **options)
    stream.batch()
    assert stream.at["t"] == {"0": 100, "1": 1}
    epochs = stream.at[EPOCHS]
    added = fake.topics["t"].partitions.pop()
    assert stream.batch(limit) == []
    fill(fake, "new", 100, 110)
    assert stream.batch(limit) == values("new", 100, 110)
    assert stream.at["t"] == {"0": 110, "1": 1}
    assert stream.at[EPOCHS] == epochs
    fake.topics["t"].partitions.append(added)
    assert stream.batch(limit) == []


def test_a_topic_that_outdated_metadata_omits_is_not_read_again(fake, caplog):
    """Of a pattern, after a restart: it is reported as deleted, once, and its position stays."""
    options = {"subscribe": "", "subscribepattern": "[tu]", "failondataloss": "false"}
    fake.create_topic("u")
    fake.append("u", encode_batch([b"other"], base_timestamp_ms=5))
    before = Stream(fake, **options)
    before.batch()
    before.reader.stop()
    omitted = fake.topics.pop("u")
    stream = Stream(fake, **options)
    stream.at = before.at
    assert stream.batch() == []
    fill(fake, "new", 100, 110)
    assert stream.batch() == values("new", 100, 110)
    assert (stream.at["t"], stream.at["u"]) == ({"0": 110}, {"0": 1})
    assert {name: stream.at[IDS][name] for name in "u"} == {"u": omitted.topic_id.hex()}
    assert [record.message for record in caplog.records if "topic u was deleted" in record.message] == [ANY]
    fake.topics["u"] = omitted
    fake.append("u", encode_batch([b"next"], base_timestamp_ms=5), partition=0)
    after = Stream(fake, **options)
    after.at = stream.at
    assert after.batch() == [b"next"]


def test_a_partition_that_is_not_assigned_any_more_leaves_the_checkpoint(fake):
    fake.topics["t"].partitions.append(FakePartition())
    stream = Stream(fake)
    stream.batch()
    stream.reader.stop()
    fewer = Stream(fake, subscribe="", assign='{"t": [0]}')
    fewer.at = stream.at
    fill(fake, "new", 100, 110)
    assert fewer.batch() == values("new", 100, 110)
    assert fewer.at["t"] == {"0": 110}


def test_an_old_checkpoint_continues_and_gets_epochs(fake):
    stream = Stream(fake)
    stream.batch()
    stream.at = forget_epochs(stream.at)
    assert stream.batch() == []
    fill(fake, "old", 100, 110)
    assert stream.batch() == values("old", 100, 110)
    assert stream.at[EPOCHS] == {"t": {"0": 0}}


def test_an_end_below_the_start_is_a_loss_for_an_old_checkpoint_too(fake):
    stream = Stream(fake)
    stream.batch()
    stream.at = forget_epochs(stream.at)
    cut(fake, 60)
    with pytest.raises(DataLossError, match=r"t-0 was truncated.* below offset 100, the 40 records from 60 on"):
        stream.batch()
    stream = Stream(fake, failondataloss="false")
    stream.at = {"t": {"0": 100}, "@ids": {"t": fake.topics["t"].topic_id.hex()}}
    assert stream.batch() == []
    fill(fake, "new", 60, 70)
    assert stream.batch() == values("new", 60, 70)


def test_an_epoch_that_retention_took_is_not_judged(fake):
    stream = Stream(fake)
    stream.batch()
    cut(fake, 100)
    fill(fake, "new", 100, 120)
    log = fake.topics["t"].partitions[0]
    log.start, log.batches = 110, log.batches[-1:]
    with pytest.raises(DataLossError, match="10 records were removed"):
        stream.batch()


def test_a_task_reads_no_other_topic_of_the_name(fake):
    """The topic is created again between the plan and the reading."""
    stream = Stream(fake)
    end = stream.reader.latestOffset(stream.at, ReadAllAvailable())
    (task,) = stream.reader.partitions(stream.at, end)
    fake.create_topic("t")
    fill(fake, "new", 0, 100)
    with pytest.raises(DataLossError, match="deleted"):
        list(stream.reader.read(task))
