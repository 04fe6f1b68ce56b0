"""Header of a record batch: reading, checks, and the leader's fields. `headrace.wire.columns` has the payload after it.

All numbers are little-endian and naturally aligned. The leader overwrites the first 32 bytes and keeps the rest
unchanged, which is why there are two checksums.

    offset size field                meaning
     0     8    base_offset          int64   stamped: the offset of the first record; 0 in a produced batch
     8     8    append_timestamp_ms  int64   stamped: the leader's clock at append, ms since 1970; 0 in a produced batch
    16     4    batch_bytes          uint32  stamped: header and padding included, a multiple of 8
    20     4    leader_epoch         int32   stamped: -1 in a produced batch
    24     4    previous_crc         uint32  stamped: chain value of the batch before it in the log, 0 for the first
    28     4    stamp_crc            uint32  stamped: CRC32C of bytes 0 .. 28
    32     4    crc                  uint32  CRC32C of bytes 36 .. batch_bytes
    36     1    magic                uint8   1
    37     1    codec                uint8   0 none, 1 lz4, 2 zstd, 3 gzip
    38     2    flags                uint16  see BatchFlags; bits 13-15: zero bytes of final padding
    40     4    record_count         uint32  at least 1, in a compacted batch at least 0
    44     4    payload_bytes        uint32  before compression
    48     8    base_timestamp_ms    int64   the smallest timestamp of the batch
    56     8    max_timestamp_ms     int64   the greatest; the same as the base without per-record timestamps
    64     8    producer_id          int64   -1 means none; producer_epoch and base_sequence are then -1 too
    72     4    producer_epoch       int32
    76     4    base_sequence        int32   counts records, modulo 2^31

A compacted batch (flag COMPACTED) replaces all batches of an offset range by their records that are still current. It
has no producer, and the last 16 bytes of its header are different:

    offset size field                meaning
    64     8    end_offset           int64   offset after the range, whose first offset is base_offset
    72     4    -                    int32   -1
    76     4    end_crc              uint32  chain value of the last batch that it replaces

The chain value of a batch is its `crc`, that of a compacted batch its `end_crc`: compaction changes neither the offsets
nor the chain of a log. Only logs have compacted batches; a leader refuses one that is produced.

Invariant (PROTOCOL I6, I17, H31, H32): every byte of a batch is part of a checksum or covered by one.
"""

import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import NamedTuple

import numpy as np

from headrace.wire.compression import Codec
from headrace.wire.crc import ReadableBuffer, crc32c
from headrace.wire.errors import BatchTooLargeError, CorruptBatchError, UnsupportedCodecError

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "MAX_BATCH_HEADERS",
    "MAX_COMPACTED_OFFSETS",
    "MAX_OFFSET",
    "MAX_RECORD_HEADERS",
    "MAX_TIMESTAMP_MS",
    "MIN_TIMESTAMP_MS",
    "NONE_REMOVED",
    "REMOVED_UNKNOWN",
    "STAMP_BYTES",
    "BatchFlags",
    "BatchHeader",
    "Codec",
    "RemovedRecords",
    "check_batch",
    "iter_batches",
    "read_header",
    "sequence_after",
    "sequence_distance",
    "stamp",
]

MAGIC = 1
HEADER_BYTES = 80
STAMP_BYTES = 32
CRC_START = 36
MAX_OFFSET = 2**63 - 1
MAX_RECORD_HEADERS = 1_000
MAX_BATCH_HEADERS = 1_000_000
MAX_COMPACTED_OFFSETS = 2**32 - 1
"""Maximum number of offsets of a compacted batch."""
MIN_TIMESTAMP_MS = -62_135_596_800_000
"""Start of the year 1, the earliest time that Python, pandas and Spark can represent."""
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""End of the year 9999."""
PADDING_SHIFT = 13
SEQUENCES = 2**31

_STAMPED_FIELDS, _CHECKED_FIELDS = "qqIiI", "BBHIIqqqii"
STAMP = struct.Struct(f"<{_STAMPED_FIELDS}")
"""The leader's fields without `stamp_crc`, which covers them."""
CHECKED = struct.Struct(f"<{_CHECKED_FIELDS}")
"""Header from CRC_START, which `crc` covers."""
HEADER = struct.Struct(f"<{_STAMPED_FIELDS}II{_CHECKED_FIELDS}")
STAMP_CRC_START = STAMP.size
assert STAMP_CRC_START + 4 == STAMP_BYTES
assert CRC_START + CHECKED.size == HEADER.size == HEADER_BYTES


