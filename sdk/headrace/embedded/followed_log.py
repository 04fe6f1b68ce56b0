"""Log of a directory that this process only reads, up to the bounds that its writer has shown. Changes nothing.

The engine's own reader reads the files. The writer rolls, compacts and removes them meanwhile: where one is gone, the
directory is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.shared_bounds import SharedBounds
from headrace.log.checkpoint import Mark, read_sealed
from headrace.log.environment import LogEnvironment
from headrace.log.epochs import EPOCHS_FILE, EpochHistory, decode_epochs
from headrace.log.errors import CorruptLogError, storage_error
from headrace.log.log_compaction import COMPACTION_FILE
from headrace.log.log_reader import LogReader
from headrace.log.log_state import LogState
from headrace.log.recovery import Recovered, RecoveryReport
from headrace.log.segment import LOG_SUFFIX, SegmentName, replaced_segments, segment_names
from headrace.log.segments import SegmentList
from headrace.log.slices import Slice
from headrace.log.timestamps import TimestampedOffset, TimestampKind
from headrace.partition.log_settings import log_settings
from headrace.wire.batch import BatchHeader
from headrace.wire.errors import UnknownTopicIdError
from headrace.wire.ids import LeaderEpoch, Offset

ResultT = TypeVar("ResultT")


class _FollowedReader(LogReader):
    """Reader that looks at the log's directory again if its writer has removed a file since."""

    def __init__(self, state: LogState, log: FollowedLog) -> None:
        super().__init__(state)
        self._log = log

    @property
    def has_compacted_segments(self) -> bool:
        """As of now: compaction alone changes no bounds."""
        return super(_FollowedReader, self._log.read_again()).has_compacted_segments

    def read(self, offset: int, max_bytes: int, end_offset: int, *, nowait: bool = False) -> Slice:
        """See `LogReader`."""
        return self._again(LogReader.read, offset, max_bytes, end_offset, nowait=nowait)

    def batch_with(self, offset: int) -> BatchHeader:
        """See `LogReader`."""
        return self._again(LogReader.batch_with, offset)

    def offset_for_timestamp(self, timestamp_ms: int, kind: TimestampKind) -> TimestampedOffset | None:
        """See `LogReader`."""
        return self._again(LogReader.offset_for_timestamp, timestamp_ms, kind)

    def _again(self, method: Callable[..., ResultT], *arguments: Any, **options: Any) -> ResultT:
        try:
            return method(self, *arguments, **options)
        except CorruptLogError:
            return method(self._log.read_again(), *arguments, **options)


