"""Compatibility of a new schema with the earlier versions of its subject, in seven modes.

A mode says who must read what: with BACKWARD the new schema reads what the last one wrote, so that consumers change
first; with FORWARD the last one reads what the new one writes, so that producers change first; with FULL both. The
modes with TRANSITIVE ask this of all versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from headrace_coordinator.core.schemas.schema import Incompatibility, ParsedSchema, too_complex


class Compatibility(Enum):
    """Compatibility mode of a subject."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all earlier versions count, and not only the last one."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def is_backward(self) -> bool:
        """Whether the new schema must read what earlier ones wrote."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        """Whether earlier schemas must read what the new one writes."""
        return self.value.startswith(("FORWARD", "FULL"))


class Conflict(NamedTuple):
    """Incompatibility with one earlier version."""

    version: int
    reads_new: bool
    """Whether the earlier version is the reader (FORWARD)."""
    reason: Incompatibility

    def __str__(self) -> str:
        """Return the reason for people and tools, in the form of Confluent's registry."""
        reader, writer = ("old", "new") if self.reads_new else ("new", "old")
        rule, path, message = self.reason
        return (
            f"{{errorType:'{rule}', description:'At path {path}, the {reader} schema cannot read data of the {writer} "
            f"schema (version {self.version} is the old one): {message}', additionalInfo:'{path}'}}"
        )


def find_conflicts(
    new: ParsedSchema, earlier: Sequence[tuple[int, ParsedSchema]], mode: Compatibility
) -> list[Conflict]:
    """Return why `new` may not follow `earlier`; empty if it may.

    Args:
        earlier: version and schema of each earlier version that is not deleted, ascending; all of the new one's format.

    Raises:
        InvalidSchemaError: If a comparison takes too many steps.
    """
    conflicts: list[Conflict] = []
    try:
        for version, old in reversed(earlier if mode.is_transitive else earlier[-1:]):
            if mode.is_backward:
                conflicts += [Conflict(version, False, reason) for reason in new.why_unreadable(old)]
            if mode.is_forward:
                conflicts += [Conflict(version, True, reason) for reason in old.why_unreadable(new)]
    except RecursionError:
        raise too_complex() from None
    return conflicts
