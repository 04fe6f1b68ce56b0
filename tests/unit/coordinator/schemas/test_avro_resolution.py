"""Avro's schema resolution as a table: each row is a reader, a writer, and the rules that forbid it."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import io
import itertools
import json
import math
from typing import Any

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from headrace_coordinator.core.schemas.formats import AVRO, parse_schema
from headrace_coordinator.core.schemas.schema import MAX_DEPTH, InvalidSchemaError, SchemaText

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
VALUES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 7,
    "long": 1 << 40,
    "float": 1.5,
    "double": 2.5,
    "bytes": b"ab",
    "string": "ab",
}
# Specification, "Schema Resolution": what a reader of each row accepts besides its own type.
PROMOTED = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def decimal(precision: int, scale: int = 0) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


LIST = record(field("value", "int"), field("next", ["null", "Node"], default=None), name="Node")
LONG_LIST = record(field("value", "long"), field("next", ["null", "Node"], default=None), name="Node")
TEXT_LIST = record(field("value", "string"), field("next", ["null", "Node"], default=None), name="Node")

# description, reader, writer, a value of the writer, rules
TABLE: list[tuple[str, Any, Any, Any, list[str]]] = [
    ("equal records", record(field("a", "int")), record(field("a", "int")), {"a": 1}, []),
    ("reader ignores a field", record(), record(field("a", "int")), {"a": 1}, []),
    ("field order", record(field("b", "int"), field("a", "int")), record(field("a", "int"), field("b", "int")), {"a": 1, "b": 2}, []),
    ("new field with default", record(field("a", "int"), field("b", "int", default=5)), record(field("a", "int")), {"a": 1}, []),
    ("new field with null default", record(field("b", ["null", "int"], default=None)), record(), {}, []),
    ("new field without default", record(field("a", "int")), record(), {}, ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    ("new optional field without default", record(field("b", ["null", "int"])), record(), {}, ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    ("two faults", record(field("a", "int"), field("b", "int")), record(), {}, ["READER_FIELD_MISSING_DEFAULT_VALUE"] * 2),
    ("renamed field with alias", record(field("b", "int", aliases=["a"])), record(field("a", "int")), {"a": 1}, []),
    ("renamed field without alias", record(field("b", "int")), record(field("a", "int")), {"a": 1}, ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    ("promoted field", record(field("a", "double")), record(field("a", "int")), {"a": 1}, []),
    ("narrowed field", record(field("a", "int")), record(field("a", "long")), {"a": 1}, ["TYPE_MISMATCH"]),
    ("other record name", record(name="S"), record(), {}, ["NAME_MISMATCH"]),
    ("record alias", record(name="S", aliases=["R"]), record(), {}, []),
    ("record alias in a namespace", record(name="n.S", aliases=["R"]), record(name="n.R"), {}, []),
    ("full alias in another namespace", record(name="n.S", aliases=["m.R"]), record(name="m.R"), {}, []),
    ("namespace changed", record(name="m.R"), record(name="n.R"), {}, []),
    ("nested record", record(field("a", record(field("x", "int", default=0), name="N"))), record(field("a", record(name="N"))), {"a": {}}, []),
    ("nested fault", record(field("a", record(field("x", "int"), name="N"))), record(field("a", record(name="N"))), {"a": {}}, ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    ("recursive", LIST, LIST, {"value": 1, "next": {"value": 2, "next": None}}, []),
    ("recursive and promoted", LONG_LIST, LIST, {"value": 1, "next": None}, []),
    ("recursive and wrong", TEXT_LIST, LIST, {"value": 1, "next": None}, ["TYPE_MISMATCH"]),
    ("enum", enum("A", "B"), enum("A", "B"), "A", []),
    ("enum in other order", enum("B", "A"), enum("A", "B"), "A", []),
    ("enum symbol added in the reader", enum("A", "B", "C"), enum("A", "B"), "B", []),
    ("enum symbol missing in the reader", enum("A"), enum("A", "B"), "B", ["MISSING_ENUM_SYMBOLS"]),
    ("enum symbol missing, with default", enum("A", default="A"), enum("A", "B"), "B", []),
    ("other enum name", enum("A", name="G"), enum("A"), "A", ["NAME_MISMATCH"]),
    ("enum alias", enum("A", name="G", aliases=["E"]), enum("A"), "A", []),
    ("fixed", fixed(4), fixed(4), b"abcd", []),
    ("fixed of another size", fixed(8), fixed(4), b"abcd", ["FIXED_SIZE_MISMATCH"]),
    ("other fixed name", fixed(4, name="G"), fixed(4), b"abcd", ["NAME_MISMATCH"]),
    ("array", array("int"), array("int"), [1], []),
    ("array of promoted", array("long"), array("int"), [1], []),
    ("array of others", array("string"), array("int"), [1], ["TYPE_MISMATCH"]),
    ("map", mapped("int"), mapped("int"), {"k": 1}, []),
    ("map of promoted", mapped("float"), mapped("long"), {"k": 1}, []),
    ("map of others", mapped("boolean"), mapped("int"), {"k": 1}, ["TYPE_MISMATCH"]),
    ("array for map", array("int"), mapped("int"), {"k": 1}, ["TYPE_MISMATCH"]),
    ("union reads its branch", ["null", "int"], "int", 1, []),
    ("union reads a promoted branch", ["null", "long"], "int", 1, []),
    ("union without the branch", ["null", "int"], "string", "x", ["MISSING_UNION_BRANCH"]),
    ("unions", ["int", "null"], ["null", "int"], 1, []),
    ("union grows", ["null", "int", "string"], ["null", "int"], 1, []),
    ("union shrinks", ["null", "int"], ["null", "int", "string"], 1, ["MISSING_UNION_BRANCH"]),
    ("reader has one branch of the writer", "int", ["null", "int"], 1, ["TYPE_MISMATCH"]),
    ("every branch of the writer is promoted", "double", ["int", "long"], 1, []),
    ("union of records", [record(name="A"), record(name="B")], [record(name="B")], {}, []),
    ("union without the record", [record(name="A")], [record(name="B")], {}, ["MISSING_UNION_BRANCH"]),
    ("logical type is its base", {"type": "long", "logicalType": "timestamp-millis"}, "long", 1, []),
    ("decimal", decimal(9, 2), decimal(9, 2), b"\x01", []),
    ("decimal of another scale", decimal(9, 3), decimal(9, 2), b"\x01", ["DECIMAL_MISMATCH"]),
    ("decimal of another precision", decimal(10, 2), decimal(9, 2), b"\x01", ["DECIMAL_MISMATCH"]),
    ("decimal as bytes", "bytes", decimal(9, 2), b"\x01", []),
    ("fixed decimal of another scale", fixed(4, logicalType="decimal", precision=9, scale=1), fixed(4, logicalType="decimal", precision=9), b"abcd", ["DECIMAL_MISMATCH"]),
]  # fmt: skip


def parse(schema: Any) -> Any:
    return parse_schema(AVRO, SchemaText(json.dumps(schema)))


def rules(reader: Any, writer: Any) -> list[str]:
    return [reason.rule for reason in parse(reader).why_unreadable(parse(writer))]


@pytest.mark.parametrize(
    ("reader", "writer", "value", "broken"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_resolution_of_complex_types(reader: Any, writer: Any, value: Any, broken: list[str]) -> None:
    """Each row of the table breaks its rules and no others, and fastavro reads what the table allows."""
    assert rules(reader, writer) == broken
    if not broken and "logicalType" not in json.dumps(writer):
        encoded = io.BytesIO()
        fastavro.schemaless_writer(encoded, writer, value)
        encoded.seek(0)
        fastavro.schemaless_reader(encoded, writer, reader)


@pytest.mark.parametrize(("reader", "writer"), list(itertools.product(PRIMITIVES, repeat=2)))
def test_resolution_of_primitive_types(reader: str, writer: str) -> None:
    """A primitive type reads itself and what is promoted to it, as fastavro does, and nothing else."""
    allowed = reader == writer or writer in PROMOTED.get(reader, ())
    assert rules(reader, writer) == ([] if allowed else ["TYPE_MISMATCH"])
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, writer, VALUES[writer])
    encoded.seek(0)
    if allowed:
        fastavro.schemaless_reader(encoded, writer, reader)
    else:
        with pytest.raises(SchemaResolutionError):
            fastavro.schemaless_reader(encoded, writer, reader)


def test_reason_names_the_field_and_its_place() -> None:
    reader = record(field("a", "int"), field("b", record(field("c", "int"), name="N")))
    writer = record(field("a", "int"), field("b", record(name="N")))
    (reason,) = parse(reader).why_unreadable(parse(writer))
    assert reason.path == "/fields/1/type/fields/0"
    assert "'c'" in reason.message


def test_failed_branch_leaves_no_assumption() -> None:
    """A recursive type that a failed branch of a union assumed to be readable is compared again."""
    inner = record(field("up", ["null", "Outer"], default=None), name="Inner")

    def pair(kind: str) -> Any:
        outer = record(field("down", inner), field("x", kind), name="Outer")
        return parse(record(field("one", ["null", outer]), field("two", "Inner")))

    paths = [reason.path for reason in pair("int").why_unreadable(pair("string"))]
    assert paths == ["/fields/0/type", "/fields/1/type/fields/0/type"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid"),
        ("[]x", "not valid"),
        ('{"type": "record"}', "not valid"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Missing"}]}', "'Missing' is not defined"),
        ('{"type": "enum", "name": "E", "symbols": ["a", "a"]}', "not valid"),
        ("[" * 5_000 + "]" * 5_000, "nested more than 100 deep"),
        ("[" * 100_000 + "]" * 100_000, "nested more than 100 deep"),
        ('{"type":"array","items":' * (MAX_DEPTH + 1) + '"int"' + "}" * (MAX_DEPTH + 1), "nested more than"),
        (json.dumps(record(field("x", "double", default=math.nan))), "NaN is not JSON"),
        ("7", "not valid"),
        ("null", "not valid"),
    ],
)
def test_invalid_schema_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSchemaError, match=said):
        parse_schema(AVRO, SchemaText(text))


def test_reference_defines_a_type() -> None:
    """A schema uses the types of its references, also of those that two of them share."""
    base = SchemaText(json.dumps(record(field("x", "int"), name="n.Base")))
    left = SchemaText(json.dumps(record(field("b", "n.Base"), name="n.Left")), references={"n.Base": base})
    right = SchemaText(json.dumps(record(field("b", "n.Base"), name="n.Right")), references={"n.Base": base})
    both = json.dumps(record(field("l", "n.Left"), field("r", "n.Right"), name="n.Both"))
    parsed = parse_schema(AVRO, SchemaText(both, references={"n.Left": left, "n.Right": right}))
    assert parsed.why_unreadable(parsed) == []
    with pytest.raises(InvalidSchemaError, match="Left"):
        parse_schema(AVRO, SchemaText(both))


def test_equal_schemas_have_one_canonical_form() -> None:
    one = parse_schema(AVRO, SchemaText('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'))
    other = parse_schema(
        AVRO, SchemaText('{"name":"R","type":"record",\n"fields":[{"type":{"type":"int"},"name":"a"}]}')
    )
    third = parse_schema(AVRO, SchemaText('{"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}'))
    assert one.canonical == other.canonical != third.canonical
