"""Avro schemas, and their resolution by the rules of the specification (Avro 1.12, "Schema Resolution").

The parts of a parsed schema are those of fastavro: a name of a primitive or named type, a list for a union, a dict with
full names for everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from headrace_coordinator.core.schemas.schema import (
    MAX_STEPS,
    Incompatibility,
    InvalidSchemaError,
    SchemaText,
    load_json,
    too_complex,
)

PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""By type of the writer: types that read it, besides itself."""
_NAMED = ("record", "error", "enum", "fixed")


class AvroSchema:
    """Parsed Avro schema."""

    def __init__(self, canonical: str, root: Any, named: dict[str, Any]) -> None:
        self.canonical = canonical
        self.root = root
        self.named = named
        """Definitions by full name, those of references included."""

    def why_unreadable(self, writer: AvroSchema) -> list[Incompatibility]:
        """See `ParsedSchema`."""
        return _Resolution(self.named, writer.named).compare(self.root, writer.root, "")


def parse(schema: SchemaText) -> AvroSchema:
    """Return an Avro schema.

    Raises:
        InvalidSchemaError: If it is none, or names a type that neither it nor a reference defines.
    """
    named: dict[str, Any] = {}
    for text in {reference.text: None for reference in schema.dependencies().values()}:
        _parse_into(text, named)
    given, root = _parse_into(schema.text, named)
    return AvroSchema(json.dumps(_shortened(given), sort_keys=True, separators=(",", ":")), root, named)


def _parse_into(text: str, named: dict[str, Any]) -> tuple[Any, Any]:
    """Return the JSON value and the parsed schema of a text, and add its named types to `named`."""
    try:
        given = load_json(text)
        return given, parse_schema(given, named_schemas=named, _write_hint=False)
    except UnknownType as error:
        raise InvalidSchemaError(
            f"the Avro type {error.name!r} is not defined", action="Define it, or add a reference to its schema."
        ) from error
    except (SchemaParseException, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InvalidSchemaError(
            f"the Avro schema is not valid: {error or type(error).__name__}", action="Correct it."
        ) from error


def _shortened(value: Any) -> Any:
    """Return a JSON value with `{"type": "string"}` as `"string"`, which means the same."""
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get("type"), str):
            return value["type"]
        return {key: _shortened(item) if key not in ("default", "doc") else item for key, item in value.items()}
    return value


