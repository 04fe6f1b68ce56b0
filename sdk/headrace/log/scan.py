"""Scans of a segment file: headers only for look-ups, whole batches for recovery and verification.

Corruption raises `CorruptLogError` with file, offset and position (I17). Only `write_again` changes a file.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.log.errors import CorruptLogError
from headrace.log.filesystem import FileSystem
from headrace.wire.batch import (
    CRC_START,
    HEADER_BYTES,
    HEADER_DTYPE,
    MAGIC,
    STAMP_CRC_START,
    BatchHeader,
    iter_batches,
    read_header,
)
from headrace.wire.crc import ReadableBuffer, crc32c
from headrace.wire.errors import CorruptBatchError

WINDOW_BYTES = 8192
_SEARCH_BYTES = 1 << 20

# Reads a number of bytes at a position; fewer only at the end of the file.
ReadAt = Callable[[int, int], bytes]


def walk_headers(
    read_at: ReadAt, path: str, position: int, end_position: int, offset: int | None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch from `position` to `end_position`, read in windows of a few KiB.

    Checks the leader header's CRC and contiguous offsets from `offset` (`None` accepts any first offset), no payload.
    """
    window, window_position = b"", 0
    while position < end_position:
        at = position - window_position
        if at + HEADER_BYTES > len(window):
            window, window_position, at = read_at(min(WINDOW_BYTES, end_position - position), position), position, 0
        try:
            header = read_header(window, at)
            if crc32c(window[at : at + STAMP_CRC_START]) != header.stamp_crc:
                raise CorruptBatchError("the stamp's checksum is wrong")
            if offset is not None and header.base_offset != offset:
                raise CorruptBatchError(f"base offset {header.base_offset}, expected {offset}")
            if position + header.batch_bytes > end_position:
                raise CorruptBatchError("the batch goes past the end of the segment")
        except CorruptBatchError as error:
            raise CorruptLogError(error.message, file=path, offset=offset or 0, position=position) from error
        yield position, header
        offset = header.end_offset
        position += header.batch_bytes


class ChainPoint(NamedTuple):
    """State that the next batch must continue."""

    offset: int
    crc: int
    epoch: int

    @classmethod
    def before(cls, header: BatchHeader) -> ChainPoint:
        """Return the point that `header` continues; any epoch may precede it."""
        return cls(header.base_offset, header.previous_crc, -1)

    @classmethod
    def after(cls, header: BatchHeader) -> ChainPoint:
        """Return the point behind the batch of `header`."""
        return cls(header.end_offset, header.chain_crc, header.leader_epoch)


def check_next(batch: bytes | memoryview, header: BatchHeader, before: ChainPoint) -> str:
    """Check one whole batch: both CRCs, contiguous offset, chain, epoch. Return the error, or an empty string."""
    view = memoryview(batch)
    if crc32c(view[:STAMP_CRC_START]) != header.stamp_crc:
        return "the stamp's checksum is wrong"
    if crc32c(view[CRC_START:]) != header.crc:
        return "the batch's checksum is wrong"
    if header.base_offset != before.offset:
        return f"base offset {header.base_offset}, expected {before.offset}"
    if header.previous_crc != before.crc:
        return "the chain is broken: previous_crc is not the chain value of the batch before"
    if header.leader_epoch < before.epoch:
        return f"leader epoch {header.leader_epoch} after {before.epoch}"
    return ""


def checked_batches(data: ReadableBuffer, file: str, position: int) -> Iterator[memoryview]:
    """Yield the whole batches that were read at a position of a file, each checked by itself.

    Raises:
        CorruptLogError: At the first damaged one.
    """
    offset = 0
    try:
        for header, batch in iter_batches(data):
            offset = header.base_offset
            if wrong := check_next(batch, header, ChainPoint.before(header)):
                raise CorruptBatchError(wrong)
            yield batch
            offset, position = header.end_offset, position + header.batch_bytes
    except CorruptBatchError as error:
        raise CorruptLogError(error.message, file=file, offset=offset, position=position) from error


class BadBatch(NamedTuple):
    """Batch at which a checked scan stopped."""

    position: int
    offset: int
    reason: str
    # End of the batch if its leader header is valid, so that a search for later batches skips its payload.
    next_position: int


