"""The columns: all of them, and whether a schema of the user's own fits."""

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
"""What records consist of, in the order in which readers give it."""


def full_schema(include_headers: bool) -> StructType:
    """Return the schema of a reader that was not told one."""
    names = [name for name in COLUMNS if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_read_schema(schema: StructType) -> None:
    """Check a schema that the user may have given.

    Raises:
        ConfigError: a column is not there or has another type.
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
    """Whether two types are the same but for what may be null."""
    return given.simpleString() == known.simpleString()
