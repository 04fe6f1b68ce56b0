"""Descriptors of segments: logs share a bounded number, and a name made anew never leads to the old file (H47)."""

from __future__ import annotations

import errno
import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from headrace.log import DataDirectory, DiskLimits, LogSettings
from headrace.log.errors import StorageBusyError
from headrace.log.open_files import EXCESS, OpenFiles, pin_empty
from headrace.log.timestamps import TimestampKind
from headrace.wire.batch import STAMP_BYTES, iter_batches, read_header
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.errors import StorageOfflineError

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem

TOPIC_ID = bytes(range(16))


@pytest.fixture
def disk() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directory("/log")
    return disk


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_file_made_anew_behind_an_open_one_takes_its_name(disk: MemoryFileSystem, is_pinned: bool) -> None:
    """The old descriptor serves those who pinned it, and is closed with the last of them."""
    files = OpenFiles(disk, capacity=4)
    old = files.pin_new("/log/a")
    disk.pwritev(old.descriptor, [b"old"], 0)
    if not is_pinned:
        files.unpin(old)
    disk.unlink("/log/a")
    new = files.pin_new("/log/a")
    assert disk.size(new.descriptor) == 0
    if is_pinned:
        assert disk.pread(old.descriptor, 3, 0) == b"old"
        files.unpin(old)
    with pytest.raises(KeyError):
        disk.size(old.descriptor)
    assert files.pin("/log/a") is new


def test_a_pin_that_a_finalizer_drops_is_released_by_the_next_call(disk: MemoryFileSystem) -> None:
    """At once, where the lock is free."""
    files = OpenFiles(disk, capacity=1)
    file, other = files.pin_new("/log/a"), files.pin_new("/log/b")
    with files._lock:
        files.drop(file)
    assert file.pins == 1
    files.unpin(other)
    assert (file.pins, other.pins) == (0, 0)
    file = files.pin("/log/a")
    files.drop(file)
    assert file.pins == 0


def test_a_pin_that_outlives_its_process_closes_nothing(disk: MemoryFileSystem) -> None:
    """A slice is collected after a crash has closed its descriptor; one that is closed twice is an error still."""
    files = OpenFiles(disk, capacity=4)
    file = files.pin_new("/log/a")
    files.forget("/log/a")
    disk.crash(Loss.NOTHING, random.Random(1))
    files.unpin(file)
    again = disk.open("/log/a")
    disk.close(again)
    with pytest.raises(KeyError):
        disk.close(again)


def test_an_empty_file_that_a_crash_left_is_used_again_and_a_full_one_never(disk: MemoryFileSystem) -> None:
    """Nothing that was written is written over; the refused pin is given back."""
    files = OpenFiles(disk, capacity=1)
    left = files.pin_new("/log/a")
    assert pin_empty(files, "/log/a") is left
    files.unpin(left)
    disk.pwritev(left.descriptor, [b"1"], 0)
    with pytest.raises(FileExistsError) as refused:
        pin_empty(files, "/log/a")
    assert refused.value.errno == errno.EEXIST
    assert left.pins == 1


