"""Opening after a clean stop, after a crash, and with files that were corrupt meanwhile (PROTOCOL H31 to H39, I17)."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest
from headrace.log import CorruptLogError, LogSettings, TimestampKind
from headrace.wire.errors import OffsetOutOfRangeError, StorageFullError, StorageOfflineError

from tests.fakes.memory_filesystem import Loss


def crash(bench, loss=Loss.NOTHING, seed=0):
    bench.disk.crash(loss, random.Random(seed))


def test_clean_stop_opens_without_reading_batches(bench):
    """O(segments): of ten segments, only the first header of the active one is read."""
    bench.settings = LogSettings(segment_bytes=2_000)
    bench.open()
    bench.append(100)
    bench.directory.close(clean=True)
    bench.disk.read_bytes.clear()
    log = bench.open()
    assert log.segment_count > 5
    assert bench.disk.read_bytes[".log"] == 80
    assert log.recovery.scanned_bytes == 0
    assert log.log_end_offset == 100


def test_crash_scans_only_past_the_recovery_point(bench, log):
    """What lies below the mark is not read again."""
    bench.append(50)
    log.flush()
    log.durability.checkpoint(5_000, 50)
    marked = log.size_bytes
    bench.append(5)
    total = log.size_bytes
    crash(bench)
    assert bench.open().recovery.scanned_bytes == total - marked
    assert bench.log.log_end_offset == 55


def test_torn_tail_is_cut_and_appends_continue(bench):
    """A batch half written at a crash goes, and the next one fits onto the one before it (H31)."""
    bench.open()
    bench.append(3)
    bench.log.flush()
    bench.log.durability.checkpoint(5_000, 3)
    bench.append()
    bench.disk.cut(bench.path(0), bench.log.size_bytes - 10)
    crash(bench)
    log = bench.open()
    assert log.recovery.cut_bytes > 0
    assert "cannot be here" in log.recovery.cut_reason
    assert log.log_end_offset == 3
    assert bench.append() == 3
    assert log.reader.verify() == 4


def test_every_byte_flip_below_the_mark_is_reported_and_none_is_cut(bench):
    """`verify` finds each flip and names the file and the batch; a restart never shortens the log (H33, I17)."""
    bench.open()
    bench.append(3, size_bytes=20)
    bench.directory.close(clean=True)
    size_bytes = bench.log.size_bytes
    batch_bytes = size_bytes // 3
    for position in range(size_bytes):
        bench.disk.corrupt(bench.path(0), position, 0x10)
        log = bench.open()
        assert log.log_end_offset == 3
        with pytest.raises(CorruptLogError) as caught:
            log.reader.verify()
        assert caught.value.file == bench.path(0)
        assert caught.value.offset == position // batch_bytes
        crash(bench)
        bench.disk.corrupt(bench.path(0), position, 0x10)


def test_every_byte_flip_of_the_last_batch_is_found_where_it_is(bench, log):
    """The piecewise check says so of the batch asked for, also where its header claims records beyond the log (I17)."""
    bench.append(2, records=3, size_bytes=20)
    batch_bytes = log.size_bytes // 2
    assert log.reader.verify_from(3, 1) == (6, batch_bytes)
    for position in range(batch_bytes, 2 * batch_bytes):
        bench.disk.corrupt(bench.path(0), position, 0x10)
        with pytest.raises(CorruptLogError) as caught:
            log.reader.verify_from(3, 1)
        assert caught.value.file == bench.path(0)
        bench.disk.corrupt(bench.path(0), position, 0x10)


def test_corruption_past_the_mark_with_a_valid_batch_behind_is_not_a_torn_tail(bench):
    """H31: in the same boot the kernel has kept it all: nothing is changed until the operator says that it may go."""
    bench.open()
    bench.append(1)
    size_bytes = bench.log.size_bytes
    bench.append(3)
    bench.disk.corrupt(bench.path(0), size_bytes + 100, 1)
    before = bench.disk.content(bench.path(0))
    crash(bench)
    with pytest.raises(CorruptLogError) as caught:
        bench.open()
    assert (caught.value.offset, caught.value.position) == (1, size_bytes)
    assert bench.disk.content(bench.path(0)) == before
    crash(bench)
    assert bench.open(truncate_at_corruption=True).log_end_offset == 1


def test_after_a_loss_of_power_anything_past_the_mark_may_be_torn(bench):
    """H31: blocks reach the disk in any order, so a valid batch may lie behind a torn one: cut, and not before."""
    bench.open()
    bench.append(2)
    bench.log.flush()
    bench.log.durability.checkpoint(bench.now_ms, 2, force=True)
    size_bytes = bench.log.size_bytes
    bench.append(3)
    bench.disk.corrupt(bench.path(0), size_bytes + 100, 1)
    crash(bench)
    bench.boot_id = "two"
    log = bench.open()
    assert (log.log_end_offset, log.recovery.cut_bytes > 0) == (2, True)
    assert log.reader.verify() == 2
    bench.disk.corrupt(bench.path(0), size_bytes - 1, 1)
    crash(bench)
    bench.boot_id = "three"
    assert bench.open().log_end_offset == 2
    with pytest.raises(CorruptLogError):
        bench.log.reader.verify()


def test_a_torn_tail_is_one_until_it_was_recovered(bench):
    """H31: power is lost, and the process that comes back is killed before it has opened the log."""
    bench.open()
    bench.append(2)
    bench.log.flush()
    bench.log.durability.checkpoint(bench.now_ms, 2, force=True)
    size_bytes = bench.log.size_bytes
    bench.append(3)
    bench.disk.corrupt(bench.path(0), size_bytes + 100, 1)
    crash(bench)
    bench.boot_id = "two"
    assert not bench.open_directory().boot.same_boot
    crash(bench)
    assert bench.open().log_end_offset == 2
    crash(bench)
    assert bench.open_directory().boot.same_boot


def test_an_io_error_takes_back_what_the_boot_promises(bench):
    """After a failed fsync the page cache is not trusted, so the next start in the same boot is not clean."""
    assert not bench.open_directory().boot.same_boot
    bench.directory.note_boot()
    bench.directory.close(clean=False)
    assert bench.open_directory().boot.same_boot
    bench.log = bench.directory.open_log(bytes(range(16)), 0, bench.settings)
    bench.append(1)
    bench.disk.fail("fsync", errno.EIO, suffix=".log")
    with pytest.raises(StorageOfflineError):
        bench.log.flush()
    crash(bench)
    assert not bench.open_directory().boot.same_boot


def test_log_shorter_than_its_mark_is_corruption(bench):
    """A file that lost fsynced bytes is never taken for a shorter log (H33)."""
    bench.open()
    bench.append(3)
    bench.directory.close(clean=True)
    bench.disk.cut(bench.path(0), bench.log.size_bytes - 8)
    with pytest.raises(CorruptLogError, match="was fsynced"):
        bench.open()


def test_lost_segment_is_corruption(bench):
    """A whole segment gone below the mark is reported too."""
    bench.settings = LogSettings(segment_bytes=500)
    bench.open()
    bench.append(10)
    active = bench.log.log_end_offset
    bench.directory.close(clean=True)
    names = bench.disk.list_directory(bench.log.directory)
    newest = max(name for name in names if name.endswith(".log"))
    bench.disk.unlink(f"{bench.log.directory}/{newest}")
    with pytest.raises(CorruptLogError, match="is gone"):
        bench.open()
    assert active == 10


@pytest.mark.parametrize("slot", [0, 1])
def test_one_bad_checkpoint_slot_costs_only_work(bench, slot):
    """Recovery uses the other slot, with an older recovery point at worst (H37)."""
    bench.open()
    for round_ in range(4):
        bench.append(2)
        bench.log.flush()
        bench.log.durability.checkpoint(round_ * 5_000, 1)
    before = bench.content()
    bench.disk.corrupt(f"{bench.log.directory}/checkpoint", slot * 4096 + 33, 0xFF)
    crash(bench)
    log = bench.open()
    assert bench.content() == before
    assert not log.recovery.checkpoint_rebuilt
    assert log.checkpointed_high_watermark == 1


def test_both_checkpoint_slots_bad_scans_all_and_refuses_only_a_bad_tail(bench):
    """Without a recovery point a bad tail may have been fsynced, so recovery does not truncate it (H37)."""
    bench.open()
    bench.append(5)
    bench.directory.close(clean=True)
    for slot in (0, 1):
        bench.disk.corrupt(f"{bench.log.directory}/checkpoint", slot * 4096 + 33, 0xFF)
    log = bench.open()
    assert log.recovery.checkpoint_rebuilt
    assert log.log_end_offset == 5
    bench.directory.close(clean=True)
    for slot in (0, 1):
        bench.disk.corrupt(f"{bench.log.directory}/checkpoint", slot * 4096 + 33, 0xFF)
    bench.disk.cut(bench.path(0), log.size_bytes - 8)
    with pytest.raises(CorruptLogError, match="slots are lost"):
        bench.open()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["flip_header", "flip_entry", "cut", "gone"])
def test_corrupt_index_is_built_again(bench, suffix, how):
    """Indexes are hints: whatever happens to them, each offset and time is found (H38)."""
    bench.settings = LogSettings(segment_bytes=20_000, index_interval_bytes=200)
    bench.open()
    bench.append(200)
    bench.directory.close(clean=True)
    path = bench.path(0, suffix)
    match how:
        case "flip_header":
            bench.disk.corrupt(path, 20, 1)
        case "flip_entry":
            bench.disk.corrupt(path, 70, 1)
        case "cut":
            bench.disk.cut(path, 70)
        case "gone":
            bench.disk.unlink(path)
    log = bench.open()
    for offset in range(0, 200, 7):
        with log.reader.read(offset, 1, 200) as found:
            assert (found.base_offset, found.end_offset) == (offset, offset + 1)
        by_time = log.reader.offset_for_timestamp(1_000_001 + offset, TimestampKind.APPEND)
        assert by_time is not None
        assert by_time.offset == offset


def test_flip_anywhere_in_an_index_file_misleads_nobody(bench):
    """Each byte of both files, flipped, leaves every answer by offset and by time as it was (H38, H44)."""
    bench.settings = LogSettings(segment_bytes=20_000, index_interval_bytes=200)
    bench.open()
    bench.append(60)
    bench.directory.close(clean=True)
    log = bench.log
    for suffix in (".index", ".timeindex"):
        good = bench.disk.content(bench.path(0, suffix))
        for position in range(len(good)):
            bench.disk.corrupt(bench.path(0, suffix), position, 0x42)
            log = bench.open()
            for offset in (0, 31, 59):
                with log.reader.read(offset, 1, 60) as found:
                    assert (found.base_offset, found.end_offset) == (offset, offset + 1)
                assert log.reader.offset_for_timestamp(1_000_001 + offset, TimestampKind.APPEND) == (
                    offset,
                    1_000_001 + offset,
                )
            bench.directory.close(clean=True)
            bench.disk.cut(bench.path(0, suffix), 0)
            descriptor = bench.disk.open(bench.path(0, suffix))
            bench.disk.pwritev(descriptor, [good], 0)
            bench.disk.close(descriptor)


def test_recovery_point_never_lies_in_a_segment_that_is_removed(bench):
    """Records not yet flushed are deleted: the mark moves on before their segments go."""
    bench.settings = LogSettings(segment_bytes=500)
    bench.open()
    bench.append(20)
    assert bench.log.flushed_offset == 0
    bench.log.retention.delete_records(10, 20)
    crash(bench, Loss.ALL)
    log = bench.open()
    assert log.log_start_offset == 10
    assert log.log_end_offset >= 10
    assert bench.append() == log.log_end_offset - 1


def test_mark_at_the_end_of_a_removed_segment_is_the_start_of_the_next(bench):
    """All is deleted up to the mark, then a roll, then a crash: nothing is corrupt, and the epoch is still known."""
    bench.settings = LogSettings(segment_bytes=700)
    bench.open()
    bench.append()
    bench.log.retention.delete_records(1, 1)
    bench.append(size_bytes=9_000)
    crash(bench)
    log = bench.open()
    assert (log.log_start_offset, log.log_end_offset) == (1, 2)
    assert log.epochs() == ((0, 1),)


def test_truncate_at_corruption_keeps_what_is_sound_before_a_missing_mark(bench):
    """The operator's word saves every whole batch of a file that lost its end below the mark."""
    bench.open()
    bench.append(5)
    bench.directory.close(clean=True)
    bench.disk.cut(bench.path(0), bench.log.size_bytes - 8)
    log = bench.open(truncate_at_corruption=True)
    assert log.log_end_offset == 4
    assert log.reader.verify() == 4
    assert bench.append() == 4


