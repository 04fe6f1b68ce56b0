"""The guide's commands that replace the cluster's secret, as the chart and docker-compose.yml run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from headrace_devcluster.cluster import LocalCluster

from tests.deploy.conftest import ROOT, Render, containers, one
from tests.deploy.matrix import MATRIX

ENTRY_POINT = ROOT / "deploy" / "docker" / "headrace_container.py"
STEPS = [
    "the new secret is accepted",
    "the new secret is used, and the old one is still accepted",
    "the old secret is refused",
]


def guide_command(program: str) -> list[str]:
    """Return the words of the command in the guide that begins with `program`."""
    guide = (ROOT / "docs" / "guides" / "security.md").read_text("utf-8")
    (line,) = re.findall(rf"^{program} .* replace-secret.*$", guide, re.MULTILINE)
    return shlex.split(line)


def replace_secret(arguments: list[str], environment: dict[str, str], cluster: LocalCluster) -> list[str]:
    """Run what the image's entry point runs in a container, with the etcd of `cluster`; return its steps."""
    assert arguments[0] == "headrace-container"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {
        "PATH": path,
        "HEADRACE_COORDINATOR_ETCD_ENDPOINTS": cluster.etcd_endpoints,
        "HEADRACE_COORDINATOR_CLUSTER": "headrace",
    }
    command = [sys.executable, str(ENTRY_POINT), *arguments[1:], "--wait", "0"]
    done = subprocess.run(command, env=environment | own, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split(";")[0] for line in done.stdout.splitlines()]


def test_the_command_runs_in_a_pod_of_the_chart(
    render: Render, own_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    """With the file of settings and the variables of a coordinator's pod, in the deployment that the guide names."""
    kubectl, verb, deployment, _, *arguments = guide_command("kubectl")
    objects = render(MATRIX["open"], name="log")
    assert (kubectl, verb) == ("kubectl", "exec")
    pod = one(objects, "Deployment", "-coordinator")
    assert deployment == f"deploy/{pod['metadata']['name']}"
    (container,) = containers(pod["spec"]["template"])
    mounts = [each["mountPath"] for each in container["volumeMounts"]]
    assert "/etc/headrace" in mounts
    (settings,) = [each["data"] for each in objects if "coordinator.toml" in each.get("data", {})]
    (tmp_path / "coordinator.toml").write_text(settings["coordinator.toml"])
    arguments = [each.replace("/etc/headrace", str(tmp_path)) for each in arguments]
    given = {each["name"]: each.get("value") for each in container["env"]}
    environment = {name: value for name, value in given.items() if name.startswith("HEADRACE_COORDINATOR_") and value}
    environment["HEADRACE_COORDINATOR_COORDINATOR_ID"] = "log-0"  # The name of the pod.
    assert replace_secret(arguments, environment, own_cluster(brokers=1)) == STEPS


def test_the_command_runs_in_a_container_of_compose(own_cluster: Callable[..., LocalCluster]) -> None:
    """With the variables of the service that the guide names; etcd of this test has no users."""
    _, _, _, service, *arguments = guide_command("docker compose")
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    given = services[service]["environment"]
    environment = {
        name: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", str(value))
        for name, value in given.items()
        if name.startswith("HEADRACE_COORDINATOR_") and "ETCD" not in name
    }
    assert replace_secret(arguments, environment, own_cluster(brokers=1)) == STEPS