class WatchedDisk(MemoryFileSystem):
    """Knows how many segment files were open at once at most; calls `meanwhile` in the middle of the next append."""

    most_open = 0
    meanwhile: Callable[[], None] | None = None

    def pwritev(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        if self._descriptors[descriptor][0].endswith(".log") and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        return super().pwritev(descriptor, buffers, position)

    def open(self, path: str, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        self.most_open = max(self.most_open, len(self.open_segments()))
        return descriptor

    def open_segments(self) -> set[str]:
        return {path for path, _ in self._descriptors.values() if path.endswith(".log")}


class Logs:
    """Logs of one data directory that keeps few files open; `values` is what was appended to each."""

    def __init__(self, count: int, max_open_files: int, settings: LogSettings | None = None) -> None:
        self.disk = WatchedDisk()
        self.limits = DiskLimits(
            reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, max_open_files=max_open_files
        )
        self.settings = settings or LogSettings()
        self.count = count
        self.values: list[list[bytes]] = [[] for _ in range(count)]
        self.open()

    def open(self) -> None:
        self.directory = DataDirectory.open(
            "/data", cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16), boot_id="one",
            limits=self.limits, filesystem=self.disk,
        )  # fmt: skip
        self.logs = [self.directory.open_log(TOPIC_ID, number, self.settings) for number in range(self.count)]
        self.directory.note_boot()

    def append(self, number: int) -> None:
        value = b"%d of %d" % (len(self.values[number]), number)
        batch = encode_batch([value], base_timestamp_ms=1)
        self.logs[number].append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=1)
        self.values[number].append(value)

    def read(self, number: int) -> list[bytes]:
        log, offset, values = self.logs[number], 0, []
        while offset < log.log_end_offset:
            with log.reader.read(offset, 1 << 20, log.log_end_offset) as found:
                for _, batch in iter_batches(found.read()):
                    values += decode_batch(bytes(batch), max_payload_bytes=1 << 20).values()
                offset = found.end_offset
        return values

    def is_open(self, number: int) -> bool:
        return any(path.startswith(self.logs[number].directory + "/") for path in self.disk.open_segments())


@pytest.mark.no_cover
@pytest.mark.parametrize("flushes", [True, False])
def test_many_logs_never_have_more_files_open_than_the_limit(flushes: bool) -> None:
    """Logs that are opened, appended to, rolled and read in turn share the descriptors; a power loss takes no record.

    None but of those whose file is still open where nothing was flushed: a file is synced before it is closed.
    """
    logs = Logs(300, 16, LogSettings(segment_bytes=200))
    for _ in range(6):
        for number in range(300):
            logs.append(number)
            if flushes:
                logs.logs[number].flush()
            assert logs.read(number) == logs.values[number]
    assert all(log.segment_count > 2 for log in logs.logs)
    assert 14 <= logs.disk.most_open <= 16 + (0 if flushes else 1)  # one is rolled and not yet synced
    assert not any(log.offline for log in logs.logs)
    kept = [flushes or not logs.is_open(number) for number in range(300)]
    assert kept.count(False) <= 16
    logs.disk.crash(Loss.ALL, random.Random(1))
    logs.disk.most_open = 0
    logs.open()
    for number in range(300):
        assert logs.read(number) == logs.values[number] or not kept[number]
    assert logs.disk.most_open <= 16
    logs.directory.close(clean=True)
    assert not logs.disk.open_segments()


def test_a_synced_file_is_closed_before_one_that_needs_an_fsync() -> None:
    """An append to another log waits for no fsync while there is an idle log that was flushed."""
    logs = Logs(3, 2)
    for number in (2, 0, 1):
        logs.append(number)
    logs.logs[1].flush()
    logs.append(0)
    fsyncs = logs.disk.calls["fsync"]
    logs.append(2)
    assert logs.disk.calls["fsync"] == fsyncs
    assert [logs.is_open(number) for number in range(3)] == [True, False, True]


def test_a_read_that_may_not_block_syncs_no_file_of_another_log() -> None:
    """It is repeated in a thread, where the fsync is done; a synced file is closed at once."""
    logs = Logs(3, 2, LogSettings())
    for number in range(3):
        logs.append(number)
    assert [logs.is_open(number) for number in range(3)] == [False, True, True]
    assert logs.logs[0].append_may_sync(1, 1)
    assert logs.logs[0].reader.read_nowait(0, 1 << 20, 1) is None
    assert [logs.is_open(number) for number in range(3)] == [False, True, True]
    assert logs.read(0) == logs.values[0]
    assert not logs.is_open(1)
    logs.logs[2].flush()
    found = logs.logs[1].reader.read_nowait(0, 1 << 20, 1)
    assert found is not None
    found.close()


