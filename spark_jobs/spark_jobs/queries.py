"""SQL queries over a table: its committed files as a view, and results for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import rich.table
from headrace.client.loading.tables.state import StoredTable
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW = "records"
MAX_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a query, at most MAX_ROWS rows."""

    sql: str
    columns: list[str]
    rows: list[list[Any]]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def table_frame(spark: SparkSession, table: StoredTable) -> DataFrame | None:
    """Return the committed rows of a table, or `None` if there are no files yet.

    Later files may have more columns than earlier ones. Columns of the directories are read from there only if files do
    not have them.
    """
    files = [str(path) for path in table.data_files()]
    place = {"recursiveFileLookup": "true"} if table.keeps_columns else {"basePath": str(table.root)}
    return spark.read.options(**place, mergeSchema="true").parquet(*files) if files else None


def ask(spark: SparkSession, table: StoredTable, queries: list[str]) -> list[Answer]:
    """Run queries over a table, whose name in them is `records`."""
    frame = table_frame(spark, table)
    if frame is None:
        return []
    frame.createOrReplaceTempView(VIEW)
    return [answer_of(sql, spark.sql(sql)) for sql in queries]


def answer_of(sql: str, frame: DataFrame) -> Answer:
    """Return a query's first rows."""
    return Answer(sql, frame.columns, [list(row) for row in frame.limit(MAX_ROWS).collect()])


def show_answer(title: str, columns: list[str], rows: list[list[Any]], console: Console) -> None:
    """Print a result as a table."""
    console.print(title)
    table = rich.table.Table()
    for index, name in enumerate(columns):
        is_number = bool(rows) and isinstance(rows[0][index], int | float)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console.print(table, soft_wrap=False)


def _cell(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
