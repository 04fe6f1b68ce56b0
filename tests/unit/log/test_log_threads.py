"""Flush, checkpoint, read and look up in threads while one thread appends, truncates and removes, on a real disk.

For a bounded number of steps.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path

import pytest
from headrace.log import DataDirectory, DiskLimits, LogSettings, PartitionLog, SliceCutError, TimestampKind
from headrace.log.index import IndexCache, IndexFile
from headrace.log.os_filesystem import OsFileSystem
from headrace.wire.batch import read_header
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.errors import OffsetOutOfRangeError

from tests.fakes.memory_filesystem import MemoryFileSystem

APPENDS = 600
READ_BYTES = 2_000


def append_all(log: PartitionLog) -> None:
    for number in range(APPENDS):
        data = encode_batch([b"%d" % number], base_timestamp_ms=1)
        log.append([(data, read_header(data))], leader_epoch=0, append_timestamp_ms=number)


def follow(log: PartitionLog) -> list[int]:
    """Read to the end of the appends, as a consumer does."""
    found: list[int] = []
    while len(found) < APPENDS:
        end_offset = int(log.log_end_offset)
        with log.reader.read(len(found), READ_BYTES, end_offset) as part:
            data = part.read()
            assert part.end_offset <= end_offset
        position = 0
        while position < len(data):
            header = read_header(data, position)
            batch = data[position : position + header.batch_bytes]
            found += [int(value or b"") for value in decode_batch(batch, max_payload_bytes=1 << 20).values()]
            position += header.batch_bytes
    return found


def repeat(step: Callable[[], None], done: threading.Event) -> int:
    steps = 0
    while not done.is_set():
        step()
        steps += 1
    return steps


def test_flush_checkpoint_and_reads_during_appends(tmp_path: Path) -> None:
    """Any thread may read, flush and checkpoint while one thread appends and rolls segments.

    Readers see every record once and in order, the durable mark never falls nor passes the end, and what is left on
    disk opens to the same.
    """
    directory = DataDirectory.open(str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16))
    log = directory.open_log(bytes(16), 0, LogSettings(segment_bytes=4_096, index_interval_bytes=512))
    done = threading.Event()
    marks: list[int] = []

    def flush() -> None:
        before = log.log_end_offset
        marks.append(log.flush())
        assert before <= marks[-1] <= log.log_end_offset

    with ThreadPoolExecutor(5) as threads:
        background = [
            threads.submit(repeat, flush, done),
            threads.submit(repeat, lambda: log.durability.checkpoint(0, log.flushed_offset, force=True) and None, done),
        ]
        readers = [threads.submit(follow, log) for _ in range(2)]
        appending = threads.submit(append_all, log)
        try:
            appending.result(60)
            assert [reader.result(60) for reader in readers] == [list(range(APPENDS))] * 2
        finally:
            done.set()
        assert all(each.result(60) for each in background)
    assert log.segment_count > 5
    assert marks == sorted(marks)
    assert log.flush() == log.log_end_offset == APPENDS
    directory.close(clean=False)
    again = DataDirectory.open(str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16))
    reopened = again.open_log(bytes(16), 0, LogSettings())
    assert reopened.reader.verify() == APPENDS
    again.close(clean=False)


def change_all(log: PartitionLog) -> None:
    """Append, and now and then remove what is old, or cut the end: what a log's one thread does."""
    for number in range(APPENDS):
        data = encode_batch([b"%d" % number], base_timestamp_ms=number)
        log.append([(data, read_header(data))], leader_epoch=0, append_timestamp_ms=number)
        if number % 20 == 19:
            log.retention.delete_records(max(int(log.log_end_offset) - 100, 0), int(log.log_end_offset))
            log.retention.remove_deleted_files(number)
        if number % 50 == 49:
            log.truncate_to(int(log.log_end_offset) - 30)
            log.retention.delete_records(log.retention.plan(number, int(log.log_end_offset)), log.log_end_offset)