@pytest.mark.parametrize("is_flushed", [False, True])
def test_an_append_that_begins_a_segment_says_whether_it_may_sync_another_log(is_flushed: bool) -> None:
    """So that it is made in a thread; where a synced file can be closed for it, the event loop may make it."""
    logs = Logs(2, 2, LogSettings(segment_bytes=200))
    for number in (0, 1):
        logs.append(number)
    if is_flushed:
        logs.logs[1].flush()
    fsyncs = logs.disk.calls["fsync"]
    assert not logs.logs[0].append_may_sync(1, 1)
    assert logs.logs[0].append_may_sync(200, 1) is not is_flushed
    assert logs.disk.calls["fsync"] == fsyncs
    while logs.logs[0].segment_count == 1:
        logs.append(0)
    assert (logs.disk.calls["fsync"] > fsyncs) is not is_flushed


def test_a_failed_fsync_before_a_close_takes_its_log_offline_and_no_other() -> None:
    """It is handled as a failed flush (H34): the log reports it at the next call, and keeps what was flushed."""
    logs = Logs(2, 1)
    logs.append(0)
    logs.logs[0].flush()
    logs.logs[0].durability.checkpoint(0, 1, force=True)
    logs.append(0)
    assert not logs.logs[0].durability.is_stale(1)
    logs.disk.fail("fsync", errno.EIO, suffix=".log", drops=random.Random(1))
    logs.append(1)
    assert logs.logs[0].offline
    assert logs.logs[0].durability.is_stale(1), "maintenance calls checkpoint"
    for call in (logs.logs[0].flush, lambda: logs.logs[0].durability.checkpoint(10**9, 0), lambda: logs.append(0)):
        with pytest.raises(StorageOfflineError, match="Input/output error"):
            call()
    assert logs.logs[0].flushed_offset == 1
    assert not logs.is_open(0)
    assert not logs.logs[1].offline
    assert logs.read(1) == logs.values[1]


def test_a_refused_fsync_before_a_close_leaves_the_file_open() -> None:
    """The bytes in doubt are written again before the next fsync, as after a refused flush (H34, H35)."""
    logs = Logs(2, 1)
    logs.append(0)
    logs.disk.fail("fsync", errno.ENOSPC, suffix=".log", drops=random.Random(1))
    logs.append(1)
    assert not logs.logs[0].offline
    assert logs.is_open(0)
    assert logs.logs[0].flushed_offset == 0
    assert logs.logs[0].flush() == 1
    logs.disk.crash(Loss.ALL, random.Random(1))
    logs.open()
    assert logs.read(0) == logs.values[0]


def test_a_closed_file_is_opened_again_for_whatever_needs_it() -> None:
    """Appends, reads, rolls, truncation, a reset and a close work on a log whose file was closed while it was idle."""
    calls = (
        lambda log: log.reader.verify(),
        lambda log: log.flush(),
        lambda log: log.roll_if_due(10**15),
        lambda log: log.truncate_to(2),
        lambda log: log.truncate_to(0),
        lambda log: log.reset_to(50),
        lambda log: log.durability.checkpoint(10**9, 1, force=True),
        lambda log: log.reader.offset_for_timestamp(1, TimestampKind.APPEND),
        lambda log: log.retention.delete_records(log.log_end_offset, log.log_end_offset),
        lambda log: log.close(),
    )
    for call in calls:
        logs = Logs(2, 1, LogSettings(segment_bytes=400))
        for _ in range(5):
            logs.append(0)
        logs.append(1)
        assert not logs.is_open(0)
        call(logs.logs[0])
        logs.append(1)
        if call is not calls[-1]:
            logs.append(0)
            logs.logs[0].reader.verify()
            logs.logs[0].flush()
        logs.append(1)
        assert len(logs.disk.open_segments()) == 1
        assert logs.read(1) == logs.values[1]


