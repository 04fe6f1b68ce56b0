"""What a leader takes for a compacted topic, and when it compacts it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headrace.log.log_compaction import LogCompaction
from headrace.partition.topic_configs import TopicConfig
from headrace.wire.encoding import CompactedRange, column_parts, encode_batch, join_column
from headrace.wire.errors import InvalidRequestError, StorageFullError
from headrace_broker.core.roles import Role
from headrace_broker.runtime.maintenance import compact_partition, note_sizes
from headrace_broker.runtime.partition import Partition

from tests.fakes.manual_clock import ManualClock
from tests.unit.broker.test_broker_runtime import batch, leading_partition, rot, show_two_in_sync

COMPACT = replace(TopicConfig(), cleanup_policy="compact")
AT_MS = 1_700_000_000_000


async def fill(partition: Partition) -> list[bytes]:
    """Append four records of one key of a compacted topic, and close their segment; return their batches."""
    partition.config = COMPACT
    await partition.update_log_settings()
    keyed = [encode_batch([b"%d" % number], [b"k"], base_timestamp_ms=AT_MS) for number in range(4)]
    for each in keyed:
        assert partition.appender.append_now([each], -1, committed=True) is not None
    partition.on_flushed(partition.flush_blocking())
    partition.open_log._writer.roll()
    return keyed


@pytest.mark.parametrize(
    "batches",
    [
        [batch(b"v")],
        [batch(b"%d" % number) for number in range(30)],
        [encode_batch([b"v", b"w"], [b"k", None], base_timestamp_ms=AT_MS)],
    ],
)
async def test_records_need_keys(tmp_path: Path, batches: list[bytes]) -> None:
    """A record without a key could never be replaced: it is refused, also one of many."""
    async with leading_partition(tmp_path) as partition:
        partition.config = COMPACT
        result = partition.appender.append_now(batches, -1, committed=True)
        assert result is not None
        assert isinstance(result.error, InvalidRequestError)
        assert "has no key" in str(result.error)
        assert partition.replica.log_end_offset == 0
        keyed = encode_batch([b"v", None], [b"k", b""], base_timestamp_ms=AT_MS)
        result = partition.appender.append_now([keyed], -1, committed=True)
        assert result is not None
        assert result.error is None


async def test_compacted_batches_are_not_taken(tmp_path: Path) -> None:
    """Only compaction makes them."""
    covers = CompactedRange(0, 5, 7, np.array([1], np.int64))
    made = column_parts(join_column("v", [b"v"]), join_column("k", [b"k"]), base_timestamp_ms=AT_MS, compacted=covers)
    async with leading_partition(tmp_path) as partition:
        result = partition.appender.append_now([b"".join(made)], -1, committed=True)
        assert result is not None
        assert isinstance(result.error, InvalidRequestError)


async def test_a_partition_is_compacted_and_counted(tmp_path: Path) -> None:
    """Batches of a producer that may send them again stay; without them the newest record is left."""
    async with leading_partition(tmp_path) as partition:
        await fill(partition)
        await compact_partition(partition, None)
        assert partition.open_log.segment_count == 2
        assert len(list(partition.open_log.reader.headers(0))) == 4, "the clock is in doubt"
        await compact_partition(partition, partition.context.now_ms())
        (header,) = partition.open_log.reader.headers(0)
        assert (header.is_compacted, header.record_count, header.end_offset) == (True, 1, 4)
        assert partition.context.metrics.compaction_removed_records._value.get() == 3


@pytest.mark.parametrize("altered", ["before", "meanwhile"])
async def test_a_topic_that_is_compacted_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, altered: str) -> None:
    """Once its policy is to delete, no record is replaced by a newer one, also if a compaction was about to begin."""
    async with leading_partition(tmp_path) as partition:
        partition.config = COMPACT
        await partition.update_log_settings()
        keyed = encode_batch([b"1", b"2"], [b"k", b"k"], base_timestamp_ms=AT_MS)
        assert partition.appender.append_now([keyed], -1, committed=True) is not None
        partition.on_flushed(partition.flush_blocking())
        partition.open_log._writer.roll()

        looked = list[bool]()

        def is_due(*_: int) -> bool:
            looked.append(True)
            partition.config = TopicConfig()
            return True

        monkeypatch.setattr(LogCompaction, "is_due", is_due)
        if altered == "before":
            partition.config = TopicConfig()
        assert not await compact_partition(partition, partition.context.now_ms())
        assert len(looked) == (altered == "meanwhile")
        (header,) = partition.open_log.reader.headers(0)
        assert header.record_count == 2


async def test_a_log_that_waits_for_its_compaction_is_measured(tmp_path: Path) -> None:
    """Bytes that were not compacted, and for how long the log has been due: 0 once it is not, and of other topics."""
    async with leading_partition(tmp_path) as partition:
        context, metrics = partition.context, partition.context.metrics
        assert isinstance(context.clock, ManualClock)

        def measured() -> tuple[float, float]:
            note_sizes([partition], context, context.now_ms())
            return metrics.uncompacted_bytes._value.get(), metrics.compaction_lag_seconds._value.get()

        keyed = [encode_batch([b"%d" % number], [b"k"], base_timestamp_ms=AT_MS) for number in range(4)]
        for each in keyed:
            assert partition.appender.append_now([each], -1, committed=True) is not None
        partition.on_flushed(partition.flush_blocking())
        assert measured() == (0, 0)
        partition.config = COMPACT
        await partition.update_log_settings()
        partition.open_log._writer.roll()
        size_bytes = partition.open_log.size_bytes
        space = partition.open_log._state.environment.space
        space.note_full()
        assert not await compact_partition(partition, context.now_ms())
        context.clock.advance(60_000)
        assert not await compact_partition(partition, context.now_ms())
        assert measured() == (size_bytes, 60)
        space.check()
        assert await compact_partition(partition, context.now_ms())
        assert measured()[0] == 0
        assert not await compact_partition(partition, context.now_ms())
        assert measured() == (0, 0)


async def test_a_full_disk_refuses_appends_and_leaves_compaction_for_later(tmp_path: Path) -> None:
    """The replica keeps serving what it has: a compaction without room harms neither its log nor a later one."""
    async with leading_partition(tmp_path) as partition:
        log, keyed = partition.open_log, await fill(partition)
        before, files = log.reader.read(0, 1 << 20, 4).read(), sorted(os.listdir(log.directory))
        log._state.environment.space.note_full()
        refused = partition.appender.append_now([keyed[0]], -1, committed=True)
        assert refused is not None
        assert isinstance(refused.error, StorageFullError)
        assert refused.error.retriable
        assert not await compact_partition(partition, partition.context.now_ms())
        assert (log.reader.read(0, 1 << 20, 4).read(), sorted(os.listdir(log.directory))) == (before, files)
        assert partition.replica.role is Role.LEADING
        log._state.environment.space.check()
        assert await compact_partition(partition, partition.context.now_ms())
        (header,) = log.reader.headers(0)
        assert (header.record_count, header.end_offset) == (1, 4)
        taken = partition.appender.append_now([keyed[0]], -1, committed=True)
        assert taken is not None
        assert taken.error is None


@pytest.mark.parametrize(("others", "role"), [(True, Role.OFFLINE), (False, Role.LEADING)])
async def test_a_compaction_that_finds_corruption(tmp_path: Path, others: bool, role: Role) -> None:
    """H33: the only replica in sync keeps serving the intact records, with an alarm; else another has them."""
    async with leading_partition(tmp_path) as partition:
        context = partition.context
        assert isinstance(context.clock, ManualClock)
        await fill(partition)
        if others:
            show_two_in_sync(partition)
        rot(tmp_path)
        assert not await compact_partition(partition, context.now_ms())
        assert partition.replica.role is role
        alarms = context.metrics.corruptions_detected._value.get
        if not others:
            assert alarms() == 1
            assert not await compact_partition(partition, context.now_ms())
            assert alarms() == 1
            context.clock.advance(3_600_000)
            assert not await compact_partition(partition, context.now_ms())
            assert alarms() == 2
