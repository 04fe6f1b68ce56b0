"""Rows written to a typed topic and filters pushed to a read of one; no Spark and no cluster runs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from headrace.client.base.arrow_tables import cast_batch
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.client.base.records import DecodedBatch, Deserializers
from headrace.spark import typed
from headrace.spark.filters import Pushed
from headrace.spark.options import write_options
from headrace.spark.ranges import OffsetRange
from headrace.spark.row_digests import row_parts
from headrace.spark.typed_filters import ColumnFilters
from headrace.spark.typed_rows import converted, row_columns
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.arrow_columns import cast_exactly
from headrace.wire.typed.topic_columns import parse_columns
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, LessThan, LessThanOrEqual
from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

COLUMNS = parse_columns("1 user int64, 2 page string, 3 score double, 4 at timestamp[ms, UTC], 5 offset int32")
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "string collate UNICODE_CI": StringType("UNICODE_CI"),
    "double": DoubleType(),
    "timestamp": TimestampType(),
}


def schema(text: str) -> StructType:
    """Return the schema of "name type, ..."; Spark's own parser needs Java."""
    pairs = (part.split(" ", 1) for part in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def where(*conditions: Any, types: str = "user bigint, page string, score double, at timestamp, offset int") -> Any:
    filters = ColumnFilters(Pushed())
    assert not any(filters.take(condition) for condition in conditions), "Spark evaluates them again"
    return filters.where(schema(types), COLUMNS)


def test_comparisons_become_one_range_of_each_column() -> None:
    """The narrowest of all, both ends included; a column of the topic named like one of headrace is the topic's."""
    found = where(
        GreaterThan(("user",), 3),
        LessThan(("user",), 9),
        LessThanOrEqual(("user",), 7),
        In(("page",), ("b", None, "a")),
        GreaterThan(("at",), NOON),
        EqualTo(("offset",), 4),
    )
    assert found == (("user", 3, 7), ("page", "a", "b"), ("at", NOON, None), ("offset", 4, 4))


@pytest.mark.parametrize(
    "condition", [GreaterThan(("score",), 1.0), IsNull(("user",)), In(("user",), (None,)), EqualTo(("page", "x"), 1)]
)
def test_what_has_another_order_or_no_value_narrows_nothing(condition: Any) -> None:
    """Numbers with NaN, null, and parts of columns."""
    assert where(condition) == ()


def test_a_column_that_the_frame_casts_narrows_nothing() -> None:
    """Text has another order than the numbers of which it was made."""
    assert where(GreaterThan(("user",), "3"), types="user string") == ()
    assert where(GreaterThan(("user",), 3), types="user int") == ()
    assert where(EqualTo(("page",), "A"), types="page string collate UNICODE_CI") == ()
    assert where(GreaterThan(("gone",), 3), types="gone bigint") == ()


def test_what_headrace_knows_of_a_row_narrows_offsets() -> None:
    """Exactly, so that Spark need not look again."""
    pushed = Pushed()
    filters = ColumnFilters(pushed)
    assert filters.take(EqualTo(("_partition",), 1))
    assert filters.take(GreaterThan(("_offset",), 9))
    assert not filters.take(GreaterThan(("_timestamp",), NOON))
    here = TopicPartition("t", 1)
    assert pushed.wants(here)
    assert not pushed.wants(TopicPartition("t", 0))
    assert pushed.cut(OffsetRange(here, 0, 20)) == OffsetRange(here, 10, 20)
    assert pushed.not_before_ms == NOON.timestamp() * 1000


def rows(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def stored(count: int) -> DecodedBatch:
    """Return records at the offsets from 0 on."""
    columns = decode_batch(encode_batch([b""] * count, base_timestamp_ms=0), max_payload_bytes=1 << 20)
    return DecodedBatch(TopicPartition("t", 0), columns, 0, count, Deserializers())


def cast(batch: Any, wanted: Any) -> Any:
    """Return four rows of records with the types of a schema."""
    return cast_batch(stored(4), batch, wanted, cast_exactly, typed._misfit)


def test_rows_with_days_that_python_lacks_can_be_compared() -> None:
    """After a retry, with those that are stored."""
    days = pa.array([3_000_000, 0], pa.int32()).view(pa.date32())
    batch = converted(rows(day=days), "t", parse_columns("1 day date"))
    assert len({digest for digest, _, _ in row_parts(batch)}) == 2


def digests(batch: Any) -> list[bytes]:
    return [digest for digest, _, _ in row_parts(converted(batch, "t", COLUMNS))]


def test_a_column_of_a_schema_with_fewer_digits_is_refused() -> None:
    """With its name; Spark itself would show a rounded number."""
    wanted = pa.schema([pa.field("score", pa.float32())])
    exact = [0.5, None, float("inf")]
    found = cast(rows(score=pa.array(exact)), wanted)
    assert (found.schema, found.column("score").to_pylist()) == (wanted, exact)
    said = r"column score is double, not float: t-0 at offset 3: 0\.1 would become 0.1000000"
    with pytest.raises(ConfigError, match=said):
        cast(rows(score=pa.array([*exact, 0.1])), wanted)
    late = rows(at=pa.array([0, 2**62], pa.int64()).view(pa.timestamp("s")))
    with pytest.raises(ConfigError, match=r"column at is timestamp\[s\], .* t-0 at offset 1: .*in Arrow tables"):
        cast(late, pa.schema([pa.field("at", pa.timestamp("us"))]))


def test_rows_have_the_topics_columns() -> None:
    """Cast, with those that are missing, and what belongs to the record as further columns."""
    batch = rows(user=pa.array([1, 2], pa.int32()), _key=["a", "b"], _partition=pa.array([0, 1], pa.int32()))
    found = converted(batch, "t", COLUMNS)
    assert found.column("value").to_pylist()[1] == {"user": 2, "page": None, "score": None, "at": None, "offset": None}
    assert found.column("value").type.field("user").type == pa.int64()
    assert (found.column("key").to_pylist(), found.column("partition").to_pylist()) == (["a", "b"], [0, 1])
    assert row_columns(schema("user int, timestamp timestamp, _key string")) == ("value", "key")


def test_equal_rows_have_equal_digests() -> None:
    """Whatever the types in the query; NaN equals itself, null and other values do not."""
    nan = float("nan")
    one = digests(rows(user=pa.array([1, 1, 2, None], pa.int8()), score=[nan, 0.5, nan, nan]))
    other = digests(rows(score=[nan, 0.5, nan, nan], user=pa.array([1, 1, 2, None], pa.int64()), page=[None] * 4))
    assert one == other
    assert len(set(one)) == 4


def test_a_value_that_does_not_fit_has_its_column() -> None:
    """Microseconds are not cut off."""
    at = pa.array([NOON + dt.timedelta(microseconds=1)], pa.timestamp("us", "UTC"))
    with pytest.raises(SerializationError, match=r"rows for t: column at: .* does not fit timestamp\[ms, UTC\]"):
        converted(rows(at=at), "t", COLUMNS)


def test_the_option_is_one_of_writes() -> None:
    """It needs a topic, whose columns the driver looks up."""
    given = {"headrace.bootstrap.servers": "h:1", "topic": "t"}
    assert not write_options(given).typed
    assert write_options(given | {"typed": "true"}).typed
