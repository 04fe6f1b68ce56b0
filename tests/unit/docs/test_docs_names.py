"""Dotted names in the hand-written pages are real: each can be imported."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "protocols").glob("*.md"))]
NAME = re.compile(r"`(headrace(?:_\w+)?(?:\.\w+)+)`")


def _resolve(name: str) -> object:
    """Import the longest module of a dotted name and take the rest as attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_can_be_imported(page: Path) -> None:
    """No page names a module, class or function that is not there."""
    for name in NAME.findall(page.read_text("utf-8")):
        try:
            _resolve(name)
        except (ModuleNotFoundError, AttributeError) as error:
            pytest.fail(f"{page.name} names {name}: {error}")


def test_the_architecture_names_the_code() -> None:
    """The page about the hot paths does name functions, and an invented one would be noticed."""
    assert len(set(NAME.findall(PAGES[0].read_text("utf-8")))) > 30
    with pytest.raises(AttributeError):
        _resolve("headrace.wire.batch.no_such_function")
    with pytest.raises(ModuleNotFoundError):
        _resolve("headrace_nothing.at_all")


def test_tests_named_in_the_paper_page_exist() -> None:
    """docs/paper.md names tests that are there: of the paper's sentences in tests/paper, of other things anywhere."""
    page = (ROOT / "docs" / "paper.md").read_text("utf-8")
    for pattern, folder, least in ((r"`(test_section_\w+)`", "paper", 20), (r"`(test_(?!section_)\w+)`", ".", 10)):
        written = "".join(path.read_text("utf-8") for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")))
        named = re.findall(pattern, page)
        assert len(named) > least
        assert [name for name in named if f"def {name}(" not in written] == []


def test_the_paper_page_has_every_row() -> None:
    """From 1 to 38 in order, each once; a row without a test says that it is not built."""
    rows = [line for line in (ROOT / "docs" / "paper.md").read_text("utf-8").splitlines() if re.match(r"\| \d", line)]
    numbers = [int(number) for row in rows for number in row.split("|")[1].split(",")]
    assert numbers == list(range(1, 39))
    for row in rows:
        _, _, _, headrace, shown_by, _ = row.split("|")
        assert shown_by.strip() or "not built" in headrace
