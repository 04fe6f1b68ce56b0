"""Reading, rolling, retention, slices, replication and time look-ups of one log."""

from __future__ import annotations

import pytest
from headrace.log import LogSettings, SliceCutError, TimestampKind
from headrace.log.errors import WouldBlockError
from headrace.wire.batch import read_header
from headrace.wire.columns import encode_batch
from headrace.wire.errors import CorruptBatchError, OffsetOutOfRangeError


def test_sequential_reads_search_nothing(bench, log):
    """A reader that continues where its last read ended costs one pread per batch range and no look-up."""
    bench.append(100, size_bytes=1000)
    offset = 0
    while offset < 100:
        before = bench.disk.calls.get("pread", 0)
        with log.reader.read(offset, 1 << 20, 100) as found:
            found.read()
            assert bench.disk.calls["pread"] - before == (2 if offset == 0 else 1)
            offset = found.end_offset
        bench.append()
        log.reader.read(offset, 1 << 20, 100).close()


def test_read_nowait_gives_up_where_the_disk_must_be_waited_for(bench, log):
    """No page in the cache: None, for the look-up as for the bytes (H46)."""
    bench.append(3)
    bench.disk.cached = False
    assert log.reader.read_nowait(1, 100, 3) is None
    with log.reader.read(1, 100, 3) as found:
        assert found.try_read_nowait() is None
        bench.disk.cached = True
        assert found.try_read_nowait() == found.read()


def test_batch_with_nowait_gives_up_where_the_disk_must_be_waited_for(bench, log):
    """No page in the cache, or no index in memory: an error, for the first batch as for another (H46)."""
    bench.append(3)
    assert log.reader.batch_with_nowait(1) == log.reader.batch_with(1)
    assert log.reader.first_batch(nowait=True) == log.reader.first_batch()
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.batch_with_nowait(3)
    bench.disk.cached = False
    for look_up in (lambda: log.reader.batch_with_nowait(1), lambda: log.reader.first_batch(nowait=True)):
        with pytest.raises(WouldBlockError):
            look_up()


def test_batch_that_passes_the_end_asked_for_is_held_back(bench, log):
    """A consumer never sees past the high watermark, not even the rest of a batch."""
    bench.append(2, records=10)
    with log.reader.read(12, 1 << 20, 15) as found:
        assert found.size_bytes == 0
    with log.reader.read(5, 1 << 20, 15) as found:
        assert (found.base_offset, found.end_offset) == (0, 10)


def test_segments_roll_by_size_and_by_append_time(bench):
    """By size before the append that would pass it, by age of the first batch as its append timestamp says."""
    bench.settings = LogSettings(segment_bytes=1_000, segment_ms=60_000)
    log = bench.open()
    bench.append(12)
    assert log.segment_count > 1
    assert all(len(bench.disk.content(bench.path(base))) <= 1_000 for base in log._segments._bases)
    count = log.segment_count
    bench.now_ms += 60_000
    bench.append()
    assert log.segment_count == count + 1
    assert not log.roll_if_due(bench.now_ms + 59_999)
    assert log.roll_if_due(bench.now_ms + 60_000)


def test_retention_by_time_takes_whole_old_segments_below_the_high_watermark(bench):
    """Judged by append timestamps, never the active segment, never past the high watermark (I18, H43)."""
    bench.settings = LogSettings(segment_bytes=1_000, retention_ms=10_000)
    log = bench.open()
    bench.append(30)
    high = log._segments._bases[2]
    assert log.retention.plan(bench.now_ms + 11_000, high) == high
    assert log.log_start_offset == 0
    log.retention.delete_records(high, high)
    last = log._segments._bases[-1]
    assert log.retention.plan(bench.now_ms + 12_000, 30) == last
    log.retention.delete_records(last, 30)
    assert log.segment_count == 1
    assert log.retention.plan(bench.now_ms + 12_000, 30) == last


def test_retention_by_size_keeps_at_least_the_bytes_asked_for(bench):
    """The oldest go while the others hold enough."""
    bench.settings = LogSettings(segment_bytes=1_000, retention_bytes=2_500, retention_ms=-1)
    log = bench.open()
    bench.append(60)
    log.retention.delete_records(log.retention.plan(bench.now_ms, 60), 60)
    assert 2_500 <= log.size_bytes < 3_500


