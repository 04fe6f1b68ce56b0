"""The glossary names each word once, and no type that is not there."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/reference/glossary.md"
PRODUCT = ("sdk/headrace", "services", "spark_jobs")
WORDS = re.compile(r"^\| (?!word |---)([^|]+) \|", re.MULTILINE)
TYPE = re.compile(r"`([A-Z][a-z]+[A-Z]\w+)`")


def _types() -> set[str]:
    files = (file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py") if not file.stem.endswith("_pb2"))
    nodes = [node for file in files for node in ast.parse(file.read_text("utf-8")).body]
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    return classes | {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}


def test_a_word_has_one_meaning() -> None:
    words = [word.strip() for row in WORDS.findall(PAGE.read_text("utf-8")) for word in row.split(",")]
    assert len(words) > 100
    assert [word for word, count in Counter(words).items() if count > 1] == []


def test_the_types_that_it_names_exist() -> None:
    named = [name for row in WORDS.findall(PAGE.read_text("utf-8")) for name in TYPE.findall(row)]
    assert len(named) > 10
    assert set(named) - _types() == set()
