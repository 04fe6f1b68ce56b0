"""A full disk, or no descriptor, at every file operation of a log: it refuses, loses nothing and recovers (H35).

One script appends, rolls, flushes, checkpoints, removes, cuts, closes and opens again. It is run once for each of its
file operations, which then fails: alone, or with all that follow until there is room again.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from headrace.log import DataDirectory, DiskLimits, LogId, LogSettings, PartitionLog
from headrace.log.errors import StorageBusyError
from headrace.wire.batch import read_header
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.errors import HeadraceError, Outcome, StorageFullError, StorageOfflineError

from tests.fakes.memory_filesystem import NEEDS_DESCRIPTOR, NEEDS_ROOM, Loss, MemoryFileSystem

TOPIC_ID = bytes(range(16))
SETTINGS = LogSettings(segment_bytes=700, index_interval_bytes=64)
LIMITS = DiskLimits(reserve_bytes=4_096, refuse_below_bytes=0, resume_above_bytes=0, max_open_files=1)


# ruff: noqa: PLW0108 - the steps are lambdas, so that each finds the log and the directory that are open then


class Life:
    """A log's life; `values` is what was acknowledged, by offset."""

    def __init__(self) -> None:
        self.disk = MemoryFileSystem()
        self.values: list[bytes] = []
        self.start = self.flushed = 0
        self.epoch = 0
        self.boot_id = "one"
        self.refused = 0
        self.definite = True
        self.directory: DataDirectory | None = None
        self.log: PartitionLog | None = None

    def run(self) -> None:
        """The script. What must be done in one step is one `do`."""
        self.do(self.open)
        self.do(self.open_log)
        self.do(lambda: self.directory.note_boot())
        self.append(12)
        self.do(lambda: self.log.durability.checkpoint(10_000, 12, force=True))
        self.do(self.flush)
        self.epoch = 1
        self.do(lambda: self.log.start_epoch(1))
        self.append(10)
        self.do(lambda: self.log.snapshots.store(self.log.log_end_offset, b"producers"))
        self.do(lambda: self.log.durability.checkpoint(20_000, 15, force=True))
        self.do(lambda: self.delete(9))
        self.do(lambda: self.log.retention.remove_deleted_files(10**15))
        self.append(3)
        self.do(self.flush)
        self.do(lambda: self.truncate(17))
        self.append(6)
        self.do(lambda: self.delete(int(self.log.retention.plan(10**12, 18))))
        self.do(lambda: self.log.retention.remove_deleted_files(10**15))
        self.do(self.flush)
        self.do(lambda: self.reset(100))
        self.append(5)
        self.do(self.flush)
        self.do(lambda: self.truncate(50))  # below the log start: it begins anew there
        self.append(8)
        self.do(self.flush)
        self.close()
        self.do(self.open)
        self.do(self.open_log)
        self.do(lambda: self.directory.note_boot())
        self.do(self.check)
        self.append(4)
        self.do(self.flush)
        other = bytes(16)
        self.do(lambda: self.directory.close_log(self.directory.open_log(other, 1, SETTINGS)))
        self.do(lambda: self.directory.quarantine_log(LogId(other, 1)))
        self.do(lambda: self.directory.close_log(self.directory.open_log(other, 2, SETTINGS)))
        self.do(lambda: self.directory.delete_log_directory(LogId(other, 2)))
        self.do(lambda: self.directory.remove_deleted())

    def do(self, step: Callable[[], object]) -> None:
        """Take a step; where it is refused, look at what is there, make room, and take it again."""
        for _ in range(4):
            try:
                step()
                return
            except (StorageFullError, StorageBusyError) as error:
                self.definite &= error.retriable and error.outcome is Outcome.NOT_APPLIED
                self.refused += 1
                if self.log is not None:
                    assert not self.log.offline
                self.disk.stop_refusing()
                if self.directory is not None:
                    self.directory.check_space()
                if self.log is not None:
                    self.check_rest()
        raise AssertionError("it is refused though there is room")

    def open(self) -> None:
        self.log = None
        self.directory = DataDirectory.open(
            "/data", cluster_id="c", generation=1, broker_id=1, new_storage_id=TOPIC_ID, boot_id=self.boot_id,
            limits=LIMITS, filesystem=self.disk,
        )  # fmt: skip

    def open_log(self) -> None:
        self.log = self.directory.open_log(TOPIC_ID, 0, SETTINGS)

    def close(self) -> None:
        """The stop of a process: what it cannot write is found by the next start."""
        self.directory.close(clean=True, broker_epoch=7)
        self.directory = self.log = None

    def append(self, records: int) -> None:
        for _ in range(records):
            value = b"%d" % len(self.values) + b"." * 60

            def step(value: bytes = value) -> None:
                data = encode_batch([value], base_timestamp_ms=1)
                end = self.log.log_end_offset
                try:
                    self.log.append(
                        [(data, read_header(data))], leader_epoch=self.epoch, append_timestamp_ms=len(self.values)
                    )
                except HeadraceError:
                    assert self.log.log_end_offset == end
                    raise

            self.do(step)
            self.values.append(value)

    def flush(self) -> None:
        assert self.log.flush() == self.log.log_end_offset
        self.flushed = int(self.log.log_end_offset)

    def delete(self, before: int) -> None:
        assert self.log.retention.delete_records(before, int(self.log.log_end_offset)) == before
        self.start = before

    def truncate(self, offset: int) -> None:
        self.flushed = min(self.flushed, offset)
        try:
            assert self.log.truncate_to(offset) == offset
        finally:
            # A cut that was refused may have been done in part: the log ends there, or begins anew.
            if self.log.log_end_offset < len(self.values):
                del self.values[int(self.log.log_end_offset) :]
            self.start = int(self.log.log_start_offset)

    def reset(self, offset: int) -> None:
        self.flushed = 0
        try:
            self.log.reset_to(offset, 0)
        finally:
            if (end := int(self.log.log_end_offset)) != len(self.values):
                self.values = [b""] * end
            self.start = int(self.log.log_start_offset)

    def check_rest(self) -> None:
        if self.log.log_end_offset == len(self.values) and self.log.log_start_offset == self.start:
            self.check()

    def check(self) -> None:
        """What was acknowledged is there, and nothing else."""
        found = dict(read_all(self.log))
        assert found == {offset: self.values[offset] for offset in range(self.start, len(self.values))}
        assert self.log.reader.verify() == self.log.log_end_offset

    def check_after(self, loss: Loss) -> None:
        """After a loss of power: everything that was flushed, and of the rest a beginning."""
        self.disk.crash(loss, random.Random(1))
        self.boot_id = "two"
        self.open()
        self.open_log()
        end = int(self.log.log_end_offset)
        assert self.flushed <= end <= len(self.values)
        assert dict(read_all(self.log)) == {offset: self.values[offset] for offset in range(self.start, end)}
        del self.values[end:]
        self.append(1)
        self.check()


