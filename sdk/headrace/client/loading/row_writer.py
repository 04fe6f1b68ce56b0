"""Writes rows to the Parquet files of an attempt, by directory, with bounded memory."""

from __future__ import annotations

from contextlib import suppress
from typing import IO, Any

import pyarrow as pa
from pyarrow import parquet

from headrace.client.loading.columns import Directories, conformed
from headrace.client.loading.tables.compaction import ROW_GROUP_BYTES, writer_options
from headrace.client.loading.tables.places import AnyAttempt
from headrace.client.loading.tables.state import TARGET_BYTES

BUFFER_BYTES = 32 << 20
"""Maximum size of rows that wait for the rest of their row group, and of what holds them, over all directories."""
PART_BYTES = 6 << 10
"""Memory of the objects that hold some rows of a directory, however few."""
OPEN_FILES = 32
"""Maximum number of files that are written at the same time."""


class RowWriter:
    """Writer of one attempt. One thread."""

    def __init__(self, attempt: AnyAttempt, columns: Any, directories: Directories, *, keeps_columns: bool) -> None:
        """Create a writer.

        Args:
            attempt: where the files are.
            columns: of the rows, with the types that files have.
            directories: by which the rows are split.
            keeps_columns: whether the columns of the directories are in the files too.
        """
        self.rows = 0
        self.bytes = 0
        """Size of the rows in memory."""
        self._attempt = attempt
        self._columns = columns
        self._directories = directories
        names = [name for name in columns.names if keeps_columns or name not in directories.names]
        self._file_columns = pa.schema([columns.field(name) for name in names])
        self._waiting: dict[str, list[Any]] = {}
        self._waiting_bytes: dict[str, int] = {}
        self._total_bytes = 0
        self._files: dict[str, tuple[IO[bytes], Any]] = {}

    def write(self, batch: Any) -> None:
        """Write the rows of a record batch."""
        rows = conformed(batch, self._columns)
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        for directory, part in self._directories.split(rows):
            self._waiting.setdefault(directory, []).append(part.select(self._file_columns.names))
            self._waiting_bytes[directory] = self._waiting_bytes.get(directory, 0) + part.nbytes + PART_BYTES
            self._total_bytes += part.nbytes + PART_BYTES
            if self._waiting_bytes[directory] >= ROW_GROUP_BYTES:
                self._flush(directory)
            while self._total_bytes > BUFFER_BYTES:
                self._flush(max(self._waiting_bytes, key=self._waiting_bytes.__getitem__))

    def close(self) -> None:
        """Write what waits and close the files."""
        for directory in list(self._waiting):
            self._flush(directory)
        for directory in list(self._files):
            self._close(directory)

    def abandon(self) -> None:
        """Close the files as they are; nothing of them is used."""
        for stream, writer in self._files.values():
            writer.is_open = False  # Otherwise its finalizer writes to the closed file.
            with suppress(Exception):
                stream.close()
        self._files.clear()

    def _flush(self, directory: str) -> None:
        """Write what waits for a directory as a row group."""
        batches = self._waiting.pop(directory)
        self._total_bytes -= self._waiting_bytes.pop(directory)
        if directory not in self._files:
            if len(self._files) >= OPEN_FILES:
                self._close(next(iter(self._files)))
            stream = self._attempt.new_file(directory)
            try:
                self._files[directory] = stream, parquet.ParquetWriter(stream, self._file_columns, **writer_options())
            except BaseException:
                stream.close()
                raise
        stream, writer = self._files[directory]
        writer.write_table(pa.Table.from_batches(batches, self._file_columns))
        if stream.tell() >= TARGET_BYTES:
            self._close(directory)

    def _close(self, directory: str) -> None:
        stream, writer = self._files.pop(directory)
        try:
            writer.close()
        finally:
            stream.close()
