"""Durable state of one log: fsync rounds, checkpoints, index files, the epoch file.

A call that fails because the disk is full or the machine is busy leaves its write pending for the next call.

Belongs to a `PartitionLog`. The methods that document which HeadraceErrors they raise run in any thread: `round_lock`
serialises them with `PartitionLog.flush` and with operations that shorten the log, is held during fsyncs, and is taken
before the segment list's lock. Methods that raise OSError are called by the log's parts, which hold it.
"""

from __future__ import annotations

import threading
from functools import partial

from headrace.log.checkpoint import Checkpoint, CheckpointFile, Mark, replace_file, seal
from headrace.log.epochs import EPOCHS_FILE
from headrace.log.errors import is_no_room, is_refused
from headrace.log.log_state import LogState
from headrace.log.open_files import OpenFile
from headrace.log.scan import ChainPoint, write_again
from headrace.log.segment import Segment


class LogDurability:
    """Moves the recovery point, and writes the files from which a restart recovers."""

    def __init__(self, state: LogState, checkpoint_file: CheckpointFile) -> None:
        self.round_lock = threading.RLock()
        # Whether a file was created or renamed in the log's directory since its last fsync.
        self.directory_dirty = False
        # Whether the epochs have changed since the epoch file was written.
        self.epochs_due = False
        # Whether an fsync failed: clean pages in the page cache may be missing on the disk.
        self._in_doubt = False
        self._held = 0  # rolled segments with a pinned file
        self._space = state.environment.space
        self._state = state
        self._segments = state.segments
        self._checkpoint_file = checkpoint_file
        self._checkpoint_due = False
        self._last_checkpoint: Checkpoint | None = None
        self._noted_high_watermark = 0
        self._last_checkpoint_ms = -(2**62)
        self._unwritten_indexes: list[Segment] = []

    def settle_opened(self, stored: Checkpoint | None) -> None:
        """Make the recovered state durable; `stored` is the checkpoint that recovery read. Raises OSError."""
        self.flush_dirty()
        if self._make_checkpoint() != stored:
            self.write_checkpoint(both=stored is None)
        self._last_checkpoint = self._make_checkpoint()

    def flush_dirty(self) -> None:
        """Fsync each dirty file, and the directory if a segment is new; then move the mark. Raises OSError.

        Files that are not fsynced stay dirty. After a failed fsync the kernel may have marked pages clean that never
        reached the disk, and a second fsync would not report them: they are rewritten first (fsyncgate, H34).
        """
        with self._segments.lock:
            target = self._state.end
        self._write_again(target)
        with self._segments.lock:
            dirty = [segment for segment in self._segments.items if segment.dirty]
            directory_dirty = self.directory_dirty
        for segment in dirty:
            self._sync(segment)
        self._in_doubt = False
        if directory_dirty:
            self.directory_dirty = False
            try:
                self._segments.filesystem.fsync_directory(self._state.directory)
            except OSError:
                self.directory_dirty = True
                raise
        with self._segments.lock:
            self._state.flushed = target

    def _sync(self, segment: Segment) -> None:
        file = self._segments.files.pin(segment.path)
        segment.dirty = False
        try:
            self.sync_file(file)
        except OSError:
            segment.dirty = True
            raise
        finally:
            self._segments.files.unpin(file)
        self.release(segment)

    def sync_file(self, file: OpenFile) -> None:
        """Fsync a segment's file; if that fails, its bytes beyond the mark are in doubt. Raises OSError."""
        try:
            self._segments.filesystem.fsync(file.descriptor)
        except OSError:
            self._in_doubt = True
            raise

    @property
    def holds_files(self) -> bool:
        """Whether rolled segments wait for their fsync, each with an open descriptor: flush the log soon."""
        return self._held > 0

    def release(self, segment: Segment) -> None:
        """Unpin the file of a rolled segment that was synced or has left the log."""
        with self._segments.lock:
            file, segment.held_file = segment.held_file, None
            self._held -= file is not None
        if file is not None:
            self._segments.files.unpin(file)

    def _write_again(self, target: Mark) -> None:
        """Write the bytes between the mark and `target` again if they are in doubt. Raises OSError."""
        if not self._in_doubt:
            return
        mark, segments = self._state.flushed, self._segments
        before = ChainPoint(mark.offset, mark.crc, mark.epoch)
        with segments.lock:
            parts = [each for each in segments.items if mark.segment <= each.base_offset <= target.segment]
        for segment in parts:
            position = mark.position if segment.base_offset == mark.segment else 0
            end_position = target.position if segment.base_offset == target.segment else segment.size_bytes
            file = segments.files.pin(segment.path)
            try:
                before = write_again(segments.filesystem, file.descriptor, segment.path, position, end_position, before)
            finally:
                segments.files.unpin(file)
            segment.dirty = True

    def is_stale(self, high_watermark: int) -> bool:
        """Return whether `checkpoint` would write; a hint that takes no lock and never blocks."""
        last, state = self._last_checkpoint, self._state
        return (
            last is None
            or self._checkpoint_due
            or state.offline_error is not None  # `checkpoint` raises it
            or (last.log_start_offset, last.high_watermark) != (state.log_start_offset, high_watermark)
            or last.mark != state.flushed
        )

    def checkpoint(self, at_ms: int, high_watermark: int, *, force: bool = False) -> bool:
        """Write recovery point, log start, high watermark and new index entries if due at `at_ms` (monotonic).

        Return whether it wrote. Due if something changed and `checkpoint_interval_ms` has passed, a segment was rolled,
        or `force` is set. Fsyncs one small file. The broker calls it about every second for each log. Raises as
        `PartitionLog.flush`.
        """
        state = self._state
        with self.round_lock:
            state.check_online()
            with self._segments.lock:
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

    def note_high_watermark(self, high_watermark: int) -> None:
        """Write the high watermark without an fsync, in case this process is killed before the next checkpoint.

        One small write. Raises as `PartitionLog.flush`.
        """
        state = self._state
        with self.round_lock:
            last = self._last_checkpoint
            if last is None or high_watermark <= max(last.high_watermark, self._noted_high_watermark):
                return
            state.check_online()
            with state.disk():
                self._checkpoint_file.note(last._replace(high_watermark=high_watermark))
            self._noted_high_watermark = high_watermark

    def write_checkpoint(self, content: Checkpoint | None = None, *, both: bool = False) -> None:
        """Write a checkpoint of the current state, or `content`, to one slot or to both. Raises OSError."""
        self._write(content or self._make_checkpoint(), both=both)

    def write_all(self, high_watermark: int | None) -> None:
        """Write all state, so that the next start scans nothing. Raises OSError."""
        self.flush_dirty()
        self.write_epochs()
        if high_watermark is not None:
            self._state.high_watermark = high_watermark
        if self._make_checkpoint() != self._last_checkpoint:
            self.write_checkpoint()
        self._write_indexes()

    def note_rolled(self, closed: Segment, file: OpenFile | None) -> None:
        """Record a closed segment: its index must be written, and its pinned `file` stays pinned until it is synced.

        Called under the segment list's lock.
        """
        if file is not None and closed.dirty and closed.held_file is None:
            closed.held_file = file
            self._held += 1
        elif file is not None:
            self._segments.files.unpin(file)  # It is synced, or held since it was closed before a truncation.
        self._unwritten_indexes.append(closed)
        self._checkpoint_due = True

    def forget_removed(self) -> None:
        """Drop pending index writes of removed segments. Called under the segment list's lock."""
        closed = self._segments.items[:-1]
        self._unwritten_indexes = [segment for segment in self._unwritten_indexes if segment in closed]

    def note_replaced(self, segment: Segment) -> None:
        """Record that a segment has replaced others. Called under the segment list's lock."""
        self.forget_removed()
        self._unwritten_indexes.append(segment)
        self._checkpoint_due = True

    def write_epochs(self) -> None:
        """Replace the epoch file if it is due. Raises OSError."""
        if self.epochs_due:
            content = seal(self._state.epochs.encode())
            replace = partial(replace_file, self._segments.filesystem, self._state.directory, EPOCHS_FILE, content)
            self._space.with_reserve(replace)
            self.epochs_due = False

    def _make_checkpoint(self) -> Checkpoint:
        state = self._state
        return Checkpoint(state.log_start_offset, state.high_watermark, state.flushed)

    def _write(self, content: Checkpoint, *, both: bool) -> None:
        self._last_checkpoint = None  # unknown until the write succeeds
        self._space.with_reserve(lambda: self._checkpoint_file.write(content, both=both))
        self._last_checkpoint, self._noted_high_watermark = content, 0

    def _write_indexes(self) -> None:
        """Write new index entries; if refused they stay in memory, and a restart scans the headers instead."""
        with self._segments.lock:
            try:
                for segment in (*self._unwritten_indexes, self._segments.active):
                    segment.index.write()
                self._unwritten_indexes.clear()
            except OSError as error:
                if not is_refused(error):
                    raise
                if is_no_room(error):
                    self._space.note_full()