def read_all(log: PartitionLog) -> Iterator[tuple[int, bytes]]:
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        with log.reader.read(offset, 1_000, int(log.log_end_offset)) as found:
            data, offset = found.read(), found.end_offset
        position = 0
        while position < len(data):
            header = read_header(data, position)
            batch = decode_batch(data[position : position + header.batch_bytes], max_payload_bytes=1 << 20)
            if header.base_offset >= log.log_start_offset:
                yield header.base_offset, bytes(next(iter(batch.values())))
            position += header.batch_bytes


@pytest.mark.parametrize(
    ("number", "operations", "lasting"),
    [
        pytest.param(errno.ENOSPC, NEEDS_ROOM, True, id="no room"),
        pytest.param(errno.EDQUOT, NEEDS_ROOM, False, id="quota, once", marks=pytest.mark.no_cover),
        pytest.param(errno.EMFILE, NEEDS_DESCRIPTOR, True, id="no descriptor"),
        pytest.param(
            errno.ENOMEM, NEEDS_ROOM | NEEDS_DESCRIPTOR | {"pread"}, False, id="no memory, once",
            marks=pytest.mark.no_cover,
        ),
    ],
)  # fmt: skip
def test_every_file_operation_may_be_refused(number: int, operations: frozenset[str], lasting: bool) -> None:
    """At every operation the log stays online, keeps acknowledged records and appends again once there is room.

    After a power loss the flushed records are still there.
    """
    refused = 0
    for after in count():
        life = Life()
        life.disk.refuse(number, operations, after=after, lasting=lasting)
        life.run()
        life.do(life.check)
        life.append(2)
        assert life.definite
        if not life.disk.refused:
            break
        refused += life.refused
        life.check_after(Loss.BLOCKS if after % 2 else Loss.ALL)
    assert after > 60
    assert refused > after / 2, (
        "most of the refusals reach the caller; maintenance is put off, and hints are made again"
    )


def test_a_refused_fsync_that_lost_its_pages_is_never_believed(bench, log):
    """After a refused fsync the kernel may have dropped what was written: the next one does not say it is durable."""
    bench.append(3)
    log.flush()
    bench.append(3)
    bench.disk.fail("fsync", errno.ENOSPC, suffix=".log", drops=random.Random(3))
    with pytest.raises(StorageFullError):
        log.flush()
    with pytest.raises(StorageOfflineError):
        log.flush()
    assert log.flushed_offset == 3


def test_a_refused_fsync_is_not_made_good_by_a_second_one(bench, log):
    """Pages that a failed fsync left marked clean are written again: only then does an fsync say something of them."""
    bench.append(3)
    bench.disk.fail("fsync", errno.ENOSPC, suffix=".log")
    with pytest.raises(StorageFullError):
        log.flush()
    written = bench.disk.calls["pwritev"]
    assert log.flush() == 3
    assert bench.disk.calls["pwritev"] == written + 3
    assert log.flush() == 3
    assert bench.disk.calls["pwritev"] == written + 3


class WatchedFsync(MemoryFileSystem):
    """Calls `watch` at each fsync of a segment."""

    watch: Callable[[], object] | None = None

    def fsync(self, descriptor: int) -> None:
        if self.watch is not None and self._descriptors[descriptor][0].endswith(".log"):
            self.watch()
        super().fsync(descriptor)


@pytest.mark.parametrize("later", [False, True])
def test_a_refused_append_removes_its_bytes_under_the_round_lock(bench, later):
    """A flush in another thread waits for its fsync: that may get the error of pages which the flush writes (H34).

    `later`: the bytes are removed by the next append only.
    """
    bench.disk = WatchedFsync()
    log = bench.open()
    bench.append(3)
    locked = list[bool]()
    with ThreadPoolExecutor(1) as threads:
        bench.disk.watch = lambda: locked.append(not threads.submit(_try_lock, log).result())
        bench.disk.fail("pwritev", errno.EMFILE, suffix=".log")
        if later:
            bench.disk.fail("truncate", errno.EMFILE, suffix=".log")
        with pytest.raises(StorageBusyError):
            bench.append()
        if later:
            bench.append()
    assert locked == [True]


def _try_lock(log: PartitionLog) -> bool:
    """Return whether the round lock is free."""
    is_free = log.durability.round_lock.acquire(blocking=False)
    if is_free:
        log.durability.round_lock.release()
    return is_free
