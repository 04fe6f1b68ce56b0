"""docs/decisions/README.md: the list of decisions, from the pages' own titles."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "decisions"

_INTRO = """# Decisions

One page a decision that outlives the change that made it: what was decided, why, what shows it, what it costs, and what
would make us choose again. A page is not rewritten when we change our minds: a new one says so and the old one points
to it."""


def decisions_body() -> str:
    """The page from its title on."""
    lines = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        title = path.read_text("utf-8").splitlines()[0]
        number, name = path.name[:4], re.sub(r"^# (\d+\. )?", "", title)
        lines.append(f"- [{number}: {name}]({path.name})")
    return "\n\n".join([_INTRO, "\n".join(lines)])
