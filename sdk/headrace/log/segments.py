"""Segments of one log in order, and look-ups of batches: a sorted list in memory, then the file (paper 3.1).

Owned by a `PartitionLog`. The list changes under the log's lock. Look-ups hold it only briefly, so that one that waits
for the disk never delays an append.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from headrace.log.errors import CorruptLogError, WouldBlockError
from headrace.log.index import IndexCache, SegmentIndex
from headrace.log.open_files import Holder, OpenFile, OpenFiles
from headrace.log.scan import ReadAt, walk_headers
from headrace.log.segment import INDEX_SUFFIXES, Segment, SegmentName
from headrace.wire.batch import BatchHeader


class SegmentGoneError(Exception):
    """The segment was removed by retention or a truncation since the look-up; never leaves this package."""


class SegmentList:
    """Segments ascending by base offset; the last is the active one."""

    def __init__(self, files: OpenFiles, cache: IndexCache, directory: str, holder: Holder) -> None:
        self.files = files
        self.filesystem = files.filesystem
        self.directory = directory
        self.lock = threading.RLock()
        self.items: list[Segment] = []
        # Held file of `active`; `None` if it was closed while the log was idle.
        self.active_file: OpenFile | None = None
        self._holder = holder
        self._cache = cache
        self._bases: list[int] = []
        self._index_lock = threading.Lock()

    @property
    def active(self) -> Segment:
        """Segment that receives appends."""
        return self.items[-1]

    def size_bytes(self) -> int:
        """Return the bytes of all segments."""
        with self.lock:
            return sum(segment.size_bytes for segment in self.items)

    def add(self, name: SegmentName, size_bytes: int) -> Segment:
        """Add an existing segment file, above all others."""
        assert not self._bases or name.base_offset > self._bases[-1], "segments must ascend"
        segment = self.new_segment(name, size_bytes)
        self._bases.append(name.base_offset)
        self.items.append(segment)
        return segment

    def new_segment(self, name: SegmentName, size_bytes: int) -> Segment:
        """Return a segment of an existing file that is not in the list yet."""
        return Segment(self.filesystem, self.directory, name, size_bytes, self._cache)

    def replace(self, replaced: Sequence[Segment], segment: Segment) -> None:
        """Replace adjacent segments of the list by one of the same offsets; the caller removes their files."""
        at = self.items.index(replaced[0])
        assert self.items[at : at + len(replaced)] == list(replaced), "they are adjacent"
        self.items[at : at + len(replaced)] = [segment]
        self._bases[at : at + len(replaced)] = [segment.base_offset]
        for each in replaced:
            each.index.drop()

    def remove(self, segment: Segment) -> None:
        """Remove a segment from the list; the caller removes its files."""
        at = self.items.index(segment)
        del self.items[at], self._bases[at]
        segment.index.drop()

    def pin(self, segment: Segment) -> OpenFile:
        """Pin the file of a segment in the list; its files are renamed or removed only after it has left the list.

        Raises SegmentGoneError, CorruptLogError (the file was removed by another process), OSError.
        """
        with self.lock:
            at = bisect_right(self._bases, segment.base_offset) - 1
            if at < 0 or self.items[at] is not segment:
                raise SegmentGoneError
            try:
                return self.files.pin(segment.path)
            except FileNotFoundError as error:
                raise CorruptLogError(
                    "the file is gone", file=segment.path, offset=segment.base_offset, position=0
                ) from error

    def hold_active(self, file: OpenFile) -> None:
        """Hold `file`, pinned by the caller, as the file of `active`; the pin is released."""
        self.active_file = file
        self.files.hold(file, self._holder)

    def open_active(self) -> OpenFile:
        """Return the file of `active`, reopened if it was closed. Raises as `pin`."""
        if self.active_file is None:
            self.hold_active(self.pin(self.active))
        assert self.active_file is not None
        return self.active_file

    def take_active_file(self) -> OpenFile | None:
        """Return the file of `active` and replace the hold by a pin; `None` if it is closed."""
        file, self.active_file = self.active_file, None
        if file is not None:
            self.files.pin_held(file)
        return file

    def release_active(self) -> None:
        """End the hold on the file of `active`, if there is one."""
        file = self.take_active_file()
        if file is not None:
            self.files.unpin(file)

    def find(self, offset: int) -> Segment:
        """Return the segment that contains or would contain `offset`."""
        return self.items[max(bisect_right(self._bases, offset) - 1, 0)]

    def after(self, segment: Segment) -> Segment | None:
        """Return the next segment; `None` for the active one."""
        at = bisect_right(self._bases, segment.base_offset)
        return self.items[at] if at < len(self.items) else None

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that contains `offset` and all after it."""
        return self.items[max(bisect_right(self._bases, offset) - 1, 0) :]

    def reader(self, file: OpenFile, *, nowait: bool = False) -> ReadAt:
        """Return a function that reads from a pinned file; with `nowait` it raises WouldBlockError, never waits."""

        def read_at(size_bytes: int, position: int) -> bytes:
            return self.filesystem.pread(file.descriptor, size_bytes, position)

        def read_at_once(size_bytes: int, position: int) -> bytes:
            data = self.filesystem.pread_nowait(file.descriptor, size_bytes, position)
            if data is None:
                raise WouldBlockError
            return data

        return read_at_once if nowait else read_at

    def locate(
        self, segment: Segment, read_at: ReadAt, offset: int, interval_bytes: int, *, nowait: bool = False
    ) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that contains `offset`, which lies in `segment`.

        A wrong index entry is not corruption of the log: the index is rebuilt first (H38).
        """
        try:
            return self._locate(segment, read_at, offset, interval_bytes, nowait)
        except CorruptLogError:
            if nowait:
                raise WouldBlockError from None
            self.rebuild_index(segment, read_at, interval_bytes)
            return self._locate(segment, read_at, offset, interval_bytes, nowait)

    def _locate(
        self, segment: Segment, read_at: ReadAt, offset: int, interval_bytes: int, nowait: bool
    ) -> tuple[int, BatchHeader]:
        base_offset, position = self.floor(segment, read_at, offset, interval_bytes, nowait=nowait)
        for found in walk_headers(read_at, segment.path, position, segment.size_bytes, base_offset):
            if found[1].end_offset > offset:
                return found
        raise CorruptLogError(
            "no batch holds the offset", file=segment.path, offset=offset, position=segment.size_bytes
        )

    def floor(
        self,
        segment: Segment,
        read_at: ReadAt,
        value: int,
        interval_bytes: int,
        *,
        nowait: bool = False,
        by_position: bool = False,
    ) -> tuple[int, int]:
        """Return offset and position of a batch start at or before an offset (or a position), by the index."""
        index = self.ready_index(segment, read_at, interval_bytes, nowait=nowait)
        look_up = index.floor_position if by_position else index.floor
        with self.lock:
            found = look_up(value, load=False)
        if found is None:
            if nowait:
                raise WouldBlockError
            found = look_up(value, load=True)
        if found is None:
            index = self.rebuild_index(segment, read_at, interval_bytes)
            found = index.floor_position(value, load=True) if by_position else index.floor(value, load=True)
        assert found is not None, "an index built just now is whole"
        return found

    def ready_index(
        self, segment: Segment, read_at: ReadAt, interval_bytes: int, *, nowait: bool = False
    ) -> SegmentIndex:
        """Return the segment's complete index, read from its files and extended from the log as needed."""
        if segment.index_ready:
            return segment.index
        if nowait:
            raise WouldBlockError
        with self._index_lock:
            index = segment.index
            if _is_ready(segment):  # another thread was faster
                return index
            if not index.load_headers(segment.size_bytes) or not self._extend(index, segment, read_at, interval_bytes):
                index.reset()
                self._extend_or_raise(index, segment, read_at, interval_bytes)
            segment.index_ready = True
            return index

    def rebuild_index(self, segment: Segment, read_at: ReadAt, interval_bytes: int) -> SegmentIndex:
        """Build the index from the segment's headers alone; raises CorruptLogError if those are corrupt."""
        with self._index_lock:
            cuts = segment.cuts
            index = self.new_index(segment, read_at, interval_bytes, segment.size_bytes)
            with self.lock:
                if segment.cuts != cuts:
                    raise CorruptLogError(
                        "the segment was cut", file=segment.path, offset=segment.base_offset, position=0
                    )
                self._extend_or_raise(index, segment, read_at, interval_bytes)  # appended in the meantime
                segment.index.drop()
                segment.index = index
                segment.index_ready = True
            return index

    def new_index(self, segment: Segment, read_at: ReadAt, interval_bytes: int, size_bytes: int) -> SegmentIndex:
        """Return a new index of the first `size_bytes` of a segment."""
        index = SegmentIndex(self.filesystem, segment.stem, segment.base_offset, self._cache)
        self._extend_or_raise(index, segment, read_at, interval_bytes, size_bytes)
        return index

    def _extend(self, index: SegmentIndex, segment: Segment, read_at: ReadAt, interval_bytes: int) -> bool:
        try:
            self._extend_or_raise(index, segment, read_at, interval_bytes)
        except CorruptLogError:
            return False
        return True

    def _extend_or_raise(
        self, index: SegmentIndex, segment: Segment, read_at: ReadAt, interval_bytes: int, size_bytes: int | None = None
    ) -> None:
        start, offset = index.covered_position, index.covered_offset
        end_position = segment.size_bytes if size_bytes is None else size_bytes
        for _, header in walk_headers(read_at, segment.path, start, end_position, offset):
            index.note(
                header.base_offset,
                header.end_offset,
                header.batch_bytes,
                append_ms=header.append_timestamp_ms,
                record_ms=header.max_timestamp_ms,
                interval_bytes=interval_bytes,
            )

    def extend(self, segment: Segment, size_bytes: int, interval_bytes: int) -> None:
        """Adopt the bytes that another process has appended to a segment. Raises as `pin`, and CorruptLogError."""
        segment.size_bytes = size_bytes
        if segment.index_ready:
            file = self.pin(segment)
            try:
                self._extend_or_raise(segment.index, segment, self.reader(file), interval_bytes)
            finally:
                self.files.unpin(file)

    def walk(self, segment: Segment, offset: int, interval_bytes: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header from the batch that contains `offset` to the segment's end, with the file pinned.

        Raises as `pin`.
        """
        if segment.size_bytes == 0:
            return
        file = self.pin(segment)
        try:
            read_at = self.reader(file)
            end_position = segment.size_bytes
            position, header = self.locate(segment, read_at, max(offset, segment.base_offset), interval_bytes)
            yield from walk_headers(read_at, segment.path, position, end_position, header.base_offset)
        finally:
            self.files.unpin(file)

    def drop_index_files(self, stem: str) -> None:
        """Remove the index files of a truncated segment: they may have entries of removed batches."""
        for suffix in INDEX_SUFFIXES:
            if self.filesystem.exists(stem + suffix):
                self.filesystem.unlink(stem + suffix)


def _is_ready(segment: Segment) -> bool:
    return segment.index_ready
