"""Temporary directory of a query. Those of processes that were killed are removed when the next one is made."""

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

_PREFIX = f"headrace-sql-{socket.gethostname()}-"
"""With the machine: on a file system of several, locks may be of each machine."""
_NEW_SECONDS = 60.0
"""Age below which a directory may not be locked yet by the process that made it."""


class QueryDirectory:
    """Directory that is locked while its process lives and has not closed it."""

    def __init__(self) -> None:
        _remove_left()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # Not every file system has locks; others then cannot lock it either.
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_left() -> None:
    """Remove directories that no process has locked."""
    for path in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        try:
            if time.time() - path.stat().st_mtime < _NEW_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_DIRECTORY", 0))
        except OSError:
            continue  # Another process has removed it, or it is another user's.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # Its query runs, or the file system has no locks.
        finally:
            os.close(lock)
