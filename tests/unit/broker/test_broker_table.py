"""Table of a partition: reads from a log that is compacted, truncated and cut off at its start; writes of rows."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from headrace.log import compacted_writer
from headrace.log.errors import SliceCutError
from headrace.log.index import IndexCache, SegmentIndex
from headrace.log.segment_replacement import SegmentReplacement
from headrace.partition.batch_cache import RecordValue
from headrace.partition.ordered_keys import KEY_BYTES
from headrace.partition.table_rows import MAX_ANSWER_BYTES, wanted_columns
from headrace.partition.topic_configs import Durability, TopicConfig, Validation
from headrace.v1 import tables_pb2
from headrace.wire.batch import CRC_START, HEADER_BYTES, RemovedRecords, iter_batches, read_header
from headrace.wire.columns import decode_batch
from headrace.wire.crc import crc32c
from headrace.wire.decoded import Columns
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import (
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    Outcome,
    OutOfOrderSequenceError,
    ShuttingDownError,
    StorageOfflineError,
    ThrottledError,
    TimedOutError,
)
from headrace.wire.ids import Offset
from headrace.wire.table_keys import ABSENT, expiry_headers, table_key
from headrace_broker.core.roles import Role
from headrace_broker.rpc.tables import TableService, _Reading
from headrace_broker.runtime import table as table_module
from headrace_broker.runtime.budget import GrowingReservation, MemoryBudget
from headrace_broker.runtime.maintenance import compact_partition
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.partition_context import TABLE_BUILDS
from headrace_broker.runtime.table_writes import RowWrite, RowWritten, TableWrites
from headrace_broker.runtime.waiters import FetchWaiters

from tests.fakes.memory_filesystem import MemoryFileSystem
from tests.unit.broker.test_broker_runtime import leading_partition

CONFIG = replace(TopicConfig(), cleanup_policy="compact", table="yes", durability=Durability.ASYNC)
AT_MS = 1_700_000_000_000


def open_table(partition: Partition) -> TableWrites:
    partition.update_config(CONFIG)
    assert partition.table is not None
    return TableWrites(partition, partition.table)


def write(row: bytes, columns: dict[bytes, bytes | None] | None = None, **fields: object) -> RowWrite:
    """Return a write of columns, or the deletion of the row."""
    return RowWrite(row, columns or {}, columns is None, **{"if_version": None, "expires_ms": 0, **fields})  # type: ignore[arg-type]


def stored(directory: Path) -> bytes:
    """Return the content of all segments."""
    return b"".join(path.read_bytes() for path in directory.rglob("*.log"))


async def read(partition: Partition, row: bytes, seconds: float = 5.0) -> dict[bytes, bytes]:
    """Read a row as the service does."""
    assert partition.table is not None
    state, _ = await partition.table.read_state(seconds)
    columns = dict(state.columns_of(row))
    values = await partition.table.read_values(sorted(columns.values()))
    return {name: values[offset].value for name, offset in columns.items()}


async def test_reads_follow_writes_and_compactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a dict, while segments are closed and compacted, with a cache of a few batches."""
    monkeypatch.setattr(compacted_writer, "BATCH_BYTES", 400)
    draw, model = random.Random(5), dict[bytes, dict[bytes, bytes]]()
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        await partition.update_log_settings()
        partition.context.row_batches._max_bytes = 6_000
        for step in range(300):
            row = b"r%d" % draw.randrange(12)
            if draw.random() < 0.1:
                await writes.write(write(row), 5.0)
                model.pop(row, None)
            else:
                columns = {b"c%d" % draw.randrange(4): b"%d" % step for _ in range(draw.randrange(1, 4))}
                written = await writes.write(write(row, dict(columns)), 5.0)
                model.setdefault(row, {}).update(columns)
                assert written.records == len(columns)
            if step % 40 == 39:
                partition.on_flushed(partition.flush_blocking())
                partition.open_log._writer.roll()
                await compact_partition(partition, partition.context.now_ms())
            if step % 5 == 0:
                for each in model:
                    assert await read(partition, each) == model[each]
        assert partition.table is not None
        state, _ = await partition.table.read_state(5.0)
        assert (state.rows, state.columns) == (len(model), sum(map(len, model.values())))
        assert partition.context.row_batches.size_bytes < 10_000
        headers = list(partition.open_log.reader.headers(partition.open_log.log_start_offset))
        assert any(header.is_compacted for header in headers)


@pytest.mark.parametrize("is_far", [False, True])
async def test_a_state_is_made_from_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_far: bool) -> None:
    """On the event loop, or in a thread if the log is long."""
    monkeypatch.setattr(table_module, "FAR_BYTES", 0 if is_far else 1 << 40)
    monkeypatch.setattr(table_module, "BUILT_BYTES", 500)
    async with leading_partition(tmp_path) as partition:
        for number in range(50):
            keys = [table_key(b"r%d" % (number % 7), name) for name in (b"a", b"b")]
            made = encode_batch([b"%d" % number] * 2, keys, base_timestamp_ms=AT_MS)
            assert partition.appender.append_now([made], -1, committed=True) is not None
        open_table(partition)
        assert await read(partition, b"r0") == {b"a": b"49", b"b": b"49"}
        assert await read(partition, b"r1") == {b"a": b"43", b"b": b"43"}


