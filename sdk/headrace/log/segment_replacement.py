"""Puts a compacted segment in the place of closed ones, between two moments: no reader and no crash sees half of it.

It is written to a temporary file and renamed: a file in use is never changed. Its name says which offsets it covers, so
that a start after a crash knows what it replaces.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from headrace.log.closed_segments import ClosedSegments
from headrace.log.compacted_writer import CompactedWriter
from headrace.log.durability import LogDurability
from headrace.log.log_retention import LogRetention
from headrace.log.log_state import LogState
from headrace.log.open_files import pin_empty
from headrace.log.record_selection import SelectedSegment
from headrace.log.segment import Segment, SegmentName
from headrace.log.segments import SegmentGoneError
from headrace.wire.batch import RemovedRecords

MANY_SEGMENTS = 8
"""This number of small adjacent segments becomes one though none has a record too many."""
_TEMPORARY_SUFFIX = ".tmp"
_MAX_SEGMENT_OFFSETS = 0xFFFF_FFFF
_MAX_REPLACED_BYTES = 2 << 30
"""Bytes of segments that become one, however few of their records stay: these may be the large ones, and a segment has
at most 4 GiB."""


def groups_worth_replacing(parts: Iterable[SelectedSegment], segment_bytes: int) -> list[list[SelectedSegment]]:
    """Return adjacent segments that become one each, of about `segment_bytes`, if that removes records or files.

    The size is estimated: records that stay count as the mean of all of their segment.

    A young one stays apart: one segment with all that is appended would never be old enough.
    """
    groups = _groups(parts, segment_bytes)
    return [group for group in groups if len(group) >= MANY_SEGMENTS or any(part.removed for part in group)]


def _groups(parts: Iterable[SelectedSegment], segment_bytes: int) -> Iterator[list[SelectedSegment]]:
    group: list[SelectedSegment] = []
    for part in parts:
        kept = part.records - part.removed
        part.kept_bytes = part.kept_bytes * kept // max(1, part.records)
        size_bytes = part.kept_bytes + sum(each.kept_bytes for each in group)
        span = part.end_offset - (group[0] if group else part).segment.base_offset
        is_full = span > _MAX_SEGMENT_OFFSETS or size_bytes > segment_bytes
        replaced_bytes = part.segment.size_bytes + sum(each.segment.size_bytes for each in group)
        if group and (part.is_young or is_full or replaced_bytes > _MAX_REPLACED_BYTES):
            yield group
            group = []
        group.append(part)
    yield group


class SegmentReplacement:
    """Belongs to a `LogCompaction`, on its thread."""

    def __init__(
        self, state: LogState, durability: LogDurability, retention: LogRetention, closed: ClosedSegments
    ) -> None:
        self._state = state
        self._segments = state.segments
        self._durability = durability
        self._retention = retention
        self._closed = closed
        self.removed_deletions_end = 0
        """End of the last deletion that is gone since the attribute was set to 0, under the round lock."""

    def replace(self, group: Sequence[SelectedSegment], truncations: int, newer_end: int) -> int:
        """Write the segment that replaces a group and rename it; return its bytes.

        Newer records of those that go are below `newer_end`. Raises SegmentGoneError if the log has been truncated
        since there were `truncations`; StorageFullError, which leaves the log as it was.
        """
        first, end_offset = group[0].segment, group[-1].end_offset
        is_again = len(group) == 1 and first.name.end_offset == end_offset
        name = SegmentName(first.base_offset, end_offset, first.name.version + 1 if is_again else 0)
        segment = self._segments.new_segment(name, 0)
        temporary = segment.path + _TEMPORARY_SUFFIX
        filesystem = self._segments.filesystem
        try:
            with self._state.disk():
                self._write(segment, temporary, group, newer_end)
            return self._install(segment, temporary, group, truncations)
        finally:
            with suppress(OSError):
                if filesystem.exists(temporary):
                    filesystem.unlink(temporary)

    def _write(self, segment: Segment, path: str, group: Sequence[SelectedSegment], newer_end: int) -> None:
        files, space = self._segments.files, self._state.environment.space
        files.make_room()
        file = pin_empty(files, path)
        try:
            position = 0

            def write(data: bytes) -> None:
                nonlocal position
                written = 0 if space.refusing else files.filesystem.pwritev(file.descriptor, [data], position)
                if written != len(data):
                    raise OSError(errno.ENOSPC, "no room for a compacted segment", path)
                position += written
                space.note_appended(written)

            writer = CompactedWriter(write, segment.index, self._state.settings.index_interval_bytes)
            for part in group:
                removed = RemovedRecords(newer_end, part.expired_ms)
                for (columns, header, batch), rows in zip(self._closed.batches(part.segment), part.rows, strict=True):
                    if columns is None or rows is None:
                        writer.copy(header, batch)
                    else:
                        writer.add(columns, batch, rows, removed)
            writer.finish()
            files.filesystem.fsync(file.descriptor)
            segment.size_bytes, segment.index_ready = writer.size_bytes, True
        finally:
            files.unpin(file)
            files.forget(path)

    def _install(
        self, segment: Segment, temporary: str, group: Sequence[SelectedSegment], truncations: int
    ) -> int:  # fmt: skip
        """Rename a finished segment, and let it take the place of those that it replaces."""
        state, segments, durability = self._state, self._segments, self._durability
        replaced = [part.segment for part in group]
        with durability.round_lock, state.disk():
            state.check_online()
            with segments.lock:
                if state.truncations != truncations or any(each not in segments.items for each in replaced):
                    raise SegmentGoneError
            segments.drop_index_files(segment.stem)
            segments.filesystem.rename(temporary, segment.path)
            segments.filesystem.fsync_directory(state.directory)
            # First: no read that lacks a deletion comes before.
            self.removed_deletions_end = max(self.removed_deletions_end, *(part.deletions_end for part in group))
            with segments.lock:
                segments.replace(replaced, segment)
                durability.note_replaced(segment)
            self._retention.remove_files(replaced)
        return segment.size_bytes
