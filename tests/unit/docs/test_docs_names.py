"""Dotted names in the hand-written pages are real: each can be imported."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from headrace.spark.options import OPTIONS, PREFIX

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


def test_options_of_spark_are_real() -> None:
    """Each `option` of an example that names the source or the sink is one of theirs, or one of Spark itself."""
    known = {option.name for option in OPTIONS} | {"checkpointLocation", "path"}
    named: dict[str, set[str]] = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for example in re.findall(r"```python\n(.+?)```", page.read_text("utf-8"), re.DOTALL):
            if 'format("headrace")' in example:
                options = set(re.findall(r"\.option\(\"([^\"]+)\"", example))
                assert all(option in known or option.startswith(PREFIX) for option in options), (page, options - known)
                named.setdefault(page.name, set()).update(options)
    assert "subscribe" in named["spark.md"]


def test_tests_named_in_the_paper_page_exist() -> None:
    """docs/paper.md names tests that are there: of the paper's sentences in tests/paper, of other things anywhere."""
    page = (ROOT / "docs" / "paper.md").read_text("utf-8")
    for pattern, folder, least in ((r"`(test_section_\w+)`", "paper", 20), (r"`(test_(?!section_)\w+)`", ".", 10)):
        written = "".join(path.read_text("utf-8") for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")))
        named = re.findall(pattern, page)
        assert len(named) > least
        assert [name for name in named if f"def {name}(" not in written] == []


def paper_rows() -> list[list[str]]:
    """Cells of each row of docs/paper.md: numbers, the paper, headrace, tests."""
    lines = (ROOT / "docs" / "paper.md").read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if re.match(r"\| \d", line)]


def paper_tests() -> dict[str, str]:
    """Docstrings of the tests in tests/paper by name."""
    found = {}
    for path in sorted((ROOT / "tests" / "paper").glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                assert node.name not in found, f"{node.name} is there twice"
                found[node.name] = ast.get_docstring(node) or ""
    return found


def test_the_paper_page_has_every_row() -> None:
    """From 1 to 39 in order, each once; a row without a test says that it is not built."""
    rows = paper_rows()
    numbers = [int(number) for row in rows for number in row[0].split(",")]
    assert numbers == list(range(1, 40))
    for _, _, headrace, shown_by in rows:
        assert shown_by or "not built" in headrace


def test_each_departure_of_the_paper_page_has_a_reason_and_a_test() -> None:
    """A row marked as a departure links a page, and names a test of tests/paper that says that it is of a departure.

    Each such test is named by a row that is marked, and there is one form of the mark.
    """
    departures = {name for name, docstring in paper_tests().items() if "a departure:" in docstring}
    named = set()
    for number, _, headrace, shown_by in paper_rows():
        of_row = set(re.findall(r"`(test_\w+)`", shown_by)) & departures
        if headrace.startswith("**Departure:** "):
            assert re.search(r"\]\([\w/.#-]+\)", headrace), f"row {number} has no link to a reason"
            assert of_row, f"row {number} names no test of a departure"
            named |= of_row
        else:
            assert "departure" not in headrace.casefold(), f"row {number} begins with **Departure:** if it is one"
            assert not of_row, f"row {number} is not marked, but {of_row} is about a departure"
    assert named == departures
    assert len(departures) > 20


def test_each_test_of_the_paper_is_on_its_page() -> None:
    """What is tested of the paper's sentences is on docs/paper.md."""
    page = (ROOT / "docs" / "paper.md").read_text("utf-8")
    assert [name for name in paper_tests() if f"`{name}`" not in page] == []