async def test_a_condition_sees_what_is_not_committed(tmp_path: Path) -> None:
    """Two writers that expect the same version at once: one is refused, with the version of the other."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        made = await asyncio.gather(
            *(writes.write(write(b"r", {b"c": b"%d" % number}, if_version=ABSENT), 5.0) for number in range(5))
        )
        assert [written.applied for written in made].count(True) == 1
        (version,) = {written.version for written in made}
        assert (await writes.write(write(b"r", {b"c": b"x"}, if_version=version), 5.0)).applied
        gone = await writes.write(write(b"r", if_version=version + 1), 5.0)
        assert (gone.applied, gone.records) == (True, 1)
        assert await read(partition, b"r") == {}


async def test_uncommitted_changes_are_applied_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a follower lags there may be a million, which several conditional writes read at once."""
    turns = mock.AsyncMock(side_effect=table_module.next_turn)
    monkeypatch.setattr(table_module, "next_turn", turns)
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        partition.update_config(replace(CONFIG, durability=Durability.FSYNC))
        for start in range(0, 6_000, 2_000):
            keys = [table_key(b"r%d" % number, b"a") for number in range(start, start + 2_000)]
            made = encode_batch([b"v"] * len(keys), keys, base_timestamp_ms=AT_MS)
            assert partition.appender.append_now([made], -1, committed=False) is not None
        assert partition.replica.high_watermark == 0
        table = partition.table
        assert table is not None
        await asyncio.gather(*(table.read_uncommitted(5.0) for _ in range(3)))
        assert table.knows_log_end
        assert turns.await_count >= 11
        assert [table.row_now(b"r%d" % number).version for number in range(6_000)] == list(range(6_000))
        assert (await writes.write(write(b"r7", {b"a": b"2"}, if_version=ABSENT), 5.0)).version == 7


async def test_a_log_of_small_batches_is_applied_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch each for 2,000 writes: decoding them takes longer than applying their records."""
    turns = mock.AsyncMock(side_effect=table_module.next_turn)
    monkeypatch.setattr(table_module, "next_turn", turns)
    async with leading_partition(tmp_path) as partition:
        made = [encode_batch([b"v"], [table_key(b"r%d" % n, b"a")], base_timestamp_ms=AT_MS) for n in range(2_000)]
        assert partition.appender.append_now(made, -1, committed=True) is not None
        open_table(partition)
        assert await read(partition, b"r1999") == {b"a": b"v"}
        assert turns.await_count == partition.open_log.size_bytes // table_module.APPLIED_BYTES > 2


async def test_slow_appends_keep_conditions(tmp_path: Path) -> None:
    """Writes in threads: what was decided before another append is decided again."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        partition.appender.is_slow = True
        won = []

        async def count(name: bytes) -> None:
            for _ in range(10):
                while True:
                    partition.appender.is_slow = True
                    row = await read(partition, b"n")
                    assert partition.table is not None
                    state, _ = await partition.table.read_state(5.0)
                    version = max(dict(state.columns_of(b"n")).values(), default=ABSENT)
                    step = int(row.get(b"n", b"0")) + 1
                    if (await writes.write(write(b"n", {b"n": b"%d" % step}, if_version=version), 5.0)).applied:
                        won.append((name, step))
                        break

        await asyncio.gather(count(b"a"), count(b"b"), count(b"c"))
        assert sorted(step for _, step in won) == list(range(1, 31))
        assert await read(partition, b"n") == {b"n": b"30"}


