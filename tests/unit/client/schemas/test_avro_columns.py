"""Columns of Avro schemas, and rows of values of several versions."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from headrace.client.base.errors import SerializationError
from headrace.client.schemas import avro_cursor
from headrace.client.schemas.avro_columns import columns_of_avro
from headrace.client.schemas.avro_tables import AvroRows, AvroTables
from headrace.client.schemas.registry import RegisteredSchema, SchemaRegistry
from headrace.client.schemas.table_schema import TableSchema
from headrace.client.schemas.wire_header import HEADER
from headrace.wire.decoded import BinaryColumn
from headrace.wire.encoding import join_column
from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.arrow_columns import arrays_of_rows


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def columns(schema: Any) -> str:
    named: dict[str, Any] = {}
    return str(columns_of_avro(fastavro.parse_schema(schema, named_schemas=named), named))


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("boolean", "bool required"),
        ("int", "int32 required"),
        (["null", "long"], "int64"),
        (["float", "null"], "float"),
        ({"type": "double"}, "double required"),
        ("bytes", "binary required"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary[4] required"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string required"),
        ({"type": "array", "items": ["null", "int"]}, "list<int32> required"),
        ({"type": "map", "values": "string"}, "map<string, string> required"),
        (record(field("a", "int"), field("b", ["null", "string"]), name="S"),
         "struct<a: int32, b: string> required"),
        (logical("bytes", "decimal", precision=9, scale=2), "decimal(9, 2) required"),
        ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 4}, "decimal(4, 0) required"),
        (logical("int", "date"), "date required"),
        (logical("int", "time-millis"), "time[ms] required"),
        (logical("long", "time-micros"), "time[us] required"),
        (["null", logical("long", "timestamp-millis")], "timestamp[ms, UTC]"),
        (logical("long", "timestamp-micros"), "timestamp[us, UTC] required"),
        (logical("long", "timestamp-nanos"), "timestamp[ns, UTC] required"),
        (logical("long", "local-timestamp-millis"), "timestamp[ms] required"),
        (logical("string", "uuid"), "string required"),
        (logical("long", "of-someone-else"), "int64 required"),
    ],
)  # fmt: skip
def test_types(kind: Any, column: str) -> None:
    """Each type of Avro has one of a column; null is a part of the union."""
    assert columns(record(field("x", kind))) == f"x {column}"


def test_defaults_and_names_of_other_records() -> None:
    """Numbers, strings and bools have defaults; a record that was named before is the same one."""
    place = record(field("lat", "double"), name="Place")
    found = columns(
        record(
            field("a", "int", default=3),
            field("b", ["string", "null"], default="x"),
            field("c", ["null", "string"], default=None),
            field("d", {"type": "array", "items": "int"}, default=[]),
            field("here", place),
            field("there", ["null", "Place"]),
        )
    )
    assert found == (
        'a int32 required default 3, b string default "x", c string, d list<int32> required, '
        "here struct<lat: double> required, there struct<lat: double>"
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("string", "the schema is no record"),
        (record(field("x", ["int", "string"])), "the field x is a union of int and string, and a column has one type"),
        (record(field("x", ["null", "int", "string"])), "the field x is a union of int and string"),
        (record(field("x", {"type": "array", "items": ["int", "R"]})), r"the field x\[\] is a union of int and R"),
        (record(field("next", ["null", "R"])), "the field next has a R in itself"),
        (record(field("x", record(field("y", ["null", "R"]), name="S"))), "the field x.y has a R in itself"),
        (record(field("x", "null")), "the field x is null, which no column can be"),
        (record(field("_x", "int")), "the name '_x' begins with an underscore"),
        (record(field("x", {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"})), "is duration"),
        (record(), "the record R has no fields"),
    ],
)
def test_what_is_no_column(schema: Any, message: str) -> None:
    """The message has the field and the reason."""
    with pytest.raises(InvalidConfigError, match=message):
        columns(schema)


class Known(SchemaRegistry):
    """Registry of some schemas, which asks no server."""

    def __init__(self, *schemas: Any) -> None:
        super().__init__("http://localhost:1")
        self._known = {
            number: RegisteredSchema(number, "AVRO", json.dumps(each)) for number, each in enumerate(schemas, 1)
        }

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return self._known[schema_id]


OLD = record(field("item", "string"), field("count", "int"))
NEW = record(field("count", "long"), field("id", logical("string", "uuid"), default="none"))


def value(schema_id: int, schema: Any, row: dict[str, Any]) -> bytes:
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(schema), row)
    return HEADER.pack(0, schema_id) + encoded.getvalue()


def test_rows_are_those_of_the_readers_schema() -> None:
    """What another version wrote is resolved: widened, in another order, with defaults, without what is not asked."""
    old = value(1, OLD, {"item": "tea", "count": 3})
    reader = AvroTables(TableSchema(Known(OLD, NEW), "AVRO", json.dumps(NEW), "", ())).reader([old])
    assert reader is not None
    assert str(reader.columns) == 'count int64 required, id string required default "none"'
    assert reader.row(old) == {"count": 3, "id": "none"}


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        ({"type": "array", "items": "string"}, [], []),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        ({"type": "enum", "name": "Colour", "symbols": ["RED"]}, "RED", "RED"),
        (logical("long", "timestamp-millis"), 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (logical("string", "uuid"), "none", "none"),
        ({"type": "string"}, "", ""),
        (["null", {"type": "array", "items": "int"}], None, None),
        ("double", 1, 1.0),
    ],
)
def test_a_new_field_has_its_default_in_a_table(kind: Any, default: Any, found: Any) -> None:
    """Of whatever type; `arrays` leaves most to `row`."""
    new = record(field("item", "string"), field("more", kind, default=default))
    values = join_column("value", [value(1, OLD, {"item": "tea", "count": 3})])
    columns = BinaryColumn(values.offsets, memoryview(values.data), None)
    reader = AvroTables(TableSchema(Known(OLD, new), "AVRO", json.dumps(new), "", ())).reader(())
    assert isinstance(reader, AvroRows)
    arrays = reader.arrays(columns, reader.columns)
    if arrays is None:
        arrays = arrays_of_rows([reader.row(bytes(values.data))], reader.columns)
    assert [array.to_pylist() for array in arrays] == [["tea"], [found]]


def test_without_a_schema_rows_are_those_of_the_newest_value() -> None:
    """None at all without values; nor for values that are no records."""
    registry = Known(OLD, NEW, "string")
    tables = AvroTables(TableSchema(registry, "AVRO", "", "", ()))
    old, new = value(1, OLD, {"item": "tea", "count": 3}), value(2, NEW, {"count": 4, "id": "a"})
    reader = tables.reader([old, None, new])
    assert reader is not None
    assert [reader.row(old), reader.row(new)] == [{"count": 3, "id": "none"}, {"count": 4, "id": "a"}]
    assert tables.reader([None]) is None
    assert tables.reader([value(3, "string", "x")]) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"x", "do not begin with 0"), (HEADER.pack(0, 1) + b"\x06te", "do not fit schema 1"),
     (value(1, OLD, {"item": "tea", "count": 3}) + b"x", "more than the value of schema 1 has")],
)  # fmt: skip
def test_bytes_that_do_not_fit(data: bytes, message: str) -> None:
    """Cut off, too long, or of no schema."""
    reader = AvroTables(TableSchema(Known(OLD), "AVRO", json.dumps(OLD), "", ())).reader(())
    assert reader is not None
    with pytest.raises(SerializationError, match=message):
        reader.row(data)


def test_texts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied in steps of bounded memory: of one large text, of some, and of none."""
    monkeypatch.setattr(avro_cursor, "GATHERED_BYTES", 10)
    texts = ["", "a", "bc" * 20, "", "defgh", "ij", "klmnopqrst", "", ""]
    rows = [{"item": text, "count": number} for number, text in enumerate(texts)]
    joined = join_column("value", [value(1, OLD, row) for row in rows])
    reader = AvroTables(TableSchema(Known(OLD), "AVRO", json.dumps(OLD), "", ())).reader(())
    assert reader is not None
    found = reader.arrays(BinaryColumn(joined.offsets, memoryview(joined.data), joined.validity), reader.columns)
    assert found is not None
    assert found[0].to_pylist() == texts
