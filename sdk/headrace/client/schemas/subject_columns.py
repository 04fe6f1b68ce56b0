"""Columns of a typed topic from the latest version of a subject, whatever its format."""

import base64
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from headrace.client.base.errors import SerializationError
from headrace.client.schemas.codecs import Avro, JsonSchema
from headrace.client.schemas.message_tables import columns_of_message
from headrace.client.schemas.registry import RegisteredSchema, SchemaRegistry


def columns_of_subject(registry: SchemaRegistry, subject: str) -> str:
    """Return the text of the columns of a subject's latest version.

    Of a Protobuf file they are those of its first message.

    Raises:
        InvalidConfigError: If the schema has no columns; the message has the field and the reason.
        SerializationError: If a Protobuf file has no message.
        SchemaRegistryError, TransportError: If the registry refuses, or cannot be reached.
    """
    schema = registry.latest(subject)
    match schema.schema_type:
        case "AVRO":
            return Avro(registry, subject=subject).tables.topic_columns()
        case "JSON":
            return JsonSchema(registry, subject=subject).tables.topic_columns()
    return str(columns_of_message(_first_message(registry, registry.latest(subject, serialized=True))))


def _first_message(registry: SchemaRegistry, schema: RegisteredSchema) -> Any:
    """Return the descriptor of the first message of a Protobuf file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    texts = {**registry.dependencies(schema, serialized=True), f"subject {schema.subject}": schema.text}
    files = {name: FileDescriptorProto.FromString(base64.b64decode(text)) for name, text in texts.items()}
    pool = DescriptorPool()
    imported = {name for file in files.values() for name in file.dependency if name not in files}
    for known in _known_files(sorted(imported)).values():
        pool.AddSerializedFile(known.serialized_pb)
    for name, file in files.items():
        file.name = name
        pool.AddSerializedFile(file.SerializeToString())
    if not file.message_type:
        raise SerializationError(f"the Protobuf file of subject {schema.subject!r} has no message")
    return pool.FindMessageTypeByName(".".join(filter(None, (file.package, file.message_type[0].name))))


def _known_files(names: Sequence[str]) -> dict[str, Any]:
    """Return descriptors of files of Protobuf itself by name, each after those that it imports."""
    found: dict[str, Any] = {}
    for name in names:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        found |= _known_files([each.name for each in module.DESCRIPTOR.dependencies])
        found[name] = module.DESCRIPTOR
    return found
