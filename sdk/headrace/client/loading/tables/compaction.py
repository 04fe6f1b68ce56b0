"""Small files of a table as fewer larger ones: which of them, and one file of their rows."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pyarrow
from pyarrow import parquet

from headrace.client.loading.tables.state import TARGET_BYTES

GROUP_FILES = 16
"""Minimum number of files that are replaced by one."""
ROW_GROUP_BYTES = 8 << 20
"""Size of a row group in memory, and thus about what a writer needs."""
COMPRESSION = "zstd"


def small_groups(files: Sequence[tuple[str, int]]) -> list[list[str]]:
    """Return groups of at least GROUP_FILES files to be merged, each of one directory and of similar size.

    Files whose sizes are in the same power of 8 are similar, so that a row is rewritten a few times at most until its
    file has TARGET_BYTES.

    Args:
        files: path and size in bytes of each, the oldest first.
    """
    similar: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for path, size in files:
        if size < TARGET_BYTES // 2:
            similar.setdefault((posixpath.dirname(path), size.bit_length() // 3), []).append((path, size))
    return [group for each in similar.values() for group in _filled(each)]


def _filled(files: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    """Yield groups of files of about TARGET_BYTES together."""
    group: list[str] = []
    total = 0
    for path, size in files:
        group.append(path)
        total += size
        if total >= TARGET_BYTES:
            yield group
            group, total = [], 0
    if len(group) >= GROUP_FILES:
        yield group


def merge_files(paths: Sequence[str], to: IO[bytes], filesystem: Any = None) -> None:
    """Write the rows of Parquet files, in their order, to one; columns that a file has not are null.

    Only about ROW_GROUP_BYTES of rows are in memory.
    """
    columns = pyarrow.unify_schemas([parquet.read_schema(path, filesystem=filesystem) for path in paths])
    columns = columns.remove_metadata()
    with parquet.ParquetWriter(to, columns, **writer_options()) as writer:
        waiting: list[Any] = []
        size = 0
        for path in paths:
            with parquet.ParquetFile(path, filesystem=filesystem) as file:
                for batch in file.iter_batches(batch_size=8_192):
                    waiting.append(_conformed(batch, columns))
                    size += batch.nbytes
                    if size >= ROW_GROUP_BYTES:
                        writer.write_table(pyarrow.Table.from_batches(waiting, columns))
                        waiting, size = [], 0
        if waiting:
            writer.write_table(pyarrow.Table.from_batches(waiting, columns))


def writer_options() -> dict[str, Any]:
    """Return the options with which all files are written."""
    # Without Arrow's own schema in the file, types are those that Spark and others read.
    return {"compression": COMPRESSION, "compression_level": 1, "store_schema": False}


def _conformed(batch: Any, columns: Any) -> Any:
    names = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in names else pyarrow.nulls(batch.num_rows, field.type)
        for field in columns
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=columns)