def test_an_append_that_finds_no_descriptor_is_refused() -> None:
    """Nothing is appended, and the next append with a free descriptor succeeds (H35)."""
    logs = Logs(2, 1)
    logs.append(0)
    logs.append(1)
    logs.disk.fail("open", errno.EMFILE, suffix=".log")
    with pytest.raises(StorageBusyError):
        logs.append(0)
    logs.append(0)
    assert logs.read(0) == logs.values[0]


def test_files_in_use_beyond_the_limit_are_refused() -> None:
    """Slices that are read at once leave connections, the lease and etcd their descriptors."""
    logs = Logs(EXCESS + 2, 1)
    for number in range(EXCESS + 2):
        logs.append(number)
    slices = [log.reader.read(0, 1000, 1) for log in logs.logs[: EXCESS + 1]]
    with pytest.raises(StorageBusyError, match="Too many open files"):
        logs.logs[-1].reader.read(0, 1000, 1)
    assert len(logs.disk.open_segments()) == EXCESS + 1
    slices.pop().close()
    logs.logs[-1].reader.read(0, 1000, 1).close()


def test_a_file_stays_open_while_it_is_written_to() -> None:
    """The descriptor of an append under way may be another file's as soon as it is closed."""
    logs = Logs(2, 1)
    logs.append(1)
    logs.append(0)
    logs.logs[0].flush()
    logs.disk.meanwhile = lambda: logs.append(1)
    logs.append(0)
    assert logs.disk.meanwhile is None
    assert [logs.read(number) for number in range(2)] == logs.values


class ForbiddenLock:
    """A lock that fails every caller that acquires it."""

    def __enter__(self) -> None:
        raise AssertionError("the lock of the open files was taken")

    def __exit__(self, *_: object) -> None:
        raise AssertionError


def test_an_append_to_an_open_file_takes_no_shared_lock() -> None:
    """Logs whose files are open do not wait for one another, and look nothing up."""
    logs = Logs(2, 2)
    logs.append(0)
    calls = Counter(logs.disk.calls)
    logs.logs[0]._files._lock = ForbiddenLock()  # type: ignore[assignment]
    logs.append(0)
    assert Counter(logs.disk.calls) - calls == {"pwritev": 1}


@pytest.mark.timeout(20)
def test_a_slice_that_is_collected_while_the_files_are_locked_waits_for_nothing() -> None:
    """The collector runs at any allocation, also where its own thread has the lock (a run of the simulator hung)."""
    logs = Logs(1, max_open_files=1)
    logs.append(0)
    abandoned = [logs.logs[0].reader.read(0, 1000, 1)]
    abandoned.append(abandoned)  # type: ignore[arg-type]
    file = abandoned[0]._file
    assert file is not None
    pins = file.pins
    del abandoned
    with logs.logs[0]._files._lock:
        gc.collect()
    assert logs.read(0) == [b"0 of 0"]
    assert file.pins == pins - 1


def test_appends_flushes_and_reads_of_many_threads_share_few_files(tmp_path: Path) -> None:
    """No file is closed under a call that uses it: each log has what was appended to it and nothing of another one."""
    limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, max_open_files=2)
    directory = DataDirectory.open(
        str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16), limits=limits
    )
    logs = [directory.open_log(TOPIC_ID, number, LogSettings(segment_bytes=2_000)) for number in range(6)]
    batches = [encode_batch([b"%d" % number * 30], base_timestamp_ms=1) for number in range(6)]

    def work(number: int) -> None:
        log, batch = logs[number], batches[number]
        for step in range(150):
            log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=1)
            if step % 3 == number % 3:
                log.flush()
            if step % 50 == 49:
                log.truncate_to(log.log_end_offset - 3)
            with log.reader.read(log.log_end_offset - 1, 1000, log.log_end_offset) as found:
                assert bytes(found.read())[STAMP_BYTES:] == batch[STAMP_BYTES:]

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, range(6))) == [None] * 6
    assert [log.reader.verify() for log in logs] == [141] * 6
    directory.close(clean=True)
