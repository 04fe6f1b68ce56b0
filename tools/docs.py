"""Writes the pages of docs that come from code and protos, or checks that they are fresh.

Run by `make docs` (writes) and `make check` (`--check`: exit code 1 and the names of the stale pages). Each page is a
function of `reference_pages.pages`; nothing in it depends on time, machine or the order of a set. The pages are
committed: they can be read without a build, and a changed format shows in its review as a changed page.
"""

import sys
from pathlib import Path

from generated_files import run
from reference_pages.pages import PAGES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs"


def texts() -> dict[Path, str]:
    """Return the generated pages by path."""
    return {FOLDER / page.path: page.text() for page in PAGES}


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: all pages are fresh, or were written."""
    return run("Write the generated pages of docs.", "run `make docs` and commit it", ROOT, texts, arguments)


if __name__ == "__main__":
    sys.exit(main())
