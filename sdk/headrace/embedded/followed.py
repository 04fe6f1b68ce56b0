"""Reader's side of a directory that another process writes to, or that no process has open. Changes nothing.

What is visible is told by the writer (`shared_bounds`); the files are read by the engine's own reader.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from headrace.embedded.catalogue import DirectoryTopic, DirectoryTopics
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.partitions import check_partition
from headrace.embedded.shared_bounds import BoundsReader, SharedBounds
from headrace.log.checkpoint import Mark, read_sealed
from headrace.log.environment import LogEnvironment
from headrace.log.epochs import EPOCHS_FILE, EpochHistory, decode_epochs
from headrace.log.errors import CorruptLogError, DirectoryInUseError, WrongDirectoryError, storage_error
from headrace.log.identity import read_identity
from headrace.log.index import IndexCache
from headrace.log.log_reader import LogReader
from headrace.log.log_state import LogState
from headrace.log.open_files import OpenFiles
from headrace.log.os_filesystem import OsFileSystem
from headrace.log.recovery import Recovered, RecoveryReport
from headrace.log.segment import LOG_SUFFIX, SegmentName, replaced_segments, segment_names
from headrace.log.segments import SegmentList
from headrace.log.settings import DiskLimits
from headrace.log.slices import Slice
from headrace.log.space import DiskSpaceGuard
from headrace.log.timestamps import TimestampedOffset, TimestampKind
from headrace.partition.log_settings import log_settings
from headrace.v1 import topics_pb2
from headrace.wire.batch import BatchHeader
from headrace.wire.errors import HeadraceError, UnknownPartitionError, UnknownTopicIdError
from headrace.wire.ids import LeaderEpoch, Offset

MAX_OPEN_FILES = 64
MAX_INDEX_BYTES = 16 << 20
ResultT = TypeVar("ResultT")


class ReadOnlyFileSystem(OsFileSystem):
    """The real file system, of which files are only read."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file that exists."""
        assert not create, "nothing is created"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


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
        if is_rolled or is_cut or state is None:
            self._read_directory(bounds)
        else:
            segments = state.segments
            with state.disk(), segments.lock:
                segments.extend(segments.active, bounds.end_position, state.settings.index_interval_bytes)
                state.end = state.flushed = _mark(bounds)
                state.log_start_offset = bounds.log_start_offset
        self._bounds = bounds

    def read_again(self) -> _FollowedReader:
        """Read the directory again, whose segments have changed; return a reader of what is there now."""
        with self.lock:
            assert self._bounds is not None, "it follows"
            self._read_directory(self._bounds)
            return self.reader

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
                    is_last = name.base_offset == bounds.end_segment
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
        recovered = Recovered(
            bounds.log_start_offset, bounds.end_offset, _mark(bounds), epochs or EpochHistory([]), False,
            RecoveryReport(0, 0, "", False), bounds.end_segment, None,
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


def _mark(bounds: SharedBounds) -> Mark:
    return Mark(bounds.end_offset, bounds.end_segment, bounds.end_position, 0, bounds.leader_epoch)


class FollowedPartition:
    """One partition of a followed directory."""

    def __init__(self, topic: DirectoryTopic, number: int, log: FollowedLog) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.leader_epoch = 0
        self.missed_deletions_end = 0
        """See `ReadablePartition`."""
        self.lock = log.lock

    def follow(self, bounds: SharedBounds) -> None:
        """Adopt new bounds. The caller holds `lock`."""
        self.log.follow(bounds)
        self.leader_epoch, self.missed_deletions_end = bounds.leader_epoch, bounds.deletions_end

    @property
    def removed_deletions_end(self) -> int:
        """See `ReadablePartition`; without a compaction that has not ended yet."""
        return self.missed_deletions_end

    @property
    def reader(self) -> LogReader:
        """Reader of the log."""
        return self.log.reader

    @property
    def visible_end(self) -> int:
        """End of the visible records."""
        return int(self.log.log_end_offset)

    log_end_offset = visible_end
    chain_crc = None
    """The shared bounds do not have it."""

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return int(self.log.log_start_offset)


class FollowedDirectory:
    """Directory that this process only reads."""

    def __init__(self, path: str) -> None:
        """Read the topics of `path`.

        Raises:
            WrongDirectoryError: If it is no directory of topics, or was never opened.
            StorageOfflineError: If it cannot be read.
        """
        self.path = path
        self._lock = threading.Lock()
        self.filesystem = filesystem = ReadOnlyFileSystem()
        try:
            self._bounds = BoundsReader(path)
        except FileNotFoundError:
            raise WrongDirectoryError(
                f"{path} holds no topics that could be read",
                retriable=False,
                action="Name a directory that headrace.open has made.",
            ) from None
        except OSError as error:
            raise storage_error(path, error) from error
        self._environment = LogEnvironment(
            filesystem,
            OpenFiles(filesystem, MAX_OPEN_FILES),
            IndexCache(MAX_INDEX_BYTES),
            DiskSpaceGuard(filesystem, path, DiskLimits()),
            True,
            _nothing,
        )
        self.topics = DirectoryTopics(filesystem, path)
        self._partitions: dict[tuple[bytes, int], FollowedPartition] = {}

    @property
    def identity(self) -> str:
        """Identity of the directory."""
        return str(read_identity(self.path, self._environment.filesystem)["cluster_id"])

    def topic(self, reference: topics_pb2.TopicRef) -> DirectoryTopic:
        """See `Partitions`."""
        self._look()
        return self.topics.find(reference)

    def all_topics(self) -> Iterable[DirectoryTopic]:
        """See `Partitions`."""
        self._look()
        return list(self.topics.by_name.values())

    def _look(self) -> None:
        with self._lock:
            try:
                self._bounds.refresh()
                if self.topics.revision != self._bounds.state.revision:
                    self.topics.read()
            except OSError as error:
                raise storage_error(self.path, error) from error

    def readable(self, topic: DirectoryTopic, number: int) -> FollowedPartition:
        """See `Partitions`."""
        check_partition(topic, number)
        with self._lock:
            partition = self._partitions.get((topic.topic_id, number))
            if partition is None:
                log = FollowedLog(self._environment, f"{self.path}/{topic.topic_id.hex()}-{number}", topic)
                partition = self._partitions[topic.topic_id, number] = FollowedPartition(topic, number, log)
        with partition.lock:  # Another thread must not follow newer bounds before these.
            try:
                partition.follow(self._bounds_of(topic, number))
            except CorruptLogError:  # The writer has removed a file meanwhile.
                partition.follow(self._bounds_of(topic, number))
        return partition

    def _bounds_of(self, topic: DirectoryTopic, number: int) -> SharedBounds:
        bounds = self._bounds.read(topic.topic_id, number)
        if bounds is None:
            raise UnknownPartitionError(f"partition {number} of {topic.name} is not made yet", retriable=True)
        return bounds

    def writable(self, topic: DirectoryTopic, number: int) -> DirectoryPartition:
        """See `Partitions`."""
        self.writer()

    def writer(self) -> NoReturn:
        """Raise DirectoryInUseError: calls that change something are for the process that writes."""
        with suppress(HeadraceError):
            self._look()
        pid = self._bounds.state.pid
        if not pid:
            raise DirectoryInUseError(
                f"this process has opened {self.path} only to read it",
                retriable=False,
                action="Close it in this process, then open it for writing.",
            )
        raise in_use(self.path, pid)

    def close(self) -> None:
        """Close the files."""
        for partition in self._partitions.values():
            self._environment.files.drop_all(partition.log.directory)


def in_use(path: str, pid: int) -> DirectoryInUseError:
    """Return the error of a second writer; not raised."""
    who = f"process {pid}" if pid else "another process"
    return DirectoryInUseError(
        f"{who} writes to {path}",
        retriable=False,
        action="Stop that process, or open the directory with read_only=True; other processes may read it meanwhile.",
    )


def _nothing() -> None:
    """Note no I/O error: the disk's copy is read again."""
