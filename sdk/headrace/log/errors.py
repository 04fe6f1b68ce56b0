"""Errors that only storage raises, and the classification of each errno of an `OSError`.

    no room   ENOSPC EDQUOT                      `StorageFullError`: the call is refused, later ones may succeed
    busy      EMFILE ENFILE ENOMEM EAGAIN EINTR  `StorageBusyError`: the same; the machine lacks descriptors or memory
    others    EIO, EROFS, EACCES, ENOENT, ...    `StorageOfflineError`: the log is offline until the broker restarts

A refused call leaves the log unchanged, or in a state that a later call completes. A file that retention or truncation
removed during a look-up is no disk error: look-ups pin a segment only while the list has it.
"""

from __future__ import annotations

import errno
import os

from headrace.wire.errors import (
    ErrorCode,
    HeadraceError,
    InvalidConfigError,
    Outcome,
    StorageFullError,
    StorageOfflineError,
)

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
_BUSY = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR))
RETRY_AFTER_MS = 1000


class CorruptLogError(StorageOfflineError):
    """Bytes in a log differ from those written (H33): leave the in-sync set, then fetch again or involve the operator.

    Attributes:
        file: path of the corrupt file.
        offset: first offset that is in doubt.
        position: byte position of the corruption in the file.
    """

    def __init__(self, reason: str, *, file: str, offset: int, position: int) -> None:
        super().__init__(
            f"{file} is corrupt at byte {position} (offset {offset}): {reason}",
            outcome=Outcome.UNKNOWN,
            action="Nothing was changed. Fetch the partition from another replica; without one, restore the file from "
            "a backup, or see the runbook HeadraceCorruptLog for the records that can still be read.",
        )
        self.reason = reason
        self.file = file
        self.offset = offset
        self.position = position


class StorageBusyError(HeadraceError):
    """The machine has no descriptor or no memory for a storage call now. Nothing changed; try again."""

    default_code = ErrorCode.THROTTLED


class LogClosedError(HeadraceError):
    """The log was closed: the replica was removed or is being reopened. Refresh the metadata."""

    default_code = ErrorCode.NOT_LEADER


REFUSALS = (StorageFullError, StorageBusyError, LogClosedError)
"""Errors of a refused call: the log is unchanged, and its replica stays in service."""


class SliceCutError(HeadraceError):
    """The log was truncated under a slice: its bytes are gone. Read again at the log's new end."""

    default_code = ErrorCode.OFFSET_NOT_AVAILABLE


class WouldBlockError(Exception):
    """A look-up that must not wait for the disk would have to: repeat it in a thread (H46)."""


class DirectoryInUseError(HeadraceError):
    """Another process has locked the data directory; stop it, or set another data_dir for this broker."""

    default_code = ErrorCode.CONFLICT


class WrongDirectoryError(HeadraceError):
    """The data directory belongs to another cluster, generation or broker, or its identity file is corrupt."""

    default_code = ErrorCode.CONFLICT


def is_no_room(error: OSError) -> bool:
    """Return whether the error means a full volume or quota, not a broken disk."""
    return error.errno in _NO_ROOM


def is_refused(error: OSError) -> bool:
    """Return whether the same call may succeed later: no space, no descriptor or no memory at present."""
    return error.errno in _NO_ROOM or error.errno in _BUSY


def storage_error(path: str, error: OSError) -> HeadraceError:
    """Return the error to raise for a failed call on `path`: a refusal, or `storage_offline`."""
    if is_no_room(error):
        return storage_full(path)
    return storage_busy(path, error) if is_refused(error) else storage_offline(path, error)


def storage_full(path: str) -> StorageFullError:
    """Return the error of a call that found no space and wrote nothing."""
    return StorageFullError(
        f"the disk of {path} is full",
        outcome=Outcome.NOT_APPLIED,
        retriable=True,
        action="Free disk space or lower retention on this broker, then try again; appends resume automatically.",
        retry_after_ms=RETRY_AFTER_MS,
    )


def storage_busy(path: str, error: OSError) -> StorageBusyError:
    """Return the error of a call that found no free descriptor or memory and wrote nothing."""
    files = error.errno in (errno.EMFILE, errno.ENFILE)
    return StorageBusyError(
        f"{error.filename or path}: {error.strerror or error}",
        outcome=Outcome.NOT_APPLIED,
        retriable=True,
        action="Try again later; close connections or raise the limit of open files (`ulimit -n`, LimitNOFILE)."
        if files
        else "Try again later; free memory on the broker's machine.",
        retry_after_ms=RETRY_AFTER_MS,
    )


def storage_offline(path: str, error: OSError) -> StorageOfflineError:
    """Return the error of a failed disk call; writes in flight are in doubt until a restart has verified them (H34)."""
    return StorageOfflineError(
        f"{error.filename or path}: {error.strerror or error}",
        outcome=Outcome.UNKNOWN,
        action=_next_step(path, error),
    )


def directory_error(path: str, error: OSError) -> HeadraceError:
    """Return the error for a data directory that cannot be opened; InvalidConfigError if the operator must act."""
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return InvalidConfigError(
            f"data_dir is {path}, and {error.filename or path} is not a directory",
            action="Set data_dir to a directory, or to a path that does not exist yet.",
        )
    if error.errno in (errno.ENOLCK, errno.ENOTSUP):
        return InvalidConfigError(
            f"data_dir is {path}, whose file system has no locks: {error.strerror or error}",
            action="Set data_dir to a directory on a local file system.",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP):
        return InvalidConfigError(
            f"data_dir is {path}; {error.filename or path}: {error.strerror or error}", action=_next_step(path, error)
        )
    return storage_error(path, error)


def _next_step(path: str, error: OSError) -> str:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            file = _nearest_existing(error.filename or path)
            try:
                owner = f"{file} belongs to uid {os.stat(file).st_uid}"
            except OSError:
                owner = f"the owner of {file} cannot be read"
            return (
                f"The broker runs as uid {os.geteuid()}, and {owner}: change the owner (chown) or the permissions "
                "(chmod u+rwX), then start the broker again."
            )
        case errno.EROFS:
            return (
                "The file system is mounted read-only, often after an I/O error: check the kernel's log, mount it "
                "read-write, then start the broker again."
            )
        case errno.ENOENT:
            return (
                "A file was removed from the data directory: restore it, or remove the partition's directory and let "
                "the broker copy it from another replica, then restart the broker."
            )
        case errno.EFBIG:
            return "Raise the limit of file sizes (`ulimit -f`), then restart the broker."
        case errno.ENAMETOOLONG | errno.ELOOP:
            return "Set data_dir to another path."
    return "Replace or repair the disk, then restart the broker; nothing is retried on it."


def _nearest_existing(path: str) -> str:
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path or "/"
