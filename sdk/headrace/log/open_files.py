"""File descriptors of segments: opened on first use, at most `capacity` at once, the least recently used closed first.

One `OpenFiles` belongs to a `DataDirectory` and is shared by its logs and slices, in any thread. A pin keeps a
descriptor open: each call and each slice pins the files it reads. A log holds the file of its active segment without a
pin, so that an append takes no lock here; `make_room` closes a held file only after its log has synced and released it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict, deque
from itertools import islice
from typing import Protocol

from headrace.log.filesystem import FileSystem

EXCESS = 64
"""Maximum number of files that calls may open beyond the capacity while every other file is in use."""
EXAMINED = 16
"""Number of least recently used files among which `make_room` searches for one that needs no fsync."""


class Holder(Protocol):
    """Log that writes to a file."""

    def release_file(self, file: OpenFile, *, sync: bool) -> bool:
        """Release `file` if no call uses it and it has no unsynced bytes; `sync` fsyncs them first. Never raises."""


class OpenFile:
    """Open descriptor with its pins and its holder; changed by `OpenFiles` only."""

    __slots__ = ("descriptor", "forgotten", "holder", "path", "pins")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.pins = 1
        self.holder: Holder | None = None
        self.forgotten = False


class OpenFiles:
    """Opens, shares and closes descriptors by path."""

    def __init__(self, filesystem: FileSystem, capacity: int) -> None:
        self.filesystem = filesystem
        self._capacity = capacity
        self._lock = threading.Lock()
        self._files: dict[str, OpenFile] = {}
        self._unpinned: OrderedDict[str, OpenFile] = OrderedDict()  # least recently used first; held or not
        self._dropped: deque[OpenFile] = deque()
        """Pins to release at the next call that opens, closes or unpins a file."""

    def pin(self, path: str) -> OpenFile:
        """Open `path` if it is not open, and pin it; raises OSError."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                return self._open(path, create=False)
            if file.pins == 0:
                del self._unpinned[path]
            file.pins += 1
            return file

    def pin_new(self, path: str) -> OpenFile:
        """Create `path` exclusively (H47) and pin it; raises FileExistsError and other OSErrors."""
        with self._lock:
            return self._open(path, create=True)

    def _open(self, path: str, *, create: bool) -> OpenFile:
        self._unpin_dropped()
        if len(self._files) >= self._capacity:
            unheld = (file for file in islice(self._unpinned.values(), EXAMINED) if file.holder is None)
            oldest = next(unheld, None)
            if oldest is not None:
                self._close(oldest)
            elif len(self._files) >= self._capacity + EXCESS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        file = OpenFile(path, self.filesystem.open(path, create=create))
        stale = self._files.get(path)
        if stale is not None:  # The name was removed and created again.
            assert stale.holder is None, f"{path} was re-created while a log had it open"
            stale.forgotten = True
            if self._unpinned.pop(path, None) is not None:
                self.filesystem.close(stale.descriptor)
        self._files[path] = file
        return file

    def _close(self, file: OpenFile) -> None:
        if not file.forgotten:
            self._unpinned.pop(file.path, None)
            del self._files[file.path]
        self.filesystem.close(file.descriptor)

    def unpin(self, file: OpenFile) -> None:
        """Release one pin. After the last one, close a forgotten file, or an unheld one beyond the capacity."""
        with self._lock:
            self._unpin_dropped()
            self._unpin(file)

    def drop(self, file: OpenFile) -> None:
        """Release one pin from a finalizer, without a wait: at once, or by a later call if the lock is taken.

        The garbage collector runs finalizers at any allocation, also in a thread that has the lock.
        """
        self._dropped.append(file)
        if self._lock.acquire(blocking=False):
            try:
                self._unpin_dropped()
            finally:
                self._lock.release()

    def _unpin_dropped(self) -> None:
        while self._dropped:
            self._unpin(self._dropped.popleft())

    def _unpin(self, file: OpenFile) -> None:
        assert file.pins > 0, f"{file.path} was unpinned more often than pinned"
        file.pins -= 1
        if file.pins:
            return
        if file.forgotten or (file.holder is None and len(self._files) > self._capacity):
            self._close(file)
        else:
            self._unpinned[file.path] = file

    def hold(self, file: OpenFile, holder: Holder) -> None:
        """Replace one pin by a hold: `file` stays open until `holder` releases it."""
        with self._lock:
            file.holder = holder
            self._unpin(file)

    def pin_held(self, file: OpenFile) -> None:
        """Replace the hold by a pin."""
        with self._lock:
            if file.pins == 0:
                del self._unpinned[file.path]
            file.pins += 1
            file.holder = None

    def make_room(self, *, nowait: bool = False) -> bool:
        """Close files until another one fits the capacity, unless calls in other threads use all of them.

        Call it before an open, without any lock that `Holder.release_file` takes. Files that need no fsync are closed
        first; with `nowait` only those. Return whether no file has to be synced first.
        """
        for sync in (False, True):
            if len(self._files) < self._capacity:
                return True
            if sync and nowait:
                return False
            with self._lock:
                self._unpin_dropped()
                oldest = list(islice(self._unpinned.values(), EXAMINED))
            for file in oldest:
                holder = file.holder
                is_released = holder is None or holder.release_file(file, sync=sync)
                with self._lock:
                    if self._unpinned.get(file.path) is file:
                        if is_released and file.holder is None:
                            self._close(file)
                        elif sync:
                            self._unpinned.move_to_end(file.path)
                if len(self._files) < self._capacity:
                    return True
        return True

    def forget(self, path: str) -> OpenFile | None:
        """Drop a path that is renamed or removed; slices continue to read through their pins.

        Return `None` if it was not open or is closed now.
        """
        with self._lock:
            file = self._files.get(path)
            if file is None:
                return None
            assert file.holder is None, f"{path} is held"
            if file.pins == 0:
                self._close(file)
                return None
            del self._files[path]
            file.forgotten = True
            return file

    def drop_all(self, directory: str) -> None:
        """Close every file of a log that failed to open, pinned or not: no other caller has a reference to it."""
        with self._lock:
            for path in [path for path in self._files if path.startswith(f"{directory}/")]:
                self._close(self._files[path])


def pin_empty(files: OpenFiles, path: str) -> OpenFile:
    """Create and pin `path`; reuse an empty file that a crash or a refused call left there (H47).

    Raises FileExistsError if the file is not empty, and other OSErrors.
    """
    try:
        return files.pin_new(path)
    except FileExistsError:
        file = files.pin(path)
        try:
            if files.filesystem.size(file.descriptor):
                raise
        except BaseException:
            files.unpin(file)
            raise
        return file
