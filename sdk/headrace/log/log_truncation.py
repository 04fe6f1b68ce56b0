"""End of one log: truncation where a follower's log diverged, and a reset to an empty log (H8, H32).

Belongs to a `PartitionLog`, which calls it under the round lock and within `LogState.disk`.
"""

from __future__ import annotations

from headrace.log.checkpoint import Checkpoint, Mark
from headrace.log.durability import LogDurability
from headrace.log.log_reader import LogReader
from headrace.log.log_state import LogState
from headrace.log.open_files import pin_empty
from headrace.log.producer_snapshots import ProducerSnapshots
from headrace.log.segment import LOG_SUFFIX, Segment, SegmentName, first_append_ms


class LogTruncation:
    """Lowers the log end, and removes all metadata of records above it."""

    def __init__(
        self, state: LogState, durability: LogDurability, reader: LogReader, snapshots: ProducerSnapshots
    ) -> None:
        self._state = state
        self._segments = state.segments
        self._epochs = state.epochs
        self._durability = durability
        self._reader = reader
        self._snapshots = snapshots
        self._discarded: list[Segment] = []  # removed from the log, last first, files still on the disk

    def truncate_to(self, offset: int) -> None:
        """Truncate the log before the batch that holds `offset`, which lies within it. Raises OSError.

        A compacted segment is removed as a whole.
        """
        segment = self._segments.find(offset)
        if segment.is_compacted:
            offset = segment.base_offset
        position, header = next(self._segments.walk(segment, offset, self._state.settings.index_interval_bytes))
        base_offset = header.base_offset
        epoch = self._epoch_before(base_offset)
        self._cut_to(segment, Mark(base_offset, segment.base_offset, position, header.previous_crc, epoch))

    def _epoch_before(self, offset: int) -> int:
        """Return the epoch of the last batch below `offset`; -1 if there is none."""
        before = [epoch for epoch, start in self._epochs.entries() if start < offset]
        return before[-1] if before else -1

    def _cut_to(self, segment: Segment, cut: Mark) -> None:
        """Make `cut` the end; a crash at any point leaves a complete log, at worst the longer one.

        Steps that can be refused come first and change nothing. Then the truncation counts; `remove_rest` can repeat.
        """
        state, segments, durability = self._state, self._segments, self._durability
        self._snapshots.drop_above(cut.offset)
        if segment.is_compacted:
            self._cut_before(segment, cut)
            return
        file = segments.pin(segment)
        try:
            read_at = segments.reader(file)
            index = segments.new_index(segment, read_at, state.settings.index_interval_bytes, cut.position)
            append_ms = first_append_ms(read_at, cut.position)
            lowered = Checkpoint(
                min(state.log_start_offset, cut.offset), min(state.high_watermark, cut.offset), min(state.flushed, cut)
            )
            durability.write_checkpoint(lowered, both=True)
            segments.drop_index_files(segment.stem)  # hints: rebuilt if the truncation is refused
        except BaseException:
            self._segments.files.unpin(file)
            raise
        with segments.lock:
            state.log_start_offset, state.high_watermark, state.flushed = lowered
            state.uncut = True
            state.truncations += 1
            segments.release_active()
            for later in reversed([item for item in segments.items if item.base_offset > segment.base_offset]):
                self._discard(later)
            segments.hold_active(file)
            segment.cuts += 1
            segment.size_bytes = cut.position
            segment.index.drop()
            segment.index, segment.index_ready = index, True
            segment.first_append_ms = append_ms
            state.end = cut
            self._reader.forget_positions()
            durability.forget_removed()
            durability.epochs_due |= self._epochs.cut_end(cut.offset)
            durability.directory_dirty = True
        self.remove_rest()
        durability.flush_dirty()
        durability.write_checkpoint()

    def _cut_before(self, compacted: Segment, cut: Mark) -> None:
        """Make the start of a compacted segment the end: its file is removed, and a new segment begins there."""
        lowered = min(self._state.log_start_offset, cut.offset), min(self._state.high_watermark, cut.offset)
        self._begin_segment(compacted, Checkpoint(*lowered, min(self._state.flushed, cut)), cut)
        self._durability.epochs_due |= self._epochs.cut_end(cut.offset)
        self._durability.flush_dirty()
        self._durability.write_checkpoint()

    def _discard(self, segment: Segment) -> None:
        """Remove a segment from the log; slices of it raise SliceCutError, and `remove_rest` removes its files."""
        segment.cuts += 1
        self._segments.remove(segment)
        self._durability.release(segment)
        self._segments.files.forget(segment.path)
        self._discarded.append(segment)

    def remove_rest(self) -> None:
        """Remove bytes beyond the log end from the disk: those of a refused append, or of an interrupted truncation.

        Synced, so that no later append is followed by old blocks (H32). Idempotent. Raises OSError.
        """
        state, segments, filesystem = self._state, self._segments, self._segments.filesystem
        if not state.uncut:
            return
        while self._discarded:
            segment = self._discarded[0]
            segments.drop_index_files(segment.stem)
            if filesystem.exists(segment.path):
                filesystem.unlink(segment.path)
            filesystem.fsync_directory(state.directory)
            del self._discarded[0]
        file = segments.open_active()
        filesystem.truncate(file.descriptor, segments.active.size_bytes)
        self._durability.sync_file(file)
        self._durability.write_epochs()
        state.uncut = False

    def reset_to(self, offset: int, previous_crc: int) -> None:
        """Empty the log and let it start at `offset`. Raises OSError."""
        self._snapshots.drop_above(-1)
        # First empty the log at its current start, then move the start.
        first = self._segments.items[0]
        self._cut_to(first, Mark(first.base_offset, first.base_offset, 0, previous_crc, -1))
        self._durability.epochs_due |= self._epochs.cut_end(0)
        self._durability.write_epochs()
        if offset != first.base_offset:
            start = Mark(offset, offset, 0, previous_crc, -1)
            self._begin_segment(self._segments.items[0], Checkpoint(offset, offset, start), start)

    def _begin_segment(self, first: Segment, bounds: Checkpoint, end: Mark) -> None:
        """Replace `first` and all segments after it by an empty one, where the log ends from now on."""
        state, segments = self._state, self._segments
        file = pin_empty(self._segments.files, f"{state.directory}/{end.offset:020d}{LOG_SUFFIX}")
        try:
            self._segments.filesystem.fsync_directory(state.directory)
            self._durability.write_checkpoint(bounds, both=True)
        except BaseException:
            self._segments.files.unpin(file)
            raise
        with segments.lock:
            state.uncut = True
            state.truncations += 1
            state.end = end
            state.log_start_offset, state.high_watermark, state.flushed = bounds
            segments.release_active()
            for each in reversed(segments.from_offset(first.base_offset)):
                self._discard(each)
            segments.add(SegmentName(end.offset), 0)
            segments.hold_active(file)
            self._reader.forget_positions()
            self._durability.forget_removed()
            self._durability.directory_dirty = True
        self.remove_rest()
