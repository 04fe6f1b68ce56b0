"""Real file system, on POSIX calls.

What only Linux has is replaced elsewhere: `pread_nowait` always returns `None`, and `allocate` writes zeros. macOS has
`F_FULLFSYNC`: its fsync alone leaves data in the disk's cache.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Sequence

from headrace.log.filesystem import DiskSpace

_OPEN_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
_RWF_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_HAS_PWRITEV = hasattr(os, "pwritev")
_ZEROS = bytes(1 << 20)


class OsFileSystem:
    """Implements `FileSystem`; stateless, any thread."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open read-write; a new file is readable by its owner and group."""
        return os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL if create else _OPEN_FLAGS, 0o640)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def pwritev(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int) -> int:
        """Make one `pwritev` system call, or `pwrite` where there is none."""
        if not _HAS_PWRITEV:
            return os.pwrite(descriptor, b"".join(buffers), position)
        return os.pwritev(descriptor, buffers, position)

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        """Read until `size_bytes` or the end of the file."""
        data = os.pread(descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes:  # Linux returns at most 2 GiB - 4 KiB a call, and a signal may interrupt one
            data = os.pread(descriptor, size_bytes - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_nowait(self, descriptor: int, size_bytes: int, position: int) -> bytes | None:
        """Make one `preadv2` with RWF_NOWAIT, directly into the bytes object that is returned."""
        if _RWF_NOWAIT is None:
            return None
        # BytesIO owns the only reference to its initial bytes, is writable, and returns them without a copy.
        target = io.BytesIO(bytes(size_bytes))
        with target.getbuffer() as view:
            try:
                got = os.preadv(descriptor, [view], position, _RWF_NOWAIT)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    return None
                raise
        return target.getvalue() if got == size_bytes else None

    def size(self, descriptor: int) -> int:
        """Return the size by `fstat`."""
        return os.fstat(descriptor).st_size

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the size."""
        os.ftruncate(descriptor, size_bytes)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve blocks."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes)
            return
        position = self.size(descriptor)
        while position < size_bytes:
            position += os.pwrite(descriptor, _ZEROS[: size_bytes - position], position)

    def fsync(self, descriptor: int) -> None:
        """Full fsync: the size must be durable as well as the data."""
        if _FULL_FSYNC is not None:
            try:
                fcntl.fcntl(descriptor, _FULL_FSYNC)
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):  # Not of every file system.
                    raise
            else:
                return
        os.fsync(descriptor)

    def fsync_directory(self, path: str) -> None:
        """Fsync a directory."""
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: str) -> None:
        """Make a directory for owner and group."""
        os.mkdir(path, 0o750)

    def list_directory(self, path: str) -> list[str]:
        """Return sorted names."""
        return sorted(os.listdir(path))

    def is_directory(self, path: str) -> bool:
        """Follow symbolic links."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def exists(self, path: str) -> bool:
        """Check by `lstat`."""
        return os.path.lexists(path)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def space(self, path: str) -> DiskSpace:
        """Return the room that an unprivileged process may use."""
        volume = os.statvfs(path)
        return DiskSpace(volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize)

    def try_lock(self, descriptor: int) -> bool:
        """Take a non-blocking exclusive flock."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
