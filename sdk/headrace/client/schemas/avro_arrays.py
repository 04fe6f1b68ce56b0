"""Arrow arrays of Avro values, decoded side by side: numpy reads a field of all values in one step.

What fastavro does value by value, for schemas that are columns. Other schemas, other differences between the schemas of
the writer and the reader than fields that are new, gone, moved or promoted, and values that are wrong are left to
fastavro, which also knows what is wrong and where: they raise `NotDecodedError`.

Imports pyarrow, so it is imported on first use only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.client.schemas.avro_columns import is_record, without_null
from headrace.client.schemas.avro_cursor import PADDING, NotDecodedError, ValueCursor
from headrace.client.schemas.avro_decoders import decoder_of, take
from headrace.wire.decoded import BinaryColumn
from headrace.wire.typed.arrow_columns import arrow_type
from headrace.wire.typed.topic_columns import TopicColumns

_PROMOTED = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
_PARTS = frozenset({"type", "items", "values", "fields"})
"""Attributes of a schema that have schemas."""
_WITH_DEFAULT = frozenset({"boolean", "int", "long", "float", "double", "string"})


class RecordSchema(NamedTuple):
    """Record, as fastavro parses it, and the named types that it uses, by full name."""

    parsed: Any
    named: Mapping[str, Any]


class RecordArrays:
    """Decodes the values of one writer's schema into columns of a reader's schema. Immutable."""

    def __init__(self, written: RecordSchema, read: RecordSchema) -> None:
        """Raise `NotDecodedError` if values must be decoded one by one."""
        if not is_record(written.parsed):
            raise NotDecodedError
        self._decoders = {
            each["name"]: decoder_of(each["type"], written.named, (written.parsed["name"],))
            for each in written.parsed["fields"]
        }
        self._defaults: dict[str, Any] = {}
        self._required: set[str] = set()
        if written.parsed is not read.parsed and written != read:
            self._resolve(written, read)

    def _resolve(self, written: RecordSchema, read: RecordSchema) -> None:
        if _short_name(written.parsed) != _short_name(read.parsed) or "aliases" in read.parsed:
            raise NotDecodedError
        fields = {each["name"]: each["type"] for each in written.parsed["fields"]}
        for field in read.parsed["fields"]:
            if "aliases" in field:
                raise NotDecodedError
            if field["name"] in fields:
                old, _ = without_null(fields[field["name"]])
                new, is_nullable = without_null(field["type"])
                if not is_nullable:
                    self._required.add(field["name"])
                is_promoted = isinstance(old, str) and isinstance(new, str) and (old, new) in _PROMOTED
                if not is_promoted and _expanded(old, written.named) != _expanded(new, read.named):
                    raise NotDecodedError
                continue
            default = field.get("default", ...)
            kind, _ = without_null(field["type"])
            has_array = default is None or (isinstance(kind, str) and kind in _WITH_DEFAULT)
            if default is ... or not has_array:  # A type of several parts, such as an array or a time, is a dict.
                raise NotDecodedError
            self._defaults[field["name"]] = default

    def arrays(self, cursor: ValueCursor, names: Sequence[str], types: Sequence[Any]) -> list[Any]:
        """Return an array of some fields of the reader's schema.

        Args:
            cursor: after the headers of the values.
            names: names of the fields.
            types: their Arrow types.

        Raises:
            NotDecodedError: If a value is wrong.
        """
        wanted = frozenset(names)
        found = {name: decode(cursor, name in wanted) for name, decode in self._decoders.items()}
        cursor.finish()
        try:
            return [
                self._column(found.get(name), name, kind, len(cursor)) for name, kind in zip(names, types, strict=True)
            ]
        except pa.ArrowException as error:
            raise NotDecodedError from error

    def _column(self, array: Any, name: str, kind: Any, count: int) -> Any:
        if array is None:
            default = self._defaults[name]
            return pa.nulls(count, kind) if default is None else pa.repeat(pa.scalar(default, kind), count)
        if array.null_count and name in self._required:
            raise NotDecodedError
        array.validate(full=True)  # UTF-8, and the digits of decimals.
        return array if array.type == kind else array.cast(kind, safe=not pa.types.is_integer(array.type))


def arrays_of_values(
    values: BinaryColumn, columns: TopicColumns, arrays_of: Callable[[int], RecordArrays]
) -> list[Any]:
    """Return an array for each of some columns, null where a value is null.

    Args:
        values: with their headers.
        columns: of the reader's schema.
        arrays_of: what decodes the values of the schema with an id.

    Raises:
        NotDecodedError: If values must be decoded one by one.
    """
    names, types = [each.name for each in columns.columns], [arrow_type(each.type) for each in columns.columns]
    data = np.concatenate((np.frombuffer(values.data, np.uint8), np.zeros(PADDING, np.uint8)))
    valid, ends = values.valid(), values.offsets.astype(np.int64)
    filled = np.flatnonzero(valid)
    cursor = ValueCursor(data, ends[filled], ends[filled + 1])
    if cursor.bytes().any():  # The magic byte is 0.
        raise NotDecodedError
    ids = cursor.numbers(">u4")
    rows, parts = [], []
    for schema_id in np.unique(ids).tolist():
        chosen = np.flatnonzero(ids == schema_id)
        rows.append(chosen)
        parts.append(arrays_of(schema_id).arrays(cursor.part(chosen), names, types))
    if not parts:
        return [pa.nulls(len(valid), kind) for kind in types]
    if len(parts) == 1 and len(filled) == len(valid):
        return parts[0]
    places = np.zeros(len(valid), np.int64)
    places[filled[np.concatenate(rows)]] = np.arange(len(filled))
    return [take(pa.concat_arrays(pieces), places, valid) for pieces in zip(*parts, strict=True)]


def _short_name(schema: Any) -> str:
    return str(schema["name"]).rpartition(".")[2]


def _expanded(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Return a schema with the definitions of named types in place of their names."""
    if isinstance(schema, str) and schema in named:
        if schema in inside:
            raise NotDecodedError
        return _expanded(named[schema], named, (*inside, schema))
    if isinstance(schema, list):
        return [_expanded(each, named, inside) for each in schema]
    if isinstance(schema, dict):
        return {name: _expanded(each, named, inside) if name in _PARTS else each for name, each in schema.items()}
    return schema