async def test_a_write_sent_again_has_the_first_result(tmp_path: Path) -> None:
    """Also a deletion, and one that is refused is not remembered."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        first = write(b"r", {b"a": b"1", b"b": b"2"}, producer=(7, 0, 0))
        gone = write(b"r", producer=(7, 0, 2))
        made = [await writes.write(each, 5.0) for each in (first, first, gone, gone)]
        assert [(each.version, each.records) for each in made] == [(1, 2), (1, 2), (3, 2), (3, 2)]
        refused = write(b"r", {b"a": b"1"}, if_version=5, producer=(7, 0, 4))
        assert not (await writes.write(refused, 5.0)).applied
        assert (await writes.write(refused._replace(if_version=ABSENT), 5.0)).applied
        with pytest.raises(OutOfOrderSequenceError):
            await writes.write(write(b"r", {b"a": b"1"}, producer=(7, 0, 9)), 5.0)


async def test_a_refusal_waits_for_the_commit_of_what_it_tells(tmp_path: Path) -> None:
    """The version that it names is not flushed yet, and could be taken back."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        partition.update_config(replace(CONFIG, durability=Durability.FSYNC))
        await read(partition, b"r")
        first = asyncio.create_task(writes.write(write(b"r", {b"a": b"1"}), 5.0))
        refused = asyncio.create_task(writes.write(write(b"r", {b"a": b"2"}, if_version=ABSENT), 5.0))
        absent = asyncio.create_task(writes.write(write(b"none"), 5.0))
        waiting = partition.acknowledgements._waiting
        while len(waiting) < 3 and not (refused.done() or absent.done()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not any(task.done() for task in (first, refused, absent))
        partition.on_flushed(partition.flush_blocking())
        assert (await first).applied
        assert await refused == RowWritten(False, 0, 0, 1, partition.replica.leader_epoch)
        assert (await absent).version == ABSENT


async def test_a_row_is_never_seen_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of many rows is applied in several turns, and each row in one."""
    monkeypatch.setattr(table_module, "APPLIED_PER_TURN", 2)
    async with leading_partition(tmp_path) as partition:
        open_table(partition)
        assert partition.table is not None
        table, seen = partition.table, []
        keys = [table_key(b"r%02d" % row, b"c%d" % column) for row in range(20) for column in range(5)]
        made = encode_batch([b"v"] * len(keys), keys, base_timestamp_ms=AT_MS)
        assert partition.appender.append_now([made], -1, committed=True) is not None
        reading = asyncio.create_task(table.read_state(5.0))
        while not reading.done():
            seen += [len(list(table.state.columns_of(b"r%02d" % row))) for row in range(20)]
            await asyncio.sleep(0)
        assert set(seen) <= {0, 5}
        assert 5 in seen


async def test_a_read_may_see_what_is_committed_after_it_began(tmp_path: Path) -> None:
    """The state goes ahead of a read of many rows; their values are read up to what is committed by then."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        assert partition.table is not None
        state, end_offset = await partition.table.read_state(5.0)
        memory = GrowingReservation(MemoryBudget(32 << 20, partition.context.metrics))
        reading = _Reading(partition, partition.table, 0.0, 5.0, state, end_offset, memory, is_from_leader=True)
        await writes.write(write(b"r", {b"a": b"2"}), 5.0)
        await partition.table.keep_up(5.0)
        response = tables_pb2.GetRowsResponse()
        await reading.add_rows([b"r"], wanted_columns(tables_pb2.ColumnSlice()), response.rows)
        assert [column.value for column in response.rows[0].columns] == [b"2"]


@pytest.mark.parametrize("is_wide", [False, True])
async def test_a_read_ends_when_the_answer_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_wide: bool
) -> None:
    """Of 100 large values it reads some more than fit; the client asks for the others.

    What it has read takes the broker's memory until the answer has left: another read of as much is refused.
    """
    sizes: list[int] = []
    async with leading_partition(tmp_path) as partition:
        open_table(partition)
        keys = [table_key(b"r" if is_wide else b"r%02d" % n, b"%02d" % n) for n in range(100)]
        for each in keys:
            made = encode_batch([each + bytes(500_000)], [each], base_timestamp_ms=AT_MS)
            assert partition.appender.append_now([made], -1, committed=True) is not None
        table = partition.table
        assert table is not None
        take = table.read_values

        async def count(offsets: list[int], *limits: int) -> dict[int, RecordValue]:
            found = await take(offsets, *limits)
            sizes.append(sum(len(each.value) for each in found.values()))
            return found

        monkeypatch.setattr(table, "read_values", count)
        state, end_offset = await table.read_state(5.0)
        budget = MemoryBudget(6 << 20, partition.context.metrics)
        memory = GrowingReservation(budget)
        reading = _Reading(partition, table, 0.0, 5.0, state, end_offset, memory, is_from_leader=True)
        response = tables_pb2.GetRowsResponse()
        rows = [b"r"] if is_wide else [b"r%02d" % n for n in range(100)]
        await reading.add_rows(rows, wanted_columns(tables_pb2.ColumnSlice()), response.rows)
        found = [column for row in response.rows for column in row.columns]
        assert sum(len(column.value) for column in found) <= budget.used_bytes <= MAX_ANSWER_BYTES + 600_000
        assert sum(sizes) < 3 * MAX_ANSWER_BYTES
        other = GrowingReservation(budget)
        late = _Reading(partition, table, 0.0, 5.0, state, end_offset, other, is_from_leader=True)
        with pytest.raises(ThrottledError, match="of 6291456 bytes of requests and answers"):
            await late.add_rows(rows, wanted_columns(tables_pb2.ColumnSlice()), tables_pb2.GetRowsResponse().rows)
        other.give_back()
        memory.give_back()
        memory.give_back()
        assert budget.used_bytes == 0
    assert [column.value[:-500_000] for column in found] == keys[:6]
    assert response.rows[0].HasField("next_column") == is_wide
    assert max(sizes) < MAX_ANSWER_BYTES + 600_000


