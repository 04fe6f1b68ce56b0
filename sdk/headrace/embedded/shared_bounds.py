"""Bounds of a directory's logs for readers in other processes: `<directory>/bounds`, mapped into memory by both sides.

    0   header   magic "HRBD", version, process id of the writer, session (one more each time it is opened), revision of
                 the topics, number of slots, then the CRC32C of these
    64  slots    of 96 bytes: topic id, partition, leader epoch, log start, visible end, and of that the base offset of
                 its segment and the position in the file, and the end of removed deletions; then the CRC32C of these

A reader that finds a wrong CRC reads again: the writer is changing the slot. Numbers are little-endian.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.log.errors import storage_error
from headrace.wire.crc import crc32c
from headrace.wire.errors import InternalError

FILE = "bounds"
VERSION = 1
_MAGIC = b"HRBD"
_HEADER = struct.Struct("<4sIqqqI")
_HEADER_BYTES = 64
_SLOT = struct.Struct("<16siiqqqqq")
_SLOT_BYTES = 96
_CRC = struct.Struct("<I")
_SPARE_SLOTS = 64
"""Slots that are added at a time."""
_TRIES = 1_000


class SharedBounds(NamedTuple):
    """What a reader of a log must know."""

    leader_epoch: int
    log_start_offset: int
    end_offset: int
    """End of the visible records."""
    end_segment: int
    """Base offset of the segment that they end in."""
    end_position: int
    """Where they end in its file."""
    deletions_end: int
    """Below it, deletions were removed by compaction; see `LogCompaction.deletions_end`."""


class DirectoryState(NamedTuple):
    """Header of the file."""

    pid: int
    session: int
    revision: int


class BoundsWriter:
    """Writer's side. One thread at a time changes a slot; another one may change another slot."""

    def __init__(self, path: str) -> None:
        """Create or continue the file of a directory, with no slots. Raises StorageFullError, StorageOfflineError."""
        self._path = f"{path}/{FILE}"
        self._state = DirectoryState(os.getpid(), _state_of(path).session + 1, 0)
        self._slots: dict[tuple[bytes, int], int] = {}
        self._map = self._make(_SPARE_SLOTS)
        self._is_placed = False

    def _make(self, slots: int) -> mmap.mmap:
        """Make a file of this number of slots; `_place` puts it into its place, which readers of the other notice.

        All of it is written: a page that the disk has no room for would end the process. A file that is not in its
        place yet stays mapped.
        """
        try:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}.tmp")
            descriptor = os.open(f"{self._path}.tmp", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            with open(descriptor, "wb", buffering=0) as file:
                data = memoryview(bytes(_HEADER_BYTES + slots * _SLOT_BYTES))
                while data:
                    data = data[file.write(data) :]
                return mmap.mmap(descriptor, 0)
        except OSError as error:
            raise storage_error(self._path, error) from error

    def _place(self) -> None:
        try:
            os.rename(f"{self._path}.tmp", self._path)
        except OSError as error:
            raise storage_error(self._path, error) from error
        self._is_placed = True

    def begin(self, topic_id: bytes, partition: int, bounds: SharedBounds) -> None:
        """Add a slot, or continue that of a log that was here before. Raises StorageFullError, StorageOfflineError."""
        number = self._slots.get((topic_id, partition), len(self._slots))
        if (number + 1) * _SLOT_BYTES + _HEADER_BYTES > len(self._map):
            old, self._map = self._map, self._make(number + _SPARE_SLOTS)
            self._map[: len(old)] = old[:]
            old.close()
            if self._is_placed:
                self._place()
        self._slots[topic_id, partition] = number
        self.write(topic_id, partition, bounds)

    def write(self, topic_id: bytes, partition: int, bounds: SharedBounds) -> None:
        """Change a slot."""
        data = _SLOT.pack(topic_id, partition, *bounds)
        at = _HEADER_BYTES + self._slots[topic_id, partition] * _SLOT_BYTES
        self._map[at : at + _SLOT.size + 4] = data + _CRC.pack(crc32c(data))

    def show(self, revision: int, *, is_open: bool = True) -> None:
        """Write the header: the topics of `revision` have their slots. Raises StorageFullError, StorageOfflineError."""
        self._state = self._state._replace(pid=os.getpid() if is_open else 0, revision=revision)
        data = _HEADER.pack(_MAGIC, VERSION, *self._state, len(self._slots))
        self._map[: _HEADER.size + 4] = data + _CRC.pack(crc32c(data))
        if not self._is_placed:
            self._place()

    def close(self) -> None:
        """Note durably that no process writes any more. Raises StorageFullError, StorageOfflineError."""
        try:
            self.show(self._state.revision, is_open=False)
            self._map.flush()
        except OSError as error:
            raise storage_error(self._path, error) from error
        finally:
            self._map.close()


class NoBounds:
    """Writer's side for a file system whose files cannot be mapped: no other process reads it."""

    def begin(self, topic_id: bytes, partition: int, bounds: SharedBounds) -> None:
        """Add nothing."""

    def write(self, topic_id: bytes, partition: int, bounds: SharedBounds) -> None:
        """Change nothing."""

    def show(self, revision: int, *, is_open: bool = True) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Close nothing."""


class _View(NamedTuple):
    """What a reader knows of a file: replaced as a whole, so that slots and file are always those of one writer."""

    inode: int
    mapped: mmap.mmap
    state: DirectoryState
    slots: Mapping[tuple[bytes, int], int]


class BoundsReader:
    """Reader's side. Thread-safe, but for `refresh`."""

    def __init__(self, path: str) -> None:
        """Map the file of a directory. Raises OSError, InternalError."""
        self._path = f"{path}/{FILE}"
        self._view = self._read(None)

    @property
    def state(self) -> DirectoryState:
        """Header as of the last `refresh`."""
        return self._view.state

    def refresh(self) -> None:
        """Read the header again, and the slots if it has changed. Raises OSError, InternalError."""
        self._view = self._read(self._view)

    def _read(self, view: _View | None) -> _View:
        if view is not None and os.stat(self._path).st_ino == view.inode:
            inode, mapped = view.inode, view.mapped
        else:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if status.st_size < _HEADER_BYTES:  # A loss of power may leave an empty file, which cannot be mapped.
                    raise _corrupt()
                inode, mapped = status.st_ino, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        *fields, count = _checked(mapped, 0, _HEADER)[2:]
        state = DirectoryState(*fields)
        if view is not None and mapped is view.mapped and state == view.state:
            return view
        found = (_checked(mapped, _HEADER_BYTES + number * _SLOT_BYTES, _SLOT) for number in range(count))
        slots = {(topic_id, partition): number for number, (topic_id, partition, *_) in enumerate(found)}
        return _View(inode, mapped, state, slots)

    def read(self, topic_id: bytes, partition: int) -> SharedBounds | None:
        """Return the bounds of a log, `None` if it has none yet."""
        view = self._view
        number = view.slots.get((topic_id, partition))
        if number is None:
            return None
        return SharedBounds(*_checked(view.mapped, _HEADER_BYTES + number * _SLOT_BYTES, _SLOT)[2:])


def writer_of(path: str) -> int:
    """Return the id of the process that writes to a directory, 0 if that is not known."""
    return _state_of(path).pid


def _state_of(path: str) -> DirectoryState:
    try:
        return BoundsReader(path).state
    except (OSError, InternalError):
        return DirectoryState(0, 0, 0)


def _checked(mapped: mmap.mmap, at: int, shape: struct.Struct) -> tuple[Any, ...]:
    """Return the fields of a structure that its CRC follows."""
    for count in range(_TRIES):
        data = mapped[at : at + shape.size + 4]
        if len(data) == shape.size + 4 and _CRC.unpack_from(data, shape.size)[0] == crc32c(data[: shape.size]):
            return shape.unpack_from(data)
        time.sleep(0.001 if count > _TRIES // 2 else 0)
    raise _corrupt()


def _corrupt() -> InternalError:
    return InternalError("the file with the bounds of the logs is corrupt", action="Open the directory for writing.")
