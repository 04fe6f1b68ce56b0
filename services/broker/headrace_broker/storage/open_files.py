"""File descriptors of segments, opened on first use and kept by a bounded least-recently-used list.

One `OpenFiles` belongs to a `DataDirectory` and is shared by its logs and slices, in any thread. A pinned descriptor is
never closed: the active segment is pinned by its log, and every slice pins its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from headrace_broker.storage.filesystem import FileSystem


class OpenFile:
    """An open descriptor with the number of its pins; changed by `OpenFiles` only."""

    __slots__ = ("descriptor", "forgotten", "path", "pins")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.pins = 1
        self.forgotten = False


class OpenFiles:
    """Hands out pinned descriptors by path; holds at most `capacity` that nobody pins."""

    def __init__(self, filesystem: FileSystem, capacity: int) -> None:
        self.filesystem = filesystem
        self._capacity = capacity
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()

    def pin(self, path: str) -> OpenFile:
        """Open `path` if it is not open, and pin it; raises OSError."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = OpenFile(path, self.filesystem.open(path))
                self._files[path] = file
                self._evict()
            else:
                file.pins += 1
                self._files.move_to_end(path)
            return file

    def pin_new(self, path: str) -> OpenFile:
        """Create `path` exclusively (H47) and pin it; raises FileExistsError and other OSErrors."""
        with self._lock:
            file = OpenFile(path, self.filesystem.open(path, create=True))
            self._files[path] = file
            self._evict()
            return file

    def unpin(self, file: OpenFile) -> None:
        """Give up one pin; a forgotten file closes with its last."""
        with self._lock:
            assert file.pins > 0, f"{file.path} was unpinned more often than pinned"
            file.pins -= 1
            if file.pins == 0 and file.forgotten:
                self.filesystem.close(file.descriptor)

    def forget(self, path: str) -> OpenFile | None:
        """Drop `path`, because it is renamed or removed; slices go on by their pins.

        None if it was not open or is closed now.
        """
        with self._lock:
            file = self._files.pop(path, None)
            if file is None:
                return None
            file.forgotten = True
            if file.pins:
                return file
            self.filesystem.close(file.descriptor)
            return None

    def _evict(self) -> None:
        if len(self._files) <= self._capacity:
            return
        for path, file in list(self._files.items()):
            if file.pins == 0:
                del self._files[path]
                self.filesystem.close(file.descriptor)
                if len(self._files) <= self._capacity:
                    return
