"""Tables of Avro values: their columns, and the arrays or rows by which a batch of values becomes Arrow columns.

Rows are those of one schema (`TableSchema`). Values of other versions are resolved to it by Avro's rules.
The values of a batch are decoded side by side (`avro_arrays`); where that cannot be done, one by one.
"""

import io
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.client.base.errors import SerializationError
from headrace.client.schemas.avro_columns import columns_of_avro, is_record
from headrace.client.schemas.registry import RegisteredSchema
from headrace.client.schemas.table_schema import TableSchema
from headrace.client.schemas.wire_header import HEADER, schema_id_of
from headrace.wire.decoded import BinaryColumn
from headrace.wire.errors import HeadraceError
from headrace.wire.typed.topic_columns import TopicColumns

if TYPE_CHECKING:
    from headrace.client.schemas.avro_arrays import RecordArrays


class AvroTables:
    """Converts values of one deserializer. Any thread may use it."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._parsed: dict[int, tuple[Any, dict[str, Any]]] = {}

    def topic_columns(self) -> str:
        """Return the text of the columns of a typed topic with this schema; raise as `TableSchema.stated`.

        Raises:
            InvalidConfigError: If the schema is no record, or has fields that are no columns.
        """
        return str(columns_of_avro(*self._parse(self._schema.stated())))

    def reader(self, values: Iterable[bytes | None]) -> "AvroRows | None":
        """Return what makes rows of values; `None` if there is no schema, or it is no record.

        Raise as `TableSchema.of_values`.

        Raises:
            InvalidConfigError: If the schema has fields that are no columns.
        """
        schema = self._schema.of_values(values)
        if schema is None:
            return None
        parsed, named = self._parse(schema)
        return AvroRows(self, parsed, named, columns_of_avro(parsed, named)) if is_record(parsed) else None

    def written(self, schema_id: int) -> tuple[Any, dict[str, Any]]:
        """Return the parsed schema of an id, and the named ones that it uses."""
        found = self._parsed.get(schema_id)
        return self._parse(self._schema.by_id(schema_id)) if found is None else found

    def _parse(self, schema: RegisteredSchema) -> tuple[Any, dict[str, Any]]:
        """Return a schema and the named ones that it uses, as fastavro has them; uuids are left as text."""
        import fastavro

        if schema.schema_id not in self._parsed:
            named: dict[str, Any] = {}
            for text in dict.fromkeys(self._schema.registry.dependencies(schema).values()):
                fastavro.parse_schema(_without_uuid(json.loads(text)), named_schemas=named)
            parsed = fastavro.parse_schema(_without_uuid(json.loads(schema.text)), named_schemas=named)
            self._parsed[schema.schema_id] = parsed, named
        return self._parsed[schema.schema_id]


class AvroRows:
    """Makes arrays or rows of the values of one table."""

    def __init__(self, tables: AvroTables, schema: Any, named: dict[str, Any], columns: TopicColumns) -> None:
        import fastavro

        self._read = fastavro.schemaless_reader
        self._tables = tables
        self._schema = schema
        self._named = named
        self._decoders: dict[int, RecordArrays] = {}
        self._schemas: dict[int, tuple[Any, Any]] = {}
        """By id: the schema of the writer, and that of the table if it is another one."""
        self.columns = columns
        """Columns of the table."""

    def arrays(self, values: BinaryColumn, columns: TopicColumns) -> list[Any] | None:
        """Return an array for each of some columns, null where a value is null.

        `None` if the rows must be made one by one, which says what is wrong if a value is.
        """
        from headrace.client.schemas.avro_arrays import arrays_of_values
        from headrace.client.schemas.avro_cursor import NotDecodedError

        try:
            return arrays_of_values(values, columns, self._record_arrays)
        except NotDecodedError:
            return None

    def _record_arrays(self, schema_id: int) -> "RecordArrays":
        from headrace.client.schemas.avro_arrays import RecordArrays, RecordSchema
        from headrace.client.schemas.avro_cursor import NotDecodedError

        if schema_id not in self._decoders:
            try:
                written = RecordSchema(*self._tables.written(schema_id))
            except HeadraceError as error:
                raise NotDecodedError from error
            self._decoders[schema_id] = RecordArrays(written, RecordSchema(self._schema, self._named))
        return self._decoders[schema_id]

    def row(self, data: bytes) -> dict[str, Any]:
        """Return the row of a value.

        Raises:
            SerializationError: If it has no schema id, or does not fit its schema or that of the table.
        """
        schema_id = schema_id_of(data)
        encoded = io.BytesIO(data)
        encoded.seek(HEADER.size)
        try:
            schemas = self._schemas.get(schema_id)
            if schemas is None:
                written, _ = self._tables.written(schema_id)
                schemas = written, None if written == self._schema else self._schema
                self._schemas[schema_id] = schemas
            row: Any = self._read(encoded, *schemas)
        except Exception as error:
            raise SerializationError(f"the bytes do not fit schema {schema_id}: {error}") from error
        if encoded.read(1):
            raise SerializationError(f"{len(data)} bytes are more than the value of schema {schema_id} has")
        return dict(row)


def _without_uuid(schema: Any) -> Any:
    """Return a schema without the logical type of UUIDs: fastavro's objects for them are no values of Arrow."""
    if isinstance(schema, dict):
        plain = {name: each for name, each in schema.items() if (name, each) != ("logicalType", "uuid")}
        return {name: each if name == "default" else _without_uuid(each) for name, each in plain.items()}
    return [_without_uuid(each) for each in schema] if isinstance(schema, list) else schema
