"""Compaction of one log: of each key the newest record stays, with its offset, and a deleted key goes.

Closed segments below the high watermark are read, and replaced by compacted ones (`headrace.log.compacted_writer`),
which are written to temporary files and then renamed: a file in use is never changed. Belongs to a `PartitionLog`;
`compact` runs in any thread, concurrently with appends and reads, once at a time.

A null value deletes its key. It stays for `delete_retention_ms` after its append, so that readers and followers see
it, and then goes, too. So does a record of a table, that long after it has expired. Both are *deletions* below: they go
with all that they replace, and a follower that may have missed one begins again (`deletions_end`).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.compacted_writer import CompactedWriter, Mask
from headrace.log.durability import LogDurability
from headrace.log.errors import CorruptLogError
from headrace.log.log_retention import LogRetention
from headrace.log.log_state import LogState
from headrace.log.newer_keys import NewerKeys
from headrace.log.open_files import pin_empty
from headrace.log.purged_records import PurgedRecords
from headrace.log.scan import BadBatch, ChainPoint, check_batches
from headrace.log.segment import Segment, SegmentName
from headrace.log.segments import SegmentGoneError
from headrace.wire.batch import HEADER_BYTES, MAX_OFFSET, BatchFlags, BatchHeader, RemovedRecords, peek_header
from headrace.wire.columns import decode_batch
from headrace.wire.decoded import BinaryColumn, Columns, Int64s
from headrace.wire.errors import CorruptBatchError, UnsupportedCodecError
from headrace.wire.table_keys import expiries_of, is_table_key

DELETIONS_EVERY_MS = 1_800_000
"""Least time between two compactions for the sake of old deletions: all that are due are removed together."""
KEY_MEMORY_BYTES = 64 << 20
"""Memory for keys: of more keys, part is compared with all records at a time."""
CHUNK_RECORDS = 100_000
"""Records whose keys are looked up together .."""
CHUNK_KEY_BYTES = 8 << 20
""".. unless these are larger."""
MANY_SEGMENTS = 8
"""This number of small adjacent segments becomes one though none has a record too many."""
COMPACTION_FILE = "compaction"
"""Sealed file: the offsets below which deletions may be missing, and below which no key has two records."""
_TEMPORARY_SUFFIX = ".tmp"
_MAX_SEGMENT_OFFSETS = 0xFFFF_FFFF
_NULL_VALUES = int(BatchFlags.NULL_VALUES)


class CompactionReport(NamedTuple):
    """Result of one compaction."""

    records: int
    """Records read."""
    removed_records: int
    segments: int
    """Segments replaced."""
    size_bytes: int
    """Their bytes."""
    written_bytes: int
    """Bytes of the segments that replace them."""


class Kept(NamedTuple):
    """What a compaction leaves besides the newest record of each key."""

    batches: frozenset[int] = frozenset()
    """Base offsets of batches that their producers may send again, and that therefore stay as they are (H48) .."""
    batches_ms: int = 0
    """.. for this time after their append, in milliseconds."""
    deletions_from: int = MAX_OFFSET
    """Deletions from this offset on stay: followers that copy the log have not reached them."""


NOTHING_KEPT = Kept()


class _InterruptedError(Exception):
    """The log was truncated, cut off at its start or closed meanwhile; never leaves this module."""


class _Chunk(NamedTuple):
    """Adjacent batches of a segment, by their places in it."""

    row: int
    end_row: int
    position: int
    end_position: int


@dataclass(slots=True)
class _Part:
    """Closed segment, and which of its records stay."""

    segment: Segment
    end_offset: int
    chunks: list[_Chunk] = field(default_factory=list)
    """All its batches."""
    rows: list[Mask | None] = field(default_factory=list)
    """Which rows of each batch stay; `None` means that the batch is copied as it is."""
    records: int = 0
    removed: int = 0
    kept_bytes: int = 0
    whole_start: int = MAX_OFFSET
    """Start of the first batch that stays though a newer record of one of its keys may be there."""
    deletions_end: int = 0
    """End of the last batch that has deletions to remove."""
    expired_ms: int = 0
    """When the last of the records that go because they have expired did; 0 if there is none."""


class _Chunks:
    """Divides the batches of a segment into chunks."""

    def __init__(self) -> None:
        self._ended: list[_Chunk] = []
        self._chunk = _Chunk(0, 0, 0, 0)
        self._records = self._key_bytes = 0

    def add(self, columns: Columns | None, header: BatchHeader) -> None:
        """Add the next batch."""
        row, end_row, position, end_position = self._chunk
        self._chunk = _Chunk(row, end_row + 1, position, end_position + header.batch_bytes)
        self._records += header.record_count
        if columns is not None and columns.key_column is not None:
            self._key_bytes += len(columns.key_column.data)
        if self._records >= CHUNK_RECORDS or self._key_bytes >= CHUNK_KEY_BYTES:
            self._end()

    def _end(self) -> None:
        ended = self._chunk
        self._ended.append(ended)
        self._chunk = _Chunk(ended.end_row, ended.end_row, ended.end_position, ended.end_position)
        self._records = self._key_bytes = 0

    def all(self) -> list[_Chunk]:
        """Return the chunks."""
        if self._chunk.end_row > self._chunk.row:
            self._end()
        return self._ended


class _Ends(NamedTuple):
    """Content of `COMPACTION_FILE`."""

    deletions: int
    """Below, deletions may have been removed."""
    unique: int
    """Below, no key has two records."""

    def cut(self, end_offset: int) -> _Ends:
        """Return these ends for a log that ends there."""
        return _Ends(min(self.deletions, end_offset), min(self.unique, end_offset))


class LogCompaction:
    """Compacts one log."""

    def __init__(self, state: LogState, durability: LogDurability, retention: LogRetention) -> None:
        self._state = state
        self._segments = state.segments
        self._durability = durability
        self._retention = retention
        self._running = threading.Lock()
        self._stopped = False
        stored = read_sealed(self._segments.filesystem, f"{state.directory}/{COMPACTION_FILE}")
        if stored is None:
            compacted = [segment.name.end_offset for segment in self._segments.items if segment.is_compacted]
            self._ends = _Ends(max(compacted, default=0), 0)
        else:
            self._ends = _Ends(*map(int, stored.split()))
        self._compacted_ms = -DELETIONS_EVERY_MS
        # Up to here the segments have been compacted.
        self._compacted_end = min(self._ends.unique, state.end.offset)

    @property
    def deletions_end(self) -> int:
        """Offset below which deletions may have been removed; 0 means that none have.

        A log that was copied up to a lower offset may have records whose deletion this log does not have any more.
        """
        return self._ends.deletions

    @property
    def end_offset(self) -> int:
        """Offset below which the records have been compared with each other."""
        return self._compacted_end

    def settle_opened(self) -> None:
        """Adapt to the end of the log that was recovered. Raises OSError."""
        self._note(self._ends.cut(self._state.end.offset))

    def raise_deletions_end(self, offset: int) -> None:
        """Store (fsync) that deletions below `offset` may be missing here, before they are. Raises StorageFullError."""
        self._raise(self._state.truncations, deletions=offset)

    def _raise(self, truncations: int, *, deletions: int = 0, unique: int = -1) -> None:
        """Raise these ends. Raises SegmentGoneError if the log has been truncated since there were `truncations`."""
        state = self._state
        with self._durability.round_lock, state.disk():
            state.check_online()
            if state.truncations != truncations:
                raise SegmentGoneError
            unique = self._ends.unique if unique < 0 else unique
            self._note(_Ends(max(self._ends.deletions, deletions), unique))

    def note_truncated(self, end_offset: int) -> None:
        """Forget what was removed from the log's end, and is copied again. Raises OSError."""
        self._note(self._ends.cut(end_offset))
        self._compacted_end = min(self._compacted_end, end_offset)

    def _note(self, ends: _Ends) -> None:
        """Store (fsync) `ends`, under the round lock. Raises OSError."""
        if ends == self._ends:
            return
        directory, filesystem = self._state.directory, self._segments.filesystem
        content = seal(b"%d %d" % ends)
        self._state.environment.space.with_reserve(
            partial(replace_file, filesystem, directory, COMPACTION_FILE, content)
        )
        self._ends = ends

    def stop(self) -> None:
        """Stop the compaction in progress, and allow none any more."""
        self._stopped = True
        with self._running:
            pass

    def compact(self, now_ms: int, high_watermark: int, kept: Kept = NOTHING_KEPT) -> CompactionReport | None:
        """Compact what is closed and committed at `now_ms`, in ms since 1970; return `None` if there is nothing.

        What is `kept` stays besides the newest records. Raises CorruptLogError, StorageFullError, StorageOfflineError:
        the log is as it was, or compacted in part.
        """
        with self._running:
            parts = self._parts(now_ms, high_watermark)
            try:
                return self._compact(parts, now_ms, kept) if parts else None
            except _InterruptedError:
                return None

    def purge(
        self, now_ms: int, high_watermark: int, kept: Kept, purged: PurgedRecords, end_offset: int
    ) -> CompactionReport | None:
        """Compact as `compact`, without some records whatever their age; everything below `end_offset` is closed.

        A batch with such a record is not `kept` as it is. Return `None` if not everything below `end_offset` could be
        compacted: the log was truncated or closed meanwhile, or that is not committed or fsynced; try again.
        """
        with self._running:
            parts = self._parts(now_ms, high_watermark, waits=False)
            with self._segments.lock:
                start_offset = self._segments.items[0].base_offset
            if (parts[-1].end_offset if parts else start_offset) < end_offset:
                return None
            try:
                return self._compact(parts, now_ms, kept, purged) if parts else CompactionReport(0, 0, 0, 0, 0)
            except _InterruptedError:
                return None

    def _compact(
        self, parts: Sequence[_Part], now_ms: int, kept: Kept, purged: PurgedRecords | None = None
    ) -> CompactionReport:
        """Compact these segments; raise _InterruptedError if they are not those of the log any more."""
        truncations, end_offset = self._state.truncations, parts[-1].end_offset
        try:
            self._select(parts, now_ms, kept, purged)
            found = [group for group in self._groups(parts) if _is_worth(group)]
            self._raise(truncations, deletions=max(part.deletions_end for part in parts))
            written = 0
            if found:
                with self._durability.round_lock, self._state.disk():  # No slot may name a segment that is replaced.
                    self._durability.write_checkpoint(both=True)
            for group in found:
                written += self._replace(group, truncations, end_offset)
            self._raise(truncations, unique=min(end_offset, *(part.whole_start for part in parts)))
        except (SegmentGoneError, CorruptLogError):
            if (
                self._stopped
                or self._state.truncations != truncations
                or any(not self._has(part.segment) for part in parts)
            ):
                # A truncation, retention or the end of the log was faster.
                raise _InterruptedError from None
            raise
        self._compacted_end, self._compacted_ms = end_offset, now_ms
        replaced = [part for group in found for part in group]
        return CompactionReport(
            sum(part.records for part in parts), sum(part.removed for part in parts), len(replaced),
            sum(part.segment.size_bytes for part in replaced), written,
        )  # fmt: skip

    def _has(self, segment: Segment) -> bool:
        with self._segments.lock:
            return segment in self._segments.items

    # --- what to compact ---

    def _settle_end(self) -> None:
        """Let the log end in the active segment, also if that is empty, so that the one before is closed."""
        state, segments = self._state, self._segments
        with self._durability.round_lock, state.disk():
            state.check_online()
            with segments.lock:
                active, end = segments.active, state.end
                if active.size_bytes == 0 and end.segment != active.base_offset:
                    state.end = end._replace(segment=active.base_offset, position=0)
            if state.flushed.segment != state.end.segment:
                self._durability.flush_dirty()

    def _parts(self, now_ms: int, high_watermark: int, *, waits: bool = True) -> list[_Part]:
        """Return the segments that may be compacted: closed, fsynced, committed, and if it `waits` not too young."""
        self._settle_end()
        state, segments = self._state, self._segments
        with segments.lock:
            pairs = list(pairwise(segments.items))
            limit = min(high_watermark, state.flushed.offset)
        lag_ms = state.settings.min_compaction_lag_ms if waits else 0
        oldest_ms = now_ms - lag_ms
        parts: list[_Part] = []
        for segment, following in pairs:
            is_young = lag_ms and self._retention.last_append_ms(segment) > oldest_ms
            if following.base_offset > limit or segment.base_offset >= state.flushed.segment or is_young:
                break
            parts.append(_Part(segment, following.base_offset))
        return parts

    def is_due(self, now_ms: int, high_watermark: int) -> bool:
        """Return whether to compact the log at `now_ms`, in ms since 1970. May block; raises as `compact`.

        It is if enough of the closed segments has not been compacted, one of them for long, or deletions are old.
        """
        settings, parts = self._state.settings, self._parts(now_ms, high_watermark)
        dirty = [part for part in parts if part.end_offset > self._compacted_end]
        total_bytes = sum(part.segment.size_bytes for part in parts)
        if dirty and sum(part.segment.size_bytes for part in dirty) >= settings.min_dirty_ratio * total_bytes:
            return True
        if dirty and self._retention.last_append_ms(dirty[0].segment) <= now_ms - settings.max_compaction_lag_ms:
            return True
        if now_ms - self._compacted_ms < DELETIONS_EVERY_MS:
            return False
        oldest_ms = now_ms - settings.delete_retention_ms
        return any(
            0 <= self._deleted_ms(part.segment) <= oldest_ms or 0 <= self._expired_ms(part.segment) <= oldest_ms
            for part in parts
        )

    def _deleted_ms(self, segment: Segment) -> int:
        """Return when the first batch with a null value was appended to a closed segment; -1 if there is none."""
        if segment.deleted_ms is None:
            segment.deleted_ms = -1
            with suppress(SegmentGoneError), self._state.disk():
                headers = self._segments.walk(segment, segment.base_offset, self._interval_bytes)
                times = (header.append_timestamp_ms for _, header in headers if header.flags & _NULL_VALUES)
                segment.deleted_ms = next(times, -1)
        return segment.deleted_ms

    def _expired_ms(self, segment: Segment) -> int:
        """Return when the first record of a closed segment has expired; -1 if none does, or the log is of no table."""
        if not self._state.settings.expires_records:
            return -1
        if segment.expired_ms is None:
            segment.expired_ms = -1
            with suppress(SegmentGoneError):
                ends = [_first_end(columns, header) for columns, header, _ in self._batches(segment)]
                segment.expired_ms = min((end for end in ends if end >= 0), default=-1)
        return segment.expired_ms

    @property
    def _interval_bytes(self) -> int:
        return self._state.settings.index_interval_bytes

    # --- which records stay ---

    def _select(self, parts: Sequence[_Part], now_ms: int, kept: Kept, purged: PurgedRecords | None) -> None:
        """Find the records that stay: the newest of each key, unless it is an old deletion or has long expired."""
        for part in parts:
            self._select_undeleted(part, now_ms, kept, purged)
            if part.whole_start < MAX_OFFSET:  # A deletion behind it may delete what it has.
                kept = kept._replace(deletions_from=part.whole_start)
        self._select_newest(parts)
        for part in parts:
            part.removed = sum(int((~rows).sum()) for rows in part.rows if rows is not None)

    def _select_undeleted(self, part: _Part, now_ms: int, kept: Kept, purged: PurgedRecords | None) -> None:
        oldest_ms = now_ms - self._state.settings.delete_retention_ms
        chunks = _Chunks()
        for columns, header, _ in self._batches(part.segment):
            chunks.add(columns, header)
            at_ms = header.append_timestamp_ms
            is_whole = header.base_offset in kept.batches and at_ms > now_ms - kept.batches_ms
            gone = None if purged is None or columns is None else purged.removed(columns, now_ms)
            is_whole = is_whole and (gone is None or not gone.any())
            if is_whole:
                part.whole_start = min(part.whole_start, header.base_offset)
            is_kept = header.end_offset > min(kept.deletions_from, part.whole_start) or at_ms > oldest_ms
            rows = np.ones(header.record_count, np.bool_) if is_kept else _undeleted(columns, header)
            if not is_kept and self._state.settings.expires_records:
                expired_ms = _expiries_until(columns, oldest_ms)
                rows &= expired_ms == 0
                part.expired_ms = max(part.expired_ms, int(expired_ms.max(initial=0)))
            if gone is not None and gone.any():
                rows &= ~gone
                part.expired_ms = now_ms
            is_copied = is_whole or columns is None or (columns.key_column is None and header.record_count)
            part.rows.append(None if is_copied else rows)
            if not rows.all():
                part.deletions_end = header.end_offset
            part.records += header.record_count
            part.kept_bytes += header.batch_bytes
        part.chunks = chunks.all()

    def _select_newest(self, parts: Sequence[_Part]) -> None:
        """Unselect the records that have a newer one of their key, from the newest chunk to the oldest.

        Each record is read and looked up once if the keys fit into memory, and else once for each part of them.
        """
        seed = int.from_bytes(os.urandom(8), "little")
        next_hash: int | None = 0
        while next_hash is not None:
            newer = NewerKeys(seed, KEY_MEMORY_BYTES, next_hash)
            for part in reversed(parts):
                is_dirty = part.end_offset > self._ends.unique
                for chunk in reversed(part.chunks):
                    self._unselect_replaced(part, chunk, newer, takes=is_dirty)
            next_hash = newer.next_hash

    def _unselect_replaced(self, part: _Part, chunk: _Chunk, newer: NewerKeys, *, takes: bool) -> None:
        """Unselect the records of a chunk that have a newer one of their key; a record without a key stays."""
        masks = part.rows[chunk.row : chunk.end_row]
        if not takes and not any(rows is not None and rows.any() for rows in masks):
            return
        keys, valid, compared = list[BinaryColumn](), list[Mask](), list[Mask | None]()
        for (columns, _, _), rows in zip(self._batches(part.segment, chunk), masks, strict=True):
            if columns is not None and columns.key_column is not None and columns.record_count:
                valid.append(columns.key_column.valid())
                keys.append(columns.key_column.take(valid[-1]).copied())  # The values are freed.
                compared.append(rows)
        replaced, position = newer.replaced(keys, takes=takes), 0
        for rows, are_valid in zip(compared, valid, strict=True):
            end = position + int(are_valid.sum())
            if rows is not None:
                rows[are_valid] &= ~replaced[position:end]
            position = end

    def _batches(
        self, segment: Segment, chunk: _Chunk | None = None
    ) -> Iterator[tuple[Columns | None, BatchHeader, memoryview]]:
        """Yield the batches of a closed segment, or of a chunk of it, checked; `None` for columns that cannot be
        decoded, which stay.
        """
        segments = self._segments
        position, end_position = (0, segment.size_bytes) if chunk is None else (chunk.position, chunk.end_position)
        segments.files.make_room()
        with self._state.disk():
            file = segments.pin(segment)
            try:
                read_at = segments.reader(file)
                before = ChainPoint.before(peek_header(read_at(HEADER_BYTES, position)))
                limit = self._state.settings.max_batch_bytes
                for item in check_batches(read_at, position, end_position, before, limit):
                    if self._stopped:
                        raise SegmentGoneError
                    if isinstance(item, BadBatch):
                        raise CorruptLogError(
                            item.reason, file=segment.path, offset=item.offset, position=item.position
                        )
                    yield _decoded(item[2], item[1]), item[1], item[2]
            finally:
                segments.files.unpin(file)

    # --- replacement ---

    def _groups(self, parts: Sequence[_Part]) -> Iterator[list[_Part]]:
        """Yield adjacent segments that become one."""
        group: list[_Part] = []
        for part in parts:
            kept = part.records - part.removed
            part.kept_bytes = part.kept_bytes * kept // max(1, part.records)
            size_bytes = part.kept_bytes + sum(each.kept_bytes for each in group)
            span = part.end_offset - (group[0] if group else part).segment.base_offset
            if group and (size_bytes > self._state.settings.segment_bytes or span > _MAX_SEGMENT_OFFSETS):
                yield group
                group = []
            group.append(part)
        yield group

    def _replace(self, group: Sequence[_Part], truncations: int, newer_end: int) -> int:
        """Write the segment that replaces a group and rename it; return its bytes.

        Newer records of those that go are below `newer_end`.
        """
        first, end_offset = group[0].segment, group[-1].end_offset
        is_again = len(group) == 1 and first.name.end_offset == end_offset
        name = SegmentName(first.base_offset, end_offset, first.name.version + 1 if is_again else 0)
        segment = self._segments.new_segment(name, 0)
        temporary = segment.path + _TEMPORARY_SUFFIX
        filesystem = self._segments.filesystem
        try:
            with self._state.disk():
                self._write(segment, temporary, group, newer_end)
            return self._install(segment, temporary, [part.segment for part in group], truncations)
        finally:
            with suppress(OSError):
                if filesystem.exists(temporary):
                    filesystem.unlink(temporary)

    def _write(self, segment: Segment, path: str, group: Sequence[_Part], newer_end: int) -> None:
        files, space = self._segments.files, self._state.environment.space
        files.make_room()
        file = pin_empty(files, path)
        try:
            position = 0

            def write(data: bytes) -> None:
                nonlocal position
                written = 0 if space.refusing else files.filesystem.pwritev(file.descriptor, [data], position)
                if written != len(data):
                    raise OSError(errno.ENOSPC, "no room for a compacted segment", path)
                position += written
                space.note_appended(written)

            writer = CompactedWriter(write, segment.index, self._interval_bytes)
            for part in group:
                removed = RemovedRecords(newer_end, part.expired_ms)
                for (columns, header, batch), rows in zip(self._batches(part.segment), part.rows, strict=True):
                    if columns is None or rows is None:
                        writer.copy(header, batch)
                    else:
                        writer.add(columns, batch, rows, removed)
            writer.finish()
            files.filesystem.fsync(file.descriptor)
            segment.size_bytes, segment.index_ready = writer.size_bytes, True
        finally:
            files.unpin(file)
            files.forget(path)

    def _install(self, segment: Segment, temporary: str, replaced: Sequence[Segment], truncations: int) -> int:
        """Rename a finished segment, and let it take the place of those that it replaces."""
        state, segments, durability = self._state, self._segments, self._durability
        with durability.round_lock, state.disk():
            state.check_online()
            with segments.lock:
                if state.truncations != truncations or any(each not in segments.items for each in replaced):
                    raise SegmentGoneError
            segments.drop_index_files(segment.stem)
            segments.filesystem.rename(temporary, segment.path)
            segments.filesystem.fsync_directory(state.directory)
            with segments.lock:
                segments.replace(replaced, segment)
                durability.note_replaced(segment)
            self._retention.remove_files(replaced)
        return segment.size_bytes


