"""Generator of the docs pages that come from code and protos, and check that they are current.

Run by `make docs` (writes) and `make check` (`--check`: exit code 1 and the names of the stale pages). Each page is a
function of `reference_pages.pages`, independent of time, machine and set order. The pages are committed, so that they
can be read without a build and a review shows a changed format.
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
    """Return exit code 0 if all pages are current or were written."""
    return run("Write the generated pages of docs.", "run `make docs` and commit it", ROOT, texts, arguments)


if __name__ == "__main__":
    sys.exit(main())
