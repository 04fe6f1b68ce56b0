"""Schemas of requests and of the view, parsed with the schemas that they refer to.

Parsing and comparing may take a second of a thread's time, so that they run in threads, two at once; what was parsed is
kept for later calls. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace_server.internal_v1 import metadata_pb2

from headrace_coordinator.core.schemas.compatibility import Compatibility, Conflict, find_conflicts
from headrace_coordinator.core.schemas.errors import RegistryError, invalid_schema
from headrace_coordinator.core.schemas.formats import PROTOBUF, SCHEMA_TYPES, parse_schema
from headrace_coordinator.core.schemas.schema import InvalidSchemaError, ParsedSchema, Reference, SchemaText
from headrace_coordinator.runtime.proto_compiler import ProtoCompiler
from headrace_coordinator.runtime.schema_view import LATEST, SchemaView

MAX_SCHEMA_BYTES = 512 << 10
"""Maximum size of a schema's text, and of its descriptor. With references it fits into one request of etcd."""
MAX_REFERENCES = 50
MAX_REFERENCE_DEPTH = 20
MAX_REMEMBERED = 200
MAX_PARSERS = 2
_ENDED = "the schema cannot refer to itself through other schemas, nor to more than {} levels of them"


@dataclass(frozen=True, slots=True)
class NewSchema:
    """Schema of a request."""

    schema_type: str
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """Valid schema."""

    stored: metadata_pb2.StoredSchema
    """As it would be stored, without an id."""
    parsed: ParsedSchema


