"""Payload of a record batch: columns in Arrow's buffer layout, which Arrow and Spark read without a copy.

Columns are in this order, little-endian, each buffer starting at a multiple of 8 from the payload's start, gaps zero;
the payload ends with its last buffer, without a gap. `n` is the header's record_count, `m` the number of all headers of
the batch.

    buffer                size            present                   meaning
    value_offsets         int32[n + 1]    always                    record i is value_data[o[i] : o[i + 1]]
    value_data            o[n] bytes      always                    the values, concatenated
    value_validity        (n + 7) // 8    flag NULL_VALUES          bit i (least significant first): 1 a value, 0 null
    key_offsets           int32[n + 1]    flag KEYS                 as for the values
    key_data              o[n] bytes      flag KEYS
    key_validity          (n + 7) // 8    flags KEYS, NULL_KEYS
    timestamps_ms         int64[n]        flag RECORD_TIMESTAMPS    ms since 1970; else all have the base timestamp
    header_list_offsets   int32[n + 1]    flag HEADERS              record i has the headers o[i] .. o[i + 1]; o[n] = m
    header_key_offsets    int32[m + 1]    flag HEADERS
    header_key_data       o[m] bytes      flag HEADERS              UTF-8
    header_value_offsets  int32[m + 1]    flag HEADERS
    header_value_data     o[m] bytes      flag HEADERS              never null
    record_offsets        uint32[n]       flag COMPACTED            base_offset + o[i] is the offset of record i
    removed               int64[2]        flag REMOVED              offset below which the newer records of removed
                                                                    ones are; ms since 1970 when the last removed one
                                                                    that had expired did, 0 for none

record_offsets ascend strictly, and end before the batch's end_offset; without them record i has the offset
base_offset + i. Other offsets start at 0 and ascend. Validity is present if and only if its flag is set; bits past n
are zero; bytes of a null entry have no meaning. The smallest and the greatest of timestamps_ms are the header's
base_timestamp_ms and max_timestamp_ms, both within the years 1 to 9999. A record has at most 1,000 headers, a batch
1,000,000. A compressed payload decompresses to at most 1,000 times its stored bytes. The window of a zstd frame is
at most 8 MiB, or the payload's size rounded up to a power of two if that is more.

Producers encode. A leader checks the columns of a batch before it appends it (`check_columns`). Readers decode, and
repeat the checks. `encode_batch` is in `headrace.wire.encoding`, the result of `decode_batch` in
`headrace.wire.decoded`; both are re-exported here.
"""

import codecs
import struct
from operator import le
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.wire.batch import (
    HEADER_BYTES,
    MAX_BATCH_HEADERS,
    MAX_RECORD_HEADERS,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    STAMP_CRC_START,
    BatchFlags,
    BatchHeader,
    RemovedRecords,
    read_header,
)
from headrace.wire.compression import MAX_RATIO, Codec, decompress
from headrace.wire.crc import ReadableBuffer, crc32c
from headrace.wire.decoded import BinaryColumn, Columns, HeaderColumns, Int32s, Int64s
from headrace.wire.encoding import encode_batch, encode_columns
from headrace.wire.errors import CorruptBatchError
from headrace.wire.typed.payload import Directory, block_of, check_blocks, check_whole, read_directory
from headrace.wire.typed.selection import ColumnSelection
from headrace.wire.typed.typed_columns import TypedColumns

__all__ = [
    "Columns",
    "check_columns",
    "decode_batch",
    "decode_selected",
    "encode_batch",
    "encode_columns",
    "is_part",
]

_FEW_RECORDS = 16
"""Number of records up to which a loop over the offsets is faster than numpy."""
_PIECE_BYTES = 1 << 20
_Utf8 = codecs.getincrementaldecoder("utf-8")
_KEYS = int(BatchFlags.KEYS)
_NULL_VALUES = int(BatchFlags.NULL_VALUES)
_NULL_KEYS = int(BatchFlags.NULL_KEYS)
_RECORD_TIMESTAMPS = int(BatchFlags.RECORD_TIMESTAMPS)
_HEADERS = int(BatchFlags.HEADERS)
_COMPACTED = int(BatchFlags.COMPACTED)
_TYPED = int(BatchFlags.TYPED)
_REMOVED = int(BatchFlags.REMOVED)
_COLUMN_FLAGS = _KEYS | _NULL_VALUES | _NULL_KEYS | _RECORD_TIMESTAMPS | _HEADERS | _COMPACTED


