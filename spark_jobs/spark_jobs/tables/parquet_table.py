"""A table of plain Parquet files whose commits are manifests, linked into place. No Spark, no package but pyarrow.

    <table>/_headrace/manifests/00000000000000000001.json    one commit: what it added, and the positions behind it
    <table>/event_hour=2026-11-21-09/<attempt>-<n>.parquet   its rows, readable by anything that reads Parquet

A commit takes these steps, and a job may be killed between any two:

1. Spark writes the attempt; its files are synced.
2. The manifest is written next to them and synced.
3. **The manifest is linked to its number.** A link that exists is an error and not an overwrite: of two jobs one gets
   the number. From here on rows and positions are committed; before, neither.
4. The files are renamed to their places, where readers that know nothing of manifests find them.
5. The attempt's directory is removed.

The next job repeats 4 and 5 where a manifest names the attempt, and only removes what none names. So a reader of the
directory sees no row that is not committed and none twice, and misses rows of the last commit during step 4 only; a
reader of `data_files` misses none.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_jobs.tables.attempts import META, Attempt, DataFile, left_behind, sync
from spark_jobs.tables.errors import ConcurrentCommitError, TableError
from spark_jobs.tables.state import Source, TableState

MANIFEST_FORMAT = 1


class ParquetTable:
    """One table. Writes belong to the job that holds its lock; reads to anyone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._manifests = root / META / "manifests"

    def state(self) -> TableState:
        """Return the committed state."""
        numbers = self._numbers()
        if not numbers:
            if next(self.root.glob("*=*"), None) or next(self.root.glob("*.parquet"), None):
                raise TableError(f"{self.root} holds files that no load job wrote; give another directory")
            return TableState()
        last = self._read(numbers[-1])
        return TableState(numbers[-1], Source(**last["source"]), last["positions"], **last["totals"])

    def recover(self) -> None:
        """Publish what a killed job had committed, and remove what it had not."""
        attempts = left_behind(self.root)
        if not attempts:
            return
        committed = {manifest["attempt"]: manifest for manifest in map(self._read, self._numbers())}
        for attempt in attempts:
            if attempt.id in committed:
                attempt.publish(_files_of(committed[attempt.id]))
            attempt.remove()

    def commit(
        self, attempt: Attempt, source: Source, positions: Mapping[str, int], partition_by: Sequence[str]
    ) -> TableState:
        """Commit an attempt's files and positions together.

        Raises:
            ConcurrentCommitError: another job has committed since `state`; nothing of this attempt is in the table.
        """
        before = self.state()
        before.check_source(source)
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
            "totals": totals,
            "files": [asdict(file) for file in files],
        }
        self._link(attempt, before.version + 1, manifest)
        attempt.publish(files)
        attempt.remove()
        return TableState(before.version + 1, source, manifest["positions"], **totals)  # type: ignore[arg-type]

    def data_files(self) -> list[Path]:
        """Return the committed files, each where it lies: those of the last commit may still be with their attempt."""
        found = []
        for manifest in map(self._read, self._numbers()):
            attempt = Attempt(self.root, manifest["attempt"])
            for file in _files_of(manifest):
                place = self.root / file.path
                found.append(place if place.exists() else attempt.data / file.staged)
        return found

    def _link(self, attempt: Attempt, number: int, manifest: Mapping[str, Any]) -> None:
        """Make the commit: all of it, or nothing and an error."""
        self._manifests.mkdir(parents=True, exist_ok=True)
        sync(self._manifests.parent)
        written = attempt.directory / "manifest.json"
        written.write_text(json.dumps(manifest, indent=1))
        sync(written)
        try:
            os.link(written, self._manifests / f"{number:020d}.json")
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

    def _read(self, number: int) -> dict[str, Any]:
        path = self._manifests / f"{number:020d}.json"
        manifest: dict[str, Any] = json.loads(path.read_text())
        if manifest["manifest"] != MANIFEST_FORMAT:
            raise TableError(f"{path} has format {manifest['manifest']}: it was written by a newer release")
        return manifest


def _files_of(manifest: Mapping[str, Any]) -> list[DataFile]:
    return [DataFile(**file) for file in manifest["files"]]
