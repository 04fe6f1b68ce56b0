"""Every relative link of the docs leads to a file that is there, and every anchor to a heading that is there."""

import functools
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("sdk/*.md"), *ROOT.glob("services/*/*.md")]
)


@functools.cache
def _tokens(text: str) -> list[tuple[str, str]]:
    """(`link`, target) and (`heading`, text) in the order of the page."""
    found: list[tuple[str, str]] = []
    heading = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        heading = token.type == "heading_open" or (heading and token.type == "inline")
        if token.type != "inline":
            continue
        if heading:
            found.append(("heading", "".join(child.content for child in token.children or ())))
        for child in token.children or ():
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if target:
                found.append(("link", str(target)))
    return found


@functools.cache
def _anchors(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    anchors: set[str] = set()
    for kind, heading in _tokens(text):
        if kind == "heading":
            slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            number = 1
            unique = slug
            while unique in anchors:
                unique = f"{slug}-{number}"
                number += 1
            anchors.add(unique)
    return anchors


def _broken(page: Path) -> list[str]:
    broken = []
    for kind, target in _tokens(page.read_text("utf-8")):
        if kind != "link" or re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif ROOT not in file.parents:
            broken.append(f"{target}: outside the repository")
        elif anchor and anchor not in _anchors(file.read_text("utf-8")):
            broken.append(f"{target}: no such heading")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """No link of this page is broken."""
    assert _broken(page) == []


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker sees a missing file, a missing heading, and lets a right anchor pass."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A `b` c\n\n[x](gone.md) [y](#nowhere) [z](#a-b-c) [w](https://example.org)\n")
    assert _broken(page) == ["gone.md: no such file", "#nowhere: no such heading"]


def test_every_page_is_reached_from_the_index() -> None:
    """Following links from docs/README.md one comes to every page of docs."""
    reached: set[Path] = set()
    waiting = [ROOT / "docs" / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        targets = [target.partition("#")[0] for kind, target in _tokens(page.read_text("utf-8")) if kind == "link"]
        waiting += [(page.parent / target).resolve() for target in targets if target and ":" not in target]
    missing = sorted(str(page.relative_to(ROOT)) for page in set(PAGES) - reached if ROOT / "docs" in page.parents)
    assert missing == []


def test_pages_cited_in_code_exist() -> None:
    """A page of docs that code, protos or tests name is there."""
    missing = set()
    for folder in ("sdk", "services", "tests", "tools", "proto", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".proto", ".toml") and not path.name.endswith("_pb2.py"):
                for cited in re.findall(r"\bdocs/[\w/.-]+\.md", path.read_text("utf-8")):
                    if not (ROOT / cited).is_file():
                        missing.add(f"{path.relative_to(ROOT)} names {cited}")
    assert sorted(missing) == []
