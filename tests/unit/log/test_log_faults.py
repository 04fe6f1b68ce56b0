"""A full disk, a failing disk, and what the log does about it (PROTOCOL H34, H35)."""

from __future__ import annotations

import errno

import pytest
from headrace.log import DiskLimits, LogSettings, TimestampKind
from headrace.log.errors import LogClosedError, StorageBusyError
from headrace.wire.errors import Outcome, StorageFullError, StorageOfflineError


def test_full_disk_mid_append_leaves_no_trace(bench, log):
    """ENOSPC within a batch: the log rolls back, refuses it as NOT_APPLIED, and appends again with free space (H35)."""
    bench.append(3)
    before = bench.content()
    bench.disk.capacity_bytes = bench.disk._used_bytes() + 50
    with pytest.raises(StorageFullError) as caught:
        bench.append()
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert caught.value.retriable
    assert bench.content() == before == bench.disk.content(bench.path(0))
    with pytest.raises(StorageFullError):
        bench.append()
    bench.disk.capacity_bytes = 1 << 30
    assert not bench.directory.check_space().refusing
    assert bench.append() == 3
    assert log.reader.verify() == 4


def test_appends_are_refused_before_the_disk_is_full_and_again_taken(bench):
    """Low and high water marks with hysteresis; reads and flushes still succeed meanwhile."""
    bench.limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=10_000, resume_above_bytes=20_000)
    log = bench.open()
    bench.append(3)
    used = bench.disk._used_bytes()
    bench.disk.capacity_bytes = used + 9_000
    assert bench.directory.check_space().refusing
    with pytest.raises(StorageFullError):
        bench.append()
    assert bench.content()
    assert log.flush() == 3
    bench.disk.capacity_bytes = used + 15_000
    assert bench.directory.check_space().refusing
    bench.disk.capacity_bytes = used + 25_000
    assert not bench.directory.check_space().refusing
    assert bench.append() == 3


def test_free_space_is_checked_once_per_check_every_bytes_and_not_at_each_append(bench):
    """`statvfs` is not on the path of an append (H35)."""
    bench.limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, check_every_bytes=2_000)
    bench.open()
    before = bench.disk.calls["space"]
    bench.append(21, size_bytes=100)
    assert 1 <= bench.disk.calls["space"] - before <= bench.log.size_bytes // 2_000


def test_checkpoint_on_a_full_disk_takes_the_reserve(bench, log):
    """A checkpoint finds room when appends do not; afterwards the reserve is made again (H35)."""
    bench.append()
    bench.disk.fail("pwritev", errno.ENOSPC, suffix="leader-epochs.tmp")
    log.start_epoch(5)
    assert not bench.disk.exists("/data/reserve")
    with pytest.raises(StorageFullError):
        bench.append(epoch=5)
    assert not bench.directory.check_space().refusing
    assert bench.disk.exists("/data/reserve")
    assert bench.append(epoch=5) == 1


@pytest.mark.parametrize("operation", ["pwritev", "fsync"])
def test_io_error_takes_the_log_offline_for_ever(bench, operation, log):
    """EIO is never retried: nothing is appended, read or flushed any more, and the stop is not clean (H34)."""
    bench.append(2)
    bench.disk.fail(operation, errno.EIO, suffix=".log")
    with pytest.raises(StorageOfflineError):
        bench.append() if operation == "pwritev" else log.flush()
    assert log.offline
    flushed = log.flushed_offset
    for again in (
        bench.append,
        log.flush,
        lambda: log.reader.read(0, 10, 2),
        lambda: log.durability.checkpoint(1, 1, force=True),
    ):
        with pytest.raises(StorageOfflineError):
            again()
    assert log.flushed_offset == flushed == 0
    bench.directory.close(clean=True, broker_epoch=9)
    assert bench.open_directory().clean_broker_epoch is None


@pytest.mark.parametrize("operation", ["pread", "pread_nowait"])
@pytest.mark.parametrize(("number", "is_offline"), [(errno.EIO, True), (errno.ENOMEM, False)])
def test_io_error_of_a_range_that_was_found_takes_the_log_offline(bench, operation, number, is_offline, log):
    """What a fetch has located it reads later: the disk is then as broken as when the log reads itself."""
    bench.append(2)
    with log.reader.read(0, 1 << 20, 2) as found:
        bench.disk.fail("pread", number, suffix=".log")
        with pytest.raises(StorageOfflineError if is_offline else StorageBusyError):
            found.read() if operation == "pread" else found.try_read_nowait()
    assert bool(log.offline) is is_offline
    bench.directory.close(clean=True, broker_epoch=9)
    assert bench.open_directory().clean_broker_epoch == (None if is_offline else 9)


def test_failed_cut_back_takes_the_log_offline(bench, log):
    """If half a batch cannot be removed, nothing may follow it (H35)."""
    bench.append()
    bench.disk.capacity_bytes = bench.disk._used_bytes() + 50
    bench.disk.fail("truncate", errno.EIO, suffix=".log")
    with pytest.raises(StorageOfflineError):
        bench.append()
    assert log.offline