class SchemaParser:
    """Parser of one coordinator."""

    def __init__(self, view: SchemaView) -> None:
        self._view = view
        self._compiler = ProtoCompiler()
        self._permits = asyncio.Semaphore(MAX_PARSERS)
        self._checked: OrderedDict[object, CheckedSchema] = OrderedDict()
        self._parsed: OrderedDict[object, ParsedSchema] = OrderedDict()

    async def check(self, new: NewSchema) -> CheckedSchema:
        """Return a schema that is valid, with the versions of its references resolved.

        Raises:
            RegistryError: If it is not valid, too large, or refers to what does not exist.
        """
        if new.schema_type not in SCHEMA_TYPES:
            raise invalid_schema(f"schemaType {new.schema_type[:64]!r} is none of {', '.join(SCHEMA_TYPES)}")
        if len(new.text.encode()) > MAX_SCHEMA_BYTES or len(new.references) > MAX_REFERENCES:
            raise invalid_schema(f"it has more than {MAX_SCHEMA_BYTES} bytes or {MAX_REFERENCES} references")
        references = [self._resolve(reference) for reference in new.references]
        texts = {name: self._stored_text(schema, 1) for (name, _, _), schema in references}
        resolved = tuple(each for each, _ in references)
        known = (new.schema_type, new.text, resolved, SchemaText("", references=texts).contents())
        found = self._checked.get(known)
        if found is None:
            try:
                found = await self._parse(new, resolved, texts)
            except InvalidSchemaError as error:
                raise invalid_schema(f"{error}") from error
            self._checked[known] = found
            if len(self._checked) > MAX_REMEMBERED:
                self._checked.popitem(last=False)
        return found

    async def find_conflicts(
        self, new: CheckedSchema, versions: Sequence[metadata_pb2.SubjectVersion], mode: Compatibility
    ) -> list[Conflict]:
        """Return why a schema may not follow the versions of its subject, ascending.

        Raises:
            RegistryError: If an earlier version has another format, or the comparison takes too long.
        """
        if mode is Compatibility.NONE or not versions:
            return []
        counted = versions if mode.is_transitive else versions[-1:]
        stored = [(each.version, self._view.schema(each.schema_id)) for each in counted]
        for version, schema in stored:
            if schema.schema_type != new.stored.schema_type:
                raise RegistryError(
                    409,
                    f"Version {version} has type {schema.schema_type}, the new schema {new.stored.schema_type}; set "
                    "the compatibility of the subject to NONE to change the type",
                )
        texts = [(version, schema, self._stored_text(schema, 0)) for version, schema in stored]

        def compare() -> list[Conflict]:
            return find_conflicts(new.parsed, [(v, self._remembered(s, text)) for v, s, text in texts], mode)

        try:
            async with self._permits:
                return await asyncio.to_thread(compare)
        except InvalidSchemaError as error:
            raise invalid_schema(f"{error}") from error

    def text_of(self, schema: metadata_pb2.StoredSchema, output_format: str) -> str:
        """Return the text of a stored schema; the format `serialized` is a Protobuf descriptor in base64."""
        if output_format == "serialized" and schema.schema_type == PROTOBUF:
            return base64.b64encode(schema.file_descriptor).decode()
        return schema.text

    async def _parse(
        self, new: NewSchema, references: Iterable[Reference], texts: dict[str, SchemaText]
    ) -> CheckedSchema:
        descriptor = b""
        if new.schema_type == PROTOBUF:
            descriptor = await self._describe(new.text, texts)
            if len(descriptor) > MAX_SCHEMA_BYTES:
                raise InvalidSchemaError(f"its descriptor has more than {MAX_SCHEMA_BYTES} bytes")
        async with self._permits:
            text = SchemaText(new.text, descriptor, texts)
            parsed = await asyncio.to_thread(parse_schema, new.schema_type, text)
        stored = metadata_pb2.StoredSchema(schema_type=new.schema_type, text=new.text, file_descriptor=descriptor)
        for name, subject, version in references:
            stored.references.add(name=name, subject=subject, version=version)
        parts = [new.schema_type, parsed.canonical, *(part for each in stored.references for part in _parts(each))]
        stored.digest = hashlib.sha256("\0".join(parts).encode()).digest()[:16]
        return CheckedSchema(stored, parsed)

    async def _describe(self, text: str, texts: dict[str, SchemaText]) -> bytes:
        from headrace_coordinator.core.schemas.protobuf import FILE_NAME, decode_descriptor

        descriptor = decode_descriptor(text)
        if descriptor is None:
            imported = SchemaText("", references=texts).dependencies()
            descriptor = await self._compiler.compile(
                text, FILE_NAME, {name: each.descriptor for name, each in imported.items()}
            )
        return descriptor

    def _resolve(self, reference: Reference) -> tuple[Reference, metadata_pb2.StoredSchema]:
        """Return a reference with the number of its version, and its schema."""
        try:
            version = self._view.version(reference.subject, reference.version or LATEST, deleted=reference.version > 0)
        except RegistryError as error:
            raise invalid_schema(f"reference {reference.name[:256]!r}: {error.message}") from error
        return reference._replace(version=version.version), self._view.schema(version.schema_id)

    def _stored_text(self, schema: metadata_pb2.StoredSchema, depth: int) -> SchemaText:
        if depth > MAX_REFERENCE_DEPTH:
            raise invalid_schema(_ENDED.format(MAX_REFERENCE_DEPTH))
        references = {}
        for each in schema.references:
            found = self._view.version(each.subject, each.version, deleted=True)
            references[each.name] = self._stored_text(self._view.schema(found.schema_id), depth + 1)
        return SchemaText(schema.text, schema.file_descriptor, references, schema.digest)

    def _remembered(self, schema: metadata_pb2.StoredSchema, text: SchemaText) -> ParsedSchema:
        """Return a stored schema parsed; called in threads."""
        known = schema.digest, text.contents()
        found = self._parsed.get(known)
        if found is None:
            found = self._parsed[known] = parse_schema(schema.schema_type, text)
            while len(self._parsed) > MAX_REMEMBERED:
                self._parsed.popitem(last=False)
        return found


def _parts(reference: metadata_pb2.SchemaReference) -> tuple[str, str, str]:
    return reference.name, reference.subject, str(reference.version)
