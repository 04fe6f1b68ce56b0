"""The batch header: what is checked, what a stamp changes, how batches follow each other."""

import struct

import pytest
from headrace.wire.batch import (
    HEADER_BYTES,
    check_batch,
    iter_batches,
    read_header,
    sequence_after,
    sequence_distance,
    stamp,
)
from headrace.wire.columns import encode_batch
from headrace.wire.crc import crc32c
from headrace.wire.errors import BatchTooLargeError, CorruptBatchError, HeadraceError, UnsupportedCodecError

LIMITS = {"max_batch_bytes": 1 << 20, "max_records": 1000, "max_payload_bytes": 1 << 20}
BATCH = encode_batch([b"one", b"three"], base_timestamp_ms=1000)


def changed(position: int, layout: str, value: int, batch: bytes = BATCH) -> bytes:
    """Return `batch` with one field changed and both checksums right again."""
    new = bytearray(batch)
    struct.pack_into(layout, new, position, value)
    struct.pack_into("<I", new, 28, crc32c(new[:28]))
    struct.pack_into("<I", new, 32, crc32c(memoryview(new)[36:]))
    return bytes(new)


def test_crc32c_known_answer() -> None:
    """RFC 3720 B.4 and the usual check value, for every kind of buffer and in two steps."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    for buffer in (b"123456789", bytearray(b"123456789"), memoryview(b"x123456789")[1:]):
        assert crc32c(buffer) == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_every_bit_flip_is_refused() -> None:
    """I17: both checksums together leave no byte of a batch unguarded."""
    assert check_batch(BATCH, **LIMITS).record_count == 2
    for bit in range(len(BATCH) * 8):
        flipped = bytearray(BATCH)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(HeadraceError):
            check_batch(bytes(flipped), **LIMITS)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(BATCH) - 8, len(BATCH) - 1])
def test_truncated_batch_is_refused(size: int) -> None:
    """A batch cut anywhere is corrupt, as is one with bytes behind it."""
    with pytest.raises(CorruptBatchError):
        check_batch(BATCH[:size], **LIMITS)
    with pytest.raises(CorruptBatchError):
        check_batch(BATCH + bytes(8), **LIMITS)


@pytest.mark.parametrize(
    ("position", "layout", "value", "says"),
    [
        (0, "<q", -1, "base_offset"),
        (0, "<q", 2**63 - 1, "base_offset"),
        (16, "<I", len(BATCH) + 8, "batch_bytes"),
        (16, "<I", len(BATCH) - 1, "batch_bytes"),
        (16, "<I", 80, "batch_bytes"),
        (20, "<i", -2, "leader_epoch"),
        (36, "<B", 2, "magic"),
        (38, "<H", 1 << 7, "a compacted batch ends"),
        (38, "<H", 1 << 9, "without compaction"),
        (38, "<H", 1 << 10, "reserved flags"),
        (38, "<H", 1 << 12, "reserved flags"),
        (38, "<H", 4, "null keys"),
        (38, "<H", 32, "transactional"),
        (38, "<H", 1 << 13, "bytes are stored"),
        (40, "<I", 0, "record_count"),
        (40, "<I", 900, "cannot be in a payload"),
        (44, "<I", 23, "bytes are stored"),
        (44, "<I", 11, "cannot be in a payload"),
        (48, "<q", 1001, "max_timestamp_ms"),
        (56, "<q", 1001, "max_timestamp_ms"),
        (64, "<q", -2, "producer_id"),
        (64, "<q", 1, "producer_id"),
        (72, "<i", 0, "without producer_id"),
        (76, "<i", 0, "without producer_id"),
    ],
)
def test_false_relation_is_refused(position: int, layout: str, value: int, says: str) -> None:
    """Right checksums do not save a header whose fields cannot be."""
    with pytest.raises(CorruptBatchError, match=says):
        check_batch(changed(position, layout, value), **LIMITS)


def test_padding_that_is_not_zero_is_refused() -> None:
    """No byte of a batch is free to carry anything."""
    batch = encode_batch([b"a"], base_timestamp_ms=0)
    with pytest.raises(CorruptBatchError, match="padding is not zero"):
        check_batch(changed(len(batch) - 1, "<B", 1, batch), **LIMITS)


def test_unknown_codec_and_limits_have_their_own_errors() -> None:
    """What is sound but unwelcome is told apart from corruption."""
    with pytest.raises(UnsupportedCodecError):
        check_batch(changed(37, "<B", 4), **LIMITS)
    for limit, value in (("max_batch_bytes", len(BATCH) - 8), ("max_records", 1), ("max_payload_bytes", 23)):
        with pytest.raises(BatchTooLargeError):
            check_batch(BATCH, **{**LIMITS, limit: value})


def test_stamp_changes_only_the_first_32_bytes() -> None:
    """The leader's stamp leaves what the producer's checksum covers untouched."""
    head = stamp(read_header(BATCH), base_offset=50, append_timestamp_ms=9, leader_epoch=3, previous_crc=77)
    stamped = head + BATCH[32:]
    header = check_batch(memoryview(stamped), **LIMITS)
    assert (len(head), header.base_offset, header.leader_epoch, header.previous_crc) == (32, 50, 3, 77)
    assert (header.end_offset, header.producer_id) == (52, -1)
    assert header.crc == read_header(BATCH).crc


def test_corruption_names_the_batch() -> None:
    """A reader learns which batch is corrupt from the stamp, which has a checksum of its own."""
    head = stamp(read_header(BATCH), base_offset=50, append_timestamp_ms=9, leader_epoch=3, previous_crc=77)
    with pytest.raises(CorruptBatchError) as raised:
        check_batch(head + BATCH[32:-1] + b"\x01", **LIMITS)
    assert raised.value.base_offset == 50


def test_iter_batches_walks_whole_batches_and_reports_a_torn_one() -> None:
    """Whole batches come before the error about a torn one."""
    other = encode_batch([b"x" * 100], base_timestamp_ms=1)
    assert [bytes(view) for _, view in iter_batches(BATCH + other)] == [BATCH, other]
    batches = iter_batches(BATCH + other[:-8])
    assert next(batches)[0].record_count == 2
    with pytest.raises(CorruptBatchError, match="are left"):
        next(batches)


def test_sequences_wrap_at_two_to_the_31() -> None:
    """Sequences count modulo 2^31, and distance knows which side of the wrap it is on."""
    assert sequence_after(2**31 - 1, 1) == 0
    assert sequence_after(5, 3) == 8
    assert sequence_distance(2**31 - 1, 1) == 2
    assert sequence_distance(1, 2**31 - 1) == -2
