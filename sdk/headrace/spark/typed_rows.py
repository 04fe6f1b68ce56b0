"""Rows that are written to a typed topic: the option `typed` of a writer. Imports pyspark and pyarrow.

Executors convert the rows of a query into the form that rows of bytes have, too (`headrace.spark.routes`): a column
`value`, here a struct of the topic's columns, and `key`, `partition` and `timestamp` where rows have them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.base.arrow_objects import objects_of
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.client.base.records import DecodedBatch
from headrace.client.producer.rows import key_array
from headrace.wire.errors import HeadraceError
from headrace.wire.typed.arrow_columns import arrays_of_table, arrow_type
from headrace.wire.typed.topic_columns import TopicColumns

METADATA = {"_key": ("binary", "string"), "_partition": ("int",), "_timestamp": ("timestamp",)}
"""Columns besides the topic's, each with its types in Spark's notation."""


def check_typed_schema(schema: StructType, topic: str, columns: TopicColumns) -> None:
    """Check the columns of the rows to write, before the job starts. Values are checked by the tasks.

    Raises:
        ConfigError: If a column is missing, unknown, or of a type that the topic's column is not made from.
    """
    for column in schema:
        if column.name not in METADATA:
            continue
        types = METADATA[column.name]
        if column.dataType.simpleString() not in types:
            raise ConfigError(
                f"schema: column {column.name} is {column.dataType.simpleString()}, not {' or '.join(types)}",
                action="Cast it.",
            )
    names = set(schema.names)
    if "_key" in names and columns.keys:
        raise ConfigError(
            f"schema: column _key is given, but the key of {topic} is {', '.join(each.name for each in columns.keys)}",
            action="Drop it.",
        )
    if names <= METADATA.keys():
        raise ConfigError(f"schema: it has no column of {topic}", action=f"Select some of {_names(columns)}.")
    empty = to_arrow_schema(StructType([each for each in schema if each.name not in METADATA]), timezone="UTC")
    try:
        arrays_of_table(empty.empty_table(), columns)
    except HeadraceError as error:
        raise ConfigError(f"schema: {error.message}", action=error.action) from None


def _names(columns: TopicColumns) -> str:
    return ", ".join(column.name for column in columns.current)


def row_columns(schema: StructType) -> tuple[str, ...]:
    """Return the names of the columns that `converted` gives rows of a query."""
    return ("value", *(name.removeprefix("_") for name in schema.names if name in METADATA))


def converted(rows: Any, topic: str, columns: TopicColumns) -> Any:
    """Return the rows of a query in the form of the module's docstring, as a `pyarrow.RecordBatch`.

    Raises:
        SerializationError: If a value does not fit its column; the message has the column.
    """
    own = [name for name in rows.schema.names if name not in METADATA]
    try:
        arrays = arrays_of_table(rows.select(own), columns)
        keys = key_array(arrays, columns) if columns.keys else None
    except HeadraceError as error:
        raise SerializationError(f"rows for {topic}: {error.message}", action=error.action) from error
    fields = [pa.field(column.name, arrow_type(column.type)) for column in columns.current]
    found = {"value": pa.StructArray.from_arrays(arrays, fields=fields)}
    found |= {name[1:]: rows.column(name) for name in METADATA if name in rows.schema.names}
    if keys is not None:
        found["key"] = keys
    return pa.RecordBatch.from_pydict(found)


def values_of_structs(structs: Any) -> list[bytes]:
    """Return a text of each row, which is equal for equal rows of the same columns."""
    names = [structs.type.field(place).name for place in range(structs.type.num_fields)]
    return list(_texts(names, structs.flatten()))


def stored_values(decoded: DecodedBatch) -> list[bytes]:
    """Return `values_of_structs` of stored rows, which have the topic's present columns."""
    typed, columns = decoded.columns.typed, decoded.current_columns
    assert typed is not None, "the batch is typed"
    arrays = [typed.array(column).slice(decoded.start, decoded.end - decoded.start) for column in columns]
    return list(_texts([column.name for column in columns], arrays))


def _texts(names: Iterable[str], arrays: Iterable[Any]) -> Iterator[bytes]:
    pairs = sorted(zip(names, arrays, strict=True), key=lambda pair: pair[0])
    lists = [objects_of(array) for _, array in pairs]
    head = repr([name for name, _ in pairs])
    return (f"{head}{row!r}".encode() for row in zip(*lists, strict=True))
