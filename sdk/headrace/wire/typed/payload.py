"""Payload of a typed batch (flag TYPED): a directory, one block for each column, and the rest of the records.

    part         size                 meaning
    directory    directory_bytes      what the blocks are
    blocks       stored_bytes each    one for each column of columns_text, in its order
    rest         rest_stored_bytes    the columns of `headrace.wire.columns` after the values: keys, timestamps_ms and
                                      headers; empty if there is none

Blocks start at multiples of 8 from the payload's start; gaps are zero. The batch's codec compresses each block and the
rest by itself; one that does not shrink is stored as it is, which its sizes tell. The header's payload_bytes is the
payload's size with every block and the rest uncompressed. The directory:

    offset size field                meaning
     0     4    directory_crc        uint32  CRC32C of bytes 36 .. 64 of the batch, and of the directory from byte 4
     4     4    directory_bytes      uint32  a multiple of 8
     8     4    text_bytes           uint32  bytes of columns_text
    12     4    column_count         uint32  1 to 1,000
    16     4    rest_stored_bytes    uint32
    20     4    rest_bytes           uint32  before compression
    24     4    rest_crc             uint32  CRC32C of the stored bytes
    28     4    -                    uint32  0
    32     40c  entries                      one for each of the c columns
    32+40c      columns_text                 UTF-8, see `headrace.wire.typed.topic_columns`; then zeros

    offset size field of an entry    meaning
     0     4    stored_bytes         uint32
     4     4    block_bytes          uint32  before compression
     8     4    block_crc            uint32  CRC32C of the stored bytes
    12     4    null_count           uint32
    16     1    bounds               uint8   kind of the two bounds: 0 none, 1 int64, 2 uint64, 3 double, 4 text
    17     7    -                            0
    24     8    minimum                      of the values that are neither null nor NaN
    32     8    maximum                      the same

Bounds of kind text are the first 8 bytes of a string or a binary, padded with zeros; a value is cut in the same way
before it is compared. Kind 1 has also booleans, dates, times, durations and timestamps as Arrow stores them.

A block is the Arrow array of the column: uint32 sizes of its buffers, then zeros up to a multiple of 8, then the
buffers, each padded to a multiple of 8. Buffers are those of Arrow's columnar format, depth first: validity (of size 0
if nothing is null), then offsets or values, then those of the children.

The directory and every block have a checksum of their own, so that a broker may send a part of a batch, see
`headrace.wire.typed.selection`.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from headrace.wire.batch import CRC_START, HEADER_BYTES, BatchFlags, BatchHeader
from headrace.wire.compression import MAX_RATIO, Codec, compress, decompress
from headrace.wire.crc import ReadableBuffer, crc32c
from headrace.wire.errors import CorruptBatchError, HeadraceError
from headrace.wire.typed.topic_columns import MAX_COLUMNS, TopicColumns, parse_columns

HEAD = struct.Struct("<8I")
ENTRY = struct.Struct("<IIIIB7x8s8s")
NO_BOUNDS, INT64, UINT64, DOUBLE, TEXT = range(5)
_REST_FLAGS = int(BatchFlags.KEYS | BatchFlags.RECORD_TIMESTAMPS | BatchFlags.HEADERS)
_COVERED_END = 64
"""End of the header's fields that the directory's CRC covers: not those of the producer, which may change later."""
_ZEROS = bytes(8)


class ColumnBlock(NamedTuple):
    """Encoded column, not compressed."""

    parts: list[ReadableBuffer]
    size: int
    """Bytes of the parts."""
    null_count: int
    bounds: int = NO_BOUNDS
    """Kind of the bounds."""
    minimum: bytes = _ZEROS
    maximum: bytes = _ZEROS


class Entry(NamedTuple):
    """Entry of the directory."""

    stored_bytes: int
    block_bytes: int
    block_crc: int
    null_count: int
    bounds: int
    minimum: bytes
    maximum: bytes


@dataclass(frozen=True, slots=True)
class Directory:
    """Directory of a typed batch: immutable, any thread."""

    text: str
    """The columns, see `columns`."""
    entries: tuple[Entry, ...]
    size: int
    """Bytes of the directory."""
    rest: Entry
    """The columns after the blocks; bounds have no meaning."""

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of the payload."""
        blocks = sum(_padded(entry.stored_bytes) for entry in self.entries)
        return self.size + blocks + self.rest.stored_bytes

    @property
    def columns(self) -> TopicColumns:
        """Columns of the batch, in the order of the blocks."""
        return parse_columns(self.text)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each block and of the rest, in bytes from the payload's start."""
        position = self.size
        for entry in (*self.entries, self.rest):
            yield position, position + entry.stored_bytes
            position += _padded(entry.stored_bytes)


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def typed_parts(
    text: str, blocks: Sequence[ColumnBlock], rest: Sequence[ReadableBuffer], codec: Codec, level: int | None
) -> tuple[list[ReadableBuffer], int, int]:
    """Return the payload in parts, its stored bytes and its bytes before compression.

    The first part is the directory, whose CRC `seal` writes once the header is known.
    """
    encoded = text.encode()
    size = _padded(HEAD.size + ENTRY.size * len(blocks) + len(encoded))
    entries: list[bytes] = []
    parts: list[ReadableBuffer] = []
    stored = plain = size
    for block in blocks:
        packed, kept = _packed(block.parts, block.size, codec, level)
        bounds = block.bounds, block.minimum, block.maximum
        entries.append(ENTRY.pack(kept, block.size, _crc(packed), block.null_count, *bounds))
        parts += packed
        if gap := -kept % 8:
            parts.append(_ZEROS[:gap])
        stored += kept + gap
        plain += block.size + -block.size % 8
    rest_bytes = sum(map(len, rest))
    packed, kept = _packed(rest, rest_bytes, codec, level)
    head = HEAD.pack(0, size, len(encoded), len(blocks), kept, rest_bytes, _crc(packed), 0)
    directory = bytearray(b"".join((head, *entries, encoded)).ljust(size, b"\0"))
    return [directory, *parts, *packed], stored + kept, plain + rest_bytes


