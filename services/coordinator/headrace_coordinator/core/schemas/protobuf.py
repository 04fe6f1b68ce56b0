"""Protobuf schemas by their descriptors, and which changes keep the binary format readable.

The rules are those of Confluent's registry, which follow "Updating A Message Type" of the language guide: a field is
known by its number, so that names may change; its type may change within a group of types of the same encoding.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from headrace_coordinator.core.schemas.schema import Incompatibility, InvalidSchemaError, SchemaText

FILE_NAME = "schema.proto"
"""Name of a schema that is not a reference."""
WELL_KNOWN = "google/protobuf/"
"""Start of the paths that every schema may import without a reference."""
MAX_FIELD_DEPTH = 64
"""Maximum nesting of messages."""

_T = FieldDescriptorProto
_SAME_ENCODING = (
    (_T.TYPE_INT32, _T.TYPE_UINT32, _T.TYPE_INT64, _T.TYPE_UINT64, _T.TYPE_BOOL, _T.TYPE_ENUM),
    (_T.TYPE_SINT32, _T.TYPE_SINT64),
    (_T.TYPE_FIXED32, _T.TYPE_SFIXED32),
    (_T.TYPE_FIXED64, _T.TYPE_SFIXED64),
    (_T.TYPE_STRING, _T.TYPE_BYTES),
)
_ENCODING = {kind: group[0] for group in _SAME_ENCODING for kind in group}
_LENGTH_DELIMITED = (_T.TYPE_STRING, _T.TYPE_BYTES, _T.TYPE_MESSAGE)


class ProtobufSchema:
    """Parsed Protobuf schema."""

    def __init__(self, canonical: str, package: str, messages: Mapping[str, DescriptorProto]) -> None:
        self.canonical = canonical
        self.package = package
        self.messages = messages
        """Messages by name: below the package for those of the schema itself, the full name for those of references."""

    def why_unreadable(self, writer: ProtobufSchema) -> list[Incompatibility]:
        """See `ParsedSchema`."""
        reasons = []
        for name, written in writer.messages.items():
            read = self.messages.get(name)
            if read is None:
                reasons.append(Incompatibility("MESSAGE_REMOVED", f"/{name}", f"message {name!r} was removed"))
            else:
                reasons += _Comparison(self, writer).compare(read, written, f"/{name}")
        return reasons

    def type_name(self, field: FieldDescriptorProto) -> str:
        """Return the name of a field's message as in `messages`; empty for a field of another type."""
        if field.type not in (_T.TYPE_MESSAGE, _T.TYPE_GROUP):
            return ""
        return field.type_name.removeprefix(f".{self.package}.").lstrip(".")


def parse(schema: SchemaText) -> ProtobufSchema:
    """Return a Protobuf schema from its descriptor.

    Raises:
        InvalidSchemaError: If the descriptor is not valid, or imports what no reference has.
    """
    file = _read(schema.descriptor, FILE_NAME)
    pool = descriptor_pool.DescriptorPool()
    imported = {name: _read(each.descriptor, name) for name, each in schema.dependencies().items()}
    try:
        for name in _well_known_of((file, *imported.values())):
            pool.AddSerializedFile(_well_known(name))
        for each in imported.values():
            pool.AddSerializedFile(each.SerializeToString())
        pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, KeyError) as error:
        raise InvalidSchemaError(
            f"the Protobuf schema is not valid: {error}", action="Correct it, and add a reference for each import."
        ) from error
    messages = dict(_messages_of(file.message_type, ""))
    for each in imported.values():
        messages.update(_messages_of(each.message_type, f"{each.package}." if each.package else ""))
    return ProtobufSchema(canonical_descriptor(schema.descriptor), file.package, messages)


def canonical_descriptor(descriptor: bytes) -> str:
    """Return a text that is equal for files that differ only in their name, comments and layout."""
    file = _read(descriptor, FILE_NAME)
    file.ClearField("source_code_info")
    for _, found in _messages_of(file.message_type, ""):
        for field in found.field:
            field.ClearField("json_name")  # The compiler fills it in, descriptors of generated code lack it.
    if file.syntax == "proto2":
        file.ClearField("syntax")
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def decode_descriptor(text: str) -> bytes | None:
    """Return the serialized `FileDescriptorProto` that a text has in base64, as Confluent's client for Python sends it;
    `None` if the text is something else, such as that of a .proto file.
    """
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
    except (ValueError, message.DecodeError):
        return None
    return data if file.name or file.message_type or file.enum_type else None


def imports_of(descriptor: bytes) -> list[str]:
    """Return the paths that a file imports, without the well-known ones."""
    found = _read(descriptor, FILE_NAME).dependency
    return [path for path in found if not path.startswith(WELL_KNOWN)]


def _read(descriptor: bytes, name: str) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
    except message.DecodeError as error:
        raise InvalidSchemaError("the Protobuf descriptor cannot be decoded", action="Send it whole.") from error
    file.name = name
    return file


