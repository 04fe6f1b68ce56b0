"""Where the files of a Delta or an Iceberg table are: a directory, or an object store.

In a directory, files are attempts until they are renamed to their places. In an object store they are written to their
places at once, where readers of the two formats ignore them until a commit names them. An object

    <table>/_headrace/attempts/<id>

says that they may be remains. Two loads have no lock there, only the commit of the format decides between them, so that
remains are removed when they are older than `REMAINS_SECONDS`: a younger attempt may be another load at work.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow
from pyarrow import fs, parquet

from headrace.client.loading.tables.attempts import META, DataFile, begin, left_behind, table_lock

SILENT_SECONDS = 30
"""Time without a byte of an answer after which a request to an object store is made again."""
ATTEMPTS = 4
"""Number of times that a request is made before the load fails."""
REMAINS_SECONDS = 86_400.0
"""Age at which the files of a killed load are removed from an object store."""


class AnyAttempt(Protocol):
    """Files that are written and not committed yet."""

    @property
    def id(self) -> str:
        """Unique id, the beginning of the files' names."""

    def new_file(self, directory: str) -> IO[bytes]:
        """Open a new file for rows of one directory of the table."""

    def files(self) -> list[DataFile]:
        """Return the names, sizes and rows of the closed files."""

    def columns(self, file: DataFile) -> pyarrow.Schema:
        """Return the columns of an unpublished file."""

    def publish(self, files: Sequence[DataFile]) -> None:
        """Move files to their places."""

    def remove(self) -> None:
        """Forget the attempt, with all unpublished files."""

    def discard(self) -> None:
        """Remove an attempt of which nothing is committed, with its files; published ones of a directory stay for
        `remove_remains`.
        """


class TablePlace(Protocol):
    """Files of a table."""

    uri: str
    """Path of the directory, or the URL."""

    def lock(self) -> AbstractContextManager[None]:
        """Lock the table for writing, where that is possible."""

    def begin(self) -> AnyAttempt:
        """Create a new attempt."""

    def holds_files(self) -> bool:
        """Return whether there are files of another program."""

    def remove_remains(self, committed: Callable[[], Collection[str]]) -> None:
        """Remove the files of attempts that are not committed; `committed` returns the paths of all that are."""

    def modified_ms(self, file: DataFile) -> int:
        """Return when a published file was written, ms since 1970."""

    def absolute(self, path: str) -> str:
        """Return the path or URL of a file of the table."""


class LocalPlace:
    """Directory. Its files may be removed and renamed with the lock held."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)

    def lock(self) -> AbstractContextManager[None]:
        """See `table_lock`."""
        return table_lock(self.root)

    def begin(self) -> AnyAttempt:
        """Create a new attempt."""
        return begin(self.root)

    def holds_files(self) -> bool:
        """Return whether there are Parquet files, or any in directories of a partitioned table, apart from those of
        attempts.
        """
        attempts = {attempt.id for attempt in left_behind(self.root)}
        found = chain(self.root.glob("*.parquet"), *(each.rglob("*") for each in self.root.glob("*=*")))
        return any(path.name.partition("-")[0] not in attempts and path.is_file() for path in found)

    def remove_remains(self, committed: Callable[[], Collection[str]]) -> None:
        """Remove the uncommitted files of killed jobs."""
        attempts = left_behind(self.root)
        kept = committed() if attempts else ()
        for attempt in attempts:
            for path in self.root.rglob(f"{attempt.id}-*.parquet"):
                if path.relative_to(self.root).as_posix() not in kept:
                    path.unlink()
            attempt.remove()

    def modified_ms(self, file: DataFile) -> int:
        """Return the file's time."""
        return int((self.root / file.path).stat().st_mtime * 1000)

    def absolute(self, path: str) -> str:
        """Return the path of a file."""
        return str(self.root / path)


