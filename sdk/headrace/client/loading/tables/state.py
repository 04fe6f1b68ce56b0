"""State of a table, independent of its format, and the interface of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow

from headrace.client.loading.tables.errors import ConcurrentCommitError, LoadError, OtherSourceError

if TYPE_CHECKING:
    from headrace.client.loading.tables.places import AnyAttempt, TablePlace

NO_EPOCHS: Mapping[str, int] = MappingProxyType({})
TARGET_BYTES = 128 << 20
"""Size of a file from which it is not made larger."""


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
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Leader epoch of the record before each position; omitted if unknown, as in commits of earlier releases."""
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

    def check_continues(self, after: TableState | None) -> None:
        """Check that the positions are still those of `after`.

        Raises:
            ConcurrentCommitError: If they are not.
        """
        if after is not None and dict(self.positions) != dict(after.positions):
            raise ConcurrentCommitError("another load has committed to the table meanwhile; run this one again")

    def check_partitioning(self, partition_by: Sequence[str]) -> None:
        """Check that the table is new or has directories by these columns.

        Raises:
            LoadError: If it has others.
        """
        if self.source is not None and self.partition_by != tuple(partition_by):
            raise LoadError(
                f"the table has directories by {', '.join(self.partition_by)}, not by {', '.join(partition_by)}; "
                "give these, or another directory"
            )


def conflict(name: str, now: object, before: object) -> str:
    """Return the sentence about a column of two types."""
    return f"column {name} is {now} now, and {before} in the table"


class StoredTable(Protocol):
    """Table that a job writes, with its lock held."""

    root: Path
    keeps_columns: ClassVar[bool]
    """Whether files have the columns of the directories, too."""

    @property
    def place(self) -> TablePlace:
        """Where its files are."""

    def prepare(self, columns: pyarrow.Schema, source: Source, partition_by: Sequence[str]) -> None:
        """Do what the first attempt needs; rows and positions are committed by `commit` only."""

    def recover(self) -> None:
        """Complete or undo the work of a killed job."""

    def state(self) -> TableState:
        """Return the committed state."""

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
        """Commit an attempt's files and positions together; return the table's new state.

        Args:
            attempt: with the files.
            source: of all rows of the table.
            positions: after the rows.
            partition_by: columns of the directories.
            epochs: leader epochs of the records before the positions, as far as known.
            after: state at whose positions the rows begin; without a lock, those of the table may be others now.

        Raises:
            ConcurrentCommitError: If another job committed first; nothing of this attempt is in the table.
        """

    def conflicts(self, columns: pyarrow.Schema) -> list[str]:
        """Return a sentence for each column of further files that has another type in the table."""

    def data_files(self) -> list[Path]:
        """Return the current paths of the files whose rows are committed."""

    def compact(self) -> int:
        """Replace small files by larger ones with the same rows, in one commit; return how many were replaced."""