class FollowedLog:
    """Log of one partition, up to the bounds that its writer has told."""

    def __init__(self, environment: LogEnvironment, directory: str, topic: DirectoryTopic) -> None:
        self._environment = environment
        self.directory = directory
        self.lock = threading.RLock()
        """Held while bounds are read and followed."""
        self._topic = topic
        self._bounds: SharedBounds | None = None
        self._state: LogState | None = None

    def follow(self, bounds: SharedBounds) -> None:
        """Adopt new bounds. Raises StorageOfflineError, CorruptLogError."""
        before, state = self._bounds, self._state
        if bounds == before:
            return
        is_rolled = before is None or state is None or bounds.end_segment != before.end_segment
        is_cut = before is not None and (
            bounds.leader_epoch != before.leader_epoch
            or bounds.end_offset < before.end_offset
            or bounds.deletions_end != before.deletions_end
        )
        if is_rolled or is_cut or state is None or not _extend(state, bounds):
            self._read_directory(bounds)
        self._bounds = bounds

    def read_again(self) -> _FollowedReader:
        """Read the directory again, whose segments have changed; return a reader of what is there now."""
        with self.lock:
            assert self._bounds is not None, "it follows"
            self._read_directory(self._bounds)
            return self.reader

    def snapshot_reader(self) -> LogReader:
        """Return a reader of the files that were listed last, and of no later ones."""
        return LogReader(self._known)

    def _read_directory(self, bounds: SharedBounds) -> None:
        environment, filesystem = self._environment, self._environment.filesystem
        segments = SegmentList(environment.files, environment.index_cache, self.directory, _Nobody())
        try:
            present = segment_names(filesystem.list_directory(self.directory))
        except FileNotFoundError:
            raise UnknownTopicIdError(f"topic {self._topic.name} has been deleted") from None
        except OSError as error:
            raise storage_error(self.directory, error) from error
        try:
            replaced = replaced_segments(present)
            for name in present:
                if name not in replaced and name.base_offset <= bounds.end_segment:
                    is_last = name == SegmentName(bounds.end_segment)  # Compaction may have replaced it.
                    segments.add(name, bounds.end_position if is_last else self._size_of(name))
            content = read_sealed(filesystem, f"{self.directory}/{EPOCHS_FILE}")
        except FileNotFoundError as error:
            gone = error.filename or self.directory
            raise CorruptLogError("the file is gone", file=gone, offset=bounds.end_offset, position=0) from error
        except OSError as error:
            raise storage_error(self.directory, error) from error
        if not segments.items:
            raise CorruptLogError("there is no segment", file=self.directory, offset=bounds.end_offset, position=0)
        epochs = EpochHistory([]) if content is None else decode_epochs(content)
        active = segments.active
        end = max(bounds.end_offset, active.name.end_offset)  # What was compacted is visible.
        mark = Mark(end, active.base_offset, active.size_bytes, 0, bounds.leader_epoch)
        recovered = Recovered(
            bounds.log_start_offset, end, mark, epochs or EpochHistory([]), False,
            RecoveryReport(0, 0, "", False), active.base_offset, None,
        )  # fmt: skip
        self._state = LogState(environment, segments, log_settings(self._topic.config), recovered)
        self.reader = _FollowedReader(self._state, self)

    def _size_of(self, name: SegmentName) -> int:
        filesystem = self._environment.filesystem
        descriptor = filesystem.open(f"{self.directory}/{name.stem}{LOG_SUFFIX}")
        try:
            return filesystem.size(descriptor)
        finally:
            filesystem.close(descriptor)

    @property
    def _known(self) -> LogState:
        assert self._state is not None, "it follows"
        return self._state

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can be read."""
        return Offset(self._known.log_start_offset)

    @property
    def log_end_offset(self) -> Offset:
        """End of what is visible."""
        return Offset(self._known.end.offset)

    flushed_offset = log_end_offset

    @property
    def deletions_end(self) -> int:
        """As `LogCompaction.deletions_end`, which its file has before a compaction replaces others."""
        assert self._bounds is not None, "it follows"
        path = f"{self.directory}/{COMPACTION_FILE}"
        try:
            content = read_sealed(self._environment.filesystem, path)
        except OSError as error:
            raise storage_error(path, error) from error
        return self._bounds.deletions_end if content is None else int(content.split()[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self._known.segments.size_bytes()

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._known.segments.items)

    def epoch_end(self, leader_epoch: int) -> tuple[LeaderEpoch, Offset]:
        """As `PartitionLog.epoch_end`."""
        found = self._known.epochs.end_of(leader_epoch, self._known.end.offset)
        if found is None:
            return LeaderEpoch(-1), self.log_start_offset
        return LeaderEpoch(found[0]), Offset(found[1])

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """As `PartitionLog.epoch_at`."""
        return LeaderEpoch(self._known.epochs.epoch_at(offset))


class _Nobody:
    """Holder of no file."""

    def release_file(self, file: object, *, sync: bool) -> bool:
        """Release nothing."""
        return False


def _extend(state: LogState, bounds: SharedBounds) -> bool:
    """Adopt what was appended to the last file; return `False` if it is another one by now."""
    segments = state.segments
    if segments.active.is_compacted:
        return False
    with state.disk(), segments.lock:
        try:
            segments.extend(segments.active, bounds.end_position, state.settings.index_interval_bytes)
        except CorruptLogError:
            return False
        state.end = state.flushed = Mark(
            bounds.end_offset, bounds.end_segment, bounds.end_position, 0, bounds.leader_epoch
        )
        state.log_start_offset = bounds.log_start_offset
    return True