class _Resolution:
    """Comparison of one reader with one writer."""

    def __init__(self, reader_types: dict[str, Any], writer_types: dict[str, Any]) -> None:
        self._reader_types = reader_types
        self._writer_types = writer_types
        self._assumed: dict[tuple[int, int], None] = {}
        """Pairs of named types that were found compatible or are being compared, in this order; types may be recursive.
        A failed pair takes with it all that were found after it."""
        self._steps = 0

    def compare(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        """Return why `reader` cannot read `writer`."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise too_complex()
        reader, writer = _definition(reader, self._reader_types), _definition(writer, self._writer_types)
        if isinstance(writer, list):
            return [reason for branch in writer for reason in self.compare(reader, branch, path)]
        if isinstance(reader, list):
            return self._compare_union(reader, writer, path)
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            if kind in PROMOTIONS.get(written, ()) and _decimal(reader) == _decimal(writer):
                return []
            return [_mismatch(reader, writer, path)]
        if kind in _NAMED:
            return self._compare_named(reader, writer, path)
        if kind == "array":
            return self.compare(reader["items"], writer["items"], f"{path}/items")
        if kind == "map":
            return self.compare(reader["values"], writer["values"], f"{path}/values")
        return _compare_decimals(reader, writer, path)

    def _compare_union(self, reader: list[Any], writer: Any, path: str) -> list[Incompatibility]:
        if any(not self.compare(branch, writer, path) for branch in reader):
            return []
        return [
            Incompatibility(
                "MISSING_UNION_BRANCH",
                path or "/",
                f"no branch of the reader's union reads the writer's {_title(writer)}",
            )
        ]

    def _compare_named(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        pair = (id(reader), id(writer))
        if pair in self._assumed:
            return []
        found_before = len(self._assumed)
        self._assumed[pair] = None
        reasons = self._compare_definitions(reader, writer, path)
        if reasons:
            for later in list(self._assumed)[found_before:]:
                del self._assumed[later]
        return reasons

    def _compare_definitions(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        if not _has_same_name(reader, writer):
            message = f"the reader's {_title(reader)} is neither named nor aliased as the writer's {_title(writer)}"
            return [Incompatibility("NAME_MISMATCH", f"{path}/name", message)]
        match _kind(reader):
            case "enum":
                return _compare_enums(reader, writer, path)
            case "fixed":
                return _compare_fixed(reader, writer, path)
        return list(self._compare_records(reader, writer, path))

    def _compare_records(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        written = {field["name"]: field for field in writer["fields"]}
        for index, field in enumerate(reader["fields"]):
            here = f"{path}/fields/{index}"
            names = [field["name"], *field.get("aliases", ())]
            of_writer = next((written[name] for name in names if name in written), None)
            if of_writer is not None:
                yield from self.compare(field["type"], of_writer["type"], f"{here}/type")
            elif "default" not in field:
                message = f"field {field['name']!r} has no default value, and the writer does not have it"
                yield Incompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", here, message)


def _compare_enums(reader: Any, writer: Any, path: str) -> list[Incompatibility]:
    missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
    if not missing or "default" in reader:
        return []
    message = f"the reader's {_title(reader)} has no default and not the symbols {', '.join(missing)} of the writer"
    return [Incompatibility("MISSING_ENUM_SYMBOLS", f"{path}/symbols", message)]


def _compare_fixed(reader: Any, writer: Any, path: str) -> list[Incompatibility]:
    if reader["size"] != writer["size"]:
        message = f"the reader's {_title(reader)} has {reader['size']} bytes, the writer's {writer['size']}"
        return [Incompatibility("FIXED_SIZE_MISMATCH", f"{path}/size", message)]
    return _compare_decimals(reader, writer, path)


def _compare_decimals(reader: Any, writer: Any, path: str) -> list[Incompatibility]:
    read, written = _decimal(reader), _decimal(writer)
    if read is None or written is None or read == written:
        return []
    message = f"the reader's decimal has precision and scale {read}, the writer's {written}"
    return [Incompatibility("DECIMAL_MISMATCH", path or "/", message)]


def _definition(part: Any, types: dict[str, Any]) -> Any:
    """Return the definition of a named type; every other part as it is."""
    return types.get(part, part) if isinstance(part, str) else part


def _kind(part: Any) -> str:
    return part if isinstance(part, str) else str(part["type"])


def _decimal(part: Any) -> tuple[int, int] | None:
    """Return precision and scale of a decimal; `None` for other types."""
    if isinstance(part, dict) and part.get("logicalType") == "decimal" and isinstance(part.get("precision"), int):
        return part["precision"], part.get("scale", 0)
    return None


def _has_same_name(reader: Any, writer: Any) -> bool:
    """Return whether the unqualified names are equal, or an alias of the reader is the full name of the writer."""
    space = reader["name"].rpartition(".")[0]
    aliases = (alias if "." in alias or not space else f"{space}.{alias}" for alias in reader.get("aliases", ()))
    return _simple(reader["name"]) == _simple(writer["name"]) or writer["name"] in aliases


def _simple(name: str) -> str:
    return name.rpartition(".")[2]


def _title(part: Any) -> str:
    return f"{part['type']} {part['name']!r}" if isinstance(part, dict) and "name" in part else _kind(part)


def _mismatch(reader: Any, writer: Any, path: str) -> Incompatibility:
    message = f"the reader has {_title(reader)}, the writer {_title(writer)}"
    return Incompatibility("TYPE_MISMATCH", path or "/", message)
