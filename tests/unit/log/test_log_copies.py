"""Batches of another log are appended as they are: those that continue the log, all or none, but for their epochs."""

from __future__ import annotations

import errno
import random

import pytest
from headrace.log import LogSettings, PartitionLog
from headrace.partition.fitting import LogPoint, gap
from headrace.wire.batch import MAX_COMPACTED_OFFSETS, STAMP_BYTES, iter_batches, read_header, stamp
from headrace.wire.errors import (
    CorruptBatchError,
    DivergedLogError,
    OffsetOutOfRangeError,
    Outcome,
    StorageFullError,
)

from tests.fakes.memory_filesystem import Loss, PowerLost
from tests.unit.log.conftest import Bench


def batches_of(bench: Bench) -> list[bytes]:
    return [bytes(batch) for _, batch in iter_batches(bench.content())]


@pytest.fixture
def copied() -> list[bytes]:
    """Twelve batches of another log, of leader epochs 3 and 8."""
    source = Bench()
    source.open()
    source.append(6, records=2, epoch=3)
    source.append(6, records=3, epoch=8)
    return batches_of(source)


def stamped(batch: bytes, **changes: int) -> bytes:
    """Return a batch with another stamp, whose checksum is right."""
    header = read_header(batch)
    fields = {name: getattr(header, name) for name in ("base_offset", "append_timestamp_ms", "previous_crc")}
    return stamp(header, leader_epoch=header.leader_epoch, **{**fields, **changes}) + batch[STAMP_BYTES:]


def test_only_the_leader_epoch_is_replaced(bench: Bench, log: PartitionLog, copied: list[bytes]) -> None:
    """Offsets, append times, chain and everything behind the stamp stay; a reader and a restart find the log sound."""
    headers = log.append_copies(copied[:5], leader_epoch=5)
    assert [header.base_offset for header in headers] == [0, 2, 4, 6, 8]
    log.append_copies(copied[5:], leader_epoch=6)
    ours = batches_of(bench)
    assert [batch[STAMP_BYTES:] for batch in ours] == [batch[STAMP_BYTES:] for batch in copied]
    for mine, theirs in zip(map(read_header, ours), map(read_header, copied), strict=True):
        assert mine._replace(leader_epoch=0, stamp_crc=0) == theirs._replace(leader_epoch=0, stamp_crc=0)
    assert [read_header(batch).leader_epoch for batch in ours] == [5] * 5 + [6] * 7
    assert log.epochs() == ((5, 0), (6, 10))
    assert log.reader.verify() == log.log_end_offset == 30
    bench.directory.close(clean=False)
    again = bench.open()
    assert (again.log_end_offset, again.epochs(), again.last_crc) == (30, ((5, 0), (6, 10)), log.last_crc)


def test_the_copy_of_a_copy_is_the_same(bench: Bench, log: PartitionLog, copied: list[bytes]) -> None:
    """The chain does not cover what is replaced, so that a mirror can be mirrored."""
    log.append_copies(copied, leader_epoch=5)
    second = Bench()
    second.open().append_copies(batches_of(bench), leader_epoch=0)
    assert second.log.last_crc == log.last_crc
    assert [batch[STAMP_BYTES:] for batch in batches_of(second)] == [batch[STAMP_BYTES:] for batch in copied]


def test_without_batches_nothing_is_appended(log: PartitionLog) -> None:
    """Who only asks for the log end changes nothing."""
    assert log.append_copies([], leader_epoch=0) == []
    assert log.log_end_offset == 0


def test_what_does_not_continue_the_log_is_refused_as_a_whole(
    bench: Bench, log: PartitionLog, copied: list[bytes]
) -> None:
    """The errors say what is wrong, nothing was applied, and the log is as before."""
    log.append_copies(copied[:4], leader_epoch=5)
    before = bench.content()
    other = stamped(copied[6], previous_crc=read_header(copied[6]).previous_crc ^ 1)
    flipped = bytearray(copied[6])
    flipped[-20] ^= 1
    earlier = bytearray(copied[6])
    earlier[8] ^= 1  # The append time, which only the stamp's checksum covers.
    for batches, error, text in (
        (copied[3:6], OffsetOutOfRangeError, "begins at offset 6, and the log ends at 8"),
        (copied[5:8], OffsetOutOfRangeError, "begins at offset 10, and the log ends at 8"),
        ([*copied[4:6], copied[7]], OffsetOutOfRangeError, "begins at offset 15, and the log ends at 12"),
        ([copied[4], copied[4]], OffsetOutOfRangeError, "begins at offset 8, and the log ends at 10"),
        ([*copied[4:6], other], DivergedLogError, "at offset 12 follows another record"),
        ([*copied[4:6], bytes(flipped)], CorruptBatchError, "the batch's checksum"),
        ([*copied[4:6], bytes(earlier)], CorruptBatchError, "the stamp's checksum"),
        ([*copied[4:6], copied[6][:-8]], CorruptBatchError, "bytes came"),
        ([*copied[4:6], copied[6] + bytes(8)], CorruptBatchError, "bytes came"),
        ([*copied[4:6], copied[6][:40]], CorruptBatchError, "."),
        ([*copied[4:6], b""], CorruptBatchError, "."),
    ):
        with pytest.raises(error, match=text) as refused:
            log.append_copies(batches, leader_epoch=5)
        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert bench.content() == before
        assert log.log_end_offset == 8
    log.append_copies(copied[4:], leader_epoch=5)
    assert log.reader.verify() == 30


