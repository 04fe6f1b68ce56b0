"""Reads closed segments for compaction: their batches, checked and decoded, and how old their deletions are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.log.errors import CorruptLogError
from headrace.log.log_state import LogState
from headrace.log.scan import BadBatch, ChainPoint, check_batches
from headrace.log.segment import Segment
from headrace.log.segments import SegmentGoneError
from headrace.wire.batch import HEADER_BYTES, BatchFlags, BatchHeader, peek_header
from headrace.wire.columns import decode_batch
from headrace.wire.decoded import Columns, Int64s
from headrace.wire.errors import CorruptBatchError, UnsupportedCodecError
from headrace.wire.table_keys import column_expiries

_NULL_VALUES = int(BatchFlags.NULL_VALUES)


class ClosedSegments:
    """Belongs to a `LogCompaction`, on its thread. Raises as the log does, and SegmentGoneError for a removed one."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._segments = state.segments
        self.stopped = False
        """Any thread sets it; then every segment counts as removed."""

    def batches(
        self, segment: Segment, position: int = 0, end_position: int | None = None
    ) -> Iterator[tuple[Columns | None, BatchHeader, memoryview]]:
        """Yield the batches of a segment, or those between two positions; `None` for columns that cannot be decoded."""
        segments = self._segments
        end_position = segment.size_bytes if end_position is None else end_position
        segments.files.make_room()
        with self._state.disk():
            file = segments.pin(segment)
            try:
                read_at = segments.reader(file)
                before = ChainPoint.before(peek_header(read_at(HEADER_BYTES, position)))
                limit = self._state.settings.max_batch_bytes
                for item in check_batches(read_at, position, end_position, before, limit):
                    if self.stopped:
                        raise SegmentGoneError
                    if isinstance(item, BadBatch):
                        raise CorruptLogError(
                            item.reason, file=segment.path, offset=item.offset, position=item.position
                        )
                    yield _decoded(item[2], item[1]), item[1], item[2]
            finally:
                segments.files.unpin(file)

    def has_deletions_before(self, segment: Segment, end_ms: int) -> bool:
        """Return whether a deletion was appended, or a record has expired, at this time or before."""
        return 0 <= self._deleted_ms(segment) <= end_ms or 0 <= self._expired_ms(segment) <= end_ms

    def _deleted_ms(self, segment: Segment) -> int:
        """Return when the first batch with a null value was appended; -1 if there is none."""
        if segment.deleted_ms is None:
            with self._state.disk():
                interval_bytes = self._state.settings.index_interval_bytes
                headers = self._segments.walk(segment, segment.base_offset, interval_bytes)
                times = (header.append_timestamp_ms for _, header in headers if header.flags & _NULL_VALUES)
                segment.deleted_ms = next(times, -1)
        return segment.deleted_ms

    def _expired_ms(self, segment: Segment) -> int:
        """Return when the first record has expired; -1 if none does, or the log is of no table."""
        if not self._state.settings.expires_records:
            return -1
        if segment.expired_ms is None:
            ends = [_first_end(columns, header) for columns, header, _ in self.batches(segment)]
            segment.expired_ms = min((end for end in ends if end >= 0), default=-1)
        return segment.expired_ms


def expiries_until(columns: Columns | None, end_ms: int) -> Int64s:
    """Return when each record expired, up to a time in ms since 1970; `0` for the others."""
    expires_ms = _expiries(columns)
    return np.zeros(1, np.int64) if expires_ms is None else np.where(expires_ms <= end_ms, expires_ms, 0)


def _first_end(columns: Columns | None, header: BatchHeader) -> int:
    """Return when the first record of a batch has expired, not before it was appended; -1 if none does."""
    expires_ms = _expiries(columns)
    found = () if expires_ms is None else expires_ms[expires_ms > 0]
    return max(int(min(found)), header.append_timestamp_ms) if len(found) else -1


def _expiries(columns: Columns | None) -> Int64s | None:
    """Return when each record expires, `0` for one that does not; `None` if none of the batch does."""
    if columns is None or columns.key_column is None or columns.header_columns is None:
        return None
    expires_ms = column_expiries(columns)
    return expires_ms if expires_ms.any() else None


def _decoded(batch: memoryview, header: BatchHeader) -> Columns | None:
    try:
        return decode_batch(batch, max_payload_bytes=header.payload_bytes)
    except (CorruptBatchError, UnsupportedCodecError):
        return None  # Its checksum is right: it was stored without a check of its columns.
