"""What a real API server says to the chart's objects, before any pod runs: kinds, fields, admission, and look-ups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.records import until
from tests.deploy.matrix import MATRIX, REFUSED
from tests.kubernetes.inside import CHART, DEFINITIONS
from tests.kubernetes.machines import DOMAIN, Machines
from tests.kubernetes.release import CommandError, Release, run

NAMESPACE = "checks"
MONITOR = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "ServiceMonitor",
    "metadata": {"name": "wrong"},
    "spec": {"selector": {}, "endpoints": [{"prt": "metrics"}]},
}


@pytest.fixture(scope="module")
def release(machines: Machines) -> Iterator[Release]:
    """A namespace where nothing is ever installed; the kinds of Prometheus' operator and of cert-manager are known."""
    release = Release("log", NAMESPACE)
    run("kubectl", "create", "namespace", "monitoring")  # Where one set of values puts its dashboards.
    run("kubectl", "label", "namespace", NAMESPACE, "pod-security.kubernetes.io/warn=restricted")
    definitions = sorted(Path(os.environ[DEFINITIONS]).glob("*.yaml"))
    for path in definitions:
        run("kubectl", "create", "--filename", str(path))
    kinds = [yaml.safe_load(path.read_text("utf-8"))["spec"]["names"]["plural"] for path in definitions]
    assert len(kinds) == 4
    for kind in kinds:
        until(lambda kind=kind: _is_served(kind), f"{kind} are served")
    yield release
    run("kubectl", "delete", "namespace", NAMESPACE, "monitoring", "--wait=false")


def _is_served(kind: str) -> bool:
    try:
        run("kubectl", "get", kind)
    except CommandError:
        return False
    return True


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_every_object_is_taken(release: Release, values: dict[str, Any], tmp_path: Path) -> None:
    """All fields are known, none is dropped, and no pod template offends the restricted level."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values), "utf-8")
    text = run("helm", "--namespace", NAMESPACE, "template", "log", str(CHART), "--values", str(file))
    objects = [each for each in yaml.safe_load_all(text) if each]
    for each in objects:
        if not each["kind"].startswith("ClusterRole"):
            each["metadata"].setdefault("namespace", NAMESPACE)
    command = ("kubectl", "apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "--filename=-")
    said = run(*command, stdin=yaml.safe_dump_all(objects))
    assert said.count("(server dry run)") == len(objects)


def test_definitions_are_strict(release: Release) -> None:
    """The server would refuse a wrong field of a kind that is not its own: what the test above relies on."""
    with pytest.raises(CommandError, match=re.escape('unknown field "spec.endpoints[0].prt"')):
        run("kubectl", "apply", "--dry-run=server", "--filename", "-", stdin=yaml.safe_dump(MONITOR))


@pytest.mark.parametrize(("values", "words"), REFUSED[::4], ids=[words for _, words in REFUSED[::4]])
def test_wrong_values_install_nothing(release: Release, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Each with its sentence; a few of those that tests/deploy tries without a server."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values), "utf-8")
    with pytest.raises(CommandError) as caught:
        release.helm("install", "--values", str(file))
    assert words.replace('"', '\\"') in str(caught.value) or words in str(caught.value)
    assert release.objects("all") == []


def test_a_missing_secret_is_said_in_one_sentence(release: Release) -> None:
    """`helm install` looks, and nothing is installed; with the secret it would be."""
    tls = ("--set", "tls.enabled=true,tls.secretName=log-tls")
    with pytest.raises(CommandError) as caught:
        release.helm("install", *tls)
    sentence = f"there is no secret log-tls in namespace {NAMESPACE}: make it first, with tls.crt, tls.key and ca.crt"
    assert sentence in str(caught.value)
    assert release.objects("all") == []
    files = [f"--from-literal={name}=x" for name in ("tls.crt", "tls.key", "ca.crt")]
    release.kubectl("create", "secret", "generic", "log-tls", *files)
    release.helm("install", *tls, "--dry-run=server")


def test_a_first_sync_passes_the_guard(release: Release) -> None:
    """What a tool that only renders runs before there is anything: no secret, no Service, and a job that says so."""
    tls = "tls.enabled=true,tls.certManager.enabled=true,tls.certManager.issuerRef.name=ca"
    guard = ("--set", tls, "--show-only", "templates/scale-down-guard.yaml")
    release.kubectl("apply", "--filename=-", stdin=run("helm", "template", "log", str(CHART), *guard, "-n", NAMESPACE))
    job = "job/log-headrace-scale-down"
    release.kubectl("wait", "--for=condition=complete", job, "--timeout=120s")
    assert f"DNS knows no log-headrace.{NAMESPACE}.svc.{DOMAIN}: nothing is" in release.kubectl("logs", job)
    release.kubectl("delete", job)
