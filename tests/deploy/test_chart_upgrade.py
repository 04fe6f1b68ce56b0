"""What an upgrade of a release keeps of what it finds, and that it ends."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import CHART, LOADER, Objects, Render, containers, one, select
from tests.deploy.matrix import MATRIX

Upgrade = Callable[[Objects, dict[str, Any]], Objects]

LOOKUP = re.compile(r'\blookup ("[^"]+") ("[^"]+"|\$kind) \S+ (\((?:[^()]|\([^()]*\))*\)|"[^"]+"|\$\w+)')
MONITORS = {"monitoring": {"serviceMonitor": {"enabled": True, "detail": True}}}
ELSEWHERE = {"etcd": {"endpoints": ["etcd.db:2379"], "bundled": {"enabled": False}}}


@pytest.fixture(scope="module")
def upgrade(helm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    """`upgrade(objects, values)`: the objects that the chart gives where its look-ups find these."""
    copied = tmp_path_factory.mktemp("chart") / "headrace"
    shutil.copytree(CHART, copied)
    for path in (copied / "templates").rglob("*.*"):
        text = LOOKUP.sub(r"dig \2 \3 dict $.Values.global.present", path.read_text("utf-8"))
        assert 'lookup "' not in text, path
        path.write_text(text, "utf-8")
    with helm.Chart.load(copied) as chart:

        def upgrade(objects: Objects, values: dict[str, Any]) -> Objects:
            present: dict[str, Any] = {}
            for each in objects:
                present.setdefault(each["kind"], {})[each["metadata"]["name"]] = each
            files = chart.render({**values, "global": {"present": present}}, name="demo", namespace="prod")
            documents = (yaml.load_all(text, LOADER) for path, text in files.items() if path.endswith(".yaml"))
            return [each for texts in documents for each in texts if each]

        yield upgrade


def _without(objects: Objects, kind: str, name: str) -> Objects:
    """The objects but for the one of a kind whose name ends with `name`."""
    gone = one(objects, kind, name)
    return [each for each in objects if each != gone]


def _pods(objects: Objects) -> dict[str, Any]:
    """The pod templates of the services and of etcd."""
    wanted = (("StatefulSet", "-broker"), ("Deployment", "-coordinator"), ("StatefulSet", "-etcd"))
    return {name: one(objects, kind, name)["spec"]["template"] for kind, name in wanted}


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({}, ""),
        ({}, "-broker"),
        ({}, "-etcd"),
        (MATRIX["open"], ""),
        (MATRIX["open"], "-broker"),
        (MATRIX["open"], "-etcd"),
        (MATRIX["users of etcd alone"], "-broker"),
        (MATRIX["identities observed"], "-broker"),
        ({"etcd": {"bundled": {"tls": False}}}, "-etcd"),
    ],
)
def test_an_upgrade_restarts_nothing_whatever_statefulset_is_made_again(
    render: Render, upgrade: Upgrade, values: dict[str, Any], gone: str
) -> None:
    """Larger volumes need a new StatefulSet (docs/guides/growing-volumes.md): by values without a word about identity
    or TLS it gets the pod template of the one that was deleted, as the other services tell."""
    before = render(values)
    left = _without(before, "StatefulSet", gone) if gone else before
    assert _pods(upgrade(left, {})) == _pods(before)


def test_the_guard_asks_the_cluster_whose_statefulset_is_made_again(render: Render, upgrade: Upgrade) -> None:
    """In the way in which the release is reached, and strictly: it is no first installation."""
    for values, variables in (
        (MATRIX["open"], set[str]()),
        ({}, {"HEADRACE_SECURITY_PROTOCOL", "HEADRACE_SSL_CAFILE", "HEADRACE_API_KEY_FILE"}),
    ):
        before = render(values)
        assert not select(upgrade(before, {}), "Job", "-scale-down")
        left = _without(before, "StatefulSet", "-broker")
        pod = one(upgrade(left, {}), "Job", "-scale-down")["spec"]["template"]
        (container,) = containers(pod)
        assert container["args"] == ["broker", "check-removal", "--from", "3"]
        assert {each["name"] for each in container["env"]} - {"HEADRACE_BOOTSTRAP_SERVERS", "HOME"} == variables
        assert not [each for each in pod["spec"]["volumes"] if each.get("secret", {}).get("optional")]


def _labels(objects: Objects) -> set[str]:
    """The values of the label `cluster` that the series of a release get."""
    return {
        rule["replacement"]
        for monitor in select(objects, "ServiceMonitor")
        for endpoint in monitor["spec"]["endpoints"]
        for rule in endpoint["relabelings"]
        if rule["targetLabel"] == "cluster"
    }


@pytest.mark.parametrize("values", [{}, {"cluster": "orders"}], ids=["unnamed", "named"])
def test_series_of_equally_named_releases_are_told_apart(render: Render, values: dict[str, Any]) -> None:
    """Alerts add up by the label `cluster`: with one label for two clusters the controller of one hides that the
    other has none."""
    given = {**MONITORS, **values}
    places = [("demo", "prod"), ("demo", "staging"), ("other", "prod")]
    found = [_labels(render(given, name=name, namespace=namespace)) for name, namespace in places]
    assert found == [{"prod/demo-headrace"}, {"staging/demo-headrace"}, {"prod/other-headrace"}]


def test_an_upgrade_keeps_the_label_of_series(render: Render, upgrade: Upgrade) -> None:
    """Silences, routes and dashboards name it; that of earlier charts, too."""
    before = render(MONITORS)
    for monitor in select(before, "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            (rule,) = (each for each in endpoint["relabelings"] if each["targetLabel"] == "cluster")
            rule["replacement"] = "demo-headrace"
    after = upgrade(before, MONITORS)
    assert _labels(after) == {"demo-headrace"}
    assert len(select(after, "ServiceMonitor")) == 3
    left = [each for each in before if each["kind"] != "ServiceMonitor"]
    assert _labels(upgrade(left, MONITORS)) == {"prod/demo-headrace"}


def test_a_release_with_an_etcd_of_yours_keeps_its_name(render: Render, upgrade: Upgrade) -> None:
    """A new one needs a name of its own (tests/deploy/matrix.py); one that runs without keeps that of its objects."""
    before = render({**ELSEWHERE, "cluster": "demo-headrace"})
    broker = one(upgrade(before, ELSEWHERE), "StatefulSet", "-broker")["spec"]["template"]
    assert broker == one(before, "StatefulSet", "-broker")["spec"]["template"]


APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}
STOPS_FIRST = {"maxUnavailable": 1, "maxSurge": 0}
STARTS_FIRST = {"maxUnavailable": 0, "maxSurge": 1}


@pytest.mark.parametrize(
    ("coordinator", "strategy"),
    [
        ({}, STARTS_FIRST),
        ({"podAntiAffinity": "none"}, STARTS_FIRST),
        ({"podAntiAffinity": "hard"}, STOPS_FIRST),
        ({"podAntiAffinity": "hard", "replicas": 1}, STOPS_FIRST),
        ({"podAntiAffinity": "hard", "affinity": {"nodeAffinity": {}}}, STARTS_FIRST),
        ({"affinity": APART}, STOPS_FIRST),
        ({"podTemplate": {"spec": {"affinity": APART}}}, STOPS_FIRST),
    ],
)
def test_a_rollout_of_coordinators_ends_where_each_node_has_one(
    render: Render, coordinator: dict[str, Any], strategy: dict[str, int]
) -> None:
    """A pod that must not share a node, and has none left, would wait for ever for one that stops after it."""
    spec = one(render({"coordinator": coordinator}), "Deployment", "-coordinator")["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": strategy}
