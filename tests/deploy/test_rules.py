"""The alerts: each fires when it must and not before, is written for people, and can be tuned by the chart's values."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import CHART, ROOT, Render, one
from tests.deploy.promql import Samples, evaluate, firing, metric_names, parse_duration

RULES_FILE = CHART / "files" / "rules" / "headrace.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES_FILE.read_text("utf-8"))["groups"] for rule in group["rules"]
}
CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text("utf-8"))
HORIZON_SECONDS = 120 * 60.0
THRESHOLD = re.compile(r"(==|!=|>=|<=|>|<) [-+0-9.e]+\s*$")

MONITOR_KEY = "/etc/headrace-monitor/api-key"
"""Where docker-compose.yml's Prometheus has its API key."""
MIRRORS = {"mirror": {"enabled": True, "apiKeySecretName": "mirror-key"}}
"""Values of a release in which no alert is left out."""

every_alert = pytest.mark.parametrize("name", ALERTS)


def samples_of(series: dict[str, Any]) -> Samples:
    """The series of a case."""
    samples = Samples()
    for selector, values in series.items():
        samples.add(selector, str(values))
    return samples


@every_alert
def test_it_fires_when_it_must_and_not_before(name: str) -> None:
    """Not on what is well, not yet at `not_yet`, and with its labels at `by`."""
    alert, case = ALERTS[name], CASES[name]
    wait = parse_duration(alert["for"])
    assert firing(samples_of(case["well"]), alert["expr"], wait, HORIZON_SECONDS) == {}
    not_yet, by = parse_duration(case["not_yet"]), parse_duration(case["by"])
    fired = firing(samples_of(case["ill"]), alert["expr"], wait, by)
    assert [at for at in fired if at <= not_yet] == []
    assert fired[by] == [case["labels"]]


def test_the_guide_says_what_there_is() -> None:
    """How many alerts and dashboards, and the label that the Prometheus operator's stack selects by."""
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text("utf-8")
    boards = len(list((CHART / "files" / "dashboards").glob("*.json")))
    assert boards == 8
    assert f"Eight dashboards of Grafana and {len(ALERTS)} alerts of Prometheus" in guide
    assert "labels: {release: kube-prometheus-stack}" in guide


def test_every_alert_has_a_case() -> None:
    """No more and no fewer; about twenty-five of them, as operators were promised."""
    assert list(CASES) == list(ALERTS)
    assert len(ALERTS) >= 25


