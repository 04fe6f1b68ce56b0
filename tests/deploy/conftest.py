"""Where the files of a deployment are, and Helm in this process."""

from __future__ import annotations

import copy
import functools
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
Files = Callable[..., dict[str, str]]


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
def files(chart: Any) -> Files:
    """`files({"broker": {"replicas": 5}})`: the texts that the templates give, of the first time that it was asked."""

    @functools.cache
    def rendered(values: str, name: str, namespace: str) -> dict[str, str]:
        found: dict[str, str] = chart.render(json.loads(values), name=name, namespace=namespace)
        return found

    def files(values: dict[str, Any] | None = None, *, name: str = "demo", namespace: str = "prod") -> dict[str, str]:
        return rendered(json.dumps(values or {}), name, namespace)

    return files


@pytest.fixture(scope="session")
def render(files: Files) -> Render:
    """The same as the objects that Kubernetes would be given, hooks and tests included."""

    loaded: dict[int, Objects] = {}

    def render(*arguments: Any, **named: Any) -> Objects:
        texts = files(*arguments, **named)
        if id(texts) not in loaded:
            documents = (yaml.load_all(texts[path], LOADER) for path in sorted(texts) if path.endswith(".yaml"))
            loaded[id(texts)] = [each for objects in documents for each in objects if each]
        return copy.deepcopy(loaded[id(texts)])

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
