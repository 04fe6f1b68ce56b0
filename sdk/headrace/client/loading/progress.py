"""Results of a load, for its caller. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

TOLD_SECONDS = 10.0
"""Interval at which a load that follows reports its lag without commits, so that a supervisor sees it."""


class PartitionProgress(NamedTuple):
    """How far one partition is loaded."""

    partition: int
    position: int
    """First offset that is not in the table."""
    lag_records: int | None
    """Records that are not in the table; `None` if it is not known."""
    lag_ms: int | None
    """Age of the oldest record that is not in the table, in ms; 0 without lag, `None` if its time is not known."""


class LoadProgress(NamedTuple):
    """One commit, or that there was none for a while."""

    topic: str
    rows: int
    """Number of new rows; 0 if there was no commit."""
    files: int
    """Number of new files."""
    seconds: float
    """Duration of the commit, in which nothing is read; with the compaction that followed."""
    partitions: tuple[PartitionProgress, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        parts = [each._asdict() for each in self.partitions]
        return {**self._asdict(), "seconds": round(self.seconds, 3), "partitions": parts}


@dataclass(slots=True)
class LoadedTopic:
    """Result of a load of one topic."""

    topic: str
    table: str
    format: str
    commits: int = 0
    rows: int = 0
    bytes: int = 0
    """Size of the new files."""
    files: int = 0
    compacted: int = 0
    """Number of small files that were replaced by larger ones."""
    lost: int = 0
    """Records that retention removed before they were loaded; only with `accept_data_loss`."""
    partitions: tuple[PartitionProgress, ...] = ()
    table_rows: int = 0
    table_bytes: int = 0
    table_files: int = 0
    seconds: float = 0.0

    @property
    def lag_records(self) -> int:
        """Records of the topic that are not in the table, as far as known."""
        return sum(each.lag_records or 0 for each in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            **asdict(self),
            "lag_records": self.lag_records,
            "partitions": [part._asdict() for part in self.partitions],
        }


Progress: TypeAlias = Callable[[LoadProgress], object]
"""Called after each commit, and every 10 seconds without one if the load follows."""
