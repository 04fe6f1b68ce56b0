"""Free space of a data directory: appends are refused early, and checkpoints have a reserve (H35).

One `DiskSpaceGuard` belongs to a `DataDirectory` and is shared by its logs. Appends read only an attribute; `check`
reads the volume, every `check_every_bytes` of appends and on the broker's timer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from headrace.log.errors import is_no_room, is_refused
from headrace.log.filesystem import FileSystem
from headrace.log.settings import DiskLimits

RESERVE_FILE = "reserve"

_T = TypeVar("_T")


class DiskUsage(NamedTuple):
    """Space on a data directory's volume, in bytes."""

    total_bytes: int
    free_bytes: int
    refusing: bool  # appends are refused now


class DiskSpaceGuard:
    """Decides whether appends are refused; any thread. Only `check` and `note_full` change `refusing`."""

    def __init__(self, filesystem: FileSystem, path: str, limits: DiskLimits) -> None:
        self._filesystem = filesystem
        self._path = path
        self._limits = limits
        self._lock = threading.Lock()
        self._unchecked_bytes = 0
        self._reserve_path = f"{path}/{RESERVE_FILE}"
        self.refusing = False

    @property
    def least_bytes(self) -> int:
        """Volume size up to which every append is refused, even on an empty volume."""
        return self._limits.refuse_below_bytes + self._limits.reserve_bytes

    def note_appended(self, size_bytes: int) -> None:
        """Count appended bytes; check the volume again after every `check_every_bytes`."""
        self._unchecked_bytes += size_bytes
        if self._unchecked_bytes >= self._limits.check_every_bytes:
            with suppress(OSError):  # The append has succeeded; the broker's check every second reports the error.
                self.check()

    def note_full(self) -> None:
        """Refuse appends from now on after an ENOSPC, whatever free space the volume reports."""
        self.refusing = True

    def check(self) -> DiskUsage:
        """Check the volume, switch `refusing` with hysteresis, and restore the reserve if there is room."""
        with self._lock:
            self._unchecked_bytes = 0
            total_bytes, free_bytes = self._filesystem.space(self._path)
            if free_bytes < self._limits.refuse_below_bytes:
                self.refusing = True
            elif free_bytes >= self._limits.resume_above_bytes:
                self.refusing = not self._has_reserve() and not self._make_reserve()
            return DiskUsage(total_bytes, free_bytes, self.refusing)

    def with_reserve(self, write: Callable[[], _T]) -> _T:
        """Run a checkpoint write; if it finds no space, release the reserve and run it once more."""
        try:
            return write()
        except OSError as error:
            if not is_no_room(error):
                raise
        with self._lock:
            self.refusing = True
            if self._has_reserve():
                self._filesystem.unlink(self._reserve_path)
        return write()

    def _has_reserve(self) -> bool:
        return self._limits.reserve_bytes == 0 or self._filesystem.exists(self._reserve_path)

    def _make_reserve(self) -> bool:
        try:
            descriptor = self._filesystem.open(self._reserve_path, create=True)
            try:
                self._filesystem.allocate(descriptor, self._limits.reserve_bytes)
            finally:
                self._filesystem.close(descriptor)
        except OSError as error:
            if not is_refused(error):
                raise
            if self._filesystem.exists(self._reserve_path):
                self._filesystem.unlink(self._reserve_path)
            return False
        return True
