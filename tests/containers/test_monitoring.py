"""Profile `monitoring` on a real engine: every target is scraped, every dashboard has data, alerts have a receiver."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.grafana.dashboards import DASHBOARDS
from tests.containers.conftest import Figure
from tests.containers.engine import Engine
from tests.deploy.test_dashboards import plain
from tests.deploy.test_dashboards_live import query

PROMETHEUS, ALERTMANAGER = "localhost:9090", "localhost:9093"
GRAFANA = "grafana/grafana:12.4.10"
SECONDS = 300.0

pytestmark = pytest.mark.timeout(600)


def ask(address: str, path: str) -> Any:
    """What it answers as JSON."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def monitored(cluster: Engine, figure: Figure) -> Iterator[Engine]:
    """The cluster with a load, watched."""
    begun = time.monotonic()
    cluster.compose("up", "-d", "--wait", "prometheus", "alertmanager", profile="monitoring")
    figure("Prometheus and Alertmanager ready", f"{time.monotonic() - begun:.1f} s")
    cluster.compose("up", "-d", "--wait", "demo", profile="demo")
    yield cluster
    cluster.compose("stop", "demo", profile="demo")


def test_every_target_is_up(monitored: Engine) -> None:
    """Brokers and coordinators, their details, and etcd, by the names that they have in the file."""
    deadline = time.monotonic() + SECONDS
    targets: dict[str, str] = {"": "unknown"}
    while set(targets.values()) != {"up"} and time.monotonic() < deadline:
        active = ask(PROMETHEUS, "/api/v1/targets")["data"]["activeTargets"]
        targets = {each["scrapeUrl"]: f"{each['health']}{each['lastError']}" for each in active}
        time.sleep(0.5)
    assert len(targets) == 11
    assert {url: health for url, health in targets.items() if health != "up"} == {}


def test_every_panel_has_data(monitored: Engine, figure: Figure) -> None:
    """Each query of each panel at the real scrape intervals, but those that a healthy cluster has no data for."""
    must = {
        (board.title, panel.title, each.expr)
        for board in DASHBOARDS
        for row in board.rows
        for panel in row.panels
        for each in panel.queries
        if not panel.without_data
    }
    count, begun = len(must), time.monotonic()
    assert count > 90
    while must and time.monotonic() < begun + SECONDS:
        must = {key for key in must if not query(PROMETHEUS, plain(key[2]).replace("[1m]", "[4m]"))}
        time.sleep(2)
    figure(f"{count} expressions of dashboards have data after", f"{time.monotonic() - begun:.0f} s")
    assert sorted(must) == []


def test_alerts_reach_the_alertmanager(monitored: Engine) -> None:
    """Prometheus found it, it is ready, and on a healthy cluster the rules are evaluated and none fires."""
    found = ask(PROMETHEUS, "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert [each["url"] for each in found] == ["http://alertmanager:9093/api/v2/alerts"]
    assert ask(ALERTMANAGER, "/api/v2/status")["config"]["original"]
    rules = [rule for group in ask(PROMETHEUS, "/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
    assert len(rules) >= 25
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_grafana_shows_the_dashboards(monitored: Engine) -> None:
    """Anonymous viewers find all eight."""
    if not monitored.docker("images", "--quiet", GRAFANA):
        pytest.skip("no registry of packages has Grafana: its service in docker-compose.yml was NOT started")
    monitored.compose("up", "-d", "--wait", "grafana", profile="monitoring")
    found = ask("localhost:3000", "/api/search?type=dash-db")
    assert {each["uid"] for each in found} == {f"headrace-{board.name}" for board in DASHBOARDS}