def test_corrupt_epoch_file_is_built_again_from_the_headers(bench):
    """The epochs equal what a scan gives (I6)."""
    bench.open()
    for epoch in (0, 2, 5):
        bench.append(3, epoch=epoch)
    assert bench.log.epochs() == ((0, 0), (2, 3), (5, 6))
    assert bench.log.epoch_end(4) == (2, 6)
    bench.directory.close(clean=True)
    bench.disk.corrupt(f"{bench.log.directory}/leader-epochs", 20, 1)
    assert bench.open().epochs() == ((0, 0), (2, 3), (5, 6))


def test_crash_between_truncation_steps_leaves_a_whole_log(bench):
    """Wherever a truncation stops, the log opens, and ends at the cut or where it ended before (H32)."""
    for operation in ("fsync", "truncate", "unlink", "fsync_directory"):
        for after in range(6):
            bench.disk = type(bench.disk)()
            bench.settings = LogSettings(segment_bytes=1_000)
            log = bench.open()
            bench.append(20)
            log.flush()
            log.durability.checkpoint(1, 5)
            bench.disk.fail(operation, errno.EIO, after=after)
            with contextlib.suppress(StorageOfflineError):
                log.truncate_to(7)
            for loss in (Loss.ALL, Loss.BLOCKS):
                crash(bench, loss, seed=after)
                bench.open()
                assert 7 <= bench.log.log_end_offset <= 20
                assert bench.log.reader.verify() == bench.log.log_end_offset
                assert bench.log.truncate_to(7) == 7
                assert bench.append() == 7


