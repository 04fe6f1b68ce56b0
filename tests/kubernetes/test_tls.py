"""A release that speaks TLS, by a secret made as the guide says."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest
from headrace_devcluster.certificates import Authority

from tests.containers.records import until
from tests.kubernetes.conftest import Figure
from tests.kubernetes.machines import DOMAIN, Machines
from tests.kubernetes.release import Release

pytestmark = pytest.mark.timeout(600)

NAMESPACE = "safe"
VALUES = {
    "broker": {"replicas": 1},
    "coordinator": {"replicas": 1},
    "tls": {"enabled": True, "secretName": "safe-tls", "clientAuth": "required"},
    "networkPolicy": {"enabled": True},
}
SERVICE = f"safe-headrace.{NAMESPACE}.svc.{DOMAIN}"
BROKER_PORT = 7181


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs."""
    return Authority(tmp_path_factory.mktemp("certificates"), "log")


@pytest.fixture(scope="module")
def release(machines: Machines, authority: Authority, figure: Figure) -> Iterator[Release]:
    """One broker and one coordinator with a certificate for the names of the Services, and policies for all."""
    release = Release("safe", NAMESPACE)
    renew(release, authority, "first")
    release.helm("install", "--wait", "--timeout=10m", values=VALUES)
    yield release
    release.helm("uninstall", "--wait")
    release.kubectl("delete", "pvc", "--all", "--wait=false")


def renew(release: Release, authority: Authority, name: str) -> None:
    """The secret with a new certificate, in place of the one that is there."""
    paths = authority.issue(name, hosts=[SERVICE, f"*.safe-headrace-broker-headless.{NAMESPACE}.svc.{DOMAIN}"])
    files = {"tls.crt": paths.cert_file, "tls.key": paths.key_file, "ca.crt": paths.ca_file}
    secret = release.kubectl(
        "create", "secret", "generic", "safe-tls", "--dry-run=client", "--output=yaml",
        *(f"--from-file={key}={path}" for key, path in files.items()),
    )  # fmt: skip
    release.kubectl("apply", "--filename=-", stdin=secret)


def test_the_test_pod_speaks_tls(release: Release, figure: Figure) -> None:
    """With a certificate, since clients must show one; nothing was restarted until all was up."""
    assert "one record was produced with acks=all and consumed" in release.helm("test", "--logs")
    assert set(release.restarts().values()) == {0}


def test_a_renewed_secret_is_taken_up_without_a_restart(release: Release, authority: Authority, figure: Figure) -> None:
    """Kubernetes brings it into the pods, and the services show the new certificate to whoever connects then."""
    (pod,) = release.objects("pods", "--selector=app.kubernetes.io/component=broker")
    address = (pod["status"]["podIP"], BROKER_PORT)
    before = ssl.get_server_certificate(address)
    renew(release, authority, "second")
    seconds = until(lambda: ssl.get_server_certificate(address) != before, "the new certificate is shown")
    figure("a renewed certificate is shown after", f"{seconds:.0f} s")
    assert set(release.restarts().values()) == {0}
    assert "one record was produced with acks=all and consumed" in release.helm("test", "--logs")
