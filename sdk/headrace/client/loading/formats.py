"""Formats of tables, and the table of a target."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from headrace.client.loading.tables.errors import LoadError

if TYPE_CHECKING:
    from headrace.client.loading.tables.delta_table import DeltaTable
    from headrace.client.loading.tables.iceberg_table import IcebergTable
    from headrace.client.loading.tables.parquet_table import ParquetTable


class LoadFormat(enum.StrEnum):
    """Format of a table."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


def target_of(to: str, catalog: str = "") -> Path | str:
    """Return the directory of a table, also of one that a URL `file:///...` names; or its URL in an object store, or
    with `catalog` its name in that.

    Raises:
        LoadError: If a URL `file:` has no absolute path of this machine, or another one has a single slash, as that of
            a `Path`.
    """
    if catalog or ("://" in to and not to.startswith("file:")):
        return to
    if not to.startswith("file:/"):
        scheme, colon, rest = to.partition(":/")
        if colon and scheme.isalnum():
            raise LoadError(f"{to} is no URL: write {scheme}://{rest}, or ./{to} for a directory")
        return Path(to).absolute()
    path = unquote(to.removeprefix("file:").removeprefix("//localhost").removeprefix("//"))
    if not path.startswith("/"):
        raise LoadError(f"{to} names no directory of this machine: write file:///data/clicks, or the path /data/clicks")
    return Path(path)


def open_table(
    to: str, table_format: LoadFormat, catalog: str = "", *, is_typed: bool = False
) -> ParquetTable | DeltaTable | IcebergTable:
    """Return the table of a target.

    Args:
        to: path or `file:` URL of a directory, URL of an object store, or with `catalog` the table's name in it.
        table_format: format of the table.
        catalog: name of a catalog of pyiceberg; empty for the table's own.
        is_typed: whether the topic is typed; needed to create a table of Iceberg.

    Raises:
        LoadError: If a package is not installed, or the format is not possible there.
    """
    if catalog and table_format is not LoadFormat.ICEBERG:
        raise LoadError("a catalog is for Iceberg: add --format iceberg")
    where = target_of(to, catalog)
    if table_format is LoadFormat.ICEBERG:
        from headrace.client.loading.tables.iceberg_table import IcebergTable

        return IcebergTable(where, catalog, hour_of="_timestamp" if is_typed else "timestamp")
    if table_format is LoadFormat.DELTA:
        from headrace.client.loading.tables.delta_table import DeltaTable

        return DeltaTable(where)
    if isinstance(where, str):
        raise LoadError(
            f"{to}: plain Parquet files cannot be committed on object storage, where no hard link decides between two "
            "writers; use --format delta, or --format iceberg with a catalog"
        )
    from headrace.client.loading.tables.parquet_table import ParquetTable

    return ParquetTable(where)
