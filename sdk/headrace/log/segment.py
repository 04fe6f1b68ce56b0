"""Segment of a log: a file `<base_offset:020d>.log` of batches, with its sparse indexes.

Owned by a `PartitionLog` and changed under its lock. The file is accessed through `OpenFiles`. Compaction replaces
segments by one named `<base_offset:020d>-<end_offset:020d>-<version>.log`, which is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from headrace.log.filesystem import FileSystem
from headrace.log.index import IndexCache, SegmentIndex
from headrace.log.open_files import OpenFile
from headrace.log.scan import ReadAt
from headrace.wire.batch import HEADER_BYTES, peek_header

LOG_SUFFIX = ".log"
DELETED_SUFFIX = ".deleted"
INDEX_SUFFIXES = (".index", ".timeindex")
_STEM = re.compile(r"(\d{20})(?:-(\d{20})-(\d+))?")


class SegmentName(NamedTuple):
    """Name of a segment's files. Ascending names are those of a log's segments, in order."""

    base_offset: int
    end_offset: int = -1
    """End of the offsets of a compacted segment; -1 for a segment that appends have written."""
    version: int = 0
    """Distinguishes compacted segments of the same offsets."""

    @property
    def stem(self) -> str:
        """Name of the files without suffix."""
        return f"{self.base_offset:020d}" + (f"-{self.end_offset:020d}-{self.version}" if self.end_offset >= 0 else "")


class Segment:
    """State of a segment that is available without reading its file."""

    __slots__ = (
        "base_offset",
        "cuts",
        "deleted_ms",
        "dirty",
        "expired_ms",
        "first_append_ms",
        "held_file",
        "index",
        "index_ready",
        "name",
        "path",
        "size_bytes",
        "stem",
    )

    def __init__(
        self, filesystem: FileSystem, directory: str, name: SegmentName, size_bytes: int, cache: IndexCache
    ) -> None:
        self.name = name
        self.base_offset = name.base_offset
        self.stem = f"{directory}/{name.stem}"
        self.path = self.stem + LOG_SUFFIX
        # Bytes of whole batches; readers ignore bytes beyond.
        self.size_bytes = size_bytes
        # Number of truncations: a slice made before a truncation must not be read after it.
        self.cuts = 0
        # Written since the last fsync.
        self.dirty = False
        # Descriptor through which a rolled segment was written, pinned until its fsync has succeeded: a write-back
        # error is reported only once, and only to descriptors that were open (fsyncgate).
        self.held_file: OpenFile | None = None
        # Append timestamp of the first batch in ms; -1 means unknown.
        self.first_append_ms = -1
        # Append timestamp in ms of the first batch with a null value, of a closed segment; -1 means none. Set by
        # compaction, on first use.
        self.deleted_ms: int | None = None
        # Time in ms at which the first record of a table has expired, of a closed segment; -1 means none. Set as above.
        self.expired_ms: int | None = None
        self.index = SegmentIndex(filesystem, self.stem, self.base_offset, cache)
        # Whether the index covers the whole segment; that of a closed segment is completed on first use.
        self.index_ready = size_bytes == 0

    @property
    def is_compacted(self) -> bool:
        """Whether compaction wrote it: it is immutable, and its name has the offsets that it covers."""
        return self.name.end_offset >= 0


def segment_names(names: Sequence[str]) -> list[SegmentName]:
    """Return the names of the segments among the names of files, ascending."""
    found: list[SegmentName] = []
    for name in names:
        match = _STEM.fullmatch(name.removesuffix(LOG_SUFFIX)) if name.endswith(LOG_SUFFIX) else None
        if match is not None:
            base_offset, end_offset, version = match.groups()
            is_plain = end_offset is None
            found.append(SegmentName(int(base_offset), -1 if is_plain else int(end_offset), int(version or 0)))
    return sorted(found)


def replaced_segments(names: Sequence[SegmentName]) -> list[SegmentName]:
    """Return those of ascending names that a compacted segment replaces: a crash interrupted their removal.

    The ranges of compacted segments never overlap in part: a later one covers all of each that it replaces.
    """
    replaced: list[SegmentName] = []
    latest: SegmentName | None = None
    for name in names:
        if latest is not None and name.base_offset < latest.end_offset and name.base_offset != latest.base_offset:
            replaced.append(name)
            continue
        if latest is not None and name.base_offset == latest.base_offset:
            replaced.append(latest)
        latest = name
    return replaced


def first_append_ms(read_at: ReadAt, size_bytes: int) -> int:
    """Return the append timestamp of a segment's first batch, unchecked; -1 if the segment is empty."""
    return peek_header(read_at(HEADER_BYTES, 0)).append_timestamp_ms if size_bytes else -1
