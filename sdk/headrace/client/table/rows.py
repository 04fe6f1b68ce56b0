"""Rows of a table as the application sees them, and their conversion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.client.base.arguments import listed
from headrace.client.base.config import TableConfig
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.client.base.serializers import resolve_deserializer, resolve_serializer, serialize
from headrace.display.visible_text import to_line
from headrace.v1 import tables_pb2
from headrace.wire.errors import HeadraceError, Outcome
from headrace.wire.table_keys import ABSENT


class VersionConflictError(HeadraceError):
    """A write expected another version of the row than it has. Nothing was written; read the row and decide again.

    Attributes:
        version: version of the row, -1 if it does not exist.
    """

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message, outcome=Outcome.NOT_APPLIED, action="Read the row and decide again.")
        self.version = version


class RowColumn(NamedTuple):
    """Column of a row."""

    value: Any
    version: int
    """Offset of its record."""
    timestamp_ms: int
    """Time of its write, in ms since 1970."""


class Row(Mapping[str, Any]):
    """Row of a table: a mapping from the names of its columns to their values, in the order of the names.

    Attributes:
        key: key of the row, as bytes.
        version: version of the whole row, for `if_version`; also if only some of its columns were read.
        columns: columns with their versions and times.
        next_column: name of the first column that was left out by a limit; `None` if none was.
        as_of_offset: it has every write to its partition that was committed below this offset. As the `min_offset` of
            later reads of the row it keeps these from going back, whichever replica answers them.
    """

    __slots__ = ("as_of_offset", "columns", "key", "next_column", "version")

    def __init__(
        self,
        key: bytes,
        version: int,
        columns: Mapping[str, RowColumn],
        next_column: str | None = None,
        as_of_offset: int = 0,
    ) -> None:
        self.key = key
        self.version = version
        self.columns = columns
        self.next_column = next_column
        self.as_of_offset = as_of_offset

    def __getitem__(self, name: str) -> Any:
        return self.columns[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}={column.value!r}" for name, column in self.columns.items())
        return f"Row({self.key!r}, version={self.version}{', ' if columns else ''}{columns})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from headrace.display.html_tables import count_text, html_table, time_of

        lines = [(name, column.value, time_of(column.timestamp_ms)) for name, column in self.columns.items()]
        caption = f"{count_text(len(lines), 'column')} of row {to_line(self.key)}, version {self.version}"
        return html_table(("column", "value", "written"), lines, caption)


class TableCount(NamedTuple):
    """Size of a table."""

    rows: int
    columns: int


class TablePartition(NamedTuple):
    """Partition of a table, as its leader has it."""

    partition: int
    rows: int
    columns: int
    state_bytes: int
    """Approximate memory of the keys in the broker."""
    as_of_offset: int
    """The table has what is committed below this offset."""
    log_end_offset: int


class RowFormat:
    """Conversion of keys, names and values of one client."""

    def __init__(self, config: TableConfig) -> None:
        """Raise ConfigError for an unknown serializer."""
        self._serializer = resolve_serializer(config.value_serializer, "value_serializer")
        self._deserializer = resolve_deserializer(config.value_deserializer, "value_deserializer")

    def row(self, said: tables_pb2.TableRow, as_of_offset: int) -> Row | None:
        """Return a row of a response as of this offset; `None` if it does not exist.

        Raises:
            SerializationError: If a value cannot be deserialized.
        """
        if said.version == ABSENT:
            return None
        deserialize, columns = self._deserializer, {}
        for column in said.columns:
            value: Any = column.value
            if deserialize is not None:
                try:
                    value = deserialize(value)
                except Exception as error:
                    raise SerializationError(
                        f"column {text_of(column.name)!r} of row {said.key!r} cannot be deserialized",
                        action="Set value_deserializer to what it was written with, or to 'bytes'.",
                        offset=column.version,
                    ) from error
            columns[text_of(column.name)] = RowColumn(value, column.version, column.timestamp_ms)
        next_column = text_of(said.next_column) if said.HasField("next_column") else None
        return Row(said.key, said.version, columns, next_column, as_of_offset)

    def write_columns(self, columns: Mapping[str, Any]) -> list[tables_pb2.WriteColumn]:
        """Return the columns of a write; a value of `None` deletes its column.

        Raises:
            SerializationError: If a value cannot be serialized.
        """
        return [
            tables_pb2.WriteColumn(name=name_of(name), value=serialize(self._serializer, value, "value"))
            for name, value in columns.items()
        ]


def key_of(key: str | bytes) -> bytes:
    """Return a row's key as bytes: text in UTF-8.

    Raises:
        ConfigError: If it is neither bytes nor text that has a form in UTF-8.
    """
    if isinstance(key, str):
        return _encoded(key, "row's key", "strict")
    if isinstance(key, bytes):
        return key
    raise ConfigError(f"a row's key is {type(key).__name__}, neither str nor bytes")


def name_of(name: str) -> bytes:
    """Return a column's name as bytes: text in UTF-8, with the bytes that are none as `text_of` returns them.

    Raises:
        ConfigError: If it is no text, or has no form in UTF-8.
    """
    if not isinstance(name, str):
        raise ConfigError(f"a column's name is {type(name).__name__}, not str")
    return _encoded(name, "column's name", "surrogateescape")


def _encoded(text: str, what: str, errors: str) -> bytes:
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as error:  # Half of a pair, as JSON may have, or a byte of a file's name.
        raise ConfigError(
            f"a {what} is {text!r}: {error.reason}", action="Correct it, or encode it yourself."
        ) from None


def text_of(name: bytes) -> str:
    """Return a column's name as text; bytes that are no UTF-8 become lone surrogates (PEP 383)."""
    return name.decode("utf-8", "surrogateescape")


def column_slice(
    columns: Sequence[str] | None, start: str | None, end: str | None, limit: int | None
) -> tables_pb2.ColumnSlice:
    """Return the columns that a read names, or a range of them.

    Raises:
        ConfigError: If both are given, `columns` is one text, or the limit is below 1.
    """
    names = None if columns is None else listed("columns", columns)
    if names is not None and (start is not None or end is not None):
        raise ConfigError("columns excludes start and end")
    if names is not None and not names:
        raise ConfigError("columns is empty", action="Leave it out to read all.")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit} is below 1")
    wanted = tables_pb2.ColumnSlice(names=map(name_of, names or ()), start=name_of(start or ""), limit=limit or 0)
    if end is not None:
        wanted.end = name_of(end)
    return wanted
