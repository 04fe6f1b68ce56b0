"""Directory of a local cluster with one owner at a time; directories of killed owners are removed.

`owner.lock` in it is locked until its owner ends in any way, and contains the owner's process id.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from headrace_devcluster.errors import ClusterRunningError

TEMPORARY_PREFIX = "headrace-cluster-"
OWNER_LOCK = "owner.lock"


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
        """
        if self.temporary:
            remove_abandoned_directories()
            self.path = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        self.path.mkdir(parents=True, exist_ok=True)
        # A temporary directory whose lock is there and free is abandoned: it gets its name when it is locked.
        lock_file = self.path / (f"{OWNER_LOCK}.new" if self.temporary else OWNER_LOCK)
        lock = lock_file.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def remove_abandoned_directories() -> None:
    """Remove temporary directories of killed owners."""
    for directory in sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")):
        try:
            with (directory / OWNER_LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # Locked by a live owner, just being created, or owned by another user.