def decode_batch(batch: ReadableBuffer, *, max_payload_bytes: int) -> Columns:
    """Decompress a batch within the limit and check its columns; no loop over records.

    `check_batch` verifies checksums; without it the bytes may be wrong, but are never out of range.

    Args:
        batch: one whole batch, 8-aligned.
        max_payload_bytes: maximum size after decompression.

    Raises:
        CorruptBatchError: Has `base_offset`, and `next_offset` from which a reader may continue.
        UnsupportedCodecError: If the codec's package is not installed; install the extra that the message names.
    """
    return _decode(batch, read_header(batch), max_payload_bytes)


def check_columns(
    batch: ReadableBuffer, header: BatchHeader, *, max_payload_bytes: int, directory: Directory | None = None
) -> None:
    """Check that every reader can decode `batch`: the checks of `decode_batch`, and the compression ratio.

    A leader calls it after `check_batch`. No loop over records; only header names are copied of an uncompressed batch.

    Args:
        batch: one whole batch, 8-aligned.
        header: its header.
        max_payload_bytes: maximum size after decompression.
        directory: that of a typed batch, if the caller has read it.

    Raises:
        CorruptBatchError: If the columns violate the format, or the compression ratio is too high.
        UnsupportedCodecError: If the codec's package is not installed here.
    """
    if header.codec != Codec.NONE and not header.flags & _TYPED:
        stored_bytes = header.batch_bytes - HEADER_BYTES - header.padding_bytes
        if header.payload_bytes > MAX_RATIO * stored_bytes:
            raise CorruptBatchError(
                f"a payload of {header.payload_bytes} bytes is more than {MAX_RATIO:,} times the {stored_bytes} stored",
                action="Send it uncompressed.",
            )
    elif not header.flags & (_COLUMN_FLAGS | _TYPED) and _is_plain_sound(batch, header):
        return
    _decode(batch, header, max_payload_bytes, with_blocks=True, directory=directory)


def _is_plain_sound(batch: ReadableBuffer, header: BatchHeader) -> bool:
    """Return whether a batch that has only values is valid; faster than `_decode`, which states the error."""
    count = header.record_count
    end = HEADER_BYTES + 4 * (count + 1)
    gap = -end % 8
    if count <= _FEW_RECORDS:
        few = struct.unpack_from(f"<{count + 1}i", batch, HEADER_BYTES)
        first, last, ascend = few[0], few[-1], all(map(le, few, few[1:]))
    else:
        offsets = np.frombuffer(batch, "<i4", count + 1, HEADER_BYTES)
        first, last, ascend = int(offsets[0]), int(offsets[-1]), not (offsets[1:] < offsets[:-1]).any()
    return (
        first == 0
        and ascend
        and end - HEADER_BYTES + gap + last == header.payload_bytes
        and not any(memoryview(batch)[end : end + gap])
        and header.base_timestamp_ms >= MIN_TIMESTAMP_MS
        and header.max_timestamp_ms <= MAX_TIMESTAMP_MS
    )


def _decode(
    batch: ReadableBuffer,
    header: BatchHeader,
    max_payload_bytes: int,
    *,
    with_blocks: bool = False,
    directory: Directory | None = None,
) -> Columns:
    """Decode a batch; `with_blocks` checks the checksum of every block of a typed one, too."""
    view = memoryview(batch).cast("B")
    end = header.batch_bytes - header.padding_bytes
    try:
        if header.batch_bytes != len(view):
            raise CorruptBatchError(f"batch_bytes is {header.batch_bytes}, but {len(view)} bytes came")
        if 4 * (header.record_count + 1) > header.payload_bytes and not header.flags & _TYPED:
            raise CorruptBatchError(f"{header.record_count} records cannot be in {header.payload_bytes} bytes")
        if header.base_timestamp_ms < MIN_TIMESTAMP_MS or header.max_timestamp_ms > MAX_TIMESTAMP_MS:
            raise CorruptBatchError(
                f"timestamps {header.base_timestamp_ms} .. {header.max_timestamp_ms} ms are outside the years 1 to 9999"
            )
        if header.flags & _TYPED:
            directory = directory or read_directory(view, header)
            check_whole(header, directory)
            if with_blocks:
                check_blocks(view, header, directory)
            return _decode_typed(view[:end], header, directory, max_payload_bytes)
        payload = decompress(header.codec, view[HEADER_BYTES:end], header.payload_bytes, max_payload_bytes)
        return _read_columns(header, _PayloadReader(payload))
    except CorruptBatchError as error:
        error.base_offset, error.next_offset = header.base_offset, header.end_offset
        raise


