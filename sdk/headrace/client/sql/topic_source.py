"""Topic as a table of a query: a stream of Arrow batches, of the columns and within the bounds that the query needs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from headrace.client.admin.admin import Admin
from headrace.client.base.arrow_tables import (
    SCHEMA,
    batch_of,
    cast_batch,
    typed_batch_of,
    typed_columns_of,
    typed_schema,
)
from headrace.client.base.config import ReaderConfig, build, shared_settings
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.base.records import METADATA_COLUMNS
from headrace.client.consumer.reader import Reader
from headrace.client.net.directory import reading_mode
from headrace.client.sql.query_parts import Bound, QueryParts, value_of
from headrace.embedded.server import acquire, release
from headrace.wire.arrow_constants import zeros
from headrace.wire.errors import HeadraceError, InvalidRequestError, InvalidTopicNameError, UnknownTopicError
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

_OF_VALUES = ", try(decode(value)) as text, try(cast(try(decode(value)) as json)) as json"
"""Columns that a topic of bytes has besides those of `Reader.to_arrow`: its value as text, and as JSON, or null."""
_NEEDS_VALUES = {"value", "text", "json"}
COUNTED_ROWS = 1 << 17
"""Rows of one batch of a stream of which no column is needed: these share their memory."""
_UNTYPED = SCHEMA.names
_WITHOUT_ORDER = {"float", "double"}
"""Types of which SQL compares NaN in another way than Arrow: ranges of theirs are left to DuckDB."""
_COARSE_UNITS = {"s", "ms"}
"""Units of times that DuckDB converts to microseconds."""
_MICROSECOND = timedelta(microseconds=1)
"""What may be missing of a bound of a column in nanoseconds: DuckDB compares, or at least returns, microseconds."""
Range = tuple[Any, Any]
"""Lowest and highest value of a column, included; `None` for no end."""


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
        self.failure: HeadraceError | None = None
        """Error of reading the topic, of which DuckDB keeps only a text."""
        self._offset, self._timestamp = ("_offset", "_timestamp") if columns is not None else ("offset", "timestamp")
        own = _UNTYPED if columns is None else [*(column.name for column in columns.current), *METADATA_COLUMNS]
        mentioned = parts.columns_of(topic)
        if mentioned is not None:
            self._names = _mentioned(own, mentioned)
        elif columns is not None and (hidden := _mentioned(METADATA_COLUMNS, parts.names)):
            self._names = [*(column.name for column in columns.current), *hidden]
        self._where = _union([self._ranges(connection, bounds) for bounds in parts.bounds_of(topic)])
        offsets, times = (self._where.pop(name, (None, None)) for name in (self._offset, self._timestamp))
        if offsets[1] is not None:
            self._settings.setdefault("end", max(0, offsets[1] + 1))
        if offsets[0] is not None:
            self._settings.setdefault("start", max(0, offsets[0]))
        elif times[0] is not None:
            self._settings.setdefault("start", times[0])

    def _ranges(self, connection: Any, bounds: Iterable[Bound]) -> dict[str, Range]:
        """Return the range of each column that fulfils the bounds of one use."""
        ranges: dict[str, Range] = {}
        for bound in bounds:
            value = self._value(connection, bound)
            if value is None:
                continue  # No row compares with null, as DuckDB finds.
            low, high = ranges.get(bound.column, (None, None))
            if bound.end == "low":
                low = value if low is None else max(low, value)
            else:
                high = value if high is None else min(high, value)
            ranges[bound.column] = low, high
        return ranges

    def _value(self, connection: Any, bound: Bound) -> Any:
        """Return the value of a bound; `None` if it does not narrow what is read."""
        type_name, is_cut = "", False
        if bound.column == self._offset:
            type_name = "BIGINT"
        elif bound.column == self._timestamp:
            # Times need not ascend, so that only a lower bound narrows.
            type_name = "TIMESTAMP WITH TIME ZONE" if bound.end == "low" else ""
        elif self._columns is not None and not _are_renamed(self._columns):
            column = next((each for each in self._columns.current if each.name == bound.column), None)
            if column is not None and column.type.name not in _WITHOUT_ORDER and not column.type.children:
                type_name = _type_name(connection, self._columns, bound.column)
                is_cut = column.type.unit == "ns"
        if not type_name:
            return None
        try:
            value = value_of(connection, bound.expression, type_name)
            if is_cut and value is not None:  # Of a time of day, which has no sum, nothing is known then.
                value += -_MICROSECOND if bound.end == "low" else _MICROSECOND
        except Exception:
            return None
        return value if bound.column != self._timestamp or isinstance(value, datetime) else None

    def view(self, source: str) -> str:
        """Return the query of the topic's columns over the stream, which has this name."""
        has_values = self._columns is None and (self._names is None or "value" in self._names)
        return f"select *{_OF_VALUES if has_values else ''} from {source}"

    def show_all_columns(self) -> Any:
        """Let `view` have all columns, also those that the query does not name; return a table of them without rows."""
        self._names = None
        if self._columns is None:
            return _untyped_schema(None).empty_table()
        return typed_schema([*self._columns.current, *METADATA_COLUMNS]).empty_table()

    def reader(self) -> Any:
        """Return a `pyarrow.RecordBatchReader`, which reads the topic while it is read."""
        if self._names == []:
            schema = pa.schema([pa.field("headrace_row", pa.int32())])
            return self._stream(schema, self._rows(schema))
        if self._columns is None:
            schema = _untyped_schema(self._names)
            return self._stream(schema, self._untyped(schema))
        schema = typed_schema(typed_columns_of(self._columns.current, self._names))
        wanted = pa.schema([field.with_type(_type_of_sql(field.type)) for field in schema])
        return self._stream(wanted, self._typed(schema, wanted))

    def _stream(self, schema: Any, batches: Iterator[Any]) -> Any:
        def noting() -> Iterator[Any]:
            try:
                yield from batches
            except HeadraceError as error:
                self.failure = error
                raise

        return pa.RecordBatchReader.from_batches(schema, noting())

    def _rows(self, schema: Any) -> Iterator[Any]:
        """Yield as many rows as there are records, with a column that no query names."""
        # Of typed records, servers send no values then.
        columns = None if self._columns is None else ["_partition"]
        with Reader(self._topic, columns=columns, **self._settings) as reader:
            if _has_every_offset(self._topic, self._settings):
                ends = reader.end_offsets()
                count = sum(max(0, ends[each] - start) for each, start in reader.start_offsets().items())
            else:
                count = sum(map(len, reader.batches()))
        for start in range(0, count, COUNTED_ROWS):
            rows = min(COUNTED_ROWS, count - start)
            array = pa.Array.from_buffers(pa.int32(), rows, [None, zeros(4 * rows)])
            yield pa.RecordBatch.from_arrays([array], schema=schema)

    def _untyped(self, schema: Any) -> Iterator[Any]:
        with Reader(self._topic, **self._settings) as reader:
            for batch in reader.batches():
                for decoded in batch.decoded_batches:
                    yield batch_of(decoded).select(schema.names).cast(schema)

    def _typed(self, schema: Any, wanted: Any) -> Iterator[Any]:
        assert self._columns is not None, "the topic is typed"
        columns = typed_columns_of(self._columns.current, self._names)
        with Reader(self._topic, columns=self._names, where=self._where, **self._settings) as reader:
            for batch in reader.batches():
                for decoded in batch.decoded_batches:
                    batch = typed_batch_of(decoded, columns, schema)
                    yield cast_batch(decoded, batch, wanted, pa.Array.cast, _no_time_of_sql)


