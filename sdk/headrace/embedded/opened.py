"""Writer's side of a directory: its topics and logs, and the work that a broker does in the background.

<directory>/topics      see `catalogue`
<directory>/groups/     see `group_offsets`, as for <directory>/group_epoch
<directory>/bounds      see `shared_bounds`
and what `headrace.log.directory` lists: the logs, with the identity `directory-<random>`, broker 0
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from headrace.embedded.catalogue import FILE as TOPICS_FILE
from headrace.embedded.catalogue import DirectoryTopic, DirectoryTopics
from headrace.embedded.followed import in_use
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.partitions import check_partition
from headrace.embedded.shared_bounds import BoundsWriter, NoBounds, SharedBounds, writer_of
from headrace.embedded.wall_clock import WallClock
from headrace.log.boot_note import read_boot_id
from headrace.log.directory import DataDirectory
from headrace.log.errors import REFUSALS, DirectoryInUseError, WrongDirectoryError, storage_error
from headrace.log.filesystem import FileSystem
from headrace.log.identity import FILE as IDENTITY_FILE
from headrace.log.identity import read_identity
from headrace.log.log import PartitionLog
from headrace.log.os_filesystem import OsFileSystem
from headrace.log.settings import DiskLimits
from headrace.partition.log_settings import log_settings
from headrace.v1 import topics_pb2
from headrace.wire.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidRequestError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
)

BEGUN_FILES = ("lock", "identity.tmp")
"""What a crash may leave of a directory that was being made."""
IDENTITY_PREFIX = "directory-"
BROKER_ID = 0
DISK_LIMITS = DiskLimits(reserve_bytes=1 << 20, refuse_below_bytes=16 << 20, resume_above_bytes=32 << 20)
CHECKPOINT_SECONDS = 1.0
RETENTION_SECONDS = 60.0
COMPACTION_SECONDS = 15.0
IDLE_SECONDS = 15.0
"""Interval of the background work while nothing is appended."""

_log = logging.getLogger("headrace.embedded")


class OpenDirectory:
    """Directory that this process writes to."""

    def __init__(self, path: str, *, creates: bool, filesystem: FileSystem | None = None) -> None:
        """Open all logs of `path`, and recover them after a crash.

        `creates` makes a directory that does not exist, or a log of topics in an empty one.

        Raises:
            DirectoryInUseError: If another process writes to it.
            WrongDirectoryError: If it is another kind of directory, or there is none; corrupt, or of a newer release.
            CorruptLogError, StorageFullError, StorageOfflineError: If a log cannot be opened.
        """
        self.path = path
        self.filesystem = filesystem or OsFileSystem()
        self._clock = WallClock()
        identity, is_new = _identity_of(path, self.filesystem, creates=creates)
        try:
            try:
                self._directory = _open_locked(path, identity, self.filesystem)
            except WrongDirectoryError:
                if not is_new:
                    raise
                identity, is_new = _identity_of(path, self.filesystem, creates=creates)  # Another process has made it.
                self._directory = _open_locked(path, identity, self.filesystem)
        except DirectoryInUseError:
            raise in_use(path, writer_of(path)) from None
        except InvalidConfigError as error:  # Its words are for the operator of a broker.
            raise _unusable(path, error) from error
        self.identity = identity
        self._lock = threading.RLock()
        """Guards the partitions and the topics. Not held by appends."""
        self._bounds_lock = threading.Lock()
        self._removal_lock = threading.Lock()
        """Held while files of deleted topics are removed."""
        self._partitions: dict[tuple[bytes, int], DirectoryPartition] = {}
        self._is_clean = self._directory.clean_broker_epoch is not None or is_new
        self._closing = threading.Event()
        self._appended = threading.Event()
        try:
            self.topics = DirectoryTopics(self.filesystem, path)
            self._bounds = BoundsWriter(path) if isinstance(self.filesystem, OsFileSystem) else NoBounds()
            self._remove_unknown_logs()
            for topic in self.topics.by_name.values():
                self._open_partitions(topic, [])
            self._directory.note_boot()
            self._bounds.show(self.topics.revision)
        except BaseException as error:
            self._directory.close(clean=False)
            if isinstance(error, OSError):
                raise storage_error(path, error) from error
            raise
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the background work."""
        self._thread = threading.Thread(target=self._maintain, name="headrace-directory", daemon=True)
        self._thread.start()

    def _remove_unknown_logs(self) -> None:
        """Remove the logs of topics whose deletion, or creation, a crash interrupted."""
        if not self.topics.revision and self._directory.log_ids():
            raise WrongDirectoryError(
                f"{self.path} holds records, and {TOPICS_FILE}, the list of their topics, is missing",
                retriable=False,
                action="Restore that file from a backup of the directory.",
            )
        known = {topic.topic_id for topic in self.topics.by_name.values()}
        for log_id in self._directory.log_ids():
            if log_id.topic_id not in known:
                self._directory.delete_log_directory(log_id)
        self._remove_deleted()

    def _open_partitions(self, topic: DirectoryTopic, opened: list[PartitionLog]) -> None:
        """Open the logs of a topic that are not open, and add them to `opened`."""
        for number in range(topic.partitions):
            if (topic.topic_id, number) not in self._partitions:
                log = self._directory.open_log(topic.topic_id, number, log_settings(topic.config))
                opened.append(log)
                # After a crash, other records may follow at offsets that a reader has seen: in a new epoch, as by a new
                # leader.
                is_continued = (self._is_clean or bool(topic.origin)) and log.last_epoch >= 0
                epoch = log.last_epoch if is_continued else log.last_epoch + 1
                if not topic.origin:
                    log.start_epoch(epoch)
                partition = DirectoryPartition(topic, number, log, epoch)
                with self._bounds_lock:
                    self._partitions[topic.topic_id, number] = partition
                    self._bounds.begin(topic.topic_id, number, _bounds_of(partition))

    # --- partitions ---

    def topic(self, reference: topics_pb2.TopicRef) -> DirectoryTopic:
        """See `Partitions`."""
        return self.topics.find(reference)

    def all_topics(self) -> Iterable[DirectoryTopic]:
        """See `Partitions`."""
        return list(self.topics.by_name.values())

    def readable(self, topic: DirectoryTopic, number: int) -> DirectoryPartition:
        """See `Partitions`."""
        check_partition(topic, number)
        partition = self._partitions.get((topic.topic_id, number))
        if partition is None:
            raise UnknownTopicIdError(f"topic {topic.name} has been deleted")
        return partition

    def writable(self, topic: DirectoryTopic, number: int) -> DirectoryPartition:
        """See `Partitions`; a copy of a cluster's topic is not writable."""
        if topic.origin:
            raise InvalidRequestError(
                f"topic {topic.name} is a copy of one in cluster {topic.origin}, which is only read",
                action="Write to the cluster and fetch the topic again, or write to another topic.",
            )
        return self.readable(topic, number)

    def writer(self) -> OpenDirectory:
        """Return the directory: this process may change it."""
        return self

    def show(self, partitions: Iterable[DirectoryPartition] | None = None) -> None:
        """Let readers in other processes see what has become visible, in some partitions or in all."""
        for partition in list(self._partitions.values()) if partitions is None else partitions:
            self._show(partition)
        self._appended.set()

    def _show(self, partition: DirectoryPartition) -> None:
        topic_id, number = partition.topic.topic_id, partition.number
        with self._bounds_lock:
            if partition.is_changed() and (topic_id, number) in self._partitions:
                self._bounds.write(topic_id, number, _bounds_of(partition))

    def _show_topics(self) -> None:
        with self._bounds_lock:
            self._bounds.show(self.topics.revision)

    # --- topics ---

    def check_new(self, name: str) -> None:
        """Raise TopicAlreadyExistsError if a topic has this name."""
        if name in self.topics.by_name:
            raise TopicAlreadyExistsError(f"a topic named {name} exists")

    def create(self, topic: DirectoryTopic) -> None:
        """Create a topic. Raises TopicAlreadyExistsError if another one has its name."""
        with self._lock:
            self.check_new(topic.name)
            self._put(topic)

    def adopt(self, name: str, topic_id: bytes, partitions: int, configs: Mapping[str, str], origin: str) -> None:
        """Create or continue a copy of a cluster's topic.

        Raises:
            TopicAlreadyExistsError: If another topic has its name.
        """
        with self._lock:
            known = self.topics.by_name.get(name)
            if known is not None and known.topic_id != topic_id:
                raise TopicAlreadyExistsError(
                    f"{self.path} has another topic named {name}",
                    action="Fetch the topic into another directory, or delete that one.",
                )
            created_ms = time.time_ns() // 1_000_000 if known is None else known.created_ms
            self._put(DirectoryTopic(name, topic_id, partitions, configs, created_ms, origin))

    def copied(self, topic_id: bytes, number: int) -> DirectoryPartition:
        """Return a partition of a copy."""
        return self._partitions[topic_id, number]

    def change(self, topic: DirectoryTopic, decide: Callable[[DirectoryTopic], DirectoryTopic]) -> None:
        """Replace a topic, as it is now, by what `decide` returns: with other settings or more partitions."""
        with self._lock:
            self._put(decide(self.topics.find(topics_pb2.TopicRef(topic_id=topic.topic_id))))

    def _put(self, topic: DirectoryTopic) -> None:
        """Store a topic once it has all its partitions; after an error it is as before."""
        opened: list[PartitionLog] = []
        try:
            self.topics.begin()
            self._open_partitions(topic, opened)
            self.topics.put(topic)
        except BaseException:
            for log in opened:
                self._partitions.pop((topic.topic_id, log.partition), None)
                with contextlib.suppress(HeadraceError):
                    self._directory.delete_log(log)
            self._remove_deleted()
            raise
        for number in range(topic.partitions):
            self._partitions[topic.topic_id, number].configure(topic)
        self._show_topics()

    def delete(self, reference: topics_pb2.TopicRef) -> DirectoryTopic:
        """Delete a topic with its records."""
        with self._lock:
            topic = self.topics.remove(reference)
            self._show_topics()
            for number in range(topic.partitions):
                partition = self._partitions.pop((topic.topic_id, number), None)
                if partition is not None:
                    with partition.lock:
                        self._directory.delete_log(partition.log)
        self._remove_deleted()
        return topic

    def _remove_deleted(self) -> None:
        """Remove the files of deleted logs; what is left is tried again with the next deletion, and at each start."""
        try:
            with self._removal_lock:
                self._directory.remove_deleted()
        except HeadraceError as error:
            _log.error("a deleted log is not removed: %s. Remove from it what headrace did not write.", error.message)

    # --- background ---

    def _maintain(self) -> None:
        """Checkpoint, retain and compact until the directory is closed."""
        retained_at = compacted_at = time.monotonic()
        while not self._closing.wait(0):
            was_appended = self._appended.wait(IDLE_SECONDS)
            if self._closing.wait(CHECKPOINT_SECONDS if was_appended else 0):
                return
            self._appended.clear()
            now = time.monotonic()
            is_retained, is_compacted = now - retained_at >= RETENTION_SECONDS, now - compacted_at >= COMPACTION_SECONDS
            retained_at, compacted_at = now if is_retained else retained_at, now if is_compacted else compacted_at
            with contextlib.suppress(HeadraceError):
                self._directory.check_space()
            for partition in list(self._partitions.values()):
                if self._closing.is_set():
                    return
                self._care(partition, retains=is_retained, compacts=is_compacted)

    def _care(self, partition: DirectoryPartition, *, retains: bool, compacts: bool) -> None:
        now_ms = self._clock.believed_ms()
        is_copy = bool(partition.topic.origin)  # Which keeps what the cluster removes.
        try:
            partition.checkpoint(now_ms)
            if retains and not is_copy:
                partition.retain(now_ms)
            if compacts and now_ms is not None and not is_copy and partition.topic.config.compacts:
                partition.compact(now_ms, self.compaction_end(partition))
            self._show(partition)
        except REFUSALS as error:
            _log.debug("%s-%d: %s", partition.topic.name, partition.number, error)
        except HeadraceError as error:
            _log.error("%s-%d: %s", partition.topic.name, partition.number, error)
        except Exception:  # The thread serves the other partitions whatever happens to this one.
            _log.exception("%s-%d", partition.topic.name, partition.number)

    def compaction_end(self, partition: DirectoryPartition) -> int:
        """Return up to where a log may be compacted; replaced by who keeps a state of it."""
        return partition.visible_end

    def close(self) -> None:
        """Flush and close everything: the next start reads little. Raises StorageFullError, StorageOfflineError."""
        self._closing.set()
        self._appended.set()
        for partition in list(self._partitions.values()):
            partition.log.compaction.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock, self._removal_lock:
            problems: list[HeadraceError] = []
            for partition in self._partitions.values():
                try:
                    partition.flush()
                    partition.snapshot()
                except HeadraceError as error:
                    problems.append(error)
            self.show()
            try:
                with self._bounds_lock:
                    self._bounds.close()
            except HeadraceError as error:
                problems.append(error)
            self._directory.close(clean=not problems)
        if problems:
            raise problems[0]

    def abandon(self) -> None:
        """Leave the directory to the parent process, in a child after a fork."""
        self._directory.abandon()