def check_batches(
    read_at: ReadAt, position: int, size_bytes: int, before: ChainPoint, max_batch_bytes: int
) -> Iterator[tuple[int, BatchHeader, memoryview] | BadBatch]:
    """Read and check every batch from `position` to the end of the file; the last item may be a `BadBatch`."""
    window, window_position = memoryview(b""), position
    while position < size_bytes:
        head = window[position - window_position :]
        if len(head) < HEADER_BYTES:
            window = head = memoryview(read_at(min(_SEARCH_BYTES, size_bytes - position), position))
            window_position = position
        try:
            header = read_header(head)
        except CorruptBatchError as error:
            yield BadBatch(position, before.offset, error.message, position + 8)
            return
        sound_stamp = crc32c(head[:STAMP_CRC_START]) == header.stamp_crc
        end = position + header.batch_bytes
        if header.batch_bytes > max_batch_bytes or end > size_bytes:
            reason = f"a batch of {header.batch_bytes} bytes cannot be here: {size_bytes - position} are left"
            yield BadBatch(position, before.offset, reason, min(end, size_bytes) if sound_stamp else position + 8)
            return
        batch = head[: header.batch_bytes]
        if len(batch) < header.batch_bytes:
            window_bytes = min(max(_SEARCH_BYTES, header.batch_bytes), size_bytes - position)
            window = memoryview(read_at(window_bytes, position))
            window_position, batch = position, window[: header.batch_bytes]
        wrong = check_next(batch, header, before)
        if wrong:
            yield BadBatch(position, before.offset, wrong, end if sound_stamp else position + 8)
            return
        yield position, header, batch
        before = ChainPoint.after(header)
        position = end


def write_again(
    filesystem: FileSystem, descriptor: int, path: str, position: int, end_position: int, before: ChainPoint
) -> ChainPoint:
    """Rewrite the batches from `position` to `end_position` in place, each checked as it is read; return the last one.

    Raises OSError, also if a batch fails its checks, because its written bytes cannot be read any more.
    """
    while position < end_position:
        try:
            header = read_header(filesystem.pread(descriptor, HEADER_BYTES, position))
            batch = filesystem.pread(descriptor, header.batch_bytes, position)
            wrong = check_next(batch, header, before) if len(batch) == header.batch_bytes else "it ends early"
        except CorruptBatchError as error:
            wrong = error.message
        if wrong:
            reason = f"the bytes at {position} after a failed fsync differ from those written: {wrong}"
            raise OSError(errno.EIO, reason, path)
        if filesystem.pwritev(descriptor, [batch], position) != len(batch):
            raise OSError(errno.ENOSPC, "short write", path)
        before = ChainPoint.after(header)
        position += header.batch_bytes
    return before


def find_valid_batch(read_at: ReadAt, position: int, size_bytes: int, offset: int, max_batch_bytes: int) -> int | None:
    """Return the position of a whole valid batch at or after `position` with a base offset of at least `offset`.

    `None` if there is none (H31).
    Batches are multiples of 8 bytes long, so candidates are multiples of 8, filtered by numpy on the fixed fields.
    """
    position = -(-position // 8) * 8
    while position + HEADER_BYTES <= size_bytes:
        data = read_at(min(_SEARCH_BYTES + HEADER_BYTES, size_bytes - position), position)
        starts = (len(data) - HEADER_BYTES) // 8 + 1
        if starts <= 0:
            return None
        headers: npt.NDArray[Any] = np.ndarray(starts, HEADER_DTYPE, data, strides=(8,))
        sizes = headers["batch_bytes"]
        fits = (headers["magic"] == MAGIC) & (sizes > HEADER_BYTES) & (sizes % 8 == 0) & (sizes <= max_batch_bytes)
        for index in np.flatnonzero(fits & (headers["base_offset"] >= offset)).tolist():
            start = position + index * 8
            size = int(sizes[index])
            if start + size <= size_bytes and _is_valid(read_at(size, start)):
                return start
        position += starts * 8
    return None


def _is_valid(batch: bytes) -> bool:
    try:
        header = read_header(batch)
    except CorruptBatchError:
        return False
    return not check_next(batch, header, ChainPoint.before(header))
