"""No code takes a cancellation of its own for that of a task which it awaits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("services", "sdk", "spark_jobs", "tools", "bench", "tests")
CANCELLATIONS = {"CancelledError", "BaseException"}


def names(node: ast.expr | None) -> set[str]:
    """The last names of the exceptions of an `except` or a call's arguments; of a bare `except`: BaseException."""
    match node:
        case None:
            return {"BaseException"}
        case ast.Tuple():
            return {name for element in node.elts for name in names(element)}
        case ast.Attribute():
            return {node.attr}
        case ast.Name():
            return {node.id}
    return set()


def of_this_coroutine(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Every node of a coroutine, those of functions within it left out."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def is_raised(handler: ast.ExceptHandler, function: ast.AsyncFunctionDef) -> bool:
    """Whether the handler raises, or keeps what it caught for a `raise` further on."""
    if any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
        return True
    kept = {
        target.id
        for node in ast.walk(handler)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == handler.name
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    raised = {
        node.exc.id for node in ast.walk(function) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name)
    }
    return bool(kept & raised)


def swallowed(source: str) -> list[int]:
    """The lines of a module where a coroutine may lose its own cancellation."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for node in of_this_coroutine(function):
            match node:
                case ast.Call(func=ast.Attribute(attr="suppress") | ast.Name(id="suppress")):
                    if any(names(argument) & CANCELLATIONS for argument in node.args):
                        found.append(node.lineno)
                case ast.ExceptHandler():
                    if names(node.type) & CANCELLATIONS and not is_raised(node, function):
                        found.append(node.lineno)
    return sorted(found)


def test_no_coroutine_swallows_its_own_cancellation() -> None:
    """Use `asyncio.wait([task])`, or the broker's `cancel_and_wait`: neither takes one cancellation for another."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 300
    found = [f"{path.relative_to(ROOT)}:{line}" for path in paths for line in swallowed(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        ("with suppress(asyncio.CancelledError):\n        await task", True),
        ("with contextlib.suppress(OSError, CancelledError):\n        await task", True),
        ("try:\n        await task\n    except asyncio.CancelledError:\n        pass", True),
        ("try:\n        await task\n    except BaseException:\n        log(1)", True),
        ("try:\n        await task\n    except:\n        return", True),
        ("try:\n        await task\n    except asyncio.CancelledError:\n        note()\n        raise", False),
        ("with suppress(TimeoutError):\n        await task", False),
        ("try:\n        await task\n    except CancelledError as error:\n        kept = error\n    raise kept", False),
    ],
)
def test_the_check_finds_what_loses_a_cancellation(body: str, lost: bool) -> None:
    """It sees each of the forms, and lets pass what raises again."""
    assert bool(swallowed(f"async def end(task):\n    {body}\n")) is lost
