"""Removal of segments: selection by retention, and files that await their unlink under a `.deleted` name.

The selection is pure; `DeletedFiles` belongs to one log and is used on its one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.log.open_files import OpenFile, OpenFiles
from headrace.log.segment import DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, Segment
from headrace.log.settings import UNLIMITED, LogSettings


class SegmentAge(NamedTuple):
    """Attributes of a closed segment that retention uses."""

    end_offset: int
    size_bytes: int
    last_append_ms: int


def expired(
    ages: Sequence[SegmentAge], total_bytes: int, high_watermark: int, now_ms: int | None, settings: LogSettings
) -> int:
    """Return the number of oldest closed segments to remove; `total_bytes` includes the active segment.

    Only segments wholly below the high watermark are removed, and none after the first that is kept (I18). `now_ms` is
    `None` while the clock is not trusted: then only sizes count (H43).
    """
    by_time = now_ms is not None and settings.retention_ms != UNLIMITED
    oldest_ms = (now_ms or 0) - settings.retention_ms
    count = 0
    for age in ages:
        too_old = by_time and age.last_append_ms < oldest_ms
        too_many = settings.retention_bytes != UNLIMITED and total_bytes - age.size_bytes >= settings.retention_bytes
        if age.end_offset > high_watermark or not (too_old or too_many):
            break
        total_bytes -= age.size_bytes
        count += 1
    return count


class DeletedFiles:
    """Segments removed from the log whose files are still on the disk; a slice may still read them.

    A failed call (a full disk, a busy machine) can be repeated: it resumes where it stopped.
    """

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._unnamed: list[tuple[str, OpenFile | None]] = []  # not yet renamed
        self._waiting: list[tuple[int | None, str, OpenFile | None]] = []

    def add(self, segment: Segment) -> None:
        """Add a segment that has left the list; `rename` follows."""
        self._unnamed.append((segment.stem, self._files.forget(segment.path)))

    def rename(self, directory: str) -> None:
        """Rename the files of added segments, and sync the directory. Raises OSError."""
        filesystem = self._files.filesystem
        if not self._unnamed:
            return
        for stem, _ in self._unnamed:
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                path = stem + suffix
                if filesystem.exists(path):
                    filesystem.rename(path, path + DELETED_SUFFIX)
        filesystem.fsync_directory(directory)
        self._waiting += [(None, stem, open_file) for stem, open_file in self._unnamed]
        self._unnamed = []

    def remove_due(self, now_ms: int, delay_ms: int) -> int:
        """Unlink unpinned files `delay_ms` after the first call that included them; return the number left."""
        left: list[tuple[int | None, str, OpenFile | None]] = []
        for since_ms, stem, open_file in self._waiting:
            since_ms = now_ms if since_ms is None else since_ms
            if now_ms - since_ms < delay_ms or (open_file is not None and open_file.pins):
                left.append((since_ms, stem, open_file))
            else:
                self._unlink(stem)
        self._waiting = left
        return len(left)

    def remove_unpinned(self) -> int:
        """Unlink unpinned files whatever their delay; return the number left."""
        left = [each for each in self._waiting if each[2] is not None and each[2].pins]
        for each in self._waiting:
            if each not in left:
                self._unlink(each[1])
        self._waiting = left
        return len(left)

    def _unlink(self, stem: str) -> None:
        filesystem = self._files.filesystem
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            path = stem + suffix + DELETED_SUFFIX
            if filesystem.exists(path):
                filesystem.unlink(path)
