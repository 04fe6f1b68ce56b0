"""Reader of this repository's .proto files with their comments, which the generated code does not contain.

It supports the style that `buf lint` enforces: one declaration per line, with its comment above. `check_complete`
compares the result with the descriptors of the generated code, so that a declaration that this reader does not support
cannot be omitted silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor

_RPC = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)")
_FIELD = re.compile(r"(repeated |optional )?(map<[^>]+>|[\w.]+) (\w+) = (\d+);")
_ENUM_VALUE = re.compile(r"(\w+) = (\d+);")
_OPEN = re.compile(r"(service|message|enum|oneof) (\w+) \{")


@dataclass(frozen=True, slots=True)
class Entry:
    """Field, enum value or rpc."""

    name: str
    type: str
    """A field's type with its label, an rpc's `Request -> Response`, empty for an enum value."""
    number: int
    """A field's or value's number; 0 for an rpc."""
    comment: str
    oneof: str = ""


@dataclass(slots=True)
class Declaration:
    """Service, message or enum."""

    kind: str
    name: str
    comment: str
    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class ProtoFile:
    """.proto file with its declarations in order."""

    path: Path
    declarations: list[Declaration]


def read_proto(path: Path) -> ProtoFile:
    """Return the parsed file. Raise `ValueError` at an unsupported line."""
    declarations: list[Declaration] = []
    comment: list[str] = []
    oneof = ""
    depth = 0
    for number, raw in enumerate(path.read_text("utf-8").splitlines(), start=1):
        line = raw.strip()
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        opened = _OPEN.match(line)
        if opened and opened[1] == "oneof":
            oneof = opened[2]
        elif opened:
            declarations.append(Declaration(opened[1], opened[2], " ".join(comment)))
            depth += 1
        elif line == "}" and oneof:
            oneof = ""
        elif line == "}":
            depth -= 1
        elif depth and line:
            entry = _entry(declarations[-1].kind, line, " ".join(comment), oneof)
            if entry is None:
                raise ValueError(f"{path}:{number}: cannot read {line!r}")
            declarations[-1].entries.append(entry)
        comment = []
    return ProtoFile(path, declarations)


def _entry(kind: str, line: str, comment: str, oneof: str) -> Entry | None:
    if kind == "service" and (rpc := _RPC.match(line)):
        return Entry(rpc[1], f"{rpc[2] or ''}{rpc[3]} -> {rpc[4] or ''}{rpc[5]}", 0, comment)
    if kind == "message" and (found := _FIELD.fullmatch(line)):
        return Entry(found[3], f"{found[1] or ''}{found[2]}", int(found[4]), comment, oneof)
    if kind == "enum" and (value := _ENUM_VALUE.fullmatch(line)):
        return Entry(value[1], "", int(value[2]), comment)
    return None


def check_complete(proto: ProtoFile, descriptor: FileDescriptor) -> None:
    """Assert that the parsed declarations are exactly those of the generated code."""
    read = {declaration.name: {entry.name for entry in declaration.entries} for declaration in proto.declarations}
    declared = {
        name: {field.name for field in message.fields} for name, message in descriptor.message_types_by_name.items()
    }
    declared |= {name: {value.name for value in enum.values} for name, enum in descriptor.enum_types_by_name.items()}
    declared |= {name: {rpc.name for rpc in service.methods} for name, service in descriptor.services_by_name.items()}
    assert read == declared, f"{proto.path} and its generated code differ: run make proto"
