"""`headrace.sql`: one query over topics, its result as rows, Arrow, pandas or Polars.

result = headrace.sql("select page, count(*) from clicks where ts > now() - interval 1 hour group by 1")
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from headrace.client.base.config import ReaderConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.settings_types import ReaderSettings
from headrace.client.consumer.reader import Reader
from headrace.client.consumer.reader_core import OffsetPoint
from headrace.wire.errors import HeadraceError, InvalidRequestError
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns


class SqlResult:
    """Result of a query, computed while it is read. One thread at a time; close it, or use it in `with`.

    It is read once, by one of the methods.
    """

    def __init__(self, query: str, start: Any, end: Any, memory_limit: str, settings: Mapping[str, Any]) -> None:
        duckdb = _duckdb()
        self._error: type[Exception] = duckdb.Error
        self._is_read = False
        self._directory = tempfile.mkdtemp(prefix="headrace-sql-")
        config = {"temp_directory": self._directory, **({"memory_limit": memory_limit} if memory_limit else {})}
        try:
            self._connection = duckdb.connect(config=config)
            self._connection.execute("set timezone = 'UTC'")
            self._relation = self._prepared(query, start, end, settings)
        except duckdb.Error as error:
            self.close()
            raise InvalidRequestError(f"the query: {error}", action="Change the query.") from error
        except BaseException:
            self.close()
            raise

    def _prepared(self, query: str, start: Any, end: Any, settings: Mapping[str, Any]) -> Any:
        from headrace.client.sql.query_parts import query_parts
        from headrace.client.sql.topic_source import UNTYPED_VIEW, TopicSource, is_unknown

        parts = query_parts(self._connection, query)
        bounds = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
        self._sources: list[Any] = []
        for number, (topic, times) in enumerate(parts.tables.items()):
            try:
                columns = _columns_of(topic, settings)
            except HeadraceError as error:
                if not is_unknown(error):
                    raise
                continue  # DuckDB's own error names similar tables; it has tables of its own, too.
            source = TopicSource(self._connection, topic, columns, parts, {**settings, **bounds})
            reader, name, quoted = source.reader(), f"headrace_{number}", '"' + topic.replace('"', '""') + '"'
            self._sources.append(reader)
            self._connection.register(name, reader)
            if times > 1:  # The stream can be read once: DuckDB keeps the rows, on disk if they are many.
                self._connection.execute(f"create temp table {name}_rows as from {name}")
                name = f"{name}_rows"
            view = f"from {name}" if columns is not None else UNTYPED_VIEW.format(source=name)
            self._connection.execute(f"create temp view {quoted} as {view}")
        return self._connection.sql(query)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._relation.columns)

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table`."""
        return self.arrow_batches().read_all()

    def arrow_batches(self) -> Any:
        """Return a `pyarrow.RecordBatchReader`, which computes the result while it is read."""
        if self._is_read:
            raise ConfigError("the result was read", action="Run the query again, or keep what to_arrow returns.")
        self._is_read = True
        with _translated(self._error):
            found = self._relation.to_arrow_reader()
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(found.schema, self._batches(found))

    def _batches(self, found: Any) -> Iterator[Any]:
        while True:
            try:
                with _translated(self._error):
                    batch = found.read_next_batch()
            except StopIteration:
                return
            yield batch

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as tuples."""
        for batch in self.arrow_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self.rows()

    def __repr__(self) -> str:
        return f"SqlResult({', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        """Return the result as a notebook shows it."""
        html: str = self.to_pandas()._repr_html_()
        return html

    def close(self) -> None:
        """End reading, and delete what the query has spilled. Idempotent."""
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()
        self._sources = []
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "SqlResult":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_directory"):
            self.close()


class _translated:
    """Raises DuckDB's errors as `InvalidRequestError`; those of reading topics unchanged."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self._error):
            raise InvalidRequestError(f"the query: {error}", action="Change the query.") from error


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
        memory_limit: of DuckDB, such as `2GB`; more is spilled to a temporary directory. Empty: most of the memory.
        settings: see `ReaderConfig`.

    Raises:
        ImportError: If DuckDB is not installed; install `headrace[sql]`.
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


def _columns_of(topic: str, settings: Mapping[str, Any]) -> TopicColumns | None:
    """Return the columns of a typed topic; `None` of another."""
    with Reader(topic, start="current", **settings) as reader:
        text = reader.topic_columns
    return parse_columns(text) if text else None


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"SQL needs {error.name}", action="Run `pip install 'headrace[sql]'`.") from error
    return duckdb
