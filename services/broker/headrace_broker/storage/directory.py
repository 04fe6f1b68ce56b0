"""One broker's data directory: who owns it, which logs are in it, how much room there is.

Opened once at the broker's start and closed last. Not for several threads at once, except `check_space`.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace_broker.storage.filesystem import FileSystem
from headrace_broker.storage.log import PartitionLog
from headrace_broker.storage.settings import DiskLimits, LogSettings


class LogId(NamedTuple):
    """Names a log on disk: `<topic_id hex>-<partition>`."""

    topic_id: bytes  # 16 bytes
    partition: int


class DiskUsage(NamedTuple):
    """The room on a data directory's volume, in bytes."""

    total_bytes: int
    free_bytes: int
    refusing: bool  # appends are refused now (H35)


class DataDirectory:
    """A data directory, locked by this process."""

    path: str
    # Drawn once for this directory; stands in the broker's session key (H42).
    storage_id: bytes
    # Broker epoch given to the last `close(clean=True)`; None if the last process did not stop cleanly.
    clean_broker_epoch: int | None

    @classmethod
    def open(
        cls,
        path: str,
        *,
        cluster_id: str,
        generation: int,
        broker_id: int,
        new_storage_id: bytes,
        limits: DiskLimits = DiskLimits(),
        filesystem: FileSystem | None = None,
    ) -> DataDirectory:
        """Lock `path` (made if absent), check or write its identity, read and remove the clean marker (H39, H42).

        `new_storage_id` (16 random bytes) is used only where the directory is new.
        Raises DirectoryInUseError, WrongDirectoryError, StorageOfflineError.
        """
        raise NotImplementedError

    def log_ids(self) -> list[LogId]:
        """The logs on disk, sorted."""
        raise NotImplementedError

    def open_log(
        self, topic_id: bytes, partition: int, settings: LogSettings, *, cut_at_damage: bool = False
    ) -> PartitionLog:
        """Open the log, making it if absent, and recover it: O(segments) after a clean stop.

        Raises LogDamagedError (file, offset, position) where records below the fsynced mark are damaged or a valid batch
        follows a torn one; nothing is changed then. `cut_at_damage` is the operator's explicit word to lose what follows.
        """
        raise NotImplementedError

    def delete_log(self, log: PartitionLog) -> None:
        """Close the log and rename its directory to `.deleted` (synced); `remove_deleted` removes it."""
        raise NotImplementedError

    def quarantine_log(self, log_id: LogId) -> str:
        """Rename a damaged log's directory (not open) to `.damaged-<n>`, kept for a person; its new path."""
        raise NotImplementedError

    def remove_deleted(self) -> int:
        """Remove directories of deleted logs from the disk; how many. May take long: call it in a thread."""
        raise NotImplementedError

    def check_space(self) -> DiskUsage:
        """Look at the free space, refuse or take appends by it, make the reserve file again. Call it every second."""
        raise NotImplementedError

    def close(self, *, clean: bool, broker_epoch: int = 0) -> None:
        """Close all open logs, write the clean marker last if `clean` (H40), unlock."""
        raise NotImplementedError
