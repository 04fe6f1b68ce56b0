"""Look-ups in a log that retention or a truncation shortens meanwhile: they never take it out of service (I18, H34)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from headrace.log import CorruptLogError, DiskLimits, LogSettings, SliceCutError, TimestampKind
from headrace.log.errors import StorageBusyError
from headrace.wire.errors import OffsetOutOfRangeError, StorageOfflineError

from tests.fakes.memory_filesystem import MemoryFileSystem


class InterruptedDisk(MemoryFileSystem):
    """Calls `meanwhile` once, in the middle of a look-up: before its next read of a segment."""

    meanwhile: Callable[[], object] | None = None

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        path, _ = self._descriptors[descriptor]
        if path.endswith(".log") and (interrupt := self.meanwhile) is not None:
            self.meanwhile = None
            interrupt()
        return super().pread(descriptor, size_bytes, position)


@pytest.fixture
def log_of_segments(bench):
    """Sixty batches in several segments, opened anew: no index is in memory, so that every look-up reads."""
    bench.disk = InterruptedDisk()
    bench.settings = LogSettings(segment_bytes=2_000, index_interval_bytes=256)
    bench.limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, max_open_files=1)
    bench.open()
    bench.append(60)
    bench.directory.close(clean=True)
    return bench.open()


LOOK_UPS = {
    "by append time": lambda log: log.reader.offset_for_timestamp(1_000_055, TimestampKind.APPEND),
    "by record time": lambda log: log.reader.offset_for_timestamp(1_000_050, TimestampKind.RECORD),
    "headers": lambda log: list(log.reader.headers(0)),
    "verification": lambda log: log.reader.verify(0),
    "the first batch": lambda log: log.reader.first_batch(),
    "checked headers": lambda log: list(log.reader.checked_headers(0)),
    "a slice": lambda log: log.reader.read(0, 10_000, 60).close(),
}


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS.keys())
@pytest.mark.parametrize("before", [13, 40, 60])
def test_look_up_beside_retention_leaves_the_log_in_service(bench, log_of_segments, look_up, before):
    """Segments that retention took meanwhile are skipped, or the offset is out of range; the log stays online."""
    log = log_of_segments
    bench.disk.meanwhile = lambda: log.retention.delete_records(before, 60)
    try:
        found = look_up(log)
    except OffsetOutOfRangeError:
        found = None
    assert bench.disk.meanwhile is None
    assert not log.offline
    assert log.log_start_offset == before
    if look_up is LOOK_UPS["by append time"] and before < 54:
        assert found.offset == 54
    assert bench.append() == 60
    assert log.reader.verify() == 61


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS.keys())
@pytest.mark.parametrize("cut", [3, 30, 58])
def test_look_up_beside_a_truncation_finds_neither_corruption_nor_a_failed_disk(bench, log_of_segments, look_up, cut):
    """What a truncation takes away under a look-up is a SliceCutError, never corruption; the index is that of the
    cut.
    """
    log = log_of_segments
    bench.disk.meanwhile = lambda: log.truncate_to(cut)
    try:
        look_up(log)
    except (SliceCutError, OffsetOutOfRangeError):
        pass
    except CorruptLogError as error:
        raise AssertionError("a cut was taken for corruption") from error
    assert not log.offline
    assert log.log_end_offset == cut
    assert bench.append(20) == cut + 19
    assert log.reader.verify() == cut + 20
    for offset in range(cut + 20):
        assert log.reader.batch_with(offset).base_offset == offset


def test_file_removed_outside_the_log_is_corruption_and_no_failed_disk(bench, log_of_segments):
    """Retention did not remove a listed segment that is not on the disk: the replica must be replaced."""
    log = log_of_segments
    bench.disk.unlink(bench.path(log.log_start_offset))
    with pytest.raises(CorruptLogError, match="the file is gone"):
        log.reader.batch_with(0)
    assert not log.offline


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS.keys())
def test_look_up_without_a_descriptor_is_refused(bench, log_of_segments, look_up, number):
    """No descriptor, or no memory, is no failed disk: the same look-up succeeds a moment later (F5)."""
    log = log_of_segments
    bench.disk.fail("open", number)
    with pytest.raises(StorageBusyError) as caught:
        look_up(log)
    assert caught.value.retriable
    assert not log.offline
    look_up(log)


def test_permission_taken_away_names_the_user(bench, log_of_segments):
    """EACCES says who runs and whose the file is."""
    log = log_of_segments
    bench.disk.fail("open", errno.EACCES)
    with pytest.raises(StorageOfflineError, match="The broker runs as uid"):
        log.reader.batch_with(0)
