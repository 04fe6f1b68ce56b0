"""Cutting the end of one log: truncation where a follower's log forked, and a start from nothing (H8, H32).

Belongs to a `PartitionLog`, which documents the methods it passes through and calls them from its one thread.
"""

from __future__ import annotations

from headrace.wire.batch import HEADER_BYTES
from headrace.wire.ids import Offset

from headrace_broker.storage.checkpoint import Mark
from headrace_broker.storage.durability import LogDurability
from headrace_broker.storage.environment import LogEnvironment
from headrace_broker.storage.epochs import EpochHistory
from headrace_broker.storage.log_reader import LogReader
from headrace_broker.storage.log_state import LogState
from headrace_broker.storage.producer_snapshots import ProducerSnapshots
from headrace_broker.storage.segment import LOG_SUFFIX, Segment
from headrace_broker.storage.segments import SegmentList


class LogEnd:
    """Lowers the log end; whatever describes records above it goes too."""

    def __init__(
        self,
        environment: LogEnvironment,
        state: LogState,
        segments: SegmentList,
        epochs: EpochHistory,
        durability: LogDurability,
        reader: LogReader,
        snapshots: ProducerSnapshots,
    ) -> None:
        self._files = environment.files
        self._filesystem = environment.filesystem
        self._state = state
        self._segments = segments
        self._epochs = epochs
        self._durability = durability
        self._reader = reader
        self._snapshots = snapshots

    def truncate_to(self, offset: int) -> Offset:
        """See `PartitionLog.truncate_to`."""
        state = self._state
        state.check_online()
        if offset < state.log_start_offset:
            self.reset_to(offset, 0)
        elif offset < state.end.offset:
            with self._durability.round_lock, state.disk():
                segment = self._segments.find(offset)
                position, header = next(self._segments.walk(segment, offset, state.settings.index_interval_bytes))
                cut = Mark(
                    header.base_offset,
                    segment.base_offset,
                    position,
                    header.previous_crc,
                    self._epoch_before(header.base_offset),
                )
                self._cut_to(segment, cut)
        return Offset(state.end.offset)

    def _epoch_before(self, offset: int) -> int:
        """The epoch of the last batch below `offset`; -1 for none."""
        before = [epoch for epoch, start in self._epochs.entries() if start < offset]
        return before[-1] if before else -1

    def _cut_to(self, segment: Segment, cut: Mark) -> None:
        """Make `cut` the end, in an order that a crash at any point leaves a whole log, perhaps the longer one."""
        state, segments, durability = self._state, self._segments, self._durability
        with segments.lock:
            self._snapshots.drop_above(cut.offset)
            state.flushed = min(state.flushed, cut)
            state.high_watermark = min(state.high_watermark, cut.offset)
            state.log_start_offset = min(state.log_start_offset, cut.offset)
            durability.write_checkpoint(both=True)
            for later in reversed([item for item in segments.items if item.base_offset > segment.base_offset]):
                self._discard(later)
            if segments.active_file.path != segment.path:
                self._files.unpin(segments.active_file)
                segments.active_file = self._files.pin(segment.path)
            self._cut_file(segment, cut.position)
            state.end = cut
            self._reader.forget_positions()
            durability.forget_removed()
            if self._epochs.cut_end(cut.offset):
                durability.write_epochs()
            durability.directory_dirty = True
            durability.flush_dirty()
            durability.write_checkpoint()

    def _cut_file(self, segment: Segment, size_bytes: int) -> None:
        """Cut the active segment's file and build its index again."""
        descriptor = self._segments.active_file.descriptor
        segment.cuts += 1
        self._filesystem.truncate(descriptor, size_bytes)
        self._filesystem.fsync(descriptor)
        segment.size_bytes = size_bytes
        segment.dirty = False
        self._segments.drop_index_files(segment)
        segment.index.reset()
        segment.index_ready = False
        read_at = self._segments.reader(self._segments.active_file)
        self._segments.ready_index(segment, read_at, self._state.settings.index_interval_bytes)
        if size_bytes:
            first = read_at(HEADER_BYTES, 0)
            segment.first_append_ms = int.from_bytes(first[8:16], "little", signed=True)

    def _discard(self, segment: Segment) -> None:
        """Remove a segment at the end of the log for good; slices of it raise SliceCutError."""
        segment.cuts += 1
        self._segments.remove(segment)
        self._segments.drop_index_files(segment)
        self._files.forget(segment.path)
        self._filesystem.unlink(segment.path)
        self._filesystem.fsync_directory(self._state.directory)

    def reset_to(self, offset: int, previous_crc: int) -> None:
        """See `PartitionLog.reset_to`."""
        state, segments = self._state, self._segments
        state.check_online()
        with self._durability.round_lock, segments.lock, state.disk():
            self._snapshots.drop_above(-1)
            # The first step is an empty log where it starts now, the second one where it shall start.
            first = segments.items[0]
            self._files.unpin(segments.active_file)
            segments.active_file = self._files.pin(first.path)
            self._cut_to(first, Mark(first.base_offset, first.base_offset, 0, previous_crc, -1))
            self._epochs.cut_end(0)
            self._durability.write_epochs()
            if offset != first.base_offset:
                file = self._files.pin_new(f"{state.directory}/{offset:020d}{LOG_SUFFIX}")
                self._filesystem.fsync_directory(state.directory)
                state.end = state.flushed = Mark(offset, offset, 0, previous_crc, -1)
                state.log_start_offset = state.high_watermark = offset
                self._durability.write_checkpoint(both=True)
                self._files.unpin(segments.active_file)
                self._discard(first)
                segments.add(offset, 0)
                segments.active_file = file