def test_cut_back_that_is_refused_comes_before_the_next_append(bench, log):
    """Half a batch that a full disk did not even let go lies behind no later batch (H35, H32)."""
    bench.append()
    bench.disk.capacity_bytes = bench.disk._used_bytes() + 150
    bench.disk.fail("truncate", errno.ENOSPC, suffix=".log")
    with pytest.raises(StorageFullError):
        bench.append(size_bytes=400)
    assert not log.offline
    bench.disk.capacity_bytes = 1 << 30
    bench.directory.check_space()
    assert bench.append(size_bytes=10) == 1
    assert len(bench.disk.content(bench.path(0))) == log.size_bytes
    assert log.reader.verify() == 2


def test_flush_syncs_each_dirty_file_once_and_nothing_that_is_clean(bench, log):
    """Group commit: one fsync a dirty file and round, none when another round has covered the data."""
    bench.append(5)
    before = bench.disk.calls["fsync"]
    assert log.flush() == 5
    assert log.flush() == 5
    assert bench.disk.calls["fsync"] - before == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_at_a_roll_is_refused_and_the_log_goes_on(bench, number):
    """No room for the file of a new segment: the append is refused, and the next one rolls (H35)."""
    bench.settings = LogSettings(segment_bytes=1_000)
    log = bench.open()
    bench.append(5)
    assert log.segment_count == 1
    bench.disk.fail("open", number, suffix=".log")
    with pytest.raises(StorageFullError):
        bench.append()
    assert not log.offline
    assert not bench.directory.check_space().refusing
    assert bench.append(2) == 6
    assert log.segment_count == 2
    assert log.reader.verify() == 7


def test_closed_log_refuses_everything(bench, log):
    """A call that comes late reaches neither the files of who opened the log anew nor a descriptor used again."""
    bench.append(3)
    bench.directory.close_log(log)
    reopened = bench.directory.open_log(log.topic_id, log.partition, bench.settings)
    before = {name: bench.disk.content(name) for name in bench.disk._names if bench.disk._names[name] is not None}
    calls = (
        bench.append,
        lambda: log.append_replicated(bench.batch()[0]),
        log.flush,
        lambda: log.durability.checkpoint(10**9, 3, force=True),
        lambda: log.start_epoch(9),
        lambda: log.snapshots.store(3, b"late"),
        lambda: log.retention.delete_records(2, 3),
        lambda: log.retention.plan(10**15, 3),
        lambda: log.retention.remove_deleted_files(1),
        lambda: log.roll_if_due(10**15),
        lambda: log.truncate_to(1),
        lambda: log.reset_to(50),
        lambda: log.reader.read(0, 100, 3),
        lambda: log.reader.batch_with(0),
        lambda: log.reader.verify(0),
        lambda: log.reader.offset_for_timestamp(1, TimestampKind.APPEND),
        log.snapshots.load,
    )
    for call in calls:
        with pytest.raises(LogClosedError):
            call()
    log.close()
    after = {name: bench.disk.content(name) for name in bench.disk._names if bench.disk._names[name] is not None}
    assert after == before
    assert reopened.reader.verify() == 3


def test_rolled_segment_keeps_its_descriptor_until_it_is_synced(bench):
    """An error of writing back is told to descriptors that were open, and once: none is closed before its fsync."""
    bench.settings = LogSettings(segment_bytes=500)
    bench.limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, max_open_files=1)
    log = bench.open()
    bench.append(12)
    assert log.segment_count > 3
    assert log.durability.holds_files
    opened = bench.disk.calls["open"]
    written = {path for path, _ in bench.disk._descriptors.values() if path.endswith(".log")}
    assert len(written) == log.segment_count
    log.flush()
    assert bench.disk.calls["open"] == opened
    assert not log.durability.holds_files
    log.reader.read(0, 100, 12).close()
    kept = {path for path, _ in bench.disk._descriptors.values() if path.endswith(".log")}
    assert len(kept) <= 2


def test_synced_segment_is_not_kept_open_when_it_is_rolled(bench):
    """Only a segment with unsynced bytes keeps its descriptor: no later fsync would release another one."""
    bench.settings = LogSettings(segment_bytes=500)
    log = bench.open()
    for _ in range(12):
        bench.append()
        log.flush()
    assert log.segment_count > 3
    assert not log.durability.holds_files


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM])
def test_look_at_the_free_space_that_fails_does_not_fail_the_append_before_it(bench, number):
    """The batch is in the file: an error now would leave it there, and its producer would send it again."""
    bench.limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, check_every_bytes=1)
    log = bench.open()
    bench.disk.fail("space", number)
    assert bench.append(2) == 1
    assert log.reader.verify() == 2
    assert not log.offline