def _well_known_of(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> list[str]:
    """Return the well-known files that `files` need, those that others import first."""
    found: dict[str, None] = {}

    def add(name: str) -> None:
        if name.startswith(WELL_KNOWN) and name not in found:
            for needed in descriptor_pb2.FileDescriptorProto.FromString(_well_known(name)).dependency:
                add(needed)
            found[name] = None

    for file in files:
        for name in file.dependency:
            add(name)
    return list(found)


def _well_known(name: str) -> bytes:
    try:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        raise InvalidSchemaError(f"{name!r} is no file of Protobuf", action="Correct the import.") from None
    return bytes(module.DESCRIPTOR.serialized_pb)


def _messages_of(messages: Any, prefix: str, depth: int = 0) -> Iterator[tuple[str, DescriptorProto]]:
    if depth > MAX_FIELD_DEPTH:
        raise InvalidSchemaError(f"messages are nested more than {MAX_FIELD_DEPTH} deep")
    for found in messages:
        name = f"{prefix}{found.name}"
        yield name, found
        yield from _messages_of(found.nested_type, f"{name}.", depth + 1)


class _Comparison:
    """Comparison of the messages of one reader with those of one writer."""

    def __init__(self, reader: ProtobufSchema, writer: ProtobufSchema) -> None:
        self._reader = reader
        self._writer = writer

    def compare(self, reader: DescriptorProto, writer: DescriptorProto, path: str) -> Iterator[Incompatibility]:
        """Yield why a message cannot be read."""
        read = {field.number: field for field in reader.field}
        written = {field.number: field for field in writer.field}
        oneofs = {oneof.name for oneof in reader.oneof_decl}
        for number, field in written.items():
            here = f"{path}/{number}"
            if number in read:
                yield from self._compare_fields(read[number], field, here)
            elif field.label == _T.LABEL_REQUIRED:
                yield Incompatibility("REQUIRED_FIELD_REMOVED", here, f"required field {field.name!r} was removed")
            elif _oneof(writer, field) in oneofs:
                text = f"field {field.name!r} was removed from oneof {_oneof(writer, field)!r}"
                yield Incompatibility("ONEOF_FIELD_REMOVED", here, text)
        for number, field in read.items():
            if number not in written and field.label == _T.LABEL_REQUIRED:
                text = f"required field {field.name!r} was added"
                yield Incompatibility("REQUIRED_FIELD_ADDED", f"{path}/{number}", text)
        yield from _compare_oneofs(reader, writer, path)

    def _compare_fields(
        self, reader: FieldDescriptorProto, writer: FieldDescriptorProto, path: str
    ) -> Iterator[Incompatibility]:
        changed = f"the type of field {reader.name!r} changed from {_type(writer)} to {_type(reader)}"
        if _ENCODING.get(reader.type, reader.type) != _ENCODING.get(writer.type, writer.type):
            is_scalar = _T.TYPE_MESSAGE not in (reader.type, writer.type)
            yield Incompatibility("FIELD_SCALAR_KIND_CHANGED" if is_scalar else "FIELD_KIND_CHANGED", path, changed)
        elif self._reader.type_name(reader) != self._writer.type_name(writer):
            yield Incompatibility("FIELD_NAMED_TYPE_CHANGED", path, changed)
        is_required = reader.label == _T.LABEL_REQUIRED
        if is_required != (writer.label == _T.LABEL_REQUIRED):
            text = f"field {reader.name!r} {'became' if is_required else 'is no longer'} required"
            yield Incompatibility("REQUIRED_FIELD_ADDED" if is_required else "REQUIRED_FIELD_REMOVED", path, text)
        elif _is_repeated(reader) != _is_repeated(writer) and reader.type not in _LENGTH_DELIMITED:
            text = f"field {reader.name!r} {'became' if _is_repeated(reader) else 'is no longer'} repeated"
            yield Incompatibility("FIELD_NUMERIC_LABEL_CHANGED", path, text)


def _compare_oneofs(reader: DescriptorProto, writer: DescriptorProto, path: str) -> Iterator[Incompatibility]:
    """Yield each oneof of the reader that has several fields which the writer could send together."""
    before = {field.number: _oneof(writer, field) for field in writer.field}
    for oneof in reader.oneof_decl:
        known = [field for field in reader.field if _oneof(reader, field) == oneof.name and field.number in before]
        homes = {before[field.number] for field in known}
        if len(known) > 1 and (len(homes) > 1 or "" in homes):
            moved = ", ".join(repr(field.name) for field in known)
            text = f"a writer may send several of {moved}, of which oneof {oneof.name!r} keeps one"
            yield Incompatibility("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{oneof.name}", text)


def _is_repeated(field: FieldDescriptorProto) -> bool:
    return field.label == _T.LABEL_REPEATED


def _oneof(message_type: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Return the name of a field's oneof; empty if it has none that a schema declares."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return str(message_type.oneof_decl[field.oneof_index].name)


def _type(field: FieldDescriptorProto) -> str:
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"{kind} {field.type_name.lstrip('.')}" if field.type_name else kind