async def test_a_state_that_takes_long_is_continued_while_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round over all tables waits for it once, and not again; few are made in threads at a time."""
    monkeypatch.setattr(table_module, "FAR_BYTES", 0)
    async with leading_partition(tmp_path) as partition:
        made = encode_batch([b"v"], [table_key(b"r", b"a")], base_timestamp_ms=AT_MS)
        assert partition.appender.append_now([made], -1, committed=True) is not None
        open_table(partition)
        table, builds = partition.table, partition.context.table_builds
        assert table is not None
        for _ in range(TABLE_BUILDS):
            await builds.acquire()
        with pytest.raises(TimedOutError):
            await table.keep_up(0.0)
        await table.keep_up(3_600)
        assert table.state.end_offset == 0
        builds.release()
        assert await read(partition, b"r") == {b"a": b"v"}


@pytest.mark.parametrize("is_far", [False, True])
async def test_a_batch_that_cannot_be_decoded_has_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    """A topic with `validate=header` that became a table may have one: the rows behind it are read and written."""
    monkeypatch.setattr(table_module, "FAR_BYTES", 0 if is_far else 1 << 40)
    async with leading_partition(tmp_path) as partition:
        partition.update_config(replace(CONFIG, table="no", validate=Validation.HEADER))
        good = [encode_batch([b"1"], [table_key(row, b"a")], base_timestamp_ms=AT_MS) for row in (b"r", b"s")]
        bad = bytearray(encode_batch([b"2"], [table_key(b"r", b"a")], base_timestamp_ms=AT_MS))
        bad[HEADER_BYTES : HEADER_BYTES + 4] = b"\xff" * 4  # The first value begins before the values.
        bad[32:36] = crc32c(bad[CRC_START:]).to_bytes(4, "little")
        for each in (good[0], bytes(bad), good[1]):
            assert partition.appender.append_now([each], -1, committed=True) is not None
        writes = open_table(partition)
        assert await read(partition, b"r") == {b"a": b"1"}
        assert await read(partition, b"s") == {b"a": b"1"}
        assert (await writes.write(write(b"r", {b"a": b"3"}, if_version=0), 5.0)).applied
        assert await read(partition, b"r") == {b"a": b"3"}


async def test_a_table_without_rows_is_not_read_anew_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is long, and every row of it is deleted."""
    monkeypatch.setattr(table_module, "FAR_BYTES", 0)
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        assert partition.table is not None
        for number in range(3):
            await writes.write(write(b"r", {b"a": b"%d" % number}), 5.0)
            await writes.write(write(b"r"), 5.0)
        assert await read(partition, b"r") == {}
        state = partition.table.state
        await writes.write(write(b"r", {b"a": b"3"}), 5.0)
        assert await read(partition, b"r") == {b"a": b"3"}
        assert partition.table.state is state


async def test_an_expired_column_is_gone(tmp_path: Path) -> None:
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        now_ms = partition.context.clock.now_ms()
        await writes.write(write(b"r", {b"a": b"1"}, expires_ms=now_ms - 1), 5.0)
        await writes.write(write(b"r", {b"b": b"1"}, expires_ms=now_ms + 3_600_000), 5.0)
        assert await read(partition, b"r") == {b"b": b"1"}


@pytest.mark.parametrize("is_known", [False, True], ids=["not noticed", "noticed"])
async def test_columns_that_a_wrong_clock_has_expired_are_there_again(tmp_path: Path, is_known: bool) -> None:
    """A clock jumps by hours and is put back: nothing is lost, and while it is known to be wrong nothing is missing."""
    async with leading_partition(tmp_path) as partition:
        writes, clock = open_table(partition), partition.context.clock
        now_ms = clock.now_ms()
        if is_known:
            object.__setattr__(partition.context, "stamp_clock", lambda: now_ms)
        await writes.write(write(b"r", {b"a": b"1"}, expires_ms=now_ms + 3_600_000), 5.0)
        version = (await writes.write(write(b"r", {b"b": b"1"}, expires_ms=now_ms + 9_000_000), 5.0)).version
        assert await read(partition, b"r") == {b"a": b"1", b"b": b"1"}
        with mock.patch.object(clock, "now_ms", return_value=now_ms + 5_400_000):
            assert len(await read(partition, b"r")) == 1 + is_known
        assert await read(partition, b"r") == {b"a": b"1", b"b": b"1"}
        refused = await writes.write(write(b"r", {b"a": b"2"}, if_version=ABSENT), 5.0)
        assert (refused.applied, refused.version) == (False, version)


