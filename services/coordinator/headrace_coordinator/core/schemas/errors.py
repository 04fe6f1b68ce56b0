"""Errors of the registry, each with the code of Confluent's REST interface. Pure."""

from __future__ import annotations

from headrace_coordinator.core.schemas.compatibility import Compatibility

MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")


class RegistryError(Exception):
    """Refused request of the registry.

    Attributes:
        code: five digits, the first three of which are the HTTP status; or a status.
        message: sentence for the caller.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.code if self.code < 1_000 else self.code // 100


def no_subject(subject: str) -> RegistryError:
    """Return the error for a subject that does not exist."""
    return RegistryError(40401, f"Subject '{subject[:256]}' not found.")


def no_version(version: object) -> RegistryError:
    """Return the error for a version that does not exist."""
    return RegistryError(40402, f"Version {version} not found.")


def no_schema(what: str = "Schema") -> RegistryError:
    """Return the error for a schema that does not exist."""
    return RegistryError(40403, f"{what} not found")


def invalid_schema(message: str) -> RegistryError:
    """Return the error for a schema that is not valid."""
    return RegistryError(42201, f"Invalid schema: {message}")


def invalid_compatibility() -> RegistryError:
    """Return the error for an unknown compatibility mode."""
    names = ", ".join(mode.value for mode in Compatibility)
    return RegistryError(42203, f"Invalid compatibility level. Valid values are {names}")


def invalid_mode() -> RegistryError:
    """Return the error for an unknown mode."""
    return RegistryError(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")


def not_permitted(message: str) -> RegistryError:
    """Return the error for an operation that the mode forbids."""
    return RegistryError(42205, message)
