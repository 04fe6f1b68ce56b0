"""Columns of JSON Schemas, and rows of JSON values."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from headrace.client.base.errors import SerializationError
from headrace.client.schemas.codecs import JsonSchema
from headrace.client.schemas.registry import RegisteredSchema, SchemaReference, SchemaRegistry
from headrace.client.schemas.wire_header import HEADER
from headrace.wire.errors import InvalidConfigError, InvalidRequestError

PLACE = {"type": "object", "properties": {"lat": {"type": "number"}}}


class Known(SchemaRegistry):
    """Registry with one schema, to which others may refer, and which asks no server."""

    def __init__(self) -> None:
        super().__init__("http://localhost:1")

    def version(self, subject: str, version: int, *, serialized: bool = False) -> RegisteredSchema:
        assert (subject, version, serialized) == ("place", 1, False)
        return RegisteredSchema(1, "JSON", json.dumps(PLACE), subject=subject, version=version)


def codec(schema: Any) -> JsonSchema:
    return JsonSchema(Known(), schema, references=[SchemaReference("place.json", "place", 1)])


def columns(schema: Any) -> str:
    return codec(schema).tables.topic_columns()


def of_property(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": kind}, **more}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ({"type": "boolean"}, "bool"),
        ({"type": "integer"}, "int64"),
        ({"type": "number"}, "double"),
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp[us, UTC]"),
        ({"type": "string", "format": "email"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"const": 7}, "int64"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "int64"),
        ({"allOf": [{"type": "integer"}]}, "int64"),
        ({"type": "array", "items": {"type": "integer"}}, "list<int64>"),
        ({"items": {"$ref": "#/definitions/N"}}, "list<double>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string, int64>"),
        ({"properties": {"a": {"type": "string"}}}, "struct<a: string>"),
        ({"$ref": "place.json"}, "struct<lat: double>"),
        ({"type": "integer", "default": 3}, "int64 default 3"),
    ],
)
def test_types(kind: Any, column: str) -> None:
    """Each property that has one type is a column, which may be null: the property may be left out."""
    assert columns(of_property(kind, definitions={"N": {"type": "number"}})) == f"x {column}"


def test_required_properties() -> None:
    """A required property is a required column, unless it may be null; the root may be a reference."""
    schema = {
        "$ref": "#/definitions/Click",
        "definitions": {
            "Click": {
                "type": "object",
                "properties": {"page": {"type": "string"}, "user": {"type": ["null", "integer"]}, "at": PLACE},
                "required": ["page", "user"],
            }
        },
    }
    assert columns(schema) == "page string required, user int64, at struct<lat: double>"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array"}, "the schema is not one of objects with properties"),
        ({"type": "object"}, "the schema is not one of objects with properties"),
        (True, "the property / may be anything"),
        (of_property(True), "the property x may be anything, and a column has one type"),
        (of_property({}), "the property x may be anything"),
        (of_property({"type": ["string", "integer"]}), "the property x may be string or integer, and a column"),
        (of_property({"enum": ["a", 1]}), "the property x may be string or integer"),
        (of_property({"type": "null"}), "the property x may be null"),
        (of_property({"oneOf": [{"type": "string"}, {"type": "integer"}]}), "the property x is one of 2 schemas"),
        (of_property({"type": "array"}), "the property x is an array that does not say of what"),
        (of_property({"type": "array", "items": {}}), r"the property x\[\] may be anything"),
        (of_property({"type": "object"}), "the property x is an object that does not say of what"),
        (of_property({"properties": {"y": {"$ref": "#"}}}), "the property x.y.x.+ has itself inside"),
        ({"properties": {"_x": {"type": "string"}}}, "the name '_x' begins with an underscore"),
    ],
)
def test_what_is_no_column(schema: Any, message: str) -> None:
    """The message has the property and the reason."""
    with pytest.raises(InvalidConfigError, match=message):
        columns(schema)


def test_rows() -> None:
    """Values are checked by the schema, and have the types of the columns; what has no column is left out."""
    schema = of_property({"type": "string", "format": "date-time"}, required=["x"])
    reader = codec(schema).tables.reader(())
    assert reader is not None
    header = HEADER.pack(0, 1)

    class Answers(Known):
        def by_id(self, schema_id: int) -> RegisteredSchema:
            return RegisteredSchema(schema_id, "JSON", json.dumps(schema))

    found = JsonSchema(Answers(), schema).tables.reader(())
    assert found is not None
    for digits in ("", ".000000001"):  # As Go writes them: columns have microseconds.
        row = found.row(header + b'{"x": "2026-01-01T12:00:00%sZ", "more": [1]}' % digits.encode())
        assert row == {"x": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)}
    with pytest.raises(SerializationError, match="'x' is a required property"):
        found.row(header + b"{}")
    with pytest.raises(InvalidRequestError, match="column x: 'noon' is no timestamp"):
        found.row(header + b'{"x": "noon"}')
    assert JsonSchema(Answers(), {"type": "array"}).tables.reader(()) is None
    assert JsonSchema(Answers()).tables.reader([None]) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_a_number_that_json_lacks_is_not_written(value: Any) -> None:
    """`NaN` is no JSON: clients in other languages fail on it."""

    class Latest(Known):
        def latest(self, subject: str, *, serialized: bool = False) -> RegisteredSchema:
            return RegisteredSchema(1, "JSON", json.dumps(of_property({})), subject=subject, version=1)

    written = JsonSchema(Latest(), subject="measures-value")
    assert written.serialize({"x": 1.5}) == HEADER.pack(0, 1) + b'{"x":1.5}'
    place = r"does not fit schema 1 of subject 'measures-value': \$\.x.* is -?(nan|inf), which JSON does not have"
    with pytest.raises(SerializationError, match=place):
        written.serialize({"x": value})
