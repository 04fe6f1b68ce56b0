"""A rule that code or tests cite by number is explained in docs/protocols/rules.md."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("sdk", "services", "tests", "tools", "proto", "bench", "docs")
CITED = re.compile(r"\b([CHI])(\d{1,2})(?:\s?(?:-|to|\.\.)\s?\1(\d{1,2}))?\b")


def _cited(text: str) -> set[str]:
    """Numbers cited as `H31` or as a span `H31 to H35`; only in docstrings, comments or prose."""
    found = set()
    for letter, first, last in CITED.findall(text):
        found |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_spans_are_understood() -> None:
    """`C1-C4` cites four rules, and a word with a digit in it none."""
    assert _cited("C1-C4, H78 to H80, I6; BatchH3 HI7") == {"C1", "C2", "C3", "C4", "H78", "H79", "H80", "I6"}


def test_every_cited_rule_is_explained() -> None:
    """No number is cited that rules.md does not have."""
    rules = (ROOT / "docs" / "protocols" / "rules.md").read_text("utf-8")
    explained = set(re.findall(r"^\| ([CHI]\d+) \|", rules, re.MULTILINE))
    missing: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".md", ".proto") or path.name.endswith(("_pb2.py", Path(__file__).name)):
                continue
            for rule in _cited(path.read_text("utf-8")) - explained:
                missing.setdefault(rule, []).append(str(path.relative_to(ROOT)))
    assert missing == {}