def _type_of_sql(kind: Any) -> Any:
    """Return the type of which DuckDB has all values: moments and durations have microseconds in 64 bits there."""
    if pa.types.is_timestamp(kind) and kind.tz and kind.unit in _COARSE_UNITS:
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit in _COARSE_UNITS:
        return pa.duration("us")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_of_sql(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_type_of_sql(kind.key_type), kind.item_field.with_type(_type_of_sql(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_of_sql(field.type)) for field in kind])
    return kind


def _no_time_of_sql(_array: Any, field: Any, place: str, error: Exception) -> InvalidRequestError:
    return InvalidRequestError(
        f"column {field.name} of {place} has a time that SQL has not: {error}",
        action=f"Bound {field.name} in WHERE, name other columns, or read it with Reader.to_arrow.",
    )


def _untyped_schema(names: Sequence[str] | None) -> Any:
    schema = SCHEMA.set(0, pa.field("topic", pa.string()))
    return schema if names is None else pa.schema([schema.field(name) for name in names])


def _mentioned(own: Iterable[str], mentioned: frozenset[str]) -> list[str]:
    """Return the columns to read: those that are mentioned, and those that they are computed of."""
    lowered = {name.lower() for name in mentioned}
    if not _NEEDS_VALUES.isdisjoint(lowered):
        lowered.add("value")
    return [name for name in own if name.lower() in lowered]


def _are_renamed(columns: TopicColumns) -> bool:
    """Return whether DuckDB gives columns other names: of several that differ in case alone, all but the first."""
    names = [column.name.lower() for column in columns.current]
    return len(set(names)) < len(names)


def _union(uses: Sequence[Mapping[str, Range]]) -> dict[str, Range]:
    """Return the range of each column outside which no use needs a row."""
    found: dict[str, Range] = {}
    for name in uses[0]:
        ends = [each.get(name, (None, None)) for each in uses]
        lows, highs = [low for low, _ in ends], [high for _, high in ends]
        low = None if any(each is None for each in lows) else min(lows)
        high = None if any(each is None for each in highs) else max(highs)
        if low is not None or high is not None:
            found[name] = low, high
    return found


def _has_every_offset(topic: str, settings: Mapping[str, Any]) -> bool:
    """Return whether each offset of a directory's topic is a record, so that its offsets count them.

    Of a cluster it is not known: its replicas do not say whether they were compacted.
    """
    config = build(ReaderConfig, {name: value for name, value in settings.items() if name not in {"start", "end"}})
    if not config.directory:
        return False
    server = acquire(config.directory, reading_mode(config))
    try:
        return server.has_every_offset(topic)
    finally:
        with DeferredKeyboardInterrupt():
            release(server)


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


def columns_of_topics(tables: Iterable[str], settings: Mapping[str, Any]) -> dict[str, TopicColumns | None]:
    """Return the columns of each topic among the tables of a query, `None` of one that is not typed.

    Tables that are no topics are left out: DuckDB has tables of its own, and its error about others names similar ones.
    """
    found: dict[str, TopicColumns | None] = {}
    with Admin(**shared_settings(settings)) as admin:
        for table in tables:
            try:
                text = admin.describe_topic(table).columns
            except (UnknownTopicError, InvalidTopicNameError):
                continue
            found[table] = parse_columns(text) if text else None
    return found
