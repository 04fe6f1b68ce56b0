"""Writes the pages of docs that come from code and protos, or checks that they are fresh.

Run by `make docs` (writes) and `make check` (`--check`: exit code 1 and the names of the stale pages). Each page is a
function of `reference_pages.pages`; nothing in it depends on time, machine or the order of a set. The pages are
committed: they can be read without a build, and a changed format shows in its review as a changed page.
"""

import argparse
import sys
from pathlib import Path

from reference_pages.pages import PAGES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs"


def stale_pages() -> list[tuple[Path, str]]:
    """Return each page whose file is absent or differs, with the text that it should have."""
    fresh = [(FOLDER / page.path, page.text()) for page in PAGES]
    return [(path, text) for path, text in fresh if not path.is_file() or path.read_text("utf-8") != text]


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: all pages are fresh, or were written."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is stale")
    check = parser.parse_args(arguments).check
    stale = stale_pages()
    for path, text in stale:
        shown = path.relative_to(ROOT)
        if check:
            print(f"{shown} is stale: run `make docs` and commit it", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {shown}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
