"""Generator of docs/decisions/README.md: the table of decisions, read from the headers of the pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from reference_pages.markdown import table

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "decisions"
AREAS = (
    "Storage and format",
    "Replication and elections",
    "Metadata and etcd",
    "Producers",
    "Consumers and groups",
    "RPC and limits",
    "Security",
    "Spark and tables",
    "Operations",
    "Simulation and tests",
)
"""Sections of the index, in order. An area without a page has no section."""
_HEADER = re.compile(
    r"# (?P<number>[1-9]\d*)\. (?P<title>.+)\n\n"
    r"- Status: (?P<status>.+)\n- Date: (?P<date>\d{4}-\d\d-\d\d)\n- Area: (?P<area>.+)\n\n"
)
_INTRO = """# Decisions

Each page records one decision that outlives the change that made it: the context, the decision, the alternatives, the
cost, what shows that it works, and when to reconsider it. A decision that replaces another one gets a new page and the
status of the old page becomes `replaced by`. [CONTRIBUTING.md](../../CONTRIBUTING.md#decisions) has the template."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Title and header of a page."""

    path: Path
    number: int
    title: str
    status: str
    date: str
    area: str


def read_decision(path: Path) -> Decision:
    """Return the header of a page. Raise `ValueError` if the page does not begin with one."""
    header = _HEADER.match(path.read_text("utf-8"))
    if header is None or header["area"] not in AREAS:
        raise ValueError(f"{path.name} does not begin with a title, Status, Date and an Area of {', '.join(AREAS)}")
    return Decision(path, int(header["number"]), header["title"], header["status"], header["date"], header["area"])


def decisions_body() -> str:
    """Return the page from its title."""
    decisions = [read_decision(path) for path in sorted(FOLDER.glob("[0-9]*.md"))]
    sections = [_INTRO]
    for area in AREAS:
        rows = [
            (each.number, f"[{each.title}]({each.path.name})", each.status, each.date)
            for each in decisions
            if each.area == area
        ]
        if rows:
            sections += [f"## {area}", table(("Number", "Decision", "Status", "Date"), rows)]
    return "\n\n".join(sections)
