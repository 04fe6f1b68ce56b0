"""Parameters of a load of a topic into a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.loading.formats import LoadFormat, target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR = "event_hour"
COMMIT_RECORDS = 20_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Parameters of a load."""

    topic: str
    table: Path | str
    """Directory, URL of an object store, or name in the catalog."""
    bootstrap_servers: str
    format: LoadFormat = LoadFormat.PARQUET
    event_time: str = ""
    """SQL expression of a row's event time; empty for the time of the record."""
    columns: Callable[[DataFrame], DataFrame] | None = None
    """Converts the topic's columns to the table's, row by row; `None` keeps them."""
    partition_by: tuple[str, ...] = (HOUR,)
    commit_records: int = COMMIT_RECORDS
    accept_loss: bool = False
    catalog: str = ""
    """Catalog of pyiceberg's configuration; empty for that of the directory."""
    staging: Path | None = None
    """Directory in which Spark writes the files of a commit, if the table is not in one."""
    every: float | None = None
    """Interval in seconds of the commits of a load that follows; `None` ends it with the topic."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the table may be where Spark cannot rename files: in an object store, or where a catalog says."""
        return isinstance(target_of(str(self.table), self.catalog), str)
