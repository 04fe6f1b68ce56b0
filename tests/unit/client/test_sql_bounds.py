"""Ranges that a query's bounds leave of a typed topic: DuckDB finds the same rows in them as in the whole topic."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from headrace.client.fetch.selections import filtered, named_selection
from headrace.client.sql.query_parts import query_parts
from headrace.client.sql.topic_source import TopicSource
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.arrow_columns import arrow_type
from headrace.wire.typed.topic_columns import parse_columns

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
MOMENTS = [-1_500_500, -1_000, -500, 0, 500, 1_500_500]
"""Nanoseconds since 1970."""


class Topic:
    """A typed topic of one batch."""

    def __init__(self, text: str, arrays: list[pa.Array]) -> None:
        self.columns = parse_columns(text)
        self.table = pa.table(arrays, [column.name for column in self.columns.current])
        blocks = [block_of_array(array, each.type) for array, each in zip(arrays, self.columns.current, strict=True)]
        rows = RowBlocks(self.columns.batch_text, blocks, len(arrays[0]))
        self.batch = decode_batch(b"".join(column_parts(rows, base_timestamp_ms=0)), max_payload_bytes=1 << 20)

    def read(self, connection: duckdb.DuckDBPyConnection, condition: str) -> pa.Table:
        """Return the rows that a reader returns for a query."""
        parts = query_parts(connection, f"select 1 from t where {condition}")
        where = TopicSource(connection, "t", self.columns, parts, {})._where
        selection = named_selection("t", str(self.columns), None, where)
        found = self.batch if selection is None else filtered(self.batch, selection)
        return self.table.take(pa.array(found.offsets(), pa.int64()))


def count(connection: duckdb.DuckDBPyConnection, table: pa.Table, condition: str) -> int:
    connection.register("t", table)
    try:
        ((found,),) = connection.execute(f"select count(*) from t where {condition}").fetchall()
    finally:
        connection.unregister("t")
    return int(found)


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as made:
        made.execute("set timezone = 'UTC'")
        yield made


def timed(kind: str) -> Topic:
    """A topic with a column of moments in a unit."""
    text = f"1 a {kind}"
    column_type = parse_columns(text).current[0].type
    arrow = arrow_type(column_type)
    numbers = [moment // NANOSECONDS[column_type.unit] for moment in MOMENTS]
    if column_type.name == "time":
        numbers = [number for number in numbers if number >= 0]
    return Topic(text, [pa.array(numbers, pa.int32() if arrow.bit_width == 32 else pa.int64()).view(arrow)])


def literals(name: str) -> list[str]:
    """Constants with which a column of a kind is compared."""
    times = [f"{moment // 10**9 % 60:02}.{moment % 10**9:09}" for moment in MOMENTS]
    days = ["1969-12-31 23:59" if moment < 0 else "1970-01-01 00:00" for moment in MOMENTS]
    if name == "duration":
        return [f"interval '{moment // 1_000} microseconds'" for moment in MOMENTS]
    if name == "time":
        return [f"time '00:00:{text[:9]}'" for text in times]
    moments = [f"{day}:{text}" for day, text in zip(days, times, strict=True)]
    return [*(f"'{text}'" for text in moments), *(f"timestamp '{text[:26]}'" for text in moments)]


@pytest.mark.parametrize(
    "kind", ["timestamp[ms]", "timestamp[ns]", "timestamp[ns, UTC]", "time[ns]", "duration[us]", "duration[ns]"]
)
def test_bounds_of_times_leave_all_rows_that_duckdb_finds(connection: Any, kind: str) -> None:
    """DuckDB gives Python microseconds, and has most types in nothing finer."""
    topic = timed(kind)
    differing = []
    for literal in literals(kind[: kind.index("[")]):
        for comparison in ("=", "<", ">="):
            condition = f"a {comparison} {literal}"
            try:
                expected = count(connection, topic.table, condition)
            except duckdb.Error:
                continue  # DuckDB does not compare the two.
            rows = topic.read(connection, condition)
            if count(connection, rows, condition) != expected:
                differing.append((condition, expected, rows.column("a").to_pylist()))
    assert not differing, differing[:5]


@pytest.mark.parametrize("condition", ["user > 5", "User > 5", "user_1 > 5", "user_1_1 > 5"])
def test_bounds_of_columns_that_differ_in_case_alone(connection: Any, condition: str) -> None:
    """DuckDB finds names without case, and renames all but the first."""
    numbers = ([10, 1, 1], [1, 10, 1], [1, 1, 10])
    topic = Topic("1 User int64, 2 user int64, 3 user_1 int64", [pa.array(each) for each in numbers])
    expected = count(connection, topic.table, condition)
    assert count(connection, topic.read(connection, condition), condition) == expected == 1
