"""`python -m spark_jobs.table_load`: puts the rows of files into a headrace table, of each key exactly the newest one.

Each Spark task puts its rows by `Table.put_many`. A row is in one task, and tasks that Spark repeats put the same rows
again, so that the table is the same however often a task or the job is run; writes of others meanwhile may come
before or after them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import headrace
import typer
from rich.console import Console

from spark_jobs.command import (
    DEFAULT_MASTER,
    DEFAULT_SERVERS,
    AsJson,
    BootstrapServers,
    JobError,
    Master,
    Quiet,
    run_job,
    show,
)
from spark_jobs.progress import ProgressLine
from spark_jobs.session import spark_session
from spark_jobs.topic_frame import check_topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEY = "key"
CLIENT_ID = "table-load"
_TEXTS = ("string", "binary")


@dataclass(frozen=True, slots=True)
class TableLoad:
    """Parameters of a load."""

    table: str
    bootstrap_servers: str
    key: str
    """Column of the rows' keys."""
    newest_by: str = ""
    """Column whose greatest value tells the newest row of a key; empty if each key has one row."""
    delete_nulls: bool = False


@dataclass(slots=True)
class TableLoadSummary:
    """Result of a load."""

    table: str
    job: str = "table_load"
    rows: int = 0
    columns: int = 0
    """Columns that were put, nulls only if they delete."""
    seconds: float = 0.0


def newest_rows(frame: DataFrame, wanted: TableLoad) -> DataFrame:
    """Return one row of each key, with the columns as text or bytes, and the key as `key`.

    Raises:
        JobError: If a column is missing, or a key has two rows without `newest_by`.
    """
    from pyspark.sql import functions

    for name in (wanted.key, wanted.newest_by):
        if name and name not in frame.columns:
            raise JobError(f"there is no column {name}; there are {', '.join(frame.columns)}")
    if wanted.key != KEY and KEY in frame.columns:
        raise JobError(f"the rows have a column {KEY} besides that of the keys; rename or drop it")
    types = dict(frame.dtypes)
    texts = [
        functions.col(f"`{name}`") if types[name] in _TEXTS else functions.col(f"`{name}`").cast("string").alias(name)
        for name in frame.columns
    ]
    if not wanted.newest_by:
        rows = frame.select(texts).withColumnRenamed(wanted.key, KEY)
        _check_unique(rows)
        return rows
    order = _order(frame, wanted.newest_by)
    # Of equal ones the greatest row, so that a repeated task has the same.
    row = functions.struct(*texts)
    newest = frame.groupBy(functions.col(f"`{wanted.key}`").alias("_key")).agg(
        functions.max(functions.struct(order.alias("order"), row.alias("row"))).alias("newest")
    )
    return newest.select("newest.row.*").withColumnRenamed(wanted.key, KEY)


def _order(frame: DataFrame, name: str) -> Column:
    """Return the order of a column's values: of numbers also where all are written as text, as in CSV files."""
    from pyspark.sql import functions

    order = functions.col(f"`{name}`")
    if dict(frame.dtypes)[name] != "string":
        return order
    number = order.try_cast("decimal(38, 18)")
    every = frame.agg(functions.every(order.isNull() | number.isNotNull())).first()
    return number if every is not None and every[0] else order


def _check_unique(rows: DataFrame) -> None:
    several = rows.groupBy(KEY).count().where("count > 1").limit(1).collect()
    if several:
        raise JobError(f"key {several[0][KEY]!r} has several rows; name a column that tells the newest by --newest-by")


def put_rows(wanted: TableLoad, names: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function of a task: puts its Arrow batches, and yields the numbers of rows and columns."""

    def put(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from headrace.spark.worker_process import prepare_worker

        prepare_worker()
        found = {"rows": 0, "columns": 0}

        def counted(given: Iterator[Any]) -> Iterator[Any]:
            for batch in given:
                nulls = 0 if wanted.delete_nulls else sum(batch.column(name).null_count for name in names)
                found["rows"] += batch.num_rows
                found["columns"] += batch.num_rows * len(names) - nulls
                yield batch

        first = next(batches, None)
        if first is not None:
            reader = pa.RecordBatchReader.from_batches(first.schema, counted(itertools.chain([first], batches)))
            with headrace.Table(wanted.table, bootstrap_servers=wanted.bootstrap_servers, client_id=CLIENT_ID) as table:
                table.put_many(reader, delete_nulls=wanted.delete_nulls)
        yield pa.RecordBatch.from_pydict({name: [count] for name, count in found.items()})

    return put


def load_table(frame: DataFrame, wanted: TableLoad) -> TableLoadSummary:
    """Put the newest row of each key of a frame into a table.

    Raises:
        JobError: As `newest_rows`.
        HeadraceError: If rows could not be written; those of other tasks may have been.
    """
    started = time.monotonic()
    rows = newest_rows(frame, wanted)
    names = [name for name in rows.columns if name != KEY]
    if not names:
        raise JobError("the rows have no column but that of the keys")
    summary = TableLoadSummary(wanted.table)
    for put in rows.mapInArrow(put_rows(wanted, names), "rows long, columns long").collect():
        summary.rows += put["rows"]
        summary.columns += put["columns"]
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def read_files(spark: SparkSession, path: str, form: str) -> DataFrame:
    """Return the rows of files: `parquet`, `json`, `orc`, or `csv` with names in the first line."""
    reader = spark.read.format(form)
    return (reader.option("header", "true") if form == "csv" else reader).load(path)


def show_table_load(summary: dict[str, Any], console: Console) -> None:
    """Print a summary for people."""
    console.print(
        f"Put {summary['rows']:,} rows, {summary['columns']:,} columns into {summary['table']} "
        f"in {summary['seconds']:.1f} s."
    )


def table_load(
    path: Annotated[str, typer.Argument(help="A file or a directory of files, as Spark reads them.")],
    table: Annotated[str, typer.Option(help="The table.")],
    key: Annotated[str, typer.Option(help="Column of the keys.")] = KEY,
    newest_by: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Column whose greatest value tells the newest row of a key. Text is compared as numbers if all of it "
            "is numbers, else as text.",
        ),
    ] = "",
    form: Annotated[str, typer.Option("--format", help="Format of the files: parquet, json, orc or csv.")] = "parquet",
    delete_nulls: Annotated[
        bool, typer.Option("--delete-nulls", help="Delete a column where it is null, and not leave it as it is.")
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
    master: Master = DEFAULT_MASTER,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Put the rows of files into a table, of each key the newest one. It may be run again."""
    wanted = TableLoad(table, bootstrap_servers, key, newest_by, delete_nulls)
    check_topics(bootstrap_servers, table)
    progress = ProgressLine(quiet=quiet)
    with progress.shown():
        progress.step("starting Spark")
        with spark_session("table-load", master) as spark:
            progress.step(f"putting rows into {table}")
            with progress.following(spark):
                summary = load_table(read_files(spark, path, form), wanted)
    show(asdict(summary), as_json, lambda console: show_table_load(asdict(summary), console))


if __name__ == "__main__":
    run_job(table_load)
