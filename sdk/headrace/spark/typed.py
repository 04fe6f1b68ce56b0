"""Read of a typed topic by its columns: the option `typed`. Imports pyspark, and in executors pyarrow."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StructField, StructType, TimestampType

from headrace.client.base.errors import ConfigError
from headrace.spark.option_table import BATCH
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.ranges import OffsetRange
from headrace.spark.schema import check_nullable
from headrace.spark.subscribed_cluster import SubscribedCluster
from headrace.spark.typed_filters import Where, ranges_of
from headrace.wire.typed.column_types import ColumnType
from headrace.wire.typed.topic_columns import parse_columns

METADATA = (
    StructField("_partition", IntegerType(), nullable=False),
    StructField("_offset", LongType(), nullable=False),
    StructField("_timestamp", TimestampType(), nullable=False),
    StructField("_key", BinaryType()),
)
"""Columns besides the topic's."""


def typed_schema(given: Mapping[str, str]) -> StructType:
    """Return the schema of the topic of the options, which is read from the cluster.

    Raises:
        ConfigError: If an option is invalid, the topic is not typed, or Spark has not one of its types.
    """
    known = {name: value for name, value in given.items() if name.lower() not in _OF_STREAMS}
    options = read_options(known, BATCH)
    topic = options.typed_topic
    with closing(SubscribedCluster(options.settings, options.subscription)) as cluster:
        cluster.partitions()
        text = columns_text_of(cluster, topic)
    fields = []
    for column in parse_columns(text).current:
        kind = spark_type(column.type)
        if kind is None:
            raise ConfigError(
                f"option typed: column {column.name} is {column.type}, which Spark has not",
                action="Give a schema without it.",
            )
        fields.append(StructField(column.name, kind))  # A required column may become nullable during the query.
    return StructType([*fields, *METADATA])


def spark_type(kind: ColumnType) -> DataType | None:
    """Return Spark's type of a column; `None` if it has none."""
    from pyspark.sql.pandas.types import from_arrow_type

    from headrace.wire.typed.arrow_columns import arrow_type

    try:
        return from_arrow_type(arrow_type(kind), prefer_timestamp_ntz=True)
    except Exception:  # Of several classes, by the type.
        return None


def columns_text_of(cluster: SubscribedCluster, topic: str) -> str:
    """Return the text of a topic's columns.

    Raises:
        ConfigError: If the topic is not typed.
    """
    text = cluster.admin.describe_config(topic)["columns"].value
    if not text:
        raise ConfigError(f"option typed: {topic} is not a typed topic", action="Leave the option out.")
    return text


_OF_STREAMS = frozenset({"maxoffsetspertrigger", "commitgroup"})
"""Options that a batch does not take."""


def check_typed(options: ReadOptions, schema: StructType) -> None:
    """Check what is known without the cluster.

    Raises:
        ConfigError: If the subscription is not of one topic, or the schema names no column or excludes nulls that rows
            may have.
    """
    _ = options.typed_topic
    if not len(schema):
        raise ConfigError("schema: it names no column", action="Name at least one of the topic's.")
    check_nullable(schema, {column.name for column in METADATA if not column.nullable})


def read_typed(
    options: ReadOptions, schema: StructType, part: OffsetRange, topic_id: bytes, where: Where
) -> Iterator[Any]:
    """Yield the rows of a range as Arrow batches with the columns of the schema; brokers send no others.

    Rows outside the ranges of `where` are left out.

    Raises:
        InvalidConfigError: If the topic has no such column.
        ConfigError: If a column has another type than the schema, to which a value cannot be cast without a loss.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from headrace.client.base.arrow_tables import cast_batch, typed_batch_of, typed_columns_of
    from headrace.client.base.arrow_tables import typed_schema as arrow_schema_of
    from headrace.spark.arrow_columns import LEAST_ROWS, MOST_ROWS
    from headrace.spark.range_reader import read_range
    from headrace.wire.typed.arrow_columns import cast_exactly

    wanted = to_arrow_schema(schema, timezone="UTC")
    decoded_batches = read_range(
        options.settings,
        part,
        fail_on_data_loss=options.fail_on_data_loss,
        topic_id=topic_id,
        columns=tuple(schema.names),
        where=ranges_of(where),
    )
    waiting: list[Any] = []
    rows = 0
    with closing(decoded_batches):
        for decoded in decoded_batches:
            columns = typed_columns_of(decoded.current_columns, schema.names)
            if decoded.start == decoded.end:
                continue
            batch = typed_batch_of(decoded, columns, arrow_schema_of(columns))
            waiting.append(cast_batch(decoded, batch, wanted, cast_exactly, _misfit))
            rows += batch.num_rows
            if rows >= LEAST_ROWS:
                yield from pa.Table.from_batches(waiting, wanted).combine_chunks().to_batches(MOST_ROWS)
                waiting, rows = [], 0
    if rows:
        yield from pa.Table.from_batches(waiting, wanted).combine_chunks().to_batches(MOST_ROWS)


def _misfit(array: Any, field: Any, place: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"schema: column {field.name} is {array.type}, not {field.type}: {place}: {error}",
        action="Read it as it is and cast it. A value that no type of Spark has, such as a timestamp beyond "
        "microseconds in 64 bits, is in Arrow tables of a Reader.",
    )
