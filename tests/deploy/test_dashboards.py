"""The dashboards: fresh, in one form, and about metrics that exist; every expression is PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana.boards.overview import BROKERS_UP, VERDICT
from deploy.grafana.dashboards import DASHBOARDS, FOLDER, texts
from deploy.grafana.queries import OURS, events
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


def test_panels_stack_forecast_and_stay_empty_as_declared() -> None:
    """Stacks stack, only forecasts go below zero, and rare series do not end in "No data"."""
    for board in DASHBOARDS:
        written = {panel["title"]: panel for panel in panels(FOLDER / f"headrace-{board.name}.json")}
        for panel in (panel for row in board.rows for panel in row.panels):
            defaults = written[panel.title]["fieldConfig"]["defaults"]
            stacking = defaults.get("custom", {}).get("stacking", {}).get("mode", "none")
            assert stacking == ("normal" if panel.stack else "none"), panel.title
            if panel.kind == "graph":
                forecast = any("predict_linear" in query.expr for query in panel.queries)
                assert defaults.get("min") == (None if forecast else 0), panel.title
            assert defaults.get("noValue", "") == panel.without_data, panel.title
            assert panel.without_data in ("", "none", "not scraped"), panel.title
            # Grafana's "wps" is written "wr/s": no unit for records.
            assert panel.unit != "wps", panel.title


WELL = {"up": "1 1 1", "controllers": 1, "offline": 0, "missing": 0, "minimum": 0, "replicated": 0}
"""Three brokers that are scraped, one controller, and nothing wrong."""


@pytest.mark.parametrize(
    ("change", "verdict", "brokers_up"),
    [
        ({}, 0, 1.0),
        ({"up": "1 1 0"}, 1, 2 / 3),
        ({"up": "1 1 0", "missing": 1}, 1, 2 / 3),
        ({"up": "1 1", "missing": 1}, 1, 2 / 3),
        ({"up": "0 0 0", "minimum": None}, 2, 0.0),
        ({"replicated": 4}, 1, 1.0),
        ({"minimum": 4}, 2, 1.0),
        ({"offline": 1, "replicated": 1}, 2, 1.0),
        ({"controllers": 0}, 2, 1.0),
        ({"offline": None, "missing": None, "controllers": None, "replicated": None}, 2, 1.0),
        ({"up": "", "minimum": None}, 2, 0.0),
    ],
)
def test_verdict_shows_the_worst_condition(
    tmp_path: Path, change: dict[str, Any], verdict: int, brokers_up: float
) -> None:
    """Green only where nothing is wrong, and never for want of data."""
    state = WELL | change
    series = {
        f'up{{job="headrace-broker",instance="broker-{number}"}}': value
        for number, value in enumerate(state["up"].split())
    }
    for key, name in (
        ("controllers", "headrace_coordinator_is_controller"),
        ("offline", "headrace_coordinator_offline_partitions"),
        ("missing", "headrace_coordinator_missing_brokers"),
        ("minimum", "headrace_broker_under_min_insync"),
        ("replicated", "headrace_coordinator_under_replicated_partitions"),
    ):
        if state[key] is not None:
            series[f'{name}{{instance="a"}}'] = f"{state[key]}"
    promtool(tmp_path, series, {VERDICT: [("{}", verdict)], BROKERS_UP: [("{}", brokers_up)]}, "0m")


def test_events_of_a_new_label_are_counted(tmp_path: Path) -> None:
    """A labelled counter begins at its first events, and increase() alone would show none of them."""
    counter = "headrace_broker_produce_errors_total"
    series = {
        f'{counter}{{instance="a",code="X"}}': "_ _ _ 7 7 7",
        f'{counter}{{instance="a",code="Y"}}': "5 5 5 5 5 5",
    }
    expected = [('{code="X"}', 7), ('{code="Y"}', 0)]
    promtool(tmp_path, series, {events(counter, OURS, "code"): expected}, "3m")


def promtool(folder: Path, series: dict[str, str], expected: dict[str, list[tuple[str, float]]], at: str) -> None:
    """Let Prometheus' own tool evaluate expressions over samples a minute apart."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (apt install prometheus): the expressions were NOT evaluated")
    case = {
        "interval": "1m",
        "input_series": [
            {"series": name.replace("{", '{cluster="headrace",'), "values": values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                # Rounded, for promtool compares exactly; and a rate needs two samples, a minute apart.
                "expr": f"round({plain(expression)}, 0.01)".replace("1m", "2m"),
                "eval_time": at,
                "exp_samples": [{"labels": labels, "value": round(value, 2)} for labels, value in samples],
            }
            for expression, samples in expected.items()
        ],
    }
    path = folder / "case.yaml"
    path.write_text(yaml.safe_dump({"tests": [case]}), "utf-8")
    done = subprocess.run([program, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
