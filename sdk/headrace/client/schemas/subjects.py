"""Subjects of a schema registry as a whole: versions with their deletions, compatibility and mode. Calls block."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from headrace.client.schemas.registry import SchemaRegistry, SchemaRegistryError


class SubjectState(NamedTuple):
    """What changes of a subject whenever its versions or settings do."""

    live: tuple[int, ...]
    """Numbers of the versions that are not deleted."""
    versions: tuple[int, ...]
    """Numbers of all versions."""
    latest_id: int
    """Id of the schema of the last live version; 0 if there is none."""
    compatibility: str
    """Empty if it is that of all subjects."""
    mode: str


class RegistrySubjects:
    """Subjects of one registry."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self.request = registry.request

    def names(self) -> list[str]:
        """Return the names of all subjects, also of deleted ones."""
        return [str(name) for name in self.request("GET", "/subjects?deleted=true")]

    def find(self, path: str) -> Any:
        """Return the answer to a read; `None` if there is no such subject, version or setting."""
        try:
            return self.request("GET", path)
        except SchemaRegistryError as error:
            if error.status != 404:
                raise
            return None

    def state(self, subject: str) -> SubjectState:
        """Return the state of a subject; without versions if there is no such subject."""
        at = _path(subject)
        return SubjectState(
            tuple(self.find(f"{at}/versions") or ()),
            tuple(self.find(f"{at}/versions?deleted=true") or ()),
            (self.find(f"{at}/versions/latest") or {}).get("id", 0),
            (self.find(f"/config/{_quoted(subject)}") or {}).get("compatibilityLevel", ""),
            (self.find(f"/mode/{_quoted(subject)}") or {}).get("mode", ""),
        )

    def version(self, subject: str, version: int) -> Any:
        """Return a version, also a deleted one; `None` if there is none."""
        return self.find(f"{_path(subject)}/versions/{version}?deleted=true")

    def set_mode(self, subject: str, mode: str) -> None:
        """Set the mode of a subject, or with an empty one remove it."""
        path = f"/mode/{_quoted(subject)}"
        if mode:
            self.request("PUT", f"{path}?force=true", {"mode": mode})
        elif self.find(path) is not None:
            self.request("DELETE", path)

    def set_compatibility(self, subject: str, compatibility: str) -> None:
        """Set the compatibility of a subject, or with an empty one remove it."""
        path = f"/config/{_quoted(subject)}"
        if compatibility:
            self.request("PUT", path, {"compatibility": compatibility})
        elif self.find(path) is not None:
            self.request("DELETE", path)

    def delete_version(self, subject: str, version: int) -> None:
        """Delete a version; its schema can still be read by its id."""
        self.request("DELETE", f"{_path(subject)}/versions/{version}")

    def register(self, subject: str, version: Mapping[str, Any]) -> None:
        """Register a version of another registry with its number and its id, in mode IMPORT."""
        names = ("schema", "schemaType", "references", "id", "version")
        body = {name: version[name] for name in names if name in version}
        self.request("POST", f"{_path(subject)}/versions", body)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _path(subject: str) -> str:
    return f"/subjects/{_quoted(subject)}"
