"""JSON Schemas of the drafts 4 to 2020-12; `json_containment` compares them.

The draft is that of `$schema`, or draft 7 as in Confluent's registry. A `$ref` names a part of the schema itself, a
metaschema, or a reference by its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing import Resource, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, UnknownDialect, specification_with

from headrace_coordinator.core.schemas.json_containment import Containment
from headrace_coordinator.core.schemas.json_parts import Part
from headrace_coordinator.core.schemas.schema import Incompatibility, InvalidSchemaError, SchemaText, load_json


class ParsedJsonSchema:
    """Parsed JSON Schema."""

    def __init__(self, canonical: str, dependencies: list[str], root: Part) -> None:
        self.canonical = canonical
        self.root = root
        self._whole = (canonical, *dependencies)

    def why_unreadable(self, writer: ParsedJsonSchema) -> list[Incompatibility]:
        """See `ParsedSchema`: why a document that is valid by `writer` may not be valid by this schema."""
        return [] if self._whole == writer._whole else Containment().compare(self.root, [writer.root], "")


def parse(schema: SchemaText) -> ParsedJsonSchema:
    """Return a JSON Schema.

    Raises:
        InvalidSchemaError: If it is none by its metaschema, or a `$ref` leads nowhere.
    """
    contents = _load(schema.text)
    registry = REGISTRY.with_resources(
        [(name, _resource(_load(reference.text))) for name, reference in schema.dependencies().items()]
    )
    root = Part(contents, registry.resolver_with_root(_resource(contents)), _specification(contents))
    for part in _parts(root):
        _check_reference(part)
    texts = [reference.text for reference in schema.dependencies().values()]
    return ParsedJsonSchema(json.dumps(contents, sort_keys=True, separators=(",", ":")), texts, root)


def _load(text: str) -> Any:
    try:
        contents = load_json(text)
        if not isinstance(contents, dict | bool):
            raise InvalidSchemaError("the JSON Schema is neither an object nor a boolean", action="Correct it.")
        kind = validator_for(contents, default=jsonschema.Draft7Validator)
        kind.check_schema(contents, format_checker=kind.FORMAT_CHECKER)
    except jsonschema.SchemaError as error:
        raise InvalidSchemaError(
            f"the JSON Schema is not valid at {error.json_path}: {error.message[:500]}", action="Correct it."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the JSON Schema is not valid: {error}", action="Correct it.") from error
    return contents


def _resource(contents: Any) -> Resource[Any]:
    return _specification(contents).create_resource(contents)


def _specification(contents: Any) -> Specification[Any]:
    """Return the draft of a schema."""
    name = contents.get("$schema") if isinstance(contents, dict) else None
    if name is None:
        return DRAFT7
    try:
        return specification_with(name)
    except UnknownDialect:
        raise InvalidSchemaError(
            f"$schema {str(name)[:200]!r} is no known draft", action="Use a draft from 4 to 2020-12."
        ) from None


def _parts(part: Part) -> Iterator[Part]:
    """Yield a schema and all schemas inside it."""
    yield part
    for inner in part.specification.create_resource(part.contents).subresources():
        yield from _parts(part.inside(inner.contents))


def _check_reference(part: Part) -> None:
    contents = part.contents
    target = contents.get("$ref") if isinstance(contents, dict) else None
    if target is None:
        return
    try:
        part.target()
    except Unresolvable:
        raise InvalidSchemaError(
            f"$ref {target!r} leads nowhere", action="Correct it, or add a reference with its name."
        ) from None
