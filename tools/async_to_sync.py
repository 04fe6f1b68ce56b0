"""Generator of the SDK's blocking classes and their tests from the asyncio ones, and check that they are current.

Run by `make blocking` and `make check` (`--check`). `x_async.py` is written by hand; `x.py` is generated. The syntax
tree of the source determines the edits, which are made in the text, so comments and docstrings stay. ruff sorts the
imports, removes unused ones, and formats the result.

- `async` and `await` are removed, with the parentheses that only an `await` needed.
- Names lose their asyncio marker: `AsyncAdmin`, `aexecute`, `__aenter__`, `admin_async`, `headrace.aio`, `grpc.aio`.
- `for x in y: yield x` of an asynchronous generator, which cannot have `yield from`, becomes `yield from`.
- `ashielded(x)` becomes `x`; `if ASYNC and ...:` is removed; `if not ASYNC:` is replaced by its single statement.
- Words in docstrings and comments are replaced by `WORDING`.

Code that exists only in asyncio is an error and belongs in a module that both classes import.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from generated_files import formatted, run

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "sdk/headrace/client/admin/admin_async.py",
    "sdk/headrace/client/consumer/consumer_async.py",
    "sdk/headrace/client/consumer/reader_async.py",
    "sdk/headrace/client/fetch/fetching_async.py",
    "sdk/headrace/client/mirror/mirrors_async.py",
    "sdk/headrace/client/mirror/source_questions_async.py",
    "sdk/headrace/client/table/bulk_puts_async.py",
    "sdk/headrace/client/table/table_async.py",
    "sdk/headrace/client/table/table_calls_async.py",
    "sdk/headrace/client/interceptors/audit_interceptor_async.py",
    "tests/unit/client/admin/test_admin_async.py",
    "tests/unit/client/consumer/test_reader_async.py",
)
"""Modules that are written by hand."""

NAMES = {
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "acall": "call",
    "aclose": "close",
    "aiter": "iter",
    "anext": "next",
    "aexecute": "execute",
    "aexecute_loop": "execute_loop",
    "arun_step": "run_step",
    "astart": "start",
}
WORDING = (
    ("asyncio", "blocking"),
    ("One event loop.", "Any thread."),
    ("async with ", "with "),
    ("async for ", "for "),
    ("await ", ""),
    ("contextlib.aclosing", "contextlib.closing"),
    ("One task", "One thread"),
    ("the task", "the thread"),
    ("other task", "other thread"),
)
MARKED = re.compile(r"\bAsync(?=[A-Z])|(?<=\w)(?<!\bcommit)_async\b")
"""`commit_async` keeps its name: it does not block in either class."""
NAME = re.compile(r"\b(" + "|".join(NAMES) + r")\b")


class ConversionError(Exception):
    """Construct in the source that has no blocking equivalent."""


class Edit(NamedTuple):
    """Replacement of `source[start:end]`."""

    start: int
    end: int
    text: str


def blocking_path(source: Path) -> Path:
    """Return the path of the generated module."""
    return source.with_name(source.name.replace("_async.py", ".py"))


def renamed(text: str) -> str:
    """Return a name, or a text with names, with the names of the blocking module."""
    return MARKED.sub("", NAME.sub(lambda found: NAMES[found[0]], text))


def reworded(text: str) -> str:
    """Return the wording of a docstring or comment in the blocking module."""
    for old, new in WORDING:
        text = text.replace(old, new)
    return renamed(text).replace("headrace.aio", "headrace")


def converted(source: str) -> str:
    """Return the blocking module before sorting and formatting.

    Raises:
        ConversionError: If the source has a construct without a blocking equivalent.
    """
    text = Text(source)
    tree = ast.parse(source)
    edits = [*_tree_edits(text, tree), *_token_edits(text, tree)]
    parts, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
        if edit.end <= at and edit.start < at:  # Inside a part that was removed.
            continue
        assert at <= edit.start, f"two edits at {source[edit.start : at]!r}"
        parts += [source[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, source[at:]])


class Text:
    """Source text indexed by positions of `ast` (bytes in a line) and of `tokenize` (characters in a line)."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """Return the index of a `tokenize` position."""
        return self._starts[line - 1] + column

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Return the start index of a node."""
        return self._at_byte(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.alias) -> int:
        """Return the index after a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at_byte(node.end_lineno, node.end_col_offset)

    def without_lines(self, statement: ast.stmt) -> Edit:
        """Return the edit that removes a statement's lines."""
        return Edit(self._starts[statement.lineno - 1], self.end(statement) + 1, "")

    def _at_byte(self, line: int, column: int) -> int:
        return self.at(line, len(self._lines[line - 1].encode()[:column].decode()))


