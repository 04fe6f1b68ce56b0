"""Codecs for `key_serializer`, `value_serializer` and their opposites: Avro, JSON Schema and Protobuf.

The bytes are those of Confluent's serializers: a byte 0, the id of the schema (4 bytes, big-endian), then the value, so
that clients of Kafka and of headrace read each other.

======  ====  ==========================================================================
offset  size  meaning
======  ====  ==========================================================================
0       1     0
1       4     id of the schema
5       -     Avro: binary encoding; JSON: UTF-8; Protobuf: path of the message in its file
              as zigzag varints (count, then indexes; one byte 0 for the first message), then
              its encoding
======  ====  ==========================================================================

A serializer asks the registry once for the id of its schema, a deserializer once for each id that it reads; both
continue with what they have while the registry is unavailable. The first call of an asyncio client therefore blocks its
event loop for one request.
"""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from headrace.client.base.errors import ConfigError, SerializationError
from headrace.client.base.serializers import to_json
from headrace.client.schemas.avro_tables import AvroTables
from headrace.client.schemas.json_tables import JsonTables, registry_of
from headrace.client.schemas.message_path import encode_path, path_of, path_size
from headrace.client.schemas.message_tables import MessageTables
from headrace.client.schemas.registry import RegisteredSchema, SchemaReference, SchemaRegistry, SchemaRegistryError
from headrace.client.schemas.table_schema import TableSchema
from headrace.client.schemas.wire_header import HEADER, MAGIC, schema_id_of


class SchemaCodec(ABC):
    """Serializer and deserializer of values with a registered schema. Any thread may use it."""

    schema_type: str

    def __init__(
        self,
        registry: SchemaRegistry,
        text: str,
        subject: str,
        references: Sequence[SchemaReference],
        *,
        auto_register: bool,
    ) -> None:
        if auto_register and not (subject and text):
            raise ConfigError("auto_register needs a schema and its subject", action="Name both.")
        self._registry = registry
        self._text = text
        self._subject = subject
        self._references = tuple(references)
        self._auto_register = auto_register
        self._written: RegisteredSchema | None = None

    def serialize(self, value: Any) -> bytes:
        """Return the bytes of a value.

        Raises:
            SerializationError: If the value does not fit the schema, or the subject has not got the schema.
            SchemaRegistryError, TransportError: If the registry is asked and refuses, or cannot be reached.
        """
        schema = self._written
        if schema is None:
            schema = self._written = self._find_written()
        try:
            return HEADER.pack(MAGIC, schema.schema_id) + self._encode(value, schema)
        except Exception as error:
            raise SerializationError(
                f"the value does not fit schema {schema.schema_id} of subject {self._subject!r}: {error}",
                action="Send a value of the schema, or register a schema for the value.",
            ) from error

    def deserialize(self, data: bytes) -> Any:
        """Return the value of bytes.

        Raises:
            SerializationError: If they have no schema id, or do not fit the schema; names the id.
            SchemaRegistryError, TransportError: If the id is not known here, and the registry refuses it or cannot be
                reached.
        """
        schema_id = schema_id_of(data)
        schema = self._registry.by_id(schema_id)
        if schema.schema_type != self.schema_type:
            raise SerializationError(f"schema {schema_id} has type {schema.schema_type}, not {self.schema_type}")
        try:
            return self._decode(bytes(data[HEADER.size :]), schema)
        except Exception as error:
            raise SerializationError(f"the bytes do not fit schema {schema_id}: {error}") from error

    def _find_written(self) -> RegisteredSchema:
        """Return the schema to write with, as the registry has it."""
        if not self._subject:
            raise SerializationError("a serializer needs a subject", action="Set subject, such as 'orders-value'.")
        if not self._text:
            return self._check_type(self._registry.latest(self._subject))
        if self._auto_register:
            schema_id = self._registry.register(self._subject, self._text, self.schema_type, self._references)
            return self._registry.by_id(schema_id)
        try:
            return self._registry.look_up(self._subject, self._text, self.schema_type, self._references)
        except SchemaRegistryError as error:
            if error.status != 404:
                raise
            raise SerializationError(
                f"subject {self._subject!r} has not got the schema: {error.message}",
                action=f"Register it: headrace schema register {self._subject} FILE.",
            ) from error

    def _check_type(self, schema: RegisteredSchema) -> RegisteredSchema:
        if schema.schema_type != self.schema_type:
            raise SerializationError(
                f"subject {self._subject!r} has schemas of type {schema.schema_type}, not {self.schema_type}"
            )
        return schema

    @abstractmethod
    def _encode(self, value: Any, schema: RegisteredSchema) -> bytes:
        """Return the encoding of a value, without the header."""

    @abstractmethod
    def _decode(self, data: bytes, schema: RegisteredSchema) -> Any:
        """Return a value that was written with `schema`."""


