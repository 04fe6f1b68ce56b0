"""Selection of columns and of ranges of their values: what a reader of a typed topic asks a broker for.

A broker answers with a part of each batch: its header with another stamp (`batch_bytes` is the size of the part), the
directory, and the blocks of the wanted columns. Of a batch that can have no row in the ranges it sends the header and
the directory. The reader verifies the checksums of the stamp, of the directory and of the blocks.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.wire.batch import HEADER_BYTES, STAMP_BYTES, BatchHeader, read_header, stamp
from headrace.wire.errors import CorruptBatchError
from headrace.wire.typed.payload import DOUBLE, HEAD, INT64, NO_BOUNDS, UINT64, Directory, Entry, read_directory

MAX_RANGES = 16
"""Maximum ranges of a selection. A reader with more sends the first ones, by which batches are skipped."""
HEAD_BYTES = 16 << 10
"""Bytes read for the header and the directory of a batch; more if the directory is larger."""
_UNPACK: dict[int, Callable[[bytes], Any]] = {
    INT64: lambda bound: struct.unpack("<q", bound)[0],
    UINT64: lambda bound: struct.unpack("<Q", bound)[0],
    DOUBLE: lambda bound: struct.unpack("<d", bound)[0],
}


class ColumnRange(NamedTuple):
    """Range of the values of a column, both ends included."""

    column_id: int
    bounds: int
    """Kind of the ends, as in the directory."""
    minimum: bytes
    maximum: bytes

    def excludes(self, entry: Entry, count: int) -> bool:
        """Return whether none of the `count` values of a block can be in the range."""
        if entry.null_count == count:
            return True
        if entry.bounds == NO_BOUNDS or entry.bounds != self.bounds:
            return False
        unpack = _UNPACK.get(self.bounds, bytes)
        return bool(unpack(entry.maximum) < unpack(self.minimum) or unpack(entry.minimum) > unpack(self.maximum))


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Columns by id, and ranges that rows must be in."""

    ids: frozenset[int]
    rest: bool
    """Whether keys, headers and the records' own timestamps are wanted."""
    ranges: tuple[ColumnRange, ...] = ()

    def excludes(self, header: BatchHeader, directory: Directory) -> bool:
        """Return whether no row of a batch can be in all ranges."""
        entries = {column.id: entry for column, entry in zip(directory.columns.columns, directory.entries, strict=True)}
        return any(
            each.column_id in entries and each.excludes(entries[each.column_id], header.record_count)
            for each in self.ranges
        )

    def wanted(self, header: BatchHeader, directory: Directory) -> list[bool]:
        """Return of each block and of the rest whether it is sent."""
        if self.excludes(header, directory):
            return [False] * (len(directory.entries) + 1)
        return [*(column.id in self.ids for column in directory.columns.columns), self.rest]

    def spans(self, header: BatchHeader, directory: Directory) -> list[tuple[int, int]]:
        """Return the spans of a batch that are sent behind the directory: start and end from the batch's start."""
        found = []
        for is_wanted, (start, end) in zip(self.wanted(header, directory), directory.spans(), strict=True):
            if is_wanted and start < end:
                found.append((HEADER_BYTES + start, HEADER_BYTES + end + -end % 8))
        return found


def select(
    read: Callable[[int, int], bytes], size: int, selection: ColumnSelection, max_bytes: int
) -> tuple[list[bytes], int, int]:
    """Return the parts of consecutive batches that are sent, the offset behind them, and the epoch of the last one.

    Args:
        read: returns the bytes from a position on: (position, size).
        size: bytes of all batches, which are whole.
        selection: what is wanted.
        max_bytes: maximum bytes of the parts, except for the first batch.

    Raises:
        CorruptBatchError: If the first header is none of a batch.
    """
    pieces: list[bytes] = []
    position = sent = 0
    end_offset, epoch = -1, -1
    while position < size:
        head = read(position, min(HEAD_BYTES, size - position))
        header = read_header(head)
        found = _selected(read, position, head, header, selection)
        part_bytes = sum(map(len, found))
        if pieces and sent + part_bytes > max_bytes:
            break
        pieces += found
        sent += part_bytes
        end_offset, epoch = header.end_offset, header.leader_epoch
        position += header.batch_bytes
    return pieces, end_offset, epoch


def _selected(
    read: Callable[[int, int], bytes], position: int, head: bytes, header: BatchHeader, selection: ColumnSelection
) -> list[bytes]:
    """Return one batch's part: all of a batch that is not typed, or damaged, so that the reader finds the damage."""
    if header.is_typed and len(head) >= HEADER_BYTES + HEAD.size:
        directory_bytes = HEAD.unpack_from(head, HEADER_BYTES)[1]
        if HEADER_BYTES + directory_bytes <= header.batch_bytes:
            head = (
                head if len(head) >= HEADER_BYTES + directory_bytes else read(position, HEADER_BYTES + directory_bytes)
            )
            try:
                directory = read_directory(head, header)
            except CorruptBatchError:
                return [read(position, header.batch_bytes)]
            blocks = [_piece(read, position, head, span) for span in selection.spans(header, directory)]
            return [_stamped(header, head, directory.size, sum(map(len, blocks))), *blocks]
    return [read(position, header.batch_bytes)]


def _piece(read: Callable[[int, int], bytes], position: int, head: bytes, span: tuple[int, int]) -> bytes:
    start, end = span
    return head[start:end] if end <= len(head) else read(position + start, end - start)


def _stamped(header: BatchHeader, head: bytes, directory_bytes: int, block_bytes: int) -> bytes:
    """Return header and directory with a stamp that has the size of the part."""
    size = HEADER_BYTES + directory_bytes + block_bytes
    new = stamp(
        header._replace(batch_bytes=size),
        base_offset=header.base_offset,
        append_timestamp_ms=header.append_timestamp_ms,
        leader_epoch=header.leader_epoch,
        previous_crc=header.previous_crc,
    )
    return new + head[STAMP_BYTES : HEADER_BYTES + directory_bytes]
