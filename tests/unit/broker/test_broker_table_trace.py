"""The request trace of tables: what is noted, written, and dropped where it cannot be written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headrace.partition import removed_rows
from headrace.partition.removed_rows import RemovedRows
from headrace.v1 import tables_pb2, topics_pb2
from headrace.wire.ids import BrokerId
from headrace.wire.request_trace import (
    UNKNOWN_GAP_US,
    KeySampler,
    RequestOutcome,
    TableOperation,
    TraceBlock,
    decode_block,
)
from headrace.wire.table_keys import row_start
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime import table_trace
from headrace_broker.runtime.table_trace import TableTraces
from headrace_broker.runtime.table_writes import TableWrites
from headrace_broker.table_metrics import TableMetrics
from headrace_server.internal_topic_writer import NotWrittenError
from prometheus_client import CollectorRegistry

from tests.unit.broker.test_broker_runtime import leading_partition
from tests.unit.broker.test_broker_table import CONFIG, read, write

TABLE_ID = bytes(16)
SECRET = b"secret"
AT_US = 1_700_000_000_000_000


class Topic:
    """Fake writer of `__table_trace`."""

    def __init__(self) -> None:
        self.blocks: list[TraceBlock] = []
        self.is_away = False
        self.writes = 0

    async def write(self, records: Sequence[topics_pb2.Record]) -> None:
        if self.is_away:
            raise NotWrittenError("the partition has no leader")
        self.writes += 1
        self.blocks += [decode_block(record.value) for record in records]


@pytest.fixture
def metrics() -> TableMetrics:
    return BrokerMetrics(CollectorRegistry()).tables


@pytest.fixture
def traces(metrics: TableMetrics) -> TableTraces:
    return TableTraces(SECRET, BrokerId(4), metrics, lambda: AT_US)


def row(key: bytes, *values: bytes, version: int = 7) -> tables_pb2.TableRow:
    columns = [tables_pb2.TableColumn(name=b"c", value=value) for value in values]
    return tables_pb2.TableRow(key=key, columns=columns, version=version if values else -1)


async def test_requests_become_blocks(traces: TableTraces, metrics: TableMetrics) -> None:
    """Operations, outcomes, sizes; never a key or a value."""
    trace, topic = traces.acquire("users", TABLE_ID, 1.0), Topic()
    removed = RemovedRows(trace.sampler, is_complete=True)
    removed.note(row_start(b"gone"), RequestOutcome.MISS_EXPIRED)
    rows = [row(b"ada", b"12", b"345"), row(b"gone"), row(b"never"), row(b"other")]
    rows[3].version = 3  # It exists, without the columns that were asked for.
    trace.note_gets([each.key for each in rows], rows, removed, trace.arrive(), 90)
    trace.note_scan([b"ada"], [row(b"ada", b"12345")], (AT_US + 5, 5), 40)
    trace.note_write(write(b"ada", {b"c": b"123", b"d": None}, if_version=1), (AT_US + 7, 2), 30, applied=False)
    trace.note_write(write(b"bob"), (AT_US + 9, 2), 30, applied=True)
    await traces.flush(topic)
    (block,) = topic.blocks
    get, scan, delete = TableOperation.GET, TableOperation.SCAN, TableOperation.DELETE
    assert block.columns.operation.tolist() == [get] * 4 + [scan, TableOperation.COMPARE_AND_PUT, delete]
    hit, done = RequestOutcome.HIT, RequestOutcome.DONE
    expired, never = RequestOutcome.MISS_EXPIRED, RequestOutcome.MISS_NEVER_WRITTEN
    assert block.columns.outcome.tolist() == [hit, expired, never, hit, done, RequestOutcome.CONFLICT, done]
    assert block.columns.value_bytes.tolist() == [5, 0, 0, 0, 5, 3, 0]
    assert block.columns.key_bytes.tolist() == [3, 4, 5, 5, 3, 3, 3]
    assert block.columns.latency_us.tolist() == [90] * 4 + [40, 30, 30]
    assert block.columns.gap_us.tolist() == [UNKNOWN_GAP_US, 0, 0, 0, 5, 2, 2]
    assert (block.table, block.server_id, block.seen_requests) == ("users", 4, 7)
    assert (metrics.trace_requests.value, metrics.trace_dropped.value) == (7, 0)


async def test_keys_are_sampled(traces: TableTraces) -> None:
    """All requests of a key, or none; the others are counted."""
    trace, topic = traces.acquire("users", TABLE_ID, 0.1), Topic()
    keys = [b"user-%d" % number for number in range(1_000)]
    for _ in range(2):
        trace.note_gets(keys, [row(key, b"1") for key in keys], None, trace.arrive(), 1)
    for key in keys:
        trace.note_write(write(key, {b"c": b"1"}), trace.arrive(), 1, applied=True)
    await traces.flush(topic)
    (block,) = topic.blocks
    sampler = KeySampler(SECRET, TABLE_ID, 0.1)
    sampled = [sampler.key_hash(key) for key in keys if sampler.samples(key)]
    assert 50 < len(sampled) < 150
    assert block.columns.key_hash.tolist() == sampled * 3
    assert block.seen_requests == 3_000


async def test_a_delete_is_of_a_row(traces: TableTraces) -> None:
    """A row whose columns are deleted stays; a condition that holds makes no other operation of a delete."""
    trace, topic = traces.acquire("users", TABLE_ID, 1.0), Topic()
    writes = [
        (write(b"ada", {b"c": None}), True),
        (write(b"ada", {b"c": None}, if_version=3), True),
        (write(b"ada", if_version=3), False),
        (write(b"ada", if_version=3), True),
        (write(b"ada"), True),
    ]
    for each, applied in writes:
        trace.note_write(each, trace.arrive(), 1, applied=applied)
    await traces.flush(topic)
    (block,) = topic.blocks
    put, delete, compare = TableOperation.PUT, TableOperation.DELETE, TableOperation.COMPARE_AND_PUT
    assert block.columns.operation.tolist() == [put, compare, compare, delete, delete]
    done, conflict = RequestOutcome.DONE, RequestOutcome.CONFLICT
    assert block.columns.outcome.tolist() == [done, done, conflict, done, done]
    assert not block.columns.value_bytes.any()


@pytest.mark.parametrize("is_scan", [False, True])
async def test_gaps_of_many_keys_are_those_of_requests(traces: TableTraces, is_scan: bool) -> None:
    """A request on 100 keys every millisecond, of which one in ten is sampled: a mean gap of a hundredth."""
    trace, topic, chance = traces.acquire("users", TABLE_ID, 0.1), Topic(), random.Random(1)
    for number in range(400):
        keys = [b"%d" % chance.randrange(1_000_000) for _ in range(100)]
        rows, arrival = [row(key, b"1") for key in keys], (AT_US + 1_000 * number, 1_000)
        if is_scan:
            trace.note_scan(keys, rows, arrival, 50)
        else:
            trace.note_gets(keys, rows, None, arrival, 50)
    await traces.flush(topic)
    gaps = np.concatenate([block.columns.gap_us for block in topic.blocks])
    assert set(gaps.tolist()) == {0, 1_000}
    assert gaps.mean() == pytest.approx(10, rel=0.3)


async def test_few_requests_are_written_together(traces: TableTraces, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write costs as much as thousands of samples: it waits, unless much has come that must not be dropped."""
    monkeypatch.setattr(table_trace, "MANY_REQUESTS", 3)
    trace, topic = traces.acquire("users", TABLE_ID, 1.0), Topic()
    for _ in range(3):
        assert not traces.is_due(table_trace.LOOK_SECONDS)
        trace.note_gets([b"k"], [row(b"k", b"v")], None, trace.arrive(), 100)
    assert traces.is_due(table_trace.LOOK_SECONDS)
    await traces.flush(topic)
    assert not traces.is_due(table_trace.LOOK_SECONDS)
    assert traces.is_due(table_trace.FLUSH_SECONDS)


