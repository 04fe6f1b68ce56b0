"""An entry of the mutation catalogue: one rule taken out of the shipped code, and the test that must fail then.

An entry is data: it names a function by its qualified name, wherever that is defined, and edits the one place in it
whose syntax tree equals a pattern, so that moved and reformatted code keeps its entries. `apply` patches a copy of the
sources; `run` executes the entry's killer on that copy. The entries are in the `catalogue_*` modules.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any

PACKAGES = (
    "sdk/headrace",
    "services/common/headrace_server",
    "services/broker/headrace_broker",
    "services/coordinator/headrace_coordinator",
    "services/devcluster/headrace_devcluster",
)
GENERATED = ("_pb2.py", "_pb2_grpc.py")
UNPARENTHESIZED = (ast.Attribute, ast.Call, ast.Constant, ast.List, ast.Name, ast.Starred)


class StaleEntryError(Exception):
    """The code that an entry edits has changed: the entry must be brought up to date."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """Seeds of the simulator, from 1 on, until one breaks an invariant."""

    seeds: int
    """One of the first `seeds` must break."""
    groups: bool = False
    """Of the simulation of consumer groups."""
    durability: str = "mixed"
    buggy_etcd: bool = False
    changes: Mapping[str, object] = field(default_factory=dict)
    """Fields of each drawn `Plan` that are replaced, so that the hazard occurs more often."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A directed schedule: a function in `tests/scenario`, given as `file.py::function`."""

    test: str


@dataclass(frozen=True, slots=True)
class Test:
    """A fast test, by its pytest id, where the simulator and scenarios miss the rule; `why` names the reason."""

    __test__ = False

    test: str
    why: str


Killer = Simulation | Scenario | Test


@dataclass(frozen=True, slots=True)
class Edit:
    """Code and its replacement: both expressions, or both one or more statements of one block."""

    old: str
    """`...` as the only argument of a call or the only statement of a block matches any."""
    new: str


def replace(old: str, new: str) -> Edit:
    """Put `new` in the place of `old`."""
    return Edit(old, new)


def drop(statements: str) -> Edit:
    """Remove one statement, or several that follow each other."""
    return Edit(statements, "pass")


def omit(element: str) -> Edit:
    """Leave out an element of a list or tuple."""
    return Edit(element, "*()")


def never(condition: str) -> Edit:
    """Make a condition false."""
    return Edit(condition, "False")


def always(condition: str) -> Edit:
    """Make a condition true."""
    return Edit(condition, "True")


@dataclass(frozen=True, slots=True)
class Mutant:
    """The code without one rule."""

    id: str
    rules: str
    """Their numbers in docs/protocols/rules.md: the rule that is taken out, then others that the same line keeps."""
    place: str
    """A function or class by its qualified name, `module:name` where several modules have one of this name."""
    edit: Edit
    breaks: str
    """What the patched code does, in one sentence."""
    killer: Killer
    also: tuple[tuple[str, Edit], ...] = ()
    """Further places and edits, where another line of defence has to be removed as well."""
    second_line: str = ""
    """Why the rule alone is not noticed: what else stops it, which `also` removes."""

    def edits(self) -> tuple[tuple[str, Edit], ...]:
        """Return all places and edits."""
        return (self.place, self.edit), *self.also


def read_sources(root: Path) -> dict[str, str]:
    """Return the texts of the hand-written modules by their paths from `root`."""
    files = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
    return {str(file.relative_to(root)): file.read_text("utf-8") for file in files if not file.name.endswith(GENERATED)}


