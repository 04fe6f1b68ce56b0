"""Tables of Avro values: their columns, and the rows by which a batch of values becomes Arrow columns.

Rows are those of one schema: of the deserializer's own if it has one; else of the subject's latest version; else of
the newest schema among the values of a table. Values of other versions are resolved to it by Avro's rules.
"""

import io
import json
from collections.abc import Iterable
from typing import Any

from headrace.client.base.errors import SerializationError
from headrace.client.schemas.avro_columns import columns_of_avro
from headrace.client.schemas.registry import RegisteredSchema, SchemaReference, SchemaRegistry
from headrace.client.schemas.wire_header import HEADER, schema_id_of
from headrace.wire.typed.topic_columns import TopicColumns


class AvroTables:
    """Converts values of one deserializer. Any thread may use it."""

    def __init__(
        self, registry: SchemaRegistry, text: str, subject: str, references: tuple[SchemaReference, ...]
    ) -> None:
        self._registry = registry
        self._own = RegisteredSchema(0, "AVRO", text, references) if text else None
        self._subject = subject
        self._parsed: dict[int, tuple[Any, dict[str, Any]]] = {}

    def topic_columns(self) -> str:
        """Return the text of the columns of a typed topic with this schema.

        Raises:
            InvalidConfigError: If the schema is no record, or has fields that are no columns.
            SerializationError: If the codec has neither a schema nor a subject, or the schema is not of Avro.
            SchemaRegistryError, TransportError: If the registry refuses, or cannot be reached.
        """
        schema = self._own or self._latest()
        if schema is None:
            raise SerializationError("columns need a schema", action="Set the schema, or its subject.")
        return str(columns_of_avro(*self._parse(schema)))

    def reader(self, values: Iterable[bytes | None]) -> "AvroRows | None":
        """Return what makes rows of values; `None` if there is no schema, or it is no record.

        Raises:
            InvalidConfigError: If the schema has fields that are no columns.
            SerializationError: If a value has no schema id, or one that is not of Avro.
            SchemaRegistryError, TransportError: If the registry refuses, or cannot be reached.
        """
        schema = self._own or self._latest()
        if schema is None:
            ids = {schema_id_of(value) for value in values if value is not None}
            schema = self._by_id(max(ids)) if ids else None
        if schema is None:
            return None
        parsed, named = self._parse(schema)
        if not isinstance(parsed, dict) or parsed.get("type") not in {"record", "error"}:
            return None
        return AvroRows(self, parsed, columns_of_avro(parsed, named))

    def _latest(self) -> RegisteredSchema | None:
        return _of_avro(self._registry.latest(self._subject)) if self._subject else None

    def _by_id(self, schema_id: int) -> RegisteredSchema:
        return _of_avro(self._registry.by_id(schema_id))

    def written(self, schema_id: int) -> Any:
        """Return the parsed schema of an id."""
        found = self._parsed.get(schema_id)
        return (self._parse(self._by_id(schema_id)) if found is None else found)[0]

    def _parse(self, schema: RegisteredSchema) -> tuple[Any, dict[str, Any]]:
        """Return a schema and the named ones that it uses, as fastavro has them; uuids are left as text."""
        import fastavro

        if schema.schema_id not in self._parsed:
            named: dict[str, Any] = {}
            for text in dict.fromkeys(self._registry.dependencies(schema).values()):
                fastavro.parse_schema(_without_uuid(json.loads(text)), named_schemas=named)
            parsed = fastavro.parse_schema(_without_uuid(json.loads(schema.text)), named_schemas=named)
            self._parsed[schema.schema_id] = parsed, named
        return self._parsed[schema.schema_id]


class AvroRows:
    """Makes rows of the values of one table."""

    def __init__(self, tables: AvroTables, schema: Any, columns: TopicColumns) -> None:
        import fastavro

        self._read = fastavro.schemaless_reader
        self._tables = tables
        self._schema = schema
        self._schemas: dict[int, tuple[Any, Any]] = {}
        """By id: the schema of the writer, and that of the table if it is another one."""
        self.columns = columns
        """Columns of the table."""

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
                written = self._tables.written(schema_id)
                schemas = written, None if written == self._schema else self._schema
                self._schemas[schema_id] = schemas
            row: Any = self._read(encoded, *schemas)
        except Exception as error:
            raise SerializationError(f"the bytes do not fit schema {schema_id}: {error}") from error
        if encoded.read(1):
            raise SerializationError(f"{len(data)} bytes are more than the value of schema {schema_id} has")
        return dict(row)


def _of_avro(schema: RegisteredSchema) -> RegisteredSchema:
    if schema.schema_type != "AVRO":
        where = f"the schema of subject {schema.subject!r}" if schema.subject else f"schema {schema.schema_id}"
        raise SerializationError(f"{where} has type {schema.schema_type}, not AVRO")
    return schema


def _without_uuid(schema: Any) -> Any:
    """Return a schema without the logical type of UUIDs: fastavro's objects for them are no values of Arrow."""
    if isinstance(schema, dict):
        plain = {name: each for name, each in schema.items() if (name, each) != ("logicalType", "uuid")}
        return {name: each if name == "default" else _without_uuid(each) for name, each in plain.items()}
    return [_without_uuid(each) for each in schema] if isinstance(schema, list) else schema
