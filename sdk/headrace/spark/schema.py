"""Columns of a read, and the check of a user's schema."""

from collections.abc import Collection

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.client.base.config_text import nearest
from headrace.client.base.errors import ConfigError

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(HEADER),
}
"""Columns of records, in the readers' order."""
NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp"})


def full_schema(include_headers: bool) -> StructType:
    """Return the schema of a reader without a user's schema."""
    names = [name for name in COLUMNS if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_read_schema(schema: StructType) -> None:
    """Check a schema that may be the user's.

    Raises:
        ConfigError: If a column does not exist, has another type, or excludes nulls that records may have.
    """
    if not len(schema):
        raise ConfigError("schema: it names no column", action=f"There are: {', '.join(COLUMNS)}.")
    for column in schema:
        known = COLUMNS.get(column.name)
        if known is None:
            raise ConfigError(
                f"schema: there is no column {column.name!r}{nearest(column.name, COLUMNS)}",
                action=f"There are: {', '.join(COLUMNS)}.",
            )
        if not _same(column.dataType, known):
            raise ConfigError(
                f"schema: column {column.name} is {known.simpleString()}, not {column.dataType.simpleString()}",
                action="Read it as it is and cast it.",
            )
    check_nullable(schema, NEVER_NULL)


def check_nullable(schema: StructType, never_null: Collection[str]) -> None:
    """Check that only columns in `never_null` are NOT NULL: Spark relies on it, and checks no value.

    Raises:
        ConfigError: If another column is, or a part of it.
    """
    for column in schema:
        alone = StructType([column])
        if column.name not in never_null and alone != alone.toNullable():
            raise ConfigError(
                f"schema: column {column.name} is NOT NULL, and records may have nulls there",
                action="Leave NOT NULL out.",
            )


def _same(given: DataType, known: DataType) -> bool:
    """Return whether two types are equal except for nullability."""
    return given.simpleString() == known.simpleString()
