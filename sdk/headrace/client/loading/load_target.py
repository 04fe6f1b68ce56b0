"""Table of a load, with or without Spark: what is in it, and the commits of rows with the positions after them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.loading.progress import LoadedTopic
from headrace.client.loading.tables.errors import is_full
from headrace.client.loading.tables.places import AnyAttempt
from headrace.client.loading.tables.state import Source, StoredTable

log = logging.getLogger("headrace.load")

COMPACTION_FILES = 32
"""Number of new files after which small ones are looked for."""


class LoadTarget:
    """Table with the rows of one source. One thread, which has the table's lock, where there is one."""

    def __init__(self, table: StoredTable, source: Source, partition_by: Sequence[str], summary: LoadedTopic) -> None:
        """Complete or undo the work of a killed load.

        Raises:
            LoadError: If the table has another source or other directories.
        """
        self._table, self._source, self._partition_by = table, source, partition_by
        self._summary = summary
        self._new_files = COMPACTION_FILES
        table.recover()
        self.state = table.state()
        self.state.check_source(source)
        self.state.check_partitioning(partition_by)

    @property
    def positions(self) -> dict[int, int]:
        """First offset that is not in the table, by partition of a topic."""
        return {int(partition): offset for partition, offset in self.state.positions.items()}

    def epochs_at(self, positions: Mapping[Any, int]) -> dict[int, int]:
        """Return the leader epochs of the records before `positions`, where the table is there and knows them."""
        known, at = self.state.epochs, self.state.positions
        return {int(name): epoch for name, epoch in known.items() if positions.get(int(name)) == at[name]}

    def commit(
        self, attempt: AnyAttempt, positions: Mapping[Any, int], epochs: Mapping[int, int] | None = None
    ) -> tuple[int, int]:
        """Commit files and positions together, then compact if there are many files; return the new rows and files.

        `epochs` are those of the records before the positions, as far as known.

        Raises:
            LoadError: If the commit failed, or the compaction for another reason than a full disk.
        """
        before = self.state
        named = {str(partition): offset for partition, offset in positions.items()}
        known = {str(partition): epoch for partition, epoch in {**self.epochs_at(positions), **(epochs or {})}.items()}
        try:
            self.state = after = self._table.commit(
                attempt, self._source, named, self._partition_by, epochs=known, after=before
            )
        except BaseException:
            # Whether it is committed is in the table: nothing else may decide what is removed.
            self._table.recover()
            raise
        rows, files = after.rows - before.rows, after.files - before.files
        self._summary.commits += 1
        self._summary.rows += rows
        self._summary.bytes += after.bytes - before.bytes
        self._summary.files += files
        self._compact(files)
        return rows, files

    def _compact(self, files: int) -> None:
        self._new_files += files
        if self._new_files >= COMPACTION_FILES:
            self._new_files = 0
            try:
                self._summary.compacted += self._table.compact()
            except BaseException as error:
                self._table.recover()  # As after a failed commit: it may be committed, and not in its place yet.
                if not (isinstance(error, Exception) and is_full(error)):
                    raise
                log.warning("no space is left to compact the table of %s; the load continues", self._source.name)
            finally:
                self.state = self._table.state()

    def finish(self) -> LoadedTopic:
        """Return the summary, with what the table has."""
        self._summary.table_rows, self._summary.table_files = self.state.rows, self.state.files
        self._summary.table_bytes = self.state.bytes
        return self._summary