class BatchFlags(IntFlag):
    """Columns of the payload, and the kind of batch. Bits 10-12 are reserved and zero; 13-15 are a number."""

    KEYS = 1
    NULL_VALUES = 2
    NULL_KEYS = 4
    RECORD_TIMESTAMPS = 8
    HEADERS = 16
    TRANSACTIONAL = 32
    CONTROL = 64
    COMPACTED = 128
    TYPED = 256
    REMOVED = 512


_KEYS = int(BatchFlags.KEYS)
_NULL_KEYS = int(BatchFlags.NULL_KEYS)
_TRANSACTIONAL = int(BatchFlags.TRANSACTIONAL)
_CONTROL = int(BatchFlags.CONTROL)
_RECORD_TIMESTAMPS = int(BatchFlags.RECORD_TIMESTAMPS)
_COMPACTED = int(BatchFlags.COMPACTED)
_TYPED = int(BatchFlags.TYPED)
_REMOVED = int(BatchFlags.REMOVED)
_UNTYPED = int(BatchFlags.NULL_VALUES | BatchFlags.CONTROL | BatchFlags.COMPACTED)
_RESERVED_FLAGS = ((1 << PADDING_SHIFT) - 1) & ~0x3FF
_CODECS = frozenset(int(codec) for codec in Codec)


class BatchHeader(NamedTuple):
    """The 80 bytes of the header, field by field; the module's table defines them."""

    base_offset: int
    append_timestamp_ms: int
    batch_bytes: int
    leader_epoch: int
    previous_crc: int
    stamp_crc: int
    crc: int
    magic: int
    codec: int
    flags: int
    record_count: int
    payload_bytes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def end_offset(self) -> int:
        """Offset after the batch, where the next one begins."""
        return self.producer_id if self.flags & _COMPACTED else self.base_offset + self.record_count

    @property
    def chain_crc(self) -> int:
        """Chain value, which is the `previous_crc` of the next batch."""
        return self.base_sequence & 0xFFFF_FFFF if self.flags & _COMPACTED else self.crc

    @property
    def is_compacted(self) -> bool:
        """Whether this is a compacted batch, whose producer fields have another meaning."""
        return bool(self.flags & _COMPACTED)

    @property
    def is_typed(self) -> bool:
        """Whether the values are rows of a typed topic, see `headrace.wire.typed.payload`."""
        return bool(self.flags & _TYPED)

    @property
    def padding_bytes(self) -> int:
        """Number of zero bytes after the stored payload, 0 to 7."""
        return self.flags >> PADDING_SHIFT


class RemovedRecords(NamedTuple):
    """Why records of a compacted batch are gone: what a state before that lacks."""

    newer_end: int
    """Offset below which their newer records are."""
    expired_ms: int
    """When the last of those that had expired did, in ms since 1970; `0` means that none had."""

    def joined(self, other: "RemovedRecords") -> "RemovedRecords":
        """Return the bounds of both."""
        return RemovedRecords(max(self.newer_end, other.newer_end), max(self.expired_ms, other.expired_ms))


NONE_REMOVED = RemovedRecords(0, 0)
REMOVED_UNKNOWN = RemovedRecords(MAX_OFFSET, 0)
"""Of a compacted batch of an earlier release."""

HEADER_DTYPE = np.dtype([(name, f"<{code}") for name, code in zip(BatchHeader._fields, HEADER.format[1:], strict=True)])
"""Header as a numpy dtype."""


