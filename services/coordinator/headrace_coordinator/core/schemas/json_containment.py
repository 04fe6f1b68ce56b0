"""Whether every document that is valid by one JSON Schema is valid by another one.

A yes is right; a no may be wrong where the proof is beyond these rules: a keyword that they do not follow, such as `if`
or `unevaluatedProperties`, must be the same in both schemas. Most names of rules are those of Confluent's registry. A
writer is a list of schemas that all hold; each keyword of the reader must follow from them. `format` is an annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from headrace_coordinator.core.schemas.json_parts import (
    Part,
    Parts,
    are_disjoint,
    conjuncts,
    items_of,
    lower_bounds,
    property_of,
    read_types,
    text_of,
    types_of,
    unknown_keywords,
    upper_bounds,
    values_of,
)
from headrace_coordinator.core.schemas.schema import MAX_STEPS, Incompatibility, too_complex

Reasons = Iterator[Incompatibility]
_UPPER = {"maxLength": "string", "maxItems": "array", "maxProperties": "object", "maximum": "integer"}
_LOWER = {"minLength": "string", "minItems": "array", "minProperties": "object", "minimum": "integer"}
_SAME = {"pattern": "string", "propertyNames": "object", "dependencies": "object", "dependentSchemas": "object"}
"""Keywords that follow only from the same value, with the type for which they count."""
_SAME_WHOLE = (
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
)
"""Keywords whose meaning depends on others, so that they follow only from the same schema."""
_REFERENCES = frozenset({"$ref", "$recursiveRef", "$dynamicRef"})


class Containment:
    """One comparison."""

    def __init__(self) -> None:
        self._steps = 0
        self._assumed: dict[tuple[int, ...], None] = {}
        """Readers behind a `$ref`, with writers, that were found to follow or are being compared, in this order;
        schemas may be recursive. A failed pair takes with it all that were found after it."""
        self._rests: dict[tuple[int, str], Part] = {}

    def compare(self, reader: Part, writers: Parts, path: str, excluded: Parts = ()) -> list[Incompatibility]:
        """Return why a document by which all of `writers` and none of `excluded` is valid may not be so by `reader`."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise too_complex()
        writers = conjuncts(writers)
        if reader.contents is True or any(writer.contents is False for writer in writers) or not types_of(writers):
            return []
        if reader.contents is False:
            return [_reason("SCHEMA_NARROWED", path, "the reader's schema allows nothing here")]
        reasons = list(self._compare_keywords(reader, writers, path, excluded))
        return self._compare_branches(reader, writers, path, excluded, reasons) if reasons else []

    def _compare_branches(
        self, reader: Part, writers: Parts, path: str, excluded: Parts, reasons: list[Incompatibility]
    ) -> list[Incompatibility]:
        """Compare again for each branch of the writer's first `anyOf` or `oneOf`, if it has one."""
        for writer in writers:
            keyword = next((each for each in ("anyOf", "oneOf") if each in writer.keywords), None)
            if keyword is None:
                continue
            held = [self._without(each, keyword if each is writer else "") for each in writers]
            branches = writer.branches(keyword)
            for branch in branches:
                others = [each for each in branches if each is not branch] if keyword == "oneOf" else []
                found = self.compare(reader, [*held, branch], path, (*excluded, *others))
                if found:
                    return found
            return []
        return reasons

    def _without(self, part: Part, keyword: str) -> Part:
        """Return a schema without a keyword, and without those whose schemas are conjuncts of their own."""
        if not isinstance(part.contents, dict):
            return part
        key = (id(part.contents), keyword)
        if key not in self._rests:
            rest = {name: value for name, value in part.keywords.items() if name not in (keyword, "allOf", "$ref")}
            self._rests[key] = Part(rest, part.resolver, part.specification)
        return self._rests[key]

    def _compare_keywords(self, reader: Part, writers: Parts, path: str, excluded: Parts) -> Reasons:
        keywords = reader.keywords
        if "$ref" in keywords:
            yield from self._compare_target(reader, writers, path, excluded)
        types = types_of(writers)
        if "type" in keywords and not types <= read_types(keywords["type"]):
            known = "any type" if len(types) > 6 else " or ".join(sorted(types))
            yield _reason("TYPE_NARROWED", path, f"the reader allows type {keywords['type']}, the writer {known}")
            return
        yield from _compare_values(reader, writers, path)
        yield from _compare_bounds(reader, writers, types, path)
        yield from _compare_same(reader, writers, types, path)
        if "object" in types:
            yield from _compare_required(reader, writers, path)
            yield from self._compare_properties(reader, writers, path)
        if "array" in types:
            yield from self._compare_items(reader, writers, path)
        yield from self._compare_combined(reader, writers, path, excluded)

    def _compare_target(self, reader: Part, writers: Parts, path: str, excluded: Parts) -> Reasons:
        target = reader.target()
        pair = (id(target.contents), *(id(writer.contents) for writer in writers))
        if pair in self._assumed:
            return
        found_before = len(self._assumed)
        self._assumed[pair] = None
        reasons = self.compare(target, writers, path, excluded)
        if reasons:
            for later in list(self._assumed)[found_before:]:
                del self._assumed[later]
        yield from reasons

    def _compare_properties(self, reader: Part, writers: Parts, path: str) -> Reasons:
        properties, patterns = reader.named("properties"), reader.named("patternProperties")
        written = {name for writer in writers for name in writer.named("properties")}
        for name, contents in properties.items():
            found = self.compare(reader.inside(contents), property_of(writers, name), f"{path}/properties/{name}")
            if found and name not in written:
                text = f"a writer may send anything as property {name!r}, which the reader restricts"
                found = [_reason("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", f"{path}/properties/{name}", text)]
            yield from found
        for pattern, contents in patterns.items():
            same = [
                w.inside(w.named("patternProperties")[pattern])
                for w in writers
                if pattern in w.named("patternProperties")
            ]
            yield from self.compare(reader.inside(contents), same, f"{path}/patternProperties/{pattern}")
        others = reader.value("additionalProperties")
        here = f"{path}/additionalProperties"
        for name in sorted(written - set(properties)):
            if self.compare(others, property_of(writers, name), here):
                text = f"the reader does not allow what a writer may send as property {name!r}"
                yield _reason("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", f"{path}/properties/{name}", text)
        unnamed = [
            w.value("additionalProperties") for w in writers if w.named("patternProperties").keys() <= patterns.keys()
        ]
        if self.compare(others, unnamed, here):
            text = "the reader does not allow all other properties that a writer may send"
            yield _reason("ADDITIONAL_PROPERTIES_NARROWED", here, text)

    def _compare_items(self, reader: Part, writers: Parts, path: str) -> Reasons:
        first, others = items_of(reader)
        of_writers = [items_of(writer) for writer in writers]
        count = max(len(first), *(len(written) for written, _ in of_writers), 0)
        for index in range(count):
            of_reader = first[index] if index < len(first) else others
            held = [written[index] if index < len(written) else rest for written, rest in of_writers]
            yield from self.compare(of_reader, held, f"{path}/items/{index}")
        yield from self.compare(others, [rest for _, rest in of_writers], f"{path}/items")
        if reader.keywords.get("uniqueItems") and not any(writer.keywords.get("uniqueItems") for writer in writers):
            yield _reason("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "the items of a writer need not be unique")

    def _compare_combined(self, reader: Part, writers: Parts, path: str, excluded: Parts) -> Reasons:
        for index, branch in enumerate(reader.branches("allOf")):
            yield from self.compare(branch, writers, f"{path}/allOf/{index}", excluded)
        branches = reader.branches("anyOf")
        if branches and all(self.compare(branch, writers, path, excluded) for branch in branches):
            yield _reason(
                "SUM_TYPE_NARROWED", f"{path}/anyOf", "no branch of the reader allows all that a writer sends"
            )
        branches = reader.branches("oneOf")
        if branches and not any(self._is_only(branch, branches, writers, path, excluded) for branch in branches):
            text = "no branch of the reader allows all that a writer sends, and excludes the other branches"
            yield _reason("SUM_TYPE_NARROWED", f"{path}/oneOf", text)
        if "not" in reader.keywords and not self._is_excluded(reader.value("not"), writers, excluded):
            yield _reason("NOT_TYPE_EXTENDED", f"{path}/not", "a writer may send what the reader excludes")

    def _is_only(self, branch: Part, branches: Parts, writers: Parts, path: str, excluded: Parts) -> bool:
        others = [other for other in branches if other is not branch]
        return not self.compare(branch, writers, path, excluded) and all(
            self._is_excluded(other, writers, excluded) for other in others
        )

    def _is_excluded(self, part: Part, writers: Parts, excluded: Parts) -> bool:
        """Return whether no document of the writer is valid by `part`."""
        never = [*excluded, *(writer.value("not") for writer in writers if "not" in writer.keywords)]
        return are_disjoint([part], writers) or any(not self.compare(each, [part], "") for each in never)


def _compare_values(reader: Part, writers: Parts, path: str) -> Reasons:
    allowed = values_of(reader)
    if allowed is None:
        return
    texts = {text_of(value) for value in allowed}
    closest: list[Any] | None = None
    for writer in writers:
        written = values_of(writer)
        if written is not None:
            closest = [value for value in written if text_of(value) not in texts]
            if not closest:
                return
    missing = "other values" if closest is None else ", ".join(text_of(value) for value in closest[:5])
    yield _reason(
        "ENUM_ARRAY_NARROWED", f"{path}/enum", f"the reader does not allow {missing}, which a writer may send"
    )


def _compare_bounds(reader: Part, writers: Parts, types: frozenset[str], path: str) -> Reasons:
    for table, bounds_of, tightest, word in (
        (_UPPER, upper_bounds, min, "DECREASED"),
        (_LOWER, lower_bounds, max, "INCREASED"),
    ):
        for keyword, kind in table.items():
            if kind not in types:
                continue
            read = _bounds(reader, keyword, bounds_of)
            written = [bound for writer in writers for bound in _bounds(writer, keyword, bounds_of)]
            for bound in read:
                if not written or tightest(*written, bound) != tightest(written):
                    text = f"the reader's {keyword} is {bound[0]}, which a writer need not keep"
                    yield _reason(f"{_shout(keyword)}_{word}", f"{path}/{keyword}", text)
    step = reader.keywords.get("multipleOf")
    steps = [writer.keywords["multipleOf"] for writer in writers if "multipleOf" in writer.keywords]
    if step is None or "integer" not in types:
        return
    if all(Decimal(str(each)) % Decimal(str(step)) for each in steps):
        yield _reason("MULTIPLE_OF_CHANGED", f"{path}/multipleOf", f"a writer need not send multiples of {step}")


def _bounds(
    part: Part, keyword: str, bounds_of: Callable[[Part], Iterator[tuple[Decimal, int]]]
) -> list[tuple[Decimal, int]]:
    if keyword in ("maximum", "minimum"):
        return list(bounds_of(part))
    return [(Decimal(part.keywords[keyword]), 0)] if keyword in part.keywords else []


def _compare_required(reader: Part, writers: Parts, path: str) -> Reasons:
    required = {name for writer in writers for name in writer.keywords.get("required", ())}
    for name in reader.keywords.get("required", ()):
        if name not in required:
            text = f"the reader requires property {name!r}, which a writer may omit"
            yield _reason("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}", text)
    for name, needed in reader.named("dependentRequired").items():
        known = {each for writer in writers for each in writer.named("dependentRequired").get(name, ())}
        if not set(needed) <= known | required:
            text = f"the reader requires more properties with {name!r} than a writer does"
            yield _reason("DEPENDENCY_ARRAY_EXTENDED", f"{path}/dependentRequired/{name}", text)


def _compare_same(reader: Part, writers: Parts, types: frozenset[str], path: str) -> Reasons:
    for keyword, kind in _SAME.items():
        value = reader.keywords.get(keyword)
        if value is None or kind not in types:
            continue
        if not any(_is_same(value, w.keywords.get(keyword), reader, w) for w in writers):
            yield _changed(keyword, path)
    found = next((keyword for keyword in _SAME_WHOLE if keyword in reader.keywords), None)
    if found is not None and not any(_is_same(reader.contents, w.contents, reader, w) for w in writers):
        yield _changed(found, path)


def _is_same(one: Any, other: Any, reader: Part, writer: Part) -> bool:
    """Return whether two values are equal and mean the same in both documents.

    A reference need not mean the same, nor a keyword that one of the drafts does not have.
    """
    text = text_of(one)
    differing = unknown_keywords(reader.specification.name) ^ unknown_keywords(writer.specification.name)
    return text == text_of(other) and not any(f'"{name}"' in text for name in _REFERENCES | differing)


def _changed(keyword: str, path: str) -> Incompatibility:
    text = f"the reader's {keyword} is not the same as the writer's, and whether it follows cannot be shown"
    return _reason(f"{_shout(keyword.lstrip('$'))}_CHANGED", f"{path}/{keyword}", text)


def _shout(keyword: str) -> str:
    """Return a keyword such as `maxLength` as `MAX_LENGTH`."""
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in keyword)


def _reason(rule: str, path: str, message: str) -> Incompatibility:
    return Incompatibility(rule, path or "/", message)
