"""Two sparse indexes of one segment: offset to position, and time to position. Hints, never authoritative (H38).

Both files are a header of 64 bytes and entries, little-endian:

    offset size field
     0     4    magic               "HRIX" (.index) or "HRTX" (.timeindex)
     4     4    version             uint32  1
     8     8    base_offset         int64   of the segment
    16     8    covered_offset      int64   the indexes cover all batches below this offset ..
    24     8    covered_position    int64   .. which end at this position
    32     8    max_append_ms       int64   largest append timestamp of the covered batches, -1 for none
    40     8    max_record_ms       int64   largest record timestamp of the covered batches, -2^63 for none
    48     4    entry_count         uint32
    52     4    entries_crc         uint32  CRC32C of the entries
    56     4    last_position       uint32  position of the last offset entry
    60     4    header_crc          uint32  CRC32C of bytes 0 .. 60

    .index entry      8 bytes   relative_offset uint32, position uint32: a batch starts there
    .timeindex entry 24 bytes   max_append_ms int64, max_record_ms int64, position int64: the running maxima of all
                                batches before that position, so both columns never decrease (H44)

An offset entry is added after every `index_interval_bytes` of log, a time entry after every sixteen times as much.
Entries are appended and the header rewritten at a checkpoint, without fsync: a torn write fails a CRC, and the segment
is scanned again. The entries since the last write (`tail`) are in memory, and those of the file while the cache has
room.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import NamedTuple

from headrace.log.filesystem import FileSystem
from headrace.wire.batch_runs import BatchRun
from headrace.wire.crc import crc32c

HEADER = struct.Struct("<4sIqqqqqIII")
HEADER_BYTES = HEADER.size + 4
assert HEADER_BYTES == 64
VERSION = 1
NO_RECORD_TIMESTAMP = -(2**63)
TIME_STRIDE = 16

assert sys.byteorder == "little", "the index files are written as they lie in memory"
assert array("I").itemsize == 4


class IndexHeader(NamedTuple):
    """Header without its checksum; the module's table defines the fields."""

    magic: bytes
    version: int
    base_offset: int
    covered_offset: int
    covered_position: int
    max_append_ms: int
    max_record_ms: int
    entry_count: int
    entries_crc: int
    last_position: int


