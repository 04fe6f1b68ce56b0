"""Parts of JSON Schemas: what a schema, or several that all hold, says of types, bounds and properties."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from referencing import Specification
from referencing.jsonschema import UnknownDialect, specification_with

if TYPE_CHECKING:
    from referencing._core import Resolver  # It has no public name.

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")
_DRAFTS = (*_OLD_DRAFTS, "draft2019-09", "draft2020-12")
_FIRST_DRAFT = {
    **dict.fromkeys(("const", "contains", "propertyNames"), "draft-06"),
    **dict.fromkeys(("if", "then", "else"), "draft-07"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), "draft2019-09"),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "$recursiveRef"), "draft2019-09"),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), "draft2020-12"),
}
_LAST_DRAFT = {"dependencies": "draft-07", "$recursiveRef": "draft2019-09", "additionalItems": "draft2019-09"}


@lru_cache
def unknown_keywords(draft: str) -> frozenset[str]:
    """Return the keywords of other drafts that mean nothing in a draft, given by the name of its specification."""
    place = _DRAFTS.index(draft)
    later = {name for name, first in _FIRST_DRAFT.items() if _DRAFTS.index(first) > place}
    return frozenset(later | {name for name, last in _LAST_DRAFT.items() if _DRAFTS.index(last) < place})


@dataclass(frozen=True, slots=True)
class Part:
    """Schema inside a document, with what its references mean there."""

    contents: Any
    resolver: Resolver[Any]
    specification: Specification[Any]

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords that count; none for `true`."""
        if not isinstance(self.contents, dict):
            return {}
        if "$ref" in self.contents and self.specification.name in _OLD_DRAFTS:
            return {"$ref": self.contents["$ref"]}
        unknown = unknown_keywords(self.specification.name)
        if unknown.isdisjoint(self.contents):
            return self.contents
        return {name: value for name, value in self.contents.items() if name not in unknown}

    def inside(self, contents: Any) -> Part:
        """Return a schema that is a value of a keyword of this one."""
        if isinstance(contents, bool):
            return Part(contents, self.resolver, self.specification)
        specification = _draft_of(contents, self.specification)
        return Part(contents, self.resolver.in_subresource(specification.create_resource(contents)), specification)

    def value(self, keyword: str) -> Part:
        """Return the schema that is the value of a keyword; `true` if there is none."""
        return self.inside(self.keywords.get(keyword, True))

    def named(self, keyword: str) -> dict[str, Any]:
        """Return the schemas by name that are the value of a keyword, such as `properties`."""
        return dict(self.keywords.get(keyword, {}))

    def branches(self, keyword: str) -> list[Part]:
        """Return the schemas that are the value of a keyword, such as `anyOf`."""
        return [self.inside(branch) for branch in self.keywords.get(keyword, ())]

    def target(self) -> Part:
        """Return the schema that `$ref` names; raise `Unresolvable` if there is none."""
        found = self.resolver.lookup(self.contents["$ref"])
        return Part(found.contents, found.resolver, _draft_of(found.contents, self.specification))


def _draft_of(contents: Any, around: Specification[Any]) -> Specification[Any]:
    """Return the draft of a schema inside another one, or that it refers to: its own, or the other's."""
    name = contents.get("$schema") if isinstance(contents, dict) else None
    if not isinstance(name, str):
        return around
    try:
        return specification_with(name)
    except UnknownDialect:
        return around


Parts = Sequence[Part]


def conjuncts(parts: Iterable[Part]) -> list[Part]:
    """Return all schemas that hold where `parts` hold: those of `$ref` and `allOf`, too."""
    found: dict[int, Part] = {}
    waiting = list(parts)
    while waiting:
        part = waiting.pop(0)
        if id(part.contents) in found and isinstance(part.contents, dict):
            continue
        found[id(part.contents)] = part
        if "$ref" in part.keywords:
            waiting.append(part.target())
        waiting += part.branches("allOf")
    return [part for part in found.values() if part.keywords.keys() != {"$ref"}]


def types_of(parts: Parts) -> frozenset[str]:
    """Return the types that all of `parts` allow; a `number` is an `integer`, too."""
    allowed = TYPES
    for part in parts:
        if "type" in part.keywords:
            allowed &= read_types(part.keywords["type"])
        values = values_of(part)
        if values is not None:
            allowed &= read_types([_type_of(value) for value in values])
    return allowed


def read_types(given: Any) -> frozenset[str]:
    """Return the types of the keyword `type`."""
    names = {given} if isinstance(given, str) else set(given)
    return frozenset(names | {"integer"} if "number" in names else names)


def values_of(part: Part) -> list[Any] | None:
    """Return the only values that `const` or `enum` allow; `None` without them."""
    if "const" in part.keywords:
        return [part.keywords["const"]]
    found = part.keywords.get("enum")
    return None if found is None else list(found)


def text_of(value: Any) -> str:
    """Return the text by which two JSON values are compared."""
    return json.dumps(value, sort_keys=True)


def upper_bounds(part: Part) -> Iterator[tuple[Decimal, int]]:
    """Yield the upper bounds of numbers, each with -1 if it is excluded."""
    yield from _bounds(part, "maximum", "exclusiveMaximum", -1)


def lower_bounds(part: Part) -> Iterator[tuple[Decimal, int]]:
    """Yield the lower bounds of numbers, each with 1 if it is excluded."""
    yield from _bounds(part, "minimum", "exclusiveMinimum", 1)


def _bounds(part: Part, keyword: str, exclusive_keyword: str, step: int) -> Iterator[tuple[Decimal, int]]:
    bound, exclusive = part.keywords.get(keyword), part.keywords.get(exclusive_keyword)
    if bound is not None:
        yield Decimal(str(bound)), step if exclusive is True else 0
    if exclusive is not None and not isinstance(exclusive, bool):
        yield Decimal(str(exclusive)), step


def items_of(part: Part) -> tuple[list[Part], Part]:
    """Return the schemas of the first items of an array, and that of the others."""
    keywords = part.keywords
    if "prefixItems" in keywords:
        return part.branches("prefixItems"), part.value("items")
    if isinstance(keywords.get("items"), list):
        return part.branches("items"), part.value("additionalItems")
    return [], part.value("items")


def property_of(parts: Parts, name: str) -> list[Part]:
    """Return schemas that hold for a property where `parts` hold."""
    found = []
    for part in parts:
        known = part.named("properties")
        if name in known:
            found.append(part.inside(known[name]))
        elif not part.named("patternProperties"):
            found.append(part.value("additionalProperties"))
    return found


def are_disjoint(one: Iterable[Part], other: Iterable[Part]) -> bool:
    """Return whether no document can be valid by both; a no may be wrong.

    Types decide, or a property whose values differ, such as the discriminator of a `oneOf`.
    """
    left, right = conjuncts(one), conjuncts(other)
    common = types_of(left) & types_of(right)
    if common != {"object"}:
        return not common
    needed = {name for part in (*left, *right) for name in part.keywords.get("required", ()) if isinstance(name, str)}
    return any(_differ(property_of(left, name), property_of(right, name)) for name in sorted(needed))


def _differ(left: Parts, right: Parts) -> bool:
    return any(
        {text_of(value) for value in values_of(one) or ()}.isdisjoint(
            text_of(value) for value in values_of(other) or ()
        )
        for one in left
        for other in right
        if values_of(one) and values_of(other)
    )


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
