"""A schema that is found compatible reads all that the other one writes: Avro by fastavro, JSON by jsonschema."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import jsonschema
from fastavro.utils import generate_one
from headrace_coordinator.core.schemas.formats import AVRO, JSON, parse_schema
from headrace_coordinator.core.schemas.schema import SchemaText
from hypothesis import assume, given, settings
from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c"])


# --- Avro ---

PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


def _record(fields: list[tuple[str, Any, bool]]) -> dict[str, Any]:
    made = []
    for name, kind, has_default in fields:
        default = {"default": None} if has_default else {}
        made.append({"name": name, "type": ["null", kind] if has_default and kind != "null" else kind, **default})
    return {"type": "record", "name": "R", "fields": made}


def _plain(kind: Any) -> bool:
    return kind != "null" and not isinstance(kind, list)


AVRO_TYPES = st.recursive(
    PRIMITIVES
    | st.lists(st.sampled_from(["X", "Y", "Z"]), min_size=1, unique=True).map(
        lambda symbols: {"type": "enum", "name": "E", "symbols": symbols}
    ),
    lambda inner: (
        inner.map(lambda items: {"type": "array", "items": items})
        | inner.map(lambda values: {"type": "map", "values": values})
        | inner.filter(_plain).map(lambda kind: ["null", kind])
    ),
    max_leaves=3,
)
AVRO_RECORDS = st.lists(
    st.tuples(NAMES, AVRO_TYPES.filter(_plain), st.booleans()), max_size=3, unique_by=lambda field: field[0]
).map(_record)


@settings(max_examples=100, deadline=None)
@given(reader=AVRO_RECORDS, writer=AVRO_RECORDS)
def test_compatible_avro_reader_reads_the_writer(reader: Any, writer: Any) -> None:
    try:
        parsed = [parse_schema(AVRO, SchemaText(json.dumps(schema))) for schema in (reader, writer)]
    except ValueError:
        assume(False)
    except Exception as error:
        assume("redefined" not in str(error))
        raise
    if parsed[0].why_unreadable(parsed[1]):
        return
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, writer, generate_one(writer))
    encoded.seek(0)
    fastavro.schemaless_reader(encoded, writer, reader)


# --- JSON ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([0.5, 2.5, "", "a", "bc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.just("d"), inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def _with_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["a|b", "^c"]), inner, max_size=1),
            "additionalProperties": inner,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "items": inner | some,
            "additionalItems": inner,
            "uniqueItems": st.booleans(),
            "anyOf": some,
            "oneOf": some,
            "allOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=json.dumps),
            "minimum": st.integers(-2, 5),
            "maximum": st.integers(-2, 5),
            "exclusiveMaximum": st.integers(-2, 5),
            "multipleOf": st.sampled_from([0.5, 1, 2, 3]),
            "minLength": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
        },
    )


JSON_SCHEMAS = st.recursive(
    st.booleans() | st.just({}) | TYPES.map(lambda kind: {"type": kind}), _with_schemas, max_leaves=6
)


def _changed(schema: Any, draw: st.DrawFn) -> Any:
    """Return a schema with one keyword removed or replaced somewhere, so that pairs are often compatible."""
    if not isinstance(schema, dict) or not schema:
        return draw(JSON_SCHEMAS)
    keyword = draw(st.sampled_from(sorted(schema)))
    rest = {name: value for name, value in schema.items() if name != keyword}
    other = draw(JSON_SCHEMAS)
    if draw(st.booleans()) or not isinstance(other, dict):
        return rest
    return rest | other


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    schema = draw(JSON_SCHEMAS)
    return _changed(schema, draw), schema


def _has_boolean_items(schema: Any) -> bool:
    """Return whether jsonschema fails for a schema: `len(items)` of a boolean, where there are additionalItems."""
    if isinstance(schema, list):
        return any(map(_has_boolean_items, schema))
    if not isinstance(schema, dict):
        return False
    here = isinstance(schema.get("items"), bool) and "additionalItems" in schema
    return here or any(map(_has_boolean_items, schema.values()))


@settings(max_examples=100, deadline=None)
@given(pair=_pairs(), documents=st.lists(VALUES, min_size=5, max_size=15))
def test_document_of_the_writer_is_valid_by_a_compatible_json_reader(
    pair: tuple[Any, Any], documents: list[Any]
) -> None:
    reader, writer = pair
    assume(not _has_boolean_items([reader, writer]))
    parsed = [parse_schema(JSON, SchemaText(json.dumps(schema))) for schema in pair]
    if parsed[0].why_unreadable(parsed[1]):
        return
    for document in documents:
        if jsonschema.Draft7Validator(writer).is_valid(document):
            jsonschema.Draft7Validator(reader).validate(document)
