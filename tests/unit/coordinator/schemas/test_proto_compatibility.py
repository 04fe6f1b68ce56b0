"""Compatibility of Protobuf schemas as a table, of .proto files compiled as the registry compiles them."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from headrace_coordinator.core.schemas import protobuf
from headrace_coordinator.core.schemas.formats import PROTOBUF, parse_schema
from headrace_coordinator.core.schemas.schema import InvalidSchemaError, SchemaText
from headrace_coordinator.runtime.proto_compiler import ProtoCompiler


def compile_proto(text: str, imports: dict[str, bytes] | None = None, syntax: str = "proto3") -> bytes:
    source = f'syntax = "{syntax}";\n{text}'
    return asyncio.run(ProtoCompiler().compile(source, protobuf.FILE_NAME, imports or {}))


def parse(text: str, syntax: str = "proto3") -> Any:
    return parse_schema(PROTOBUF, SchemaText(text, compile_proto(text, syntax=syntax)))


def m(*fields: str) -> str:
    return f"message M {{ {' '.join(fields)} }}"


# description, reader, writer, rules
TABLE: list[tuple[str, str, str, list[str]]] = [
    ("equal", m("int32 a = 1;"), m("int32 a = 1;"), []),
    ("field added", m("int32 a = 1; string b = 2;"), m("int32 a = 1;"), []),
    ("field removed", m(), m("int32 a = 1;"), []),
    ("field renamed", m("int32 b = 1;"), m("int32 a = 1;"), []),
    ("same encoding", m("int64 a = 1; bytes b = 2; uint32 c = 3;"), m("int32 a = 1; string b = 2; bool c = 3;"), []),
    ("enum as int", m("int32 a = 1;"), m("E a = 1;") + "enum E { X = 0; }", []),
    ("other encoding", m("sint32 a = 1;"), m("int32 a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    ("fixed", m("sfixed32 a = 1; sfixed64 b = 2;"), m("fixed32 a = 1; fixed64 b = 2;"), []),
    ("scalar to message", m("N a = 1;") + "message N {}", m("string a = 1;") + "message N {}", ["FIELD_KIND_CHANGED"]),
    ("other message", m("N a = 1;") + "message N {} message O {}", m("O a = 1;") + "message N {} message O {}", ["FIELD_NAMED_TYPE_CHANGED"]),
    ("package changed", "package p;" + m("N a = 1;") + "message N {}", "package q;" + m("N a = 1;") + "message N {}", []),
    ("message removed", "message N {}", "message N {} message O {}", ["MESSAGE_REMOVED"]),
    ("message added", "message N {} message O {}", "message N {}", []),
    ("nested message removed", "message N {}", "message N { message O {} }", ["MESSAGE_REMOVED"]),
    ("nested field", "message N { message O { sint32 a = 1; } }", "message N { message O { int32 a = 1; } }", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("repeated text", m("repeated string a = 1;"), m("string a = 1;"), []),
    ("repeated number", m("repeated int32 a = 1;"), m("int32 a = 1;"), ["FIELD_NUMERIC_LABEL_CHANGED"]),
    ("map", m("map<string, int64> a = 1;"), m("map<string, int32> a = 1;"), []),
    ("map of others", m("map<string, string> a = 1;"), m("map<string, int32> a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    ("oneof added", m("oneof x { int32 a = 1; }"), m("int32 a = 1;"), []),
    ("two fields into a oneof", m("oneof x { int32 a = 1; int32 b = 2; }"), m("int32 a = 1; int32 b = 2;"), ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
    ("a field into a oneof with others", m("oneof x { int32 a = 1; int32 b = 2; }"), m("oneof x { int32 a = 1; } int32 b = 2;"), ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
    ("oneof renamed", m("oneof y { int32 a = 1; int32 b = 2; }"), m("oneof x { int32 a = 1; int32 b = 2; }"), []),
    ("oneof field added", m("oneof x { int32 a = 1; int32 b = 2; }"), m("oneof x { int32 a = 1; }"), []),
    ("oneof field removed", m("oneof x { int32 a = 1; }"), m("oneof x { int32 a = 1; int32 b = 2; }"), ["ONEOF_FIELD_REMOVED"]),
    ("optional is no oneof", m("optional int32 a = 1; optional int32 b = 2;"), m("int32 a = 1; int32 b = 2;"), []),
    ("enum constant added", m("E a = 1;") + "enum E { X = 0; Y = 1; }", m("E a = 1;") + "enum E { X = 0; }", []),
]  # fmt: skip
PROTO2: list[tuple[str, str, str, list[str]]] = [
    ("required added", m("required int32 a = 1;"), m(), ["REQUIRED_FIELD_ADDED"]),
    ("required removed", m(), m("required int32 a = 1;"), ["REQUIRED_FIELD_REMOVED"]),
    ("becomes required", m("required int32 a = 1;"), m("optional int32 a = 1;"), ["REQUIRED_FIELD_ADDED"]),
    ("no longer required", m("optional int32 a = 1;"), m("required int32 a = 1;"), ["REQUIRED_FIELD_REMOVED"]),
    ("group", m("optional group G = 1 { optional int32 a = 1; }"), m("optional group G = 1 { optional int32 a = 1; }"), []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "broken", "syntax"),
    [(*row[1:], "proto3") for row in TABLE] + [(*row[1:], "proto2") for row in PROTO2],
    ids=[row[0] for row in TABLE + PROTO2],
)
def test_changes_of_messages(reader: str, writer: str, broken: list[str], syntax: str) -> None:
    """Each row of the table breaks its rules and no others."""
    reasons = parse(reader, syntax).why_unreadable(parse(writer, syntax))
    assert [reason.rule for reason in reasons] == broken


def test_reason_names_the_field_and_both_types() -> None:
    (reason,) = parse(m("sint32 a = 3;")).why_unreadable(parse(m("int64 a = 3;")))
    assert (reason.path, reason.message) == ("/M/3", "the type of field 'a' changed from int64 to sint32")


def test_imports_are_compared() -> None:
    """A change of an imported message is found, and well-known files need no reference."""

    def using(kind: str) -> Any:
        common = compile_proto(f"package common; message C {{ {kind} a = 1; }}")
        text = 'import "common.proto"; import "google/protobuf/struct.proto";' + m(
            "common.C c = 1; google.protobuf.Struct s = 2;"
        )
        descriptor = compile_proto(text, {"common.proto": common})
        assert protobuf.imports_of(descriptor) == ["common.proto"]
        return parse_schema(PROTOBUF, SchemaText(text, descriptor, {"common.proto": SchemaText("", common)}))

    assert using("int64").why_unreadable(using("int32")) == []
    (reason,) = using("string").why_unreadable(using("int32"))
    assert reason.path == "/common.C/1"


def test_equal_files_have_one_canonical_form() -> None:
    """Comments and layout do not count, nor whether the compiler or generated code made the descriptor."""
    one, other = compile_proto(m("int32 a_b = 1;")), compile_proto("// comment\n" + m("int32 a_b   =   1;"))
    assert protobuf.canonical_descriptor(one) == protobuf.canonical_descriptor(other)
    file = descriptor_pb2.FileDescriptorProto.FromString(one)
    file.name = "elsewhere/name.proto"
    file.message_type[0].field[0].ClearField("json_name")
    assert protobuf.canonical_descriptor(file.SerializeToString()) == protobuf.canonical_descriptor(one)
    renamed = compile_proto(m("int32 c = 1;"))
    assert protobuf.canonical_descriptor(renamed) != protobuf.canonical_descriptor(one)


def test_descriptor_in_base64_is_recognised() -> None:
    descriptor = compile_proto(m("int32 a = 1;"))
    assert protobuf.decode_descriptor(base64.b64encode(descriptor).decode()) == descriptor
    for text in ('syntax = "proto3";', "", "AAAA", "message"):
        assert protobuf.decode_descriptor(text) is None


def test_invalid_descriptor_is_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="cannot be decoded"):
        parse_schema(PROTOBUF, SchemaText("", b"\xff"))
    file = descriptor_pb2.FileDescriptorProto(name="a", dependency=["missing.proto"])
    with pytest.raises(InvalidSchemaError, match="not valid"):
        parse_schema(PROTOBUF, SchemaText("", file.SerializeToString()))
    file = descriptor_pb2.FileDescriptorProto(name="a", dependency=["google/protobuf/none.proto"])
    with pytest.raises(InvalidSchemaError, match="no file of Protobuf"):
        parse_schema(PROTOBUF, SchemaText("", file.SerializeToString()))
    file = descriptor_pb2.FileDescriptorProto(name="a")
    nested = file.message_type.add(name="M")
    for _ in range(70):
        nested = nested.nested_type.add(name="M")
    with pytest.raises(InvalidSchemaError):
        parse_schema(PROTOBUF, SchemaText("", file.SerializeToString()))


def test_error_of_the_compiler_has_its_place() -> None:
    with pytest.raises(InvalidSchemaError, match=r'schema.proto:2:13: "int" is not defined'):
        compile_proto(m("int a = 1;"))
    with pytest.raises(InvalidSchemaError, match=r"missing\.proto"):
        compile_proto('import "missing.proto";')
