"""Columns of a read, and the check of a user's schema."""

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


def full_schema(include_headers: bool) -> StructType:
    """Return the schema of a reader without a user's schema."""
    names = [name for name in COLUMNS if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_read_schema(schema: StructType) -> None:
    """Check a schema that may be the user's.

    Raises:
        ConfigError: If a column does not exist or has another type.
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


def _same(given: DataType, known: DataType) -> bool:
    """Return whether two types are equal except for nullability."""
    return given.simpleString() == known.simpleString()
