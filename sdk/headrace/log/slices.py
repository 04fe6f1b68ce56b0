"""Range of whole batches in one segment file, as the read path returns it.

Made by `PartitionLog.read`; read by `Fetch`, replica fetch and, by file descriptor, the native protocol.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.log.errors import CorruptLogError, SliceCutError
from headrace.log.open_files import OpenFile, OpenFiles
from headrace.log.segment import Segment
from headrace.wire.errors import HeadraceError

SAMPLED_BYTES = 128 << 10
"""Interval of samples, the kernel's read-ahead: if one page of it is cached, the others mostly are."""
LOADED_BYTES = 1 << 20


class Slice:
    """Whole batches at `position .. position + size_bytes` of one file; owns a pin on that file until `close`.

    The pin keeps the file descriptor open even if the segment is deleted. A truncation into the range does not wait:
    reading then raises `SliceCutError`, never bytes of another epoch. Any thread may read; close it once (`with` does).
    An empty slice (`size_bytes == 0`) means that there is no batch before the requested end.
    """

    __slots__ = (
        "_cuts",
        "_failed",
        "_file",
        "_files",
        "_segment",
        "base_offset",
        "end_offset",
        "position",
        "size_bytes",
    )

    def __init__(
        self,
        segment: Segment,
        files: OpenFiles,
        file: OpenFile | None,
        *,
        cuts: int,
        base_offset: int,
        end_offset: int,
        position: int,
        size_bytes: int,
        failed: Callable[[OSError], HeadraceError],
    ) -> None:
        """`failed` returns the error to raise for a failed disk call of this log; see `LogState.failed`."""
        self._failed = failed
        self._segment = segment
        self._files = files
        self._file = file
        self._cuts = cuts
        # First offset of the first batch; may be below the requested offset. Equals `end_offset` if empty.
        self.base_offset = base_offset
        # Offset after the last batch, at which the next read starts.
        self.end_offset = end_offset
        # Position of the batches in the file, and their size in bytes.
        self.position = position
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        """Return the size of the batches in bytes."""
        return self.size_bytes

    @property
    def path(self) -> str:
        """Path of the segment's file."""
        return self._segment.path

    @property
    def was_cut(self) -> bool:
        """Whether the log was truncated into the range since: the bytes read may be of another epoch."""
        return self._segment.cuts != self._cuts

    def fileno(self) -> int:
        """Return the file descriptor for `sendfile`; valid until `close`.

        Not for an empty or closed slice.
        """
        assert self._file is not None, "an empty or closed slice has no file"
        return self._file.descriptor

    def is_cached(self) -> bool:
        """Return whether the range seems to be in the page cache, by a byte of each `SAMPLED_BYTES` and the last one.

        Raises StorageOfflineError.
        """
        filesystem, descriptor, last = self._files.filesystem, self.fileno(), self.position + self.size_bytes - 1
        try:
            return all(
                filesystem.pread_nowait(descriptor, 1, at) is not None
                for at in (*range(self.position, last, SAMPLED_BYTES), last)
            )
        except OSError as error:
            raise self._failed(error) from error

    def load(self) -> None:
        """Read the range into the page cache; blocks on the disk. Raises StorageOfflineError."""
        end = self.position + self.size_bytes
        try:
            for at in range(self.position, end, LOADED_BYTES):
                self._files.filesystem.pread(self.fileno(), min(LOADED_BYTES, end - at), at)
        except OSError as error:
            raise self._failed(error) from error

    def read(self) -> bytes:
        """Read the batches; may block on the disk. Raises SliceCutError, CorruptLogError, StorageOfflineError."""
        if self.size_bytes == 0:
            return b""
        try:
            data = self._files.filesystem.pread(self.fileno(), self.size_bytes, self.position)
        except OSError as error:
            raise self._failed(error) from error
        self._check_uncut(len(data))
        return data

    def try_read_nowait(self) -> bytes | None:
        """Read the batches if all of them are in the page cache, else return `None`: then `read` in a thread (H46)."""
        if self.size_bytes == 0:
            return b""
        try:
            data = self._files.filesystem.pread_nowait(self.fileno(), self.size_bytes, self.position)
        except OSError as error:
            raise self._failed(error) from error
        if data is not None:
            self._check_uncut(len(data))
        return data

    def read_part(self, start: int, size_bytes: int) -> bytes:
        """Read a part of the range, perhaps of another epoch if `was_cut`.

        Raises:
            SliceCutError, CorruptLogError: If the file ends before the end of the part.
            StorageOfflineError: If the disk call failed.
        """
        try:
            data = self._files.filesystem.pread(self.fileno(), size_bytes, self.position + start)
        except OSError as error:
            raise self._failed(error) from error
        if len(data) != size_bytes:
            raise self.too_short(start + len(data))
        return data

    def too_short(self, got_bytes: int) -> HeadraceError:
        """Return the error for a range of which the file has only `got_bytes` bytes."""
        if self.was_cut:
            return SliceCutError(
                f"{self._segment.path} was truncated below offset {self.end_offset} while it was read",
                action="Read again at the log's new end.",
                retriable=True,
            )
        return CorruptLogError(
            "the file is shorter than the written bytes", file=self._segment.path,
            offset=self.base_offset, position=self.position + got_bytes,
        )  # fmt: skip

    def _check_uncut(self, got_bytes: int) -> None:
        if self.was_cut or got_bytes != self.size_bytes:
            raise self.too_short(got_bytes)

    def close(self) -> None:
        """Release the pin; further calls do nothing."""
        file, self._file = self._file, None
        if file is not None:
            self._files.unpin(file)

    def __enter__(self) -> Slice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._files.drop(file)
