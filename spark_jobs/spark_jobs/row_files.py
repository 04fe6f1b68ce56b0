"""Files of a commit: rows of a table, made from the records of a topic and written by Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.loading.columns import EMPTY_TEXT, RESERVED_TEXTS
from headrace.client.loading.tables.places import AnyAttempt

from spark_jobs.command import JobError
from spark_jobs.load_options import HOUR, Load
from spark_jobs.topic_frame import names_of

if TYPE_CHECKING:
    from headrace.client.loading.tables.attempts import Attempt
    from pyspark.sql import Column, DataFrame

_COPY = "__directory_of_"
"""Beginning of the name of a column by which Spark makes directories, in a table whose files keep the column."""
_COPIED_TYPES = frozenset({"string", "tinyint", "smallint", "int", "bigint", "boolean", "date"})
COPIED_BYTES = 4 << 20


def write_rows(records: DataFrame, wanted: Load, data: Path, *, keeps_columns: bool) -> None:
    """Write the rows of records to files in directories by the columns of the partitioning.

    Spark takes these columns out of the files. In a table whose files keep them the directories are made by copies, but
    not by one of the hour of the record's time, which the table derives itself.

    Raises:
        JobError: If the rows lack a column of the partitioning, or files of such a table cannot have one value of it
            each.
    """
    from pyspark.sql import functions

    rows = _rows(records, wanted)
    is_derived = not wanted.event_time and wanted.columns is None and HOUR not in records.columns
    copied = [name for name in wanted.partition_by if keeps_columns and not (is_derived and name == HOUR)]
    for name in copied:
        kind = rows.schema[name].dataType.simpleString()
        if kind not in _COPIED_TYPES:
            raise JobError(f"--partition-by {name}: it is {kind}; name a string, an integer, a bool or a date")
        column = functions.col(f"`{name}`")
        rows = rows.withColumn(_COPY + name, _distinct(column) if kind == "string" else column)
    directories = [_COPY + name if name in copied else name for name in wanted.partition_by]
    rows.write.partitionBy(*directories).parquet(str(data))
    for path in sorted(data.rglob(f"{_COPY}*"), reverse=True):  # The innermost first.
        path.rename(path.with_name(path.name.removeprefix(_COPY)))


def _distinct(text: Column) -> Column:
    """Return the names of directories for texts, none of which is that of null."""
    from pyspark.sql import functions

    is_reserved = text.rlike(rf"^({RESERVED_TEXTS.pattern})\z")
    reserved = functions.when(is_reserved, functions.concat(text, functions.lit("_")))
    return functions.when(text == "", EMPTY_TEXT).otherwise(functions.coalesce(reserved, text))


def _rows(records: DataFrame, wanted: Load) -> DataFrame:
    from pyspark.sql import functions

    frame = records if wanted.columns is None else wanted.columns(records)
    if HOUR in wanted.partition_by and (wanted.event_time or HOUR not in frame.columns):
        event_time = functions.expr(wanted.event_time or names_of(records)["timestamp"])
        frame = frame.withColumn(HOUR, functions.date_format(event_time, "yyyy-MM-dd-HH"))
    for name in wanted.partition_by:
        if name not in frame.columns:
            raise JobError(f"--partition-by {name}: the table has the columns {', '.join(frame.columns)}")
    if len(frame.columns) == len(wanted.partition_by):
        raise JobError("--partition-by has every column of the table; one at least must be in its files")
    return frame


def copy_files(staged: Attempt, to: AnyAttempt) -> None:
    """Copy the files of an attempt to another one, as on object storage; in case of an error nothing is left there."""
    try:
        for file in staged.files():
            directory = Path(file.path).parent.as_posix()
            target = to.new_file("" if directory == "." else directory)
            with target, (staged.data / file.staged).open("rb") as source:
                shutil.copyfileobj(source, target, COPIED_BYTES)
    except BaseException:
        to.discard()
        raise
