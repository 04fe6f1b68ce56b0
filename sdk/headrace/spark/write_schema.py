"""Columns of a write, and the check of a query's columns. Imports pyspark."""

from pyspark.sql.types import StructType

from headrace.client.base.config_text import nearest
from headrace.client.base.errors import ConfigError

WRITABLE: dict[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Columns, each with its types in Spark's notation."""


def check_write_schema(schema: StructType, topic: str) -> None:
    """Check the columns of the rows to write; `topic` is the option's, or empty.

    Raises:
        ConfigError: a column is missing, unknown, or of another type.
    """
    for column in schema:
        types = WRITABLE.get(column.name)
        if types is None:
            raise ConfigError(
                f"schema: column {column.name!r} cannot be written{nearest(column.name, WRITABLE)}",
                action=f"Select some of {', '.join(WRITABLE)}.",
            )
        if column.dataType.simpleString() not in types:
            raise ConfigError(
                f"schema: column {column.name} is {column.dataType.simpleString()}, not {' or '.join(types)}",
                action="Cast it.",
            )
    names = set(schema.names)
    if "value" not in names:
        raise ConfigError("schema: there is no column value", action="Select the bytes to write as value.")
    if topic and "topic" in names:
        raise ConfigError("option topic and a column topic are given; one of them is enough")
    if not topic and "topic" not in names:
        raise ConfigError("option topic is missing, and there is no column topic")
