"""Metrics of a cluster that requires identities: Prometheus has a key, probes have none, and a deleted key ends it."""

import time
import urllib.error
import urllib.request

from headrace import Admin
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.identity.api_keys import make_api_key

WAIT_SECONDS = 30
METRICS = {"metrics_listen": "127.0.0.1:0"}
ANYWHERE = {"metrics_listen": "0.0.0.0:0"}


def status(part, path, key=""):
    request = urllib.request.Request(f"http://{part.metrics_address}{path}")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def until(part, key, expected):
    """Wait until a process has heard of a change."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := status(part, "/metrics", key)) != expected:
        assert time.monotonic() < deadline, (part.name, found)
        time.sleep(0.05)


def test_metrics_need_the_key_of_a_monitor(tmp_path):
    """The key in `monitor_api_key_file` reads the pages of brokers and coordinators; without it, and for a user
    without the right, they are refused. Health is served to all. The doctor is told what lacks TLS beyond loopback.
    """
    key = make_api_key()
    (tmp_path / "monitor.key").write_text(key)
    settings = {**METRICS, "monitor_api_key_file": tmp_path / "monitor.key"}
    spec = LocalClusterSpec(
        brokers=1, coordinators=1, identity=True, broker_settings=ANYWHERE, coordinator_settings=settings
    )
    with LocalCluster(spec) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers, **cluster.client_settings) as admin:
            admin.create_user("ada")
            other = admin.create_api_key("ada").secret
            for part in cluster.parts:
                until(part, key, 200)
                until(part, other, 403)
                for path in ("/metrics", "/metrics/detail"):
                    assert [status(part, path), status(part, path, key)] == [401, 200]
                assert status(part, "/health/readiness") == 200
            found = {each.name: each.open_access for each in admin.describe_processes()}
            assert found == {"coordinator-a": (), "broker-1": ("metrics_without_tls",)}
            admin.delete_user("monitor")
            for part in cluster.parts:
                until(part, key, 401)
        logs = "".join(part.log_file.read_text() for part in cluster.parts)
        assert key not in logs
