"""What a mirror's leader checks of copied batches before they are appended, besides their place in the log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from headrace.partition.copies import MAX_COPY_BYTES, check_copies, check_mirror, copied_config, lacks_deletions
from headrace.partition.fitting import LogPoint, gap
from headrace.partition.topic_configs import TopicConfig, Validation
from headrace.wire.batch import CRC_START, BatchFlags, Codec, read_header
from headrace.wire.crc import crc32c
from headrace.wire.encoding import ArrowBuffers, CompactedRange, column_parts, encode_batch
from headrace.wire.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    DivergedLogError,
    InvalidRequestError,
    Outcome,
    UnsupportedCodecError,
)

MIRROR = TopicConfig(mirror="m", max_batch_bytes=1_024, allowed_codecs="none")


class Limits(NamedTuple):
    max_batch_records: int = 10
    max_payload_bytes: int = 100_000


LIMITS = Limits()


class Log(NamedTuple):
    log_start_offset: int = 0
    log_end_offset: int = 0
    deletions_end: int = 0


def batch(*values: bytes, **fields: int) -> bytes:
    return encode_batch(list(values), base_timestamp_ms=1, **fields)


def check(*batches: bytes, config: TopicConfig = MIRROR, limits: Limits = LIMITS) -> None:
    check_copies(batches, config, limits, {})


def test_a_topic_that_is_no_mirror_takes_no_copies() -> None:
    """Only the setting makes it one; the action says what else to do."""
    check_mirror("t", MIRROR)
    with pytest.raises(InvalidRequestError, match="topic t is no mirror") as refused:
        check_mirror("t", TopicConfig())
    assert refused.value.outcome is Outcome.NOT_APPLIED


def test_limits_are_those_of_what_a_source_may_have() -> None:
    """Not the topic's own for producers: its source may have had others, and has compacted batches."""
    check(batch(b"x" * 50_000))
    with pytest.raises(BatchTooLargeError, match="a payload of"):
        check(batch(b"x" * 200_000))
    with pytest.raises(BatchTooLargeError, match="bytes exceeds"):
        check(batch(b"x" * (MAX_COPY_BYTES + 1)), limits=Limits(max_payload_bytes=1 << 30))
    check(*gap(LogPoint(0, 0), LogPoint(1 << 31, 5), 1))


def merged(records: int) -> bytes:
    """Return a batch that compaction has made of many."""
    parts = column_parts(
        ArrowBuffers(np.zeros(records + 1, np.int32), b""),
        base_timestamp_ms=1,
        compacted=CompactedRange(0, records, 7, np.arange(records)),
    )
    return b"".join(parts)


def test_compaction_may_have_made_one_batch_of_many_small_ones() -> None:
    """More records than a producer may send, up to what compaction makes of them."""
    check(merged(30_000), limits=Limits(max_payload_bytes=1 << 20))
    with pytest.raises(BatchTooLargeError, match="records exceeds"):
        check(merged(40_000), limits=Limits(max_payload_bytes=1 << 20))


@pytest.mark.parametrize("flag", [BatchFlags.TRANSACTIONAL, BatchFlags.CONTROL])
def test_batches_of_transactions_are_refused(flag: BatchFlags) -> None:
    """No leader has appended one yet."""
    wrong = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, flags=flag)
    with pytest.raises(InvalidRequestError, match="transactional and control"):
        check(batch(b"x"), wrong)


def test_corruption_is_found_in_any_batch() -> None:
    """A copy was checked at its source, and who copies is not trusted."""
    data = bytearray(batch(b"hello"))
    data[-12] ^= 1
    with pytest.raises(CorruptBatchError):
        check(batch(b"x"), bytes(data))
    with pytest.raises(CorruptBatchError):
        check(batch(b"x")[:20])


def broken() -> bytes:
    """Return a batch with a right checksum that cannot be decoded: its value ends behind its data."""
    data = bytearray(batch(b"abc"))
    data[data.index(b"abc") - 4] = 9
    data[32:36] = crc32c(data[CRC_START:]).to_bytes(4, "little")
    return bytes(data)


def test_columns_are_checked_unless_the_topic_says_otherwise() -> None:
    """H145; those of compressed batches were inflated elsewhere, and the error is passed on."""
    with pytest.raises(CorruptBatchError):
        check(batch(b"x"), broken())
    check(broken(), config=TopicConfig(mirror="m", validate=Validation.HEADER))
    packed = batch(b"x" * 100, codec=Codec.GZIP)
    check_copies([packed], MIRROR, Limits(), {0: None})
    error = CorruptBatchError("it does not inflate")
    with pytest.raises(CorruptBatchError, match="does not inflate"):
        check_copies([batch(b"x"), packed], MIRROR, Limits(), {1: error})


def test_any_known_codec_is_copied() -> None:
    """The source may have allowed it when the batch was sent."""
    for codec in Codec:
        check(batch(b"x" * 100, codec=codec))
    assert set(copied_config(MIRROR).allowed_codecs.split(",")) == {codec.name.lower() for codec in Codec}
    header = read_header(batch(b"x"))
    data = bytearray(batch(b"x"))
    assert data[37] == header.codec
    with pytest.raises((UnsupportedCodecError, CorruptBatchError)):
        data[37] = 99
        check(bytes(data))


@pytest.mark.parametrize(
    ("log", "deletions_end", "lacks"),
    [
        (Log(), 0, False),
        (Log(), 7, True),
        (Log(5, 5), 7, True),
        (Log(0, 7), 7, False),
        (Log(0, 9), 7, False),
        (Log(0, 5, 7), 7, False),
        (Log(0, 5, 9), 7, False),
    ],
)
def test_what_a_copy_knows_of_removed_deletions(log: Log, deletions_end: int, lacks: bool) -> None:
    """H151: it notes the source's end when it begins, and then may continue; at or behind that end it misses none."""
    assert lacks_deletions(log, deletions_end) is lacks


@pytest.mark.parametrize("log", [Log(0, 6), Log(0, 6, 6), Log(3, 4)])
def test_a_copy_that_has_missed_a_deletion_ends(log: Log) -> None:
    """It has records that will never be deleted."""
    with pytest.raises(DivergedLogError, match="has removed deletions below offset 7") as refused:
        lacks_deletions(log, 7)
    assert refused.value.outcome is Outcome.NOT_APPLIED
