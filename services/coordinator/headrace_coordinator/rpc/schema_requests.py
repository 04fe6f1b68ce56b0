"""Operations of the schema registry's REST interface. Belongs to the event loop.

Reads are answered from this coordinator's view. `normalize` of requests has no effect, because schemas are always
compared by their canonical form.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.wire.errors import NotAuthorizedError
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.internal_v1 import metadata_pb2

from headrace_coordinator.core.schemas.compatibility import Compatibility
from headrace_coordinator.core.schemas.errors import (
    MODES,
    RegistryError,
    invalid_compatibility,
    invalid_mode,
    invalid_schema,
    no_schema,
    no_subject,
)
from headrace_coordinator.core.schemas.formats import AVRO, SCHEMA_TYPES
from headrace_coordinator.core.schemas.schema import Reference
from headrace_coordinator.rpc.schema_routes import ACT, RegistryCall, Route, Text
from headrace_coordinator.runtime.schema_parser import NewSchema, SchemaParser
from headrace_coordinator.runtime.schema_store import MAX_NUMBER, SchemaStore, check_subject, read_number, read_version
from headrace_coordinator.runtime.schema_view import LATEST, SchemaView

MAX_LISTED = 1_000
"""Maximum schemas in one answer of `/schemas`; the next ones have a higher `offset`, or are `after` a subject."""
MAX_LISTED_CHARACTERS = 8 << 20
"""Maximum size of their texts: the answer is made in one step of the event loop, and clients have limits, too."""
_UNSUPPORTED = ("metadata", "ruleSet")
_SETTINGS = ("compatibility", "normalize")
"""Fields of a config."""
_KIND = ResourceKind.SCHEMA


class SchemaRequests:
    """Handlers of one coordinator."""

    def __init__(self, view: SchemaView, parser: SchemaParser, store: SchemaStore) -> None:
        self._view = view
        self._parser = parser
        self._store = store

    def routes(self) -> list[Route]:
        """Return all routes."""
        subject, version = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
        checks, by_id = "/compatibility/subjects/{subject}/versions", "/schemas/ids/{schema_id}"
        return [
            Route("GetRegistry", "GET", "/", _constant({})),
            Route("ListSchemaTypes", "GET", "/schemas/types", _constant(list(SCHEMA_TYPES))),
            Route("ListContexts", "GET", "/contexts", _now(lambda call: call.page(["."]))),
            Route("ListSchemas", "GET", "/schemas", _now(self._list_schemas)),
            Route("GetSchema", "GET", by_id, _now(self._get_schema)),
            Route("GetSchema", "GET", f"{by_id}/schema", _now(self._get_schema_text)),
            Route("GetSchema", "GET", "/schemas/guids/{guid}", _now(self._get_schema_by_guid)),
            Route("ListSchemaVersions", "GET", f"{by_id}/subjects", _now(self._list_subjects_of_schema)),
            Route("ListSchemaVersions", "GET", f"{by_id}/versions", _now(self._list_versions_of_schema)),
            Route("ListSubjects", "GET", "/subjects", _now(lambda call: call.page(self._list_subjects(call)))),
            Route("LookUpSchema", "POST", subject, self._look_up),
            Route("DeleteSubject", "DELETE", subject, self._delete_subject, ACT),
            Route("ListVersions", "GET", f"{subject}/versions", _now(self._list_versions)),
            Route("RegisterSchema", "POST", f"{subject}/versions", self._register, ACT),
            Route("GetVersion", "GET", version, _now(self._get_version)),
            Route("GetVersion", "GET", f"{version}/schema", _now(self._get_version_text)),
            Route("GetVersion", "GET", f"{version}/referencedby", _now(self._list_referencing)),
            Route("DeleteVersion", "DELETE", version, self._delete_version, ACT),
            Route("CheckCompatibility", "POST", checks, self._check_all),
            Route("CheckCompatibility", "POST", checks + "/{version}", self._check_one),
            Route("GetCompatibility", "GET", "/config", _now(self._get_compatibility)),
            Route("GetCompatibility", "GET", "/config/{subject}", _now(self._get_compatibility)),
            Route("SetCompatibility", "PUT", "/config", self._set_compatibility, ACT),
            Route("SetCompatibility", "PUT", "/config/{subject}", self._set_compatibility, ACT),
            Route("SetCompatibility", "DELETE", "/config", self._remove_compatibility, ACT),
            Route("SetCompatibility", "DELETE", "/config/{subject}", self._remove_compatibility, ACT),
            Route("GetMode", "GET", "/mode", _now(self._get_mode)),
            Route("GetMode", "GET", "/mode/{subject}", _now(self._get_mode)),
            Route("SetMode", "PUT", "/mode", self._set_mode, ACT),
            Route("SetMode", "PUT", "/mode/{subject}", self._set_mode, ACT),
            Route("SetMode", "DELETE", "/mode/{subject}", self._remove_mode, ACT),
        ]

    # --- by id ---

    def _get_schema(self, call: RegistryCall) -> Any:
        return self._describe(self._visible(call), call)

    def _get_schema_text(self, call: RegistryCall) -> Text:
        return Text(self._parser.text_of(self._visible(call), call.query.get("format", "")))

    def _get_schema_by_guid(self, call: RegistryCall) -> Any:
        try:
            digest = uuid.UUID(call.path["guid"]).bytes
        except ValueError:
            digest = b""
        schema_id = self._view.id_of(digest)
        return self._describe(self._visible(call, schema_id or 0), call)

    def _list_subjects_of_schema(self, call: RegistryCall) -> list[str]:
        return call.page(list(dict.fromkeys(subject for subject, _ in self._uses(call))))

    def _list_versions_of_schema(self, call: RegistryCall) -> list[dict[str, Any]]:
        return [{"subject": subject, "version": version} for subject, version in call.page(self._uses(call))]

    def _uses(self, call: RegistryCall) -> list[tuple[str, int]]:
        schema = self._visible(call)
        return [
            (use.subject, use.version)
            for use in self._view.uses(schema.schema_id)
            if (not use.deleted or call.flag("deleted")) and call.access.sees(_KIND, use.subject)
            if call.query.get("subject") in (None, "", use.subject)
        ]

    def _visible(self, call: RegistryCall, schema_id: int | None = None) -> metadata_pb2.StoredSchema:
        """Return a schema of which the caller may describe a subject.

        Raises:
            RegistryError: If there is none.
            NotAuthorizedError: If there is none that the caller may see.
        """
        if schema_id is None:
            schema_id = read_number(call.path["schema_id"])
        subjects = dict.fromkeys(use.subject for use in self._view.uses(schema_id))
        if subjects and any(call.access.sees(_KIND, subject) for subject in subjects):
            return self._view.schema(schema_id)
        if not subjects and call.access.allows_all(Operation.DESCRIBE, _KIND, ""):
            raise no_schema(f"Schema {schema_id}" if schema_id else "Schema")
        for subject in subjects:
            if call.access.allows(Operation.DESCRIBE, _KIND, subject):
                return self._view.schema(schema_id)
        raise NotAuthorizedError(
            f"{call.access.caller.name} has no grant of describe for a subject with schema {schema_id}"
        )

    # --- subjects and versions ---

    def _list_subjects(self, call: RegistryCall) -> list[str]:
        prefix, after = call.query.get("subjectPrefix", ""), call.query.get("after", "")
        only = call.flag("deletedOnly")
        return [
            name
            for name in sorted(self._view.subjects)
            if name > after and name.startswith(prefix) and call.access.sees(_KIND, name)
            if any(
                each.deleted if only else not each.deleted or call.flag("deleted")
                for each in self._view.subjects[name].versions
            )
        ]

    def _list_schemas(self, call: RegistryCall) -> list[dict[str, Any]]:
        versions = [
            (name, each)
            for name in self._list_subjects(call)
            for each in self._view.versions(name, deleted=call.flag("deleted"))[-1 if call.flag("latestOnly") else 0 :]
        ]
        found = call.page(versions, MAX_LISTED)
        size = sum(len(self._view.schema(each.schema_id).text) for _, each in found)
        if size > MAX_LISTED_CHARACTERS and len(found) > 1:
            raise RegistryError(413, f"{len(found)} schemas have {size} characters; request fewer by a limit.")
        return [self._describe_version(name, each, call) for name, each in found]

    def _list_versions(self, call: RegistryCall) -> list[int]:
        subject = self._require(call, Operation.DESCRIBE)
        only = call.flag("deletedOnly")
        versions = self._view.versions(subject, deleted=call.flag("deleted") or only)
        found = [each.version for each in versions if each.deleted or not only]
        if not found:
            raise no_subject(subject)
        return call.page(found)

    def _get_version(self, call: RegistryCall) -> dict[str, Any]:
        return self._describe_version(call.path["subject"], self._version(call, Operation.DESCRIBE), call)

    def _get_version_text(self, call: RegistryCall) -> Text:
        schema = self._view.schema(self._version(call, Operation.DESCRIBE).schema_id)
        return Text(self._parser.text_of(schema, call.query.get("format", "")))

    def _list_referencing(self, call: RegistryCall) -> list[int]:
        found = self._version(call, Operation.DESCRIBE)
        return call.page(self._view.referenced_by(call.path["subject"], found.version))

    async def _register(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require(call, Operation.WRITE)
        body = call.json()
        new = _read_schema(body)
        self._require_references(call, new)
        wanted = {name: _read_number(body, name) for name in ("id", "version")}
        schema_id, version = await self._store.register(
            subject, new, call.deadline, schema_id=max(0, wanted["id"]), version=max(0, wanted["version"])
        )
        return {"id": schema_id, "version": version, **self._describe(self._view.schema(schema_id), call)}

    async def _look_up(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require(call, Operation.DESCRIBE)
        new = _read_schema(call.json())
        self._require_references(call, new)
        versions = self._view.versions(subject, deleted=call.flag("deleted"))
        if not versions:
            raise no_subject(subject)
        checked = await self._parser.check(new)
        schema_id = self._view.id_of(checked.stored.digest)
        versions = self._view.versions(subject, deleted=call.flag("deleted"))
        found = next((each for each in reversed(versions) if each.schema_id == schema_id), None)
        if found is None:
            raise no_schema()
        return self._describe_version(subject, found, call)

    async def _delete_subject(self, call: RegistryCall) -> list[int]:
        subject = self._require(call, Operation.DELETE)
        return await self._store.delete_subject(subject, call.deadline, permanent=call.flag("permanent"))

    async def _delete_version(self, call: RegistryCall) -> int:
        subject = self._require(call, Operation.DELETE)
        version = read_version(call.path["version"], LATEST)
        return await self._store.delete_version(subject, version, call.deadline, permanent=call.flag("permanent"))

    # --- compatibility and mode ---

    async def _check_all(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require(call, Operation.DESCRIBE)
        return await self._check(call, self._view.compatibility(subject), self._view.versions(subject))

    async def _check_one(self, call: RegistryCall) -> dict[str, Any]:
        found = self._version(call, Operation.DESCRIBE)
        return await self._check(call, self._view.compatibility(call.path["subject"]), [found])

    async def _check(
        self, call: RegistryCall, mode: Compatibility, versions: list[metadata_pb2.SubjectVersion]
    ) -> dict[str, Any]:
        new = _read_schema(call.json())
        self._require_references(call, new)
        checked = await self._parser.check(new)
        try:
            messages = [str(each) for each in await self._parser.find_conflicts(checked, versions, mode)]
        except RegistryError as error:
            if error.code != 409:
                raise
            messages = [error.message]
        if messages:
            messages.append(f"{{compatibility: '{mode.value}'}}")
        verbose = {"messages": messages} if call.flag("verbose") else {}
        return {"is_compatible": not messages, **verbose}

    def _get_compatibility(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require_if_named(call, Operation.DESCRIBE)
        if subject is not None and not call.flag("defaultToGlobal"):
            found = self._view.subjects.get(subject)
            if found is None or not found.compatibility:
                text = f"Subject '{subject}' does not have subject-level compatibility configured"
                raise RegistryError(40408, text)
        return {"compatibilityLevel": self._view.compatibility(subject or "").value}

    async def _set_compatibility(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require_if_named(call, Operation.ALTER)
        body = call.json()
        try:
            mode = Compatibility(str(body.get("compatibility", "")).upper())
        except ValueError:
            raise invalid_compatibility() from None
        unsupported = [name for name in body if name not in _SETTINGS and body[name]]
        if unsupported:
            raise RegistryError(42203, f"{' and '.join(unsupported)[:256]} of a config are not supported")
        await self._store.set_compatibility(subject, mode, call.deadline)
        return {"compatibility": mode.value}

    async def _remove_compatibility(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require_if_named(call, Operation.ALTER)
        before = self._view.compatibility(subject or "").value
        if subject is not None and not self._view.subjects.get(subject, metadata_pb2.SchemaSubject()).compatibility:
            raise no_subject(subject)
        await self._store.set_compatibility(subject, None, call.deadline)
        return {"compatibilityLevel": before}

    def _get_mode(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require_if_named(call, Operation.DESCRIBE)
        if subject is not None and not call.flag("defaultToGlobal"):
            found = self._view.subjects.get(subject)
            if found is None or not found.mode:
                raise RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")
        return {"mode": self._view.mode(subject or "")}

    async def _set_mode(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require_if_named(call, Operation.ALTER)
        mode = str(call.json().get("mode", "")).upper()
        if mode not in MODES:
            raise invalid_mode()
        await self._store.set_mode(subject, mode, call.deadline, force=call.flag("force"))
        return {"mode": mode}

    async def _remove_mode(self, call: RegistryCall) -> dict[str, Any]:
        subject = self._require(call, Operation.ALTER)
        before = self._view.mode(subject)
        if not self._view.subjects.get(subject, metadata_pb2.SchemaSubject()).mode:
            raise no_subject(subject)
        await self._store.set_mode(subject, "", call.deadline)
        return {"mode": before}

    # --- shared ---

    def _require(self, call: RegistryCall, operation: Operation) -> str:
        """Return the subject of the path, on which the caller may do an operation."""
        subject = call.path["subject"]
        check_subject(subject)
        call.access.require(operation, _KIND, subject)
        return subject

    def _require_if_named(self, call: RegistryCall, operation: Operation) -> str | None:
        """Return the subject of the path; `None` if it names none. Everybody may read what all subjects share."""
        if "subject" in call.path:
            return self._require(call, operation)
        if operation is not Operation.DESCRIBE:
            call.access.require(operation, ResourceKind.CLUSTER)
        return None

    def _require_references(self, call: RegistryCall, new: NewSchema) -> None:
        for subject in dict.fromkeys(reference.subject for reference in new.references):
            call.access.require(Operation.DESCRIBE, _KIND, subject)

    def _version(self, call: RegistryCall, operation: Operation) -> metadata_pb2.SubjectVersion:
        subject = self._require(call, operation)
        version = read_version(call.path["version"], LATEST)
        return self._view.version(subject, version, deleted=call.flag("deleted"))

    def _describe_version(
        self, subject: str, version: metadata_pb2.SubjectVersion, call: RegistryCall
    ) -> dict[str, Any]:
        described = self._describe(self._view.schema(version.schema_id), call)
        return {"subject": subject, "version": version.version, "id": version.schema_id, **described}

    def _describe(self, schema: metadata_pb2.StoredSchema, call: RegistryCall) -> dict[str, Any]:
        described: dict[str, Any] = {"guid": str(uuid.UUID(bytes=schema.digest))}
        if schema.schema_type != AVRO:
            described["schemaType"] = schema.schema_type
        if schema.references:
            described["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
            ]
        return described | {"schema": self._parser.text_of(schema, call.query.get("format", ""))}


def _read_schema(body: dict[str, Any]) -> NewSchema:
    """Return the schema of a request.

    Raises:
        RegistryError: If a field is missing or of another type, or asks for what is not supported.
    """
    text, schema_type = body.get("schema"), body.get("schemaType") or AVRO
    if not isinstance(text, str) or not text.strip() or not isinstance(schema_type, str):
        raise invalid_schema("the field schema must be a text that is not empty")
    unsupported = [name for name in _UNSUPPORTED if body.get(name)]
    if unsupported:
        raise invalid_schema(f"{' and '.join(unsupported)} of a schema are not supported")
    references = body.get("references") or []
    try:
        read = tuple(Reference(str(each["name"]), str(each["subject"]), int(each["version"])) for each in references)
    except (TypeError, KeyError, ValueError):
        raise invalid_schema("references must be a list of objects with name, subject and version") from None
    return NewSchema(schema_type.upper(), text, read)


def _read_number(body: dict[str, Any], name: str) -> int:
    """Return a number of a request; 0 without one, for which clients also send -1."""
    value = body.get(name)
    if value is None or value == -1:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise RegistryError(400, f"The field {name} is no number from 0 to {MAX_NUMBER}.")
    return value


def _now(answer: Callable[[RegistryCall], Any]) -> Callable[[RegistryCall], Awaitable[Any]]:
    """Return a handler of an answer that does not wait."""

    async def handle(call: RegistryCall) -> Any:
        return answer(call)

    return handle


def _constant(value: Any) -> Callable[[RegistryCall], Awaitable[Any]]:
    return _now(lambda _call: value)