class IndexCache:
    """Limits the memory of loaded index bodies over all logs of a data directory; evicts the least recently used."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[IndexFile, int] = OrderedDict()
        self.size_bytes = 0

    def used(self, index: IndexFile, size_bytes: int) -> None:
        """Record a use of `index`, whose body has this size; evict others beyond the capacity."""
        with self._lock:
            self.size_bytes += size_bytes - self._sizes.pop(index, 0)
            self._sizes[index] = size_bytes
            while self.size_bytes > self._capacity_bytes and len(self._sizes) > 1:
                oldest, size = self._sizes.popitem(last=False)
                self.size_bytes -= size
                oldest.body = None

    def drop(self, index: IndexFile) -> None:
        """Forget the index of a removed segment."""
        with self._lock:
            self.size_bytes -= self._sizes.pop(index, 0)


class IndexFile:
    """The entries of one index file: `count` on disk (`body`, loaded on demand) and `tail` not yet written."""

    def __init__(self, path: str, magic: bytes, typecode: str, width: int, cache: IndexCache) -> None:
        self.path = path
        self.magic = magic
        self.width = width  # array items an entry
        self.typecode = typecode
        self.entry_bytes = width * array(typecode).itemsize
        # Entries on disk and their CRC, in one attribute, because a reader in another thread needs a consistent pair.
        self.written = (0, 0)
        self.body: array[int] | None = None
        self.tail: array[int] = array(typecode)
        self._cache = cache

    def reset(self) -> None:
        """Drop all entries; the file is rewritten from its beginning."""
        self.written = (0, 0)
        self.body = None
        self.tail = array(self.typecode)
        self._cache.drop(self)

    def load(self, filesystem: FileSystem, *, load: bool) -> array[int] | None:
        """Return the entries on disk; `None` if the file does not contain them (the caller rebuilds).

        Also `None` if `load` is false and they are not in memory.
        """
        body = self.body
        if body is None:
            if not load and self.written[0]:
                return None
            body = array(self.typecode)
            count, crc = self.written
            if count:
                data = _read(filesystem, self.path, count * self.entry_bytes, HEADER_BYTES)
                if data is None or crc32c(data) != crc:
                    return None
                body.frombytes(data)
            self.body = body
        self._cache.used(self, len(body) * body.itemsize)
        return body

    def write(self, filesystem: FileSystem, covered: tuple[int, ...], last_position: int) -> None:
        """Append the tail to the file and write the header; raises OSError and keeps the tail.

        `covered` has the header fields from base_offset to max_record_ms.
        """
        data = self.tail.tobytes()
        if filesystem.exists(self.path):
            descriptor = filesystem.open(self.path)
        else:
            descriptor = filesystem.open(self.path, create=True)
        try:
            written, crc = self.written
            crc = crc32c(data, crc)
            count = written + len(self.tail) // self.width
            _write_all(filesystem, descriptor, data, HEADER_BYTES + written * self.entry_bytes)
            head = HEADER.pack(self.magic, VERSION, *covered, count, crc, last_position)
            _write_all(filesystem, descriptor, head + crc32c(head).to_bytes(4, "little"), 0)
        finally:
            filesystem.close(descriptor)
        body = self.body  # Another log's thread may evict it meanwhile.
        if body is not None:
            body.extend(self.tail)
            self._cache.used(self, len(body) * body.itemsize)
        self.written = (count, crc)
        self.tail = array(self.typecode)


class SegmentIndex:
    """Both indexes of one segment. Owned by the segment, changed under the log's lock."""

    def __init__(self, filesystem: FileSystem, path_stem: str, base_offset: int, cache: IndexCache) -> None:
        self._filesystem = filesystem
        self.base_offset = base_offset
        self.offsets = IndexFile(f"{path_stem}.index", b"HRIX", "I", 2, cache)
        self.times = IndexFile(f"{path_stem}.timeindex", b"HRTX", "q", 3, cache)
        self.covered_offset = base_offset
        self.covered_position = 0
        self.max_append_ms = -1
        self.max_record_ms = NO_RECORD_TIMESTAMP
        self._last_position = 0
        self._last_time_position = 0
        self._written_position = -1

    def reset(self) -> None:
        """Remove all entries; the caller adds every batch of the segment again."""
        self.offsets.reset()
        self.times.reset()
        self.covered_offset, self.covered_position = self.base_offset, 0
        self.max_append_ms, self.max_record_ms = -1, NO_RECORD_TIMESTAMP
        self._last_position = self._last_time_position = 0
        self._written_position = -1

    def note(
        self,
        base_offset: int,
        end_offset: int,
        size_bytes: int,
        *,
        append_ms: int,
        record_ms: int,
        interval_bytes: int,
    ) -> None:
        """Add the batch at `covered_position`."""
        position = self.covered_position
        if position - self._last_position >= interval_bytes:
            self.offsets.tail.extend((base_offset - self.base_offset, position))
            self._last_position = position
            if position - self._last_time_position >= interval_bytes * TIME_STRIDE:
                self.times.tail.extend((self.max_append_ms, self.max_record_ms, position))
                self._last_time_position = position
        self.max_append_ms = max(self.max_append_ms, append_ms)
        self.max_record_ms = max(self.max_record_ms, record_ms)
        self.covered_offset = end_offset
        self.covered_position = position + size_bytes

    def note_run(self, base_offset: int, run: BatchRun, *, append_ms: int, interval_bytes: int) -> int:
        """Add the batches of a run at `covered_position`; return the end offset.

        Batches up to the next one that gets an entry are noted together.
        """
        starts, records_ms = run.starts.tolist(), run.headers["max_timestamp_ms"].tolist()
        ends, records, origin, first = run.ends.tolist(), run.record_count, self.covered_position, 0
        while first < len(ends):
            entry = self._last_position - origin
            if starts[first] - entry >= interval_bytes:
                entry = starts[first]
            following = bisect_left(starts, entry + interval_bytes, first + 1)
            self.note(
                base_offset + first * records,
                base_offset + following * records,
                ends[following - 1] - starts[first],
                append_ms=append_ms,
                record_ms=max(records_ms[first:following]),
                interval_bytes=interval_bytes,
            )
            first = following
        return base_offset + len(ends) * records

    def floor(self, offset: int, *, load: bool) -> tuple[int, int] | None:
        """Return offset and position of the last known batch start up to `offset`; `None` if the file is broken."""
        entry = self._last_entry(self.offsets, 0, offset - self.base_offset, load)
        return None if entry is None else (self.base_offset + entry[0], entry[1])

    def floor_position(self, position: int, *, load: bool) -> tuple[int, int] | None:
        """Return offset and position of the last known batch start at or before `position`.

        `None` if the file is broken.
        """
        entry = self._last_entry(self.offsets, 1, position, load)
        return None if entry is None else (self.base_offset + entry[0], entry[1])

    def floor_time(self, timestamp_ms: int, column: int) -> int | None:
        """Return a position before which all timestamps are below `timestamp_ms`; `None` if the file is broken.

        Column 0 is the append timestamp, 1 the record timestamp.
        """
        entries = self.times
        if not entries.tail or entries.tail[column] >= timestamp_ms:
            body = entries.load(self._filesystem, load=True)
            if body is None:
                return None
        else:
            body = entries.tail
        at = bisect_left(range(len(body) // 3), timestamp_ms, key=lambda entry: body[3 * entry + column]) - 1
        return 0 if at < 0 else body[3 * at + 2]

    def _last_entry(self, entries: IndexFile, column: int, value: int, load: bool) -> tuple[int, int] | None:
        body: array[int] | None = entries.tail
        if not body or body[column] > value:
            body = entries.load(self._filesystem, load=load)
            if body is None:
                return None
        found = body
        at = bisect_right(range(len(found) // 2), value, key=lambda entry: found[2 * entry + column]) - 1
        return (0, 0) if at < 0 else (found[2 * at], found[2 * at + 1])

    def write(self) -> None:
        """Write new entries and headers if there are any; raises OSError."""
        if self._written_position == self.covered_position:
            return
        covered = (
            self.base_offset, self.covered_offset, self.covered_position, self.max_append_ms, self.max_record_ms
        )  # fmt: skip
        self.offsets.write(self._filesystem, covered, self._last_position)
        self.times.write(self._filesystem, covered, self._last_time_position)
        self._written_position = self.covered_position

    def load_headers(self, size_bytes: int) -> bool:
        """Load the state of the files if both are valid, agree and cover no more than `size_bytes`.

        Otherwise the index stays reset.
        """
        self.reset()
        first = _read_index_header(self._filesystem, self.offsets)
        second = _read_index_header(self._filesystem, self.times)
        if first is None or second is None or _covered(first) != _covered(second):
            return False
        if first.base_offset != self.base_offset or not 0 <= first.covered_position <= size_bytes:
            return False
        _, self.covered_offset, self.covered_position, self.max_append_ms, self.max_record_ms = _covered(first)
        self.offsets.written, self._last_position = (first.entry_count, first.entries_crc), first.last_position
        self.times.written, self._last_time_position = (second.entry_count, second.entries_crc), second.last_position
        self._written_position = self.covered_position
        return True

    def drop(self) -> None:
        """Release the memory of a removed segment."""
        self.offsets.reset()
        self.times.reset()


class IndexContent(NamedTuple):
    """Content of an index file, for `dump`."""

    base_offset: int
    covered_offset: int
    covered_position: int
    max_append_ms: int
    max_record_ms: int
    # (relative_offset, position), or (max_append_ms, max_record_ms, position).
    entries: list[tuple[int, ...]]


def read_index_file(filesystem: FileSystem, path: str) -> IndexContent | None:
    """Read a whole `.index` or `.timeindex`; `None` if a CRC or the size is wrong."""
    index = SegmentIndex(filesystem, path.removesuffix(".index").removesuffix(".timeindex"), 0, IndexCache(0))
    file = index.times if path.endswith(".timeindex") else index.offsets
    header = _read_index_header(filesystem, file)
    if header is None:
        return None
    file.written = (header.entry_count, header.entries_crc)
    items = file.load(filesystem, load=True)
    if items is None:
        return None
    entries = [tuple(items[at : at + file.width]) for at in range(0, len(items), file.width)]
    return IndexContent(*_covered(header), entries)


def _covered(header: IndexHeader) -> tuple[int, int, int, int, int]:
    """Return the fields that both files of a segment share, from base_offset to max_record_ms."""
    return header[2:7]


def _read_index_header(filesystem: FileSystem, entries: IndexFile) -> IndexHeader | None:
    data = _read(filesystem, entries.path, HEADER_BYTES, 0)
    if data is None or crc32c(data[: HEADER.size]) != int.from_bytes(data[HEADER.size :], "little"):
        return None
    header = IndexHeader._make(HEADER.unpack_from(data))
    return header if header.magic == entries.magic and header.version == VERSION else None


def _read(filesystem: FileSystem, path: str, size_bytes: int, position: int) -> bytes | None:
    """Read exactly `size_bytes`; `None` if the file is absent or too short."""
    try:
        descriptor = filesystem.open(path)
    except FileNotFoundError:
        return None
    try:
        data = filesystem.pread(descriptor, size_bytes, position)
    finally:
        filesystem.close(descriptor)
    return data if len(data) == size_bytes else None


def _write_all(filesystem: FileSystem, descriptor: int, data: bytes, position: int) -> None:
    """Write all bytes; after a short write on a full disk, the CRC check fails when the file is read."""
    done = 0
    while done < len(data):
        done += filesystem.pwritev(descriptor, [memoryview(data)[done:]], position + done)
