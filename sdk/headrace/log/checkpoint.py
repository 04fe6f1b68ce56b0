"""Checkpoint of a log: recovery point, log start and high watermark, in two alternating slots (H37).

File `checkpoint`, 8,192 bytes, created before the log's first append. Slot n is at n x 4096, so that a torn write
affects only one:

    offset size field
     0     4    magic             "HRCP"; "HRCN" if the slot was written by `note`, without an fsync
     4     4    version           uint32  1
     8     8    sequence          int64   the valid slot with the larger one is used
    16     8    log_start_offset  int64
    24     8    high_watermark    int64
    32     8    mark_offset       int64   everything below is fsynced: the recovery point
    40     8    mark_segment      int64   base offset of the segment that holds the mark
    48     8    mark_position     int64   position of the mark in it
    56     4    mark_crc          uint32  `crc` of the batch before the mark (the chain), 0 for none
    60     4    mark_epoch        int32   leader epoch of that batch, -1 for none
    64     4    slot_crc          uint32  CRC32C of bytes 0 .. 64

The mark separates corruption from a torn tail; the other fields only reduce work (PROTOCOL section 1.2, H31). This
module also has the small files that are replaced as a whole: a line with the CRC, then text or bytes.
"""

from __future__ import annotations

import errno
import struct
from typing import NamedTuple

from headrace.log.filesystem import FileSystem, read_file
from headrace.wire.crc import crc32c

CHECKPOINT_FILE = "checkpoint"
SLOT_STRIDE = 4096
VERSION = 1
_MAGIC, _NOTED_MAGIC = b"HRCP", b"HRCN"
_SLOT = struct.Struct("<4sIqqqqqqIi")
_SLOT_BYTES = _SLOT.size + 4
assert _SLOT_BYTES == 68
SMALL_FILE_LIMIT = 64 * 1024 * 1024


class Mark(NamedTuple):
    """Position in the log; everything below it is fsynced."""

    offset: int
    segment: int  # base offset of the segment
    position: int
    crc: int
    epoch: int


class Checkpoint(NamedTuple):
    """Content of a slot."""

    log_start_offset: int
    high_watermark: int
    mark: Mark


class CheckpointFile:
    """File with the two slots; its log serialises the calls."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.path = f"{directory}/{CHECKPOINT_FILE}"
        self._sequence = 0
        # Whether the newest slot was written by `note` in an earlier process.
        self._may_be_unsynced = False

    def read(self) -> Checkpoint | None:
        """Return the newest valid slot; `None` if neither is valid or there is no file."""
        data = read_file(self._filesystem, self.path, 2 * SLOT_STRIDE) or b""
        slots = [slot for slot in (_unpack(data, 0), _unpack(data, SLOT_STRIDE)) if slot is not None]
        if not slots:
            return None
        self._sequence, checkpoint, self._may_be_unsynced = max(slots)
        return checkpoint

    def write(self, checkpoint: Checkpoint, *, both: bool = False) -> None:
        """Write the older slot and fsync; `both` writes the other one too, when the old content must not return."""
        if not self._filesystem.exists(self.path):
            self._create(checkpoint)
            return
        descriptor = self._filesystem.open(self.path)
        try:
            if self._may_be_unsynced:
                self._filesystem.fsync(descriptor)  # Otherwise a torn write of this slot could lose both.
                self._may_be_unsynced = False
            for _ in range(2 if both else 1):
                sequence = self._sequence + 1
                data = _pack(sequence, checkpoint)
                written = self._filesystem.pwritev(descriptor, [data], (sequence % 2) * SLOT_STRIDE)
                if written != len(data):
                    raise OSError(errno.ENOSPC, "short write", self.path)  # the other slot is intact
                self._filesystem.fsync(descriptor)
                self._sequence = sequence  # a failed write is retried in its own slot: the other one is intact
        finally:
            self._filesystem.close(descriptor)

    def note(self, checkpoint: Checkpoint) -> None:
        """Write to the slot of the next `write`, without an fsync: the kernel keeps it if the process is killed.

        Do nothing if the file does not exist yet. Raises OSError.
        """
        if self._may_be_unsynced or not self._filesystem.exists(self.path):
            return
        sequence = self._sequence + 1
        descriptor = self._filesystem.open(self.path)
        try:
            self._filesystem.pwritev(
                descriptor, [_pack(sequence, checkpoint, _NOTED_MAGIC)], (sequence % 2) * SLOT_STRIDE
            )
        finally:
            self._filesystem.close(descriptor)

    def _create(self, checkpoint: Checkpoint) -> None:
        """Create the file with both slots at its full size, so that later writes need no space."""
        first, second = _pack(self._sequence + 1, checkpoint), _pack(self._sequence + 2, checkpoint)
        slots = (first, second) if self._sequence % 2 else (second, first)
        data = b"".join(slot.ljust(SLOT_STRIDE, b"\0") for slot in slots)
        replace_file(self._filesystem, self._directory, CHECKPOINT_FILE, data)
        self._sequence += 2
        self._may_be_unsynced = False


def _pack(sequence: int, checkpoint: Checkpoint, magic: bytes = _MAGIC) -> bytes:
    mark = checkpoint.mark
    head = _SLOT.pack(
        magic, VERSION, sequence, checkpoint.log_start_offset, checkpoint.high_watermark,
        mark.offset, mark.segment, mark.position, mark.crc, mark.epoch,
    )  # fmt: skip
    return head + crc32c(head).to_bytes(4, "little")


def _unpack(data: bytes, position: int) -> tuple[int, Checkpoint, bool] | None:
    """Return sequence, content, and whether the slot was written by `note`; `None` if the slot is invalid."""
    slot = data[position : position + _SLOT_BYTES]
    if len(slot) < _SLOT_BYTES or crc32c(slot[:-4]) != int.from_bytes(slot[-4:], "little"):
        return None
    magic, version, sequence, log_start_offset, high_watermark, *mark = _SLOT.unpack_from(slot)
    if magic not in (_MAGIC, _NOTED_MAGIC) or version != VERSION:
        return None
    return sequence, Checkpoint(log_start_offset, high_watermark, Mark(*mark)), magic == _NOTED_MAGIC


def replace_file(filesystem: FileSystem, directory: str, name: str, data: bytes) -> None:
    """Write `data` to `name` atomically and durably: temporary file, fsync, rename, fsync of the directory (H36)."""
    temporary = f"{directory}/{name}.tmp"
    if filesystem.exists(temporary):
        filesystem.unlink(temporary)
    descriptor = filesystem.open(temporary, create=True)
    try:
        done = 0
        while done < len(data):
            done += filesystem.pwritev(descriptor, [memoryview(data)[done:]], done)
        filesystem.fsync(descriptor)
    finally:
        filesystem.close(descriptor)
    filesystem.rename(temporary, f"{directory}/{name}")
    filesystem.fsync_directory(directory)


def seal(content: bytes) -> bytes:
    """Return `content` after a line with format version and CRC32C."""
    return b"headrace 1 %08x\n" % crc32c(content) + content


def read_sealed(filesystem: FileSystem, path: str) -> bytes | None:
    """Return the content of a sealed file; `None` if it is absent or corrupt."""
    return unseal(read_file(filesystem, path, SMALL_FILE_LIMIT) or b"")


def unseal(data: bytes) -> bytes | None:
    """Return what was sealed; `None` if it is corrupt."""
    line, _, content = data.partition(b"\n")
    return content if line == b"headrace 1 %08x" % crc32c(content) else None
