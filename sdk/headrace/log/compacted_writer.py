"""Writes a compacted segment: the batches of adjacent segments without the records that are not current any more.

A batch that keeps all its records is copied as it is if it is not small; the others are encoded again, several of them
together. Offsets, timestamps and the chain stay those of the log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
import numpy.typing as npt

from headrace.log.index import SegmentIndex
from headrace.wire.batch import (
    MAX_COMPACTED_OFFSETS,
    NONE_REMOVED,
    STAMP_BYTES,
    BatchHeader,
    RemovedRecords,
    read_header,
    stamp,
)
from headrace.wire.compression import Codec
from headrace.wire.decoded import BinaryColumn, Columns, Headers, Int64s
from headrace.wire.encoding import ArrowBuffers, CompactedRange, column_parts

Mask = npt.NDArray[np.bool_]

BATCH_BYTES = 256 << 10
"""Payload at which a batch is written."""
PERIOD_MS = 600_000
"""Records that were appended in different periods are not written in one batch, so that a deletion's age is known."""
_WRITTEN_BYTES = 1 << 20


@dataclass(slots=True)
class _Pending:
    """Adjacent batches that become one."""

    first: BatchHeader
    last: BatchHeader
    dated: BatchHeader
    """The last one that has records left."""
    removed: RemovedRecords = NONE_REMOVED
    records: int = 0
    payload_bytes: int = 0
    values: list[BinaryColumn] = field(default_factory=list)
    keys: list[BinaryColumn] = field(default_factory=list)
    times: list[Int64s] = field(default_factory=list)
    offsets: list[Int64s] = field(default_factory=list)
    headers: list[Sequence[Headers]] = field(default_factory=list)


class CompactedWriter:
    """Writes the batches of a segment in order."""

    def __init__(self, write: Callable[[bytes], None], index: SegmentIndex, index_interval_bytes: int) -> None:
        """`write` appends to the segment's file; `index` is of the new segment."""
        self._write = write
        self._index = index
        self._interval_bytes = index_interval_bytes
        self._pending: _Pending | None = None
        self._buffered: list[bytes | memoryview] = []
        self._buffered_bytes = 0
        self.size_bytes = 0

    def copy(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """Write a batch as it is."""
        self._end_batch()
        self._add(header, [batch])

    def add(self, columns: Columns, batch: bytes | memoryview, kept: Mask, removed: RemovedRecords) -> None:
        """Write the records of a batch that `kept` has; `removed` says why the others go."""
        header = columns.header
        if kept.all() and header.record_count and header.payload_bytes > BATCH_BYTES // 2:
            self.copy(header, batch)
            return
        pending = self._pending
        if pending is not None and not self._fits(pending, header, bool(kept.any())):
            self._end_batch()
            pending = None
        if pending is None:
            pending = self._pending = _Pending(header, header, header)
        pending.last = header
        pending.removed = pending.removed.joined(columns.removed)
        if not kept.all():
            pending.removed = pending.removed.joined(removed)
        if kept.any():
            self._take(pending, columns, kept)

    def _fits(self, pending: _Pending, header: BatchHeader, has_records: bool) -> bool:
        is_of_period = header.append_timestamp_ms // PERIOD_MS == pending.dated.append_timestamp_ms // PERIOD_MS
        return (
            header.leader_epoch == pending.last.leader_epoch
            and header.end_offset - pending.first.base_offset <= MAX_COMPACTED_OFFSETS
            and pending.payload_bytes < BATCH_BYTES
            and (is_of_period or not has_records or not pending.records)
        )

    def _take(self, pending: _Pending, columns: Columns, kept: Mask) -> None:
        header, count = columns.header, int(kept.sum())
        pending.dated = header
        assert columns.key_column is not None, "a batch without keys is copied"
        values, keys = columns.value_column.take(kept), columns.key_column.take(kept)
        share_bytes = header.payload_bytes * count // header.record_count  # Of headers, too, but of mean records.
        pending.payload_bytes += max(share_bytes, len(values.data) + len(keys.data))
        pending.values.append(values)
        pending.keys.append(keys)
        times = columns.timestamps_ms
        pending.times.append(np.full(count, header.base_timestamp_ms, np.int64) if times is None else times[kept])
        pending.offsets.append(columns.offset_array(0, header.record_count)[kept])
        if columns.header_columns is not None or pending.headers:
            if not pending.headers:
                pending.headers.append([()] * pending.records)
            pending.headers.append(list(compress(columns.headers(), kept)))
        pending.records += count

    def _end_batch(self) -> None:
        """Write the pending batch."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        base_offset, end_offset = pending.first.base_offset, pending.last.end_offset
        times = np.concatenate(pending.times) if pending.times else np.zeros(0, np.int64)
        base_timestamp_ms = int(times[0]) if len(times) else pending.dated.base_timestamp_ms
        has_own_times = len(times) > 0 and bool((times != base_timestamp_ms).any())
        parts = column_parts(
            _joined(pending.values), _joined(pending.keys) if pending.records else None,
            base_timestamp_ms=base_timestamp_ms,
            timestamps_ms=times if has_own_times else None,
            headers=[each for several in pending.headers for each in several] or None,
            codec=Codec(pending.dated.codec),
            compacted=CompactedRange(
                base_offset, end_offset, pending.last.chain_crc,
                np.concatenate([*pending.offsets, np.zeros(0, np.int64)]), pending.removed,
            ),
        )  # fmt: skip
        head = stamp(
            read_header(parts[0]), base_offset=base_offset, append_timestamp_ms=pending.dated.append_timestamp_ms,
            leader_epoch=pending.last.leader_epoch, previous_crc=pending.first.previous_crc,
        )  # fmt: skip
        batch = b"".join([head, memoryview(parts[0])[STAMP_BYTES:], *parts[1:]])
        self._add(read_header(batch), [batch])

    def _add(self, header: BatchHeader, parts: list[bytes | memoryview]) -> None:
        self._index.note(
            header.base_offset, header.end_offset, header.batch_bytes,
            append_ms=header.append_timestamp_ms, record_ms=header.max_timestamp_ms,
            interval_bytes=self._interval_bytes,
        )  # fmt: skip
        self._buffered += parts
        self._buffered_bytes += header.batch_bytes
        self.size_bytes += header.batch_bytes
        if self._buffered_bytes >= _WRITTEN_BYTES:
            self._write_buffered()

    def _write_buffered(self) -> None:
        if self._buffered:
            self._write(b"".join(self._buffered))
        self._buffered, self._buffered_bytes = [], 0

    def finish(self) -> None:
        """Write what is pending."""
        self._end_batch()
        self._write_buffered()


def _joined(columns: Sequence[BinaryColumn]) -> ArrowBuffers:
    """Join columns."""
    offsets, position = [np.zeros(1, np.int64)], 0
    for column in columns:
        offsets.append(column.offsets[1:] + np.int64(position))
        position += int(column.offsets[-1])
    validity = None
    if any(column.validity is not None for column in columns):
        validity = np.packbits(np.concatenate([column.valid() for column in columns]), bitorder="little")
    data = b"".join(column.data for column in columns)
    return ArrowBuffers(np.concatenate(offsets).astype(np.int32), data, validity)