@every_alert
def test_it_is_written_for_people(name: str) -> None:
    """A name of ours, a severity, a wait, two sentences that name what it is about, and a page that says what to do."""
    alert = ALERTS[name]
    assert name.startswith("Headrace")
    assert set(alert) == {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert parse_duration(alert["for"]) >= 60
    summary, description = alert["annotations"]["summary"], alert["annotations"]["description"]
    assert not summary.endswith("."), summary
    assert description.endswith("."), description
    named = set(re.findall(r"\$labels\.(\w+)", summary + description))
    assert named <= set(CASES[name]["labels"]), "a label that the alert does not have"
    page = RUNBOOKS / Path(alert["annotations"]["runbook_url"]).name
    assert page.stem == name
    text = page.read_text("utf-8")
    assert text.startswith(f"# {name}\n")
    for heading in ("## Meaning", "## Diagnosis", "## Mitigation"):
        assert f"\n{heading}\n" in text, f"{page.name} lacks {heading}"


def test_every_page_has_its_alert() -> None:
    """No runbook of an alert that is gone, and the index names all, in the order of the rules."""
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(ALERTS)
    index = (RUNBOOKS / "README.md").read_text("utf-8")
    assert re.findall(r"\]\((\w+)\.md\)", index) == list(ALERTS)


@every_alert
def test_its_metrics_exist(name: str) -> None:
    """Each is in docs/reference/metrics.md, or one that Prometheus or every Python process has."""
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    for metric in metric_names(ALERTS[name]["expr"]):
        base = re.sub(r"_(bucket|sum|count)$", "", metric)
        known = metric in ("up", "process_start_time_seconds") or f"`{base}`" in reference or f"`{metric}`" in reference
        assert known, metric


def test_rates_are_of_counters_and_slopes_of_gauges() -> None:
    """In alerts, dashboards and docs: `rate` takes each fall of a gauge for a counter that started anew."""
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    types = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", reference, re.MULTILINE))
    pages = [RULES_FILE, *(CHART / "files" / "dashboards").glob("*.json"), *(ROOT / "docs").rglob("*.md")]
    used = [
        call
        for page in pages
        for call in re.findall(r"\b(rate|increase|deriv|delta|predict_linear)\((headrace_\w+)", page.read_text("utf-8"))
    ]
    assert len({function for function, _ in used}) == 5
    for function, metric in used:
        kind = types.get(metric) or types[re.sub(r"_(bucket|sum|count)$", "", metric)]
        assert (kind == "gauge") == (function in ("deriv", "delta", "predict_linear")), f"{function}({metric})"


def test_thresholds_are_values_of_the_chart(helm: Any, render: Render) -> None:
    """Each can be raised, waited for longer, given another severity or left out; what compares with none says so."""
    changes: dict[str, dict[str, Any]] = {
        name: {"threshold": 42.5} for name in ALERTS if THRESHOLD.search(ALERTS[name]["expr"])
    }
    assert len(changes) == len(ALERTS), "an expression ends with its threshold"
    changes["HeadraceDiskLow"] |= {"for": "99m", "severity": "critical"}
    changes["HeadraceThrottled"] = {"enabled": False}
    values = {"monitoring": {"prometheusRule": {"enabled": True, "alerts": changes, "runbookBase": "https://wiki/r/"}}}
    groups = one(render(values | MIRRORS), "PrometheusRule")["spec"]["groups"]
    rendered = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert set(rendered) == set(ALERTS) - {"HeadraceThrottled"}
    for name, rule in rendered.items():
        assert rule["expr"].rstrip().endswith(" 42.5"), name
        assert rule["annotations"]["runbook_url"] == f"https://wiki/r/{name}.md"
    assert (rendered["HeadraceDiskLow"]["for"], rendered["HeadraceDiskLow"]["labels"]) == (
        "99m",
        {"severity": "critical"},
    )
    untouched = one(render({"monitoring": {"prometheusRule": {"enabled": True}}, **MIRRORS}), "PrometheusRule")["spec"][
        "groups"
    ]
    for group in untouched:
        for rule in group["rules"]:
            assert rule == ALERTS[rule["alert"]], rule["alert"]


@pytest.mark.parametrize(
    ("coordinator", "change", "there"),
    [
        ({"replicas": 2}, {}, True),
        ({"replicas": 1}, {}, False),
        ({"replicas": 1}, {"enabled": True}, True),
        ({"replicas": 2}, {"enabled": False}, False),
        ({"replicas": 1, "autoscaling": {"enabled": True, "minReplicas": 2}}, {}, True),
        ({"replicas": 2, "autoscaling": {"enabled": True, "minReplicas": 1}}, {}, False),
    ],
)
def test_a_single_coordinator_by_choice_raises_no_alert(
    render: Render, coordinator: dict[str, Any], change: dict[str, Any], there: bool
) -> None:
    """The alert about the last one is there where two are asked for, or where it is asked for by name."""
    rule = {"enabled": True, "alerts": {"HeadraceCoordinatorNotRedundant": change}}
    values = {"coordinator": coordinator, "monitoring": {"prometheusRule": rule}, **MIRRORS}
    groups = one(render(values), "PrometheusRule")["spec"]["groups"]
    names = [each["alert"] for group in groups for each in group["rules"]]
    assert ("HeadraceCoordinatorNotRedundant" in names) is there
    assert len(names) == len(ALERTS) - (not there)


def test_inhibitions_name_alerts_that_exist() -> None:
    """An inhibition rule with a misspelt name would be silent for ever."""
    text = (ROOT / "deploy" / "prometheus" / "alertmanager.yml").read_text("utf-8")
    named = set(re.findall(r"Headrace\w+", text))
    assert named <= set(ALERTS)
    assert len(named) >= 6


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' own checker, where there is one."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (apt install prometheus): rules were evaluated here, NOT by Prometheus")
    return found


def test_promtool_agrees(promtool: str, tmp_path: Path) -> None:
    """The same rules and the same cases, by Prometheus itself; a file an alert, or each case would run all of them."""
    files = []
    for name, case in CASES.items():
        rules = tmp_path / f"{name}.rules.yaml"
        rules.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [ALERTS[name]]}]}))
        severity = ALERTS[name]["labels"]["severity"]
        labels = {**case["labels"], "alertname": name, "alertstate": "firing", "severity": severity}
        fired = "ALERTS{" + ", ".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"
        moments = (
            (case["well"], "120m", []),
            (case["ill"], case["not_yet"], []),
            (case["ill"], case["by"], [{"labels": fired, "value": 1}]),
        )
        tests = [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": str(values)} for each, values in series.items()],
                "promql_expr_test": [
                    {"expr": 'ALERTS{alertstate="firing"}', "eval_time": moment, "exp_samples": samples}
                ],
            }
            for series, moment, samples in moments
        ]
        file = tmp_path / f"{name}.test.yaml"
        file.write_text(yaml.safe_dump({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": tests}))
        files.append(str(file))
    for command in (["check", "rules", "--lint=all", "--lint-fatal", str(RULES_FILE)], ["test", "rules", *files]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_and_alertmanager_read_their_files(promtool: str, tmp_path: Path) -> None:
    """docker-compose.yml's configurations, by each program's own checker, which looks for the API key of a monitor."""
    config = ROOT / "deploy" / "prometheus"
    scraped = (config / "prometheus.yml").read_text("utf-8")
    assert MONITOR_KEY in scraped
    (tmp_path / "api-key").touch()
    (tmp_path / "prometheus.yml").write_text(scraped.replace(MONITOR_KEY, str(tmp_path / "api-key")), "utf-8")
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.skip("amtool is not installed (apt install prometheus-alertmanager): its configuration was NOT checked")
    for command in (
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")],
        [amtool, "check-config", str(config / "alertmanager.yml")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_evaluator_computes_correctly() -> None:
    """Against values that Prometheus gives, computed by hand from its source."""
    samples = Samples()
    samples.add('c{i="a"}', "0+60x10")
    samples.add('c{i="b"}', "0+60x4 0+60x5")
    samples.add("g", "10-1x10")
    a, b, nothing = frozenset({("i", "a")}), frozenset({("i", "b")}), frozenset()
    assert evaluate(samples, "rate(c[5m])", 600.0)[a] == pytest.approx(1.0)
    assert evaluate(samples, "increase(c[10m])", 600.0)[b] == pytest.approx(540.0)
    assert evaluate(samples, "sum(c)", 600.0) == {nothing: 900.0}
    assert evaluate(samples, "predict_linear(g[10m], 600)", 600.0)[nothing] == pytest.approx(-10.0)
    assert evaluate(samples, "max_over_time(g[3m])", 570.0)[nothing] == 3.0
    assert evaluate(samples, "g < 5 and g > 0", 360.0) == {frozenset({("__name__", "g")}): 4.0}
    assert evaluate(samples, 'c{i=~"x|y"}', 600.0) == {}
    with pytest.raises(NotImplementedError):
        evaluate(samples, "topk(1, c)", 600.0)