async def test_what_is_not_written_is_dropped_and_counted(
    traces: TableTraces, metrics: TableMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a bound of memory the newest blocks wait; a block that is written later says how many are missing."""
    monkeypatch.setattr(table_trace, "MAX_PENDING_BYTES", 1_000)
    monkeypatch.setattr(table_trace, "MAX_WRITE_BYTES", 400)
    trace, topic = traces.acquire("users", TABLE_ID, 1.0), Topic()
    topic.is_away = True
    for _ in range(30):
        trace.note_gets([b"ada"] * 5, [row(b"ada", b"1")] * 5, None, trace.arrive(), 1)
        with pytest.raises(NotWrittenError):
            await traces.flush(topic)
    assert traces._pending_bytes <= 1_000
    topic.is_away = False
    await traces.flush(topic)
    trace.note_gets([b"ada"], [row(b"ada", b"1")], None, trace.arrive(), 1)
    await traces.flush(topic)
    written, dropped = (
        sum(block.requests for block in topic.blocks),
        sum(each.dropped_requests for each in topic.blocks),
    )
    assert written + dropped == 151
    assert 0 < written < 30
    assert topic.writes > 1
    assert (metrics.trace_requests.value, metrics.trace_dropped.value) == (written, dropped)


async def test_a_stop_writes_what_was_noted(traces: TableTraces, metrics: TableMetrics) -> None:
    """After the write that is in progress; nothing is left to drop."""
    trace, topic, may_write = traces.acquire("users", TABLE_ID, 1.0), Topic(), asyncio.Event()
    write = topic.write

    async def write_later(records: Sequence[topics_pb2.Record]) -> None:
        await may_write.wait()
        await write(records)

    topic.write = write_later  # type: ignore[method-assign]
    trace.note_gets([b"ada"], [row(b"ada", b"1")], None, trace.arrive(), 1)
    first = asyncio.create_task(traces.flush(topic))
    await asyncio.sleep(0)
    trace.note_gets([b"bob"], [row(b"bob", b"1")], None, trace.arrive(), 1)
    last = asyncio.create_task(traces.flush_at_stop(topic))
    await asyncio.sleep(0)
    assert not last.done()
    may_write.set()
    await asyncio.gather(first, last)
    traces.end()
    assert [block.requests for block in topic.blocks] == [1, 1]
    assert (metrics.trace_requests.value, metrics.trace_dropped.value) == (2, 0)


@pytest.mark.parametrize("hangs", [False, True])
async def test_what_a_stop_cannot_write_is_counted(
    traces: TableTraces, metrics: TableMetrics, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """A topic without a leader, or one that does not answer in time; also what was noted after the last write."""
    monkeypatch.setattr(table_trace, "LAST_FLUSH_SECONDS", 0.0)
    trace, topic = traces.acquire("users", TABLE_ID, 1.0), Topic()
    topic.is_away = True
    if hangs:
        monkeypatch.setattr(topic, "write", lambda _: asyncio.Event().wait())
    trace.note_gets([b"ada"] * 5, [row(b"ada", b"1")] * 5, None, trace.arrive(), 1)
    await traces.flush_at_stop(topic)
    trace.note_gets([b"ada"], [row(b"ada", b"1")], None, trace.arrive(), 1)
    traces.end()
    assert (topic.blocks, metrics.trace_dropped.value) == ([], 6)


async def test_another_fraction_is_another_trace(traces: TableTraces) -> None:
    """What the one before has is written when its last partition has left it."""
    topic, old = Topic(), traces.acquire("users", TABLE_ID, 1.0)
    assert traces.acquire("users", TABLE_ID, 1.0) is old
    new = traces.acquire("users", TABLE_ID, 0.5)
    traces.release(old)
    old.note_gets([b"ada"], [row(b"ada", b"1")], None, old.arrive(), 1)
    traces.release(old)
    assert list(traces._traces.values()) == [new]
    await traces.flush(topic)
    assert [block.requests for block in topic.blocks] == [1]


async def test_causes_of_misses(tmp_path: Path, traces: TableTraces) -> None:
    """Deleted, expired, never written; unknown for what was removed before the trace began."""
    async with leading_partition(tmp_path) as partition:
        object.__setattr__(partition.context, "traces", traces)
        partition.update_config(replace(CONFIG, trace_sample=1.0))
        table = partition.table
        assert table is not None
        writes = TableWrites(partition, table)
        now_ms = partition.context.clock.now_ms()
        for key, expires_ms in ((b"deleted", 0), (b"expired", now_ms - 1), (b"there", 0)):
            await writes.write(write(key, {b"a": b"1"}, expires_ms=expires_ms), 5.0)
        await writes.write(write(b"deleted"), 5.0)
        await read(partition, b"there")
        assert table.removed is not None
        keys = (b"deleted", b"expired", b"never")
        assert [table.removed.outcome_of(key) for key in keys] == [
            RequestOutcome.MISS_DELETED, RequestOutcome.MISS_EXPIRED, RequestOutcome.MISS_NEVER_WRITTEN,
        ]  # fmt: skip
        partition.update_config(replace(CONFIG, trace_sample=0.5))
        assert table.trace is not None
        assert table.removed.outcome_of(b"deleted") is RequestOutcome.MISS
        partition.update_config(CONFIG)
        assert table.trace is table.removed is None
        assert not traces._traces


async def test_an_offline_replica_may_be_of_a_traced_table(tmp_path: Path, traces: TableTraces) -> None:
    """It has no log, of which a state would be made."""
    async with leading_partition(tmp_path) as partition:
        object.__setattr__(partition.context, "traces", traces)
        log, partition.log = partition.log, None
        partition.update_config(replace(CONFIG, trace_sample=1.0))
        partition.log = log
        assert partition.table is not None
        assert partition.table.trace is not None


def test_few_removed_rows_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more, the causes are unknown."""
    monkeypatch.setattr(removed_rows, "MOST", 10)
    removed = RemovedRows(KeySampler(SECRET, TABLE_ID, 1.0), is_complete=True)
    for number in range(11):
        assert removed.is_complete
        removed.note(row_start(b"%d" % number), RequestOutcome.MISS_DELETED)
    assert removed.outcome_of(b"0") is removed.outcome_of(b"never") is RequestOutcome.MISS
    assert removed.outcome_of(b"10") is RequestOutcome.MISS_DELETED
