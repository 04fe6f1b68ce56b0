"""Writes of the schema registry, by any coordinator: each one transaction that compares what it was decided from.

A decision is made from the view. Its transaction compares the keys that it used as the view shows them, so that one of
two concurrent writes fails and is decided again with a newer view (PROTOCOL C2, C3):

- A registration compares and rewrites the subject, and compares the state that all subjects share. A new id raises the
  last id in that state, so that equal schemas never get two ids, and no id is given twice.
- A registration with references rewrites the subjects that it refers to, and a deletion compares its subject: a version
  is not deleted while a reference to it appears.
- A schema is deleted with the last version that has it. A registration rewrites the schema that it uses.

Every method returns after this coordinator's view shows the write. Belongs to the event loop; deadlines are in loop
time, seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import Compare, Delete, ModRevisionIs, Operation, Put
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.core.schemas.compatibility import Compatibility
from headrace_coordinator.core.schemas.errors import (
    RegistryError,
    no_subject,
    not_permitted,
)
from headrace_coordinator.core.topic_writes import Write
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver, WriteTracker
from headrace_coordinator.runtime.metadata_limits import MetadataLimits
from headrace_coordinator.runtime.schema_parser import CheckedSchema, NewSchema, SchemaParser
from headrace_coordinator.runtime.schema_view import SchemaView

MAX_VERSIONS = 10_000
"""Maximum versions of one subject."""
MAX_NUMBER = (1 << 31) - 1
"""Greatest id of a schema, and greatest number of a version."""
MAX_SUBJECT_CHARACTERS = 255
MAX_DELETED = 50
"""Versions that one transaction deletes permanently, each perhaps with its schema."""
ResultT = TypeVar("ResultT")
Plan = tuple[ResultT, Write | None]


class SchemaStore:
    """Writes of one coordinator."""

    def __init__(
        self,
        writes: AmbiguousWriteResolver,
        source: PrefixView,
        view: SchemaView,
        keyspace: Keyspace,
        parser: SchemaParser,
        limits: MetadataLimits,
        *,
        max_bytes: int,
    ) -> None:
        """`max_bytes` is the maximum size of all schemas in etcd."""
        self._writes = writes
        self._source = source
        self._view = view
        self._keyspace = keyspace
        self._parser = parser
        self._limits = limits
        self._max_bytes = max_bytes

    # --- versions ---

    async def register(
        self, subject: str, new: NewSchema, deadline: float, *, schema_id: int = 0, version: int = 0
    ) -> tuple[int, int]:
        """Return id and version of a schema in a subject, which gets it as a new version if it has not got it.

        Args:
            schema_id: id that it must get, in mode IMPORT; 0: the next one.
            version: version that it must get, in mode IMPORT; 0: the next one.

        Raises:
            RegistryError: If it is not valid or not compatible, or the mode forbids it. In mode IMPORT a new version
                must have a given id or number, in the others neither.
            MetadataLimitError: If there are too many schemas, or etcd is nearly full.
            MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
        """
        check_subject(subject)

        async def attempt(tracker: WriteTracker) -> tuple[int, int] | None:
            checked = await self._parser.check(new)
            known = self._view.id_of(checked.stored.digest)
            versions = self._view.versions(subject)
            found = next((each for each in reversed(versions) if each.schema_id == known), None)
            if found is not None and schema_id in (0, found.schema_id) and version in (0, found.version):
                return found.schema_id, found.version
            revisions = self._revisions(subject, checked)
            self._check_mode(subject)
            is_import = self._view.mode(subject) == "IMPORT"
            if is_import != bool(schema_id or version):
                raise not_permitted(f"Subject {subject} is {'' if is_import else 'not '}in import mode")
            if not is_import:
                await self._check_compatible(subject, checked)
            if revisions != self._revisions(subject, checked):
                return None  # The view changed meanwhile.
            result, write = self._plan_version(subject, checked, known, schema_id, version)
            return result if await self._send(tracker, write, deadline) else None

        return await self._writes.resolve(attempt, deadline, f"registering a schema of {subject[:64]}")

    def _revisions(self, subject: str, checked: CheckedSchema) -> list[int]:
        keys = [self._keyspace.schema_registry(), self._keyspace.subject(subject), *self._referred(checked)]
        return [self._view.revision_of(key) for key in keys]

    def _referred(self, checked: CheckedSchema) -> list[str]:
        return [self._keyspace.subject(name) for name in sorted({each.subject for each in checked.stored.references})]

    async def _check_compatible(self, subject: str, checked: CheckedSchema) -> None:
        mode = self._view.compatibility(subject)
        conflicts = await self._parser.find_conflicts(checked, self._view.versions(subject), mode)
        if conflicts:
            reasons = ", ".join(map(str, conflicts[:20]))
            raise RegistryError(
                409,
                f"Schema being registered is incompatible with an earlier schema for subject '{subject}', details: "
                f"[{reasons}, {{compatibility: '{mode.value}'}}]",
            )

    def _plan_version(
        self, subject: str, checked: CheckedSchema, known: int | None, wanted_id: int, wanted_version: int
    ) -> Plan[tuple[int, int]]:
        state, after = metadata_pb2.SchemaRegistryState(), metadata_pb2.SchemaSubject(name=subject)
        state.CopyFrom(self._view.state)
        if subject in self._view.subjects:
            after.CopyFrom(self._view.subjects[subject])
        if len(after.versions) >= MAX_VERSIONS:
            raise not_permitted(f"Subject '{subject}' has {MAX_VERSIONS} versions, the maximum; delete some.")
        schema_id = known or wanted_id or state.last_schema_id + 1
        if wanted_id and (schema_id != wanted_id or (known is None and wanted_id in self._view.schemas)):
            raise not_permitted(f"Overwrite new schema with id {wanted_id} is not permitted.")
        version = wanted_version or max((each.version for each in after.versions), default=0) + 1
        if max(schema_id, version) > MAX_NUMBER:
            what = "id" if schema_id > MAX_NUMBER else f"version of subject '{subject}'"
            raise not_permitted(f"The greatest {what}, {MAX_NUMBER}, is in use: there is no next one.")
        kept = [each for each in after.versions if each.version != version]
        if len(kept) != len(after.versions):
            raise not_permitted(f"Version {version} of subject '{subject}' has another schema.")
        kept.append(metadata_pb2.SubjectVersion(version=version, schema_id=schema_id))
        del after.versions[:]
        after.versions.extend(sorted(kept, key=lambda each: each.version))
        schema = metadata_pb2.StoredSchema()
        schema.CopyFrom(self._view.schemas[schema_id] if known else checked.stored)
        schema.schema_id = schema_id
        if not known:
            self._check_room(len(schema.text) + len(schema.file_descriptor))
        state.last_schema_id = max(state.last_schema_id, schema_id)
        keys = self._keyspace
        puts: dict[str, Message] = {keys.schema(schema_id): schema, keys.subject(subject): after}
        for name in {each.subject for each in checked.stored.references} - {subject}:
            puts[keys.subject(name)] = self._view.subjects[name]
        compares = {keys.schema_registry(), *puts}
        if not known:
            puts[keys.schema_registry()] = state
        return (schema_id, version), Write(self._as_seen(compares), _puts(puts))

    def _check_room(self, size: int) -> None:
        self._limits.check_reserve("a new schema")
        if self._view.stored_bytes + size > self._max_bytes:
            raise not_permitted(
                f"The schemas of the cluster take {self._view.stored_bytes} bytes, and max_schema_bytes is "
                f"{self._max_bytes}; delete some permanently, or raise it at the coordinators."
            )

    # --- deletions ---

    async def delete_version(self, subject: str, version: int, deadline: float, *, permanent: bool) -> int:
        """Delete a version and return its number; raise as `register`, and if something refers to it.

        `LATEST` is the version that it is at first: after a lost answer another one would be.
        """
        number = 0

        def decide() -> Plan[int]:
            nonlocal number
            self._check_mode(subject)
            left = {each.version for each in self._view.versions(subject, deleted=permanent)}
            if number and number not in left:
                return number, None  # An earlier attempt deleted it.
            found = self._view.version(subject, number or version, deleted=True)
            if permanent and not found.deleted:
                raise RegistryError(
                    40407,
                    f"Subject '{subject}' Version {found.version} was not deleted first before being permanently "
                    "deleted",
                )
            if found.deleted and not permanent:
                raise RegistryError(
                    40406,
                    f"Subject '{subject}' Version {found.version} was soft deleted.Set permanent=true to delete "
                    "permanently",
                )
            self._check_unreferenced(subject, [found.version], permanent=permanent)
            number = found.version
            return number, self._plan_deletion(subject, {number}, permanent=permanent)

        return await self._rewrite(decide, deadline, f"deleting a version of {subject[:64]}")

    async def delete_subject(self, subject: str, deadline: float, *, permanent: bool) -> list[int]:
        """Delete all versions of a subject and return their numbers; raise as `delete_version`."""
        deleted: list[int] = []

        def decide() -> Plan[bool]:
            self._check_mode(subject)
            versions = self._view.versions(subject, deleted=True)
            if not versions:
                if deleted:
                    return True, None  # An earlier attempt deleted them.
                raise no_subject(subject)
            live = [each.version for each in versions if not each.deleted]
            if permanent and live:
                raise RegistryError(
                    40405, f"Subject '{subject}' was not deleted first before being permanently deleted"
                )
            if not permanent and not live:
                if deleted:
                    return True, None
                raise RegistryError(
                    40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently"
                )
            wanted = [each.version for each in versions[:MAX_DELETED]] if permanent else live
            self._check_unreferenced(subject, wanted, permanent=permanent)
            deleted.extend(each for each in wanted if each not in deleted)
            is_last = not permanent or len(wanted) == len(versions)
            return is_last, self._plan_deletion(subject, set(wanted), permanent=permanent)

        while not await self._rewrite(decide, deadline, f"deleting subject {subject[:64]}"):
            pass
        return deleted

    def _check_unreferenced(self, subject: str, versions: Sequence[int], *, permanent: bool) -> None:
        """Check that no schema of other versions refers to these.

        For a permanent deletion no deleted one either, because its id can still be read.
        """
        going = {(subject, version) for version in versions}
        for version in versions:
            users = self._view.referenced_by(subject, version, deleted=permanent, without=going)
            if users:
                raise RegistryError(
                    42206,
                    f"One or more references exist to the schema {{subject={subject},version={version}}}: schema ids "
                    f"{', '.join(map(str, users[:20]))}. Delete these first.",
                )

    def _plan_deletion(self, subject: str, versions: set[int], *, permanent: bool) -> Write:
        keys = self._keyspace
        after = metadata_pb2.SchemaSubject()
        after.CopyFrom(self._view.subjects[subject])
        gone: list[Operation] = []
        compares = {keys.subject(subject), keys.schema_registry()}
        if permanent:
            removed = [each for each in after.versions if each.version in versions]
            kept = [each for each in after.versions if each.version not in versions]
            for schema_id in {each.schema_id for each in removed}:
                uses = {(use.subject, use.version) for use in self._view.uses(schema_id)}
                compares.add(keys.schema(schema_id))
                if uses <= {(subject, version) for version in versions}:
                    gone.append(Delete(keys.schema(schema_id)))
            del after.versions[:]
            after.versions.extend(kept)
        else:
            for each in after.versions:
                each.deleted = each.deleted or each.version in versions
        if not after.versions:
            return Write(self._as_seen(compares), (Delete(keys.subject(subject)), *gone))
        return Write(self._as_seen(compares), (*_puts({keys.subject(subject): after}), *gone))

    # --- compatibility and mode ---

    async def set_compatibility(self, subject: str | None, mode: Compatibility | None, deadline: float) -> None:
        """Set the compatibility of a subject, or of all without their own; `None` removes it."""
        await self._set(subject, "compatibility", "" if mode is None else mode.value, deadline)

    async def set_mode(self, subject: str | None, mode: str, deadline: float, *, force: bool = False) -> None:
        """Set the mode of a subject, or of all without their own; empty removes it.

        Raises:
            RegistryError: If IMPORT is set without `force` where there are schemas.
        """

        def check() -> None:
            has_schemas = bool(self._view.schemas if subject is None else self._view.versions(subject))
            if mode == "IMPORT" and has_schemas and not force:
                raise not_permitted("Cannot import since found existing subjects; set force=true to do so")

        await self._set(subject, "mode", mode, deadline, check)

    async def _set(
        self, subject: str | None, field: str, value: str, deadline: float, check: Callable[[], None] = lambda: None
    ) -> None:
        keys = self._keyspace
        if subject is not None:
            check_subject(subject)

        def decide() -> Plan[bool]:
            check()
            after: metadata_pb2.SchemaRegistryState | metadata_pb2.SchemaSubject
            if subject is None:
                key, after, before = keys.schema_registry(), metadata_pb2.SchemaRegistryState(), self._view.state
                after.CopyFrom(before)
            else:
                key, after = keys.subject(subject), metadata_pb2.SchemaSubject(name=subject)
                if subject in self._view.subjects:
                    after.CopyFrom(self._view.subjects[subject])
            if getattr(after, field) == value:
                return True, None
            setattr(after, field, value)
            is_empty = isinstance(after, metadata_pb2.SchemaSubject) and not (
                after.versions or after.compatibility or after.mode
            )
            change: tuple[Operation, ...] = (Delete(key),) if is_empty else _puts({key: after})
            return True, Write(self._as_seen({key}), change)

        await self._rewrite(decide, deadline, f"setting the {field} of {(subject or 'all subjects')[:64]}")

    # --- transactions ---

    def _check_mode(self, subject: str) -> None:
        if self._view.mode(subject).startswith("READONLY"):
            raise not_permitted(f"Subject {subject} is in read-only mode")

    async def _rewrite(self, decide: Callable[[], Plan[ResultT]], deadline: float, what: str) -> ResultT:
        """Send what `decide` plans from the view until one transaction is applied, and return its result."""

        async def attempt(tracker: WriteTracker) -> tuple[ResultT] | None:
            result, write = decide()
            return (result,) if write is None or await self._send(tracker, write, deadline) else None

        (result,) = await self._writes.resolve(attempt, deadline, what)
        return result

    async def _send(self, tracker: WriteTracker, write: Write | None, deadline: float) -> bool:
        """Send a transaction and wait until the view shows it; return whether it was applied."""
        if write is None:
            return True
        result = await self._writes.send(tracker, write)
        if result.succeeded:
            seconds = max(0.0, deadline - asyncio.get_running_loop().time())
            await self._source.wait_for(result.revision, seconds)
        return result.succeeded

    def _as_seen(self, keys: Iterable[str]) -> tuple[Compare, ...]:
        return tuple(ModRevisionIs(key, self._view.revision_of(key)) for key in sorted(keys))


def check_subject(subject: str) -> None:
    """Check the name of a subject.

    Raises:
        RegistryError: If it is empty, too long, or not printable.
    """
    if not subject or len(subject) > MAX_SUBJECT_CHARACTERS or not subject.isprintable() or subject.startswith(":."):
        raise RegistryError(
            42208,
            f"The specified subject '{subject[:64]}' is not a valid: it must have 1 to {MAX_SUBJECT_CHARACTERS} "
            "printable characters, and contexts are not supported.",
        )


def read_version(text: str, latest: int) -> int:
    """Return the number of a version in a path; `latest` for `latest` and `-1`.

    Raises:
        RegistryError: If it is none.
    """
    if text in ("latest", "-1"):
        return latest
    version = read_number(text)
    if not version:
        raise RegistryError(
            42202,
            f"The specified version '{text[:64]}' is not a valid version id. Allowed values are between [1, 2^31-1] "
            'and the string "latest"',
        )
    return version


def read_number(text: str) -> int:
    """Return the id or the version in a path; 0 if it is no number from 1 to 2^31 - 1."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER))
    return int(text) if is_number and int(text) <= MAX_NUMBER else 0


def _puts(values: dict[str, Message]) -> tuple[Operation, ...]:
    return tuple(Put(key, value.SerializeToString(deterministic=True)) for key, value in values.items())
