"""Words and forms that the product's code does not use; docs/reference/glossary.md has those that it does."""

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("proto/", "sdk/", "services/", "spark_jobs/")
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
BANNED_WHERE_CLEAN = (
    r"\bnobody\b",
    r"\bbeside\b",
    r"\bstands?\b(?! for election|-in\b)",
    r"\b(go|goes|going) on\b",
    r"\bso many\b",
    r"\bwhoever\b",
    r"\b(is|are) to be\b",
)
CLEAN = (
    ".github/",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "bench/",
    "deploy/",
    "docker-compose.mirror.yml",
    "docker-compose.yml",
    "docs/",
    "examples/",
    "proto/",
    "sdk/",
    "services/",
    "spark_jobs/",
    "tests/",
    "tools/",
)
"""Folders and files that use none of both lists."""
NOT_CLEAN = ("tests/unit/docs/test_docs_words.py",)
"""Files in folders of `CLEAN` that are not clean."""


@functools.cache
def _sources() -> list[str]:
    """Return the hand-written modules, protos, pages and parts of the deployment in git."""
    command = ["git", "ls-files", "*.py", "*.proto", "*.md", "*.yaml", "*.yml", "*.tpl", "*.txt"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in names.splitlines() if not name.endswith(GENERATED) and (ROOT / name).is_file()]


def _docstrings() -> list[tuple[str, str]]:
    """Return the place and the docstring of every module, class and function."""
    found = []
    for name in _sources():
        if not name.endswith(".py"):
            continue
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
    assert [place for place, text in docstrings if re.match(r"Gives?\b", text)] == []


def _places(words: str, folders: tuple[str, ...]) -> list[str]:
    """Return where sources below `folders` use `words`."""
    pattern = re.compile(words, re.IGNORECASE)
    sources = [name for name in _sources() if name.startswith(folders)]
    for folder in folders:
        assert any(name.startswith(folder) for name in sources), folder
    return [
        f"{name}:{number}"
        for name in sources
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("words", BANNED)
def test_the_product_does_not_use(words: str) -> None:
    """Names, docstrings, comments and messages."""
    assert _places(words, PRODUCT) == []


@pytest.mark.parametrize("words", [*BANNED, *BANNED_WHERE_CLEAN])
def test_a_clean_folder_does_not_use(words: str) -> None:
    """As above; a folder that is not clean yet is absent from `CLEAN`."""
    assert [place for place in _places(words, CLEAN) if not place.startswith(NOT_CLEAN)] == []
