"""Purges of a table's rows on one replica."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.log.log_compaction import CompactionReport
from headrace.partition.purged_rows import PurgedRows
from headrace.wire.errors import InvalidRequestError, Outcome, TimedOutError
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.table_purge import TablePurge
from headrace_broker.runtime.table_writes import TableWrites

from tests.fakes.manual_clock import ManualClock
from tests.unit.broker.test_broker_runtime import leading_partition
from tests.unit.broker.test_broker_table import CONFIG, open_table, read, stored, write


async def opened(partition: Partition) -> tuple[TableWrites, TablePurge]:
    """Return writes and purges of a table with a row that is deleted and one that is not."""
    writes = open_table(partition)
    partition.update_config(replace(CONFIG, segment_bytes=1_000, max_batch_bytes=1_000))
    await partition.update_log_settings()
    for number in range(30):
        await writes.write(write(b"gone", {b"a": b"secret %d" % number}), 5.0)
        await writes.write(write(b"stays", {b"a": b"value %d" % number}), 5.0)
    await writes.write(write(b"gone"), 5.0)
    assert partition.table is not None
    return writes, partition.table.purges


def end_of(partition: Partition) -> int:
    return int(partition.replica.high_watermark)


@pytest.mark.parametrize(
    "wanted", [PurgedRows(0, keys=(b"gone",)), PurgedRows(0, prefix=b"go"), PurgedRows(0, deleted=True)]
)
async def test_a_deleted_row_goes_and_others_stay(tmp_path: Path, wanted: PurgedRows) -> None:
    async with leading_partition(tmp_path) as partition:
        writes, purges = await opened(partition)
        assert b"secret" in stored(tmp_path)
        report = await purges.purge(wanted._replace(before_offset=end_of(partition)), 30.0)
        assert report is not None
        assert report.removed_records >= 31
        found = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240
        assert b"secret" not in found
        assert b"gone" not in found
        assert await read(partition, b"stays") == {b"a": b"value 29"}
        await writes.write(write(b"gone", {b"a": b"again"}), 5.0)
        assert await read(partition, b"gone") == {b"a": b"again"}


@pytest.mark.parametrize("wanted", [PurgedRows(0, keys=(b"gone", b"stays")), PurgedRows(0, prefix=b"st")])
async def test_a_row_that_exists_is_not_purged(tmp_path: Path, wanted: PurgedRows) -> None:
    """Neither it nor the others of the call."""
    async with leading_partition(tmp_path) as partition:
        _, purges = await opened(partition)
        with pytest.raises(InvalidRequestError, match="a row to purge exists"):
            await purges.purge(wanted._replace(before_offset=end_of(partition)), 30.0)
        assert b"secret" in stored(tmp_path)
        assert await read(partition, b"stays") == {b"a": b"value 29"}


async def test_what_is_written_after_the_offset_stays(tmp_path: Path) -> None:
    async with leading_partition(tmp_path) as partition:
        writes, purges = await opened(partition)
        before_offset = end_of(partition)
        await writes.write(write(b"gone", {b"a": b"later"}), 5.0)
        assert await purges.purge(PurgedRows(before_offset, keys=(b"gone",)), 30.0) is not None
        assert await read(partition, b"gone") == {b"a": b"later"}
        assert b"secret" not in stored(tmp_path)


async def test_a_caller_that_comes_back_finds_the_same_purge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time; one that was interrupted is continued."""
    async with leading_partition(tmp_path) as partition:
        _, purges = await opened(partition)
        compaction, may_go, calls = partition.open_log.compaction, asyncio.Event(), 0
        purge, compact = compaction.purge, purges._compact

        async def compact_later(wanted: PurgedRows, end_offset: int) -> CompactionReport:
            await may_go.wait()
            return await compact(wanted, end_offset)

        def purge_at_the_third(*arguments: object) -> CompactionReport | None:
            nonlocal calls
            calls += 1
            return None if calls < 3 else purge(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(purges, "_compact", compact_later)
        monkeypatch.setattr(compaction, "purge", purge_at_the_third)
        wanted = PurgedRows(end_of(partition), deleted=True)
        assert await purges.purge(wanted, 0.0) is None
        with pytest.raises(TimedOutError, match="another purge"):
            await purges.purge(wanted._replace(before_offset=1), 0.0)
        may_go.set()
        assert await purges.purge(wanted, 30.0) is not None
        assert calls == 3
        assert b"secret" not in stored(tmp_path)


@pytest.mark.parametrize("change", ["a minute passes", "the log is truncated"])
async def test_a_result_that_was_left_is_not_that_of_a_later_purge(tmp_path: Path, change: str) -> None:
    """What has expired or was copied here since is removed, too."""
    async with leading_partition(tmp_path) as partition:
        _, purges = await opened(partition)
        wanted = PurgedRows(end_of(partition), deleted=True)
        assert await purges.purge(wanted, 0.0) is None
        task = purges._task
        assert task is not None
        await task
        if change == "a minute passes":
            assert isinstance(partition.context.clock, ManualClock)
            partition.context.clock.advance(60_000)
        else:
            partition.open_log._state.truncations += 1
        assert await purges.purge(wanted, 0.0) is None, "another one has begun"
        assert purges._task is not task
        again = await purges.purge(wanted, 30.0)
        assert again is not None
        assert again.removed_records == 0


async def test_a_purge_that_is_ended_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition is moved away, or the topic no table any more, while a caller waits."""
    async with leading_partition(tmp_path) as partition:
        _, purges = await opened(partition)
        monkeypatch.setattr(purges, "_compact", asyncio.Event().wait)
        waiting = asyncio.create_task(purges.purge(PurgedRows(end_of(partition), deleted=True), 30.0))
        await asyncio.sleep(0)
        partition.close_table()
        with pytest.raises(TimedOutError, match="the purge was ended") as found:
            await waiting
        assert (found.value.retriable, found.value.outcome) == (True, Outcome.UNKNOWN)


async def test_a_retry_is_recognised_after_a_purge(tmp_path: Path) -> None:
    """The batch that its producer may send again was written anew: a snapshot has its sequence."""
    async with leading_partition(tmp_path) as partition:
        writes, purges = await opened(partition)
        await writes.write(write(b"gone", {b"a": b"secret"}, producer=(7, 0, 0)), 5.0)
        await writes.write(write(b"gone"), 5.0)
        await purges.purge(PurgedRows(end_of(partition), keys=(b"gone",)), 30.0)
        snapshot = partition.open_log.snapshots.load()
        assert snapshot is not None
        assert partition.replica.producers.restore(snapshot[1])
        assert partition.replica.producers.find(7, 0, 0) is not None


async def test_callers_with_different_purges_take_turns(tmp_path: Path) -> None:
    """Each waits for the one before, also if its caller is gone when it ends."""
    async with leading_partition(tmp_path) as partition:
        _, purges = await opened(partition)
        end_offset = end_of(partition)
        wanted = [
            PurgedRows(end_offset, deleted=True),
            *(PurgedRows(end_offset, keys=(key,)) for key in (b"gone", b"x")),
        ]
        first = asyncio.create_task(purges.purge(wanted[0], 30.0))
        await asyncio.sleep(0)
        second = asyncio.create_task(purges.purge(wanted[1], 30.0))
        assert all(report is not None for report in await asyncio.gather(first, second))
        assert await purges.purge(wanted[2], 30.0) is not None
