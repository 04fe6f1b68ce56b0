"""Columns of a JSON Schema of objects: of a typed topic that is created from it, and of tables of JSON values. Pure.

| JSON Schema | column |
| --- | --- |
| boolean, integer, number, string | bool, int64, double, string |
| string of format date | date |
| string of format date-time | timestamp[us, UTC] |
| string with contentEncoding base64 | binary |
| enum or const of one type | that type |
| array with items | list |
| object with properties | struct |
| object with additionalProperties alone | map of string |
| one type or null (`type`, anyOf, oneOf) | that type, null allowed |

A property that is not required may be null. Anything that leaves the type of a value open is no column.
"""

import json
from collections.abc import Mapping
from typing import Any

from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.column_types import ColumnType, parse_type
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns, parse_columns

_SIMPLE = {"boolean": "bool", "integer": "int64", "number": "double", "string": "string"}
_FORMATS = {"date": "date", "date-time": "timestamp[us, UTC]"}
_OF_PYTHON = {bool: "boolean", int: "integer", float: "number", str: "string"}
_WITH_DEFAULT = frozenset(_SIMPLE.values())
_MAX_REFERENCES = 100
_NULL = {"type": "null"}
_BRANCHES = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
ANNOTATIONS = frozenset({
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "format",
})  # fmt: skip
"""Attributes of a schema that refuse no value."""


def has_columns(contents: Any) -> bool:
    """Return whether a schema is one of objects with properties."""
    return isinstance(contents, dict) and ("properties" in contents or "$ref" in contents)


def columns_of_json_schema(contents: Any, resolver: Any) -> TopicColumns:
    """Return the columns of a schema of objects, without ids.

    Args:
        contents: the schema.
        resolver: of its references, by `referencing`.

    Raises:
        InvalidConfigError: If it is not one of objects, or a property is no column; the message has the property and
            the reason.
    """
    reader = SchemaReader()
    root, resolver, _ = reader.resolved("", contents, resolver)
    properties = root.get("properties")
    if not isinstance(properties, dict) or not properties:
        raise InvalidConfigError(
            "columns: the schema is not one of objects with properties",
            action="Register one, whose properties become the columns.",
        )
    required, found = root.get("required", ()), []
    for name, each in properties.items():
        kind, is_nullable = reader.type_of(name, each, resolver)
        default = each.get("default") if isinstance(each, dict) else None
        has_default = kind.name in _WITH_DEFAULT and default is not None
        text = json.dumps(default, ensure_ascii=False) if has_default else ""
        is_required = name in required and not is_nullable
        found.append(TopicColumn(0, name, kind, is_required=is_required, default=text))
    return parse_columns(str(TopicColumns(tuple(found))))  # Which checks names and defaults.


class SchemaReader:
    """Reads one schema."""

    def __init__(self) -> None:
        self._references = 0
        self.is_exact = True
        """Whether `resolved` has left out nothing that a value must fulfil."""

    def resolved(self, path: str, schema: Any, resolver: Any) -> tuple[Mapping[str, Any], Any, bool]:
        """Return a schema without references and null, its resolver, and whether it had null.

        Raises:
            InvalidConfigError: If it has not one type.
        """
        is_nullable = False
        while True:
            if not isinstance(schema, dict):
                raise _refused(path, "may be anything, and a column has one type")
            if not _BRANCHES.isdisjoint(schema):
                self.is_exact = self.is_exact and set(schema) - ANNOTATIONS in ({"$ref"}, {"anyOf"})
            if "$ref" in schema:
                self._references += 1
                if self._references > _MAX_REFERENCES:
                    raise _refused(path, f"has itself inside, or more than {_MAX_REFERENCES} references")
                found = resolver.lookup(schema["$ref"])
                schema, resolver = found.contents, found.resolver
                continue
            branches = next((schema[name] for name in ("anyOf", "oneOf", "allOf") if name in schema), None)
            if branches is None or "type" in schema or "properties" in schema:
                return schema, resolver, is_nullable
            rest = [each for each in branches if each != _NULL]
            is_nullable = is_nullable or len(rest) < len(branches)
            if len(rest) != 1:
                raise _refused(path, f"is one of {len(rest)} schemas, and a column has one type")
            schema = rest[0]

    def type_of(self, path: str, schema: Any, resolver: Any) -> tuple[ColumnType, bool]:
        """Return the type of a property, and whether it may be null."""
        parts, resolver, is_nullable = self.resolved(path, schema, resolver)
        kinds = types_of(parts)
        rest = [kind for kind in kinds if kind != "null"]
        if len(rest) != 1:
            names = " or ".join(map(str, rest)) or "null" if kinds else "anything"
            raise _refused(path, f"may be {names}, and a column has one type")
        return self._column_type(path, rest[0], parts, resolver), is_nullable or len(rest) < len(kinds)

    def _column_type(self, path: str, kind: str, parts: Mapping[str, Any], resolver: Any) -> ColumnType:
        if kind == "string" and parts.get("contentEncoding") == "base64":
            return parse_type("binary")
        if kind in _SIMPLE:
            return parse_type(_FORMATS.get(parts.get("format", ""), "string") if kind == "string" else _SIMPLE[kind])
        if kind == "array" and isinstance(parts.get("items"), dict):
            return ColumnType("list", children=(("", self.type_of(f"{path}[]", parts["items"], resolver)[0]),))
        if kind == "object" and parts.get("properties"):
            fields = parts["properties"].items()
            children = [(name, self.type_of(f"{path}.{name}", each, resolver)[0]) for name, each in fields]
            return ColumnType("struct", children=tuple(children))
        if kind == "object" and isinstance(parts.get("additionalProperties"), dict):
            value, _ = self.type_of(f"{path}{{}}", parts["additionalProperties"], resolver)
            return ColumnType("map", children=(("", ColumnType("string")), ("", value)))
        raise _refused(path, f"is an {kind} that does not say of what, which no column can be")


def types_of(parts: Mapping[str, Any]) -> list[str]:
    """Return the types of values, with `null`; empty if they may be of any."""
    stated = parts.get("type")
    if stated is not None:
        return [stated] if isinstance(stated, str) else [*stated]
    values = parts["enum"] if "enum" in parts else [parts["const"]] if "const" in parts else []
    if values:
        return list(dict.fromkeys("null" if each is None else _OF_PYTHON.get(type(each), "other") for each in values))
    implied = {"properties": "object", "additionalProperties": "object", "items": "array"}
    return list(dict.fromkeys(kind for name, kind in implied.items() if name in parts))


def _refused(path: str, what: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"columns: the property {path or '/'} {what}",
        action="Write the columns as text, or keep the topic's values in JSON.",
    )
