"""Directory of a local cluster with one owner at a time; directories of killed owners are removed.

`owner.lock` in it is locked until its owner ends in any way, and contains the owner's process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

from headrace_devcluster.errors import ClusterRunningError, ForeignDirectoryError

TEMPORARY_PREFIX = "headrace-cluster-"
OWNER_LOCK = "owner.lock"
LOCK_SECONDS = 0.2
CLUSTER_ENTRIES = (
    "etcd",
    "etcd[-.]*",
    "broker-*",
    "coordinator-*",
    "metastore.sqlite*",
    "tls",
    "admin.key",
    "run.log",
    "cluster.json",
    ".cluster.json",
)
"""Patterns of the files and directories that clusters make in their directory, apart from the lock."""


class ClusterDirectory:
    """Directory and its lock, owned by one LocalCluster."""

    def __init__(self, kept: Path | None) -> None:
        """`kept` is a persistent directory; `None` means a temporary one, which `release` removes."""
        self.temporary = kept is None
        self.path = kept or Path()
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Create the directory if it is missing, and lock it.

        Raises:
            ClusterRunningError: If another process has the lock.
            ForeignDirectoryError: See `claim_directory`.
        """
        if self.temporary:
            remove_abandoned_directories()
            self.path = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        else:
            claim_directory(self.path)
        # A temporary directory whose lock is there and free is abandoned: it gets its name when it is locked.
        lock_file = self.path / (f"{OWNER_LOCK}.new" if self.temporary else OWNER_LOCK)
        lock = lock_file.open("a+")
        try:
            _lock_exclusively(lock)
        except BlockingIOError:
            lock.close()
            raise ClusterRunningError(
                f"a cluster runs on {self.path} already",
                action="Use it, stop it with `python -m headrace_devcluster down`, or name another --data-dir.",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        lock_file.rename(self.path / OWNER_LOCK)
        self._lock = lock

    def release(self) -> None:
        """Release the lock, and remove a temporary directory. Does nothing if it is not locked."""
        if self._lock is not None:
            if self.temporary:
                shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()
            self._lock = None


def _lock_exclusively(lock: IO[str]) -> None:
    """Lock a file; wait for readers of the owner's id (`owner_pid`), which hold a shared lock for a moment.

    Raises:
        BlockingIOError: If it is still locked after `LOCK_SECONDS`.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def claim_directory(path: Path) -> None:
    """Create a directory if it is missing, and make it a cluster's: `remove_data` deletes all of `CLUSTER_ENTRIES`.

    Raises:
        ForeignDirectoryError: If it has not been a cluster's and has some of these already.
    """
    path.mkdir(parents=True, exist_ok=True)
    if (path / OWNER_LOCK).exists():
        return
    found = sorted(entry.name for pattern in CLUSTER_ENTRIES for entry in path.glob(pattern))
    if found:
        raise ForeignDirectoryError(
            f"{path} has not been the directory of a cluster, and has files with the names of a cluster's: "
            f"{', '.join(found)}",
            action=f"Name another --data-dir. If a cluster has made them, create the empty file {path / OWNER_LOCK}.",
        )
    (path / OWNER_LOCK).touch()


def check_removable(path: Path) -> None:
    """Check that a directory has been a cluster's, is empty or does not exist.

    Raises:
        ForeignDirectoryError: If it is none of these.
    """
    if path.exists() and not (path / OWNER_LOCK).exists() and any(path.iterdir()):
        raise ForeignDirectoryError(
            f"{path} has files and has not been the directory of a cluster, so nothing was deleted",
            action="Name the directory of a cluster by --data-dir, or an empty one.",
        )


def remove_data(path: Path) -> None:
    """Delete what clusters have made in a directory, and the directory if nothing else is in it.

    Raises:
        OSError: If an entry cannot be deleted.
    """
    for pattern in CLUSTER_ENTRIES:
        for entry in path.glob(pattern):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    (path / OWNER_LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # It does not exist, or has other files.
        path.rmdir()


def remove_abandoned_directories() -> None:
    """Remove temporary directories of killed owners."""
    for directory in sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")):
        try:
            with (directory / OWNER_LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # Locked by a live owner, just being created, or owned by another user.
