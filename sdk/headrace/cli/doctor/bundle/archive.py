"""The archive of a bundle on disk: whole or not at all, readable by its owner only."""

import contextlib
import errno
import io
import os
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.doctor.bundle.contents import BundleFile

FOLDER = "headrace-bundle"
MODE = 0o600
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def write_archive(path: Path, files: Sequence[BundleFile], *, at_s: int, replaces: bool) -> int:
    """Write a tar.gz of the files below one folder and return its bytes.

    Args:
        path: the archive; it appears when it is complete.
        at_s: time of the files, seconds since 1970.
        replaces: whether an existing file is replaced.

    Raises:
        FileExistsError: If there is a file, and it is not to be replaced.
        OSError: If the archive cannot be written; nothing is left of it.
    """
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # With mode 0600.
    try:
        with os.fdopen(descriptor, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w:gz") as archive:
                for file in files:
                    entry = tarfile.TarInfo(f"{FOLDER}/{file.name}")
                    entry.size, entry.mode, entry.mtime = len(file.content), MODE, at_s
                    archive.addfile(entry, io.BytesIO(file.content))
            stream.flush()
            os.fsync(stream.fileno())
        size = os.path.getsize(partial)
        _publish(partial, path, replaces=replaces)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
    return size


def _publish(partial: str, path: Path, *, replaces: bool) -> None:
    if not replaces:
        try:
            os.link(partial, path)  # Unlike a rename it does not replace a file that has appeared meanwhile.
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        else:
            return
    os.replace(partial, path)