def look_up(log: PartitionLog, step: int) -> None:
    """One look-up of each kind; retention and truncation may have taken what it looks at, and that is all."""
    for call in (
        lambda: log.reader.offset_for_timestamp(step % APPENDS, TimestampKind.APPEND),
        lambda: log.reader.offset_for_timestamp(step % APPENDS, TimestampKind.RECORD),
        lambda: log.reader.batch_with(log.log_start_offset),
        lambda: log.reader.batch_before(log.log_end_offset),
        log.reader.first_batch,
        lambda: list(log.reader.headers(log.log_start_offset)),
        lambda: list(log.reader.checked_headers(log.log_start_offset)),
        log.reader.verify,
        lambda: log.reader.verify_from(log.log_start_offset, READ_BYTES),
    ):
        with suppress(OffsetOutOfRangeError, SliceCutError):
            call()


def test_look_ups_during_retention_and_truncation(tmp_path: Path) -> None:
    """No look-up raises corruption or an I/O error during concurrent removals, truncations and appends (I18, H34).

    The scrubber's checks are among the look-ups. At the end the log is online and valid, also after a reopen.
    """
    limits = DiskLimits(reserve_bytes=0, refuse_below_bytes=0, resume_above_bytes=0, max_open_files=2)
    directory = DataDirectory.open(
        str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16), limits=limits
    )
    log = directory.open_log(
        bytes(16), 0, LogSettings(segment_bytes=2_048, index_interval_bytes=256, retention_bytes=16_384)
    )
    done = threading.Event()
    steps = iter(range(1_000_000))
    with ThreadPoolExecutor(6) as threads:
        background = [threads.submit(repeat, lambda: look_up(log, next(steps)), done) for _ in range(3)]
        background += [
            threads.submit(repeat, lambda: log.flush() and None, done),
            threads.submit(repeat, lambda: log.durability.checkpoint(0, log.flushed_offset, force=True) and None, done),
        ]
        changing = threads.submit(change_all, log)
        try:
            changing.result(90)
        finally:
            done.set()
        assert all(each.result(60) for each in background)
    assert not log.offline
    end = log.log_end_offset
    assert log.reader.verify() == end
    directory.close(clean=True)
    again = DataDirectory.open(str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16))
    reopened = again.open_log(bytes(16), 0, LogSettings())
    assert reopened.reader.verify() == reopened.log_end_offset == end
    again.close(clean=False)


class SlowDisk(OsFileSystem):
    """Stops one write until it is let go."""

    def __init__(self) -> None:
        self.holding = threading.Event()
        self.held = threading.Event()
        self.let_go = threading.Event()

    def pwritev(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        if self.holding.is_set():
            self.holding.clear()
            self.held.set()
            self.let_go.wait(60)
        return super().pwritev(descriptor, buffers, position)


def test_close_waits_for_the_append_under_way(tmp_path: Path) -> None:
    """A log that is closed and opened anew has whole what was written meanwhile: no write comes after the close.

    The descriptor of a late one may be another file's by then.
    """
    disk = SlowDisk()
    directory = DataDirectory.open(
        str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16), filesystem=disk
    )
    log = directory.open_log(bytes(16), 0, LogSettings())
    data = encode_batch([b"late"], base_timestamp_ms=1)
    with ThreadPoolExecutor(2) as threads:
        disk.holding.set()
        appending = threads.submit(log.append, [(data, read_header(data))], leader_epoch=0, append_timestamp_ms=1)
        assert disk.held.wait(60)
        closing = threads.submit(directory.close_log, log)
        try:
            with pytest.raises(FutureTimeout):
                closing.result(0.2)
        finally:
            disk.let_go.set()
        assert appending.result(60) == 0
        closing.result(60)
    reopened = directory.open_log(bytes(16), 0, LogSettings())
    assert reopened.log_end_offset == 1
    assert reopened.recovery.scanned_bytes == 0
    directory.close(clean=False)


def test_an_index_that_is_evicted_while_it_is_written() -> None:
    """A reader of another log may evict the body between two steps of a checkpoint."""
    disk, cache = MemoryFileSystem(), IndexCache(1 << 20)
    index = IndexFile("/00.index", b"HRIX", "I", 2, cache)

    class Evicted(array):  # type: ignore[type-arg]
        def extend(self, items: Iterable[int]) -> None:
            super().extend(items)
            index.body = None

    index.body = Evicted("I")
    index.tail.extend((1, 100))
    index.write(disk, (0, 2, 200, 5, 5), 100)
    assert (index.written[0], list(index.tail)) == (1, [])
    assert list(index.load(disk, load=True) or ()) == [1, 100]
