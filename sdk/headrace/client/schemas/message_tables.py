"""Tables of Protobuf messages, and typed topics that are created from them: their columns, and rows. Pure.

| Protobuf | column |
| --- | --- |
| bool, float, double, string, bytes | bool, float, double, string, binary |
| int32, sint32, sfixed32; the same of 64 | int32; int64 |
| uint32, fixed32; the same of 64 | uint32; uint64 |
| enum | string, the name; the number of an unknown one |
| repeated, map, message | list, map, struct |
| google.protobuf.Timestamp, Duration | timestamp[us, UTC], duration[us] |
| a wrapper such as google.protobuf.Int64Value | the type that it wraps |

A field that tells whether it is set may be null, and so may bytes and what is repeated; another one has Protobuf's
default. A message in itself is no column.
"""

import json
from collections.abc import Iterable
from datetime import UTC
from typing import Any

from headrace.client.base.serializers import SerializerCodec
from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.column_types import ColumnType, parse_type
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns, parse_columns

_SCALARS = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "uint64", 7: "uint32", 8: "bool", 9: "string",
    12: "binary", 13: "uint32", 14: "string", 15: "int32", 16: "int64", 17: "int32", 18: "int64",
}  # fmt: skip
"""By the number of a type in `FieldDescriptorProto`."""
_ENUM = 14
_DEFAULTS = {"bool": "false", "string": '""', "float": "0.0", "double": "0.0"}
_KNOWN = {"google.protobuf.Timestamp": "timestamp[us, UTC]", "google.protobuf.Duration": "duration[us]"}
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)


class MessageTables:
    """Converts values of one deserializer. Any thread may use it."""

    def __init__(self, codec: SerializerCodec, descriptor: Any) -> None:
        """`codec` parses the values, which are messages of `descriptor`."""
        self._codec = codec
        self._descriptor = descriptor

    def topic_columns(self) -> str:
        """Return the text of the columns of a typed topic of these messages.

        Raises:
            InvalidConfigError: If the message has no fields, or fields that are no columns.
        """
        return str(columns_of_message(self._descriptor))

    def reader(self, values: Iterable[bytes | None]) -> "MessageRows":
        """Return what makes rows of values; raise as `topic_columns`."""
        del values
        return MessageRows(self._codec, columns_of_message(self._descriptor))


class MessageRows:
    """Makes rows of the values of one table."""

    def __init__(self, codec: SerializerCodec, columns: TopicColumns) -> None:
        self._codec = codec
        self.columns = columns
        """Columns of the table."""

    def row(self, data: bytes) -> dict[str, Any]:
        """Return the row of a value; raise as `SchemaCodec.deserialize`."""
        return row_of_message(self._codec.deserialize(data))


def columns_of_message(descriptor: Any) -> TopicColumns:
    """Return the columns of a message, without ids.

    Raises:
        InvalidConfigError: If it has no fields, or a field is no column; the message has the field and the reason.
    """
    if not descriptor.fields:
        raise InvalidConfigError(f"columns: the message {descriptor.full_name} has no fields", action="Give it one.")
    found = []
    for field in descriptor.fields:
        kind = _type_of(field.name, field, (descriptor.full_name,))
        may_be_null = field.has_presence or _is_repeated(field) or kind.name == "binary"
        default = "" if may_be_null else _default(field, kind)
        found.append(TopicColumn(0, field.name, kind, is_required=not may_be_null, default=default))
    return parse_columns(str(TopicColumns(tuple(found))))  # Which checks the names.


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)  # Protobuf 6 and later.
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _default(field: Any, kind: ColumnType) -> str:
    if field.type == _ENUM:
        return json.dumps(field.enum_type.values[0].name)
    return _DEFAULTS.get(kind.name, "0")


def _type_of(path: str, field: Any, inside: tuple[str, ...]) -> ColumnType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        value = _single_type(f"{path}{{}}", entry["value"], inside)
        return ColumnType("map", children=(("", _single_type(path, entry["key"], inside)), ("", value)))
    if _is_repeated(field):
        return ColumnType("list", children=(("", _single_type(f"{path}[]", field, inside)),))
    return _single_type(path, field, inside)


def _single_type(path: str, field: Any, inside: tuple[str, ...]) -> ColumnType:
    message = field.message_type
    if message is None:
        return parse_type(_SCALARS[field.type])
    name = message.full_name
    if name in _KNOWN:
        return parse_type(_KNOWN[name])
    if name in _WRAPPERS:
        return parse_type(_SCALARS[message.fields_by_name["value"].type])
    if name in inside:
        raise _refused(path, f"has a {name} in itself, and a column's depth is fixed")
    if not message.fields:
        raise _refused(path, f"is a {name} without fields, which no column can be")
    children = [(each.name, _type_of(f"{path}.{each.name}", each, (*inside, name))) for each in message.fields]
    return ColumnType("struct", children=tuple(children))


def _refused(path: str, what: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"columns: the field {path} {what}", action="Write the columns as text, or keep the topic's values in Protobuf."
    )


def row_of_message(message: Any) -> dict[str, Any]:
    """Return a message as a row: by name, a value of the type of the column for each field."""
    return {field.name: _value_of(message, field) for field in message.DESCRIPTOR.fields}


def _value_of(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        item = field.message_type.fields_by_name["value"]
        return {key: _single(each, item) for key, each in value.items()}
    if _is_repeated(field):
        return [_single(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(value, field)


def _single(value: Any, field: Any) -> Any:
    if field.type == _ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.message_type is None:
        return value
    match field.message_type.full_name:
        case "google.protobuf.Timestamp":
            return value.ToDatetime(UTC)
        case "google.protobuf.Duration":
            return value.ToTimedelta()
        case name if name in _WRAPPERS:
            return value.value
    return row_of_message(value)
