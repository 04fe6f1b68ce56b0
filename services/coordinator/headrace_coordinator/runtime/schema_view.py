"""View of subjects and schemas in etcd, decoded once and kept up to date, from which every coordinator answers reads.

A value that cannot be decoded, for example of a newer release, is absent. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

import structlog
from google.protobuf.message import DecodeError, Message
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import SchemaKey, SchemaRegistryKey, SubjectKey
from headrace_server.keys import Keyspace
from headrace_server.metadata_view import KeySource

from headrace_coordinator.core.schemas.compatibility import Compatibility
from headrace_coordinator.core.schemas.errors import no_schema, no_subject, no_version

log = structlog.get_logger(__name__)

LATEST = -1
"""Number in place of the last version."""
ValueT = TypeVar("ValueT", bound=Message)


class SchemaUse(NamedTuple):
    """Version of a subject that has a schema."""

    subject: str
    version: int
    deleted: bool


class SchemaView:
    """See the module. All attributes are read-only for callers."""

    def __init__(self, keyspace: Keyspace, source: KeySource) -> None:
        self._keyspace = keyspace
        self.source = source
        self.state = metadata_pb2.SchemaRegistryState()
        self.schemas: dict[int, metadata_pb2.StoredSchema] = {}
        self.subjects: dict[str, metadata_pb2.SchemaSubject] = {}
        self.stored_bytes = 0
        """Size of all schemas and subjects in etcd."""
        self._subject_names: dict[bytes, str] = {}
        self._ids: dict[bytes, int] = {}
        self._uses: dict[int, dict[tuple[str, int], bool]] = {}
        self._sizes: dict[str, int] = {}
        self._on_change(0, [found.key for found in source.items(keyspace.schema_registry_prefix)])
        source.subscribe(self._on_change)

    def id_of(self, digest: bytes) -> int | None:
        """Return the id of the schema with a digest, or `None`."""
        return self._ids.get(digest)

    def schema(self, schema_id: int) -> metadata_pb2.StoredSchema:
        """Return a schema.

        Raises:
            RegistryError: If there is none.
        """
        found = self.schemas.get(schema_id)
        if found is None:
            raise no_schema(f"Schema {schema_id}")
        return found

    def uses(self, schema_id: int) -> list[SchemaUse]:
        """Return the versions that have a schema, by subject and version, deleted ones included."""
        found = self._uses.get(schema_id, {})
        return [SchemaUse(subject, version, deleted) for (subject, version), deleted in sorted(found.items())]

    def versions(self, subject: str, *, deleted: bool = False) -> list[metadata_pb2.SubjectVersion]:
        """Return the versions of a subject, ascending; empty if there is none. `deleted` includes deleted ones."""
        found = self.subjects.get(subject)
        return [] if found is None else [each for each in found.versions if deleted or not each.deleted]

    def version(self, subject: str, version: int, *, deleted: bool = False) -> metadata_pb2.SubjectVersion:
        """Return a version of a subject; see `LATEST`.

        Raises:
            RegistryError: If there is none.
        """
        versions = self.versions(subject, deleted=deleted)
        if not versions:
            raise no_subject(subject)
        if version == LATEST:
            return versions[-1]
        found = next((each for each in versions if each.version == version), None)
        if found is None:
            raise no_version(version)
        return found

    def referenced_by(
        self,
        subject: str,
        version: int,
        *,
        deleted: bool = False,
        without: Collection[tuple[str, int]] = (),
    ) -> list[int]:
        """Return the ids of schemas that refer to a version, ascending. `deleted` includes those that are themselves
        deleted; `without` leaves out those that are only these versions, by subject and number.
        """
        return sorted(
            schema_id
            for schema_id, schema in self.schemas.items()
            if any(each.subject == subject and each.version == version for each in schema.references)
            and any(
                (deleted or not use.deleted) and (use.subject, use.version) not in without
                for use in self.uses(schema_id)
            )
        )

    def compatibility(self, subject: str) -> Compatibility:
        """Return the compatibility mode that applies to a subject."""
        found = self.subjects.get(subject)
        own = found.compatibility if found is not None else ""
        return Compatibility(own or self.state.compatibility or Compatibility.BACKWARD.value)

    def mode(self, subject: str) -> str:
        """Return the mode that applies to a subject."""
        found = self.subjects.get(subject)
        if self.state.mode == "READONLY_OVERRIDE":
            return self.state.mode
        return (found.mode if found is not None else "") or self.state.mode or "READWRITE"

    def revision_of(self, key: str) -> int:
        """Return the revision of the last write of a key that the view shows; `0` if it is absent."""
        found = self.source.get(key)
        return 0 if found is None else found.mod_revision

    # --- changes ---

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        for key in keys:
            found = self.source.get(key)
            size = 0 if found is None else len(found.value)
            self.stored_bytes += size - self._sizes.pop(key, 0)
            if size:
                self._sizes[key] = size
            value = b"" if found is None else found.value
            match self._keyspace.parse(key):
                case SchemaRegistryKey():
                    self.state = self._decode(key, value, metadata_pb2.SchemaRegistryState()) or self.state
                case SchemaKey(schema_id):
                    self._take_schema(schema_id, self._decode(key, value, metadata_pb2.StoredSchema()))
                case SubjectKey(subject_id):
                    self._take_subject(subject_id, self._decode(key, value, metadata_pb2.SchemaSubject()))

    def _decode(self, key: str, value: bytes, message: ValueT) -> ValueT | None:
        try:
            message.ParseFromString(value)
        except DecodeError as error:
            log.error("schema_value_undecodable", key=key, cause=str(error))
            return None
        return message if value else None

    def _take_schema(self, schema_id: int, schema: metadata_pb2.StoredSchema | None) -> None:
        before = self.schemas.pop(schema_id, None)
        if before is not None:
            self._ids.pop(before.digest, None)
        if schema is not None:
            self.schemas[schema_id] = schema
            self._ids[schema.digest] = schema_id

    def _take_subject(self, subject_id: bytes, subject: metadata_pb2.SchemaSubject | None) -> None:
        before = self.subjects.pop(self._subject_names.pop(subject_id, ""), None)
        for each in _versions(before):
            uses = self._uses[each.schema_id]
            uses.pop((before.name if before else "", each.version), None)
            if not uses:
                del self._uses[each.schema_id]
        if subject is not None:
            self._subject_names[subject_id] = subject.name
            self.subjects[subject.name] = subject
            for each in subject.versions:
                self._uses.setdefault(each.schema_id, {})[subject.name, each.version] = each.deleted


def _versions(subject: metadata_pb2.SchemaSubject | None) -> Iterator[metadata_pb2.SubjectVersion]:
    return iter(() if subject is None else subject.versions)