def test_a_refusal_begins_no_epoch(log: PartitionLog, copied: list[bytes]) -> None:
    """The epochs file has what the log has."""
    with pytest.raises(OffsetOutOfRangeError):
        log.append_copies(copied[1:], leader_epoch=5)
    assert log.epochs() == ()


def test_a_full_disk_leaves_no_trace(bench: Bench, log: PartitionLog, copied: list[bytes]) -> None:
    """H35: half a copy is taken back, and the same copy is appended once there is room."""
    log.append_copies(copied[:4], leader_epoch=5)
    before = bench.content()
    bench.disk.capacity_bytes = bench.disk._used_bytes() + 300
    with pytest.raises(StorageFullError) as refused:
        log.append_copies(copied[4:], leader_epoch=5)
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert (bench.content(), bench.disk.content(bench.path(0))) == (before, before)
    bench.disk.capacity_bytes = 1 << 30
    bench.directory.check_space()
    log.append_copies(copied[4:], leader_epoch=5)
    assert log.reader.verify() == 30


def test_segments_are_rolled_as_for_producers(bench: Bench, copied: list[bytes]) -> None:
    """Copies that do not fit begin a segment."""
    bench.settings = LogSettings(segment_bytes=1_000)
    log = bench.open()
    for batch in copied:
        log.append_copies([batch], leader_epoch=1)
    assert log.segment_count > 3
    assert log.reader.verify() == 30


def wide(start: LogPoint, offsets: int) -> tuple[list[bytes], LogPoint]:
    """Return batches without records for a number of offsets, and where they end."""
    end = LogPoint(start.offset + offsets, 77)
    return list(gap(start, end, 5)), end


def test_offsets_that_no_segment_has_together(bench: Bench, log: PartitionLog, copied: list[bytes]) -> None:
    """Of a gap of more than 2^32 offsets each call appends what one segment can have, and says so by its headers."""
    log.append_copies(copied, leader_epoch=5)
    gaps, end = wide(LogPoint(log.end.offset, log.end.crc), 3 * MAX_COMPACTED_OFFSETS - 7)
    assert len(gaps) == 3
    left, calls = gaps, 0
    while left:
        appended = log.append_copies(left, leader_epoch=5)
        left, calls = left[len(appended) :], calls + 1
        assert log.log_end_offset == appended[-1].end_offset
    assert calls == 3
    source = Bench()
    source.open().reset_to(end.offset, end.chain_crc)
    source.append(2, records=2)
    log.append_copies(batches_of(source), leader_epoch=6)
    assert log.reader.verify() == log.log_end_offset == end.offset + 4
    bench.directory.close(clean=False)
    again = bench.open()
    assert again.log_end_offset == end.offset + 4
    assert again.reader.verify() == end.offset + 4


def test_no_room_for_the_second_part_of_a_gap(bench: Bench, log: PartitionLog) -> None:
    """Each call appends all that it says or nothing: the caller knows of the first part."""
    gaps, _ = wide(LogPoint(0, 0), 2 * MAX_COMPACTED_OFFSETS)
    appended = log.append_copies(gaps, leader_epoch=0)
    assert (len(appended), log.log_end_offset) == (1, MAX_COMPACTED_OFFSETS)
    bench.disk.fail("pwritev", errno.ENOSPC, suffix=".log")
    with pytest.raises(StorageFullError):
        log.append_copies(gaps[1:], leader_epoch=0)
    assert log.log_end_offset == MAX_COMPACTED_OFFSETS


@pytest.mark.parametrize("seed", range(40))
def test_crash_at_any_point(seed: int, copied: list[bytes]) -> None:
    """After a loss of power the log is a prefix of the other one with all that was fsynced, and continues there."""
    chance = random.Random(seed)
    bench = Bench(settings=LogSettings(segment_bytes=900, index_interval_bytes=128), boot_id=str(seed))
    log, flushed, epoch = bench.open(), 0, 5
    bench.disk.lose_power(after=chance.randrange(40))
    ends = [0, *(read_header(batch).end_offset for batch in copied)]
    try:
        while log.log_end_offset < ends[-1]:
            at = ends.index(log.log_end_offset)
            epoch += chance.random() < 0.2
            log.append_copies(copied[at : at + chance.randint(1, 4)], leader_epoch=epoch)
            if chance.random() < 0.4:
                flushed = log.flush()
        bench.disk.keep_power()
    except PowerLost:
        pass
    bench.disk.crash(chance.choice(list(Loss)), chance)
    bench.boot_id = f"{seed} again"
    log = bench.open()
    end = log.log_end_offset
    assert flushed <= end
    assert end in ends
    assert [batch[STAMP_BYTES:] for batch in batches_of(bench)] == [
        batch[STAMP_BYTES:] for batch in copied[: ends.index(end)]
    ]
    assert all(start <= end for _, start in log.epochs())
    log.append_copies(copied[ends.index(end) :], leader_epoch=epoch + 1)
    assert log.reader.verify() == ends[-1]
