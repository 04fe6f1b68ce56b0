"""Words and forms that the product's code does not use; docs/reference/glossary.md has those that it does."""

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("sdk/", "services/", "spark_jobs/")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
BANNED = (
    r"\bsomebody\b",
    r"\bof late\b(?! rows)",
    r"\bgood order\b",
    r"\bmend(s|ed|ing)?\b",
    r"\bput out\b",
    r"\bat leisure\b",
    r"\bso long as\b",
)


@functools.cache
def _modules() -> list[str]:
    """Return the hand-written modules in git."""
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in names.splitlines() if not name.endswith(GENERATED) and (ROOT / name).is_file()]


def _docstrings() -> list[tuple[str, str]]:
    """Return the place and the docstring of every module, class and function."""
    found = []
    for name in _modules():
        for node in ast.walk(ast.parse((ROOT / name).read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    line = getattr(node, "lineno", 1)
                    found.append((f"{name}:{line}", text))
    return found


def test_no_docstring_begins_with_give() -> None:
    """A function returns, yields, releases or assigns; "Give" says none of these."""
    docstrings = _docstrings()
    assert len(docstrings) > 5_000
    assert [place for place, text in docstrings if text.startswith("Give ")] == []


@pytest.mark.parametrize("words", BANNED)
def test_the_product_does_not_use(words: str) -> None:
    """Names, docstrings, comments and messages."""
    pattern = re.compile(words, re.IGNORECASE)
    product = [name for name in _modules() if name.startswith(PRODUCT)]
    assert len(product) > 300
    places = [
        f"{name}:{number}"
        for name in product
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert places == []