def peek_header(head: bytes) -> BatchHeader:
    """Read a header without any check; missing bytes count as zeros."""
    return BatchHeader._make(HEADER.unpack_from(head.ljust(HEADER_BYTES, b"\0")))


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`; checks magic, size and count, but no checksum, nor that the batch is complete.

    Raises:
        CorruptBatchError: If fewer than 80 bytes are left, or this cannot be the header of a batch.
    """
    try:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    except struct.error as error:
        raise CorruptBatchError(f"at byte {position} fewer than {HEADER_BYTES} bytes are left of a batch") from error
    if header.magic != MAGIC:
        raise CorruptBatchError(f"magic {header.magic} is not {MAGIC}")
    if header.batch_bytes <= HEADER_BYTES or header.batch_bytes % 8:
        raise CorruptBatchError(f"batch_bytes {header.batch_bytes} is not a multiple of 8 over {HEADER_BYTES}")
    if header.flags & _COMPACTED:
        if not 0 <= header.base_offset < header.end_offset:
            raise CorruptBatchError(f"a compacted batch ends at {header.end_offset}, begins at {header.base_offset}")
    elif header.record_count < 1:
        raise CorruptBatchError("record_count is 0")
    elif not 0 <= header.base_offset <= MAX_OFFSET - header.record_count:
        raise CorruptBatchError(f"base_offset {header.base_offset} is out of range")
    return header


def check_batch(
    batch: ReadableBuffer, *, max_batch_bytes: int, max_records: int, max_payload_bytes: int
) -> BatchHeader:
    """Check that `batch` is exactly one complete, valid batch within the limits, and return its header.

    The broker calls it once for every produced batch, a reader for every fetched one. It checks both checksums and the
    relations between the header's fields, but no columns: it decompresses nothing.

    Args:
        batch: the bytes of one batch.
        max_batch_bytes: maximum of `batch_bytes`.
        max_records: maximum of `record_count`.
        max_payload_bytes: maximum of `payload_bytes`.

    Raises:
        BatchTooLargeError: If it is valid, but exceeds one of the limits.
        UnsupportedCodecError: If it is valid, but has an unknown codec.
        CorruptBatchError: Otherwise; `base_offset` and `next_offset` are set if a checksum covers them.
    """
    header = read_header(batch)
    view = memoryview(batch).cast("B")
    if header.batch_bytes != len(view):
        raise CorruptBatchError(f"batch_bytes is {header.batch_bytes}, but {len(view)} bytes came")
    if header.batch_bytes > max_batch_bytes:
        raise BatchTooLargeError(f"a batch of {header.batch_bytes} bytes exceeds the limit of {max_batch_bytes}")
    if crc32c(view[:STAMP_CRC_START]) != header.stamp_crc:
        raise CorruptBatchError("the stamp's checksum is wrong")
    if crc32c(view[CRC_START:]) != header.crc:
        raise CorruptBatchError("the batch's checksum is wrong", base_offset=header.base_offset)
    check_fields(view, header, max_records=max_records, max_payload_bytes=max_payload_bytes)
    return header


def check_fields(batch: ReadableBuffer, header: BatchHeader, *, max_records: int, max_payload_bytes: int) -> None:
    """Check what `check_batch` does besides size and checksums; raise as it does."""
    if header.codec not in _CODECS:
        raise UnsupportedCodecError(f"codec {header.codec} is not known to this version")
    if header.record_count > max_records:
        raise BatchTooLargeError(f"a batch of {header.record_count} records exceeds the limit of {max_records}")
    if header.payload_bytes > max_payload_bytes:
        raise BatchTooLargeError(f"a payload of {header.payload_bytes} bytes exceeds the limit of {max_payload_bytes}")
    wrong = _wrong_relation(header)
    if not wrong and header.padding_bytes and any(memoryview(batch)[-header.padding_bytes :]):
        wrong = "the final padding is not zero"
    if wrong:
        raise CorruptBatchError(wrong, base_offset=header.base_offset, next_offset=header.end_offset)


def _wrong_relation(header: BatchHeader) -> str:
    """Return the violated relation between the header's fields; empty if there is none."""
    flags = header.flags
    stored_bytes = header.batch_bytes - HEADER_BYTES - header.padding_bytes
    if flags & _RESERVED_FLAGS:
        return f"reserved flags are set: {flags & _RESERVED_FLAGS:#06x}"
    if flags & _REMOVED and not flags & _COMPACTED:
        return "removed records are flagged without compaction"
    if flags & _NULL_KEYS and not flags & _KEYS:
        return "null keys are flagged without keys"
    if flags & _TYPED and flags & _UNTYPED:
        return "a typed batch has null values, control records, or is compacted"
    if 4 * (header.record_count + 1) > header.payload_bytes and not flags & _TYPED:
        return f"{header.record_count} records cannot be in a payload of {header.payload_bytes} bytes"
    if stored_bytes < 1:
        return "there is no payload"
    if header.codec == Codec.NONE and stored_bytes != header.payload_bytes:
        return f"payload_bytes is {header.payload_bytes}, but {stored_bytes} bytes are stored"
    if header.max_timestamp_ms < header.base_timestamp_ms:
        return "max_timestamp_ms is before base_timestamp_ms"
    if not flags & _RECORD_TIMESTAMPS and header.max_timestamp_ms != header.base_timestamp_ms:
        return "max_timestamp_ms differs from base_timestamp_ms without per-record timestamps"
    return _wrong_producer(header)


def _wrong_producer(header: BatchHeader) -> str:
    if header.leader_epoch < -1:
        return f"leader_epoch {header.leader_epoch} is out of range"
    if header.flags & _COMPACTED:
        return _wrong_range(header)
    if header.producer_id < -1:
        return f"producer_id {header.producer_id} is out of range"
    if header.producer_id == -1 and (header.producer_epoch != -1 or header.base_sequence != -1):
        return "producer_epoch or base_sequence is given without producer_id"
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        return "producer_id is given without producer_epoch or base_sequence"
    if header.flags & _TRANSACTIONAL and header.producer_id < 0:
        return "a transactional batch has no producer_id"
    return ""


def _wrong_range(header: BatchHeader) -> str:
    """Return the violated relation between the fields of a compacted batch."""
    if header.producer_epoch != -1:
        return "a compacted batch has a producer_epoch"
    if header.flags & (_TRANSACTIONAL | _CONTROL):
        return "a compacted batch is transactional, or has control records"
    if header.end_offset - header.base_offset > MAX_COMPACTED_OFFSETS:
        return f"a compacted batch has more than {MAX_COMPACTED_OFFSETS} offsets"
    if header.record_count > header.end_offset - header.base_offset:
        return f"{header.record_count} records are in {header.end_offset - header.base_offset} offsets"
    return ""


def stamp(
    batch_header: BatchHeader, *, base_offset: int, append_timestamp_ms: int, leader_epoch: int, previous_crc: int
) -> bytes:
    """Return the 32 bytes with which the leader replaces the batch's first 32.

    The caller writes `[stamp, memoryview(batch)[32:]]`; the batch itself is not copied.
    """
    head = STAMP.pack(base_offset, append_timestamp_ms, batch_header.batch_bytes, leader_epoch, previous_crc)
    return head + crc32c(head).to_bytes(4, "little")


def iter_batches(buffer: ReadableBuffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield consecutive whole batches, as in a fetch response; reads headers only.

    Raises:
        CorruptBatchError: For an invalid header, or a batch that ends beyond the buffer; the batches before it were
            yielded.
    """
    view = memoryview(buffer).cast("B")
    position = 0
    while position < len(view):
        header = read_header(view, position)
        end = position + header.batch_bytes
        if end > len(view):
            raise CorruptBatchError(
                f"the batch at byte {position} has {header.batch_bytes} bytes, but {len(view) - position} are left"
            )
        yield header, view[position:end]
        position = end


def sequence_after(sequence: int, records: int) -> int:
    """Return the sequence that follows `records` records starting at `sequence`, modulo 2^31."""
    return (sequence + records) % SEQUENCES


def sequence_distance(start: int, end: int) -> int:
    """Return the distance from `start` to `end`, in -2^30 .. 2^30 - 1; negative if `end` comes before."""
    return (end - start + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2
