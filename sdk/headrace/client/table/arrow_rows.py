"""Rows of a table as Arrow record batches. Imports pyarrow, so it is imported on first use only. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.client.base.config import TableConfig
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.client.table.rows import name_of, text_of
from headrace.v1.tables_pb2 import TableRow
from headrace.wire.errors import InvalidRequestError

MAX_COLUMNS = 10_000
"""Different columns of one batch."""


class ArrowRows:
    """Makes record batches of rows: a column for the key, one for the version if there is a name for it, and one for
    each name of a column, null where a row has none.
    """

    def __init__(
        self, config: TableConfig, columns: Sequence[str] | None, key_column: str, version_column: str | None
    ) -> None:
        """`columns` are the names of all batches; `None` for those that the rows of each batch have.

        Raises:
            ConfigError: If two columns would have the same name, or values are neither bytes nor text.
        """
        if config.value_deserializer not in (None, "bytes", "str"):
            raise ConfigError(
                "Arrow has values as bytes or text", action='Set value_deserializer to "str" or "bytes" for it.'
            )
        self._type = pa.string() if config.value_deserializer == "str" else pa.binary()
        self._columns = None if columns is None else list(dict.fromkeys(columns))
        self._key_column = key_column
        self._version_column = version_column
        self._tables: list[Any] = []
        self._check(self._columns or [])

    def _check(self, names: Sequence[str]) -> None:
        own = [name for name in (self._key_column, self._version_column) if name is not None]
        for name in own:
            if name in names or own.count(name) > 1:
                raise ConfigError(
                    f"two columns have the name {name!r}",
                    action="Name those of the key and the version otherwise, by key_column and version_column.",
                )

    def batch_of(self, rows: Sequence[TableRow]) -> Any:
        """Return a `pyarrow.RecordBatch` of some rows.

        Raises:
            SerializationError: If values should be text and are none.
            InvalidRequestError: If the rows have more than `MAX_COLUMNS` different columns.
        """
        names = self._columns
        if names is None:
            found = {column.name for row in rows for column in row.columns}
            if len(found) > MAX_COLUMNS:
                raise InvalidRequestError(
                    f"the rows have {len(found)} different columns, over the limit of {MAX_COLUMNS}",
                    action="Name those to read by columns, or use scan.",
                )
            names = sorted(map(text_of, found))
            self._check(names)
        values: dict[bytes, list[bytes | None]] = {name_of(name): [None] * len(rows) for name in names}
        for place, row in enumerate(rows):
            for column in row.columns:
                values[column.name][place] = column.value
        arrays = [pa.array([row.key for row in rows], pa.binary())]
        if self._version_column is not None:
            versions = np.fromiter((row.version for row in rows), np.int64, len(rows))
            arrays.append(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(versions)]))
        arrays += [self._typed(name, column, rows) for name, column in zip(names, values.values(), strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema(names))

    def collect(self, batch: Any) -> None:
        """Keep a batch for `collected`."""
        self._tables.append(pa.Table.from_batches([batch]))

    def collected(self) -> Any:
        """Return a `pyarrow.Table` of the batches, with the columns of all of them in the order of their names."""
        empty = self._schema(self._columns or []).empty_table()
        table = pa.concat_tables([empty, *self._tables], promote_options="default")
        own = empty.column_names
        return table.select([*own, *sorted(set(table.column_names) - set(own))])

    def _schema(self, names: Sequence[str]) -> Any:
        version = [] if self._version_column is None else [pa.field(self._version_column, pa.int64())]
        values = [pa.field(name, self._type) for name in names]
        return pa.schema([pa.field(self._key_column, pa.binary()), *version, *values])

    def _typed(self, name: str, values: list[bytes | None], rows: Sequence[TableRow]) -> Any:
        array = pa.array(values, pa.binary())
        if self._type == pa.binary():
            return array
        try:
            return array.cast(self._type)
        except pa.ArrowInvalid:
            place = next(place for place, value in enumerate(values) if value is not None and not _is_text(value))
            raise SerializationError(
                f"column {name!r} of row {rows[place].key!r} is no text", action="Set value_deserializer to 'bytes'."
            ) from None


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
