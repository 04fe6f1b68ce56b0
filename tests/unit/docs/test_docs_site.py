"""The documentation site builds without a warning and has the whole public API."""

import inspect
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import headrace
import headrace.aio
import headrace.metrics
import headrace.testing
import pytest
from sphinx.util.inventory import InventoryFile

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "site", f"SITE={folder}"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def _public(module: ModuleType) -> set[str]:
    """Return the public names of a module: `__all__`, or the classes and functions that it defines."""
    defined = inspect.getmembers(module, lambda value: inspect.isclass(value) or inspect.isfunction(value))
    own = [name for name, value in defined if value.__module__ == module.__name__ and not name.startswith("_")]
    return {f"{module.__name__}.{name}" for name in getattr(module, "__all__", own)}


@pytest.mark.slow
def test_the_site_has_every_page_and_a_first_page(site: Path) -> None:
    """Each page of docs is a page of the site, and index.html is its first page."""
    pages = [page.relative_to(ROOT).with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page).is_file()] == []
    assert (site / "index.html").read_text("utf-8") == (site / "README.html").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("module", [headrace, headrace.aio, headrace.testing, headrace.metrics])
def test_every_public_name_is_in_the_reference(site: Path, module: ModuleType) -> None:
    """A name of `__all__` has an entry in the reference of the Python API."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    described = {name for kind, entries in inventory.data.items() if kind.startswith("py:") for name in entries}
    names = _public(module)
    assert names
    assert sorted(names - described) == []


def test_every_public_name_of_headrace_is_on_a_page_of_the_reference() -> None:
    """A directive names it: what the slow test finds on the built site, found without building it."""
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs/python").glob("*.rst"))
    named = set(re.findall(r"^\.\. (?:auto|py:)\w+:: (headrace\.\w+)", pages, flags=re.MULTILINE))
    assert sorted(_public(headrace) - named - {"headrace.__version__"}) == []


def test_every_row_of_the_map_names_files_and_tests() -> None:
    """Both columns of each row of the developer map are links, which the tests of links follow."""
    rows = (ROOT / "docs/contributing/map.md").read_text("utf-8").split("| --- | --- | --- |\n")[1].splitlines()
    assert rows
    for row in rows:
        _, _, read, test, _ = row.split("|")
        for cell in (read, test):
            assert all(link.strip().startswith("[") for link in cell.split(", ")), row
