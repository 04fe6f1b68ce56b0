"""Topic as a table of a query: a stream of Arrow batches, of the columns and within the bounds that the query needs."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace.client.base.arrow_tables import SCHEMA, batch_of, typed_batch_of, typed_columns_of, typed_schema
from headrace.client.base.records import METADATA_COLUMNS
from headrace.client.consumer.reader import Reader
from headrace.client.sql.query_parts import Bound, QueryParts, value_of
from headrace.wire.errors import HeadraceError
from headrace.wire.typed.topic_columns import TopicColumns

UNTYPED_VIEW = "select *, try(decode(value)) as text, try(cast(try(decode(value)) as json)) as json from {source}"
"""Columns that a topic of bytes has besides those of `Reader.to_arrow`: its value as text, and as JSON, or null."""
_WITHOUT_ORDER = {"float", "double"}
"""Types of which SQL compares NaN in another way than Arrow: ranges of theirs are left to DuckDB."""


class TopicSource:
    """One topic in one query. For one thread."""

    def __init__(
        self, connection: Any, topic: str, columns: TopicColumns | None, parts: QueryParts, settings: Mapping[str, Any]
    ) -> None:
        """`columns` are those of a typed topic. `settings` are the reader's, with `start` and `end` if given."""
        self._topic = topic
        self._columns = columns
        self._settings = dict(settings)
        self._names: list[str] | None = None
        self._where: dict[str, tuple[Any, Any]] = {}
        offset, timestamp = ("_offset", "_timestamp") if columns is not None else ("offset", "timestamp")
        if columns is not None:
            self._names = _names(columns, parts.columns)
        for bound in parts.bounds:
            if bound.column in {offset, timestamp}:
                self._narrow(connection, bound, is_offset=bound.column == offset)
            elif columns is not None:
                self._add_range(connection, bound, columns)

    def _narrow(self, connection: Any, bound: Bound, *, is_offset: bool) -> None:
        """Begin or end the reading at an offset, or begin it at a time."""
        try:
            value = value_of(connection, bound.expression, "BIGINT" if is_offset else "TIMESTAMP WITH TIME ZONE")
        except Exception:
            return
        if is_offset and bound.end == "high" and isinstance(value, int) and "end" not in self._settings:
            self._settings["end"] = max(0, value + 1)
        elif (
            bound.end == "low"
            and "start" not in self._settings
            and (isinstance(value, datetime) or (is_offset and isinstance(value, int)))
        ):
            self._settings["start"] = max(0, value) if isinstance(value, int) else value

    def _add_range(self, connection: Any, bound: Bound, columns: TopicColumns) -> None:
        column = next((each for each in columns.current if each.name == bound.column), None)
        if column is None or column.type.name in _WITHOUT_ORDER or column.type.children:
            return
        try:
            value = value_of(connection, bound.expression, _type_name(connection, columns, bound.column))
        except Exception:
            return
        low, high = self._where.get(column.name, (None, None))
        if bound.end == "low":
            low = value if low is None else max(low, value)
        else:
            high = value if high is None else min(high, value)
        self._where[column.name] = low, high

    def reader(self) -> Any:
        """Return a `pyarrow.RecordBatchReader`, which reads the topic while it is read."""
        if self._columns is None:
            schema = SCHEMA.set(0, pa.field("topic", pa.string()))
            return pa.RecordBatchReader.from_batches(schema, self._untyped(schema))
        schema = typed_schema(typed_columns_of(self._columns.current, self._names))
        return pa.RecordBatchReader.from_batches(schema, self._typed(schema))

    def _untyped(self, schema: Any) -> Iterator[Any]:
        with Reader(self._topic, **self._settings) as reader:
            for batch in reader.batches():
                for decoded in batch.decoded_batches:
                    yield batch_of(decoded).cast(schema)

    def _typed(self, schema: Any) -> Iterator[Any]:
        assert self._columns is not None, "the topic is typed"
        columns = typed_columns_of(self._columns.current, self._names)
        with Reader(self._topic, columns=self._names, where=self._where, **self._settings) as reader:
            for batch in reader.batches():
                for decoded in batch.decoded_batches:
                    yield typed_batch_of(decoded, columns, schema)


def _names(columns: TopicColumns, mentioned: frozenset[str] | None) -> list[str]:
    """Return the columns to read: those that are mentioned; to count rows, one for which brokers send no values."""
    own = [column.name for column in columns.current]
    if mentioned is None:
        return own
    lowered = {name.lower() for name in mentioned}
    found = [name for name in own if name.lower() in lowered]
    found += [name for name in METADATA_COLUMNS if name in lowered]
    return found or ["_partition"]


def _type_name(connection: Any, columns: TopicColumns, name: str) -> str:
    """Return DuckDB's name of a column's type."""
    column = columns.by_name(name)
    empty = typed_schema([column]).empty_table()
    connection.register("headrace_type", empty)
    try:
        ((found,),) = connection.execute("select column_type from (describe headrace_type)").fetchall()
    finally:
        connection.unregister("headrace_type")
    return str(found)


def is_unknown(error: HeadraceError) -> bool:
    """Return whether a table of a query is no topic."""
    return error.code.name in {"UNKNOWN_TOPIC", "INVALID_TOPIC_NAME"}
