"""The decisions are numbered without gaps, have a header, and other pages or code link to each."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(path for path in FOLDER.iterdir() if path.name != "README.md")


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    """The module that reads the headers for the index."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from reference_pages import decisions_page

        yield decisions_page
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_header_names_status_date_area_and_the_number_of_the_file(page: Path, generator: ModuleType) -> None:
    decision = generator.read_decision(page)
    assert page.name.startswith(f"{decision.number:04d}-use-")
    assert decision.title.startswith("Use ")
    assert re.fullmatch(r"accepted|replaced by \[.+\]\(.+\)", decision.status)


def test_numbers_have_no_gaps(generator: ModuleType) -> None:
    """A new decision has the next number, whatever its area; a number never changes."""
    decisions = [generator.read_decision(page) for page in PAGES]
    assert [decision.number for decision in decisions] == list(range(1, len(PAGES) + 1))


def test_each_decision_is_linked_from_outside_of_the_decisions() -> None:
    """A page of docs, code or a configuration names the file of each decision."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    others = [ROOT / name for name in names.splitlines() if not name.startswith(("docs/decisions/", "tests/golden/"))]
    suffixes = {".md", ".py", ".proto", ".yaml", ".toml", ".tpl"}
    texts = [path.read_text("utf-8") for path in others if path.suffix in suffixes and path.is_file()]
    linked = {name for text in texts for name in re.findall(r"decisions/(\d{4}-[\w-]+\.md)", text)}
    assert linked == {page.name for page in PAGES}


@pytest.mark.parametrize(
    "text",
    [
        "# 1. Use a for b\n\nText.\n",
        "# 1. Use a for b\n\n- Status: accepted\n- Date: 2026-11-21\n\nText.\n",
        "# 1. Use a for b\n\n- Status: accepted\n- Date: today\n- Area: Spark and tables\n\nText.\n",
        "# 1. Use a for b\n\n- Status: accepted\n- Date: 2026-11-21\n- Area: Cooking\n\nText.\n",
    ],
)
def test_page_without_a_complete_header_is_refused(text: str, generator: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "0001-use-a-for-b.md"
    page.write_text(text, "utf-8")
    with pytest.raises(ValueError, match="does not begin with a title"):
        generator.read_decision(page)