def _tree_edits(text: Text, tree: ast.Module) -> Iterator[Edit]:
    """Yield the edits derived from the tree alone: parentheses, packages."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Await() as inner) | ast.Subscript(value=ast.Await() as inner):
                start, end = text.start(inner), text.end(inner)
                if text.source[start - 1] == "(" and text.source[end] == ")":
                    yield Edit(start - 1, start, "")
                    yield Edit(end, end + 1, "")
            case ast.ImportFrom(module="asyncio"):
                raise ConversionError(f"line {node.lineno}: asyncio has no blocking twin")
            case ast.Call(func=ast.Name(id="ashielded"), args=[only]):
                yield Edit(text.start(node), text.start(only), "")
                yield Edit(text.end(only), text.end(node), "")
            case ast.For(
                target=ast.Name(id=item), body=[ast.Expr(value=ast.Yield(value=ast.Name(id=yielded)))], orelse=[]
            ) if item == yielded:
                yield Edit(text.start(node), text.start(node.iter), "yield from ")
                yield Edit(text.end(node.iter), text.end(node), "")
            case ast.If(test=ast.BoolOp(op=ast.And(), values=[ast.Name(id="ASYNC"), *_]), orelse=[]):
                yield text.without_lines(node)
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id="ASYNC")), body=[only], orelse=[]):
                yield Edit(text.start(node), text.start(only), "")
            case ast.ImportFrom(names=[ast.alias(name="ASYNC")]):
                yield text.without_lines(node)
            case ast.JoinedStr():
                written = text.source[text.start(node) : text.end(node)]
                if "await" in written or renamed(written) != written:  # Python 3.11 has no tokens inside f-strings.
                    raise ConversionError(f"line {node.lineno}: move what is converted out of the f-string")
            case ast.Attribute(value=ast.Name(id="headrace" | "grpc"), attr="aio"):
                yield Edit(text.end(node) - len(".aio"), text.end(node), "")
            case ast.Import(names=names):
                for name in names:
                    if name.name in ("headrace.aio", "grpc.aio"):
                        yield Edit(text.end(name) - len(".aio"), text.end(name), "")
                    elif name.name == "asyncio":
                        raise ConversionError(f"line {node.lineno}: asyncio has no blocking twin")


def _token_edits(text: Text, tree: ast.Module) -> Iterator[Edit]:
    """Yield the edits of keywords, names and texts."""
    docstrings = _docstrings(text, tree)
    for token in tokenize.generate_tokens(io.StringIO(text.source).readline):
        start, end = text.at(*token.start), text.at(*token.end)
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            yield Edit(start, end + 1, "")
            continue
        if token.type not in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
            continue
        is_prose = token.type == tokenize.COMMENT or start in docstrings
        new = reworded(token.string) if is_prose else renamed(token.string)
        if new != token.string:
            yield Edit(start, end, new)


def _docstrings(text: Text, tree: ast.Module) -> set[int]:
    """Return the start indices of strings that are statements."""
    return {
        text.start(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def blocking(source: Path) -> str:
    """Return the generated module of a source.

    Raises:
        ConversionError: If the source has a construct without a blocking equivalent.
    """
    header = f"# Generated by tools/async_to_sync.py from {source.name}. Edit that and run `make blocking`.\n"
    return formatted(header + converted(source.read_text("utf-8")), blocking_path(source), ROOT)


def texts() -> dict[Path, str]:
    """Return the generated modules by path."""
    return {blocking_path(source): blocking(source) for source in (ROOT / name for name in SOURCES)}


def main(arguments: list[str] | None = None) -> int:
    """Return exit code 0 if all modules are current or were written."""
    description = "Write the blocking modules of the SDK from the asyncio ones."
    return run(description, "edit its asyncio module, run `make blocking` and commit both", ROOT, texts, arguments)


if __name__ == "__main__":
    sys.exit(main())