def test_a_clock_in_doubt_makes_nothing_too_old(bench):
    """Without a time that is believed only sizes count: a wrong clock costs disk space, not records (H43)."""
    bench.settings = LogSettings(segment_bytes=1_000, retention_ms=10_000)
    log = bench.open()
    bench.append(30)
    assert log.retention.plan(bench.now_ms + 365 * 86_400_000, 30) > 0
    assert log.retention.plan(None, 30) == 0
    log.update_settings(LogSettings(segment_bytes=1_000, retention_ms=10_000, retention_bytes=2_500))
    assert log.retention.plan(None, 30) > 0


def test_slice_outlives_the_deletion_of_its_segment(bench):
    """A pinned file is readable under its `.deleted` name until released; then, after the delay, it goes."""
    bench.settings = LogSettings(segment_bytes=1_000, file_delete_delay_ms=60_000)
    log = bench.open()
    bench.append(30)
    found = log.reader.read(0, 500, 30)
    before = found.read()
    log.retention.delete_records(20, 30)
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.read(0, 500, 30)
    log.retention.remove_deleted_files(0)
    left = log.retention.remove_deleted_files(60_000)
    assert left == 1
    assert found.read() == before
    found.close()
    assert log.retention.remove_deleted_files(60_000) == 0
    assert not [name for name in bench.disk.list_directory(log.directory) if name.endswith(".deleted")]


def test_slice_over_a_cut_range_raises_and_gives_no_bytes_of_another_epoch(bench, log):
    """Truncated and appended anew under a slice: an error, not a splice."""
    bench.append(4)
    with log.reader.read(0, 1 << 20, 4) as found:
        log.truncate_to(2)
        bench.append(2, epoch=1)
        with pytest.raises(SliceCutError):
            found.read()
        with pytest.raises(SliceCutError):
            found.try_read_nowait()


def test_replica_holds_the_same_bytes(bench):
    """A follower writes the leader's bytes unchanged, epochs included."""
    bench.open()
    for epoch in (0, 0, 3):
        bench.append(2, records=3, epoch=epoch)
    leader, data = bench.log, bench.content()
    follower = bench.directory.open_log(b"f" * 16, 0, bench.settings)
    assert len(follower.append_replicated(data)) > 0
    assert follower.log_end_offset == leader.log_end_offset
    assert follower.epochs() == leader.epochs()
    assert follower.last_crc == leader.last_crc
    assert bench.disk.content(f"{follower.directory}/{0:020d}.log") == data


@pytest.mark.parametrize("corruption", ["flip", "gap", "again", "chain"])
def test_replica_refuses_what_does_not_fit(bench, corruption):
    """A bad CRC, a gap, a repeated batch or a broken chain: nothing is appended (I6, I17)."""
    bench.open()
    bench.append(3)
    data = bench.content()
    size = len(data) // 3
    follower = bench.directory.open_log(b"f" * 16, 0, bench.settings)
    follower.append_replicated(data[:size])
    wrong = {
        "flip": data[size:-1] + bytes([data[-1] ^ 1]),
        "gap": data[2 * size :],
        "again": data[:size],
        "chain": data[size:],
    }[corruption]
    if corruption == "chain":
        other = bench.directory.open_log(b"o" * 16, 0, bench.settings)
        bench.log = other
        bench.append(3)
        wrong = bench.content()[size:]
    with pytest.raises(CorruptBatchError):
        follower.append_replicated(wrong)
    assert follower.log_end_offset == 1
    assert follower.size_bytes == size


