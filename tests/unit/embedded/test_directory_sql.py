"""Counts over a directory: of offsets where each is a record, of records where some may be missing."""

from __future__ import annotations

import json
import tempfile
import time

import headrace
import pytest
from headrace.cli.sql.output import SqlOutput, write_result
from headrace.client.fetch import decoding
from headrace.client.sql import topic_source
from headrace.embedded.server import DirectoryServer, OpenMode
from pyarrow import parquet

KEYS = 20


@pytest.fixture
def log(headrace_directory):
    return headrace_directory


def count(log, query, **arguments):
    with log.sql(query, **arguments) as result:
        ((found,),) = list(result)
    return found


def fill(log, topic, records, **config):
    log.admin.create_topic(topic, partitions=2, config=config)
    with log.producer(batch_records=100) as producer:
        for number in range(records):
            producer.send(topic, b"%d" % number, key=b"k%d" % (number % KEYS), partition=number % 2)


def refuse(*_, **__):
    raise AssertionError("a batch was decoded")


def test_a_count_decodes_nothing(log, monkeypatch):
    """Of bytes and of rows, from the log start, within bounds, of a part of the columns' names: `count(*)` only."""
    fill(log, "clicks", 1_000)
    log.admin.create_topic("views", columns="page string required")
    with log.producer() as producer:
        for number in range(50):
            producer.send("views", {"page": f"/{number}"})
    log.admin.delete_records("clicks", {0: 10})
    monkeypatch.setattr(decoding, "_decoded", refuse)
    assert count(log, "select count(*) from clicks") == 990
    assert count(log, "select count(*) from clicks", start=100, end=250) == 300
    assert count(log, "select count(*) from clicks", start=100, end={0: 150, 1: 100}) == 50
    assert count(log, "select count(*) from views") == 50
    assert count(log, "select sum(1) from views, views as again") == 2_500
    with pytest.raises(headrace.InvalidRequestError, match="a batch was decoded"):
        count(log, "select count(value) from clicks")


def test_many_rows_are_batches(log, monkeypatch):
    """The number of rows does not depend on how they are divided."""
    fill(log, "clicks", 1_000)
    for rows in (1, 999, 1_000, 1_001):
        monkeypatch.setattr(topic_source, "COUNTED_ROWS", rows)
        assert count(log, "select count(*) from clicks") == 1_000


def compacted(log, topic):
    """Compact the log of each partition."""
    partitions = [log._server.directory.readable(_topic(log, topic), number) for number in range(2)]
    for partition in partitions:
        partition.log.close_below(partition.log_end_offset)
        partition.log.compaction.compact(time.time_ns() // 1_000_000, partition.visible_end)
    assert any(partition.reader.has_compacted_segments for partition in partitions)


def _topic(log, name):
    return next(topic for topic in log._server.directory.all_topics() if topic.name == name)


def test_records_of_a_compacted_topic_are_counted_one_by_one(log):
    """Offsets whose records compaction has removed are not counted, also once the topic is not compacted any more."""
    fill(log, "newest", 1_000, cleanup_policy="compact", segment_bytes=1 << 16, max_batch_bytes=1 << 14)
    assert count(log, "select count(*) from newest") == 1_000
    compacted(log, "newest")
    with log.reader("newest") as reader:
        left = sum(1 for _ in reader)
    assert left < 1_000
    assert count(log, "select count(*) from newest") == left
    log.admin.alter_config("newest", {"cleanup_policy": "delete"})
    assert count(log, "select count(*) from newest") == left
    follower = DirectoryServer(log.path, OpenMode.READ, creates=False)
    try:
        assert not follower.has_every_offset("newest")
    finally:
        follower.close()


def test_a_copy_of_a_cluster_is_counted_by_its_records(log, monkeypatch):
    """Its segments have batches as the cluster has them, compacted ones among them."""
    fill(log, "clicks", 10)
    assert log._server.has_every_offset("clicks")
    monkeypatch.setitem(vars(_topic(log, "clicks")), "origin", "a cluster")
    assert not log._server.has_every_offset("clicks")


def test_queries_read_what_they_name(log):
    """Of a topic of bytes as well: computed columns bring the value, and all columns are there for `*`."""
    fill(log, "clicks", 10)
    assert count(log, "select max(text::int) from clicks") == 9
    assert count(log, "select sum(json::int) from clicks") == 45
    assert count(log, "select max(decode(VALUE)) from clicks") == "9"
    with log.sql("select * from clicks") as result:
        assert result.columns == [
            "topic", "partition", "offset", "timestamp", "key", "value", "headers", "text", "json",
        ]  # fmt: skip
    with log.sql("select distinct topic, partition from clicks order by all") as result:
        assert list(result) == [("clicks", 0), ("clicks", 1)]
    with pytest.raises(headrace.InvalidRequestError, match="valu"):
        count(log, "select valu from clicks")


def test_a_topic_that_is_named_twice_is_kept_wherever_temporary_files_are(log, monkeypatch, tmp_path):
    """Its rows are in a file, whose path is part of a statement."""
    fill(log, "clicks", 10)
    (tmp_path / "it's").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "it's"))
    assert count(log, "select count(*) from clicks as a, clicks as b where a.value = b.value") == 10


def test_columns_of_one_name_are_numbered(log, tmp_path):
    """A join with `a.*, b.*` has each column under a name of its own: as JSON, in a file, for Polars."""
    query = "select 1 as x, 2 as x, 3 as x_1, 4 as X, 5 as x"
    with log.sql(query) as result:
        assert result.columns == ["x", "x_2", "x_1", "X", "x_3"]
        assert result.to_arrow().to_pylist() == [{"x": 1, "x_2": 2, "x_1": 3, "X": 4, "x_3": 5}]
    for form in (SqlOutput.JSON, SqlOutput.PARQUET):
        with log.sql(query) as result, (tmp_path / form).open("wb") as stream:
            assert write_result(result.arrow_batches(), form, stream) == 1
    assert json.loads((tmp_path / SqlOutput.JSON).read_text()) == {"x": 1, "x_2": 2, "x_1": 3, "X": 4, "x_3": 5}
    assert parquet.read_table(tmp_path / SqlOutput.PARQUET).num_columns == 5