async def test_metrics_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and their memory, batches in memory, rebuilds, and how far the state is behind."""
    async with leading_partition(tmp_path) as partition:
        writes, metrics = open_table(partition), partition.context.metrics.tables
        metrics.observe(partition.context.tables)
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        await writes.write(write(b"r", {b"b": b"2"}), 5.0)
        table = partition.table
        assert table is not None
        table._caught_up_ms -= 90_000
        assert 90 <= table.lag_seconds < 120
        await read(partition, b"r")
        assert table.lag_seconds == 0
        assert (metrics.batch_hits.value, metrics.batch_misses.value) == (0, 2)
        await read(partition, b"r")
        assert (metrics.batch_hits.value, metrics.batch_misses.value) == (2, 2)
        assert (table.keys, table.key_bytes) == (2, 2 * (KEY_BYTES + len(table_key(b"r", b"a"))))
        monkeypatch.setattr(table_module, "FAR_BYTES", 0)
        table._truncations = -1
        await read(partition, b"r")
        assert sum(metrics.rebuild_seconds._series[""].counts) == 1


async def fill_expiring(partition: Partition, expires_ms: int) -> None:
    """Append 5,000 rows that expire together."""
    for start in range(0, 5_000, 1_000):
        keys = [table_key(b"r%d" % number, b"a") for number in range(start, start + 1_000)]
        headers = [expiry_headers(expires_ms)] * len(keys)
        made = encode_batch([b"v"] * len(keys), keys, base_timestamp_ms=AT_MS, headers=headers)
        assert partition.appender.append_now([made], -1, committed=True) is not None


@pytest.mark.parametrize("compacts", [False, True])
async def test_many_columns_expire_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacts: bool) -> None:
    """Those of a bulk load do at one moment; a read, and compaction, let others run."""
    turns = mock.AsyncMock(side_effect=table_module.next_turn)
    async with leading_partition(tmp_path) as partition:
        open_table(partition)
        assert partition.table is not None
        later_ms = partition.context.now_ms() + 60_000
        await fill_expiring(partition, later_ms)
        assert await read(partition, b"r1") == {b"a": b"v"}
        monkeypatch.setattr(table_module, "next_turn", turns)
        if compacts:
            await compact_partition(partition, later_ms)
        else:
            monkeypatch.setattr(partition.context.clock, "now_ms", lambda: later_ms)
            assert await read(partition, b"r1") == {}
        assert (partition.table.state.rows, turns.await_count) == (0, 9)


async def test_a_state_is_made_without_what_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the event loop: a broker that starts may have the columns of a day that have."""
    monkeypatch.setattr(table_module, "FAR_BYTES", 0)
    async with leading_partition(tmp_path) as partition:
        await fill_expiring(partition, partition.context.now_ms() - 1)
        open_table(partition)
        assert partition.table is not None
        await partition.table.keep_up(5.0)
        assert partition.table.state.end_offset == 5_000
        assert partition.table.state.rows == 0


async def test_what_has_expired_is_compacted_away(tmp_path: Path) -> None:
    """And with it the value that it has replaced; a clock that is put back does not show its key again."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        partition.update_config(replace(CONFIG, delete_retention_ms=0, segment_bytes=1_000))
        await partition.update_log_settings()
        now_ms = partition.context.clock.now_ms()
        await writes.write(write(b"r", {b"a": b"for ever"}), 5.0)
        await writes.write(write(b"r", {b"a": b"for a while"}, expires_ms=now_ms + 3_600_000), 5.0)
        for number in range(20):
            await writes.write(write(b"filling", {b"a": b"%d" % number * 100}), 5.0)
        assert await read(partition, b"r") == {b"a": b"for a while"}
        await compact_partition(partition, now_ms + 3_600_001)
        contents = stored(tmp_path)
        assert b"for " not in contents
        assert b"19" * 100 in contents
        assert await read(partition, b"r") == {}


async def test_only_what_the_state_has_is_compacted(tmp_path: Path) -> None:
    """A state that has a value and not its deletion must find that in the log."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        partition.update_config(replace(CONFIG, delete_retention_ms=0, segment_bytes=1_000))
        await partition.update_log_settings()
        await writes.write(write(b"r", {b"a": b"1" * 100}), 5.0)
        assert len(await read(partition, b"r")) == 1
        await writes.write(write(b"r", {b"a": None}), 5.0)
        for number in range(20):
            await writes.write(write(b"filling", {b"a": b"%d" % number * 100}), 5.0)
        now_ms = partition.context.clock.now_ms() + 3_600_000
        assert partition.table is not None
        assert partition.table.state.end_offset == 1
        await compact_partition(partition, now_ms)
        assert await read(partition, b"r") == {}
        assert partition.table.state.rows == 1
        await compact_partition(partition, now_ms + 3_600_000)
        assert await read(partition, b"filling") == {b"a": b"19" * 100}


def read_batch_by_batch(monkeypatch: pytest.MonkeyPatch, *, is_far: bool) -> None:
    """Let a state read the log a batch at a time: in a thread if `is_far`, else on the event loop."""
    monkeypatch.setattr(table_module, "FAR_BYTES", 0 if is_far else 1 << 40)
    monkeypatch.setattr(table_module, "BUILT_BYTES", 1)
    monkeypatch.setattr(table_module, "APPLIED_BYTES", 1)


