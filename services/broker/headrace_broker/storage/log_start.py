"""The start of one log: retention and `delete_records` raise it, and segments below it go (paper section 3.1, I18).

Belongs to a `PartitionLog`, which documents the methods it passes through and calls them from its one thread.
"""

from __future__ import annotations

from itertools import pairwise

from headrace.wire.errors import OffsetOutOfRangeError
from headrace.wire.ids import Offset

from headrace_broker.storage.durability import LogDurability
from headrace_broker.storage.environment import LogEnvironment
from headrace_broker.storage.epochs import EpochHistory
from headrace_broker.storage.log_state import LogState
from headrace_broker.storage.removal import DeletedFiles, RetentionResult, SegmentAge, clock_jumped, expired
from headrace_broker.storage.segment import Segment
from headrace_broker.storage.segments import SegmentList


class LogStart:
    """Raises the log start, never lowers it."""

    def __init__(
        self,
        environment: LogEnvironment,
        state: LogState,
        segments: SegmentList,
        epochs: EpochHistory,
        durability: LogDurability,
    ) -> None:
        self._files = environment.files
        self._filesystem = environment.filesystem
        self._state = state
        self._segments = segments
        self._epochs = epochs
        self._durability = durability
        self._deleted = DeletedFiles(environment.files)
        self._last_retention_ms: int | None = None

    def apply_retention(self, now_ms: int, high_watermark: int) -> RetentionResult:
        """See `PartitionLog.apply_retention`."""
        state, segments = self._state, self._segments
        state.check_online()
        jumped = clock_jumped(self._last_retention_ms, now_ms, state.settings.clock_jump_ms)
        self._last_retention_ms = now_ms
        if jumped:
            return RetentionResult(0, 0, True)
        total_bytes = segments.size_bytes()
        ages: list[SegmentAge] = []
        count = 0
        for segment, following in pairwise(segments.items):
            ages.append(SegmentAge(following.base_offset, segment.size_bytes, self._last_append_ms(segment)))
            count = expired(ages, total_bytes, high_watermark, now_ms, state.settings)
            if count < len(ages):
                break
        if count:
            self._raise_to(ages[count - 1].end_offset)
        return RetentionResult(count, sum(age.size_bytes for age in ages[:count]), False)

    def _last_append_ms(self, segment: Segment) -> int:
        if not segment.index_ready:
            with self._state.disk():
                file = self._files.pin(segment.path)
                try:
                    read_at = self._segments.reader(file)
                    self._segments.ready_index(segment, read_at, self._state.settings.index_interval_bytes)
                finally:
                    self._files.unpin(file)
        return segment.index.max_append_ms

    def delete_records(self, before: int, high_watermark: int) -> Offset:
        """See `PartitionLog.delete_records`."""
        state = self._state
        state.check_online()
        if before > min(high_watermark, state.end.offset):
            raise OffsetOutOfRangeError(f"offset {before} is above the high watermark {high_watermark}")
        if before > state.log_start_offset:
            self._raise_to(before)
        return Offset(state.log_start_offset)

    def _raise_to(self, offset: int) -> None:
        """Persist the log start, then let the segments below it go."""
        state, segments, durability = self._state, self._segments, self._durability
        with durability.round_lock, state.disk():
            with segments.lock:
                state.log_start_offset = offset
                state.high_watermark = max(state.high_watermark, offset)
                epochs_changed = self._epochs.cut_start(offset)
            if state.flushed.offset < offset:
                durability.flush_dirty()  # the recovery point may not lie in a segment that goes
            durability.write_checkpoint(both=True)
            if epochs_changed:
                durability.write_epochs()
            with segments.lock:
                gone = [s for s, following in pairwise(segments.items) if following.base_offset <= offset]
                for segment in gone:
                    segments.remove(segment)
                durability.forget_removed()
            for segment in gone:
                self._deleted.add(segment)
            if gone:
                self._filesystem.fsync_directory(state.directory)

    def remove_deleted_files(self, now_ms: int) -> int:
        """See `PartitionLog.remove_deleted_files`."""
        with self._state.disk():
            return self._deleted.remove_due(now_ms, self._state.settings.file_delete_delay_ms)
