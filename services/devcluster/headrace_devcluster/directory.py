"""The directory of a local cluster: one owner at a time; leftovers of killed owners are removed.

`owner.lock` in it is held as long as its owner lives, however that ends, and has the owner's process id.
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
    """Owned by one LocalCluster, used under its rules."""

    def __init__(self, kept: Path | None) -> None:
        """`kept`: where data and logs stay; None: a temporary directory, removed by `release`."""
        self.temporary = kept is None
        self.path = kept or Path()
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Make it where it is missing, and lock it.

        Raises:
            ClusterRunningError: another process holds it.
        """
        if self.temporary:
            remove_abandoned_directories()
            self.path = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / OWNER_LOCK).open("a+")
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
        self._lock = lock

    def release(self) -> None:
        """Release it, and remove it if it is temporary. Does nothing if it is not held."""
        if self._lock is not None:
            if self.temporary:
                shutil.rmtree(self.path, ignore_errors=True)
            self._lock.close()
            self._lock = None


def remove_abandoned_directories() -> None:
    """Remove temporary directories whose owner was killed before it could."""
    for directory in sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")):
        try:
            with (directory / OWNER_LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # Held by a live owner, being made just now, or another user's.