async def fill_deleted(partition: Partition) -> None:
    """Fill a topic that is no table, in a segment each: a row, its deletion, and another row."""
    partition.update_config(replace(CONFIG, table="no", delete_retention_ms=0))
    await partition.update_log_settings()
    for row, value in ((b"r", b"1"), (b"r", None), (b"s", b"2")):
        made = encode_batch([value], [table_key(row, b"a")], base_timestamp_ms=AT_MS)
        assert partition.appender.append_now([made], -1, committed=True) is not None
        partition.on_flushed(partition.flush_blocking())
        partition.open_log._writer.roll()


@pytest.mark.parametrize("is_far", [False, True])
async def test_a_state_made_during_a_compaction_has_no_deleted_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    """A topic that becomes a table may be in a compaction: the state has read a row, whose deletion is removed then."""
    read_batch_by_batch(monkeypatch, is_far=is_far)
    async with leading_partition(tmp_path) as partition:
        await fill_deleted(partition)
        log, later_ms = partition.open_log, partition.context.now_ms() + 7_200_000
        partition.update_config(replace(partition.config, table="yes"))
        decode = partition.table._decode
        reports = []

        def decode_and_compact(data: bytes, position: int) -> list[Columns]:
            found = list(decode(data, position))
            if not reports:
                reports.append(log.compaction.compact(later_ms, 3))
            return found

        monkeypatch.setattr(partition.table, "_decode", decode_and_compact)
        assert await read(partition, b"r") == {}
        assert await read(partition, b"s") == {b"a": b"2"}
        assert reports[0].removed_records == 2


@pytest.mark.parametrize("is_far", [False, True])
async def test_a_state_that_begins_while_segments_are_replaced_has_no_deleted_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    """The log has the end of what the compaction removes already, and the deletions, which go after the first read."""
    read_batch_by_batch(monkeypatch, is_far=is_far)
    written, was_read, replaced = threading.Event(), threading.Event(), threading.Event()
    install = SegmentReplacement._install

    def install_later(*arguments: Any) -> int:
        written.set()
        was_read.wait(30)
        try:
            return install(*arguments)
        finally:
            replaced.set()

    monkeypatch.setattr(SegmentReplacement, "_install", install_later)
    async with leading_partition(tmp_path) as partition:
        await fill_deleted(partition)
        log, later_ms = partition.open_log, partition.context.now_ms() + 7_200_000
        compacting = asyncio.create_task(asyncio.to_thread(log.compaction.compact, later_ms, 3))
        await asyncio.to_thread(written.wait, 30)
        partition.update_config(replace(partition.config, table="yes"))
        decode = partition.table._decode

        def decode_and_replace(data: bytes, position: int) -> list[Columns]:
            found = list(decode(data, position))
            was_read.set()
            replaced.wait(30)
            return found

        monkeypatch.setattr(partition.table, "_decode", decode_and_replace)
        assert await read(partition, b"r") == {}
        assert await read(partition, b"s") == {b"a": b"2"}
        report = await compacting
        assert report is not None
        assert report.removed_records == 2


