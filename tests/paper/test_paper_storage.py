"""Section 3.1 of the paper, where it binds the storage engine (PAPER rows 6, 8, 11, 12, 14, 15)."""

from __future__ import annotations

import random

import pytest
from headrace.log import CorruptLogError, DataDirectory, LogSettings
from headrace.wire.batch import iter_batches, read_header
from headrace.wire.columns import encode_batch

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem


@pytest.fixture
def directory(tmp_path):
    directory = DataDirectory.open(
        str(tmp_path / "data"), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16)
    )
    yield directory
    directory.close(clean=True)


def fill(log, count, *, at_ms=1, size_bytes=200):
    for number in range(count):
        batch = encode_batch([b"%d" % number * size_bytes] * 2, base_timestamp_ms=at_ms)
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=at_ms)


def test_section_3_1_a_log_is_segment_files_of_about_the_same_size(directory):
    """3.1: physically, a log is implemented as a set of segment files of approximately the same size (row 6)."""
    log = directory.open_log(bytes(16), 0, LogSettings(segment_bytes=5_000))
    fill(log, 100)
    sizes = [segment.size_bytes for segment in log._segments.items[:-1]]
    assert len(sizes) > 5
    assert all(4_000 < size <= 5_000 for size in sizes)


def test_section_3_1_the_broker_appends_to_the_last_segment_file(directory):
    """3.1: every time a producer publishes a message, the broker simply appends it to the last segment file (row 6)."""
    log = directory.open_log(bytes(16), 0, LogSettings(segment_bytes=5_000))
    fill(log, 50)
    before = [segment.size_bytes for segment in log._segments.items]
    fill(log, 1, size_bytes=10)
    after = [segment.size_bytes for segment in log._segments.items]
    assert after[:-1] == before[:-1]
    assert after[-1] > before[-1]


def test_section_3_1_a_message_is_addressed_by_its_logical_offset(directory):
    """3.1, a departure: no explicit message id; addressed by offset (row 8). Ours are consecutive, not by length."""
    log = directory.open_log(bytes(16), 0, LogSettings(segment_bytes=5_000))
    fill(log, 50)
    assert log.log_end_offset == 100
    for offset in range(100):
        with log.reader.read(offset, 1, 100) as found:
            assert found.base_offset == offset // 2 * 2


def test_section_3_1_a_sorted_list_of_first_offsets_is_kept_in_memory(directory):
    """3.1: the broker keeps a sorted list of offsets in memory, with the first of every segment file (row 11)."""
    log = directory.open_log(bytes(16), 0, LogSettings(segment_bytes=5_000))
    fill(log, 100)
    names = sorted(path.rpartition("/")[2] for path in (segment.path for segment in log._segments.items))
    assert log._segments._bases == sorted(log._segments._bases)
    assert names == [f"{base:020d}.log" for base in log._segments._bases]


def test_section_3_1_messages_are_not_cached_in_the_process(directory):
    """3.1: we avoid explicitly caching messages at the broker: bytes come from the file each time (row 12)."""
    log = directory.open_log(bytes(16), 0, LogSettings())
    fill(log, 3)
    with log.reader.read(0, 1 << 20, 6) as found:
        before = found.read()
        assert found.read() is not before
    assert b"1" * 200 in before
    with open(log._segments.active.path, "rb+") as file:  # what another writer changes is seen at once
        file.seek(len(before) - 1)
        file.write(b"#")
    with log.reader.read(0, 1 << 20, 6) as found:
        assert found.read() == before[:-1] + b"#"


def test_section_3_1_retention_deletes_after_a_time_whether_read_or_not(directory):
    """3.1: a message is deleted if it has been retained longer than a certain period, typically 7 days (row 14)."""
    week_ms = 7 * 86_400_000
    settings = LogSettings(segment_bytes=5_000)
    assert settings.retention_ms == week_ms
    log = directory.open_log(bytes(16), 0, settings)
    fill(log, 50, at_ms=1_000)
    fill(log, 50, at_ms=1_000 + week_ms)
    assert log.retention.plan(1_000 + week_ms, 200) == 0
    log.retention.delete_records(log.retention.plan(1_001 + week_ms, 200), 200)
    assert 0 < log.log_start_offset <= 100


def test_section_3_1_a_consumer_can_rewind_to_an_old_offset(directory):
    """3.1: a consumer can deliberately rewind back to an old offset and re-consume data (row 15)."""
    log = directory.open_log(bytes(16), 0, LogSettings(segment_bytes=5_000))
    fill(log, 50)

    def consume(offset):
        while offset < 100:
            with log.reader.read(offset, 2_000, 100) as found:
                yield from (bytes(view) for _, view in iter_batches(found.read()))
                offset = found.end_offset

    first = list(consume(0))
    assert list(consume(0)) == first
    assert list(consume(60)) == first[30:]


def test_section_3_3_recovery_removes_no_flushed_message():
    """3.3, a departure: the paper's recovery removes messages with inconsistent CRCs (row 28).

    Here it removes the batch that a crash left half written, behind the point up to which all was flushed. A corrupt
    batch before that point is reported and stays: other replicas have it, and a removal would be a silent loss.
    """
    disk = MemoryFileSystem()

    def opened(boot_id):
        found = DataDirectory.open(
            "/data", cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16), boot_id=boot_id,
            filesystem=disk,
        )  # fmt: skip
        log = found.open_log(bytes(16), 0, LogSettings())
        found.note_boot()
        return log

    log = opened("one")
    fill(log, 2)
    log.flush()
    log.durability.checkpoint(5_000, log.log_end_offset)
    flushed_bytes = log.size_bytes
    fill(log, 1)
    path = log._segments.active.path
    disk.cut(path, log.size_bytes - 10)
    disk.crash(Loss.NOTHING, random.Random(0))
    log = opened("two")
    assert (log.log_end_offset, log.size_bytes) == (4, flushed_bytes)
    disk.corrupt(path, flushed_bytes - 20, 1)
    disk.crash(Loss.NOTHING, random.Random(0))
    log = opened("three")
    assert (log.log_end_offset, log.size_bytes) == (4, flushed_bytes)
    with pytest.raises(CorruptLogError):
        log.reader.verify()
