"""Formats of schemas by name. The module of a format is imported with its first schema."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from headrace_coordinator.core.schemas.schema import InvalidSchemaError, ParsedSchema, SchemaText

AVRO = "AVRO"
JSON = "JSON"
PROTOBUF = "PROTOBUF"
_MODULES = {AVRO: "avro", JSON: "json_schema", PROTOBUF: "protobuf"}
SCHEMA_TYPES = tuple(_MODULES)


def parse_schema(schema_type: str, schema: SchemaText) -> ParsedSchema:
    """Return a schema of a type such as `AVRO`.

    Raises:
        InvalidSchemaError: If there is no such type, the schema is not valid, or refers to what it does not name in its
            references.
    """
    module = _MODULES.get(schema_type)
    if module is None:
        raise InvalidSchemaError(
            f"the schema type {schema_type[:64]!r} is not known", action=f"Use one of {', '.join(_MODULES)}."
        )
    return cast(ParsedSchema, import_module(f"{__package__}.{module}").parse(schema))
