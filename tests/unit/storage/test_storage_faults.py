"""A full disk, a failing disk, and what the log does about it (PROTOCOL H34, H35)."""

from __future__ import annotations

import errno

import pytest
from headrace.wire.errors import Outcome, StorageFullError, StorageOfflineError
from headrace_broker.storage import DiskLimits


def test_full_disk_mid_append_leaves_no_trace(bench):
    """ENOSPC in the middle of a batch: cut back, refused as NOT_APPLIED; the log goes on when there is room (H35)."""
    log = bench.open()
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
    assert log.verify() == 4


def test_appends_are_refused_before_the_disk_is_full_and_again_taken(bench):
    """Low and high water marks with hysteresis; reads and flushes go on meanwhile."""
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


def test_free_space_is_looked_at_every_so_many_bytes_and_not_at_each_append(bench):
    """`statvfs` is not on the path of an append (H35)."""
    bench.limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, check_every_bytes=2_000)
    bench.open()
    before = bench.disk.calls["space"]
    bench.append(21, size_bytes=100)
    assert 1 <= bench.disk.calls["space"] - before <= bench.log.size_bytes // 2_000


def test_checkpoint_on_a_full_disk_takes_the_reserve(bench):
    """A checkpoint finds room when appends do not; afterwards the reserve is made again (H35)."""
    bench.open()
    bench.append()
    bench.disk.fail("pwritev", errno.ENOSPC, suffix="leader-epochs.tmp")
    bench.log.start_epoch(5)
    assert not bench.disk.exists("/data/reserve")
    with pytest.raises(StorageFullError):
        bench.append(epoch=5)
    assert not bench.directory.check_space().refusing
    assert bench.disk.exists("/data/reserve")
    assert bench.append(epoch=5) == 1


@pytest.mark.parametrize("operation", ["pwritev", "fsync"])
def test_io_error_takes_the_log_offline_for_ever(bench, operation):
    """EIO is never retried: nothing is appended, read or flushed any more, and the stop is not clean (H34)."""
    log = bench.open()
    bench.append(2)
    bench.disk.fail(operation, errno.EIO, suffix=".log")
    with pytest.raises(StorageOfflineError):
        bench.append() if operation == "pwritev" else log.flush()
    assert log.offline
    flushed = log.flushed_offset
    for again in (bench.append, log.flush, lambda: log.read(0, 10, 2), lambda: log.checkpoint(1, 1, force=True)):
        with pytest.raises(StorageOfflineError):
            again()
    assert log.flushed_offset == flushed == 0
    bench.directory.close(clean=True, broker_epoch=9)
    assert bench.open_directory().clean_broker_epoch is None


def test_failed_cut_back_takes_the_log_offline(bench):
    """If half a batch cannot be removed, nothing may follow it (H35)."""
    bench.open()
    bench.append()
    bench.disk.capacity_bytes = bench.disk._used_bytes() + 50
    bench.disk.fail("truncate", errno.EIO, suffix=".log")
    with pytest.raises(StorageOfflineError):
        bench.append()
    assert bench.log.offline


def test_flush_syncs_each_dirty_file_once_and_nothing_that_is_clean(bench):
    """Group commit: one fsync a dirty file and round, none when another round has covered the data."""
    log = bench.open()
    bench.append(5)
    before = bench.disk.calls["fsync"]
    assert log.flush() == 5
    assert log.flush() == 5
    assert bench.disk.calls["fsync"] - before == 1
