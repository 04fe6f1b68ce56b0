"""The errors that only storage raises, and what an errno means here.

The full disk and the failed disk are `StorageFullError` and `StorageOfflineError` of `headrace.wire.errors`; callers
outside this package act on those and on the four below.
"""

from __future__ import annotations

import errno

from headrace.wire.errors import ErrorCode, HeadraceError, Outcome, StorageFullError, StorageOfflineError

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))


class LogDamagedError(StorageOfflineError):
    """Bytes in a log are not what was written (H33): leave the in-sync set, then fetch again or ask the operator.

    Attributes:
        file: path of the damaged file.
        offset: first offset that is in doubt.
        position: byte position of the damage in the file.
    """

    def __init__(self, reason: str, *, file: str, offset: int, position: int) -> None:
        super().__init__(
            f"{file} is damaged at byte {position} (offset {offset}): {reason}",
            outcome=Outcome.UNKNOWN,
            action="Nothing was changed. Fetch the partition from another replica; without one, restore the file, or "
            "open the log with cut_at_damage, which loses everything from this offset on.",
        )
        self.reason = reason
        self.file = file
        self.offset = offset
        self.position = position


class SliceCutError(HeadraceError):
    """The log was truncated under a slice: its bytes are gone. Read again at the log's new end."""

    default_code = ErrorCode.OFFSET_NOT_AVAILABLE


class DirectoryInUseError(HeadraceError):
    """Another process holds the data directory; stop it, or give this broker a directory of its own."""

    default_code = ErrorCode.CONFLICT


class WrongDirectoryError(HeadraceError):
    """The data directory belongs to another cluster, generation or broker, or its identity file is damaged."""

    default_code = ErrorCode.CONFLICT


def is_no_room(error: OSError) -> bool:
    """Whether the volume or the quota is full, as against broken."""
    return error.errno in _NO_ROOM


def storage_full(path: str) -> StorageFullError:
    """Give the error of an append that found no room; nothing of it stayed."""
    return StorageFullError(
        f"the disk of {path} is full",
        outcome=Outcome.NOT_APPLIED,
        retriable=True,
        action="Try again later: free disk space or lower retention on this broker; it takes appends again by itself.",
        retry_after_ms=1000,
    )


def storage_offline(path: str, error: OSError) -> StorageOfflineError:
    """Give the error of a failed disk call; what was in flight is in doubt until a restart has verified it (H34)."""
    return StorageOfflineError(
        f"{path}: {error.strerror or error}",
        outcome=Outcome.UNKNOWN,
        action="Replace or repair the disk, then restart the broker; nothing is retried on it.",
    )
