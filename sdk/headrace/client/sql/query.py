"""`headrace.sql`: one query over topics, its result as rows, Arrow, pandas or Polars.

result = headrace.sql("select page, count(*) from clicks where ts > now() - interval 1 hour group by 1")
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Unpack

from headrace.client.base.config import ReaderConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.settings_types import ReaderSettings
from headrace.client.consumer.reader_core import OffsetPoint
from headrace.client.sql.temporary import QueryDirectory
from headrace.wire.errors import HeadraceError, InvalidRequestError, UnknownTopicError

if TYPE_CHECKING:
    from headrace.client.sql.topic_source import TopicSource

_NO_TABLE = re.compile(r'Table with name "?(.+?)"? does not exist')
_INTERRUPTED = "Query interrupted"


class SqlResult:
    """Result of a query, computed while it is read. One thread at a time; close it, or use it in `with`.

    It is read once, by one of the methods.
    """

    def __init__(self, query: str, start: Any, end: Any, memory_limit: str, settings: Mapping[str, Any]) -> None:
        duckdb = _duckdb()
        self._error: type[Exception] = duckdb.Error
        self._topics: list[TopicSource] = []
        self._is_read = False
        # Of the result, from the first look at it, and batches of it that were only looked at.
        self._reader: Any = None
        self._ahead: deque[Any] = deque()
        self._directory = QueryDirectory()
        config = {"temp_directory": self._directory.path, **({"memory_limit": memory_limit} if memory_limit else {})}
        try:
            with _translated(self._error, self._topics):
                self._connection = duckdb.connect(config=config)
                if not memory_limit:
                    _leave_memory(self._connection)
                # Which DuckDB prints to the standard output, where the result may be, also if that is no terminal.
                self._connection.execute("set enable_progress_bar = false")
                self._connection.execute("set timezone = 'UTC'")
                # Of which a table that is no topic would be a variable of this module.
                self._connection.execute("set python_enable_replacements = false")
                self._relation = self._prepared(query, start, end, settings)
        except BaseException:
            self.close()
            raise

    def _prepared(self, query: str, start: Any, end: Any, settings: Mapping[str, Any]) -> Any:
        from headrace.client.sql.query_parts import query_parts
        from headrace.client.sql.topic_source import TopicSource, columns_of_topics

        parts = query_parts(self._connection, query)
        bounds = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
        self._sources: list[Any] = []
        views = {}
        topics = columns_of_topics(parts.tables, settings)
        for number, (topic, columns) in enumerate(topics.items()):
            source = TopicSource(self._connection, topic, columns, parts, {**settings, **bounds})
            self._topics.append(source)
            reader, name, quoted = source.reader(), f"headrace_{number}", '"' + topic.replace('"', '""') + '"'
            self._sources.append(reader)
            self._connection.register(name, reader)
            if parts.tables[topic] > 1:
                # The stream can be read once. DuckDB keeps the rows in a file: it moves no temporary table to the disk
                # before it is complete.
                kept = f"{self._directory.path}/kept".replace("'", "''")
                self._connection.execute(f"attach if not exists '{kept}' as headrace_kept")
                self._connection.execute(f"create table headrace_kept.{name} as from {name}")
                name = f"headrace_kept.{name}"
            self._connection.execute(f"create temp view {quoted} as {source.view(name)}")
            views[quoted] = source
        try:
            return self._connection.sql(query)
        except self._error:
            for number, (quoted, source) in enumerate(views.items()):  # The error then names similar columns.
                name = f"headrace_all_{number}"
                self._connection.register(name, source.show_all_columns())
                self._connection.execute(f"create or replace temp view {quoted} as {source.view(name)}")
            self._connection.sql(query)
            raise

    @property
    def columns(self) -> list[str]:
        """Names of the columns, each once: one that the query gives again gets a number, as `x_1`."""
        names, found = self._relation.columns, dict[str, None]()
        for name in names:
            if name in found:
                numbered = (f"{name}_{number}" for number in count(1))
                name = next(each for each in numbered if each not in found and each not in names)
            found[name] = None
        return list(found)

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table`."""
        return self.arrow_batches().read_all()

    def arrow_batches(self) -> Any:
        """Return a `pyarrow.RecordBatchReader`, which computes the result while it is read."""
        if self._is_read:
            raise ConfigError("the result was read", action="Run the query again, or keep what to_arrow returns.")
        self._is_read = True
        self._look_ahead(0)
        import pyarrow as pa

        schema = pa.schema(
            [field.with_name(name) for name, field in zip(self.columns, self._reader.schema, strict=True)]
        )
        batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in self._batches())
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _batches(self) -> Iterator[Any]:
        while self._ahead:
            yield self._ahead.popleft()
        while (batch := self._next_batch()) is not None:
            yield batch

    def _next_batch(self) -> Any:
        """Compute the next batch; `None` at the end."""
        try:
            with _translated(self._error, self._topics):
                return self._reader.read_next_batch()
        except StopIteration:
            return None

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`."""
        from headrace.client.base.arrow_objects import frame_of

        return frame_of(self.to_arrow())

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as tuples; dates and times outside the years 1 to 9999 are whole numbers."""
        from headrace.client.base.arrow_objects import rows_of

        for batch in self.arrow_batches():
            yield from rows_of(batch)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self.rows()

    def __repr__(self) -> str:
        return f"SqlResult({', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first rows, which the methods return as well afterwards."""
        from headrace.client.base.arrow_objects import rows_of
        from headrace.display.html_tables import MAX_ROWS, count_text, html_table

        if self._is_read:
            return html_table(self.columns, (), "The result was read.")
        rows: list[tuple[Any, ...]] = []
        for batch in self._look_ahead(MAX_ROWS + 1):
            rows += rows_of(batch.slice(0, MAX_ROWS + 1 - len(rows)))
        more = f"The first {MAX_ROWS:,} rows; there are more."
        return html_table(self.columns, rows, more if len(rows) > MAX_ROWS else count_text(len(rows), "row"))

    def _look_ahead(self, rows: int) -> list[Any]:
        """Return the first batches, with at least `rows` or all there are; the result keeps them."""
        if self._reader is None:
            with _translated(self._error, self._topics):
                self._reader = self._relation.to_arrow_reader()
        while sum(batch.num_rows for batch in self._ahead) < rows:
            batch = self._next_batch()
            if batch is None:
                break
            self._ahead.append(batch)
        return list(self._ahead)

    def close(self) -> None:
        """End reading, and delete what the query has spilled. Idempotent."""
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()
        self._sources = []
        self._directory.close()

    def __enter__(self) -> "SqlResult":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_directory"):
            self.close()


class _translated:
    """Raises DuckDB's errors as those of headrace; those of reading topics, of which it has a text, unchanged.

    During a query Ctrl-C is a RuntimeError of DuckDB, which replaces the KeyboardInterrupt.
    """

    def __init__(self, error: type[Exception], topics: Sequence["TopicSource"]) -> None:
        self._error = error
        self._topics = topics

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self._error):
            for topic in self._topics:
                if topic.failure is not None:
                    raise topic.failure from None
            raise _error_of(error) from error
        if type(error) is RuntimeError and str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from error


def _error_of(error: Exception) -> HeadraceError:
    """Return the error for one of DuckDB, which takes a topic that does not exist for one of its own tables."""
    missing = _NO_TABLE.search(str(error))
    if missing is None:
        return InvalidRequestError(f"the query: {error}", action="Change the query.")
    return UnknownTopicError(
        f"the query: there is no topic {missing[1]!r}, or you may not see it",
        action="Check its name with `headrace topic list`; a name with dots or hyphens is in double quotes.",
    )


def sql(
    query: str,
    *,
    start: OffsetPoint | Mapping[int, OffsetPoint] | None = None,
    end: OffsetPoint | Mapping[int, OffsetPoint] | None = None,
    memory_limit: str = "",
    **settings: Unpack[ReaderSettings],
) -> SqlResult:
    """Run one SELECT statement over topics, in this process, by DuckDB.

    A table is a topic by its name, in double quotes if it has dots or hyphens. A typed topic has its columns, and those
    of headrace that the query names: `_offset`, `_partition`, `_timestamp`, `_key`, `_headers`, `_topic`. Another topic
    has `topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`, and `text` and `json`, which are the
    value as text and as JSON, or null. Brokers send the columns that the query names, and skip what its WHERE clause
    excludes by comparisons of a column with a constant; bounds of the offset, and lower ones of the timestamp, narrow
    what is read.

    Args:
        query: the statement.
        start: where to start in each topic, as for `Reader`; by default the query's own bounds.
        end: where to end; by default the records visible now.
        memory_limit: of DuckDB, such as `2GB`; more is spilled to a temporary directory. Empty: half of the memory.
        settings: see `ReaderConfig`.

    Raises:
        ImportError: If DuckDB is not installed; install `headrace[sql]`.
        UnknownTopicError: If a table is no topic, and nothing that DuckDB knows.
        InvalidRequestError: If DuckDB cannot run the query; the message has its reason.
        NoBrokersAvailableError: If no address responded.
    """
    build(ReaderConfig, settings)
    return SqlResult(query, start, end, memory_limit, settings)


def topics_of(query: str) -> list[str]:
    """Return the tables of a query, which are topics.

    Raises:
        InvalidRequestError: If it is not one SELECT statement.
    """
    from headrace.client.sql.query_parts import query_parts

    with _duckdb().connect() as connection:
        return list(query_parts(connection, query).tables)


def _leave_memory(connection: Any) -> None:
    """Set DuckDB's limit to half of the memory, or of what the control group allows, from 80 %, its default.

    The rest is for this process, for what readers fetch ahead and for what DuckDB does not count.
    """
    ((limit,),) = connection.execute("select current_setting('memory_limit')").fetchall()
    number, unit = limit.split()
    connection.execute(f"set memory_limit = '{float(number) * 5 / 8:.1f} {unit}'")


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"SQL needs {error.name}", action="Run `pip install 'headrace[sql]'`.") from error
    return duckdb
