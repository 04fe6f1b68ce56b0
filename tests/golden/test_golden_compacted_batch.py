"""Compacted batches of this release, byte by byte, and what is wrong with damaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headrace.wire.batch import REMOVED_UNKNOWN, BatchFlags, RemovedRecords, check_batch, read_header, stamp
from headrace.wire.columns import decode_batch
from headrace.wire.crc import crc32c
from headrace.wire.encoding import CompactedRange, column_parts, join_column
from headrace.wire.errors import CorruptBatchError

GOLDEN = Path(__file__).parent / "batch-v1-compacted.bin"
OFFSETS = [1_000_002, 1_000_007, 1_000_019]
VALUES = [b"pro", None, b"free"]
KEYS = [b"u17", b"u18", b"u19"]
TIMESTAMPS_MS = [1_700_000_000_003, 1_700_000_000_001, 1_700_000_000_002]


def compacted(
    offsets: list[int], values: list[bytes | None], keys: list[bytes | None], removed: RemovedRecords | None = None
) -> bytes:
    """Return a compacted batch of the offsets 1,000,000 to 1,000,020."""
    parts = column_parts(
        join_column("value", values), join_column("key", keys),
        base_timestamp_ms=TIMESTAMPS_MS[0], timestamps_ms=TIMESTAMPS_MS if offsets == OFFSETS else None,
        compacted=CompactedRange(1_000_000, 1_000_020, 0xFEEDF00D, np.array(offsets, np.int64), removed),
    )  # fmt: skip
    batch = b"".join(parts)
    head = stamp(
        read_header(batch[:36] + batch[36:]), base_offset=1_000_000, append_timestamp_ms=1_700_000_000_500,
        leader_epoch=5, previous_crc=0xDEADBEEF,
    )  # fmt: skip
    return head + batch[32:]


def check(batch: bytes) -> None:
    """Check a batch as a reader does."""
    check_batch(batch, max_batch_bytes=4096, max_records=10, max_payload_bytes=4096)
    decode_batch(batch, max_payload_bytes=4096)


def test_golden_compacted_batch_encodes() -> None:
    """What this release writes is what the file has."""
    assert compacted(OFFSETS, VALUES, KEYS) == GOLDEN.read_bytes()


def test_golden_compacted_batch_decodes() -> None:
    """A compacted batch covers a range, continues the chain of what it replaces, and keeps the records' offsets."""
    batch = GOLDEN.read_bytes()
    check(batch)
    header = read_header(batch)
    assert (header.base_offset, header.end_offset, header.chain_crc) == (1_000_000, 1_000_020, 0xFEEDF00D)
    assert (header.leader_epoch, header.previous_crc, header.record_count) == (5, 0xDEADBEEF, 3)
    columns = decode_batch(batch, max_payload_bytes=4096)
    assert (columns.keys(), columns.values(), columns.timestamps()) == (KEYS, VALUES, TIMESTAMPS_MS)
    assert list(columns.offsets()) == OFFSETS
    assert [columns.index_of(offset) for offset in (0, 1_000_002, 1_000_003, 1_000_019, 1_000_020)] == [0, 0, 1, 2, 3]
    assert [columns.offset_after(index) for index in range(4)] == [1_000_000, 1_000_003, 1_000_008, 1_000_020]


def test_compacted_batch_may_be_empty() -> None:
    """A range whose records are all replaced or deleted keeps its offsets."""
    batch = compacted([], [], [])
    check(batch)
    columns = decode_batch(batch, max_payload_bytes=4096)
    assert (columns.values(), columns.keys(), list(columns.offsets()), columns.offset_after(0)) == (
        [],
        [],
        [],
        1_000_020,
    )


def test_what_was_removed_is_in_the_payload() -> None:
    """Absent in a batch of an earlier release, which may lack anything unless it has all its records."""
    assert decode_batch(GOLDEN.read_bytes(), max_payload_bytes=4096).removed == REMOVED_UNKNOWN
    removed = RemovedRecords(1_000_030, 1_700_000_000_000)
    batch = compacted(OFFSETS, VALUES, KEYS, removed)
    check(batch)
    columns = decode_batch(batch, max_payload_bytes=4096)
    assert (columns.removed, columns.values(), list(columns.offsets())) == (removed, VALUES, OFFSETS)
    assert len(batch) == len(GOLDEN.read_bytes()) + 16
    flags = read_header(batch).flags
    for damaged, reason in (
        (changed(-8, -1, 8, batch), "removed: is negative"),
        (changed(38, flags & ~BatchFlags.REMOVED, 2, batch), "payload: has 20 bytes more"),
        (changed(38, read_header(GOLDEN.read_bytes()).flags | BatchFlags.REMOVED, 2), "removed: needs 16 bytes"),
    ):
        with pytest.raises(CorruptBatchError, match=reason):
            check(damaged)


def changed(position: int, value: int, size: int, source: bytes = b"") -> bytes:
    """Return the golden batch, or another one, with another number at `position`, under right checksums."""
    batch = bytearray(source or GOLDEN.read_bytes())
    position %= len(batch)
    batch[position : position + size] = value.to_bytes(size, "little", signed=value < 0)
    batch[32:36] = crc32c(batch[36:]).to_bytes(4, "little")
    return bytes(batch)


@pytest.mark.parametrize(
    ("position", "value", "size", "reason"),
    [
        (64, 1_000_000, 8, "ends at 1000000"),
        (64, -1, 8, "ends at -1"),
        (64, 1_000_002, 8, "3 records are in 2 offsets"),
        (64, 1_000_019, 8, "record_offsets"),
        (64, 1_000_000 + 2**32, 8, "more than 4294967295 offsets"),
        (72, 0, 4, "producer_epoch"),
        (-16 + 4, 2, 4, "record_offsets"),
    ],
)
def test_damaged_compacted_batch(position: int, value: int, size: int, reason: str) -> None:
    """Fields that contradict each other are found, though the checksums agree."""
    size_bytes = len(GOLDEN.read_bytes())
    with pytest.raises(CorruptBatchError, match=reason):
        check(changed(position % size_bytes, value, size))


def test_flags_of_compaction() -> None:
    """A compacted batch has no control records, and an empty one no timestamps of records."""
    flags = read_header(GOLDEN.read_bytes()).flags
    with pytest.raises(CorruptBatchError, match="transactional"):
        check(changed(38, flags | BatchFlags.TRANSACTIONAL, 2))
    with pytest.raises(CorruptBatchError, match="timestamps_ms"):
        empty = bytearray(compacted([], [], []))
        empty[38:40] = (read_header(empty).flags | BatchFlags.RECORD_TIMESTAMPS).to_bytes(2, "little")
        empty[32:36] = crc32c(empty[36:]).to_bytes(4, "little")
        check(bytes(empty))
