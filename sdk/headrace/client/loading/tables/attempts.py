"""Files that a job has written and not committed yet, and the lock of a table. No Spark.

    <table>/_headrace/lock                      locked (flock) by the writing job
    <table>/_headrace/attempts/<id>/data/...    output of a job; readers of the table skip names with _
    <table>/<partition>/<id>-<n>.parquet        published files, renamed from there

An attempt's files are synced before a manifest names them. Its directory is removed last: a remaining one means
that the job was killed, and its id is in the names of that job's files.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow
from pyarrow import parquet

from headrace.client.loading.tables.errors import LoadError, TableBusyError

META = "_headrace"


@dataclass(frozen=True, slots=True)
class DataFile:
    """File of an attempt."""

    path: str
    """Path in the table once it is published, relative to the root, with `/`."""
    staged: str
    """Path in the attempt's `data` until then."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """Attempt to add rows to a table. Owned by the job that has the table's lock."""

    root: Path
    id: str

    @property
    def directory(self) -> Path:
        """Directory of the attempt."""
        return self.root / META / "attempts" / self.id

    @property
    def data(self) -> Path:
        """Directory of the files; Spark, which writes several, wants to make it itself."""
        return self.directory / "data"

    def new_file(self, directory: str) -> IO[bytes]:
        """Open a new file for rows of one directory of the table, `""` for its root; its name ends in `.parquet`."""
        (self.data / directory).mkdir(parents=True, exist_ok=True)
        return (self.data / directory / f"part-{secrets.token_hex(6)}.parquet").open("wb")

    def columns(self, file: DataFile) -> pyarrow.Schema:
        """Return the columns of an unpublished file."""
        return parquet.read_schema(self.data / file.staged)

    def files(self) -> list[DataFile]:
        """Sync the files that were written, and return their names, sizes and rows."""
        found = []
        for number, path in enumerate(sorted(self.data.rglob("*.parquet"))):
            staged = path.relative_to(self.data)
            sync(path)
            rows = parquet.read_metadata(path).num_rows
            published = (staged.parent / f"{self.id}-{number:05d}.parquet").as_posix()
            found.append(DataFile(published, staged.as_posix(), rows, path.stat().st_size))
        return found

    def wrote(self, file: DataFile) -> bool:
        """Return whether a published file is of this attempt."""
        return file.path.rpartition("/")[2].startswith(f"{self.id}-")

    def publish(self, files: Sequence[DataFile]) -> None:
        """Rename files to their final paths; skip files that were renamed before."""
        directories: dict[Path, None] = {}
        for file in files:
            staged, place = self.data / file.staged, self.root / file.path
            if staged.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staged, place)
                directories[place.parent] = None
            elif not place.exists():
                raise LoadError(f"{place} is missing: the table is corrupt")
        for directory in directories:
            sync(directory)
            if directory != self.root:
                sync(directory.parent)

    def remove(self) -> None:
        """Remove the attempt with all unpublished files."""
        shutil.rmtree(self.directory, ignore_errors=True)

    discard = remove


def begin(root: Path) -> Attempt:
    """Create a new attempt."""
    attempt = Attempt(root, secrets.token_hex(8))
    attempt.directory.mkdir(parents=True)
    return attempt


def left_behind(root: Path) -> list[Attempt]:
    """Return the attempts of killed jobs. Call it with the lock held."""
    directory = root / META / "attempts"
    return [Attempt(root, name) for name in sorted(os.listdir(directory))] if directory.exists() else []


@contextmanager
def table_lock(root: Path) -> Iterator[None]:
    """Lock a table for writing, and create its directory. The lock ends with the process.

    Raises:
        TableBusyError: If another job has the lock.
    """
    (root / META).mkdir(parents=True, exist_ok=True)
    with (root / META / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TableBusyError(f"another job writes to {root} now; run this one when it has ended") from None
        yield


def sync(path: Path) -> None:
    """Fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
