"""Every expression of the dashboards against a live Prometheus that scrapes a live cluster under load: it has data."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import prometheus_client
import pytest
import yaml
from headrace.metrics import ClientCollector
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.ports import ReservedPort

from deploy.grafana.dashboards import DASHBOARDS
from deploy.grafana.panels import NOTHING
from tests.deploy.conftest import ROOT
from tests.deploy.test_dashboards import plain

SECONDS = 60.0
TOPIC = "watched"


@pytest.fixture(scope="module")
def prometheus_program() -> str:
    """Prometheus itself, where there is one."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip("prometheus is not installed (apt install prometheus): dashboards were NOT run against live data")
    return found


@pytest.fixture(scope="module")
def collector() -> ClientCollector:
    """The metrics of the load's producer and consumer."""
    return ClientCollector()


@pytest.fixture(scope="module")
def application(collector: ClientCollector) -> Iterator[str]:
    """The address of the load's metrics."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def loaded_cluster(prometheus_program: str, collector: ClientCollector) -> Iterator[LocalCluster]:
    """Three brokers with metrics, a producer that does not stop, and a group that reads."""
    spec = LocalClusterSpec(
        broker_settings={"metrics_listen": "127.0.0.1:0"},
        coordinator_settings={"metrics_listen": "127.0.0.1:0", "lag_interval_ms": 1_000},
    )
    with LocalCluster(spec) as cluster:
        stop = threading.Event()
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=3, replication_factor=3, config={"durability": "fsync"})
            admin.create_topic("rows", partitions=3, config={"cleanup_policy": "compact", "table": "yes"})
        workers = [
            threading.Thread(target=work, args=(cluster.bootstrap_servers, stop, collector), daemon=True)
            for work in (_produce, _consume, _look_up)
        ]
        for worker in workers:
            worker.start()
        yield cluster
        stop.set()
        for worker in workers:
            worker.join(30)


def _produce(servers: str, stop: threading.Event, collector: ClientCollector) -> None:
    with headrace.Producer(bootstrap_servers=servers, return_futures=False) as producer:
        collector.watch(producer, "writer")
        while not stop.wait(0.05):
            for number in range(20):
                producer.send(TOPIC, b"%d" % number, key=b"%d" % number)


def _consume(servers: str, stop: threading.Event, collector: ClientCollector) -> None:
    settings = {"group_id": "watchers", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 500}
    with headrace.Consumer(TOPIC, bootstrap_servers=servers, **settings) as consumer:
        collector.watch(consumer, "watcher")
        while not stop.is_set():
            consumer.poll(timeout=0.2)


def _look_up(servers: str, stop: threading.Event, _: ClientCollector) -> None:
    with headrace.Table("rows", bootstrap_servers=servers) as table:
        while not stop.wait(0.05):
            table.put("row", {"column": "value"})
            for key in ("row", "none"):
                table.get(key)


@pytest.fixture(scope="module")
def prometheus(
    prometheus_program: str, loaded_cluster: LocalCluster, application: str, tmp_path_factory: Any
) -> Iterator[str]:
    """The address of a Prometheus that scrapes each service of the cluster, and its load, every second."""
    directory: Path = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text("utf-8"))
    targets = {
        "headrace-broker": {broker.name: broker.metrics_address for broker in loaded_cluster.brokers},
        "headrace-coordinator": {each.name: each.metrics_address for each in loaded_cluster.coordinators},
        "headrace-etcd": {"etcd": loaded_cluster.etcd.endpoint},
    }
    targets["headrace-broker-detail"] = targets["headrace-broker"]
    targets["headrace-coordinator-detail"] = targets["headrace-coordinator"]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    del config["alerting"]
    config["rule_files"] = [str(ROOT / "deploy" / "helm" / "headrace" / "files" / "rules" / "headrace.yaml")]
    for job in config["scrape_configs"]:
        job.pop("scrape_interval", None)
        job.pop("authorization", None)  # Metrics of this cluster need no identity.
        del job["relabel_configs"]  # All are on one host here.
        job["static_configs"] = [
            {"targets": [address], "labels": {"cluster": "headrace", "instance": name}}
            for name, address in targets[job["job_name"]].items()
        ]
    config["scrape_configs"].append({"job_name": "application", "static_configs": [{"targets": [application]}]})
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = ReservedPort()
    address = f"127.0.0.1:{port}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                prometheus_program,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield address
    process.kill()
    process.wait()


def query(address: str, expression: str) -> list[dict[str, Any]]:
    """What Prometheus answers now; nothing while it does not answer yet."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except OSError:
        return []


def test_every_panel_has_data(prometheus: str) -> None:
    """Each query of each panel, but those that a healthy cluster has no data for; those at least are understood."""
    waiting = {
        (board.title, panel.title, each.expr): panel.without_data
        for board in DASHBOARDS
        for row in board.rows
        for panel in row.panels
        for each in panel.queries
    }
    assert len(waiting) > 100
    must = {key for key, without_data in waiting.items() if without_data != NOTHING}
    deadline = time.monotonic() + SECONDS
    while must and time.monotonic() < deadline:
        must = {key for key in must if not query(prometheus, plain(key[2]))}
        time.sleep(0.5)
    assert sorted(must) == []


def test_no_alert_fires_on_a_healthy_cluster(prometheus: str) -> None:
    """The rules are loaded, each evaluates, and none of the grave ones fires."""
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/rules", timeout=10) as answer:
        rules = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
    assert len(rules) >= 25
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_every_page_of_metrics_passes_the_linter(loaded_cluster: LocalCluster) -> None:
    """`promtool check metrics` has nothing against names, types and help of either page of either service."""
    promtool = shutil.which("promtool")
    assert promtool is not None, "Prometheus is installed without its promtool"
    for part, path in itertools.product(loaded_cluster.parts, ("/metrics", "/metrics/detail")):
        if part in loaded_cluster.coordinators and path == "/metrics/detail":
            continue
        with urllib.request.urlopen(f"http://{part.metrics_address}{path}", timeout=10) as answer:
            page = answer.read()
        done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), f"{part.name}{path}"
