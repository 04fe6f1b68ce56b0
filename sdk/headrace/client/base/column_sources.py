"""Columns of a typed topic from what an application has: text, an Arrow schema, a data frame, a dataclass, a model."""

import dataclasses
import types
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from headrace.client.base.data_frames import arrow_of
from headrace.client.base.errors import ConfigError
from headrace.client.base.serializers import TableCodec
from headrace.wire.typed.column_types import MAX_NESTING, ColumnType, parse_type
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns, parse_columns

_TYPES = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
    bytes: "binary",
    date: "date",
    time: "time[us]",
    datetime: "timestamp[us, UTC]",
    timedelta: "duration[us]",
}


def columns_text(source: Any) -> str:
    """Return the text of the topic setting `columns`.

    Args:
        source: the text; a pyarrow schema or table; a data frame of pandas or Polars; a dataclass or a pydantic model
            (the class, not an object). Fields of a class are required unless they may be `None`; a type of its own is
            given as `Annotated[int, "int32"]`. Or `headrace.schemas.Avro` or `JsonSchema` with a schema or a subject,
            whose latest version the registry has, or `Protobuf`: the fields of the record, of the objects or of the
            message are the columns.

    Raises:
        ConfigError: If it is none of these, or has a type that no column can have.
        InvalidConfigError: If the text is invalid.
    """
    try:
        return str(parse_columns(source if isinstance(source, str) else _text_of(source)))
    except RecursionError:
        raise ConfigError(
            f"columns: a type is nested more than {MAX_NESTING} deep, or has itself inside", action="Flatten it."
        ) from None


def _text_of(source: Any) -> str:
    if isinstance(source, type):
        return _of_class(source)
    tables = getattr(source, "tables", None)
    if isinstance(tables, TableCodec):
        return tables.topic_columns()
    table = arrow_of(source)
    schema = getattr(table, "schema", table)
    if type(schema).__module__.partition(".")[0] != "pyarrow":
        raise ConfigError(
            f"columns: {type(source).__name__} has no columns",
            action='Pass text like "page string required, user int64", an Arrow schema, a data frame or a dataclass.',
        )
    from headrace.wire.typed.arrow_columns import columns_of

    return str(columns_of(schema))


def _of_class(source: type) -> str:
    if not dataclasses.is_dataclass(source) and not hasattr(source, "model_fields"):
        raise ConfigError(
            f"columns: the class {source.__name__} is no dataclass and no pydantic model",
            action="Decorate it with @dataclass.",
        )
    columns = []
    for name, kind in _fields(source):
        inner, is_nullable = _without_none(kind)
        columns.append(TopicColumn(0, name, _type_of(name, inner), is_required=not is_nullable))
    return str(TopicColumns(tuple(columns)))


def _fields(source: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(source, include_extras=True)
    names = getattr(source, "model_fields", None) or [field.name for field in dataclasses.fields(source)]
    return [(name, hints[name]) for name in names]


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Return a type without `None`, and whether it had it."""
    if get_origin(kind) in {Union, types.UnionType}:
        rest = [each for each in get_args(kind) if each is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return kind, False


def _type_of(name: str, kind: Any) -> ColumnType:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        text = next((part for part in parts[1:] if isinstance(part, str)), None)
        return parse_type(text) if text is not None else _type_of(name, _without_none(parts[0])[0])
    if kind in _TYPES:
        return parse_type(_TYPES[kind])
    if origin in {list, tuple, set, frozenset} and parts:
        return ColumnType("list", children=(("", _type_of(name, _without_none(parts[0])[0])),))
    if origin is dict:
        return ColumnType("map", children=tuple(("", _type_of(name, _without_none(part)[0])) for part in parts))
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields")):
        fields = [(field, _type_of(f"{name}.{field}", _without_none(part)[0])) for field, part in _fields(kind)]
        return ColumnType("struct", children=tuple(fields))
    advice = 'Annotate it, for example Annotated[Decimal, "decimal(10, 2)"].'
    if kind is Decimal:
        raise ConfigError(f"columns: the field {name} is a Decimal of no stated size", action=advice)
    raise ConfigError(f"columns: the field {name} is {kind}, which no column can be", action=advice)
