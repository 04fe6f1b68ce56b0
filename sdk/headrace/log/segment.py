"""Segment of a log: a file `<base_offset:020d>.log` of batches, with its sparse indexes.

Owned by a `PartitionLog` and changed under its lock. The file is accessed through `OpenFiles`.
"""

from __future__ import annotations

from headrace.log.filesystem import FileSystem
from headrace.log.index import IndexCache, SegmentIndex
from headrace.log.open_files import OpenFile
from headrace.log.scan import ReadAt
from headrace.wire.batch import HEADER_BYTES, peek_header

LOG_SUFFIX = ".log"
DELETED_SUFFIX = ".deleted"
INDEX_SUFFIXES = (".index", ".timeindex")


class Segment:
    """State of a segment that is available without reading its file."""

    __slots__ = (
        "base_offset",
        "cuts",
        "dirty",
        "first_append_ms",
        "held_file",
        "index",
        "index_ready",
        "path",
        "size_bytes",
        "stem",
    )

    def __init__(
        self, filesystem: FileSystem, directory: str, base_offset: int, size_bytes: int, cache: IndexCache
    ) -> None:
        self.base_offset = base_offset
        self.stem = f"{directory}/{base_offset:020d}"
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
        self.index = SegmentIndex(filesystem, self.stem, base_offset, cache)
        # Whether the index covers the whole segment; that of a closed segment is completed on first use.
        self.index_ready = size_bytes == 0


def segment_base_offsets(names: list[str]) -> list[int]:
    """Return the base offsets of the segment files among `names`, ascending."""
    stems = (name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdigit())


def first_append_ms(read_at: ReadAt, size_bytes: int) -> int:
    """Return the append timestamp of a segment's first batch, unchecked; -1 if the segment is empty."""
    return peek_header(read_at(HEADER_BYTES, 0)).append_timestamp_ms if size_bytes else -1