def _is_worth(group: Sequence[_Part]) -> bool:
    return len(group) >= MANY_SEGMENTS or any(part.removed for part in group)


def _decoded(batch: memoryview, header: BatchHeader) -> Columns | None:
    try:
        return decode_batch(batch, max_payload_bytes=header.payload_bytes)
    except (CorruptBatchError, UnsupportedCodecError):
        return None  # Its checksum is right: it was stored without a check of its columns.


def _undeleted(columns: Columns | None, header: BatchHeader) -> Mask:
    """Return which records are not deletions: null values of a key."""
    if columns is None or columns.key_column is None:
        return np.ones(header.record_count, np.bool_)
    return columns.value_column.valid() | ~columns.key_column.valid()


def _expiries(columns: Columns | None) -> Int64s | None:
    """Return when each record expires, `0` for one that does not; `None` if none of the batch does."""
    if columns is None or columns.key_column is None or columns.header_columns is None:
        return None
    expires_ms = expiries_of(columns)
    if not expires_ms.any():
        return None
    keys = columns.keys()
    return np.where([key is not None and is_table_key(key) for key in keys], expires_ms, 0)


def _first_end(columns: Columns | None, header: BatchHeader) -> int:
    """Return when the first record of a batch has expired, not before it was appended; -1 if none does."""
    expires_ms = _expiries(columns)
    found = () if expires_ms is None else expires_ms[expires_ms > 0]
    return max(int(min(found)), header.append_timestamp_ms) if len(found) else -1


def _expiries_until(columns: Columns | None, end_ms: int) -> Int64s:
    """Return when each record expired, up to a time in ms since 1970; `0` for the others."""
    expires_ms = _expiries(columns)
    return np.zeros(1, np.int64) if expires_ms is None else np.where(expires_ms <= end_ms, expires_ms, 0)