def test_truncation_leaves_no_index_of_what_is_gone(bench):
    """Cut, filled again to the same size at other times, crashed: times are looked up in the new batches (H32, H38)."""
    bench.settings = LogSettings(index_interval_bytes=200)
    log = bench.open()
    bench.append(100)
    log.flush()
    log.durability.checkpoint(1, 0)
    log.truncate_to(0)
    bench.now_ms = 5_000_000
    bench.append(100)
    crash(bench)
    assert bench.open().reader.offset_for_timestamp(1_000_090, TimestampKind.APPEND) == (0, 5_000_001)
    assert bench.log.reader.offset_for_timestamp(5_000_090, TimestampKind.APPEND) == (89, 5_000_090)


def test_truncation_forgets_the_epochs_it_cuts(bench):
    """Epochs that began at the cut or later are gone, in memory and after a restart (I6)."""
    bench.open()
    for epoch in (0, 2, 5):
        bench.append(3, epoch=epoch)
    bench.log.truncate_to(6)
    assert bench.log.epochs() == ((0, 0), (2, 3))
    assert bench.log.last_epoch == 2
    crash(bench, Loss.ALL)
    assert bench.open().epochs() == ((0, 0), (2, 3))


def test_producer_snapshot_survives_and_a_corrupt_one_gives_way(bench, log):
    """Newest valid within the log; after corruption the one before; none past a truncation (H48)."""
    bench.append(10)
    log.snapshots.store(4, b"four")
    log.snapshots.store(6, b"six")
    log.snapshots.store(8, b"eight")
    assert log.snapshots.load() == (8, b"eight")
    bench.disk.corrupt(f"{log.directory}/producers-{8:020d}.snapshot", 20, 1)
    assert log.snapshots.load() == (6, b"six")
    log.truncate_to(5)
    assert log.snapshots.load() is None


