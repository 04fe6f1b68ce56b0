"""Avro values that are decoded side by side are those that fastavro decodes one by one."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
from headrace.client.schemas.avro_tables import AvroRows, AvroTables
from headrace.client.schemas.registry import RegisteredSchema, SchemaRegistry, SchemaRegistryError
from headrace.client.schemas.table_schema import TableSchema
from headrace.client.schemas.wire_header import HEADER
from headrace.wire.decoded import BinaryColumn
from headrace.wire.encoding import join_column
from headrace.wire.errors import HeadraceError
from headrace.wire.typed.arrow_columns import arrays_of_rows
from headrace.wire.typed.topic_columns import TopicColumns
from hypothesis import given, settings
from hypothesis import strategies as st

LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)
MILLIS = st.integers(0, 86_399_999).map(lambda ms: (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)).time())
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    '"boolean"': st.booleans(),
    '"int"': st.integers(-(2**31), 2**31 - 1),
    '"long"': LONGS,
    '"float"': st.floats(width=32, allow_nan=False),
    '"double"': st.floats(allow_nan=False),
    '"string"': st.text(max_size=8),
    '"bytes"': st.binary(max_size=8),
    '{"type": "fixed", "name": "F%", "size": 3}': st.binary(min_size=3, max_size=3),
    '{"type": "enum", "name": "E%", "symbols": ["A", "BC"]}': st.sampled_from(["A", "BC"]),
    '{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}': st.integers(-(10**9) + 1, 10**9 - 1).map(
        lambda number: Decimal(number).scaleb(-2)
    ),
    '{"type": "fixed", "name": "D%", "size": 8, "logicalType": "decimal", "precision": 12}': st.integers(
        -(10**12) + 1, 10**12 - 1
    ).map(Decimal),
    '{"type": "int", "logicalType": "date"}': st.dates(),
    '{"type": "int", "logicalType": "time-millis"}': MILLIS,
    '{"type": "long", "logicalType": "time-micros"}': st.times(),
    '{"type": "long", "logicalType": "timestamp-millis"}': st.datetimes(timezones=st.just(dt.UTC)).map(
        lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
    ),
    '{"type": "long", "logicalType": "local-timestamp-micros"}': st.datetimes(),
}
"""Schemas, in which % makes names unique, and their values."""
NUMBERS = itertools.count()


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a schema and a strategy of its values."""
    kind = draw(st.sampled_from(["simple"] * 4 + (["null", "array", "map", "record"] if depth else ["null"])))
    if kind == "null":
        schema, values = draw(kinds(0).filter(lambda found: not isinstance(found[0], list)))
        return draw(st.permutations(["null", schema])), st.none() | values
    if kind == "simple":
        text = draw(st.sampled_from(sorted(SIMPLE)))
        return json.loads(text.replace("%", str(next(NUMBERS)))), SIMPLE[text]
    schema, values = draw(kinds(depth - 1))
    if kind == "array":
        return {"type": "array", "items": schema}, st.lists(values, max_size=3)
    if kind == "map":
        return {"type": "map", "values": schema}, st.dictionaries(st.text(max_size=3), values, max_size=3)
    name = f"R{next(NUMBERS)}"
    fields = [{"name": "x", "type": schema}, {"name": "y", "type": "int"}]
    return {"type": "record", "name": name, "fields": fields}, st.fixed_dictionaries(
        {"x": values, "y": SIMPLE['"int"']}
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw a record and rows of it."""
    drawn = [draw(kinds()) for _ in range(draw(st.integers(1, 5)))]
    fields = [{"name": f"c{place}", "type": schema} for place, (schema, _) in enumerate(drawn)]
    rows = st.fixed_dictionaries({f"c{place}": values for place, (_, values) in enumerate(drawn)})
    return {"type": "record", "name": "R", "fields": fields}, draw(st.lists(rows, min_size=1, max_size=8))


class Known(SchemaRegistry):
    """Registry of some schemas, which asks no server."""

    def __init__(self, *schemas: Any) -> None:
        super().__init__("http://localhost:1")
        self._known = {
            number: RegisteredSchema(number, "AVRO", json.dumps(each)) for number, each in enumerate(schemas, 1)
        }

    def by_id(self, schema_id: int) -> RegisteredSchema:
        if schema_id not in self._known:
            raise SchemaRegistryError("not found", status=404, error_code=40403)
        return self._known[schema_id]


def encoded(schema_id: int, schema: Any, rows: list[dict[str, Any]]) -> list[bytes]:
    """Return the values of rows."""
    parsed, values = fastavro.parse_schema(schema), []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        values.append(HEADER.pack(0, schema_id) + stream.getvalue())
    return values


def column_of(values: list[bytes | None]) -> BinaryColumn:
    joined = join_column("value", values)
    return BinaryColumn(joined.offsets, memoryview(joined.data), joined.validity)


def both(reader: AvroRows, values: list[bytes | None], columns: TopicColumns) -> tuple[Any, Any]:
    """Return the arrays of values side by side, and those of their rows."""
    rows = [{} if value is None else reader.row(value) for value in values]
    return reader.arrays(column_of(values), columns), arrays_of_rows(rows, columns)


@given(table=tables(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_arrays_are_those_of_the_rows(table: tuple[Any, list[dict[str, Any]]], data: st.DataObject) -> None:
    """Of all columns or of some, with null values in between."""
    schema, rows = table
    values: list[bytes | None] = list(encoded(1, schema, rows))
    for place in sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=2))):
        values.insert(place, None)
    reader = AvroTables(TableSchema(Known(schema), "AVRO", json.dumps(schema), "", ())).reader(values)
    assert reader is not None
    chosen = data.draw(st.lists(st.sampled_from(reader.columns.columns), min_size=1, unique=True))
    found, expected = both(reader, values, TopicColumns(tuple(chosen)))
    assert found is not None
    for array, other in zip(found, expected, strict=True):
        array.validate(full=True)
        assert array.equals(other)


PROMOTED = {"int": "long", "long": "double", "float": "double", "string": "bytes"}


@given(table=tables(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_arrays_of_another_version(table: tuple[Any, list[dict[str, Any]]], data: st.DataObject) -> None:
    """Fields that are gone, moved, new with a default, or promoted; values of both versions in one batch."""
    schema, rows = table
    fields: list[dict[str, Any]] = data.draw(st.lists(st.sampled_from(schema["fields"]), unique_by=lambda f: f["name"]))
    fields = [
        {**each, "type": PROMOTED[each["type"]]}
        if isinstance(each["type"], str) and each["type"] in PROMOTED and data.draw(st.booleans())
        else each
        for each in fields
    ]
    fields.insert(data.draw(st.integers(0, len(fields))), {"name": "new", "type": "int", "default": 7})
    fields.append({"name": "none", "type": ["null", "string"], "default": None})
    newer = {"type": "record", "name": "R", "fields": fields}
    values: list[bytes | None] = list(encoded(1, schema, rows))
    reader = AvroTables(TableSchema(Known(schema, newer), "AVRO", json.dumps(newer), "", ())).reader(values)
    assert reader is not None
    of_newer = encoded(2, newer, [reader.row(value) for value in values if value is not None])
    values = list(data.draw(st.permutations([*values, *of_newer, None])))
    nullable = TopicColumns(tuple(replace(each, is_required=False, default="") for each in reader.columns.columns))
    found, expected = both(reader, values, nullable)
    assert found is not None
    assert [array.to_pylist() for array in found] == [array.to_pylist() for array in expected]


FLAT = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": ["null", "string"]},
        {"name": "c", "type": {"type": "array", "items": "int"}},
        {"name": "d", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "e", "type": "boolean"},
        {"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}},
    ],
}
ROWS = [
    {"a": 300, "b": "text", "c": [1, 2, 3], "d": "A", "e": True, "f": Decimal("1.5")},
    {"a": -1, "b": None, "c": [], "d": "B", "e": False, "f": Decimal("-99.9")},
]


@given(data=st.data())
@settings(max_examples=500, deadline=None)
def test_damaged_values_are_never_other_rows(data: st.DataObject) -> None:
    """A value that is cut off, longer or changed is left to fastavro, or is what fastavro makes of it."""
    values = encoded(1, FLAT, ROWS)
    place = data.draw(st.integers(0, 1))
    damaged = bytearray(values[place])
    match data.draw(st.sampled_from(["cut", "longer", "changed"])):
        case "cut":
            del damaged[data.draw(st.integers(0, len(damaged) - 1)) :]
        case "longer":
            damaged += data.draw(st.binary(min_size=1, max_size=3))
        case "changed":
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    values[place] = bytes(damaged)
    reader = AvroTables(TableSchema(Known(FLAT), "AVRO", json.dumps(FLAT), "", ())).reader(())
    assert reader is not None
    found = reader.arrays(column_of(list(values)), reader.columns)
    try:
        rows = [reader.row(value) for value in values]
        expected = arrays_of_rows(rows, reader.columns)
    except HeadraceError:
        assert found is None
        return
    assert found is None or [array.to_pylist() for array in found] == [array.to_pylist() for array in expected]
