"""File descriptors of segments, opened on first use and kept by a bounded least-recently-used list.

One `OpenFiles` belongs to a `DataDirectory` and is shared by its logs and slices, in any thread. A pinned descriptor is
never closed: the active segment is pinned by its log, and every slice pins its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from headrace.log.filesystem import FileSystem


class OpenFile:
    """An open descriptor with the number of its pins; changed by `OpenFiles` only."""

    __slots__ = ("descriptor", "forgotten", "path", "pins")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.pins = 1
        self.forgotten = False


class OpenFiles:
    """Hands out pinned descriptors by path; keeps at most `capacity` that nobody pins."""

    def __init__(self, filesystem: FileSystem, capacity: int) -> None:
        self.filesystem = filesystem
        self._capacity = capacity
        self._lock = threading.Lock()
        self._files: dict[str, OpenFile] = {}
        self._unpinned: OrderedDict[str, OpenFile] = OrderedDict()  # least recently used first

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
        file = OpenFile(path, self.filesystem.open(path, create=create))
        stale = self._files.get(path)
        if stale is not None:  # The name was removed and made anew behind it.
            stale.forgotten = True
            if self._unpinned.pop(path, None) is not None:
                self.filesystem.close(stale.descriptor)
        self._files[path] = file
        return file

    def unpin(self, file: OpenFile) -> None:
        """Release one pin; a forgotten file closes with its last pin, others stay open up to the capacity."""
        with self._lock:
            assert file.pins > 0, f"{file.path} was unpinned more often than pinned"
            file.pins -= 1
            if file.pins:
                return
            if file.forgotten:
                self.filesystem.close(file.descriptor)
                return
            self._unpinned[file.path] = file
            if len(self._unpinned) > self._capacity:
                path, oldest = self._unpinned.popitem(last=False)
                del self._files[path]
                self.filesystem.close(oldest.descriptor)

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
            del self._unpinned[path]
            self.filesystem.close(file.descriptor)
            return None

    def drop_all(self, directory: str) -> None:
        """Close every file of a log that could not be opened, pinned or not: nobody else has met it yet."""
        with self._lock:
            for path in [path for path in self._files if path.startswith(f"{directory}/")]:
                self._unpinned.pop(path, None)
                self.filesystem.close(self._files.pop(path).descriptor)


def pin_empty(files: OpenFiles, path: str) -> OpenFile:
    """Create and pin `path`; an empty file that a crash or a refused call left there is used again (H47).

    Raises FileExistsError: it holds something. Other OSErrors.
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
