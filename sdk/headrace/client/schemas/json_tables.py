"""Tables of JSON values with a registered JSON Schema: their columns, and the rows of which they are made."""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.client.base.serializers import SerializerCodec
from headrace.client.schemas.json_columns import columns_of_json_schema, has_columns
from headrace.client.schemas.registry import RegisteredSchema
from headrace.client.schemas.table_schema import TableSchema
from headrace.wire.decoded import BinaryColumn
from headrace.wire.errors import HeadraceError
from headrace.wire.typed.json_values import row_of_json
from headrace.wire.typed.topic_columns import TopicColumns

if TYPE_CHECKING:
    from headrace.client.schemas.json_arrays import JsonArrays


class JsonTables:
    """Converts values of one deserializer. Any thread may use it."""

    def __init__(self, codec: SerializerCodec, schema: TableSchema) -> None:
        """`codec` checks and parses the values."""
        self._codec = codec
        self._schema = schema

    def topic_columns(self) -> str:
        """Return the text of the columns of a typed topic with this schema; raise as `TableSchema.stated`.

        Raises:
            InvalidConfigError: If the schema is not one of objects, or has properties that are no columns.
        """
        return str(self._columns(self._schema.stated()))

    def reader(self, values: Iterable[bytes | None]) -> "JsonRows | None":
        """Return what makes rows of values; `None` if there is no schema, or it is not one of objects.

        Raise as `TableSchema.of_values`.

        Raises:
            InvalidConfigError: If the schema has properties that are no columns.
        """
        schema = self._schema.of_values(values)
        if schema is None or not has_columns(json.loads(schema.text)):
            return None
        return JsonRows(self._codec, self, schema, self._columns(schema))

    def _columns(self, schema: RegisteredSchema) -> TopicColumns:
        return columns_of_json_schema(*self.resolved(schema))

    def resolved(self, schema: RegisteredSchema) -> tuple[Any, Any]:
        """Return the contents of a schema, and the resolver of its references."""
        contents = json.loads(schema.text)
        registry = registry_of(self._schema.registry.dependencies(schema))
        return contents, registry.resolver_with_root(resource_of(contents))

    def written(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with an id; raise as `TableSchema.by_id`."""
        return self._schema.by_id(schema_id)


class JsonRows:
    """Makes arrays or rows of the values of one table."""

    def __init__(
        self, codec: SerializerCodec, tables: JsonTables, schema: RegisteredSchema, columns: TopicColumns
    ) -> None:
        self._codec = codec
        self._tables = tables
        self._schema = schema
        self._arrays: JsonArrays | None = None
        self._is_by_row = False
        """Whether values must be decoded one by one."""
        self.columns = columns
        """Columns of the table."""

    def arrays(self, values: BinaryColumn, columns: TopicColumns) -> list[Any] | None:
        """Return an array for each of some columns, null where a value is null.

        `None` if the rows must be made one by one, which says what is wrong if a value is.
        """
        from headrace.client.schemas.avro_cursor import NotDecodedError
        from headrace.client.schemas.json_arrays import JsonArrays

        try:
            if self._arrays is None and not self._is_by_row:
                self._is_by_row = True
                self._arrays = JsonArrays(*self._tables.resolved(self._schema))
                self._is_by_row = False
            if self._arrays is None:
                return None
            return self._arrays.arrays(values, columns, self._check_id)
        except (NotDecodedError, HeadraceError):
            return None

    def _check_id(self, schema_id: int) -> None:
        from headrace.client.schemas.avro_cursor import NotDecodedError

        written = self._tables.written(schema_id)
        if self._schema.schema_id not in (0, written.schema_id):  # Such values are checked against their writer's.
            raise NotDecodedError

    def row(self, data: bytes) -> dict[str, Any]:
        """Return the row of a value.

        Raises:
            SerializationError: If it does not fit its schema.
            InvalidRequestError: If it does not fit the columns; the message has the column.
        """
        from headrace.wire.typed.arrow_columns import check_row

        known = {column.name for column in self.columns.columns}
        document = self._codec.deserialize(data)
        parts = {name: value for name, value in document.items() if name in known}
        row = row_of_json(parts, self.columns, cuts_times=True)
        check_row(row, self.columns)
        return row


def resource_of(contents: Any) -> Any:
    """Return a schema as `referencing` has it; without `$schema` it is of draft 7, as in Confluent's registry."""
    from referencing import Resource
    from referencing.jsonschema import DRAFT7

    return Resource.from_contents(contents, default_specification=DRAFT7)


def registry_of(texts: Mapping[str, str]) -> Any:
    """Return the schemas that a schema refers to, by name, as `referencing` has them."""
    from referencing import Registry

    return Registry().with_resources([(name, resource_of(json.loads(text))) for name, text in texts.items()])
