"""Data directory of one broker: its identity, its logs and its free space.

    <data_dir>/identity                       sealed JSON: format, cluster id, generation, broker id, storage id
    <data_dir>/clean                          sealed JSON: broker epoch of a clean stop; read, then removed
    <data_dir>/session                        sealed JSON: version of the directory; see `session_note`
    <data_dir>/metadata                       sealed JSON: highest etcd revisions seen; see `seen_metadata`
    <data_dir>/boot                           sealed JSON: the machine's boot at the last write; see `boot_note`
    <data_dir>/lock                           empty; flock'ed while a process owns the directory
    <data_dir>/reserve                        space reserved for checkpoints on a full disk
    <data_dir>/<topic_id hex>-<partition>/    a log
    <data_dir>/<...>.deleted-<n>/             a deleted log, to be unlinked
    <data_dir>/<...>.corrupt-<n>/             a corrupt log, kept for the operator

Opened once at the broker's start and closed last. Not thread-safe, except `check_space`. Names are made of topic ids
and integers only: a topic's name never reaches the file system.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from headrace.log.boot_note import BootNote
from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.environment import LogEnvironment
from headrace.log.errors import (
    REFUSALS,
    DirectoryInUseError,
    directory_error,
    is_refused,
    storage_error,
)
from headrace.log.filesystem import FileSystem
from headrace.log.identity import FILE as IDENTITY_FILE
from headrace.log.identity import DirectoryIdentity, wrong_directory
from headrace.log.index import IndexCache
from headrace.log.log import PartitionLog
from headrace.log.open_files import OpenFiles
from headrace.log.os_filesystem import OsFileSystem
from headrace.log.seen_metadata import SeenMetadata
from headrace.log.session_note import SessionNote
from headrace.log.settings import DiskLimits, LogSettings
from headrace.log.space import DiskSpaceGuard, DiskUsage

__all__ = ["DataDirectory", "DiskUsage", "LogId"]

CLEAN_FILE = "clean"
"""Marker of a clean stop, which is there while no process has the directory open."""
_LOG_NAME = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]{0,8})\Z")
_DELETED_NAME = re.compile(r"[0-9a-f]{32}-[0-9]+\.deleted-[0-9]+\Z")


class LogId(NamedTuple):
    """Identifies a log on disk: `<topic_id hex>-<partition>`."""

    topic_id: bytes  # 16 bytes
    partition: int

    @property
    def directory_name(self) -> str:
        """Name of the log's directory."""
        return f"{self.topic_id.hex()}-{self.partition}"


