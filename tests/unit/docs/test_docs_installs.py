"""What the docs say to install from a clone is there: distributions, and the extras that they are given with."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("sdk/*.md")]
EXTRAS = {
    project["name"]: set(project.get("optional-dependencies", ()))
    for path in [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]
    if (project := tomllib.loads(path.read_text("utf-8"))["project"])
}
LINES = sorted({line for page in PAGES for line in re.findall(r"\bpip install ([^`#\n]+)", page.read_text("utf-8"))})


def distributions(requirement: str) -> list[str]:
    """The names of what a path, or a pattern of paths, means in a clone."""
    path = requirement.removeprefix("./")
    return [
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["name"] for folder in ROOT.glob(path)
    ]


@pytest.mark.parametrize("line", LINES)
def test_docs_install_what_a_clone_has(line: str) -> None:
    """An index has no headrace: without a path, its name may only bring an extra of what is installed."""
    for requirement in shlex.split(line):
        if requirement.startswith("-"):
            continue
        name, extras = re.fullmatch(r"([^\[]+)(?:\[(.+)\])?", requirement).groups()  # type: ignore[union-attr]
        local = name.startswith("./")
        names = distributions(name) if local else [name]
        assert names, f"{name} is not in the repository"
        for each in names:
            if each in EXTRAS:
                assert local or extras, f"{each} is on no index: install it from a path"
                assert set(extras.split(",") if extras else ()) <= EXTRAS[each]