def seal(directory: ReadableBuffer, checked_header: bytes) -> None:
    """Write the CRC of a directory. `checked_header` are the bytes 36 to 80 of the batch."""
    assert isinstance(directory, bytearray)
    directory[:4] = crc32c(memoryview(directory)[4:], crc32c(checked_header[: _COVERED_END - CRC_START])).to_bytes(
        4, "little"
    )


def _packed(
    parts: Sequence[ReadableBuffer], size: int, codec: Codec, level: int | None
) -> tuple[Sequence[ReadableBuffer], int]:
    """Return the stored parts of a block and their bytes: compressed if that is smaller."""
    if codec is not Codec.NONE and size:
        packed = compress(codec, b"".join(parts), level)
        if len(packed) < size <= MAX_RATIO * len(packed):
            return [packed], len(packed)
    return parts, size


def _crc(parts: Sequence[ReadableBuffer]) -> int:
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return crc


def read_directory(batch: ReadableBuffer, header: BatchHeader) -> Directory:
    """Read and check the directory of a typed batch: its CRC, its sizes and its text.

    Args:
        batch: the batch, or a part of it that has the directory.
        header: its header.

    Raises:
        CorruptBatchError: If anything is wrong.
    """
    view = memoryview(batch).cast("B")
    payload = view[HEADER_BYTES:]
    if len(payload) < HEAD.size:
        raise CorruptBatchError("directory: it is cut off")
    crc, size, text_bytes, count, rest_stored, rest_bytes, rest_crc, reserved = HEAD.unpack_from(payload)
    entries_end = HEAD.size + ENTRY.size * count
    if not 1 <= count <= MAX_COLUMNS or size != _padded(entries_end + text_bytes) or size > len(payload):
        raise CorruptBatchError(f"directory: {size} bytes with {count} columns and {text_bytes} bytes of text")
    if crc32c(payload[4:size], crc32c(view[CRC_START:_COVERED_END])) != crc:
        raise CorruptBatchError("directory: the checksum is wrong")
    if reserved or any(payload[entries_end + text_bytes : size]):
        raise CorruptBatchError("directory: reserved bytes are not zero")
    text = _text(bytes(payload[entries_end : entries_end + text_bytes]), count)
    entries = tuple(map(Entry._make, ENTRY.iter_unpack(payload[HEAD.size : entries_end])))
    directory = Directory(text, entries, size, Entry(rest_stored, rest_bytes, rest_crc, 0, 0, _ZEROS, _ZEROS))
    _check_sizes(directory, header)
    return directory


