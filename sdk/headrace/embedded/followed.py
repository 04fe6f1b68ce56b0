"""Reader's side of a directory that another process writes to, or that no process has open. Changes nothing.

What is visible is in the file of the writer (`shared_bounds`), the logs are those of `followed_log`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from headrace.embedded.catalogue import DirectoryTopic, DirectoryTopics
from headrace.embedded.followed_log import FollowedLog
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.partitions import check_partition
from headrace.embedded.shared_bounds import FILE as BOUNDS_FILE
from headrace.embedded.shared_bounds import BoundsReader, SharedBounds
from headrace.log.directory import CLEAN_FILE
from headrace.log.environment import LogEnvironment
from headrace.log.errors import CorruptLogError, DirectoryInUseError, WrongDirectoryError, storage_error
from headrace.log.identity import read_identity
from headrace.log.index import IndexCache
from headrace.log.log_reader import LogReader
from headrace.log.open_files import OpenFiles
from headrace.log.os_filesystem import OsFileSystem
from headrace.log.settings import DiskLimits
from headrace.log.space import DiskSpaceGuard
from headrace.v1 import topics_pb2
from headrace.wire.errors import UnknownPartitionError

MAX_OPEN_FILES = 64
MAX_INDEX_BYTES = 16 << 20


class ReadOnlyFileSystem(OsFileSystem):
    """The real file system, of which files are only read."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file that exists."""
        assert not create, "nothing is created"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class FollowedPartition:
    """One partition of a followed directory."""

    def __init__(self, topic: DirectoryTopic, number: int, log: FollowedLog) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.leader_epoch = 0
        self.lock = log.lock

    def follow(self, bounds: SharedBounds) -> None:
        """Adopt new bounds. The caller holds `lock`."""
        self.log.follow(bounds)
        self.leader_epoch = bounds.leader_epoch

    def await_compaction(self) -> None:
        """Return at once: `reader` reads files that a compaction of the writer does not change."""

    @property
    def removed_deletions_end(self) -> int:
        """See `ReadablePartition`."""
        return self.log.deletions_end

    missed_deletions_end = removed_deletions_end

    @property
    def reader(self) -> LogReader:
        """Reader of the log."""
        return self.log.reader

    @property
    def snapshot_reader(self) -> LogReader:
        """See `ReadablePartition`."""
        return self.log.snapshot_reader()

    def list_files(self) -> bool:
        """See `ReadablePartition`."""
        with suppress(CorruptLogError):  # Listed, and gone: the next read finds that, too.
            self.log.read_again()
        return True

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
            InternalError: If a loss of power has damaged the file of the bounds; a writer makes it anew.
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
        """Raise DirectoryInUseError: who only reads a directory changes nothing."""
        raise DirectoryInUseError(
            f"{self.path} is opened only to read it",
            retriable=False,
            action="Change it where it is opened without read_only=True, and without ?mode=ro in its address.",
        )

    def close(self) -> None:
        """Close the files."""
        for partition in self._partitions.values():
            self._environment.files.drop_all(partition.log.directory)


def is_closed(path: str) -> bool:
    """Return whether the last writer has closed a directory: its bounds are as its logs, and nothing is recovered."""
    return os.path.exists(f"{path}/{CLEAN_FILE}") and os.path.exists(f"{path}/{BOUNDS_FILE}")


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
