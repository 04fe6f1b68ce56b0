"""Generator of docs/reference/chart-values.md: all values of the Helm chart, from `@param` lines in values.yaml."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from reference_pages.markdown import table

VALUES_FILE = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "headrace" / "values.yaml"

_INTRO = """# Values of the chart

The values of `helm install --set` and `--values`. An unknown name is an error, and so are values that contradict each
other. [The guide](../guides/installing.md) lists the values to set first."""


def chart_body() -> str:
    """Return the page from its title."""
    text = VALUES_FILE.read_text("utf-8")
    values = yaml.safe_load(text)
    sections: list[tuple[str, list[tuple[str, str, str]]]] = []
    for kind, rest in re.findall(r"^\s*## @(section|param) (.+)$", text, re.MULTILINE):
        if kind == "section":
            sections.append((rest, []))
            continue
        name, _, meaning = rest.partition(" ")
        sections[-1][1].append((f"`{name}`", f"`{_default(values, name)}`", f"{meaning}."))
    parts = [f"## {title}\n\n{table(('value', 'default', 'meaning'), rows)}" for title, rows in sections]
    return "\n\n".join([_INTRO, *parts])


def _default(values: object, name: str) -> str:
    for part in name.split("."):
        assert isinstance(values, dict), name
        values = values[part]
    return json.dumps(values)
