"""Iceberg table, by the `pyiceberg` package, with source and positions in the summaries of its snapshots.

A load writes Parquet files and this module adds them: the snapshot that has their rows has in its summary

    headrace.source      ["topic", name, id in hexadecimal]
    headrace.positions   {"0": first offset of partition 0 that is not in the table, ...}
    headrace.epochs      {"0": leader epoch of the record before it, ...}

and so the position is that of the rows that a reader sees, also after a rollback to an older snapshot. A snapshot of
another program, such as a compaction, has none; those of the one before it count. The catalog replaces the table's
metadata only if they are those that the commit began with, so that of two loads one commits. pyiceberg would add the
files of the other on top; here it does not, because their rows are the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow

from headrace.client.loading.tables import places
from headrace.client.loading.tables.attempts import META
from headrace.client.loading.tables.compaction import merge_files, small_groups
from headrace.client.loading.tables.errors import ConcurrentCommitError, LoadError
from headrace.client.loading.tables.places import AnyAttempt, LocalPlace, ObjectPlace, TablePlace
from headrace.client.loading.tables.state import NO_EPOCHS, Source, TableState, conflict

SOURCE = "headrace.source"
POSITIONS = "headrace.positions"
EPOCHS = "headrace.epochs"
LOCAL_NAME = "headrace.records"
"""Name of the table in the catalog of its own directory."""
HOUR = "event_hour"
_HOUR_OF = {True: "a column", False: "the hour of the record's time"}
KEPT_SNAPSHOTS = timedelta(hours=1)
"""Age at which snapshots expire at a compaction: each commit writes the list of all."""
PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of new tables: many small commits must not slow down readers."""
IO = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