@lru_cache(256)
def _text(encoded: bytes, count: int) -> str:
    """Return the text of columns, of which there must be `count`, with ids, none of them dropped."""
    try:
        text = encoded.decode()
        columns = parse_columns(text)
    except (UnicodeDecodeError, HeadraceError) as error:
        raise CorruptBatchError(f"columns_text: {error}") from error
    if len(columns.current) != count or len(columns.columns) != count or not all(each.id for each in columns.columns):
        raise CorruptBatchError(f"columns_text: it has not {count} columns with ids: {text[:200]!r}")
    return text


def _check_sizes(directory: Directory, header: BatchHeader) -> None:
    plain = directory.size
    for entry in (*directory.entries, directory.rest):
        if entry.stored_bytes > entry.block_bytes:
            raise CorruptBatchError(f"directory: {entry.stored_bytes} bytes are stored of {entry.block_bytes}")
        if entry.stored_bytes < entry.block_bytes and header.codec == Codec.NONE:
            raise CorruptBatchError("directory: a block is compressed, but the batch has no codec")
        if entry.null_count > header.record_count or entry.bounds > TEXT:
            raise CorruptBatchError(f"directory: {entry.null_count} nulls, bounds of kind {entry.bounds}")
        plain += entry.block_bytes + -entry.block_bytes % 8
    plain -= -directory.rest.block_bytes % 8
    if plain != header.payload_bytes:
        raise CorruptBatchError(f"directory: the blocks have {plain} bytes before compression")
    if bool(header.flags & _REST_FLAGS) != bool(directory.rest.block_bytes):
        raise CorruptBatchError(f"directory: the rest has {directory.rest.block_bytes} bytes, flags {header.flags:#x}")


def check_whole(header: BatchHeader, directory: Directory) -> None:
    """Raise `CorruptBatchError` if the batch has not the size that its directory states."""
    stored = header.batch_bytes - HEADER_BYTES - header.padding_bytes
    if directory.stored_bytes != stored:
        raise CorruptBatchError(f"directory: {directory.stored_bytes} bytes, but {stored} are stored")


def check_blocks(batch: ReadableBuffer, header: BatchHeader, directory: Directory) -> None:
    """Check the checksum and the compression ratio of every block, and the gaps: what a leader does once.

    `check_whole` comes first.

    Raises:
        CorruptBatchError: If one is wrong; the message names the column.
    """
    payload = memoryview(batch).cast("B")[HEADER_BYTES:]
    names = [column.name for column in directory.columns.columns]
    for name, entry, (start, end) in zip(
        (*names, "the rest"), (*directory.entries, directory.rest), directory.spans(), strict=True
    ):
        if crc32c(payload[start:end]) != entry.block_crc:
            raise CorruptBatchError(f"{name}: the block's checksum is wrong")
        if entry.block_bytes > MAX_RATIO * entry.stored_bytes:
            raise CorruptBatchError(
                f"{name}: {entry.block_bytes} bytes are more than {MAX_RATIO:,} times the {entry.stored_bytes} stored",
                action="Send it uncompressed.",
            )
        if end % 8 and any(payload[end : end + -end % 8]):
            raise CorruptBatchError(f"{name}: the block is followed by a gap that is not zero")


def block_of(stored: memoryview, entry: Entry, codec: int, max_payload_bytes: int) -> bytes | memoryview:
    """Return a block without its compression, after a check of its CRC.

    Raises:
        CorruptBatchError: If the checksum is wrong, or it does not decompress to its size.
        UnsupportedCodecError: If the codec's package is not installed.
    """
    if crc32c(stored) != entry.block_crc:
        raise CorruptBatchError("the block's checksum is wrong")
    used = codec if entry.stored_bytes < entry.block_bytes else int(Codec.NONE)
    return decompress(used, stored, entry.block_bytes, max_payload_bytes)
