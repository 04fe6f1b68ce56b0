"""Schema of the tables of one deserializer, and of typed topics that are created from it.

It is the deserializer's own if it has one; else that of the subject's latest version; else the newest one among the
values of a table.
"""

from collections.abc import Iterable

from headrace.client.base.errors import SerializationError
from headrace.client.schemas.registry import RegisteredSchema, SchemaReference, SchemaRegistry
from headrace.client.schemas.wire_header import schema_id_of


class TableSchema:
    """See the module. Any thread may use it."""

    def __init__(
        self,
        registry: SchemaRegistry,
        schema_type: str,
        text: str,
        subject: str,
        references: tuple[SchemaReference, ...],
    ) -> None:
        """`text` and `subject` may be empty."""
        self.registry = registry
        self._type = schema_type
        self._own = RegisteredSchema(0, schema_type, text, references) if text else None
        self._subject = subject

    def stated(self) -> RegisteredSchema:
        """Return the schema if it does not depend on values.

        Raises:
            SerializationError: If there is neither a schema nor a subject, or its schema is of another type.
            SchemaRegistryError, TransportError: If the registry refuses, or cannot be reached.
        """
        schema = self.of_values(())
        if schema is None:
            raise SerializationError("columns need a schema", action="Set the schema, or its subject.")
        return schema

    def of_values(self, values: Iterable[bytes | None]) -> RegisteredSchema | None:
        """Return the schema of a table of values; `None` if there is no schema and no value.

        Raises:
            SerializationError: If a value has no schema id, or a schema is of another type.
            SchemaRegistryError, TransportError: If the registry refuses, or cannot be reached.
        """
        if self._own is not None:
            return self._own
        if self._subject:
            return self._checked(self.registry.latest(self._subject))
        ids = {schema_id_of(value) for value in values if value is not None}
        return self.by_id(max(ids)) if ids else None

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with an id; raise as `of_values`."""
        return self._checked(self.registry.by_id(schema_id))

    def _checked(self, schema: RegisteredSchema) -> RegisteredSchema:
        if schema.schema_type != self._type:
            where = f"the schema of subject {schema.subject!r}" if schema.subject else f"schema {schema.schema_id}"
            raise SerializationError(f"{where} has type {schema.schema_type}, not {self._type}")
        return schema
