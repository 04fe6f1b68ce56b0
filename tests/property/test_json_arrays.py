"""JSON values that are parsed side by side are those that are parsed and checked one by one."""

from __future__ import annotations

import datetime as dt
import json
import struct
from dataclasses import replace
from typing import Any

from headrace.client.schemas.codecs import JsonSchema
from headrace.client.schemas.registry import RegisteredSchema, SchemaRegistry
from headrace.wire.decoded import BinaryColumn
from headrace.wire.encoding import join_column
from headrace.wire.typed.arrow_columns import arrays_of_rows
from headrace.wire.typed.topic_columns import TopicColumns
from hypothesis import given, settings
from hypothesis import strategies as st

SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    "number": st.floats(allow_nan=False) | st.integers(-9, 9),
    "string": st.text(max_size=5) | st.sampled_from(["null", "2026-01-02T03:04:05.5+02:00", "2026-01-02"]),
}
ANYTHING = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just({"a": [None]}) | st.just([1])


class Known(SchemaRegistry):
    """Registry with one schema, which asks no server."""

    def __init__(self, schema: Any) -> None:
        super().__init__("http://localhost:1")
        self._schema = json.dumps(schema)

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(schema_id, "JSON", self._schema)


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a schema and a strategy of its values."""
    kind = draw(
        st.sampled_from([*SIMPLE, "null", *(["array", "object"] if depth else []), *(["time"] if depth == 2 else [])])
    )
    if kind == "null":
        schema, values = draw(kinds(0))
        return {"anyOf": [schema, {"type": "null"}], "title": "x"}, st.none() | values
    if kind == "time":
        years = dt.datetime(1000, 1, 1), dt.datetime(2999, 1, 1)
        times = st.datetimes(*years, timezones=st.just(dt.UTC)).map(dt.datetime.isoformat)
        return {"type": ["null", "string"], "format": "date-time"}, st.none() | times
    if kind == "array":
        schema, values = draw(kinds(depth - 1))
        return {"type": "array", "items": schema}, st.lists(values, max_size=2)
    if kind == "object":
        return draw(objects(depth - 1))
    return {"type": kind}, SIMPLE[kind]


@st.composite
def objects(draw: st.DrawFn, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a schema of objects and a strategy of its values."""
    properties = {name: draw(kinds(depth)) for name in draw(st.sampled_from(["a", "ab", "abc"]))}
    required = draw(st.sets(st.sampled_from(sorted(properties))))
    schema = {"type": "object", "properties": {name: each for name, (each, _) in properties.items()}}
    schema |= {"required": sorted(required)} if required else {}
    schema |= draw(st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": True}]))
    values = {name: strategy for name, (_, strategy) in properties.items()}
    wanted = {name: strategy for name, strategy in values.items() if name in required}
    more = {name: strategy for name, strategy in values.items() if name not in required}
    if schema.get("additionalProperties", True):
        more["z"] = ANYTHING
    return schema, st.fixed_dictionaries(wanted, optional=more)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, list[bytes | None], bool]:
    """Draw a schema, values, and whether all of them fit."""
    schema, fitting = draw(objects(2))
    values = draw(st.lists(st.none() | fitting.map(encoded), min_size=1, max_size=4))
    if not draw(st.booleans()):
        return schema, values, True
    wrong = ANYTHING | st.dictionaries(st.sampled_from("abcz"), ANYTHING)
    texts = (
        wrong.map(encoded)
        | st.binary(max_size=4)
        | st.sampled_from([b"", b" {}", b"{}{}", b'{"a":1,"a":2}', b'{"z":"\xff"}'])
    )
    values.insert(draw(st.integers(0, len(values))), draw(texts))
    if draw(st.booleans()):
        whole = b"".join(value or b"" for value in values)
        cut = draw(st.integers(0, len(whole)))
        values = [whole[:cut], whole[cut:]]
    return schema, values, False


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def column_of(values: list[bytes | None]) -> BinaryColumn:
    joined = join_column("values", values)
    return BinaryColumn(joined.offsets, memoryview(joined.data), joined.validity)


@settings(max_examples=300, deadline=None)
@given(batches())
def test_arrays_are_those_of_the_rows(batch: tuple[Any, list[bytes | None], bool]) -> None:
    """Of values that fit and of others; what is wrong in any way is left to the rows."""
    schema, values, fit = batch
    reader = JsonSchema(Known(schema), schema).tables.reader(())
    assert reader is not None
    columns = TopicColumns(tuple(replace(each, is_required=False, default="") for each in reader.columns.current))
    sent = [None if value is None else struct.pack(">bI", 0, 7) + value for value in values]
    found = reader.arrays(column_of(sent), columns)
    if found is None:
        # Of values with a null, or with more than a closed object may have, arrays may have to be made row by row.
        is_open = "false" not in json.dumps(schema)
        assert not (fit and is_open and any(values)) or any(b"null" in (value or b"") for value in values)
        return
    expected = arrays_of_rows([{} if value is None else reader.row(value) for value in sent], columns)
    assert [each.to_pylist() for each in found] == [each.to_pylist() for each in expected]


def test_usual_schemas_are_parsed_side_by_side() -> None:
    """Nested, with times, nulls and properties that are left out; not those that say more of a value than its type."""
    place = {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}
    schema = {
        "type": "object",
        "properties": {
            "page": {"type": "string"},
            "user": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "at": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "place": {"$ref": "#/$defs/Place"},
        },
        "required": ["page", "at"],
        "$defs": {"Place": place},
    }
    row = {"page": "/", "at": "2026-01-02T03:04:05Z", "tags": ["a"], "place": {"lat": 1}, "more": [1]}
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

    def arrays(schema: Any, *values: Any) -> Any:
        reader = JsonSchema(Known(schema), schema).tables.reader(())
        assert reader is not None
        sent = [None if value is None else struct.pack(">bI", 0, 7) + encoded(value) for value in values]
        found = reader.arrays(column_of(sent), reader.columns)
        return None if found is None else [each.to_pylist() for each in found]

    assert arrays(schema, row, None, {"page": "é", "at": "2026-01-02T04:04:05+01:00"}) == [
        ["/", None, "é"], [None, None, None], [at, None, at], [["a"], None, None], [{"lat": 1.0}, None, None]
    ]  # fmt: skip
    assert arrays(schema, {**row, "user": None}) == [["/"], [None], [at], [["a"]], [{"lat": 1.0}]]
    for wrong in (
        {"page": "/"},
        {**row, "place": {}},
        {**row, "tags": None},
        {**row, "at": "noon"},
        {**row, "page": 1},
    ):
        assert arrays(schema, row, wrong) is None
    for kind in ({"enum": ["a"]}, {"type": "string", "pattern": "a"}, {"type": "integer", "minimum": 0}):
        assert arrays({"type": "object", "properties": {"x": kind}}, {}) is None
