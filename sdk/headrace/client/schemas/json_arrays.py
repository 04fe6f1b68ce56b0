"""Arrow arrays of JSON values, parsed side by side by pyarrow, without a Python object for each.

For schemas that say of a value no more than its type and its properties. What other schemas say, and values that are
wrong or might be, are left to the validator, which also knows what is wrong: they raise `NotDecodedError`.

Imports pyarrow, so it is imported on first use only.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from headrace.client.schemas.avro_cursor import NotDecodedError
from headrace.client.schemas.avro_decoders import take
from headrace.client.schemas.json_columns import ANNOTATIONS, SchemaReader, types_of
from headrace.client.schemas.wire_header import HEADER
from headrace.wire.decoded import BinaryColumn
from headrace.wire.typed.arrow_columns import arrow_type
from headrace.wire.typed.topic_columns import TopicColumns

_OF_TYPES = ANNOTATIONS | {"type", "properties", "required", "items", "additionalProperties"}
_SIMPLE = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_TIME = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})$"
"""Texts that pyarrow and Python take for the same time."""


class _Part(NamedTuple):
    """Property, or an item of an array."""

    kind: Any
    """Arrow type of its JSON."""
    is_nullable: bool
    is_required: bool
    children: tuple["_Part", ...]


class JsonArrays:
    """Parses the values of one schema. Immutable."""

    def __init__(self, schema: Any, resolver: Any) -> None:
        """Raise `NotDecodedError` if values must be decoded one by one."""
        self._is_closed = False
        root = self._part(SchemaReader(), schema, resolver, is_required=True)
        if not pa.types.is_struct(root.kind):
            raise NotDecodedError
        self._schema = pa.schema(list(root.kind))
        self._parts = root.children

    def _part(self, reader: SchemaReader, schema: Any, resolver: Any, *, is_required: bool) -> _Part:
        found, resolver, is_nullable = reader.resolved("", schema, resolver)
        kinds = types_of(found)
        rest = [kind for kind in kinds if kind != "null"]
        if not reader.is_exact or not _OF_TYPES.issuperset(found) or len(rest) != 1:
            raise NotDecodedError
        is_nullable = is_nullable or len(rest) < len(kinds)
        if rest[0] in _SIMPLE:
            return _Part(_SIMPLE[rest[0]], is_nullable, is_required, ())
        if rest[0] == "array" and isinstance(found.get("items"), dict):
            item = self._part(reader, found["items"], resolver, is_required=True)
            return _Part(pa.list_(item.kind), is_nullable, is_required, (item,))
        properties, required = found.get("properties") or {}, set(found.get("required", ()))
        others = found.get("additionalProperties", True)
        if not required <= properties.keys() or not properties or not isinstance(others, bool):
            raise NotDecodedError
        self._is_closed = self._is_closed or not others
        parts = {
            name: self._part(reader, each, resolver, is_required=name in required) for name, each in properties.items()
        }
        kind = pa.struct([(name, part.kind) for name, part in parts.items()])
        return _Part(kind, is_nullable, is_required, tuple(parts.values()))

    def arrays(self, values: BinaryColumn, columns: TopicColumns, check_id: Callable[[int], None]) -> list[Any]:
        """Return an array for each of some columns, null where a value is null.

        `check_id` is called with the id of each schema with which values were written.

        Raises:
            NotDecodedError: If a value is wrong, or might be.
        """
        valid, ends = values.valid(), values.offsets.astype(np.int64)
        filled = np.flatnonzero(valid)
        starts, ends = ends[filled], ends[filled + 1]
        data = np.frombuffer(values.data, np.uint8).copy()
        # Each value begins and ends with a brace. No other text between two braces is JSON, so that as many objects as
        # values are one in each.
        if not len(filled) or (ends - starts < HEADER.size + 2).any():
            raise NotDecodedError
        headers = starts[:, None] + np.arange(HEADER.size)
        if data[starts].any() or (data[starts + HEADER.size] != ord("{")).any() or (data[ends - 1] != ord("}")).any():
            raise NotDecodedError  # The magic byte is 0.
        for schema_id in np.unique(np.ascontiguousarray(data[headers[:, 1:]]).view(">u4")).tolist():
            check_id(schema_id)
        data[headers] = ord("\n")
        try:
            table = self._parsed(data.tobytes())
            if len(table) != len(filled):
                raise NotDecodedError
            kinds = {each.name: arrow_type(each.type) for each in columns.columns}
            found = [_converted(table.column(name).combine_chunks(), kind) for name, kind in kinds.items()]
        except (pa.ArrowException, UnicodeDecodeError, KeyError) as error:
            raise NotDecodedError from error
        if len(filled) == len(valid):
            return found
        places = np.zeros(len(valid), np.int64)
        places[filled] = np.arange(len(filled))
        return [take(array, places, valid) for array in found]

    def _parsed(self, data: bytes) -> Any:
        """Return the objects, with nulls only where the schema has them."""
        data.decode()  # Also what no column has is UTF-8.
        table = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=self._schema,
                newlines_in_values=True,
                unexpected_field_behavior="error" if self._is_closed else "ignore",
            ),
        )
        _check_nulls([column.combine_chunks() for column in table.columns], self._parts, 0, has_null=b"null" in data)
        return table


def _check_nulls(arrays: Sequence[Any], parts: Sequence[_Part], missing: int, *, has_null: bool) -> None:
    """Raise `NotDecodedError` if one of `arrays` has a null, besides `missing` ones, that its schema may not have."""
    for array, part in zip(arrays, parts, strict=True):
        # A null is a property that is left out, or says null, and pyarrow does not distinguish them.
        allowed = not part.is_required and (part.is_nullable or not has_null)
        if array.null_count > missing and not allowed:
            raise NotDecodedError
        if pa.types.is_struct(array.type):
            _check_nulls(array.flatten(), part.children, array.null_count, has_null=has_null)
        elif pa.types.is_list(array.type):
            _check_nulls([array.flatten()], part.children, 0, has_null=has_null)


def _converted(array: Any, kind: Any) -> Any:
    """Return a property as the array of its column."""
    if array.type == kind:
        return array
    if not pa.types.is_string(array.type) or not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise NotDecodedError
    if pa.types.is_timestamp(kind) and pc.all(pc.match_substring_regex(array, _TIME)).as_py() is False:
        raise NotDecodedError
    return array.cast(kind)
