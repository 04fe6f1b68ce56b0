"""File-system operations of the log: this package accesses disks only through them.

`OsFileSystem` (os_filesystem.py) is the real one. A real disk produces no torn writes, lost directory entries or failed
fsyncs on demand, so tests and the simulator run the production engine on a fake that does. The cost is one more Python
call between a log and each system call. All calls are synchronous and raise `OSError` with an errno, which `errors.py`
classifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class DiskSpace(NamedTuple):
    """Room on the volume of a path, in bytes, as an unprivileged process sees it."""

    total_bytes: int
    free_bytes: int


class FileSystem(Protocol):
    """File operations by descriptor and by path. A descriptor is an int that only this object interprets."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing. `create` makes a new file and fails with EEXIST if there is one (O_EXCL)."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        ...

    def pwritev(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        """Write the buffers one after another at `position`; return the bytes written, which may be fewer (H35)."""
        ...

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        """Read up to `size_bytes`; fewer only at the end of the file. May block."""
        ...

    def pread_nowait(self, descriptor: int, size_bytes: int, position: int) -> bytes | None:
        """Read exactly `size_bytes` from the page cache; `None` if not cached, too short, or not supported (H46)."""
        ...

    def size(self, descriptor: int) -> int:
        """Return the file's size in bytes."""
        ...

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the file's size (ftruncate)."""
        ...

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve blocks for the first `size_bytes` (posix_fallocate); ENOSPC if there is no room."""
        ...

    def fsync(self, descriptor: int) -> None:
        """Make a file's data and size durable."""
        ...

    def fsync_directory(self, path: str) -> None:
        """Make a directory's entries durable (H36)."""
        ...

    def make_directory(self, path: str) -> None:
        """Make one directory; EEXIST if there is one."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; ENOENT if there is no directory."""
        ...

    def is_directory(self, path: str) -> bool:
        """Return whether `path` is a directory."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether anything exists at `path`."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing `target`, atomically; durable only after `fsync_directory`."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name; open descriptors stay valid."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def space(self, path: str) -> DiskSpace:
        """Return the space on the volume that holds `path` (statvfs)."""
        ...

    def try_lock(self, descriptor: int) -> bool:
        """Take an exclusive lock (flock) that ends with the descriptor; False if another holds it."""
        ...


def read_file(filesystem: FileSystem, path: str, limit_bytes: int) -> bytes | None:
    """Read a whole small file, None if there is none; at most `limit_bytes` of it."""
    try:
        descriptor = filesystem.open(path)
    except FileNotFoundError:
        return None
    try:
        return filesystem.pread(descriptor, min(filesystem.size(descriptor), limit_bytes), 0)
    finally:
        filesystem.close(descriptor)
