"""Pictures of the dashboards: each panel drawn by Grafana's own components, in Chromium, with a live cluster's data.

The tests check what a picture's page contains. The pictures are for people, in build/dashboards.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from headrace_devcluster.cluster import LocalCluster

from deploy.grafana.boards.overview import UNDER_REPLICATED, VERDICT
from deploy.grafana.dashboards import FOLDER
from tests.dashboards.inside import STATE
from tests.deploy.conftest import ROOT
from tests.deploy.test_dashboards import plain
from tests.deploy.test_dashboards_live import query

PICTURES = ROOT / "build" / "dashboards"
CHROMIUM = "/usr/lib/chromium/chromium"
SPAN = 90
"""Seconds of a picture. Prometheus scrapes every second, so this is what 22 minutes are with its usual 15 seconds."""
STEP = 1
RATE_INTERVAL = "4s"
"""What Grafana makes of $__rate_interval then: four times the time between scrapes."""

BOARDS = sorted(path.stem for path in FOLDER.glob("*.json"))


@dataclass(frozen=True, slots=True)
class Picture:
    """One dashboard as it was drawn."""

    board: dict[str, Any]
    """The dashboard's JSON, its panels with the series that they show."""
    texts: dict[str, str]
    """The words of each panel, title and legend included."""


@pytest.fixture(scope="module")
def filled(prometheus: str) -> str:
    """The address of a Prometheus that has data for a picture's whole span."""
    wait_for(prometheus, f"headrace_broker_fetched_bytes_total offset {SPAN}s > 0", SPAN + 60)
    return prometheus


def wait_for(prometheus: str, expression: str, seconds: float) -> None:
    """Return when an expression has a value."""
    deadline = time.monotonic() + seconds
    while not query(prometheus, expression):
        assert time.monotonic() < deadline, f"no data after {seconds} s: {expression}"
        time.sleep(0.5)


def draw(prometheus: str, name: str, suffix: str = "") -> Picture:
    """Draw a dashboard as it is now."""
    board = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    end = int(time.time())
    span = {"start": end - SPAN, "end": end, "step": STEP}
    for panel in board["panels"]:
        if panel["type"] != "row":
            panel["series"] = [one for target in panel["targets"] for one in series(prometheus, target, span)]
    state = Path(os.environ[STATE])
    data = {"title": board["title"], "from": span["start"], "to": end, "panels": board["panels"]}
    (state / "board.js").write_text(f"window.BOARD = {json.dumps(data)};", "utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    height = 80 + 38 * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={state / 'chromium'}", f"--window-size=1600,{height}", "--virtual-time-budget=5000",
        f"--screenshot={PICTURES / f'{name}{suffix}.png'}", "--dump-dom", (state / "index.html").as_uri(),
    ]  # fmt: skip
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    sections = re.findall(r'<section data-title="([^"]*)".*?>(.*?)</section>', page, re.DOTALL)
    words = {title: re.sub(r"<style.*?</style>|<[^>]*>", "", text, flags=re.DOTALL) for title, text in sections}
    return Picture(board, {html.unescape(title): html.unescape(text) for title, text in words.items()})


def series(prometheus: str, target: dict[str, Any], span: dict[str, int]) -> list[dict[str, Any]]:
    """What Grafana's data source returns for a query: a series a label set, with nulls where there is no sample."""
    expression = plain(target["expr"].replace("$__rate_interval", RATE_INTERVAL))
    if target.get("instant"):
        times = [span["end"]]
        found = [one | {"values": [(span["end"], one["value"][1])]} for one in query(prometheus, expression)]
    else:
        times = list(range(span["start"], span["end"] + 1, span["step"]))
        url = f"http://{prometheus}/api/v1/query_range?{urllib.parse.urlencode({'query': expression, **span})}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
    drawn = []
    for one in found:
        legend = target["legendFormat"]
        for label, value in one["metric"].items():
            legend = legend.replace(f"{{{{{label}}}}}", value)
        values = {round(at): value for at, value in one["values"]}
        drawn.append({"legend": legend, "times": times, "values": [values.get(at) for at in times]})
    return drawn


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_shows_a_healthy_cluster(filled: str, name: str) -> None:
    """Each panel is drawn with a legend entry a series, names processes by names, and none shows "No data"."""
    picture = draw(filled, name)
    panels = [panel for panel in picture.board["panels"] if panel["type"] != "row"]
    assert set(picture.texts) == {panel["title"] for panel in panels}
    for panel in panels:
        text = picture.texts[panel["title"]]
        assert "No data" not in text, panel["title"]
        assert not re.search(r"127\.0\.0\.1|NaN|undefined", text), (panel["title"], text)
        if panel["type"] == "timeseries":
            for one in panel["series"]:
                assert one["legend"] in text, (panel["title"], one["legend"])


def test_verdict_is_seen_at_a_glance(filled: str, loaded_cluster: LocalCluster) -> None:
    """Healthy while all is well; degraded, with the share of brokers, when one of three was killed."""
    texts = draw(filled, "headrace-overview").texts
    assert "Healthy" in texts["Cluster"]
    assert "100%" in texts["Brokers up"]
    loaded_cluster.brokers[-1].kill()
    wait_for(filled, f"({plain(VERDICT)}) == 1 and {plain(UNDER_REPLICATED)} == 3", 60)
    texts = draw(filled, "headrace-overview", "-degraded").texts
    assert "Degraded" in texts["Cluster"]
    assert "67%" in texts["Brokers up"]
    assert texts["Under-replicated"].endswith("3")
    draw(filled, "headrace-replication", "-degraded")
