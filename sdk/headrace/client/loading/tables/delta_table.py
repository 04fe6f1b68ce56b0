"""Delta table, by the `deltalake` package, with the positions in the log's transaction identifiers. No Spark.

A job writes the Parquet files and this module commits them: one entry of Delta's log adds the files and sets one
transaction identifier for each partition of the source, `headrace/<source id>/<partition>` -> the first offset that is
not in the table. Readers of Delta see both or neither. Two jobs that set the same identifiers conflict, and one fails.
`headrace/<source id>/<partition>/epoch` has the leader epoch of the record before it, with bits of the position: a
commit of an earlier release leaves it as it was.

The files have their final paths before the log refers to them, so that a killed job leaves only files that Delta
readers ignore. The next job removes them by the id of the attempt. In an object store, deltalake puts an entry of the
log only if there is none of its number, so that of two loads one commits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import pyarrow

from headrace.client.loading.tables import places
from headrace.client.loading.tables.attempts import DataFile
from headrace.client.loading.tables.compaction import small_groups
from headrace.client.loading.tables.errors import ConcurrentCommitError, LoadError
from headrace.client.loading.tables.places import AnyAttempt, place_of
from headrace.client.loading.tables.state import NO_EPOCHS, TARGET_BYTES, Source, TableState, conflict

if TYPE_CHECKING:
    from deltalake import DeltaTable as DeltaLog

DESCRIPTION = "headrace: "
EPOCH = "/epoch"
KEPT_HOURS = 168
"""Time for which files that compaction has replaced are kept, for readers of older versions."""


class DeltaTable:
    """Delta table. Writing requires the table's lock, reading does not."""

    keeps_columns: ClassVar[bool] = False

    def __init__(self, root: Path | str) -> None:
        """`root` is a directory, or the URL of an object store."""
        self.root = Path(root)
        self.place = place_of(root)
        try:
            import deltalake
        except ImportError:
            raise LoadError("Delta needs the package deltalake: pip install 'headrace[delta]'") from None
        self._deltalake = deltalake

    def prepare(self, columns: pyarrow.Schema, source: Source, partition_by: Sequence[str]) -> None:
        """Do nothing: the first commit makes the table."""

    def state(self) -> TableState:
        """Return the committed state."""
        log = self._log()
        if log is None and self.place.holds_files():
            raise LoadError(f"{self.place.uri} holds files and no Delta log; give another directory")
        return self._state_of(log)

    def _state_of(self, log: DeltaLog | None) -> TableState:
        if log is None:
            return TableState()
        actions = pyarrow.table(log.get_add_actions(flatten=True))
        rows = actions.column("num_records").to_pylist() if actions.num_rows else []
        source = _source_of(log)
        positions = self._positions(log, source)
        return TableState(
            version=log.version() + 1,
            source=source,
            positions=positions,
            epochs=_epochs_of(log, source, positions),
            rows=sum(count or 0 for count in rows),
            bytes=sum(actions.column("size_bytes").to_pylist()) if actions.num_rows else 0,
            files=actions.num_rows,
            partition_by=tuple(log.metadata().partition_columns),
        )

    def recover(self) -> None:
        """Remove uncommitted files of killed jobs."""
        self.place.remove_remains(lambda: set(self._paths()))

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
            ConcurrentCommitError: If another job committed meanwhile; nothing of this attempt is in the table.
        """
        from deltalake.exceptions import CommitFailedError, TableNotFoundError

        log = self._log()  # One for the check and the commit: what is newer than it makes the commit fail.
        before = self._state_of(log)
        before.check_source(source)
        before.check_continues(after)
        files = attempt.files()
        if not files and not before.version:
            raise LoadError("the first commit of a Delta table needs a row, for its columns; there is none yet")
        schema = self._schema(log, attempt, files, partition_by)
        if log is not None and log.version() + 1 != before.version:  # A column was added, maybe after another commit.
            self._state_of(log).check_continues(before)
        attempt.publish(files)
        versions = {_application(source, key): at for key, at in {**before.positions, **positions}.items()}
        versions |= {_application(source, key) + EPOCH: _tagged(epochs[key], positions[key]) for key in epochs}
        now_ms = int(time.time() * 1000)
        properties = self._deltalake.CommitProperties(
            app_transactions=[self._deltalake.Transaction(*each, now_ms) for each in sorted(versions.items())]
        )
        adds = [_add_action(file, self.place.modified_ms(file)) for file in files]
        try:
            if log is None:
                from deltalake.transaction import create_table_with_add_actions

                create_table_with_add_actions(
                    self.place.uri,
                    schema,
                    adds,
                    mode="error",
                    partition_by=list(partition_by),
                    name=source.name,
                    description=DESCRIPTION + json.dumps([source.kind, source.name, source.id]),
                    storage_options=storage_options(),
                    commit_properties=properties,
                )
            else:
                log.create_write_transaction(
                    adds, mode="append", schema=schema, partition_by=list(partition_by), commit_properties=properties
                )
        except (CommitFailedError, TableNotFoundError) as error:
            self.recover()
            if not files or files[0].path not in self._paths():  # Else the answer to the first try was lost.
                raise ConcurrentCommitError(
                    f"the commit to {self.place.uri} was refused: {error}; run the job again"
                ) from error
        attempt.remove()
        return self.state()

    def conflicts(self, columns: pyarrow.Schema) -> list[str]:
        """Compare columns with those of the log."""
        log = self._log()
        # The log has the columns of directories as strings, files of a load do not have them.
        directories = log.metadata().partition_columns if log is not None else ()
        fields = log.schema().fields if log is not None else ()
        known = {each.name: each.type for each in fields if each.name not in directories}
        wanted = self._deltalake.Schema.from_arrow(columns.remove_metadata()).fields
        return [
            conflict(each.name, each.type, known[each.name])
            for each in wanted
            if known.get(each.name, each.type) != each.type
        ]

    def data_files(self) -> list[Path]:
        """Return the committed files of a directory."""
        return [self.root / path for path in self._paths()]

    def compact(self) -> int:
        """Replace small files by larger ones, in one commit of deltalake's own; return how many were replaced.

        Replaced files are deleted after a week.
        """
        log = self._log()
        actions = None if log is None else pyarrow.table(log.get_add_actions())
        if log is None or actions is None or not actions.num_rows:
            return 0
        paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
        if not small_groups(list(zip(paths, sizes, strict=True))):
            return 0
        found = log.optimize.compact(target_size=TARGET_BYTES, max_concurrent_tasks=1)
        if found["numFilesRemoved"]:
            log.vacuum(retention_hours=KEPT_HOURS, dry_run=False)
        return int(found["numFilesRemoved"])

    def _paths(self) -> list[str]:
        """Return the paths of the committed files, relative to the table."""
        log = self._log()
        if log is None:
            return []
        return [unquote(path) for path in pyarrow.table(log.get_add_actions(flatten=True)).column("path").to_pylist()]

    def _log(self) -> DeltaLog | None:
        options = storage_options()
        if not self._deltalake.DeltaTable.is_deltatable(self.place.uri, options):
            return None
        return self._deltalake.DeltaTable(self.place.uri, storage_options=options)

    def _positions(self, log: DeltaLog, source: Source | None) -> dict[str, int]:
        """Return the positions, read for one partition after the other, from 0 without gaps."""
        positions: dict[str, int] = {}
        while source is not None:
            key = str(len(positions))
            found = log.transaction_version(_application(source, key))
            if found is None:
                break
            positions[key] = found
        return positions

    def _schema(
        self, log: DeltaLog | None, attempt: AnyAttempt, files: Sequence[DataFile], partition_by: Sequence[str]
    ) -> Any:
        """Return the columns of the table: those of a file, and the partition columns, which are strings.

        Columns that are new in the files are added to the log, in which they are null for older rows.
        """
        columns = attempt.columns(files[0]).remove_metadata() if files else None
        if log is not None:
            known = {field.name for field in log.schema().fields}
            new = [field for field in columns or () if field.name not in known]
            if new:
                log.alter.add_columns(self._deltalake.Schema.from_arrow(pyarrow.schema(new)).fields)
            return log.schema()
        assert columns is not None, "the first commit has a row"
        for name in partition_by:
            columns = columns.append(pyarrow.field(name, pyarrow.string()))
        return self._deltalake.Schema.from_arrow(columns)


def storage_options() -> dict[str, str]:
    """Return the settings of requests to an object store, as those of `ObjectPlace`."""
    return {
        "timeout": f"{places.SILENT_SECONDS}s",
        "max_retries": str(places.ATTEMPTS - 1),
        "retry_timeout": f"{places.ATTEMPTS * places.SILENT_SECONDS}s",
    }


def _epochs_of(log: DeltaLog, source: Source | None, positions: Mapping[str, int]) -> dict[str, int]:
    """Return the leader epochs that belong to the positions."""
    found: dict[str, int] = {}
    if source is None:
        return found
    for key, position in positions.items():
        version = log.transaction_version(_application(source, key) + EPOCH)
        if version is not None and version == _tagged(version & 0x7FFFFFFF, position):
            found[key] = version & 0x7FFFFFFF
    return found


def _tagged(epoch: int, position: int) -> int:
    """Return an epoch with the lowest bits of its position."""
    return (position & 0x7FFFFFFF) << 31 | epoch


def _application(source: Source, key: str) -> str:
    return f"headrace/{source.id or source.name}/{key}"


def _source_of(log: DeltaLog) -> Source | None:
    description = log.metadata().description or ""
    if not description.startswith(DESCRIPTION):
        raise LoadError("the Delta table was not made by a load job; give another directory")
    return Source(*json.loads(description.removeprefix(DESCRIPTION)))


def _add_action(file: DataFile, modified_ms: int) -> Any:
    from deltalake.transaction import AddAction

    parts = [part.partition("=") for part in Path(file.path).parent.parts]
    values = {name: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for name, _, value in parts}
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.bytes, values, modified_ms, True, stats)
