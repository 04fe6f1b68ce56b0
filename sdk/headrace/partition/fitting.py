"""Batches that continue a copy, from what its source answers. Pure.

A copy ends where a batch of its source ended. The source may have changed since: retention or a deletion has moved its
log start, or compaction has made one batch of several, around that place. What the source does not have any more
becomes a compacted batch without records, so that the copy keeps offsets and chain.
"""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from headrace.wire.batch import MAX_COMPACTED_OFFSETS, STAMP_BYTES, BatchHeader, iter_batches, read_header, stamp
from headrace.wire.columns import decode_batch
from headrace.wire.crc import ReadableBuffer
from headrace.wire.decoded import BinaryColumn, Bytes, Int32s
from headrace.wire.encoding import ArrowBuffers, CompactedRange, column_parts
from headrace.wire.errors import DivergedLogError, Outcome


class LogPoint(NamedTuple):
    """End of a log."""

    offset: int
    chain_crc: int
    """Chain value of the last batch; 0 of a log that begins at 0 and is empty."""


def fitting(batches: ReadableBuffer, end: LogPoint, until: int | None = None) -> Iterator[ReadableBuffer]:
    """Yield batches, with those of the source's answer, that continue a copy that ends at `end`.

    Args:
        batches: whole batches, of which the first may begin before the copy's end, or after it if the source begins
            there.
        end: end of the copy.
        until: offset; batches that begin at or after it are left out.

    Raises:
        DivergedLogError: If a batch of the source begins within the copy, which can only be of another log.
        CorruptBatchError: If a batch cannot be read.
    """
    for header, view in iter_batches(batches):
        if header.end_offset <= end.offset:
            continue
        if until is not None and header.base_offset >= until:
            return
        if header.base_offset < end.offset:
            if not header.is_compacted:
                raise DivergedLogError(
                    f"the source has a batch from offset {header.base_offset} to {header.end_offset}, "
                    f"and the copy ends within it, at {end.offset}",
                    outcome=Outcome.NOT_APPLIED,
                )
            yield rest_of(view, header, end)
        else:
            if header.base_offset > end.offset:
                start = LogPoint(header.base_offset, header.previous_crc)
                yield from gap(end, start, header.append_timestamp_ms, header.leader_epoch)
            yield view
        end = LogPoint(header.end_offset, header.chain_crc)


def gap(start: LogPoint, end: LogPoint, append_timestamp_ms: int, leader_epoch: int = -1) -> Iterator[bytes]:
    """Yield compacted batches without records from one point of a log to another.

    `append_timestamp_ms` and `leader_epoch` are those of the batch after them: retention removes them with it.
    """
    while start.offset < end.offset:
        middle = min(end.offset, start.offset + MAX_COMPACTED_OFFSETS)
        reached = LogPoint(middle, end.chain_crc if middle == end.offset else 0)
        parts = column_parts(
            ArrowBuffers(np.zeros(1, np.int32), b""),
            base_timestamp_ms=append_timestamp_ms,
            compacted=CompactedRange(start.offset, reached.offset, reached.chain_crc, np.zeros(0, np.int64)),
        )
        yield _stamped(parts, start, append_timestamp_ms, leader_epoch)
        start = reached


def rest_of(batch: ReadableBuffer, header: BatchHeader, start: LogPoint) -> bytes:
    """Return a compacted batch without its records below `start`.

    Raises:
        CorruptBatchError: If it cannot be decoded.
    """
    columns = decode_batch(bytes(batch), max_payload_bytes=header.payload_bytes)
    offsets = columns.offset_array(0, header.record_count)
    kept = offsets >= start.offset
    times = columns.timestamps_ms if kept.any() else None
    if times is not None:
        times = times[kept]
    keys = columns.key_column if kept.any() else None
    parts = column_parts(
        ArrowBuffers(*_fields(columns.value_column.take(kept))),
        None if keys is None else ArrowBuffers(*_fields(keys.take(kept))),
        base_timestamp_ms=header.base_timestamp_ms if times is None else int(times.min()),
        timestamps_ms=times,
        headers=list(compress(columns.headers(), kept)),
        compacted=CompactedRange(
            start.offset, header.end_offset, header.chain_crc, offsets[kept], columns.removed_records
        ),
    )
    return _stamped(parts, start, header.append_timestamp_ms, header.leader_epoch)


def _stamped(parts: Sequence[ReadableBuffer], start: LogPoint, append_timestamp_ms: int, leader_epoch: int) -> bytes:
    head = stamp(
        read_header(parts[0]),
        base_offset=start.offset,
        append_timestamp_ms=append_timestamp_ms,
        leader_epoch=leader_epoch,
        previous_crc=start.chain_crc,
    )
    return b"".join([head, memoryview(parts[0])[STAMP_BYTES:], *parts[1:]])


def _fields(column: BinaryColumn) -> tuple[Int32s, memoryview, Bytes | None]:
    return column.offsets, column.data, column.validity
