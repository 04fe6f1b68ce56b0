"""A read as of an offset or a time, on a cluster over lists: what is left out, and when it is refused."""

import numpy as np
import pytest
from headrace.client.base.records import DecodedBatch, Deserializers
from headrace.spark import as_of as module
from headrace.spark.as_of import read_as_of
from headrace.spark.errors import DataLossError
from headrace.spark.option_table import BATCH
from headrace.spark.options import read_options
from headrace.spark.ranges import AsOf, OffsetRange
from headrace.spark.schema import full_schema
from headrace.wire.batch import NONE_REMOVED, RemovedRecords
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import CompactedRange, column_parts, join_column
from headrace.wire.ids import TopicPartition
from headrace.wire.table_keys import expiry_headers

T0 = TopicPartition("t", 0)
OFFSET, LATEST = AsOf(False, -1), AsOf(True, -1)


class Log:
    """Records by offset, and what the cluster tells of them."""

    def __init__(self, monkeypatch):
        self.records = {}
        self.end = 0
        self.compacted = {}
        self.reads = []
        self.before_end = []
        monkeypatch.setattr(module, "read_range", self.read_range)
        monkeypatch.setattr(module, "SubscribedCluster", lambda *_: self)

    def append(self, key, value, expires_ms=0, at_ms=1_000):
        self.records[self.end] = (key, value, expires_ms, at_ms)
        self.end += 1
        return self.end - 1

    def compact(self, below, *, end=0, removed=NONE_REMOVED):
        """Make one batch of the records below `below`, of each key the newest one below `end`."""
        newest = {key: offset for offset, (key, *_) in self.records.items() if offset < (end or below)}
        self.records = {at: each for at, each in self.records.items() if at >= below or newest[each[0]] == at}
        self.compacted = {"end_offset": below, "removed": removed}

    def read_range(self, settings, part, *, fail_on_data_loss, topic_id):
        self.reads.append((part.start, part.end))
        end = self.compacted.get("end_offset", 0)
        if part.start < end:
            yield decoded({at: each for at, each in self.records.items() if at < min(end, part.end)}, **self.compacted)
        for offset in sorted(at for at in self.records if max(end, part.start) <= at < part.end):
            yield decoded({offset: self.records[offset]})
        if self.before_end:
            self.before_end.pop(0)()

    def close(self):
        pass

    def offsets(self, partitions, at):
        return {T0: self.end}


def decoded(records, end_offset=0, removed=None):
    """Return the records as a batch, which is a compacted one if it ends after them."""
    keys, values, ends_ms, times_ms = zip(*records.values(), strict=True)
    parts = column_parts(
        join_column("value", values),
        join_column("key", keys),
        base_timestamp_ms=times_ms[0],
        timestamps_ms=times_ms,
        headers=[expiry_headers(each) for each in ends_ms],
        compacted=CompactedRange(0, end_offset, 0, np.array(list(records)), removed) if end_offset else None,
    )
    columns = decode_batch(b"".join(parts), max_payload_bytes=1 << 20)
    return DecodedBatch(T0, columns, 0, len(records), Deserializers())


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


def compacted(monkeypatch, *removed):
    """A log whose record 0 was compacted for record 2, with an end of 4."""
    log = Log(monkeypatch)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1")):
        log.append(key, value)
    log.compact(2, end=4, removed=RemovedRecords(*removed) if removed else None)
    return log


def test_a_moment_before_compaction_is_refused(monkeypatch):
    """Key a is gone from below offset 2; an answer without it would be wrong."""
    with pytest.raises(DataLossError, match="below offset 2 were compacted, perhaps for newer ones up to offset 4"):
        read(compacted(monkeypatch, 4, 0), 2, OFFSET)
    assert read(compacted(monkeypatch, 4, 0), 2, OFFSET, failOnDataLoss="false") == {b"b": b"1"}


def test_a_moment_after_compaction_is_exact(monkeypatch):
    """Whatever was written since; of an earlier release's compaction the end is not known."""
    expected = {b"a": b"2", b"b": b"1", b"c": b"1"}
    for removed in ((4, 0), ()):
        log = compacted(monkeypatch, *removed)
        assert read(log, 4, OFFSET) == expected
        log.append(b"a", b"3")
        if removed:
            assert read(log, 4, OFFSET) == expected
        else:
            with pytest.raises(DataLossError, match="up to offset 5"):
                read(log, 4, OFFSET)


def test_a_moment_before_removed_records_expired_is_refused(monkeypatch):
    """Also where nothing was written since; the present has no such time."""
    log = compacted(monkeypatch, 4, 5_000)
    with pytest.raises(DataLossError, match="because they have expired since"):
        read(log, 4, AsOf(False, 4_999))
    assert read(log, 4, AsOf(False, 5_000)).keys() == {b"a", b"b", b"c"}
    assert read(log, 4, AsOf(True, 4_999)).keys() == {b"a", b"b", b"c"}


def test_the_present_is_read_to_its_end_while_compaction_runs(monkeypatch):
    """A key whose record was compacted during the read is found where its newer one is, and no later one is read."""
    log = compacted(monkeypatch, 4, 0)

    def compact_for_a_newer_one():
        log.append(b"b", b"2")
        log.append(b"d", b"1")

    log.before_end = [compact_for_a_newer_one]
    log.compacted["removed"] = RemovedRecords(5, 0)
    del log.records[1]
    log.records[0] = (b"e", b"1", 0, 1_000)
    assert read(log, 4, LATEST) == {b"a": b"2", b"b": b"2", b"c": b"1", b"e": b"1"}
    assert log.reads == [(0, 4), (4, 5)]


def test_what_retention_has_removed_may_have_been_there(monkeypatch):
    log = Log(monkeypatch)
    log.append(b"a", b"1")
    log.append(b"b", b"1")
    with pytest.raises(DataLossError, match="the first 1 records were removed"):
        read(log, 2, OFFSET, start=1)
    assert read(log, 2, OFFSET, start=1, failOnDataLoss="false") == {b"b": b"1"}
    assert read(log, 2, LATEST, start=1) == {b"b": b"1"}