class IcebergTable:
    """Iceberg table. Writing requires the table's lock if it is in a directory, reading does not."""

    keeps_columns: ClassVar[bool] = True

    def __init__(self, where: Path | str, catalog: str = "", *, hour_of: str = "timestamp") -> None:
        """Open a catalog.

        Args:
            where: directory, whose own catalog is a SQLite file in it; with `catalog` the table's name, `space.table`.
            catalog: name of a catalog in pyiceberg's configuration.
            hour_of: column with the time of a row, from which `event_hour` is derived.

        Raises:
            LoadError: If pyiceberg is not installed, or has no such catalog.
        """
        try:
            import pyiceberg.catalog
            import pyiceberg.catalog.sql
        except ImportError as error:
            raise LoadError(f"Iceberg needs {error.name or 'pyiceberg'}: pip install 'headrace[iceberg]'") from None
        # What it says of removed metadata files and so on is for its developers.
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)
        self.root = Path(where)
        self._hour_of = hour_of
        self._location: str | None = None
        if catalog:
            self._name = str(where)
            if self._name.count(".") < 1:
                raise LoadError(f"{self._name} is no table of a catalog: give its name as namespace.table")
            try:
                self._catalog = pyiceberg.catalog.load_catalog(catalog, **IO)
            except Exception as error:
                raise LoadError(f"the catalog {catalog} of pyiceberg: {error}") from error
            self._catalog.properties.setdefault("s3.request-timeout", str(places.SILENT_SECONDS))
            return
        if "://" in str(where):
            raise LoadError(
                "an Iceberg table on object storage needs a catalog: name one of pyiceberg's by --catalog, and the "
                "table by --to namespace.table; or use --format delta"
            )
        self._name = LOCAL_NAME
        self._location = f"file://{self.root.absolute()}"
        (self.root / META).mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{self.root.absolute()}/{META}/catalog.db"
        self._catalog = pyiceberg.catalog.sql.SqlCatalog("headrace", uri=uri, warehouse=self._location, **IO)

    @property
    def place(self) -> TablePlace:
        """Where its files are; of a named catalog, only after `prepare`."""
        if self._location is not None:
            return LocalPlace(self.root)
        table = self._table()
        if table is None:
            raise LoadError(f"the catalog has no table {self._name}")
        location = table.location()
        scheme, separator, path = location.partition("://")
        if not separator or scheme == "file":
            return LocalPlace(Path(path if separator else location))
        return ObjectPlace(location, table.io.fs_by_scheme(scheme, path.partition("/")[0]))

    def prepare(self, columns: pyarrow.Schema, source: Source, partition_by: Sequence[str]) -> None:
        """Create the table without rows if there is none."""
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import HourTransform, IdentityTransform

        if self._table() is not None:
            return
        if self._location is not None and self.place.holds_files():
            raise LoadError(f"{self.root} holds files and no Iceberg table; give another directory")
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        properties = {**PROPERTIES, SOURCE: _source_text(source)}
        try:
            with self._catalog.create_table_transaction(
                self._name, schema=columns, location=self._location, properties=properties
            ) as transaction:
                with transaction.update_spec() as spec:
                    for name in partition_by:
                        is_hour = name == HOUR and HOUR not in columns.names
                        transform: Any = HourTransform() if is_hour else IdentityTransform()
                        spec.add_field(self._hour_of if is_hour else name, transform, name)
        except TableAlreadyExistsError:
            raise ConcurrentCommitError(f"another load has created {self._name}; run this one again") from None

    def state(self) -> TableState:
        """Return the committed state."""
        table = self._table()
        return TableState() if table is None else self._state_of(table)

    def _state_of(self, table: Any) -> TableState:
        if SOURCE not in table.properties:
            raise LoadError(f"the Iceberg table {self._name} was not made by a load; give another table")
        names = tuple(field.name for field in table.spec().fields)
        snapshot = table.current_snapshot()
        if snapshot is None:
            return TableState(source=_source_of(table.properties[SOURCE]), partition_by=names)
        ours = next((each for each in _ancestors(table, snapshot) if each.summary[POSITIONS] is not None), None)
        if ours is None:
            raise LoadError(
                f"no snapshot of {self._name} has positions any more: those of the load have expired. "
                "Load into another table, or roll back to a snapshot of the load"
            )
        return TableState(
            version=table.metadata.last_sequence_number,
            source=_source_of(ours.summary[SOURCE]),
            positions=json.loads(ours.summary[POSITIONS]),
            epochs=json.loads(ours.summary[EPOCHS] or "{}"),
            rows=int(snapshot.summary["total-records"] or 0),
            bytes=int(snapshot.summary["total-files-size"] or 0),
            files=int(snapshot.summary["total-data-files"] or 0),
            partition_by=names,
        )

    def recover(self) -> None:
        """Remove uncommitted files of killed loads."""
        if self._location is not None or self._table() is not None:
            place = self.place
            place.remove_remains(lambda: {self._relative(place, path) for path in self._paths()})

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
        """Commit an attempt's files and positions together. Columns that are new are added to the table.

        Raises:
            ConcurrentCommitError: If another load committed meanwhile; nothing of this attempt is in the table.
        """
        table = self._table()  # One for the check and the commit: what is newer than it makes the commit fail.
        assert table is not None, "it was prepared"
        before = self._state_of(table)
        before.check_source(source)
        before.check_continues(after)
        files = attempt.files()
        place = self.place
        columns = attempt.columns(files[0]) if files else None
        attempt.publish(files)
        summary = _summary(source, {**before.positions, **positions}, epochs)

        def add(transaction: Any) -> None:
            if columns is not None and set(columns.names) - set(table.schema().column_names):
                with transaction.update_schema() as update:
                    update.union_by_name(columns)
            if files:
                paths = [place.absolute(file.path) for file in files]
                transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
            else:
                with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                    pass

        self._commit(table, add)
        attempt.remove()
        return self.state()

    def conflicts(self, columns: pyarrow.Schema) -> list[str]:
        """Compare columns with those of the table."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        table = self._table()
        if table is None:
            return []
        known = {field.name: str(field.field_type) for field in table.schema().fields}
        found = []
        if (HOUR in known) != (HOUR in columns.names) and any(field.name == HOUR for field in table.spec().fields):
            found.append(f"{HOUR} is {_HOUR_OF[HOUR in columns.names]} now, and {_HOUR_OF[HOUR in known]} in the table")
        for column in columns.remove_metadata():
            if column.name not in known:
                continue
            try:
                (wanted,) = pyarrow_to_schema(pyarrow.schema([column]), table.schema().name_mapping).fields
            except ValueError as error:  # A field of a struct that the table has not.
                found.append(f"column {column.name}: {error}")
                continue
            if str(wanted.field_type) != known[column.name]:
                found.append(conflict(column.name, wanted.field_type, known[column.name]))
        return found

    def data_files(self) -> list[Path]:
        """Return the committed files of a directory."""
        return [Path(path.removeprefix("file://")) for path in self._paths()]

    def compact(self) -> int:
        """Replace small files by larger ones, in one commit; return how many were replaced.

        Snapshots older than an hour expire. Replaced files are not deleted: older snapshots may name them.

        Raises:
            ConcurrentCommitError: If another load committed meanwhile; nothing has changed.
        """
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        table = self._table()
        if table is None or table.current_snapshot() is None:
            return 0
        place, spec = self.place, table.spec().spec_id
        tasks = [task for task in table.scan().plan_files() if not task.delete_files and task.file.spec_id == spec]
        known = {self._relative(place, task.file.file_path): task.file for task in tasks}
        groups = small_groups([(path, file.file_size_in_bytes) for path, file in sorted(known.items())])
        if not groups:
            return 0
        state = self._state_of(table)
        assert state.source is not None, "it has files"
        attempt = place.begin()
        try:
            for group in groups:
                with attempt.new_file(group[0].rpartition("/")[0]) as stream:
                    if isinstance(place, ObjectPlace):
                        paths = [place.absolute(path).partition("://")[2] for path in group]
                        merge_files(paths, stream, place.filesystem)
                    else:
                        merge_files([place.absolute(path) for path in group], stream)
            files = attempt.files()
            attempt.publish(files)
        except BaseException:
            attempt.discard()
            raise
        summary = _summary(state.source, state.positions, state.epochs)

        def replace(transaction: Any) -> None:
            with transaction.update_snapshot(snapshot_properties=summary).overwrite() as update:
                for group in groups:
                    for path in group:
                        update.delete_data_file(known[path])
                for file in files:
                    metadata = transaction.table_metadata
                    update.append_data_file(parquet_file_to_data_file(table.io, metadata, place.absolute(file.path)))

        self._commit(table, replace)
        attempt.remove()
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - KEPT_SNAPSHOTS).commit()
        return sum(map(len, groups))

    def _commit(self, table: Any, change: Callable[[Any], None]) -> None:
        """Make one change of the table, once.

        Raises:
            ConcurrentCommitError: If another program changed it since it was loaded.
        """
        from pyiceberg.exceptions import CommitFailedException

        # Only in this process: a retry would add the same rows to a table in which they are already.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        try:
            with table.transaction() as transaction:
                change(transaction)
        except CommitFailedException as error:
            self.recover()
            raise ConcurrentCommitError(
                f"the commit to {self._name} was refused: {error}; run the load again"
            ) from error

    def _table(self) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _paths(self) -> list[str]:
        table = self._table()
        return [] if table is None else [task.file.file_path for task in table.scan().plan_files()]

    def _relative(self, place: TablePlace, path: str) -> str:
        """Return the path of a file relative to the table's."""
        return path.removeprefix("file://").removeprefix(place.uri).lstrip("/")


def _ancestors(table: Any, snapshot: Any) -> Iterator[Any]:
    """Yield a snapshot and those before it."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)


def _summary(source: Source, positions: Mapping[str, int], epochs: Mapping[str, int]) -> dict[str, str]:
    return {
        SOURCE: _source_text(source),
        POSITIONS: json.dumps(dict(positions)),
        EPOCHS: json.dumps(dict(epochs)),
    }


def _source_text(source: Source) -> str:
    return json.dumps([source.kind, source.name, source.id])


def _source_of(text: str) -> Source:
    return Source(*json.loads(text))
