"""A range of whole batches in one segment file, as the read path hands it out.

Made by `PartitionLog.read`; read by `Fetch`, replica fetch and, by file descriptor, the transfer port.
"""

from __future__ import annotations


class Slice:
    """Whole batches at `position .. position + size_bytes` of one file; owns a pin on that file until `close`.

    The pin keeps the file descriptor open although the segment is deleted meanwhile. A truncation that cuts into the
    range does not wait: reading then raises `SliceCutError`, never bytes of another epoch. Any thread may read; close
    it once (`with` does). An empty slice (`size_bytes == 0`) means that there is nothing before the end asked for.
    """

    # First offset of the first batch; may be below the offset asked for. Equals `end_offset` when empty.
    base_offset: int
    # The offset after the last batch: where the next read goes on.
    end_offset: int
    # Where the batches start in the file, and how many bytes they are.
    position: int
    size_bytes: int

    def fileno(self) -> int:
        """Return the file descriptor for `sendfile`; valid until `close`."""
        raise NotImplementedError

    def read(self) -> bytes:
        """Read the batches; may block on the disk. Raises SliceCutError, StorageOfflineError."""
        raise NotImplementedError

    def try_read_nowait(self) -> bytes | None:
        """Read the batches if all of them are in the page cache, else None: then `read` in a thread (H46)."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up the pin; further calls do nothing."""
        raise NotImplementedError

    def __enter__(self) -> Slice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
