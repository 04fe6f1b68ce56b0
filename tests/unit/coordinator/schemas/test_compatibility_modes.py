"""What each of the seven modes asks of a new schema and the earlier versions of its subject."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from headrace_coordinator.core.schemas.compatibility import Compatibility, find_conflicts
from headrace_coordinator.core.schemas.formats import AVRO, parse_schema
from headrace_coordinator.core.schemas.schema import InvalidSchemaError, SchemaText


def record(*fields: str) -> Any:
    """Return a record with fields of text; one with `?` has a default."""
    made = [
        {"name": name.rstrip("?"), "type": "string", **({"default": ""} if name.endswith("?") else {})}
        for name in fields
    ]
    return parse_schema(AVRO, SchemaText(json.dumps({"type": "record", "name": "R", "fields": made})))


NEW = record("a", "b")
SAME, WITHOUT, OPTIONAL, MORE = record("a", "b"), record("a"), record("a", "b?"), record("a", "b", "c")


@pytest.mark.parametrize(
    ("mode", "refused"),
    [
        # version 1 lacks a field that the new schema needs, version 2 has one more than it
        (Compatibility.NONE, []),
        (Compatibility.BACKWARD, []),
        (Compatibility.BACKWARD_TRANSITIVE, [(1, False)]),
        (Compatibility.FORWARD, [(2, True)]),
        (Compatibility.FORWARD_TRANSITIVE, [(2, True)]),
        (Compatibility.FULL, [(2, True)]),
        (Compatibility.FULL_TRANSITIVE, [(2, True), (1, False)]),
    ],
)
def test_mode_decides_who_reads_whom(mode: Compatibility, refused: list[tuple[int, bool]]) -> None:
    conflicts = find_conflicts(NEW, [(1, WITHOUT), (2, MORE)], mode)
    assert [(conflict.version, conflict.reads_new) for conflict in conflicts] == refused


def test_compatible_schemas_pass_every_mode() -> None:
    for mode in Compatibility:
        assert find_conflicts(OPTIONAL, [(1, SAME), (2, OPTIONAL)], mode) == []
        assert find_conflicts(NEW, [], mode) == []


def test_conflict_names_rule_field_and_version() -> None:
    (conflict,) = find_conflicts(NEW, [(7, WITHOUT)], Compatibility.BACKWARD)
    assert str(conflict) == (
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'At path /fields/1, the new schema cannot read "
        "data of the old schema (version 7 is the old one): field 'b' has no default value, and the writer does not "
        "have it', additionalInfo:'/fields/1'}"
    )
    (conflict,) = find_conflicts(WITHOUT, [(7, NEW)], Compatibility.FORWARD)
    assert "the old schema cannot read data of the new schema" in str(conflict)


def test_comparison_deeper_than_the_stack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def deeper(_writer: Any) -> list[Any]:
        raise RecursionError

    monkeypatch.setattr(NEW, "why_unreadable", deeper, raising=False)
    with pytest.raises(InvalidSchemaError, match="steps"):
        find_conflicts(NEW, [(1, SAME)], Compatibility.BACKWARD)


def test_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="AVRO, JSON, PROTOBUF"):
        parse_schema("THRIFT", SchemaText(""))


def test_formats_are_imported_with_their_first_schema() -> None:
    """A coordinator without schemas loads none of the libraries of the formats."""
    import subprocess

    code = "import sys, headrace_coordinator.app; print([m for m in ('fastavro', 'jsonschema', 'grpc_tools.protoc') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