def test_a_snapshot_beyond_what_a_crash_left_is_removed_for_good(bench, log):
    """What grows there again has other producers; a second crash must not bring it back (H48)."""
    bench.append(4)
    log.flush()
    log.snapshots.store(4, b"four")
    bench.append(2)
    log.snapshots.store(6, b"six")
    crash(bench, Loss.ALL)
    assert bench.open().snapshots.load() == (4, b"four")
    bench.append(4)
    bench.log.flush()
    assert bench.log.snapshots.load() == (4, b"four")
    crash(bench, Loss.ALL)
    assert bench.open().log_end_offset == 8
    assert bench.log.snapshots.load() == (4, b"four")


def test_checkpoint_write_that_failed_is_tried_again_in_its_own_slot(bench, log):
    """A torn write harms one slot; the next try goes over that one, so that a second tear harms no other (H37)."""
    bench.append(3)
    log.flush()
    log.durability.checkpoint(5_000, 2, force=True)
    slots = bench.disk.content(f"{log.directory}/checkpoint")
    whole = []
    for high_watermark in (3, 3):
        bench.disk.fail("fsync", errno.ENOSPC, suffix="checkpoint")
        bench.disk.fail("fsync", errno.ENOSPC, suffix="checkpoint")
        with pytest.raises(StorageFullError):
            log.durability.checkpoint(9_000, high_watermark, force=True)
        now = bench.disk.content(f"{log.directory}/checkpoint")
        whole.append([now[at : at + 4096] == slots[at : at + 4096] for at in (0, 4096)])
    assert whole[0] == whole[1]
    assert sorted(whole[0]) == [False, True]


def test_retention_of_a_log_just_opened_knows_the_age_of_its_segments(bench):
    """The index of a segment has the time of its last append; a newly opened log reads it for retention."""
    bench.settings = LogSettings(segment_bytes=700, retention_ms=1_000)
    bench.open()
    bench.append(8)
    first_roll = bench.log.retention.plan(10**12, 8)
    bench.directory.close(clean=True)
    log = bench.open()
    assert log.segment_count > 2
    assert log.retention.plan(bench.now_ms, 8) == 0
    assert log.retention.plan(bench.now_ms + 1_001, 8) == first_roll > 0


def test_records_above_the_high_watermark_are_not_deleted(bench, log):
    """They may never be committed; nothing of the log changes."""
    bench.append(5)
    with pytest.raises(OffsetOutOfRangeError, match="offset 4 is above the high watermark 3"):
        log.retention.delete_records(4, 3)
    assert log.retention.delete_records(2, 3) == 2
    assert log.retention.delete_records(1, 3) == 2
