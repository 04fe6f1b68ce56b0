"""Where the files of a deployment are, and Helm in this process."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "headrace"

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, which every wheel of PyYAML has, is ten times as fast."""

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]


@pytest.fixture(scope="session")
def helm() -> Any:
    """Helm's own Go code as a library: no program, no cluster."""
    return pytest.importorskip(
        "helm_python", reason="helm-python-sdk has no build for this platform: chart NOT checked"
    )


@pytest.fixture(scope="session")
def chart(helm: Any) -> Iterator[Any]:
    """The chart, loaded once."""
    with helm.Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def render(chart: Any) -> Render:
    """`render({"broker": {"replicas": 5}})`: the objects that Kubernetes would be given, hooks and tests included."""

    rendered: dict[str, Objects] = {}

    def render(values: dict[str, Any] | None = None, *, name: str = "demo", namespace: str = "prod") -> Objects:
        key = json.dumps([values, name, namespace])
        if key not in rendered:
            files = chart.render(values or {}, name=name, namespace=namespace)
            loaded = (yaml.load_all(files[path], LOADER) for path in sorted(files) if path.endswith(".yaml"))
            rendered[key] = [found for objects in loaded for found in objects if found]
        return copy.deepcopy(rendered[key])

    return render


def select(objects: Objects, kind: str, name: str = "") -> Objects:
    """The objects of a kind, whose names end with `name`."""
    return [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]


def one(objects: Objects, kind: str, name: str = "") -> dict[str, Any]:
    """The one object of a kind whose name ends with `name`."""
    (found,) = select(objects, kind, name)
    return found


def pod_templates(objects: Objects) -> list[tuple[str, dict[str, Any]]]:
    """(kind/name, pod template) of everything that makes pods, and of pods."""
    found = []
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in ("StatefulSet", "Deployment", "Job"):
            found.append((where, each["spec"]["template"]))
        elif each["kind"] == "CronJob":
            found.append((where, each["spec"]["jobTemplate"]["spec"]["template"]))
        elif each["kind"] == "Pod":
            found.append((where, each))
    return found


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    """Init containers and containers of a pod template."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]