def test_offset_by_record_time_looks_into_a_plain_batch(log):
    """Per-record timestamps, uncompressed: the record itself; without them or compressed: the batch's base offset."""
    plain = encode_batch([b"a", b"b", b"c"], timestamps_ms=[100, 300, 200], base_timestamp_ms=100)
    later = encode_batch([b"d", b"e"], base_timestamp_ms=500)
    for batch in (plain, later):
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=9_000)
    assert log.reader.offset_for_timestamp(50, TimestampKind.RECORD) == (0, 100)
    assert log.reader.offset_for_timestamp(150, TimestampKind.RECORD) == (1, 300)
    assert log.reader.offset_for_timestamp(301, TimestampKind.RECORD) == (3, 500)
    assert log.reader.offset_for_timestamp(501, TimestampKind.RECORD) is None
    assert log.reader.offset_for_timestamp(9_000, TimestampKind.APPEND) == (0, 9_000)
    assert log.reader.offset_for_timestamp(9_001, TimestampKind.APPEND) is None


def test_offset_by_record_time_is_not_that_of_a_deleted_record(log):
    """The log start is inside a batch: only its records from there on count, else the search continues."""
    for times in ([100, 50, 60], [90]):
        batch = encode_batch([b"a"] * len(times), timestamps_ms=times, base_timestamp_ms=min(times))
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=9_000)
    log.retention.delete_records(1, 4)
    assert log.reader.offset_for_timestamp(80, TimestampKind.RECORD) == (3, 90)
    assert log.reader.offset_for_timestamp(55, TimestampKind.RECORD) == (2, 60)
    assert log.reader.offset_for_timestamp(10, TimestampKind.RECORD) == (1, 50)
    assert log.reader.offset_for_timestamp(95, TimestampKind.RECORD) is None


@pytest.mark.parametrize("kind", [TimestampKind.RECORD, TimestampKind.APPEND])
@pytest.mark.parametrize("interval_bytes", [1, 1 << 20])
def test_a_time_that_later_batches_are_before_is_found(bench, kind, interval_bytes):
    """H44: times go back, at producers and at leaders with a wrong clock; the index has the largest yet."""
    bench.settings = LogSettings(index_interval_bytes=interval_bytes)
    log = bench.open()
    times = [200, 900, *range(100, 180)]
    for time_ms in times:
        batch = encode_batch([b"a"], base_timestamp_ms=time_ms)
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=time_ms)
    assert log.reader.offset_for_timestamp(500, kind) == (1, 900)
    assert log.reader.offset_for_timestamp(150, kind) == (0, 200)
    assert log.reader.offset_for_timestamp(901, kind) is None


def test_empty_segment_file_that_a_crash_left_is_used_again(bench):
    """A roll reuses an existing empty file of its name; a file with data stops it (H47)."""
    bench.settings = LogSettings(segment_bytes=150)
    bench.open()
    bench.append()
    bench.disk.close(bench.disk.open(bench.path(1), create=True))
    assert bench.append() == 1
    assert bench.log.segment_count == 2
    assert bench.log.reader.verify() == 2


def test_an_epoch_without_records_gives_way_to_the_leaders(bench):
    """Led epoch 6 without an append, then copies epoch 5 from a later leader: the epochs are what a scan gives (I6)."""
    bench.open()
    for epoch in (0, 5, 5):
        bench.append(1, epoch=epoch)
    data = bench.content()
    first = len(data) // 3
    follower = bench.directory.open_log(b"f" * 16, 0, bench.settings)
    follower.append_replicated(data[: 2 * first])
    follower.start_epoch(6)
    follower.append_replicated(data[2 * first :])
    assert follower.epochs() == bench.log.epochs() == ((0, 0), (5, 1))


def test_a_log_that_starts_over_continues_the_leaders_chain(bench):
    """After `reset_to` with the leader's chain its batches fit, also after the log was opened again."""
    bench.open()
    bench.append(3)
    data = bench.content()
    size = len(data) // 3
    leader = bench.log
    follower = bench.directory.open_log(b"f" * 16, 0, bench.settings)
    before = leader.reader.batch_before(2)
    assert before is not None
    follower.reset_to(2, before.crc)
    bench.directory.close_log(follower)
    follower = bench.directory.open_log(b"f" * 16, 0, bench.settings)
    assert (follower.log_start_offset, follower.log_end_offset, follower.last_batch_epoch) == (2, 2, -1)
    assert [header.base_offset for header in follower.append_replicated(data[2 * size :])] == [2]
    assert follower.reader.first_batch() == (2, before.crc)
