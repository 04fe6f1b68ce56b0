"""Read path of one log: whole batches by offset, headers, look-ups by time, verification. Never changes the disk.

Belongs to a `PartitionLog`. Any thread, concurrently with an append.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.log.errors import CorruptLogError, SliceCutError, WouldBlockError
from headrace.log.log_state import LogState
from headrace.log.open_files import OpenFile
from headrace.log.scan import BadBatch, ChainPoint, ReadAt, check_batches, check_next, walk_headers
from headrace.log.segment import Segment
from headrace.log.segments import SegmentGoneError
from headrace.log.slices import Slice
from headrace.log.timestamps import (
    TimestampedOffset,
    TimestampKind,
    batch_timestamp,
    first_record,
    has_plain_timestamps,
)
from headrace.wire.batch import BatchHeader, iter_batches
from headrace.wire.errors import CorruptBatchError, OffsetOutOfRangeError
from headrace.wire.ids import Offset

_MAX_CURSORS = 64
CHECKED_BYTES = 1 << 20
"""Bytes per read when many batches are checked."""


class LogReader:
    """Finds batches. Caches the end positions of recent reads, so that sequential reads need no search."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._segments = state.segments
        # Offset of a batch start -> (segment, its truncations, position); under the segments' lock, evicted by age.
        self._cursors: OrderedDict[int, tuple[Segment, int, int]] = OrderedDict()

    @property
    def has_compacted_segments(self) -> bool:
        """Whether compaction has written segments, in which not every offset is a record."""
        with self._segments.lock:
            return any(segment.is_compacted for segment in self._segments.items)

    def forget_positions(self) -> None:
        """Drop cached read positions after a truncation."""
        self._cursors.clear()

    def read_nowait(self, offset: int, max_bytes: int, end_offset: int) -> Slice | None:
        """As `read`, but return `None` if the look-up would block on the disk: then `read` in a thread (H46)."""
        try:
            return self.read(offset, max_bytes, end_offset, nowait=True)
        except WouldBlockError:
            return None

    def read(self, offset: int, max_bytes: int, end_offset: int, *, nowait: bool = False) -> Slice:
        """Return whole batches starting with the one that holds `offset`, at least one, none past `end_offset`.

        At most `max_bytes` except for the first batch, all of one segment. Empty if `offset` is at or after
        `end_offset` but not after the log end, or if its batch extends past `end_offset`. May block on the disk;
        `nowait` is for `read_nowait`. The caller closes the slice. Raises OffsetOutOfRangeError outside log start ..
        log end, CorruptLogError, StorageOfflineError.
        """
        segments, state = self._segments, self._state
        if not segments.files.make_room(nowait=nowait):
            raise WouldBlockError
        with segments.lock:
            state.check_online()
            log_end_offset = state.end.offset
            self._check_range(offset, log_end_offset)
            segment = segments.find(offset)
            limit_offset = min(end_offset, log_end_offset)
            if offset >= limit_offset:
                return self._empty(segment, offset)
            following = segments.after(segment)
            segment_end_offset = log_end_offset if following is None else following.base_offset
            limit_offset = min(limit_offset, segment_end_offset)
            size_bytes, cuts, flushed = segment.size_bytes, segment.cuts, state.flushed
            cursor = self._cursors.get(offset)
            with state.disk():
                file = segments.pin(segment)
        try:
            with state.disk():
                read_at = segments.reader(file, nowait=nowait)
                if cursor is not None and cursor[0] is segment and cursor[1] == cuts:
                    base_offset, position = offset, cursor[2]
                else:
                    position, header = self._locate(segment, read_at, offset, nowait=nowait)
                    base_offset = header.base_offset
                end = self._end(
                    segment, read_at, (base_offset, position),
                    known_ends=(
                        (segment_end_offset, size_bytes),
                        (flushed.offset, flushed.position if flushed.segment == segment.base_offset else -1),
                    ),
                    max_position=position + max_bytes, limit_offset=limit_offset, size_bytes=size_bytes, nowait=nowait,
                )  # fmt: skip
            if end[1] == position:
                segments.files.unpin(file)
                return self._empty(segment, offset)
        except BaseException as error:
            segments.files.unpin(file)
            if isinstance(error, CorruptLogError) and segment.cuts != cuts:
                raise _cut_meanwhile() from error
            raise
        with segments.lock:
            self._cursors[end[0]] = (segment, cuts, end[1])
            if len(self._cursors) > _MAX_CURSORS:
                self._cursors.popitem(last=False)
        return Slice(
            segment, segments.files, file, cuts=cuts,
            base_offset=base_offset, end_offset=end[0], position=position, size_bytes=end[1] - position,
            failed=self._state.failed,
        )  # fmt: skip

    def _check_range(self, offset: int, log_end_offset: int) -> None:
        if not self._state.log_start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the log, which holds {self._state.log_start_offset} to {log_end_offset}"
            )

    def _empty(self, segment: Segment, offset: int) -> Slice:
        return Slice(
            segment, self._segments.files, None, cuts=0,
            base_offset=offset, end_offset=offset, position=0, size_bytes=0, failed=self._state.failed,
        )  # fmt: skip

    def _locate(self, segment: Segment, read_at: ReadAt, offset: int, *, nowait: bool) -> tuple[int, BatchHeader]:
        return self._segments.locate(segment, read_at, offset, self._state.settings.index_interval_bytes, nowait=nowait)

    def _end(
        self,
        segment: Segment,
        read_at: ReadAt,
        start: tuple[int, int],
        *,
        known_ends: Sequence[tuple[int, int]],
        max_position: int,
        limit_offset: int,
        size_bytes: int,
        nowait: bool,
    ) -> tuple[int, int]:
        """Return offset and position of the last batch end within both limits.

        A `known_ends` entry at the limit needs no search. The first batch may exceed `max_position`.
        """
        for known in known_ends:
            if known[0] == limit_offset and start[1] < known[1] <= max_position:
                return known
        interval = self._state.settings.index_interval_bytes
        segments = self._segments
        floor = segments.floor(
            segment, read_at, min(max_position, size_bytes), interval, nowait=nowait, by_position=True
        )
        if floor[0] > limit_offset:
            floor = segments.floor(segment, read_at, limit_offset, interval, nowait=nowait)
        end = max(start, floor)
        for position, header in walk_headers(read_at, segment.path, end[1], size_bytes, end[0]):
            end_position = position + header.batch_bytes
            if header.end_offset > limit_offset or (end_position > max_position and position != start[1]):
                break
            end = header.end_offset, end_position
        return end

    @contextmanager
    def _pinned(self, segment: Segment, cuts: int, *, nowait: bool = False) -> Iterator[OpenFile]:
        """Pin one segment of a walk that began when it had been truncated `cuts` times.

        Raises SegmentGoneError if it has left the list, SliceCutError if it was truncated since: batches read after
        that are neither corruption nor a valid result. With `nowait`, raises WouldBlockError rather than fsync another
        log to make room.
        """
        if not self._segments.files.make_room(nowait=nowait):
            raise WouldBlockError
        with self._state.disk():
            file = self._segments.pin(segment)
            try:
                yield file
            except CorruptLogError as error:
                if segment.cuts != cuts:
                    raise _cut_meanwhile() from error
                raise
            finally:
                self._segments.files.unpin(file)
        if segment.cuts != cuts:
            raise _cut_meanwhile()

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Yield the headers from the batch that holds `offset` to the log end at the time of the first step.

        The headers are not checked. Raises as `read`.
        """
        with self._segments.lock:
            self._state.check_online()
            end_offset = self._state.end.offset
            self._check_range(offset, end_offset)
            parts = [(each, each.cuts) for each in self._segments.from_offset(offset) if each.size_bytes]
        interval = self._state.settings.index_interval_bytes
        for segment, cuts in parts if offset < end_offset else ():
            try:
                with self._pinned(segment, cuts):
                    for _, header in self._segments.walk(segment, offset, interval):
                        if header.base_offset >= end_offset:
                            return
                        if segment.cuts != cuts:
                            raise _cut_meanwhile()
                        yield header
            except SegmentGoneError:
                self._check_range(segment.base_offset, self._state.end.offset)
                raise _cut_meanwhile() from None

    def batch_before(self, offset: int) -> BatchHeader | None:
        """Return the header of the batch that ends at `offset`; `None` at log start, or if no batch ends there."""
        if offset <= self._state.log_start_offset or offset > self._state.end.offset:
            return None
        header = self.batch_with(offset - 1)
        return header if header.end_offset == offset else None

    def batch_with(self, offset: int) -> BatchHeader:
        """Return the header of the batch that holds `offset`. May block; raises as `read`."""
        header = next(self.headers(offset), None)
        if header is None:
            raise OffsetOutOfRangeError(f"offset {offset} is the end of the log: no batch holds it")
        return header

    def batch_with_nowait(self, offset: int) -> BatchHeader:
        """As `batch_with`, but raise WouldBlockError if the look-up would block on the disk (H46)."""
        with self._segments.lock:
            self._state.check_online()
            self._check_range(offset, self._state.end.offset - 1)
            segment = self._segments.find(offset)
            cuts = segment.cuts
        try:
            with self._pinned(segment, cuts, nowait=True) as file:
                return self._locate(segment, self._segments.reader(file, nowait=True), offset, nowait=True)[1]
        except SegmentGoneError:
            raise WouldBlockError from None

    def first_batch(self, *, nowait: bool = False) -> tuple[Offset, int]:
        """Return where a copy of this log begins: base offset and `previous_crc` of the batch that holds the log start.

        For an empty log, the log end and its `crc`. May block; raises as `read`. With `nowait` as `batch_with_nowait`.
        """
        end = self._state.end  # read once: another thread may append a batch
        if self._state.log_start_offset >= end.offset:
            return Offset(end.offset), end.crc
        batch_with = self.batch_with_nowait if nowait else self.batch_with
        header = batch_with(self._state.log_start_offset)
        return Offset(header.base_offset), header.previous_crc

    def newest_append_ms(self) -> int:
        """Return the append time of the last batch, by its leader's clock; -1 for an empty log. May block."""
        active = self._segments.active
        if active.size_bytes:
            return active.index.max_append_ms
        header = self.batch_before(self._state.end.offset)
        return -1 if header is None else header.append_timestamp_ms

    def offset_for_timestamp(self, timestamp_ms: int, kind: TimestampKind) -> TimestampedOffset | None:
        """Return the first record whose timestamp is `timestamp_ms` or later, `None` if there is none. May block.

        APPEND returns the base offset of the first batch appended at or after that time. RECORD selects the first batch
        whose largest record timestamp reaches it. If the batch has uncompressed per-record timestamps, the record is
        found; the broker decompresses nothing, so for a compressed batch the result is its base offset and base
        timestamp, at or before that record.
        """
        offset = self._state.log_start_offset
        while True:
            with self._segments.lock:
                self._state.check_online()
                parts = [(each, each.cuts) for each in self._segments.from_offset(offset) if each.size_bytes]
            for segment, cuts in parts:
                try:
                    with self._pinned(segment, cuts) as file:
                        found = self._find_time(segment, self._segments.reader(file), timestamp_ms, kind)
                except SegmentGoneError:  # Compaction has replaced it, or retention has removed it.
                    offset = segment.base_offset
                    break
                if found is not None:
                    return found
            else:
                return None

    def _find_time(
        self, segment: Segment, read_at: ReadAt, timestamp_ms: int, kind: TimestampKind
    ) -> TimestampedOffset | None:
        interval = self._state.settings.index_interval_bytes
        index = self._segments.ready_index(segment, read_at, interval)
        if timestamp_ms > (index.max_append_ms if kind is TimestampKind.APPEND else index.max_record_ms):
            return None
        column = 0 if kind is TimestampKind.APPEND else 1
        position = index.floor_time(timestamp_ms, column)
        if position is None:
            position = self._segments.rebuild_index(segment, read_at, interval).floor_time(timestamp_ms, column) or 0
        start_offset = Offset(self._state.log_start_offset)
        for at, header in walk_headers(read_at, segment.path, position, segment.size_bytes, None):
            if batch_timestamp(header, kind) < timestamp_ms or header.end_offset <= start_offset:
                continue
            offset = Offset(max(header.base_offset, start_offset))
            if kind is TimestampKind.APPEND:
                return TimestampedOffset(offset, header.append_timestamp_ms)
            if not has_plain_timestamps(header):
                return TimestampedOffset(offset, header.base_timestamp_ms)
            found = first_record(read_at(header.batch_bytes, at), header, timestamp_ms, start_offset)
            if found is not None:
                return found
        return None

    def verify(self, offset: int | None = None) -> Offset:
        """Check every CRC, chain, offset and epoch from the batch with `offset` (default: log start); return the end.

        Used by the scrubber and by operators. Reads everything and pins one segment at a time. Raises CorruptLogError.
        """
        with self._segments.lock:
            self._state.check_online()
            if offset is None:
                offset = self._state.log_start_offset
            self._check_range(offset, self._state.end.offset)
            if offset == self._state.end.offset:
                return Offset(offset)
            parts = [
                (each, each.cuts, each.size_bytes) for each in self._segments.from_offset(offset) if each.size_bytes
            ]
            end_offset = self._state.end.offset
        before: ChainPoint | None = None
        for segment, cuts, size_bytes in parts:
            try:
                with self._pinned(segment, cuts) as file:
                    before = self._verify_segment(segment, self._segments.reader(file), size_bytes, offset, before)
            except SegmentGoneError:
                before = None
        return Offset(end_offset)

    def checked_headers(self, offset: int) -> Iterator[BatchHeader]:
        """As `headers`, but of batches that are read whole and checked, to rebuild producer state (H48, H33).

        Only the batch's checksum covers the producer fields of a header. Raises as `verify`.
        """
        end_offset = self._state.end.offset
        while offset < end_offset:
            offset, headers = self._check_slice(offset, CHECKED_BYTES)
            if not headers:
                raise _cut_meanwhile()
            yield from headers

    def verify_from(self, offset: int, max_bytes: int) -> tuple[Offset, int]:
        """As `verify`, for about `max_bytes` of one segment from the batch with `offset`; return end and bytes."""
        end_offset, headers = self._check_slice(offset, max_bytes)
        return end_offset, sum(header.batch_bytes for header in headers)

    def _check_slice(self, offset: int, max_bytes: int) -> tuple[Offset, list[BatchHeader]]:
        headers: list[BatchHeader] = []
        truncations, end_offset = self._state.truncations, self._state.end.offset
        with self.read(offset, max_bytes, end_offset, nowait=False) as found:
            data, position, path = found.read(), found.position, found.path
            if not data and offset < end_offset:
                with self._segments.lock, self._state.disk():
                    segment, interval = self._segments.find(offset), self._state.settings.index_interval_bytes
                    self._check_range(offset, end_offset)
                    if self._state.truncations != truncations:
                        raise _cut_meanwhile()
                    position, header = next(self._segments.walk(segment, offset, interval))
                reason = f"the batch ends at offset {header.end_offset}, the log at {end_offset}"
                raise CorruptLogError(reason, file=segment.path, offset=header.base_offset, position=position)
            before: ChainPoint | None = None
            try:
                for header, batch in iter_batches(data):
                    fits = before or ChainPoint.before(header)
                    wrong = check_next(batch, header, fits)
                    if wrong:
                        raise CorruptBatchError(wrong)
                    before = ChainPoint.after(header)
                    position += header.batch_bytes
                    headers.append(header)
            except CorruptBatchError as error:
                at = found.base_offset if before is None else before.offset
                raise CorruptLogError(error.message, file=path, offset=at, position=position) from error
            return Offset(found.end_offset), headers

    def _verify_segment(
        self, segment: Segment, read_at: ReadAt, size_bytes: int, offset: int, before: ChainPoint | None
    ) -> ChainPoint:
        position = 0
        if before is None:
            position, first = self._locate(segment, read_at, max(offset, segment.base_offset), nowait=False)
            before = ChainPoint.before(first)
        for item in check_batches(read_at, position, size_bytes, before, self._state.settings.max_batch_bytes):
            if isinstance(item, BadBatch):
                raise CorruptLogError(item.reason, file=segment.path, offset=item.offset, position=item.position)
            header = item[1]
            before = ChainPoint.after(header)
        return before


def _cut_meanwhile() -> SliceCutError:
    return SliceCutError("the log was truncated while it was read", retriable=True, action="Read it again.")
