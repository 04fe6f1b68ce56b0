"""Workers of mirrors in the chart: off unless asked for, what they run, as whom, and what Prometheus reads of them."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.cli.main import app
from typer.main import get_command

from tests.deploy.conftest import Render, one, select
from tests.deploy.matrix import MATRIX

NONE = ("defaults", "open", "mirrors in a recovery")


def _container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = one(objects, "Deployment", "-mirror")["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def _environment(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in container["env"]}


@pytest.mark.parametrize("name", NONE)
def test_no_worker_runs_unless_asked_for(render: Render, name: str) -> None:
    """Nothing of it is rendered; nor in a recovery, where no service accepts it."""
    for each in render(MATRIX[name]):
        assert not each["metadata"]["name"].endswith(("-mirror", "-mirror-headless"))


@pytest.mark.parametrize("name", [name for name in MATRIX if name.startswith("mirrors") and name not in NONE])
def test_workers_run_a_command_that_exists(render: Render, name: str) -> None:
    """The command line takes the arguments; each worker reports under its pod's name."""
    container = _container(render(MATRIX[name]))
    words = [each.replace("$(HEADRACE_POD_NAME)", "mirror-1") for each in container["args"]]
    group, command, *rest = words
    found = get_command(app).commands[group].commands[command]  # type: ignore[attr-defined]
    taken = found.make_context(command, rest).params
    assert (taken["worker_id"], taken["metrics_host"], taken["metrics_port"]) == ("mirror-1", "0.0.0.0", 9464)
    is_console = name == "mirrors, open"
    assert (taken["log_format"].value, taken["verbose"]) == (("text", True) if is_console else ("json", False))


def test_options_and_names_are_passed_on(render: Render) -> None:
    """Names of mirrors first, the values' own options last."""
    args = _container(render(MATRIX["everything"]))["args"]
    assert (args[:3], args[-1]) == (["mirror", "run", "west"], "--timeout=30")


def test_workers_have_a_key_of_their_own(render: Render) -> None:
    """Not the administrator's, nor the key of the services' certificate; sources' files have a directory each."""
    objects = render(MATRIX["everything"])
    spec = one(objects, "Deployment", "-mirror")["spec"]["template"]["spec"]
    volumes = {each["name"]: each["secret"] for each in spec["volumes"] if "secret" in each}
    assert {name: each["secretName"] for name, each in volumes.items()} == {
        "ca": "a-name-of-thirty-one-characters-tls",
        "api-key": "mirror-key",
        "source-west": "west-credentials",
    }
    assert volumes["ca"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    container = _container(objects)
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"] if each.get("readOnly")}
    assert mounts == {
        "ca": "/etc/headrace-ca",
        "api-key": "/etc/headrace-mirror",
        "source-west": "/etc/headrace-sources/west",
    }
    environment = _environment(container)
    assert environment["HEADRACE_API_KEY_FILE"] == "/etc/headrace-mirror/api-key"
    assert environment["HEADRACE_SSL_CAFILE"] == "/etc/headrace-ca/ca.crt"
    assert environment["HEADRACE_SECURITY_PROTOCOL"] == "SSL"


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("mirrors, open", {}),
        (
            "mirrors, keys in plain text",
            {
                "HEADRACE_API_KEY_FILE": "/etc/headrace-mirror/api-key",
                "HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS": "true",
            },
        ),
        (
            "mirrors, certificates of clients",
            {
                "HEADRACE_API_KEY_FILE": "/etc/headrace-mirror/api-key",
                "HEADRACE_SECURITY_PROTOCOL": "SSL",
                "HEADRACE_SSL_CAFILE": "/etc/headrace-ca/ca.crt",
                "HEADRACE_SSL_CERTFILE": "/etc/headrace-client-tls/tls.crt",
                "HEADRACE_SSL_KEYFILE": "/etc/headrace-client-tls/tls.key",
            },
        ),
    ],
)
def test_workers_connect_as_the_release_requires(render: Render, name: str, variables: dict[str, str]) -> None:
    """To the release's own coordinators: with TLS, a key and a certificate where they are required."""
    environment = _environment(_container(render(MATRIX[name])))
    always = {"HEADRACE_BOOTSTRAP_SERVERS": "demo-headrace.prod.svc.cluster.local:7170", "HOME": "/tmp"}
    assert environment == {"HEADRACE_POD_NAME": None, **always, **variables}


def test_workers_are_probed_and_evicted_one_by_one(render: Render) -> None:
    """Health of their own; one worker alone may be evicted, or a node could not be drained."""
    objects = render(MATRIX["mirrors"])
    container = _container(objects)
    for name in ("liveness", "readiness"):
        assert container[f"{name}Probe"]["httpGet"] == {"path": f"/health/{name}", "port": "metrics"}
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    assert one(objects, "PodDisruptionBudget", "-mirror")["spec"]["maxUnavailable"] == 1
    assert not select(render(MATRIX["mirrors, open"]), "PodDisruptionBudget", "-mirror")


def test_prometheus_reads_workers_without_a_key(render: Render) -> None:
    """They serve plain HTTP, and no series of single partitions elsewhere."""
    monitor = one(render(MATRIX["everything"]), "ServiceMonitor", "-mirror")["spec"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert not {"scheme", "tlsConfig", "authorization"} & set(endpoint)
    assert {"targetLabel": "job", "replacement": "headrace-mirror"} in endpoint["relabelings"]


@pytest.mark.parametrize(("name", "there"), [("mirrors", True), ("defaults", False)])
def test_absent_workers_raise_an_alert_where_there_should_be_some(render: Render, name: str, there: bool) -> None:
    """Where no mirror worker is asked for, none is missed."""
    values = {**MATRIX[name], "monitoring": {"prometheusRule": {"enabled": True}}}
    groups = one(render(values), "PrometheusRule")["spec"]["groups"]
    assert ("HeadraceMirrorAbsent" in [rule["alert"] for group in groups for rule in group["rules"]]) is there