def _bounds_of(partition: DirectoryPartition) -> SharedBounds:
    mark = partition.visible_mark
    return SharedBounds(
        partition.leader_epoch, min(partition.log_start_offset, mark.offset), mark.offset, mark.segment, mark.position,
        partition.deletions_end,
    )  # fmt: skip


def _open_locked(path: str, identity: str, filesystem: FileSystem) -> DataDirectory:
    return DataDirectory.open(
        path, cluster_id=identity, generation=1, broker_id=BROKER_ID, new_storage_id=secrets.token_bytes(16),
        boot_id=read_boot_id(), limits=DISK_LIMITS, filesystem=filesystem,
    )  # fmt: skip


def _identity_of(path: str, filesystem: FileSystem, *, creates: bool) -> tuple[str, bool]:
    """Return the identity of a directory, or a new one, and whether it is new."""
    try:
        names = filesystem.list_directory(path) if filesystem.is_directory(path) else None
        if filesystem.exists(f"{path}/{IDENTITY_FILE}"):  # After the list: another process may be making it.
            identity = read_identity(path, filesystem)
            cluster_id: str = identity["cluster_id"]
            if not cluster_id.startswith(IDENTITY_PREFIX):
                raise WrongDirectoryError(
                    f"{path} is the data directory of broker {identity['broker_id']} of cluster {cluster_id}",
                    retriable=False,
                    action="Read its topics through the cluster, or name another directory.",
                )
            return cluster_id, False
    except OSError as error:
        raise storage_error(path, error) from error
    left = [name for name in names or () if name not in BEGUN_FILES]
    if left:
        raise WrongDirectoryError(
            f"{path} holds other files ({', '.join(left[:3])}) and no topics",
            retriable=False,
            action="Name an empty directory, or one that does not exist.",
        )
    if names is None and not creates:
        raise WrongDirectoryError(
            f"there is no directory {path}", retriable=False, action="Check the path; headrace.open makes a new one."
        )
    return IDENTITY_PREFIX + secrets.token_hex(8), True


def _unusable(path: str, error: InvalidConfigError) -> WrongDirectoryError:
    cause = error.__cause__
    why = f"{cause.filename or path}: {cause.strerror}" if isinstance(cause, OSError) else error.message
    return WrongDirectoryError(
        f"{path} cannot be opened for writing: {why}",
        retriable=False,
        action="Name a directory on a local file system that you may write to, or open it with read_only=True.",
    )
