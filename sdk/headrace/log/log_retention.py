"""Start of one log: retention and `delete_records` raise it and remove segments below it (paper 3.1, I18).

Belongs to a `PartitionLog`; its methods are called on the log's one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from headrace.log.checkpoint import Checkpoint
from headrace.log.durability import LogDurability
from headrace.log.errors import REFUSALS
from headrace.log.log_state import LogState
from headrace.log.removal import DeletedFiles, SegmentAge, expired
from headrace.log.segment import Segment
from headrace.log.segments import SegmentGoneError
from headrace.wire.errors import OffsetOutOfRangeError
from headrace.wire.ids import Offset


class LogRetention:
    """Raises the log start, never lowers it."""

    def __init__(self, state: LogState, durability: LogDurability) -> None:
        self._state = state
        self._segments = state.segments
        self._durability = durability
        self._deleted = DeletedFiles(self._segments.files)

    def plan(self, now_ms: int | None, high_watermark: int) -> Offset:
        """Return the log start after retention removes closed segments below `high_watermark` that exceed a limit.

        `now_ms` is `None` while the clock is not trusted: then no segment is too old (H43).
        """
        state, segments = self._state, self._segments
        state.check_online()
        with segments.lock:  # A compaction may replace segments meanwhile.
            pairs, total_bytes = list(pairwise(segments.items)), segments.size_bytes()
        ages: list[SegmentAge] = []
        count = 0
        for segment, following in pairs:
            try:
                ages.append(SegmentAge(following.base_offset, segment.size_bytes, self.last_append_ms(segment)))
            except SegmentGoneError:  # The next round looks at what has replaced it.
                break
            count = expired(ages, total_bytes, high_watermark, now_ms, state.settings)
            if count < len(ages):
                break
        return Offset(ages[count - 1].end_offset if count else state.log_start_offset)

    def last_append_ms(self, segment: Segment) -> int:
        """Return the append timestamp of the last batch of a closed segment. May block on the disk.

        Raises SegmentGoneError if the segment has left the log.
        """
        if not segment.index_ready:
            self._segments.files.make_room()
            with self._state.disk():
                file = self._segments.pin(segment)
                try:
                    read_at = self._segments.reader(file)
                    self._segments.ready_index(segment, read_at, self._state.settings.index_interval_bytes)
                finally:
                    self._segments.files.unpin(file)
        return segment.index.max_append_ms

    def delete_records(self, before: int, high_watermark: int) -> Offset:
        """Raise the log start to `before` (persisted first), remove segments wholly below it; return the log start.

        Raises OffsetOutOfRangeError if `before` is above `high_watermark`; a `before` below log start does nothing.
        """
        state = self._state
        state.check_online()
        if before > min(high_watermark, state.end.offset):
            raise OffsetOutOfRangeError(f"offset {before} is above the high watermark {high_watermark}")
        if before > state.log_start_offset:
            self._raise_to(before)
        return Offset(state.log_start_offset)

    def _raise_to(self, offset: int) -> None:
        """Persist the log start, then remove the segments below it."""
        state, durability = self._state, self._durability
        with durability.round_lock, state.disk():
            state.check_online()
            if offset > state.log_start_offset:
                high_watermark = max(state.high_watermark, offset)
                if state.flushed.offset < offset:
                    durability.flush_dirty()  # the recovery point must not lie in a removed segment
                durability.write_checkpoint(Checkpoint(offset, high_watermark, state.flushed), both=True)
                with self._segments.lock:
                    state.log_start_offset, state.high_watermark = offset, high_watermark
                    durability.epochs_due |= state.epochs.cut_start(offset)
        with suppress(*REFUSALS):  # The log start is persisted; a later round removes the segments still below it.
            self._remove_below_start()

    def _remove_below_start(self) -> None:
        """Remove everything below the log start. Idempotent."""
        state, segments, durability = self._state, self._segments, self._durability
        with durability.round_lock, state.disk():
            state.check_online()
            durability.write_epochs()
            with segments.lock:
                start = state.log_start_offset
                gone = [s for s, following in pairwise(segments.items) if following.base_offset <= start]
                for segment in gone:
                    segments.remove(segment)
                    durability.release(segment)
                    self._deleted.add(segment)
                durability.forget_removed()
            self._deleted.rename(state.directory)

    def remove_files(self, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that have left the log, under the round lock. Raises OSError."""
        for segment in segments:
            self._durability.release(segment)
            self._deleted.add(segment)
        self._deleted.rename(self._state.directory)

    def remove_deleted_files(self, now_ms: int) -> int:
        """Unlink unpinned files whose `file_delete_delay_ms` has passed; return the number of segments left.

        `now_ms` is of a monotonic clock. The delay starts at the first call after the removal.
        """
        state = self._state
        self._remove_below_start()
        with self._durability.round_lock, state.disk():
            return self._deleted.remove_due(now_ms, state.settings.file_delete_delay_ms)

    def purge_deleted_files(self) -> int:
        """Unlink unpinned files without a delay, durably; return the number of segments left, which are being read."""
        state = self._state
        self._remove_below_start()
        with self._durability.round_lock, state.disk():
            left = self._deleted.remove_unpinned()
            self._segments.filesystem.fsync_directory(state.directory)
            return left
