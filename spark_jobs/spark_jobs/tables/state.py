"""What a table says of itself, whatever its format. Data, and the paths they lie at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spark_jobs.tables.attempts import Attempt
from spark_jobs.tables.errors import OtherSourceError


@dataclass(frozen=True, slots=True)
class Source:
    """Whose records a table holds; a table has one source for its whole life."""

    kind: str
    """`topic` or `files`."""
    name: str
    id: str = ""
    """Of a topic, in hexadecimal: one that was deleted and created again has another."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name} (id {self.id})" if self.id else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one moment: what is committed."""

    version: int = 0
    """Commits so far; 0: nothing is there."""
    source: Source | None = None
    positions: Mapping[str, int] = field(default_factory=dict)
    """Partition -> the first offset that is not in the table."""
    rows: int = 0
    bytes: int = 0
    files: int = 0

    def check_source(self, source: Source) -> None:
        """Check that the table is empty or holds records of `source`.

        Raises:
            OtherSourceError: it holds another's.
        """
        if self.source is not None and self.source != source:
            raise OtherSourceError(
                f"the table holds the records of {self.source}, not of {source}; give another directory"
            )


class StoredTable(Protocol):
    """A table that a job writes, under its lock."""

    root: Path

    def recover(self) -> None:
        """Finish or undo what a job that was killed has left."""

    def state(self) -> TableState:
        """Return the committed state."""

    def commit(
        self, attempt: Attempt, source: Source, positions: Mapping[str, int], partition_by: Sequence[str]
    ) -> TableState:
        """Commit an attempt's files and positions together; gives the table's state after it.

        Raises:
            ConcurrentCommitError: another job was quicker; nothing of this attempt is in the table.
        """

    def data_files(self) -> list[Path]:
        """Return the files whose rows are committed, wherever they lie now."""
