"""What a job has written and not committed yet, and the lock under which it does. No Spark.

    <table>/_headrace/lock                      held (flock) by the one job that writes
    <table>/_headrace/attempts/<id>/data/...    where Spark writes: readers of the table skip names with _
    <table>/<partition>/<id>-<n>.parquet        where the files go, by renaming

An attempt's files are synced before any manifest names them. Its directory is removed last: one that is left shows
that a job was killed, and its id names that job's files.
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

from pyarrow import parquet

from spark_jobs.tables.errors import TableBusyError, TableError

META = "_headrace"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of an attempt."""

    path: str
    """In the table, once it is published: relative to its root, with `/`."""
    staged: str
    """In the attempt's `data`, until then."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to add rows to a table. Owned by the job that holds the table's lock."""

    root: Path
    id: str

    @property
    def directory(self) -> Path:
        """What belongs to it."""
        return self.root / META / "attempts" / self.id

    @property
    def data(self) -> Path:
        """Where Spark is to write; it must not exist before."""
        return self.directory / "data"

    def files(self) -> list[DataFile]:
        """Return the files that Spark has written, synced: their names, sizes and rows."""
        found = []
        for number, path in enumerate(sorted(self.data.rglob("*.parquet"))):
            staged = path.relative_to(self.data)
            sync(path)
            rows = parquet.read_metadata(path).num_rows
            published = (staged.parent / f"{self.id}-{number:05d}.parquet").as_posix()
            found.append(DataFile(published, staged.as_posix(), rows, path.stat().st_size))
        return found

    def publish(self, files: Sequence[DataFile]) -> None:
        """Move files to their places; those that are there already were moved before."""
        directories: dict[Path, None] = {}
        for file in files:
            staged, place = self.data / file.staged, self.root / file.path
            if staged.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staged, place)
                directories[place.parent] = None
            elif not place.exists():
                raise TableError(f"{place} is missing: the table is corrupt")
        for directory in directories:
            sync(directory)
            if directory != self.root:
                sync(directory.parent)

    def remove(self) -> None:
        """Forget it with everything that is not published."""
        shutil.rmtree(self.directory, ignore_errors=True)


def begin(root: Path) -> Attempt:
    """Begin an attempt."""
    attempt = Attempt(root, secrets.token_hex(8))
    attempt.directory.mkdir(parents=True)
    return attempt


def left_behind(root: Path) -> list[Attempt]:
    """Return the attempts whose job has ended before they were removed. Under the lock."""
    directory = root / META / "attempts"
    return [Attempt(root, name) for name in sorted(os.listdir(directory))] if directory.exists() else []


@contextmanager
def table_lock(root: Path) -> Iterator[None]:
    """Be the only job that writes to a table; makes its directory. The lock ends with the process, however it ends.

    Raises:
        TableBusyError: another job holds it.
    """
    (root / META).mkdir(parents=True, exist_ok=True)
    with (root / META / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TableBusyError(f"another job writes to {root} now; run this one when it has ended") from None
        yield


def sync(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