def patched(mutant: Mutant, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the new texts of the files that a mutant changes.

    Raises:
        StaleEntryError: a place or a pattern was not found exactly once, or the result is not Python.
    """
    changed: dict[str, str] = {}
    for place, edit in mutant.edits():
        try:
            path, node = _find(place, {**sources, **changed})
            changed[path] = _edited(changed.get(path, sources[path]), node, edit)
            compile(changed[path], path, "exec")
        except SyntaxError as error:
            raise StaleEntryError(f"{mutant.id}: {place} with its edit is not Python: {error}") from error
        except StaleEntryError as error:
            raise StaleEntryError(f"{mutant.id}: {place} {error}") from None
    return changed


def apply(mutant: Mutant, root: Path) -> None:
    """Patch the copy of the sources under `root`; raises as `patched`."""
    for file, text in patched(mutant, read_sources(root)).items():
        path = root / file
        path.unlink()  # It may be a link.
        path.write_text(text, "utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def _find(place: str, sources: Mapping[str, str]) -> tuple[str, ast.stmt]:
    """Return the path and the definition of the only `place`."""
    module, _, name = place.rpartition(":")
    end = f"/{module.replace('.', '/')}.py" if module else ""
    last = name.rpartition(".")[2]
    found = [
        (path, node)
        for path, text in sources.items()
        if path.endswith(end) and (f"def {last}(" in text or f"class {last}" in text)
        for qualified, node in _definitions(text)
        if qualified == name
    ]
    if len(found) != 1:
        raise StaleEntryError(f"is defined {len(found)} times: {', '.join(path for path, _ in found) or 'nowhere'}")
    return found[0]


@functools.lru_cache(maxsize=1_024)
def _definitions(text: str) -> list[tuple[str, ast.stmt]]:
    """Return the functions and classes of a module with their qualified names."""
    return list(_definitions_in(ast.parse(text), ""))


def _definitions_in(parent: ast.AST, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions_in(node, f"{prefix}{node.name}.")


def _edited(text: str, definition: ast.stmt, edit: Edit) -> str:
    """Return a module's text with the span of the pattern in `definition` replaced, and all else as it was."""
    old, new = (ast.parse(textwrap.dedent(each)).body for each in (edit.old, edit.new))
    if [ast.dump(each) for each in old] == [ast.dump(each) for each in new]:
        raise StaleEntryError("is not changed by its edit")
    pattern: Sequence[ast.expr | ast.stmt] = old
    put = textwrap.dedent(edit.new).strip()
    match (old, new):
        case ([ast.Expr(value=wanted)], [ast.Expr(value=replacement)]):
            pattern = [wanted]
            # The span of a generator expression may include the brackets of a call.
            is_closed = isinstance(replacement, UNPARENTHESIZED) and not isinstance(wanted, ast.GeneratorExp)
            put = put if is_closed else f"({put})"
    spans = [span for span in _spans(definition, len(pattern)) if _matches(pattern, span)]
    if len(spans) != 1:
        source = ast.get_source_segment(text, definition)
        raise StaleEntryError(f"has {len(spans)} places with\n{edit.old}\nin\n{source}")
    first, last = spans[0][0], spans[0][-1]
    data = text.encode()
    lines = data.splitlines(keepends=True)
    start, end = (
        sum(map(len, lines[: line - 1])) + column
        for line, column in ((first.lineno, first.col_offset), (last.end_lineno, last.end_col_offset))
    )
    put = put.replace("\n", "\n" + " " * first.col_offset)
    return (data[:start] + put.encode() + data[end:]).decode()


def _spans(node: ast.AST, length: int) -> Iterator[list[Any]]:
    """Yield each expression and statement in `node`, or each `length` statements of a block that follow each other.

    Parts of f-strings are left out: their positions are wrong before Python 3.12.
    """
    for _, value in ast.iter_fields(node):
        children = [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
        yield from (children[at : at + length] for at in range(len(children) - length + 1))
        for child in children:
            if not isinstance(child, ast.JoinedStr):
                yield from _spans(child, length)


def _matches(pattern: object, code: object) -> bool:
    """Whether two syntax trees, or lists of them, are equal; for `...` in the first see `Edit`."""
    match pattern, code:
        case [ast.Constant(value=EllipsisType()) | ast.Expr(value=ast.Constant(value=EllipsisType()))], list():
            return True
        case ast.Call(args=[ast.Constant(value=EllipsisType())]), ast.Call():
            return _matches(pattern.func, code.func)
        case ast.AST(), ast.AST():
            return type(pattern) is type(code) and all(
                _matches(getattr(pattern, name), getattr(code, name, None)) for name in pattern._fields
            )
        case list(), list():
            return len(pattern) == len(code) and all(map(_matches, pattern, code))
        case _:
            return type(pattern) is type(code) and pattern == code
