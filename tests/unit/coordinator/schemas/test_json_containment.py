"""Compatibility of JSON Schemas as a table: a reader, a writer, and the rules that forbid it."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace_coordinator.core.schemas import json_containment
from headrace_coordinator.core.schemas.formats import JSON, parse_schema
from headrace_coordinator.core.schemas.schema import InvalidSchemaError, SchemaText


def thing(required: tuple[str, ...] = (), closed: bool = False, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties, "required": list(required)}
    return found | ({"additionalProperties": False} if closed else {})


TEXT, INT, NUMBER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "null"}
D2020 = "https://json-schema.org/draft/2020-12/schema"
D2019 = "https://json-schema.org/draft/2019-09/schema"
D6 = "http://json-schema.org/draft-06/schema#"
D4 = "http://json-schema.org/draft-04/schema#"
CAT = thing(("kind",), kind={"const": "cat"}, lives=INT)
DOG = thing(("kind",), kind={"const": "dog"}, tail=TEXT)
COW = thing(("kind",), kind={"const": "cow"})
TREE = {"$ref": "#/definitions/node", "definitions": {"node": thing(value=INT, next={"$ref": "#/definitions/node"})}}
WIDE_TREE = {"$ref": "#/definitions/n", "definitions": {"n": thing(value=NUMBER, next={"$ref": "#/definitions/n"})}}
TEXT_TREE = {"$ref": "#/definitions/n", "definitions": {"n": thing(value=TEXT, next={"$ref": "#/definitions/n"})}}

TABLE: list[tuple[str, Any, Any, list[str]]] = [
    ("anything", True, {"type": "object"}, []),
    ("nothing is written", TEXT, False, []),
    ("nothing is read", False, TEXT, ["SCHEMA_NARROWED"]),
    ("an empty schema is everything", {}, TEXT, []),
    ("everything was written", TEXT, {}, ["TYPE_NARROWED"]),
    ("type extended", {"type": ["string", "null"]}, TEXT, []),
    ("type narrowed", TEXT, {"type": ["string", "null"]}, ["TYPE_NARROWED"]),
    ("integers are numbers", NUMBER, INT, []),
    ("numbers are no integers", INT, NUMBER, ["TYPE_NARROWED"]),
    ("enum extended", {"enum": ["a", "b"]}, {"enum": ["a"]}, []),
    ("enum narrowed", {"enum": ["a"]}, {"enum": ["a", "b"]}, ["ENUM_ARRAY_NARROWED"]),
    ("enum added", {"enum": ["a"]}, TEXT, ["ENUM_ARRAY_NARROWED"]),
    ("const in enum", {"enum": ["a", "b"]}, {"const": "a"}, []),
    ("true is not one", {"enum": [1]}, {"const": True}, ["ENUM_ARRAY_NARROWED"]),
    ("enum has types", {"type": "string"}, {"enum": ["a", "b"]}, []),
    ("enum of another type", {"type": "string"}, {"enum": ["a", 1, None, 1.5, [], {}, True]}, ["TYPE_NARROWED"]),
    ("maximum removed", INT, {"type": "integer", "maximum": 5}, []),
    ("maximum increased", {"maximum": 6}, {"maximum": 5}, []),
    ("maximum decreased", {"maximum": 4}, {"maximum": 5}, ["MAXIMUM_DECREASED"]),
    ("maximum added", {"maximum": 4}, INT, ["MAXIMUM_DECREASED"]),
    ("exclusive is tighter", {"maximum": 5}, {"exclusiveMaximum": 5}, []),
    ("inclusive is wider", {"exclusiveMaximum": 5}, {"maximum": 5}, ["MAXIMUM_DECREASED"]),
    ("exclusive of draft 4", {"$schema": D4, "maximum": 5, "exclusiveMaximum": True}, {"$schema": D4, "maximum": 5}, ["MAXIMUM_DECREASED"]),
    ("minimum increased", {"minimum": 5}, {"minimum": 4}, ["MINIMUM_INCREASED"]),
    ("exclusive minimum", {"exclusiveMinimum": 4}, {"minimum": 4}, ["MINIMUM_INCREASED"]),
    ("bounds of other types do not count", {"maxLength": 3}, INT, []),
    ("length decreased", {"maxLength": 3}, {"type": "string", "maxLength": 4}, ["MAX_LENGTH_DECREASED"]),
    ("length increased", {"minLength": 3}, {"type": "string", "minLength": 2}, ["MIN_LENGTH_INCREASED"]),
    ("multiple", {"multipleOf": 5}, {"multipleOf": 10}, []),
    ("no multiple", {"multipleOf": 10}, {"multipleOf": 5}, ["MULTIPLE_OF_CHANGED"]),
    ("multiple of a fraction", {"multipleOf": 0.1}, {"multipleOf": 0.3}, []),
    ("pattern removed", TEXT, {"type": "string", "pattern": "a"}, []),
    ("pattern kept", {"pattern": "a"}, {"type": "string", "pattern": "a"}, []),
    ("pattern changed", {"pattern": "a"}, {"type": "string", "pattern": "b"}, ["PATTERN_CHANGED"]),
    ("format is an annotation", {"type": "string", "format": "date"}, TEXT, []),
    ("property removed from an open model", thing(), thing(a=TEXT), []),
    ("property added to an open model", thing(a=TEXT), thing(), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    ("empty property added to an open model", thing(a={}), thing(), []),
    ("optional property added to a closed model", thing(closed=True, a=TEXT), thing(closed=True), []),
    ("property removed from a closed model", thing(closed=True), thing(closed=True, a=TEXT), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
    ("required property added", thing(("a",), closed=True, a=TEXT), thing(closed=True), ["REQUIRED_ATTRIBUTE_ADDED"]),
    ("property is no longer required", thing(a=TEXT), thing(("a",), a=TEXT), []),
    ("property becomes required", thing(("a",), a=TEXT), thing(a=TEXT), ["REQUIRED_ATTRIBUTE_ADDED"]),
    ("property narrowed", thing(a=INT), thing(a=NUMBER), ["TYPE_NARROWED"]),
    ("model closed", thing(closed=True, a=TEXT), thing(a=TEXT), ["ADDITIONAL_PROPERTIES_NARROWED"]),
    ("model opened", thing(a=TEXT), thing(closed=True, a=TEXT), []),
    ("additional narrowed", thing() | {"additionalProperties": INT}, thing() | {"additionalProperties": NUMBER}, ["ADDITIONAL_PROPERTIES_NARROWED"]),
    ("additional covers", thing() | {"additionalProperties": NUMBER}, thing(closed=True, a=INT), []),
    ("patterns kept", {"patternProperties": {"^x": NUMBER}}, {"type": "object", "patternProperties": {"^x": INT}}, []),
    ("patterns added", {"patternProperties": {"^x": INT}}, {"type": "object"}, ["TYPE_NARROWED"]),
    ("a pattern hides a property", thing(xa=TEXT), {"type": "object", "patternProperties": {"^x": INT}, "additionalProperties": False}, ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    ("sizes", {"minProperties": 1}, {"type": "object", "minProperties": 2}, []),
    ("too small", {"minProperties": 2}, {"type": "object", "minProperties": 1}, ["MIN_PROPERTIES_INCREASED"]),
    ("dependent", {"$schema": D2020, "dependentRequired": {"a": ["b"]}}, {"$schema": D2020, "type": "object", "dependentRequired": {"a": ["b", "c"]}}, []),
    ("more dependent", {"$schema": D2020, "dependentRequired": {"a": ["b"]}}, {"$schema": D2020, "type": "object"}, ["DEPENDENCY_ARRAY_EXTENDED"]),
    ("names", {"propertyNames": {"maxLength": 3}}, {"type": "object"}, ["PROPERTY_NAMES_CHANGED"]),
    ("items", {"items": NUMBER}, {"type": "array", "items": INT}, []),
    ("items narrowed", {"items": INT}, {"type": "array", "items": NUMBER}, ["TYPE_NARROWED"]),
    ("unique", {"uniqueItems": True}, {"type": "array"}, ["UNIQUE_ITEMS_ADDED"]),
    ("unique kept", {"uniqueItems": True}, {"type": "array", "uniqueItems": True}, []),
    ("tuple", {"items": [NUMBER, TEXT]}, {"type": "array", "items": [INT, TEXT]}, []),
    ("tuple narrowed", {"items": [INT, INT]}, {"type": "array", "items": [INT, TEXT]}, ["TYPE_NARROWED"]),
    ("tuple of 2020", {"$schema": D2020, "prefixItems": [NUMBER], "items": TEXT}, {"$schema": D2020, "type": "array", "prefixItems": [INT, TEXT], "items": False}, []),
    ("more than the tuple", {"items": [INT], "additionalItems": False}, {"type": "array", "items": [INT]}, ["SCHEMA_NARROWED"]),
    ("all", {"allOf": [thing(a=INT), {"required": ["a"]}]}, thing(("a",), a=INT), []),
    ("not all", {"allOf": [thing(a=INT), {"required": ["a"]}]}, thing(a=INT), ["REQUIRED_ATTRIBUTE_ADDED"]),
    ("writer has all", thing(("a",), a=INT), {"allOf": [thing(a=INT), {"required": ["a"]}]}, []),
    ("any extended", {"anyOf": [INT, TEXT]}, INT, []),
    ("any narrowed", {"anyOf": [INT, TEXT]}, {"anyOf": [INT, NULL]}, ["SUM_TYPE_NARROWED"]),
    ("any of any", {"anyOf": [INT, TEXT, NULL]}, {"anyOf": [NULL, INT]}, []),
    ("one replaces any", INT, {"anyOf": [INT, TEXT]}, ["TYPE_NARROWED"]),
    ("one-of extended", {"oneOf": [CAT, DOG, COW]}, {"oneOf": [CAT, DOG]}, []),
    ("one-of narrowed", {"oneOf": [CAT]}, {"oneOf": [CAT, DOG]}, ["SUM_TYPE_NARROWED"]),
    ("one-of by type", {"oneOf": [INT, TEXT]}, INT, []),
    ("one-of that overlaps", {"oneOf": [INT, NUMBER]}, INT, ["SUM_TYPE_NARROWED"]),
    ("one-of that overlaps, kept", {"oneOf": [{"minimum": 1}, {"maximum": 5}]}, {"type": "integer", "oneOf": [{"minimum": 1}, {"maximum": 5}]}, []),
    ("not kept", {"not": TEXT}, {"not": {"type": ["string", "null"]}}, []),
    ("not by type", {"not": TEXT}, INT, []),
    ("not added", {"not": {"const": 1}}, INT, ["NOT_TYPE_EXTENDED"]),
    ("if kept", {"if": TEXT, "then": {"minLength": 1}}, {"if": TEXT, "then": {"minLength": 1}}, []),
    ("if added", {"if": TEXT, "then": {"minLength": 1}}, TEXT, ["IF_CHANGED"]),
    ("recursive", TREE, TREE, []),
    ("recursive, wider", WIDE_TREE, TREE, []),
    ("recursive, other", TEXT_TREE, TREE, ["TYPE_NARROWED"]),
    ("siblings of $ref count since 2019", {"$schema": D2020, "$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": INT}}, {"$schema": D2020, "type": "integer"}, ["MAXIMUM_DECREASED"]),
    ("prefixItems of the writer mean nothing in draft 7", {"items": [INT]}, {"type": "array", "prefixItems": [INT]}, ["TYPE_NARROWED"]),
    ("prefixItems of the reader mean nothing in draft 7", {"type": "array", "prefixItems": [INT]}, {"type": "array"}, []),
    ("prefixItems in draft 7 may be anything", {"prefixItems": 7}, {"prefixItems": 8}, []),
    ("dependentRequired means nothing in draft 7", {"$schema": D2019, "dependentRequired": {"a": ["b"]}}, {"type": "object", "dependentRequired": {"a": ["b"]}}, ["DEPENDENCY_ARRAY_EXTENDED"]),
    ("dependencies mean nothing since 2019", {"dependencies": {"a": ["b"]}}, {"$schema": D2019, "type": "object", "dependencies": {"a": ["b"]}}, ["DEPENDENCIES_CHANGED"]),
    ("const means nothing in draft 4", {"enum": ["a"]}, {"$schema": D4, "type": "string", "const": "a"}, ["ENUM_ARRAY_NARROWED"]),
    ("const means something in draft 6", {"enum": ["a"]}, {"$schema": D6, "type": "string", "const": "a"}, []),
    ("if means nothing in draft 6", {"properties": {"x": {"if": TEXT, "then": {"minLength": 1}}}}, {"$schema": D6, "type": "object", "properties": {"x": {"if": TEXT, "then": {"minLength": 1}}}}, ["IF_CHANGED"]),
    ("names with an if that draft 6 lacks", {"propertyNames": {"if": TEXT, "then": {"minLength": 1}}}, {"$schema": D6, "type": "object", "propertyNames": {"if": TEXT, "then": {"minLength": 1}}}, ["PROPERTY_NAMES_CHANGED"]),
    ("names of another draft", {"$schema": D2020, "propertyNames": {"maxLength": 3}}, {"type": "object", "propertyNames": {"maxLength": 3}}, []),
    ("unevaluated properties of the same text in draft 7", {"$schema": D2020, "properties": {"x": {"unevaluatedProperties": False}}}, {"type": "object", "properties": {"x": {"unevaluatedProperties": False}}}, ["UNEVALUATED_PROPERTIES_CHANGED"]),
    ("siblings of $ref do not count in draft 7", {"$ref": "#/definitions/a", "maximum": 3, "definitions": {"a": INT}}, INT, []),
]  # fmt: skip


def parse(schema: Any) -> Any:
    return parse_schema(JSON, SchemaText(json.dumps(schema)))


@pytest.mark.parametrize(("reader", "writer", "broken"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_containment(reader: Any, writer: Any, broken: list[str]) -> None:
    """Each row of the table breaks its rules and no others."""
    assert [reason.rule for reason in parse(reader).why_unreadable(parse(writer))] == broken


def test_reason_names_the_property_and_its_place() -> None:
    (reason,) = parse(thing(a=thing(b=INT))).why_unreadable(parse(thing(a=thing(b=NUMBER))))
    assert reason.path == "/properties/a/properties/b"
    assert reason.message == "the reader allows type integer, the writer integer or number"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "not valid"),
        ("7", "neither an object nor a boolean"),
        ('{"type": "strin"}', r"at \$.type"),
        ('{"$schema": "http://example.org/own"}', "no known draft"),
        ('{"properties": {"a": {"$ref": "#/definitions/a"}}}', "leads nowhere"),
        ('{"$ref": "other.json"}', "'other.json' leads nowhere"),
        ('{"default": -Infinity}', "-Infinity is not JSON"),
        ("[" * 5_000 + "]" * 5_000, "nested more than 100 deep"),
        ("[" * 100_000 + "]" * 100_000, "nested more than 100 deep"),
    ],
)
def test_invalid_schema_is_refused(schema: str, said: str) -> None:
    with pytest.raises(InvalidSchemaError, match=said):
        parse_schema(JSON, SchemaText(schema))


def test_references_are_followed() -> None:
    """A `$ref` leads to the reference of its name, in both schemas to its own version."""

    def using(address: dict[str, Any]) -> Any:
        text = json.dumps(thing(a={"$ref": "address.json"}))
        return parse_schema(JSON, SchemaText(text, references={"address.json": SchemaText(json.dumps(address))}))

    assert using(NUMBER).why_unreadable(using(INT)) == []
    assert [reason.rule for reason in using(INT).why_unreadable(using(NUMBER))] == ["TYPE_NARROWED"]
    assert using(INT).why_unreadable(using(INT)) == []


def test_a_reference_has_its_own_draft() -> None:
    """As validators have it; a part of the other document has the draft of the schema that refers to it."""
    pair = {"$schema": D2020, "type": "array", "prefixItems": [INT], "$defs": {"pair": {"prefixItems": [INT]}}}
    references = {"pair.json": SchemaText(json.dumps(pair))}
    reader = parse({"properties": {"a": {"items": [INT]}}})
    for place, rules in (("", []), ("#/$defs/pair", ["TYPE_NARROWED"])):
        written = thing(a={"allOf": [{"type": "array"}, {"$ref": f"pair.json{place}"}]})
        writer = parse_schema(JSON, SchemaText(json.dumps(written), references=references))
        assert [reason.rule for reason in reader.why_unreadable(writer)] == rules


def test_comparison_of_unlimited_cost_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_containment, "MAX_STEPS", 100)
    choices = {"allOf": [{"anyOf": [{"minimum": n}, {"maximum": n}]} for n in range(20)]}
    with pytest.raises(InvalidSchemaError, match="steps"):
        parse(INT | choices | {"title": "other", "maximum": 3}).why_unreadable(parse(INT | choices))