def is_part(batch: ReadableBuffer) -> bool:
    """Return whether this is the part of a typed batch that a broker sends for a selection.

    Raises:
        CorruptBatchError: If the header or the directory is damaged.
    """
    header = read_header(batch)
    if not header.flags & _TYPED:
        return False
    directory = read_directory(batch, header)
    return directory.stored_bytes != header.batch_bytes - HEADER_BYTES - header.padding_bytes


def decode_selected(batch: ReadableBuffer, selection: ColumnSelection, *, max_payload_bytes: int) -> Columns:
    """Decode a batch, or the part of it that a broker has sent for a selection; see `decode_batch`.

    Of a part, all that a reader uses is checked here: the checksums of the stamp, of the directory and of the blocks.

    Raises:
        CorruptBatchError: As `decode_batch`, also if the part is another one than selected. It has no `next_offset` if
            a checksum is wrong: another replica may have the batch undamaged.
        UnsupportedCodecError: If the codec's package is not installed.
    """
    header = read_header(batch)
    view = memoryview(batch).cast("B")
    if header.batch_bytes != len(view) or crc32c(view[:STAMP_CRC_START]) != header.stamp_crc:
        raise CorruptBatchError("the stamp's checksum, or the size of the part, is wrong")
    directory = read_directory(view, header)
    stored = _selected_blocks(view, header, directory, selection)
    try:
        return _decode_part(header, directory, stored, max_payload_bytes)
    except CorruptBatchError as error:
        error.base_offset, error.next_offset = header.base_offset, header.end_offset
        raise


def _selected_blocks(
    view: memoryview, header: BatchHeader, directory: Directory, selection: ColumnSelection
) -> list[memoryview | None]:
    """Return the stored blocks of a part and its rest, whose checksums are right; `None` for what was not selected."""
    stored: list[memoryview | None] = []
    position = HEADER_BYTES + directory.size
    for is_wanted, entry in zip(selection.wanted(header, directory), (*directory.entries, directory.rest), strict=True):
        end = position + entry.stored_bytes
        stored.append(view[position:end] if is_wanted else None)
        position += is_wanted * (entry.stored_bytes + -entry.stored_bytes % 8)
    if position != len(view):
        raise CorruptBatchError(f"a part of {len(view)} bytes came, not the {position} of the selected columns")
    names = [f"column {column.name}" for column in directory.columns.columns]
    for name, block, entry in zip((*names, "the rest"), stored, (*directory.entries, directory.rest), strict=True):
        if block is not None and crc32c(block) != entry.block_crc:
            raise CorruptBatchError(f"{name}: the block's checksum is wrong", base_offset=header.base_offset)
    return stored


def _decode_part(
    header: BatchHeader, directory: Directory, stored: list[memoryview | None], max_payload_bytes: int
) -> Columns:
    *blocks, rest = stored
    values = TypedColumns(header, directory, blocks, max_payload_bytes)
    if rest is None:
        return Columns(header, values, None, None, None)
    plain = block_of(rest, directory.rest, header.codec, max_payload_bytes)
    return _read_columns(header, _PayloadReader(plain), values)


def _decode_typed(view: memoryview, header: BatchHeader, directory: Directory, max_payload_bytes: int) -> Columns:
    """Decode a typed batch but for its blocks, which are decoded on first use."""
    if header.payload_bytes > max_payload_bytes:
        raise CorruptBatchError(f"a payload of {header.payload_bytes} bytes exceeds the limit of {max_payload_bytes}")
    *blocks, rest = [view[HEADER_BYTES + start : HEADER_BYTES + end] for start, end in directory.spans()]
    values = TypedColumns(header, directory, blocks, max_payload_bytes)
    plain = block_of(rest, directory.rest, header.codec, max_payload_bytes)
    return _read_columns(header, _PayloadReader(plain), values)


