"""Compaction of one log: of each key the newest record stays, with its offset, and a deleted key goes.

Closed segments below the high watermark are read (`headrace.log.closed_segments`), the records that stay are selected
(`headrace.log.record_selection`), and compacted segments take the place of those that were read
(`headrace.log.segment_replacement`). Belongs to a `PartitionLog`; `compact` runs in any thread, concurrently with
appends and reads, once at a time.

A null value deletes its key. It stays for `delete_retention_ms` after its append, so that readers and followers see
it, and then goes, too. So does a record of a table, that long after it has expired. Both are *deletions* below: they go
with all that they replace, and a follower that may have missed one begins again (`deletions_end`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.closed_segments import ClosedSegments
from headrace.log.durability import LogDurability
from headrace.log.errors import CorruptLogError
from headrace.log.log_retention import LogRetention
from headrace.log.log_state import LogState
from headrace.log.purged_records import PurgedRecords
from headrace.log.record_selection import NOTHING_KEPT, Kept, SelectedSegment, select_records
from headrace.log.segment import Segment
from headrace.log.segment_replacement import SegmentReplacement, groups_worth_replacing
from headrace.log.segments import SegmentGoneError

DELETIONS_EVERY_MS = 1_800_000
"""Least time between two compactions for the sake of old deletions: all that are due are removed together."""
COMPACTION_FILE = "compaction"
"""Sealed file: the offsets below which deletions may be missing, and below which no key has two records."""


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


class _InterruptedError(Exception):
    """The log was truncated, cut off at its start or closed meanwhile; never leaves this module."""


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
        self._closed = ClosedSegments(state)
        self._replacement = SegmentReplacement(state, durability, retention, self._closed)
        self._running = threading.Lock()
        stored = read_sealed(self._segments.filesystem, f"{state.directory}/{COMPACTION_FILE}")
        if stored is None:
            compacted = [segment.name.end_offset for segment in self._segments.items if segment.is_compacted]
            self._ends = _Ends(max(compacted, default=0), 0)
        else:
            self._ends = _Ends(*map(int, stored.split()))
        self._compacted_ms = -DELETIONS_EVERY_MS
        # Up to here the segments have been compacted.
        self._compacted_end = min(self._ends.unique, state.end.offset)
        self._due_ms: int | None = None

    @property
    def deletions_end(self) -> int:
        """Offset below which deletions may have been removed; 0 means that none have.

        A log that was copied up to a lower offset may have records whose deletion this log does not have any more.
        """
        return self._ends.deletions

    @property
    def removed_deletions_end(self) -> int:
        """End of the last deletion that was removed since `watch_deletions` was called."""
        return self._replacement.removed_deletions_end

    def watch_deletions(self) -> None:
        """Begin with `removed_deletions_end`, for what is read from now on. May block."""
        with self._durability.round_lock:
            self._replacement.removed_deletions_end = 0

    @property
    def end_offset(self) -> int:
        """Offset below which the records have been compared with each other."""
        return self._compacted_end

    @property
    def uncompacted_bytes(self) -> int:
        """Bytes of the segments that have not been compacted, the active one included."""
        with self._segments.lock:
            items = self._segments.items
            return sum(segment.size_bytes for segment in items if segment.base_offset >= self._compacted_end)

    def overdue_ms(self, now_ms: int) -> int:
        """Return for how long the log has been due each time that this was looked at; 0 if it was not at the last."""
        return 0 if self._due_ms is None else max(0, now_ms - self._due_ms)

    def settle_opened(self) -> None:
        """Adapt to the end of the log that was recovered. Raises OSError."""
        self._note(self._ends.cut(self._state.end.offset))

    def raise_deletions_end(self, offset: int) -> None:
        """Store (fsync) that deletions below `offset` may be missing here, before they are. Raises StorageFullError."""
        self._raise(self._state.truncations, deletions=offset)

    def _raise(self, truncations: int, *, deletions: int = 0, unique: int = 0) -> None:
        """Raise these ends. Raises SegmentGoneError if the log has been truncated since there were `truncations`."""
        state = self._state
        with self._durability.round_lock, state.disk():
            state.check_online()
            if state.truncations != truncations:
                raise SegmentGoneError
            self._note(_Ends(max(self._ends.deletions, deletions), max(self._ends.unique, unique)))

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
        self._closed.stopped = True
        self.wait()

    def wait(self) -> None:
        """Wait until the compaction in progress has ended."""
        with self._running:
            pass

    def compact(self, now_ms: int, high_watermark: int, kept: Kept = NOTHING_KEPT) -> CompactionReport | None:
        """Compact what is closed and committed at `now_ms`, in ms since 1970; return `None` if there is nothing.

        What is `kept` stays besides the newest records. Raises CorruptLogError, StorageFullError, StorageOfflineError:
        the log is as it was, or compacted in part.
        """
        with self._running:
            try:
                parts = self._parts(now_ms, high_watermark)
                return self._compact(parts, now_ms, kept) if parts else None
            except _InterruptedError:
                return None

    def purge(
        self, now_ms: int, high_watermark: int, kept: Kept, purged: PurgedRecords, end_offset: int
    ) -> CompactionReport | None:
        """Compact as `compact`, without some records; everything below `end_offset` is closed.

        What is too young to be compacted loses these records, and what they delete, alone.

        A batch with such a record is not `kept` as it is. Return `None` if not everything below `end_offset` could be
        compacted: the log was truncated or closed meanwhile, or that is not committed or fsynced; try again.
        """
        with self._running:
            try:
                parts = self._parts(now_ms, high_watermark, takes_young=True)
                with self._segments.lock:
                    start_offset = self._segments.items[0].base_offset
                if (parts[-1].end_offset if parts else start_offset) < end_offset:
                    return None
                return self._compact(parts, now_ms, kept, purged) if parts else CompactionReport(0, 0, 0, 0, 0)
            except _InterruptedError:
                return None

    def _compact(
        self, parts: Sequence[SelectedSegment], now_ms: int, kept: Kept, purged: PurgedRecords | None = None
    ) -> CompactionReport:
        """Compact these segments; raise _InterruptedError if they are not those of the log any more."""
        truncations, end_offset = self._state.truncations, parts[-1].end_offset
        compared_end = max((part.end_offset for part in parts if not part.is_young), default=0)
        try:
            settings = self._state.settings
            select_records(self._closed, parts, settings, now_ms, kept, purged, self._ends.unique)
            found = groups_worth_replacing(parts, settings.segment_bytes)
            self._raise(truncations, deletions=max(part.deletions_end for part in parts))
            written = 0
            if found:
                with self._durability.round_lock, self._state.disk():  # No slot may name a segment that is replaced.
                    self._durability.write_checkpoint(both=True)
            for group in found:
                written += self._replacement.replace(group, truncations, end_offset)
            self._raise(truncations, unique=min(compared_end, *(part.whole_start for part in parts)))
        except (SegmentGoneError, CorruptLogError):
            if (
                self._closed.stopped
                or self._state.truncations != truncations
                or any(not self._has(part.segment) for part in parts)
            ):
                # A truncation, retention or the end of the log was faster.
                raise _InterruptedError from None
            raise
        self._compacted_end, self._compacted_ms = max(self._compacted_end, compared_end), now_ms
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

    def _parts(self, now_ms: int, high_watermark: int, *, takes_young: bool = False) -> list[SelectedSegment]:
        """Return the segments that may be compacted: closed, fsynced, committed; if it `takes_young`, also too young.

        Raises _InterruptedError.
        """
        self._settle_end()
        state, segments = self._state, self._segments
        with segments.lock:
            pairs = list(pairwise(segments.items))
            limit = min(high_watermark, state.flushed.offset)
        lag_ms, is_young = state.settings.min_compaction_lag_ms, False
        parts: list[SelectedSegment] = []
        for segment, following in pairs:
            if following.base_offset > limit or segment.base_offset >= state.flushed.segment:
                break
            with self._interruptible():
                is_young = is_young or (lag_ms > 0 and self._retention.last_append_ms(segment) > now_ms - lag_ms)
            if is_young and not takes_young:
                break
            parts.append(SelectedSegment(segment, following.base_offset, is_young))
        return parts

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Raise _InterruptedError instead of an error that a removal or a truncation meanwhile explains."""
        truncations = self._state.truncations
        try:
            yield
        except (SegmentGoneError, CorruptLogError) as error:
            if isinstance(error, CorruptLogError) and self._state.truncations == truncations:
                raise
            raise _InterruptedError from None

    def is_due(self, now_ms: int, high_watermark: int) -> bool:
        """Return whether to compact the log at `now_ms`, in ms since 1970. May block; raises as `compact`.

        It is if enough of the closed segments has not been compacted, one of them for long, or deletions are old.
        """
        try:
            with self._interruptible():
                is_due = self._is_due(now_ms, high_watermark)
        except _InterruptedError:
            is_due = False
        if not is_due:
            self._due_ms = None
        elif self._due_ms is None:
            self._due_ms = now_ms
        return self._due_ms is not None

    def _is_due(self, now_ms: int, high_watermark: int) -> bool:
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
        return any(self._closed.has_deletions_before(part.segment, oldest_ms) for part in parts)
