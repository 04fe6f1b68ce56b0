"""Table of plain Parquet files whose commits are manifests, created by hard links. No Spark; needs only pyarrow.

    <table>/_headrace/manifests/00000000000000000001.json    one commit: its files, and the positions after it
    <table>/event_hour=2026-11-21-09/<attempt>-<n>.parquet   its rows, for any reader of Parquet

A commit has these steps, and a job may be killed between any two:

1. The job writes the attempt; its files are synced.
2. The manifest is written next to them and synced.
3. **The manifest is linked to its number.** An existing link is an error, not overwritten, so that only one of two jobs
   gets the number. From then on rows and positions are committed; before, neither is.
4. The files are renamed to their final paths, where readers without support for manifests find them.
5. The attempt's directory is removed.

The next job repeats 4 and 5 for an attempt that a manifest names, and removes any other. A reader of the directory
therefore sees no uncommitted and no duplicate rows, and misses rows of the last commit only during step 4; a reader
of `data_files` misses none.

`compact` commits larger files with the rows of small ones in the same way. Its manifest lists all files of the table,
so that no older one is read any more, and those that it replaces, which are deleted in step 4 before the others are
renamed. Manifests before it are deleted after a day: until then a job that is late cannot take their numbers.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pyarrow
from pyarrow import parquet

from headrace.client.loading.tables.attempts import META, Attempt, DataFile, begin, left_behind, sync
from headrace.client.loading.tables.compaction import merge_files, small_groups
from headrace.client.loading.tables.errors import ConcurrentCommitError, LoadError
from headrace.client.loading.tables.places import AnyAttempt, LocalPlace
from headrace.client.loading.tables.state import NO_EPOCHS, Source, TableState, conflict

MANIFEST_FORMAT = 1
COMPACTED_FORMAT = 2
"""Format of a manifest with `replaces`."""
KEPT_SECONDS = 86_400.0
"""Age at which a manifest before that of a compaction is deleted."""


class ParquetTable:
    """Parquet table. Writing requires the table's lock, reading does not."""

    keeps_columns: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = LocalPlace(root)
        self._manifests = root / META / "manifests"

    def prepare(self, columns: pyarrow.Schema, source: Source, partition_by: Sequence[str]) -> None:
        """Do nothing: the first commit makes the table."""

    def state(self) -> TableState:
        """Return the committed state."""
        numbers = self._numbers()
        if not numbers:
            if self.place.holds_files():
                raise LoadError(f"{self.root} holds files that no load job wrote; give another directory")
            return TableState()
        last = self._read(numbers[-1])
        return TableState(
            numbers[-1],
            Source(**last["source"]),
            last["positions"],
            last.get("epochs", {}),
            **last["totals"],
            partition_by=tuple(last["partition_by"]),
        )

    def recover(self) -> None:
        """Publish committed files of a killed job, and remove its uncommitted ones."""
        attempts = left_behind(self.root)
        if not attempts:
            return
        committed = {manifest["attempt"]: manifest for manifest in map(self._read, self._numbers())}
        for attempt in attempts:
            if attempt.id in committed:
                self._publish(attempt, committed[attempt.id])
            attempt.remove()

    def commit(
        self,
        attempt: AnyAttempt,
        source: Source,
        positions: Mapping[str, int],
        partition_by: Sequence[str],
        *,
        epochs: Mapping[str, int] = NO_EPOCHS,
        after: TableState | None = None,
    ) -> TableState:
        """Commit an attempt's files and positions together.

        Raises:
            ConcurrentCommitError: If another job committed since `state`; nothing of this attempt is in the table.
        """
        assert isinstance(attempt, Attempt), "a Parquet table is in a directory"
        before = self.state()
        before.check_source(source)
        before.check_continues(after)
        files = attempt.files()
        totals = {
            "rows": before.rows + sum(file.rows for file in files),
            "bytes": before.bytes + sum(file.bytes for file in files),
            "files": before.files + len(files),
        }
        manifest = {
            "manifest": MANIFEST_FORMAT,
            "attempt": attempt.id,
            "committed_at_ms": time.time_ns() // 1_000_000,
            "source": asdict(source),
            "partition_by": list(partition_by),
            "positions": {**before.positions, **positions},
            "epochs": dict(epochs),
            "columns": _columns_text([*self._columns(), *(attempt.columns(files[0]) if files else ())]),
            "totals": totals,
            "files": [asdict(file) for file in files],
        }
        self._link(attempt, before.version + 1, manifest)
        attempt.publish(files)
        attempt.remove()
        return self.state()

    def conflicts(self, columns: pyarrow.Schema) -> list[str]:
        """Compare columns with those of all files, also of those that the topic does not have any more."""
        known = {each.name: each.type for each in self._columns()}
        return [
            conflict(each.name, each.type, known[each.name])
            for each in columns
            if known.get(each.name, each.type) != each.type
        ]

    def _columns(self) -> list[pyarrow.Field]:
        """Return the columns of all files; some may be named twice."""
        numbers = self._numbers()
        last = self._read(numbers[-1]) if numbers else {}
        if "columns" in last:
            return list(pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(last["columns"]))))
        # An earlier build committed without them.
        return [each for path in self.data_files() for each in parquet.read_schema(path)]

    def data_files(self) -> list[Path]:
        """Return the current paths of the committed files; those of the last commit may still be in their attempt."""
        found = []
        for attempt_id, file in self._current():
            place = self.root / file.path
            found.append(place if place.exists() else Attempt(self.root, attempt_id).data / file.staged)
        return found

    def _small_groups(self, files: Sequence[DataFile]) -> list[list[str]]:
        """Return groups of small files that are there; only those that would be replaced are looked for."""
        sizes = {file.path: file.bytes for file in files}
        while groups := small_groups([*sizes.items()]):
            missing = [path for group in groups for path in group if not (self.root / path).exists()]
            if not missing:
                break
            for path in missing:
                del sizes[path]
        return groups

    def compact(self) -> int:
        """Replace small files by larger ones, in one commit; return how many were replaced.

        Files that are missing, as of a directory that was removed by hand, are left as they are.

        Raises:
            ConcurrentCommitError: If another job committed meanwhile; nothing has changed.
        """
        before = self.state()
        files = [file for _, file in self._current()]
        groups = self._small_groups(files)
        if not groups:
            return 0
        assert before.source is not None, "it has files"
        attempt = begin(self.root)
        try:
            after = self._merged(attempt, files, groups)
        except BaseException:
            attempt.remove()
            raise
        replaced = [path for group in groups for path in group]
        totals = {"rows": before.rows, "bytes": sum(file.bytes for file in after), "files": len(after)}
        manifest = {
            "manifest": COMPACTED_FORMAT,
            "attempt": attempt.id,
            "committed_at_ms": time.time_ns() // 1_000_000,
            "source": asdict(before.source),
            "partition_by": list(before.partition_by),
            "positions": dict(before.positions),
            "epochs": dict(before.epochs),
            "columns": _columns_text(self._columns()),
            "totals": totals,
            "files": [asdict(file) for file in after],
            "replaces": replaced,
        }
        self._link(attempt, before.version + 1, manifest)
        self._publish(attempt, manifest)
        attempt.remove()
        for number in self._numbers():
            path = self._path(number)
            if number <= before.version and time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
        return len(replaced)

    def _merged(self, attempt: Attempt, files: Sequence[DataFile], groups: Sequence[Sequence[str]]) -> list[DataFile]:
        """Write one file for each group into the attempt; return all files, a merged one in the place of its newest."""
        merged: dict[str, str] = {}
        for group in groups:
            with attempt.new_file(posixpath.dirname(group[0])) as stream:
                merge_files([str(self.root / path) for path in group], stream)
                merged[Path(stream.name).relative_to(attempt.data).as_posix()] = group[-1]
        written = {merged[file.staged]: file for file in attempt.files()}
        gone = {path for group in groups for path in group}
        return [written.get(file.path, file) for file in files if file.path in written or file.path not in gone]

    def _publish(self, attempt: Attempt, manifest: Mapping[str, Any]) -> None:
        """Delete the files that a commit has replaced, then rename its own. Repeated until it is done."""
        for path in manifest.get("replaces", ()):
            (self.root / path).unlink(missing_ok=True)
        # That of a compaction has the files of others, too, which may have been removed by hand.
        attempt.publish([file for file in _files_of(manifest) if attempt.wrote(file)])

    def _current(self) -> list[tuple[str, DataFile]]:
        """Return the committed files, the oldest first, each with the attempt that has it until it is published."""
        newest_first: list[tuple[str, DataFile]] = []
        for number in reversed(self._numbers()):
            manifest = self._read(number)
            newest_first += [(manifest["attempt"], file) for file in reversed(_files_of(manifest))]
            if "replaces" in manifest:
                break
        return newest_first[::-1]

    def _link(self, attempt: Attempt, number: int, manifest: Mapping[str, Any]) -> None:
        """Commit the manifest atomically, or raise an error."""
        self._manifests.mkdir(parents=True, exist_ok=True)
        sync(self._manifests.parent)
        written = attempt.directory / "manifest.json"
        written.write_text(json.dumps(manifest, indent=1))
        sync(written)
        try:
            os.link(written, self._path(number))
        except FileExistsError:
            attempt.remove()
            raise ConcurrentCommitError(f"another job has committed to {self.root}; run this one again") from None
        sync(self._manifests)

    def _numbers(self) -> list[int]:
        """Return the numbers of all manifests, ascending."""
        try:
            names = os.listdir(self._manifests)
        except FileNotFoundError:
            return []
        return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))

    def _path(self, number: int) -> Path:
        return self._manifests / f"{number:020d}.json"

    def _read(self, number: int) -> dict[str, Any]:
        path = self._path(number)
        manifest: dict[str, Any] = json.loads(path.read_text())
        if manifest["manifest"] not in {MANIFEST_FORMAT, COMPACTED_FORMAT}:
            raise LoadError(f"{path} has format {manifest['manifest']}: it was written by a newer release")
        return manifest


def _files_of(manifest: Mapping[str, Any]) -> list[DataFile]:
    return [DataFile(**file) for file in manifest["files"]]


def _columns_text(columns: Iterable[pyarrow.Field]) -> str:
    """Return a schema as Parquet files have Arrow's; of columns with one name, the first."""
    first: dict[str, pyarrow.Field] = {}
    for each in columns:
        first.setdefault(each.name, each.remove_metadata())
    schema = pyarrow.schema(list(first.values()))
    return base64.b64encode(schema.serialize().to_pybytes()).decode()