def _read_columns(header: BatchHeader, reader: "_PayloadReader", typed: TypedColumns | None = None) -> Columns:
    count, flags = header.record_count, header.flags
    values = typed or reader.column("value", count, nullable=bool(flags & _NULL_VALUES))
    keys = reader.column("key", count, nullable=bool(flags & _NULL_KEYS)) if flags & _KEYS else None
    timestamps_ms = None
    if flags & _RECORD_TIMESTAMPS:
        timestamps_ms = reader.array("timestamps_ms", np.dtype("<i8"), count)
        span = (timestamps_ms.min(), timestamps_ms.max()) if count else None
        if span != (header.base_timestamp_ms, header.max_timestamp_ms):
            _corrupt("timestamps_ms", "do not span base_timestamp_ms to max_timestamp_ms")
    header_columns = reader.headers(count) if flags & _HEADERS else None
    record_offsets = reader.record_offsets(header) if flags & _COMPACTED else None
    removed = reader.removed() if flags & _REMOVED else None
    reader.finish()
    return Columns(header, values, keys, timestamps_ms, header_columns, record_offsets, removed)


class _PayloadReader:
    """Takes buffers off a payload in order, each checked against the remaining bytes."""

    def __init__(self, payload: bytes | memoryview) -> None:
        self._payload = memoryview(payload)
        self._position = 0

    def _take(self, name: str, size: int) -> memoryview:
        start = -(-self._position // 8) * 8
        if start + size > len(self._payload):
            _corrupt(name, f"needs {size} bytes at {start}, past the payload's {len(self._payload)}")
        if any(self._payload[self._position : start]):
            _corrupt(name, "follows a gap that is not zero")
        self._position = start + size
        return self._payload[start : self._position]

    def array(self, name: str, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._take(name, count * dtype.itemsize), dtype, count)

    def offsets(self, name: str, count: int) -> Int32s:
        offsets = self.array(name, np.dtype("<i4"), count + 1)
        if offsets[0] != 0:
            _corrupt(name, f"start at {offsets[0]}, not at 0")
        if (offsets[1:] < offsets[:-1]).any():
            _corrupt(name, "do not ascend")
        return offsets

    def column(self, name: str, count: int, *, nullable: bool) -> BinaryColumn:
        offsets = self.offsets(f"{name}_offsets", count)
        data = self._take(f"{name}_data", int(offsets[-1]))
        if not nullable:
            return BinaryColumn(offsets, data, None)
        validity = self.array(f"{name}_validity", np.dtype(np.uint8), (count + 7) // 8)
        if count % 8 and validity[-1] >> (count % 8):
            _corrupt(f"{name}_validity", "has bits past the last record")
        return BinaryColumn(offsets, data, validity)

    def headers(self, count: int) -> HeaderColumns:
        list_offsets = self.offsets("header_list_offsets", count)
        headers = int(list_offsets[-1])
        if headers > MAX_BATCH_HEADERS:
            _corrupt("header_list_offsets", f"count {headers} headers, above the limit of {MAX_BATCH_HEADERS} a batch")
        if headers > MAX_RECORD_HEADERS and (most := int(np.diff(list_offsets).max())) > MAX_RECORD_HEADERS:
            _corrupt("header_list_offsets", f"give a record {most} headers, above the limit of {MAX_RECORD_HEADERS}")
        keys = self.column("header_key", headers, nullable=False)
        _check_utf8(keys)
        return HeaderColumns(list_offsets, keys, self.column("header_value", headers, nullable=False))

    def record_offsets(self, header: BatchHeader) -> Int64s:
        offsets = self.array("record_offsets", np.dtype("<u4"), header.record_count).astype(np.int64)
        if len(offsets) and ((np.diff(offsets) < 1).any() or offsets[-1] >= header.end_offset - header.base_offset):
            _corrupt("record_offsets", "do not ascend to the batch's end")
        return offsets + header.base_offset

    def removed(self) -> RemovedRecords:
        removed = RemovedRecords(*self.array("removed", np.dtype("<i8"), 2).tolist())
        if min(removed) < 0:
            _corrupt("removed", "is negative")
        return removed

    def finish(self) -> None:
        if self._position != len(self._payload):
            _corrupt("payload", f"has {len(self._payload) - self._position} bytes more than its columns")


def _check_utf8(column: BinaryColumn) -> None:
    """Check that every entry is UTF-8: all bytes together are, and no entry starts within a character."""
    decoder = _Utf8()
    try:
        for start in range(0, len(column.data), _PIECE_BYTES):  # As a str it may be four times as large.
            decoder.decode(column.data[start : start + _PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise CorruptBatchError("header_key_data: is not UTF-8") from error
    starts = column.offsets[column.offsets < len(column.data)]
    if ((np.frombuffer(column.data, np.uint8)[starts] & 0xC0) == 0x80).any():
        _corrupt("header_key_offsets", "cut a UTF-8 character")


def _corrupt(name: str, what: str) -> NoReturn:
    raise CorruptBatchError(f"{name}: {what}")
