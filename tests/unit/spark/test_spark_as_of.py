"""A read as of an offset or a time, on a cluster over lists: what is left out, and when it is refused."""

import pytest
from headrace.client.base.records import DecodedBatch, Deserializers
from headrace.spark import as_of as module
from headrace.spark.as_of import read_as_of
from headrace.spark.errors import DataLossError
from headrace.spark.option_table import BATCH
from headrace.spark.options import read_options
from headrace.spark.ranges import AsOf, OffsetRange
from headrace.spark.schema import full_schema
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.ids import TopicPartition
from headrace.wire.table_keys import expiry_headers

T0 = TopicPartition("t", 0)
OFFSET, LATEST = AsOf(False, -1), AsOf(True, -1)


class Log:
    """Records by offset, and what the cluster tells of them."""

    def __init__(self, monkeypatch, lag_ms=0, uncompacted=0):
        self.records = {}
        self.end = 0
        self.lag_ms = lag_ms
        self.uncompacted = uncompacted
        self.reads = []
        self.before_end = []
        monkeypatch.setattr(module, "read_range", self.read_range)
        monkeypatch.setattr(module, "SubscribedCluster", lambda *_: self)
        self.admin = self

    def append(self, key, value, expires_ms=0, at_ms=1_000):
        self.records[self.end] = (key, value, expires_ms, at_ms)
        self.end += 1
        return self.end - 1

    def compact(self, below):
        newest = {key: offset for offset, (key, *_) in self.records.items() if offset < below}
        self.records = {at: each for at, each in self.records.items() if at >= below or newest[each[0]] == at}

    def read_range(self, settings, part, *, fail_on_data_loss, topic_id):
        self.reads.append((part.start, part.end))
        for offset in sorted(at for at in self.records if part.start <= at < part.end):
            key, value, expires_ms, at_ms = self.records.get(offset, (None,) * 4)
            batch = encode_batch(
                [value], [key], base_timestamp_ms=at_ms, headers=[expiry_headers(expires_ms)] if expires_ms else None
            )
            yield DecodedBatch(T0, decode_batch(batch, max_payload_bytes=1 << 20), 0, 1, Deserializers())
        if self.before_end:
            self.before_end.pop(0)()

    def close(self):
        pass

    def offsets(self, partitions, at):
        return {T0: self.end}

    def describe_config(self, topic):
        return {"min_compaction_lag_ms": type("Value", (), {"value": str(self.lag_ms)})}

    def list_offsets(self, topic, at, *, by, partitions):
        assert by == "append"
        return {T0: type("Found", (), {"offset": self.uncompacted})}


def read(log, end, as_of, start=0, **given):
    options = {"headrace.bootstrap.servers": "b:1", "subscribe": "t", "newestPerKey": "true", **given}
    batches = list(
        read_as_of(read_options(options, BATCH), full_schema(False), OffsetRange(T0, start, end), b"", as_of)
    )
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all(batch.schema.names == full_schema(False).names for batch in batches)
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_each_key_has_its_newest_value_below_the_end(monkeypatch):
    """Without deleted keys, and records without a key; later records do not matter."""
    log = Log(monkeypatch)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (None, b"x"), (b"a", b"2"), (b"b", None), (b"c", b"1")):
        log.append(key, value)
    assert read(log, 6, OFFSET) == {b"a": b"2", b"c": b"1"}
    assert read(log, 4, OFFSET) == {b"a": b"2", b"b": b"1"}
    assert read(log, 2, LATEST) == {b"a": b"1", b"b": b"1"}
    assert log.reads == [(0, 6), (0, 4), (0, 2)]


def test_columns_have_expired_by_the_time_that_is_read(monkeypatch):
    """The time given; for an offset, that of the newest record below it; else now."""
    log = Log(monkeypatch)
    log.append(b"a", b"1", expires_ms=2_000)
    log.append(b"b", b"1", at_ms=1_500)
    log.append(b"c", b"1", at_ms=9_000)
    assert read(log, 2, OFFSET).keys() == {b"a", b"b"}
    assert read(log, 3, OFFSET).keys() == {b"b", b"c"}
    assert read(log, 3, AsOf(False, 1_999)).keys() == {b"a", b"b", b"c"}
    assert read(log, 3, AsOf(False, 2_000)).keys() == {b"b", b"c"}
    assert read(log, 3, LATEST).keys() == {b"b", b"c"}


def compacted(monkeypatch, **more):
    """A log whose record 0 was compacted for record 2, with an end of 4."""
    log = Log(monkeypatch, **more)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1")):
        log.append(key, value)
    log.compact(4)
    return log


def test_a_moment_before_compaction_is_refused(monkeypatch):
    """Key a is gone from below offset 2; an answer without it would be wrong."""
    with pytest.raises(DataLossError, match="1 records below offset 2 were compacted"):
        read(compacted(monkeypatch), 2, OFFSET)
    assert read(compacted(monkeypatch), 2, OFFSET, failOnDataLoss="false") == {b"b": b"1"}


def test_a_moment_after_compaction_is_exact_if_that_is_known(monkeypatch):
    """There is nothing after it, or nothing that may have been compacted."""
    expected = {b"a": b"2", b"b": b"1", b"c": b"1"}
    log = compacted(monkeypatch)
    assert read(log, 4, OFFSET) == expected
    log.append(b"a", b"3")
    with pytest.raises(DataLossError):
        read(log, 4, OFFSET)
    for uncompacted, is_exact in ((4, True), (5, False)):
        log = compacted(monkeypatch, lag_ms=3_600_000, uncompacted=uncompacted)
        log.append(b"a", b"3")
        if is_exact:
            assert read(log, 4, OFFSET) == expected
        else:
            with pytest.raises(DataLossError):
                read(log, 4, OFFSET)


def test_the_present_is_read_to_its_end_while_compaction_runs(monkeypatch):
    """A key whose record was compacted during the read is found where its newer one is."""
    log = compacted(monkeypatch)

    def compact_for_a_newer_one():
        log.append(b"b", b"2")
        log.append(b"d", b"1")

    log.before_end = [compact_for_a_newer_one]
    del log.records[1]
    assert read(log, 4, LATEST) == {b"a": b"2", b"b": b"2", b"c": b"1", b"d": b"1"}
    assert log.reads == [(0, 4), (4, 6)]


def test_what_retention_has_removed_may_have_been_there(monkeypatch):
    log = Log(monkeypatch)
    log.append(b"a", b"1")
    log.append(b"b", b"1")
    with pytest.raises(DataLossError, match="the first 1 records were removed"):
        read(log, 2, OFFSET, start=1)
    assert read(log, 2, OFFSET, start=1, failOnDataLoss="false") == {b"b": b"1"}
    assert read(log, 2, LATEST, start=1) == {b"b": b"1"}