async def test_a_copy_from_the_start_lacks_what_was_deleted(tmp_path: Path) -> None:
    """Its chain is that of the log before, at the state's end, too."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        await writes.write(write(b"s", {b"a": b"1"}), 5.0)
        assert await read(partition, b"r") == {b"a": b"1"}
        log = partition.open_log
        batches = [bytes(batch) for _, batch in iter_batches(log.reader.read(0, 1 << 20, 2).read())]
        record = decode_batch(batches[0], max_payload_bytes=1 << 20)
        gone = compacted_copy(record)
        log.reset_to(0)
        log.compaction.raise_deletions_end(2)
        log.append_replicated(gone + batches[1])
        assert await read(partition, b"r") == {}
        assert await read(partition, b"s") == {b"a": b"1"}


async def test_a_copy_that_is_behind_its_source_answers_nothing(tmp_path: Path) -> None:
    """A follower, or the leader of a mirror, has a compacted batch, and not yet the records for whose sake those of it
    are gone; it may have restarted since it copied that. Another leader has all.
    """
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        await writes.write(write(b"s", {b"a": b"1"}), 5.0)
        log = partition.open_log
        batches = [bytes(batch) for _, batch in iter_batches(log.reader.read(0, 1 << 20, 2).read())]
        record = decode_batch(batches[0], max_payload_bytes=1 << 20)
        for newer_end, is_behind in ((3, True), (2, False)):
            log.reset_to(0)
            log.append_replicated(compacted_copy(record, newer_end) + batches[1])
            partition.update_config(replace(CONFIG, table="no"))
            open_table(partition)  # As after a restart: nothing is known but the log.
            assert await read(partition, b"s") == {b"a": b"1"}
            with mock.patch.object(partition.replica, "role", Role.FOLLOWING):
                if is_behind:
                    with pytest.raises(OffsetNotAvailableError, match=r"below offset 2, .* compacted up to 3"):
                        await read(partition, b"s")
                else:
                    assert await read(partition, b"s") == {b"a": b"1"}
            partition.update_config(replace(CONFIG, mirror="west"))
            if is_behind:
                with pytest.raises(OffsetNotAvailableError, match=r"below offset 2, .* compacted up to 3"):
                    await read(partition, b"s")
            else:
                assert await read(partition, b"s") == {b"a": b"1"}


def compacted_copy(columns: Columns, newer_end: int = 0) -> bytes:
    """Return the compacted batch that a batch without any current record becomes."""
    written: list[bytes] = []
    index = SegmentIndex(MemoryFileSystem(), "/none", 0, IndexCache(1 << 20))
    writer = compacted_writer.CompactedWriter(written.append, index, 1 << 20)
    writer.add(columns, b"", np.zeros(columns.record_count, np.bool_), RemovedRecords(newer_end, 0))
    writer.finish()
    return b"".join(written)


class Serving:
    """The parts of a broker that reads of tables use."""

    def __init__(self, partition: Partition, most: int) -> None:
        self.waiters = FetchWaiters(most, partition.context.metrics)

    def check_serving(self) -> None:
        if self.waiters.closed:
            raise ShuttingDownError("the broker is shutting down")


async def awaited(partition: Partition, serving: Serving, min_offset: int, seconds: float = 5.0) -> None:
    """Wait for an offset as the service does."""
    service = TableService(cast(Any, serving), cast(Any, None), cast(Any, None), partition.context)
    read = tables_pb2.TableRead(min_offset=min_offset)
    await service._await_commit(partition, read, asyncio.get_running_loop().time() + seconds)


async def test_a_read_waits_for_an_offset(tmp_path: Path) -> None:
    """In a slot of the fetches that wait; it leaves when the offset is committed, or the time is up."""
    async with leading_partition(tmp_path) as partition:
        writes, serving = open_table(partition), Serving(partition, 2)
        waiting = asyncio.create_task(awaited(partition, serving, 2))
        await asyncio.sleep(0)
        assert len(partition.watchers) == 1
        await writes.write(write(b"r", {b"a": b"1", b"b": b"2"}), 5.0)
        await waiting
        with pytest.raises(OffsetNotAvailableError, match="in time: this replica has those below 2") as late:
            await awaited(partition, serving, 100, 0.01)
        assert "min_offset" in late.value.action, "the leader has no other one to ask"
        assert not partition.watchers


async def test_few_reads_wait(tmp_path: Path) -> None:
    """Others are told to try again soon, so that those who wait leave slots to the rest; a stop ends the wait."""
    async with leading_partition(tmp_path) as partition:
        open_table(partition)
        serving = Serving(partition, 1)
        waiting = asyncio.create_task(awaited(partition, serving, 2))
        await asyncio.sleep(0)
        with pytest.raises(OffsetNotAvailableError, match="too many calls wait") as caught:
            await awaited(partition, serving, 2)
        assert caught.value.retry_after_ms > 0
        serving.waiters.close()
        with pytest.raises(ShuttingDownError):
            await waiting


async def test_a_truncated_log_is_read_anew(tmp_path: Path) -> None:
    """What was read is not in the log any more, and other records have its offsets."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        for number in range(5):
            await writes.write(write(b"r%d" % number, {b"a": b"1"}), 5.0)
        assert await read(partition, b"r4") == {b"a": b"1"}
        log = partition.open_log
        log.truncate_to(3)
        for number in range(3):
            made = encode_batch([b"2"], [table_key(b"s%d" % number, b"a")], base_timestamp_ms=AT_MS)
            pair = (made, read_header(made))
            log.append([pair], leader_epoch=partition.replica.leader_epoch, append_timestamp_ms=AT_MS)
        assert partition.table is not None
        state, end_offset = await partition.table.read_state(5.0)
        assert end_offset == 5
        assert list(state.rows_from(b"", None, b"")) == [b"r0", b"r1", b"r2", b"s0", b"s1"]
        assert await read(partition, b"s0") == {b"a": b"2"}


