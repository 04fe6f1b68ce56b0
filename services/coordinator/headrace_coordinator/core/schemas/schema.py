"""Types that the formats share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.wire.errors import InvalidRequestError

MAX_DEPTH = 100
"""Maximum depth of nested values in a schema."""
MAX_STEPS = 20_000
"""Maximum pairs of parts that one comparison of two schemas looks at; it takes at most a second."""


class InvalidSchemaError(InvalidRequestError):
    """The text is not a schema of its format."""


class Reference(NamedTuple):
    """Use of another registered schema by a schema."""

    name: str
    """Name in the schema that refers: of an Avro type, a URI of JSON Schema, the path of an imported .proto file."""
    subject: str
    version: int


class Incompatibility(NamedTuple):
    """Reason why a reader with one schema cannot read what was written with another one."""

    rule: str
    """Name of the broken rule, such as `READER_FIELD_MISSING_DEFAULT_VALUE`."""
    path: str
    """Place in the reader's schema, such as `/fields/1`; `/` is the whole."""
    message: str
    """Sentence that names the field and both values."""


@dataclass(frozen=True, slots=True)
class SchemaText:
    """Schema as it is registered, with the schemas that it refers to."""

    text: str
    descriptor: bytes = b""
    """Of a Protobuf schema: its serialized `FileDescriptorProto`."""
    references: Mapping[str, SchemaText] = field(default_factory=dict)
    """By the name of the reference."""
    digest: bytes = b""
    """Of a stored schema: of its canonical text and of the numbers of its references, not of what these say."""

    def dependencies(self) -> dict[str, SchemaText]:
        """Return the schemas that it refers to, directly or through others, each once and after those it refers to."""
        found: dict[str, SchemaText] = {}
        for name, reference in self.references.items():
            found.update((each, schema) for each, schema in reference.dependencies().items() if each not in found)
            found.setdefault(name, reference)
        return found

    def contents(self) -> tuple[tuple[str, bytes], ...]:
        """Return the digests of all schemas that it refers to: a deleted subject may be made again with others."""
        return tuple((name, each.digest) for name, each in self.dependencies().items())


class ParsedSchema(Protocol):
    """Valid schema."""

    @property
    def canonical(self) -> str:
        """Text that is equal for equal schemas, whatever their white space and order of keys."""

    def why_unreadable(self, writer: Any) -> list[Incompatibility]:
        """Return why this schema does not read what `writer`, of the same format, wrote; empty if it does.

        Raises:
            InvalidSchemaError: If the comparison takes more than `MAX_STEPS`.
        """


def too_complex() -> InvalidSchemaError:
    """Return the error of a comparison that takes too many steps."""
    return InvalidSchemaError(
        f"comparing the two schemas takes more than {MAX_STEPS} steps",
        action="Split the schema into smaller ones, or set the compatibility of the subject to NONE.",
    )


def load_json(text: str) -> Any:
    """Return the JSON value of a schema's text.

    Raises:
        InvalidSchemaError: If it is nested more deeply than `MAX_DEPTH`.
        ValueError: If it is not JSON.
    """
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:  # At a depth that depends on the version of Python.
        raise _too_deep() from None
    _check_depth(found)
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")  # Python reads NaN and the infinities, other clients fail on them.


def _check_depth(value: Any) -> None:
    """Check the nesting of a JSON value, without recursion; raise as `load_json`."""
    level: Sequence[Any] = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        if not deeper:
            return
        level = deeper
    raise _too_deep()


def _too_deep() -> InvalidSchemaError:
    return InvalidSchemaError(f"the schema is nested more than {MAX_DEPTH} deep", action="Use named types.")
