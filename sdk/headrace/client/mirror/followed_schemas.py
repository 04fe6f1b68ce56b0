"""Subjects of the source's schema registry, kept as at the source: versions with their ids, deletions, compatibility.

Values contain the id of their schema, so that a schema is copied with its id or not at all. A subject that is copied is
in mode IMPORT here until it is promoted: the registry then takes schemas with an id only. A version whose id or number
has another schema here, and a subject that exists here with other versions, are reported and left as they are. What the
source deletes is deleted here in the way that keeps its id readable.

One event loop. Requests block a thread each.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.client.base.acompat import acall
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorDescription, MirroredSubject, is_left_alone
from headrace.client.schemas.registry import SchemaRegistry, SchemaRegistryError
from headrace.client.schemas.subjects import RegistrySubjects, SubjectState


class SubjectConflictError(Exception):
    """The subject here is not a copy of the source's; the message says why."""


class FollowedSchemas:
    """Subjects of one mirror."""

    def __init__(self, mirrors: AsyncMirrors, source: SchemaRegistry, target: SchemaRegistry) -> None:
        self._mirrors = mirrors
        self._source = RegistrySubjects(source)
        self._target = RegistrySubjects(target)
        self._states: dict[str, SubjectState] = {}
        """Of the source, when it was copied last."""
        self._claimed: set[str] = set()
        self._copied: set[tuple[str, int]] = set()
        """Versions that were compared in this round."""
        self._referenced: set[str] = set()
        """Subjects to which copied ones refer."""

    async def follow(self, described: MirrorDescription) -> None:
        """Copy what has changed. A problem of one subject is noted in its row and affects no other.

        Raises:
            HeadraceError: If one of the registries, or the cluster, cannot be asked.
        """
        self._copied.clear()
        at_source = await acall(self._source.names)
        self._referenced |= {each.name for each in described.subjects if each.is_copied}
        due = deque(name for name in at_source if described.settings.has_subject(name) or name in self._referenced)
        seen = set(due)
        while due:
            subject = due.popleft()
            if not is_left_alone(described, subject):
                await self._follow_one(described, subject)
            due.extend(sorted((self._referenced & set(at_source)) - seen))
            seen |= self._referenced
        for each in described.subjects:
            if each.problem and each.name not in at_source:
                await self._mirrors.note_subject(described.name, each.name, {"problem": ""})

    async def _follow_one(self, described: MirrorDescription, subject: str) -> None:
        problem, state = "", None
        try:
            state = await acall(self._source.state, subject)
            if not state.versions or self._states.get(subject) == state:
                return
            await self._claim(described, subject, state)
            await self._copy(described, subject, state)
        except SubjectConflictError as error:
            problem = str(error)
        except SchemaRegistryError as error:
            problem = error.message
            self._claimed.discard(subject)  # Its mode may have been changed by hand.
        if problem != _row(described, subject).problem:
            await self._mirrors.note_subject(described.name, subject, {"problem": problem})
        if state is not None and not problem:
            self._states[subject] = state

    async def _claim(self, described: MirrorDescription, subject: str, state: SubjectState) -> None:
        """Let the registry here take nothing but copies for a subject.

        Raises:
            SubjectConflictError: If it has what the source has not, or was promoted meanwhile.
        """
        row = _row(described, subject)
        mode = state.mode if state.mode.startswith("READONLY") else ""  # IMPORT: the source is a mirror itself.
        if not row.is_copied and subject not in self._claimed:
            await self._check_same(subject, state)
        if not row.is_copied or row.mode != mode:
            await self._mirrors.note_subject(described.name, subject, {"copied": "yes", "mode": mode})
        if subject in self._claimed:
            return
        await acall(self._target.set_mode, subject, "IMPORT")
        if is_left_alone(await self._mirrors.describe(described.name), subject):
            await acall(self._target.set_mode, subject, mode)  # The promotion may have set it before.
            raise SubjectConflictError("it was promoted")
        self._claimed.add(subject)

    async def _check_same(self, subject: str, state: SubjectState) -> None:
        for version in (await acall(self._target.state, subject)).versions:
            theirs = await acall(self._source.version, subject, version)
            ours = await acall(self._target.version, subject, version)
            if version not in state.versions or not _is_equal(theirs, ours):
                raise SubjectConflictError(f"version {version} here is not that of the source; delete it to copy it")

    async def _copy(self, described: MirrorDescription, subject: str, state: SubjectState) -> None:
        """Copy a subject that is claimed."""
        for version in state.versions:
            await self._copy_version(described, subject, version)
        ours = await acall(self._target.state, subject)
        for version in sorted(set(ours.live) - set(state.live)):
            await acall(self._target.delete_version, subject, version)
        if ours.compatibility != state.compatibility:
            await acall(self._target.set_compatibility, subject, state.compatibility)

    async def _copy_version(self, described: MirrorDescription, subject: str, version: int) -> None:
        """Register a version with its id, after those that it refers to."""
        if (subject, version) in self._copied:
            return
        theirs = await acall(self._source.version, subject, version)
        if theirs is None:
            return  # It was deleted permanently meanwhile.
        for each in theirs.get("references") or ():
            referred = each["subject"]
            if not is_left_alone(described, referred):
                await self._claim(described, referred, await acall(self._source.state, referred))
                self._referenced.add(referred)
            await self._copy_version(described, referred, each["version"])
        ours = await acall(self._target.version, subject, version)
        if ours is None:
            await self._register(subject, theirs)
        elif not _is_equal(theirs, ours):
            raise SubjectConflictError(f"version {version} here is not that of the source; delete it to copy it")
        self._copied.add((subject, version))

    async def _register(self, subject: str, theirs: Mapping[str, Any]) -> None:
        try:
            await acall(self._target.register, subject, theirs)
        except SchemaRegistryError as error:
            if error.status in (401, 403):
                raise
            raise SubjectConflictError(
                f"version {theirs['version']} with id {theirs['id']} is refused here: {error.message}"
            ) from error


def _row(described: MirrorDescription, subject: str) -> MirroredSubject:
    return next((each for each in described.subjects if each.name == subject), MirroredSubject(subject))


def _is_equal(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any] | None) -> bool:
    """Return whether two versions have the same id and schema."""
    if theirs is None or ours is None or theirs["id"] != ours["id"]:
        return False
    by = "guid" if theirs.get("guid") and ours.get("guid") else "schema"  # A guid is of the canonical form.
    return bool(theirs[by] == ours[by])