class Avro(SchemaCodec):
    """Avro values: dictionaries, lists and Python's simple types. Needs `pip install 'headrace[avro]'`.

    Args:
        registry: see `SchemaRegistry`.
        schema: text of the schema, or its JSON as Python values. A serializer writes with it, by default with the
            latest version of `subject`; a deserializer resolves what it reads to it, by default it returns what was
            written.
        subject: of a serializer, such as `orders-value`.
        references: of `schema`.
        auto_register: whether a serializer registers its schema. Keep it off in production: a deployment registers.
    """

    schema_type = "AVRO"

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | dict[str, Any] | list[Any] | None = None,
        *,
        subject: str = "",
        references: Sequence[SchemaReference] = (),
        auto_register: bool = False,
    ) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise ConfigError("Avro needs fastavro", action="Install it: pip install 'headrace[avro]'.") from error
        self._avro = fastavro
        self._parsed: dict[int, Any] = {}
        text = schema if isinstance(schema, str) else "" if schema is None else json.dumps(schema)
        super().__init__(registry, text, subject, references, auto_register=auto_register)
        self._reader: Any = None
        self.tables = AvroTables(TableSchema(registry, self.schema_type, text, subject, self._references))
        """What makes Arrow columns of values: `to_arrow` of a reader with this deserializer, and typed topics."""

    def _encode(self, value: Any, schema: RegisteredSchema) -> bytes:
        encoded = io.BytesIO()
        self._avro.schemaless_writer(encoded, self._schema_of(schema), value, strict_allow_default=True)
        return encoded.getvalue()

    def _decode(self, data: bytes, schema: RegisteredSchema) -> Any:
        if self._text and self._reader is None:
            given = RegisteredSchema(0, self.schema_type, self._text, self._references)
            self._reader = self._parse(given)
        encoded = io.BytesIO(data)
        value = self._avro.schemaless_reader(encoded, self._schema_of(schema), self._reader)
        if encoded.read(1):
            raise ValueError(f"{len(data)} bytes are more than the value has")
        return value

    def _schema_of(self, schema: RegisteredSchema) -> Any:
        found = self._parsed.get(schema.schema_id)
        if found is None:
            found = self._parsed[schema.schema_id] = self._parse(schema)
        return found

    def _parse(self, schema: RegisteredSchema) -> Any:
        named: dict[str, Any] = {}
        for text in dict.fromkeys(self._registry.dependencies(schema).values()):
            self._avro.parse_schema(json.loads(text), named_schemas=named)
        return self._avro.parse_schema(json.loads(schema.text), named_schemas=named)


class JsonSchema(SchemaCodec):
    """JSON values that are checked against a schema. Needs `pip install 'headrace[json-schema]'`.

    Args:
        registry: see `SchemaRegistry`.
        schema: text of the schema, or its JSON as Python values. A serializer checks against it, by default against the
            latest version of `subject`; a deserializer checks against it, by default against the writer's.
        subject: of a serializer, such as `orders-value`.
        references: of `schema`.
        auto_register: as of `Avro`.
    """

    schema_type = "JSON"

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | dict[str, Any] | None = None,
        *,
        subject: str = "",
        references: Sequence[SchemaReference] = (),
        auto_register: bool = False,
    ) -> None:
        try:
            import jsonschema
        except ImportError as error:
            raise ConfigError(
                "JsonSchema needs jsonschema", action="Install it: pip install 'headrace[json-schema]'."
            ) from error
        self._jsonschema: Any = jsonschema
        self._validators: dict[int, Any] = {}
        text = schema if isinstance(schema, str) else "" if schema is None else json.dumps(schema)
        super().__init__(registry, text, subject, references, auto_register=auto_register)
        self.tables = JsonTables(self, TableSchema(registry, self.schema_type, text, subject, self._references))
        """As of `Avro`."""

    def _encode(self, value: Any, schema: RegisteredSchema) -> bytes:
        self._check(value, schema)
        return to_json(value)

    def _decode(self, data: bytes, schema: RegisteredSchema) -> Any:
        value = json.loads(data)
        given = RegisteredSchema(0, self.schema_type, self._text, self._references) if self._text else schema
        self._check(value, given)
        return value

    def _check(self, value: Any, schema: RegisteredSchema) -> None:
        validator = self._validators.get(schema.schema_id)
        if validator is None:
            validator = self._validators[schema.schema_id] = self._make_validator(schema)
        error = self._jsonschema.exceptions.best_match(validator.iter_errors(value))
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message}")

    def _make_validator(self, schema: RegisteredSchema) -> Any:
        contents = json.loads(schema.text)
        kind = self._jsonschema.validators.validator_for(contents, default=self._jsonschema.Draft7Validator)
        return kind(contents, registry=registry_of(self._registry.dependencies(schema)))


class Protobuf(SchemaCodec):
    """Messages of one class that the Protobuf compiler made.

    A deserializer parses each message as its class, which reads what any compatible version wrote.

    Args:
        registry: see `SchemaRegistry`.
        message_type: class of the messages.
        subject: of a serializer, such as `orders-value`. It must have the schema of the message's file; to register it,
            use `headrace schema register`, or `auto_register`.
        references: subjects of the files that the message's file imports, without those of Protobuf itself.
        auto_register: as of `Avro`.
    """

    schema_type = "PROTOBUF"

    def __init__(
        self,
        registry: SchemaRegistry,
        message_type: type[Any],
        *,
        subject: str = "",
        references: Sequence[SchemaReference] = (),
        auto_register: bool = False,
    ) -> None:
        import base64

        self._message_type = message_type
        descriptor = message_type.DESCRIPTOR
        self._path = encode_path(path_of(descriptor))
        text = base64.b64encode(descriptor.file.serialized_pb).decode()
        super().__init__(registry, text, subject, references, auto_register=auto_register)
        self.tables = MessageTables(self, descriptor)
        """As of `Avro`."""

    def _encode(self, value: Any, schema: RegisteredSchema) -> bytes:
        del schema
        if not isinstance(value, self._message_type):
            raise TypeError(f"it is {type(value).__name__}, not {self._message_type.__name__}")
        return self._path + bytes(value.SerializeToString())

    def _decode(self, data: bytes, schema: RegisteredSchema) -> Any:
        del schema
        return self._message_type.FromString(data[path_size(data) :])