class ObjectPlace:
    """Prefix in an object store. Any process may write to it."""

    def __init__(self, uri: str, filesystem: Any = None) -> None:
        """`filesystem` is one of pyarrow; by default that of the URL, with its own settings in the environment."""
        self.uri = uri.rstrip("/")
        if filesystem is None:
            filesystem, base = fs.FileSystem.from_uri(self.uri)
            if isinstance(filesystem, fs.S3FileSystem):  # A URL has no parameter for these.
                _, (settings, *_) = filesystem.__reduce__()
                filesystem = fs.S3FileSystem(
                    **{**settings, "request_timeout": SILENT_SECONDS},
                    retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
                )
        else:
            base = self.uri.partition("://")[2]
        self.filesystem, self._base = filesystem, base

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Do nothing: the commits of the format decide."""
        yield

    def begin(self) -> AnyAttempt:
        """Create a new attempt."""
        attempt = ObjectAttempt(self.filesystem, self._base, secrets.token_hex(8))
        with self.filesystem.open_output_stream(attempt.note):
            pass
        return attempt

    def holds_files(self) -> bool:
        """Return whether there are Parquet files, apart from those of attempts."""
        attempts = {info.base_name for info in self._notes()}
        return any(info.base_name.partition("-")[0] not in attempts for info in self._parquet_files())

    def remove_remains(self, committed: Callable[[], Collection[str]]) -> None:
        """Remove the uncommitted files of loads that were killed long ago."""
        old = {info.base_name: info.path for info in self._notes() if time.time() - _age(info) >= REMAINS_SECONDS}
        if not old:
            return
        kept = {f"{self._base}/{path}" for path in committed()}
        for info in self._parquet_files():
            if info.base_name.partition("-")[0] in old and info.path not in kept:
                self.filesystem.delete_file(info.path)
        for note in old.values():
            self.filesystem.delete_file(note)

    def modified_ms(self, file: DataFile) -> int:
        """Return the present time: a file is committed right after it was written."""
        return int(time.time() * 1000)

    def absolute(self, path: str) -> str:
        """Return the URL of a file."""
        return f"{self.uri}/{path}"

    def _notes(self) -> list[Any]:
        return self._files(f"{self._base}/{META}/attempts", recursive=False)

    def _parquet_files(self) -> Iterator[Any]:
        return (info for info in self._files(self._base, recursive=True) if info.base_name.endswith(".parquet"))

    def _files(self, prefix: str, *, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(prefix, allow_not_found=True, recursive=recursive)
        return [info for info in self.filesystem.get_file_info(selector) if info.is_file]


def _age(info: Any) -> float:
    return float(info.mtime_ns or 0) / 1e9


@dataclass(frozen=True, slots=True)
class ObjectAttempt:
    """Attempt in an object store, whose files have their places already. Owned by one load."""

    filesystem: Any
    base: str
    """Prefix of the table."""
    id: str
    written: list[str] = field(default_factory=list)
    """Paths relative to the prefix."""

    @property
    def note(self) -> str:
        """Object that says that the attempt is not over."""
        return f"{self.base}/{META}/attempts/{self.id}"

    def new_file(self, directory: str) -> IO[bytes]:
        """Open a new object; it exists once it is closed."""
        name = f"{directory}/{self.id}-{len(self.written):05d}.parquet".lstrip("/")
        self.written.append(name)
        stream: IO[bytes] = self.filesystem.open_output_stream(f"{self.base}/{name}")
        return stream

    def files(self) -> list[DataFile]:
        """Return the names, sizes and rows of the files."""
        found = []
        for name in self.written:
            with self.filesystem.open_input_file(f"{self.base}/{name}") as file:
                rows = parquet.read_metadata(file).num_rows
                found.append(DataFile(name, name, rows, file.size()))
        return found

    def columns(self, file: DataFile) -> pyarrow.Schema:
        """Return the columns of a file."""
        with self.filesystem.open_input_file(f"{self.base}/{file.staged}") as stream:
            return parquet.read_schema(stream)

    def publish(self, files: Sequence[DataFile]) -> None:
        """Do nothing: the files have their places."""

    def remove(self) -> None:
        """Forget the attempt; files that are not committed must have been removed."""
        self.filesystem.delete_file(self.note)

    def discard(self) -> None:
        """Remove the attempt with its files."""
        for info in self.filesystem.get_file_info([f"{self.base}/{name}" for name in self.written]):
            if info.is_file:
                self.filesystem.delete_file(info.path)
        self.remove()


def place_of(where: Path | str) -> TablePlace:
    """Return the place of a table: a path, or the URL of an object store."""
    if isinstance(where, str) and "://" in where:
        return ObjectPlace(where)
    return LocalPlace(Path(where))