class DataDirectory:
    """Data directory, locked by this process."""

    def __init__(
        self,
        path: str,
        environment: LogEnvironment,
        lock: int,
        identity: DirectoryIdentity,
        boot: BootNote,
        *,
        clean_broker_epoch: int | None,
        seen: SeenMetadata,
        session: SessionNote,
    ) -> None:
        """Called by `open` only."""
        self.path = path
        self.boot = boot
        # Broker epoch passed to the last `close(clean=True)`; `None` if the last process did not stop cleanly.
        self.clean_broker_epoch = clean_broker_epoch
        # Highest etcd revisions seen.
        self.seen = seen
        # Version of the directory.
        self.session = session
        self._identity = identity
        self._environment = environment
        self._filesystem = environment.filesystem
        self._lock = lock
        self._logs: dict[LogId, PartitionLog] = {}

    @classmethod
    def open(
        cls,
        path: str,
        *,
        cluster_id: str,
        generation: int,
        broker_id: int,
        new_storage_id: bytes,
        boot_id: str = "",
        adopts: bytes = b"",
        limits: DiskLimits | None = None,
        filesystem: FileSystem | None = None,
    ) -> DataDirectory:
        """Lock `path` (created if absent), check or write its identity, read and remove the clean marker (H39, H42).

        `new_storage_id` (16 random bytes) is used if the directory is new, and to name a new incarnation. `boot_id`
        names the current boot of the machine; an empty one equals no other. Call `note_boot` once all logs are open.
        `adopts` is the storage id of a directory of an earlier generation to continue from. Raises DirectoryInUseError,
        WrongDirectoryError, InvalidConfigError (`path` is a file, read-only, or not permitted), StorageFullError,
        StorageBusyError, StorageOfflineError.
        """
        filesystem = filesystem or OsFileSystem()
        limits = limits or DiskLimits()
        try:
            _make_directories(filesystem, path)
            lock = _lock(filesystem, path)
            try:
                wanted = {"cluster_id": cluster_id, "generation": generation, "broker_id": broker_id}
                if not filesystem.exists(f"{path}/{IDENTITY_FILE}") and _log_ids(filesystem, path):
                    raise wrong_directory(f"{path} holds logs but no identity file")
                identity = DirectoryIdentity(filesystem, path, wanted, new_storage_id, adopts)
                clean_broker_epoch = _take_clean_marker(filesystem, path)
                boot = BootNote(filesystem, path, boot_id, new_storage_id)
                space = DiskSpaceGuard(filesystem, path, limits)
                environment = LogEnvironment(
                    filesystem,
                    OpenFiles(filesystem, limits.max_open_files),
                    IndexCache(limits.max_index_bytes),
                    space,
                    boot.same_boot,
                    boot.forget,
                )
                space.check()
                seen = SeenMetadata(filesystem, path, generation)
                session = SessionNote(filesystem, space, path, generation)
            except BaseException:
                filesystem.close(lock)
                raise
        except OSError as error:
            raise directory_error(path, error) from error
        return cls(
            path, environment, lock, identity, boot,
            clean_broker_epoch=clean_broker_epoch, seen=seen, session=session,
        )  # fmt: skip

    @property
    def storage_id(self) -> bytes:
        """Drawn once for this directory, or set by `become`; part of the broker's session key (H42)."""
        return self._identity.storage_id

    def become(self, storage_id: bytes) -> None:
        """Replace the storage id, synced: the cluster no longer relies on the earlier content of this directory.

        Raises as `storage_error`.
        """
        try:
            self._environment.space.with_reserve(lambda: self._identity.write(storage_id))
        except OSError as error:
            raise storage_error(self.path, error) from error
        self.clean_broker_epoch = None

    def note_boot(self) -> None:
        """Record that every log was recovered since the reboot: no log has a tail that an earlier boot may have torn.

        From now on the writes of a killed process survive it (H31). Raises StorageOfflineError.
        """
        if any(log.offline for log in self._logs.values()):
            return
        try:
            self.boot.write()
        except OSError as error:
            raise storage_error(self.path, error) from error

    def log_ids(self) -> list[LogId]:
        """Return the logs on disk, sorted."""
        try:
            return _log_ids(self._filesystem, self.path)
        except OSError as error:
            raise storage_error(self.path, error) from error

    def open_log(
        self, topic_id: bytes, partition: int, settings: LogSettings, *, truncate_at_corruption: bool = False
    ) -> PartitionLog:
        """Open the log, creating it if absent, and recover it: O(segments) after a clean stop.

        Raises CorruptLogError (file, offset, position) if records below the fsynced mark are corrupt or a valid batch
        follows a torn one; nothing is changed then. `truncate_at_corruption` is the operator's explicit consent to lose
        the records that follow.
        """
        log_id = LogId(topic_id, partition)
        assert log_id not in self._logs, f"{log_id.directory_name} is open already"
        directory = f"{self.path}/{log_id.directory_name}"
        try:
            if not self._filesystem.exists(directory):
                self._make_log_directory(directory)
        except OSError as error:
            raise storage_error(directory, error) from error
        log = PartitionLog(
            self._environment,
            directory,
            settings,
            topic_id=topic_id,
            partition=partition,
            truncate_at_corruption=truncate_at_corruption,
        )
        self._logs[log_id] = log
        return log

    def _make_log_directory(self, directory: str) -> None:
        self._filesystem.make_directory(directory)
        try:
            self._filesystem.fsync_directory(self.path)
        except OSError:
            self._filesystem.remove_directory(directory)  # An existing name counts as durable.
            raise

    def close_log(self, log: PartitionLog, *, high_watermark: int | None = None) -> None:
        """Close one log and forget it; it may be opened again."""
        self._logs.pop(LogId(log.topic_id, log.partition), None)
        log.close(high_watermark=high_watermark)

    def delete_log(self, log: PartitionLog) -> None:
        """Discard the log and rename its directory to `.deleted-<n>` (synced); `remove_deleted` removes it."""
        self._discard(log)
        self._set_aside(LogId(log.topic_id, log.partition), "deleted")

    def delete_log_directory(self, log_id: LogId) -> None:
        """As `delete_log`, for a log that is not open."""
        assert log_id not in self._logs, f"{log_id.directory_name} is open"
        self._set_aside(log_id, "deleted")

    def quarantine_log(self, log_id: LogId) -> str:
        """Rename a corrupt log's directory (not open) to `.corrupt-<n>`, for an operator; return its new path."""
        assert log_id not in self._logs, f"{log_id.directory_name} is open"
        return self._set_aside(log_id, "corrupt")

    def remove_deleted(self) -> int:
        """Remove directories of deleted logs; return their number. May take long: call it in a thread.

        Removes all that it can, then raises the first error.
        """
        try:
            names = [name for name in self._filesystem.list_directory(self.path) if _DELETED_NAME.match(name)]
        except OSError as error:
            raise storage_error(self.path, error) from error
        failures = [error for name in names for error in _remove_directory(self._filesystem, f"{self.path}/{name}")]
        if failures:
            raise storage_error(self.path, failures[0]) from failures[0]
        return len(names)

    def check_space(self) -> DiskUsage:
        """Check the free space, start or stop refusing appends, restore the reserve file. Call it every second."""
        try:
            return self._environment.space.check()
        except OSError as error:
            raise storage_error(self.path, error) from error

    def lacks_room(self) -> str:
        """Return a sentence that states why no append can ever succeed here; empty if the volume is large enough."""
        usage, needed_bytes = self.check_space(), self._environment.space.least_bytes
        if usage.total_bytes > needed_bytes:
            return ""
        return (
            f"the volume of {self.path} has {usage.total_bytes} bytes ({usage.free_bytes} free), and appends need more "
            f"than {needed_bytes}: disk_refuse_below_bytes and the reserve"
        )

    def close(self, *, clean: bool, broker_epoch: int = 0) -> None:
        """Close all open logs, write the clean marker last if `clean` and no log is offline (H40), unlock.

        `broker_epoch` is that of the last session; `0` means that there was none: the marker found at the start stays.
        """
        try:
            for log in list(self._logs.values()):
                clean = clean and not log.offline
                try:
                    self.close_log(log)
                except REFUSALS:
                    clean = False  # The next opening recovers the part that a full disk rejected.
            if clean:
                marker = json.dumps({"broker_epoch": broker_epoch or self.clean_broker_epoch or 0}).encode()
                self._environment.space.with_reserve(
                    lambda: replace_file(self._filesystem, self.path, CLEAN_FILE, seal(marker))
                )
        except OSError as error:
            if not is_refused(error):  # Without the marker the shutdown is not clean, and the next start recovers.
                raise storage_error(self.path, error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the lock's descriptor once; a child process after a fork calls it, and the parent keeps the lock."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            self._filesystem.close(lock)

    def _discard(self, log: PartitionLog) -> None:
        self._logs.pop(LogId(log.topic_id, log.partition), None)
        log.discard()

    def _set_aside(self, log_id: LogId, suffix: str) -> str:
        name = log_id.directory_name
        try:
            number = 0
            while self._filesystem.exists(f"{self.path}/{name}.{suffix}-{number}"):
                number += 1
            target = f"{self.path}/{name}.{suffix}-{number}"
            self._filesystem.rename(f"{self.path}/{name}", target)
            try:
                self._filesystem.fsync_directory(self.path)
            except OSError as error:
                if not is_refused(error):  # A log that comes back after a loss of power is set aside again.
                    raise
        except OSError as error:
            raise storage_error(f"{self.path}/{name}", error) from error
        return target


def _log_ids(filesystem: FileSystem, path: str) -> list[LogId]:
    matches = [match for name in filesystem.list_directory(path) if (match := _LOG_NAME.match(name))]
    return sorted(LogId(bytes.fromhex(match[1]), int(match[2])) for match in matches)


def _make_directories(filesystem: FileSystem, path: str) -> None:
    """Create `path` and its missing parents, each synced into its parent."""
    if not path or filesystem.is_directory(path):
        return
    parent = path.rpartition("/")[0]
    _make_directories(filesystem, parent)
    filesystem.make_directory(path)
    filesystem.fsync_directory(parent or ".")


def _lock(filesystem: FileSystem, path: str) -> int:
    lock_path = f"{path}/lock"
    try:
        descriptor = filesystem.open(lock_path, create=True)
    except FileExistsError:
        descriptor = filesystem.open(lock_path)
    if not filesystem.try_lock(descriptor):
        filesystem.close(descriptor)
        raise DirectoryInUseError(
            f"the data directory {path} is in use by another process",
            action="Stop that process, or set another data_dir for this broker.",
            retriable=False,
        )
    return descriptor


def _take_clean_marker(filesystem: FileSystem, path: str) -> int | None:
    marker_path = f"{path}/{CLEAN_FILE}"
    payload = read_sealed(filesystem, marker_path)
    if filesystem.exists(marker_path):
        filesystem.unlink(marker_path)
        filesystem.fsync_directory(path)
    return None if payload is None else int(json.loads(payload)["broker_epoch"])


def _remove_directory(filesystem: FileSystem, directory: str) -> list[OSError]:
    """Remove a directory and its files; return the errors of those that are left."""
    failures: list[OSError] = []
    try:
        for name in filesystem.list_directory(directory):
            try:
                filesystem.unlink(f"{directory}/{name}")
            except OSError as error:
                failures.append(error)
        filesystem.remove_directory(directory)
    except OSError as error:
        failures.append(error)
    return failures
