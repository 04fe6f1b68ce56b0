"""Which records a compaction leaves: of each key the newest, unless that is an old deletion or has long expired.

`select_records` reads closed segments twice: first from the oldest batch to the newest, for deletions and for what is
kept in any case, then from the newest chunk to the oldest, for records that have a newer one of their key. A purge
reads segments that are too young for that, too: they lose its records alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headrace.log.closed_segments import ClosedSegments, expiries_until
from headrace.log.compacted_writer import Mask
from headrace.log.newer_keys import Keys, NewerKeys
from headrace.log.purged_records import PurgedRecords
from headrace.log.segment import Segment
from headrace.log.settings import LogSettings
from headrace.wire.batch import MAX_OFFSET, BatchHeader
from headrace.wire.decoded import BinaryColumn, Columns

KEY_MEMORY_BYTES = 64 << 20
"""Memory for keys: of more keys, part is compared with all records at a time."""
CHUNK_RECORDS = 100_000
"""Records whose keys are looked up together .."""
CHUNK_KEY_BYTES = 8 << 20
""".. unless these are larger."""


class Kept(NamedTuple):
    """What a compaction leaves besides the newest record of each key."""

    batches: frozenset[int] = frozenset()
    """Base offsets of batches that their producers may send again, and that therefore stay as they are (H48) .."""
    batches_ms: int = 0
    """.. for this time after their append, in milliseconds."""
    deletions_from: int = MAX_OFFSET
    """Deletions from this offset on stay: followers that copy the log have not reached them."""


NOTHING_KEPT = Kept()


@dataclass(slots=True)
class _Chunk:
    """Adjacent batches of a segment, by their places in it."""

    row: int
    position: int
    end_row: int
    end_position: int
    records: int = 0
    key_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.records >= CHUNK_RECORDS or self.key_bytes >= CHUNK_KEY_BYTES


@dataclass(slots=True)
class SelectedSegment:
    """Closed segment, and which of its records stay."""

    segment: Segment
    end_offset: int
    is_young: bool = False
    """Whether it was appended within `min_compaction_lag_ms`, as all that follow: only purged records go."""
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

    def add_batch(self, columns: Columns | None, header: BatchHeader, rows: Mask | None) -> None:
        """Add the next batch, of which these rows stay unless there are newer ones."""
        chunk = self.chunks[-1] if self.chunks else _Chunk(0, 0, 0, 0)
        if not self.chunks or chunk.is_full:
            chunk = _Chunk(chunk.end_row, chunk.end_position, chunk.end_row, chunk.end_position)
            self.chunks.append(chunk)
        chunk.end_row += 1
        chunk.end_position += header.batch_bytes
        chunk.records += header.record_count
        if columns is not None and columns.key_column is not None:
            chunk.key_bytes += len(columns.key_column.data)
        self.rows.append(rows)
        self.records += header.record_count
        self.kept_bytes += header.batch_bytes


def select_records(
    closed: ClosedSegments, parts: Sequence[SelectedSegment], settings: LogSettings, now_ms: int,
    kept: Kept, purged: PurgedRecords | None, unique_end: int,
) -> None:  # fmt: skip
    """Select the records of adjacent segments that stay at `now_ms`, in ms since 1970.

    What is `kept` does, `purged` records do not. Below `unique_end` no key has two records. Raises as `closed`.
    """
    for part in parts:
        _select_undeleted(closed, part, settings, now_ms, kept, purged)
        if part.whole_start < MAX_OFFSET:  # A deletion behind it may delete what it has.
            kept = kept._replace(deletions_from=part.whole_start)
    _select_newest(closed, parts, unique_end, deletes=purged is not None and purged.deleted)
    for part in parts:
        part.removed = sum(int((~rows).sum()) for rows in part.rows if rows is not None)


def _select_undeleted(
    closed: ClosedSegments, part: SelectedSegment, settings: LogSettings, now_ms: int, kept: Kept,
    purged: PurgedRecords | None,
) -> None:  # fmt: skip
    oldest_ms = now_ms - settings.delete_retention_ms
    for columns, header, _ in closed.batches(part.segment):
        at_ms = header.append_timestamp_ms
        is_whole = header.base_offset in kept.batches and at_ms > now_ms - kept.batches_ms
        gone = None if purged is None or columns is None else purged.removed(columns, now_ms)
        is_whole = is_whole and (gone is None or not gone.any())
        if is_whole:
            part.whole_start = min(part.whole_start, header.base_offset)
        is_kept = part.is_young or header.end_offset > min(kept.deletions_from, part.whole_start) or at_ms > oldest_ms
        rows = np.ones(header.record_count, np.bool_) if is_kept else _undeleted(columns, header)
        if not is_kept and settings.expires_records:
            expired_ms = expiries_until(columns, oldest_ms)
            rows &= expired_ms == 0
            part.expired_ms = max(part.expired_ms, int(expired_ms.max(initial=0)))
        if gone is not None and gone.any():
            rows &= ~gone
            part.expired_ms = now_ms
        if not rows.all():
            part.deletions_end = header.end_offset
        is_copied = is_whole or columns is None or (columns.key_column is None and header.record_count)
        part.add_batch(columns, header, None if is_copied else rows)


def _undeleted(columns: Columns | None, header: BatchHeader) -> Mask:
    """Return which records are not deletions: null values of a key."""
    if columns is None or columns.key_column is None:
        return np.ones(header.record_count, np.bool_)
    return columns.value_column.valid() | ~columns.key_column.valid()


def _select_newest(
    closed: ClosedSegments, parts: Sequence[SelectedSegment], unique_end: int, *, deletes: bool
) -> None:  # fmt: skip
    """Unselect the records that have a newer one of their key, from the newest chunk to the oldest.

    Each record is read and looked up once if the keys fit into memory, and else once for each part of them. Records of
    young segments replace none, except those that are purged, which go with what they delete if it `deletes`.
    """
    seed = int.from_bytes(os.urandom(8), "little")
    next_hash: int | None = 0
    while next_hash is not None:
        newer = NewerKeys(seed, KEY_MEMORY_BYTES, next_hash)
        for part in reversed(parts):
            for chunk in reversed(part.chunks):
                if not part.is_young:
                    _unselect_replaced(closed, part, chunk, newer, takes=part.end_offset > unique_end)
                elif deletes:
                    _unselect_deleted(closed, part, chunk, newer)
        next_hash = newer.next_hash


def _unselect_replaced(
    closed: ClosedSegments, part: SelectedSegment, chunk: _Chunk, newer: NewerKeys, *, takes: bool
) -> None:
    """Unselect the records of a chunk that have a newer one of their key; a record without a key stays."""
    masks = part.rows[chunk.row : chunk.end_row]
    if not takes and not any(rows is not None and rows.any() for rows in masks):
        return
    compared = list(_compared(closed, part, chunk))
    _unselect(compared, newer.replaced([each.keys for each in compared], takes=takes))


def _unselect_deleted(closed: ClosedSegments, part: SelectedSegment, chunk: _Chunk, newer: NewerKeys) -> None:
    """Unselect the records of a young chunk that are followed by one of their key that was unselected before."""
    compared = list(_compared(closed, part, chunk))
    replaced = newer.replaced([each.keys for each in compared], takes=False)
    gone = [np.zeros(0, np.bool_), *(each.gone() for each in compared)]
    if any(mask.any() for mask in gone):
        replaced |= _are_followed([each.keys for each in compared], np.concatenate(gone))
        newer.replaced([each.keys.take(each.gone()) for each in compared], takes=True)
    _unselect(compared, replaced)


class _Compared(NamedTuple):
    """Keys of a batch, and its rows that stay; `None` means all."""

    keys: BinaryColumn
    valid: Mask
    rows: Mask | None

    def gone(self) -> Mask:
        """Return which of the keys are of records that are unselected."""
        return np.zeros(int(self.valid.sum()), np.bool_) if self.rows is None else ~self.rows[self.valid]


def _compared(closed: ClosedSegments, part: SelectedSegment, chunk: _Chunk) -> Iterator[_Compared]:
    """Yield the batches of a chunk that have keys."""
    batches = closed.batches(part.segment, chunk.position, chunk.end_position)
    for (columns, _, _), rows in zip(batches, part.rows[chunk.row : chunk.end_row], strict=True):
        if columns is not None and columns.key_column is not None and columns.record_count:
            valid = columns.key_column.valid()
            yield _Compared(columns.key_column.take(valid).copied(), valid, rows)  # The values are freed.


def _are_followed(keys: Sequence[BinaryColumn], gone: Mask) -> Mask:
    """Return which keys are once more behind, among those that are `gone`."""
    followed, later = np.zeros(len(gone), np.bool_), set[bytes]()
    for row, key in reversed(list(enumerate(Keys.of(keys).each()))):
        followed[row] = key in later
        if gone[row]:
            later.add(key)
    return followed


def _unselect(compared: Sequence[_Compared], replaced: Mask) -> None:
    position = 0
    for _, valid, rows in compared:
        end = position + int(valid.sum())
        if rows is not None:
            rows[valid] &= ~replaced[position:end]
        position = end
