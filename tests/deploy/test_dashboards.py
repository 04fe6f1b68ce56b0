"""The dashboards: fresh, in one form, and about metrics that exist; every expression is PromQL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.grafana.dashboards import FOLDER, texts
from tests.deploy.conftest import ROOT, Render, select
from tests.deploy.promql import metric_names

FILES = sorted(FOLDER.glob("*.json"))
PROCESS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"}

every_dashboard = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def panels(path: Path) -> list[dict[str, Any]]:
    """The panels of a file, without its rows."""
    return [each for each in json.loads(path.read_text("utf-8"))["panels"] if each["type"] != "row"]


def plain(expression: str) -> str:
    """An expression with Grafana's variables replaced, so that it is PromQL."""
    assert not re.search(r"\$(?!__rate_interval\b|cluster\b|instance\b|group\b|topic\b)", expression), expression
    return re.sub(r"\$(instance|group|topic)\b", ".+", expression.replace("$__rate_interval", "1m")).replace(
        "$cluster", "headrace"
    )


def test_files_are_what_the_code_gives() -> None:
    """No file was edited by hand, none is missing, none too many: eight."""
    stale = [path.name for path, text in texts().items() if not path.is_file() or path.read_text("utf-8") != text]
    assert stale == [], "run python -m deploy.grafana.dashboards and commit what it wrote"
    assert sorted(texts()) == FILES
    assert len(FILES) == 8


@every_dashboard
def test_every_panel_explains_itself(path: Path) -> None:
    """A title of its own, a sentence, a unit, the chosen data source; panels do not lie over each other."""
    board = json.loads(path.read_text("utf-8"))
    assert board["uid"] == path.stem
    assert len(board["links"]) == 7
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    titles = [panel["title"] for panel in panels(path)]
    assert len(set(titles)) == len(titles)
    for panel in panels(path):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


@every_dashboard
def test_every_expression_is_promql_about_metrics_that_exist(path: Path) -> None:
    """Rates go by Grafana's interval, everything is about one cluster, and each metric is in the reference."""
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    for panel in panels(path):
        for target in panel["targets"]:
            expression = target["expr"]
            names = metric_names(plain(expression))
            assert names, expression
            unknown = [
                name
                for name in names - PROCESS
                if f"`{name}`" not in reference and f"`{re.sub(r'_(bucket|sum|count)$', '', name)}`" not in reference
            ]
            assert unknown == [], panel["title"]
            ours = [name for name in names if not name.startswith("headrace_client_")]  # Those have no such label.
            assert expression.count('cluster="$cluster"') >= len(ours), panel["title"]
            for function, interval in re.findall(r"\b(rate|increase|deriv)\([^()]*\[([^\]]+)\]", expression):
                assert interval == "$__rate_interval", f"{panel['title']}: {function}"
            seldom = any(name.startswith("headrace_broker_partition_") for name in names)
            assert target.get("interval", "") == ("60s" if seldom else ""), panel["title"]


@every_dashboard
def test_variables_are_chosen_by_what_exists(path: Path) -> None:
    """A data source, a cluster, and labels of metrics that exist."""
    variables = json.loads(path.read_text("utf-8"))["templating"]["list"]
    assert [each["name"] for each in variables[:2]] == ["datasource", "cluster"]
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    for each in variables[1:]:
        (metric,) = re.findall(r"label_values\((\w+)", each["query"])
        assert f"`{metric}`" in reference


def test_the_chart_installs_them_all(render: Render) -> None:
    """A ConfigMap each, found by Grafana's sidecar, with the file as it is."""
    values = {"monitoring": {"dashboards": {"enabled": True}}}
    found: dict[str, str] = {}
    for each in select(render(values), "ConfigMap"):
        if each["metadata"]["labels"].get("grafana_dashboard") == "1":
            found |= each["data"]
    assert {name: json.loads(text) for name, text in found.items()} == {
        path.name: json.loads(path.read_text("utf-8")) for path in FILES
    }
