"""Columns of an Avro record: of a typed topic that is created from a schema, and of tables of Avro values. Pure.

| Avro | column |
| --- | --- |
| boolean, float, double, string, bytes | bool, float, double, string, binary |
| int, long | int32, int64 |
| fixed of n bytes | binary[n] |
| enum, uuid | string |
| array, map, record | list, map, struct |
| decimal | decimal(precision, scale) |
| date | date |
| time-millis, time-micros | time[ms], time[us] |
| timestamp-millis, -micros, -nanos | timestamp[ms, UTC], timestamp[us, UTC], timestamp[ns, UTC] |
| local-timestamp-millis, -micros, -nanos | timestamp[ms], timestamp[us], timestamp[ns] |
| union of null and one type | that type, null allowed |

Another union, a record in itself, null alone and duration are no columns.
"""

import json
from collections.abc import Mapping
from typing import Any

from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.column_types import ColumnType, parse_type
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns, parse_columns

_PRIMITIVES = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time[ms]",
    ("long", "time-micros"): "time[us]",
    ("string", "uuid"): "string",
    **{
        ("long", f"{prefix}timestamp-{name}"): f"timestamp[{unit}{zone}]"
        for prefix, zone in (("", ", UTC"), ("local-", ""))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
"""By type and logical type; another logical type is ignored, as the specification of Avro asks."""
_WITH_DEFAULT = frozenset({"bool", "int32", "int64", "float", "double", "string"})


def columns_of_avro(schema: Any, named: Mapping[str, Any]) -> TopicColumns:
    """Return the columns of a record's schema, without ids.

    Args:
        schema: parsed by fastavro, so that names are full names.
        named: schemas of the named types that it refers to, by full name.

    Raises:
        InvalidConfigError: If it is no record, or a field is no column; the message has the field and the reason.
    """
    while isinstance(schema, str) and schema in named:
        schema = named[schema]
    if not is_record(schema):
        raise InvalidConfigError(
            "columns: the schema is no record", action="Register a record, whose fields become the columns."
        )
    if not schema["fields"]:
        raise InvalidConfigError(f"columns: the record {schema['name']} has no fields", action="Give it one.")
    found = []
    for field in schema["fields"]:
        kind, is_nullable = without_null(field["type"])
        column_type = column_type_of(field["name"], kind, named, (schema["name"],))
        default = ""
        if column_type.name in _WITH_DEFAULT and field.get("default") is not None:
            default = json.dumps(field["default"], ensure_ascii=False)
        found.append(TopicColumn(0, field["name"], column_type, is_required=not is_nullable, default=default))
    return parse_columns(str(TopicColumns(tuple(found))))  # Which checks names and defaults.


def is_record(schema: Any) -> bool:
    """Return whether a parsed schema is a record."""
    return isinstance(schema, dict) and schema.get("type") in {"record", "error"}


def without_null(schema: Any) -> tuple[Any, bool]:
    """Return a schema without null, and whether it had it."""
    if isinstance(schema, list) and "null" in schema:
        rest = [each for each in schema if each != "null"]
        return rest[0] if len(rest) == 1 else rest, True
    return schema, False


def column_type_of(path: str, schema: Any, named: Mapping[str, Any], inside: tuple[str, ...] = ()) -> ColumnType:
    """Return the type of a column for a schema without null.

    Args:
        path: of the field, for the error.
        schema: see `columns_of_avro`.
        named: see `columns_of_avro`.
        inside: full names of the records that it is in.

    Raises:
        InvalidConfigError: If no column can have its values.
    """
    if isinstance(schema, list):
        names = " and ".join(map(_name_of, schema)) or "nothing"
        raise _refused(path, f"is a union of {names}, and a column has one type")
    if isinstance(schema, str) and schema in inside:
        raise _refused(path, f"has a {schema} in itself, and a column's depth is fixed")
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, dict | list):
        return column_type_of(path, kind, named, inside)
    parts: Mapping[str, Any] = {} if isinstance(schema, str) else schema
    logical = parts.get("logicalType", "")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return parse_type(f"decimal({parts['precision']}, {parts.get('scale', 0)})")
    if (kind, logical) in _LOGICAL or kind in _PRIMITIVES:
        return parse_type(_LOGICAL.get((kind, logical)) or _PRIMITIVES[kind])
    match kind:
        case "enum":
            return ColumnType("string")
        case "fixed" if logical != "duration":
            return ColumnType("binary", (int(parts["size"]),))
        case "array":
            return ColumnType("list", children=(("", _child(f"{path}[]", parts["items"], named, inside)),))
        case "map":
            value = _child(f"{path}{{}}", parts["values"], named, inside)
            return ColumnType("map", children=(("", ColumnType("string")), ("", value)))
        case "record" | "error" if parts["fields"]:
            within = (*inside, parts["name"])
            children = tuple(
                (field["name"], _child(f"{path}.{field['name']}", field["type"], named, within))
                for field in parts["fields"]
            )
            return ColumnType("struct", children=children)
    raise _refused(path, f"is {logical or kind}, which no column can be")


def _child(path: str, schema: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> ColumnType:
    return column_type_of(path, without_null(schema)[0], named, inside)


def _name_of(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("name") or schema.get("logicalType") or _name_of(schema["type"]))
    return str(schema)


def _refused(path: str, what: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"columns: the field {path} {what}", action="Write the columns as text, or keep the topic's values in Avro."
    )
