"""Conversion of docstrings and rows to markdown."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from types import ModuleType


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a markdown table; a cell's bars are escaped and its line ends become spaces."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines)


def docstring(thing: object) -> str:
    """Return a docstring as markdown; indented lines become code blocks."""
    text = inspect.getdoc(thing)
    assert text, f"{thing} has no docstring"
    blocks: list[str] = []
    code: list[str] = []
    for line in [*text.splitlines(), "end"]:
        if line.startswith("    ") or (code and not line):
            code.append(line[4:])
            continue
        if code:
            while not code[-1]:
                code.pop()
            blocks += ["```text", *code, "```", ""]
            code = []
        blocks.append(line)
    return "\n".join(blocks[:-1]).strip()


def summary(thing: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    text = inspect.getdoc(thing)
    assert text, f"{thing} has no docstring"
    return " ".join(text.split("\n\n", 1)[0].split())


def module_section(module: ModuleType, title: str) -> str:
    """Return a module's docstring under a heading of the second level, naming the module."""
    return f"## {title}\n\nFrom `{module.__name__}`.\n\n{docstring(module)}"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
