"""Docstrings read as PEP 257 has it."""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def _docstrings() -> list[tuple[str, str]]:
    """Return the place and the docstring of every module, class and function in git."""
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = []
    for name in names.splitlines():
        if name.endswith(GENERATED) or not (ROOT / name).is_file():
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
    assert [place for place, text in docstrings if text.startswith("Give ")] == []
