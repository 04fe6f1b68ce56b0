"""State of a table, independent of its format, and the interface of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow

from headrace.client.loading.tables.attempts import Attempt
from headrace.client.loading.tables.errors import OtherSourceError, TableError


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a table's records, which never changes."""

    kind: str
    """`topic` or `files`."""
    name: str
    id: str = ""
    """Topic id in hexadecimal; a topic that was deleted and recreated has another one."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name} (id {self.id})" if self.id else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class TableState:
    """Committed state of a table."""

    version: int = 0
    """Number of commits."""
    source: Source | None = None
    positions: Mapping[str, int] = field(default_factory=dict)
    """First offset that is not in the table, by partition."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    partition_by: tuple[str, ...] = ()
    """Columns of the directories of the last commit."""

    def check_source(self, source: Source) -> None:
        """Check that the table is empty or has records of `source`.

        Raises:
            OtherSourceError: If it has those of another source.
        """
        if self.source is not None and self.source != source:
            raise OtherSourceError(
                f"the table holds the records of {self.source}, not of {source}; give another directory"
            )

    def check_partitioning(self, partition_by: Sequence[str]) -> None:
        """Check that the table is empty or has directories by these columns.

        Raises:
            TableError: If it has others.
        """
        if self.version and self.partition_by != tuple(partition_by):
            raise TableError(
                f"the table has directories by {', '.join(self.partition_by)}, not by {', '.join(partition_by)}; "
                "give these, or another directory"
            )


def conflict(name: str, now: object, before: object) -> str:
    """Return the sentence about a column of two types."""
    return f"column {name} is {now} now, and {before} in the table"


class StoredTable(Protocol):
    """Table that a job writes, with its lock held."""

    root: Path

    def recover(self) -> None:
        """Complete or undo the work of a killed job."""

    def state(self) -> TableState:
        """Return the committed state."""

    def commit(
        self, attempt: Attempt, source: Source, positions: Mapping[str, int], partition_by: Sequence[str]
    ) -> TableState:
        """Commit an attempt's files and positions together; return the table's new state.

        Raises:
            ConcurrentCommitError: If another job committed first; nothing of this attempt is in the table.
        """

    def conflicts(self, columns: pyarrow.Schema) -> list[str]:
        """Return a sentence for each column of further files that has another type in the table."""

    def data_files(self) -> list[Path]:
        """Return the current paths of the files whose rows are committed."""
