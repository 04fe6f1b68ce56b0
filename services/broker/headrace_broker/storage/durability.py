"""What of one log is on the disk for certain: fsync rounds, checkpoints, index files, the epoch file.

Belongs to a `PartitionLog`, which documents the methods it passes through. `flush` and `checkpoint` run in any thread;
`round_lock` serialises them with whatever shortens the log, is held over fsyncs, and is taken before the segment
list's lock.
"""

from __future__ import annotations

import threading

from headrace.wire.ids import Offset

from headrace_broker.storage.checkpoint import Checkpoint, CheckpointFile, replace_file, seal
from headrace_broker.storage.environment import LogEnvironment
from headrace_broker.storage.epochs import EPOCHS_FILE, EpochHistory
from headrace_broker.storage.errors import is_no_room
from headrace_broker.storage.log_state import LogState
from headrace_broker.storage.segment import Segment
from headrace_broker.storage.segments import SegmentList


class LogDurability:
    """Moves the durable mark, and keeps what a restart starts from."""

    def __init__(
        self,
        environment: LogEnvironment,
        state: LogState,
        segments: SegmentList,
        epochs: EpochHistory,
        checkpoint_file: CheckpointFile,
    ) -> None:
        self.round_lock = threading.RLock()
        # A file was made or renamed in the log's directory since it was last fsynced.
        self.directory_dirty = False
        self._files = environment.files
        self._filesystem = environment.filesystem
        self._space = environment.space
        self._state = state
        self._segments = segments
        self._lock = segments.lock
        self._epochs = epochs
        self._checkpoint_file = checkpoint_file
        self._checkpoint_due = False
        self._last_checkpoint: Checkpoint | None = None
        self._last_checkpoint_ms = -(2**62)
        self._unwritten_indexes: list[Segment] = []

    def settle_opened(self, stored: Checkpoint | None) -> None:
        """Make durable what recovery found, where `stored` is the checkpoint that it read. Raises OSError."""
        self.flush_dirty()
        if self._make_checkpoint() != stored:
            self.write_checkpoint(both=stored is None)
        self._last_checkpoint = self._make_checkpoint()

    def flush(self) -> Offset:
        """See `PartitionLog.flush`."""
        state = self._state
        wanted = state.end.offset
        with self.round_lock:
            state.check_online()
            if state.flushed.offset < wanted:
                with state.disk():
                    self.flush_dirty()
            return Offset(state.flushed.offset)

    def flush_dirty(self) -> None:
        """One fsync a dirty file, one of the directory if a segment is new; then the mark moves. Raises OSError."""
        with self._lock:
            target = self._state.end
            dirty = [segment for segment in self._segments.items if segment.dirty]
            files = [self._files.pin(segment.path) for segment in dirty]
            for segment in dirty:
                segment.dirty = False
            directory_dirty, self.directory_dirty = self.directory_dirty, False
        try:
            for file in files:
                self._filesystem.fsync(file.descriptor)
            if directory_dirty:
                self._filesystem.fsync_directory(self._state.directory)
        finally:
            for file in files:
                self._files.unpin(file)
        with self._lock:
            self._state.flushed = target

    def is_stale(self, high_watermark: int) -> bool:
        """See `PartitionLog.checkpoint_is_stale`."""
        last, state = self._last_checkpoint, self._state
        return (
            last is None
            or self._checkpoint_due
            or (last.log_start_offset, last.high_watermark) != (state.log_start_offset, high_watermark)
            or last.mark != state.flushed
        )

    def checkpoint(self, at_ms: int, high_watermark: int, *, force: bool) -> bool:
        """See `PartitionLog.checkpoint`."""
        state = self._state
        with self.round_lock:
            state.check_online()
            with self._lock:
                state.high_watermark = high_watermark
                content = self._make_checkpoint()
                waited = at_ms - self._last_checkpoint_ms >= state.settings.checkpoint_interval_ms
            if content == self._last_checkpoint or not (waited or force or self._checkpoint_due):
                return False
            with state.disk():
                self._write(content, both=False)
                self._write_indexes()
            self._last_checkpoint_ms = at_ms
            self._checkpoint_due = False
            return True

    def write_checkpoint(self, *, both: bool = False) -> None:
        """Write a checkpoint of how things stand, to one slot or to both. Raises OSError."""
        self._write(self._make_checkpoint(), both=both)

    def write_all(self, high_watermark: int | None) -> None:
        """Leave the disk so that the next start has nothing to scan. Raises OSError."""
        self.flush_dirty()
        if high_watermark is not None:
            self._state.high_watermark = high_watermark
        if self._make_checkpoint() != self._last_checkpoint:
            self.write_checkpoint()
        self._write_indexes()

    def note_rolled(self, closed: Segment) -> None:
        """A segment was closed: its index is still to be written. Called under the segment list's lock."""
        self._unwritten_indexes.append(closed)
        self._checkpoint_due = True

    def forget_removed(self) -> None:
        """Write no index of a segment that left the list. Called under the segment list's lock."""
        closed = self._segments.items[:-1]
        self._unwritten_indexes = [segment for segment in self._unwritten_indexes if segment in closed]

    def write_epochs(self) -> None:
        """Replace the epoch file. Raises OSError."""
        content = seal(self._epochs.encode())
        self._space.with_reserve(lambda: replace_file(self._filesystem, self._state.directory, EPOCHS_FILE, content))

    def _make_checkpoint(self) -> Checkpoint:
        state = self._state
        return Checkpoint(state.log_start_offset, state.high_watermark, state.flushed)

    def _write(self, content: Checkpoint, *, both: bool) -> None:
        self._space.with_reserve(lambda: self._checkpoint_file.write(content, both=both))
        self._last_checkpoint = content

    def _write_indexes(self) -> None:
        """Write new index entries; on a full disk they stay in memory, and a restart scans the headers instead."""
        with self._lock:
            try:
                for segment in (*self._unwritten_indexes, self._segments.active):
                    segment.index.write()
                self._unwritten_indexes.clear()
            except OSError as error:
                if not is_no_room(error):
                    raise
                self._space.note_full()