@pytest.mark.parametrize("more", [1, 0, 3], ids=["as long", "shorter", "longer"])
async def test_what_was_truncated_decides_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """A leader's uncommitted records are replaced by another's; it leads again, and the log is as long, or not."""
    async with leading_partition(tmp_path) as partition:
        writes, table = open_table(partition), partition.table
        assert table is not None
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        monkeypatch.setattr(partition.context.flusher, "request", lambda *_: None)
        partition.update_config(replace(CONFIG, durability=Durability.FSYNC))
        lost = asyncio.create_task(writes.write(write(b"r", {b"a": b"2"}), 5.0))
        seen = asyncio.create_task(writes.write(write(b"r", {b"a": b"3"}, if_version=0), 5.0))
        while table._uncommitted.end_offset < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        lost.cancel()
        seen.cancel()
        await asyncio.wait([lost, seen])
        log, epoch = partition.open_log, partition.replica.leader_epoch
        log.truncate_to(1)
        for number in range(more):
            made = encode_batch([b"4"], [table_key(b"s%d" % number, b"a")], base_timestamp_ms=AT_MS)
            log.append([(made, read_header(made))], leader_epoch=epoch, append_timestamp_ms=AT_MS)
        partition.replica.log_end_offset = log.log_end_offset
        waiting = partition.acknowledgements._waiting
        waiting.clear()
        task = asyncio.create_task(writes.write(write(b"r", {b"a": b"5"}, if_version=0), 5.0))
        while not (waiting or task.done()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        partition.on_flushed(partition.flush_blocking())
        assert await task == RowWritten(True, 1 + more, 1, 2 + more, epoch)


async def test_a_write_of_which_the_log_s_end_is_never_known_times_out(tmp_path: Path) -> None:
    async with leading_partition(tmp_path) as partition:
        writes, table = open_table(partition), partition.table
        assert table is not None
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        await read(partition, b"r")
        table._uncommitted.begin(9)
        with pytest.raises(TimedOutError) as caught:
            await writes.write(write(b"r", {b"a": b"2"}, if_version=0), 0.05)
        assert caught.value.outcome is Outcome.NOT_APPLIED


async def test_a_read_for_which_the_log_is_never_long_enough_times_out(tmp_path: Path) -> None:
    """Each try to catch up ends at once, because the log was cut off meanwhile."""
    async with leading_partition(tmp_path) as partition:
        writes, table = open_table(partition), partition.table
        assert table is not None
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        with mock.patch.object(table, "_read", side_effect=SliceCutError), pytest.raises(TimedOutError):
            await table.read_state(0.05)


@pytest.mark.parametrize("is_far", [False, True])
async def test_a_high_watermark_within_a_batch_is_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    monkeypatch.setattr(table_module, "FAR_BYTES", 0 if is_far else 1 << 40)
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        await writes.write(write(b"r", {b"a": b"1", b"b": b"1"}), 5.0)
        partition.replica.high_watermark = Offset(1)
        assert partition.table is not None
        with pytest.raises(OffsetNotAvailableError):
            await partition.table.read_state(5.0)


@pytest.mark.parametrize("failure", [None, OffsetOutOfRangeError("the log ends before")])
async def test_a_log_that_is_cut_off_while_a_write_is_decided_is_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception | None
) -> None:
    """The write is decided anew, after the event loop has done what else there is."""
    async with leading_partition(tmp_path) as partition:
        writes, table = open_table(partition), partition.table
        assert table is not None
        await writes.write(write(b"r", {b"a": b"1"}), 5.0)
        await read(partition, b"r")
        log_end, reads = partition.replica.log_end_offset, 0

        async def cut(*_: object) -> list[Columns]:
            nonlocal reads
            reads += 1
            assert reads < 10, "the loop has an end"
            asyncio.get_running_loop().call_soon(setattr, partition.replica, "log_end_offset", log_end)
            if failure is not None:
                raise failure
            return []

        monkeypatch.setattr(table, "_read", cut)
        partition.replica.log_end_offset = Offset(log_end + 1)
        written = await writes.write(write(b"r", {b"a": b"2"}, if_version=0), 5.0)
        assert (written.applied, reads) == (True, 1)


async def test_records_below_the_log_start_are_forgotten(tmp_path: Path) -> None:
    """By retention or a deletion of records; what was written again stays."""
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        for number in range(30):
            await writes.write(write(b"r%d" % (number % 20), {b"a": b"%d" % number}), 5.0)
        assert len(await read(partition, b"r19")) == 1
        assert await partition.log_start.delete_records(15, 5.0) == 15
        assert partition.table is not None
        state, _ = await partition.table.read_state(5.0)
        rows = {int(row[1:]) for row in state.rows_from(b"", None, b"")}
        assert rows == {15, 16, 17, 18, 19} | set(range(10))
        assert state.rows == 15


@pytest.mark.parametrize("is_far", [False, True])
async def test_a_new_state_has_nothing_below_the_log_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    """The log start is within a batch, whose first records cannot be read any more."""
    monkeypatch.setattr(table_module, "FAR_BYTES", 0 if is_far else 1 << 40)
    async with leading_partition(tmp_path) as partition:
        open_table(partition)
        keys = [table_key(b"r%d" % number, b"a") for number in range(10)]
        made = encode_batch([b"1"] * 10, keys, base_timestamp_ms=AT_MS)
        assert partition.appender.append_now([made], -1, committed=True) is not None
        assert await partition.log_start.delete_records(4, 5.0) == 4
        assert await read(partition, b"r4") == {b"a": b"1"}
        assert await read(partition, b"r3") == {}
        assert partition.table is not None
        assert partition.table.state.rows == 6


async def test_a_failed_replica_takes_no_write(tmp_path: Path) -> None:
    async with leading_partition(tmp_path) as partition:
        writes = open_table(partition)
        partition.fail(StorageOfflineError("the disk is gone"))
        with pytest.raises(StorageOfflineError, match="the disk is gone"):
            await writes.write(write(b"r", {b"a": b"1"}), 5.0)
