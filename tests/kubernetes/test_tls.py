"""A release that speaks TLS, by a secret made as the guide says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace_devcluster.certificates import Authority

from tests.kubernetes.conftest import Figure
from tests.kubernetes.machines import DOMAIN, Machines
from tests.kubernetes.release import Release

pytestmark = pytest.mark.timeout(600)

VALUES = (
    "--set=broker.replicas=1,coordinator.replicas=1",
    "--set=tls.enabled=true,tls.secretName=safe-tls,tls.clientAuth=required",
    "--set=networkPolicy.enabled=true",
)
NAMESPACE = "safe"
SERVICE = f"safe-headrace.{NAMESPACE}.svc.{DOMAIN}"


@pytest.fixture(scope="module")
def release(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """One broker and one coordinator with a certificate for the names of the Services."""
    release = Release("safe", NAMESPACE)
    certificates = tmp_path_factory.mktemp("certificates")
    make_secret(release, Authority(certificates, "log"), "create")
    release.helm("install", *VALUES, "--wait", "--timeout=10m")
    yield release
    release.helm("uninstall", "--wait")
    release.kubectl("delete", "pvc", "--all", "--wait=false")


def make_secret(release: Release, authority: Authority, name: str) -> None:
    """The secret with a new certificate, in place of the one that is there."""
    hosts = [SERVICE, f"*.safe-headrace-broker-headless.{NAMESPACE}.svc.{DOMAIN}"]
    paths = authority.issue(name, hosts=hosts)
    files = {"tls.crt": paths.cert_file, "tls.key": paths.key_file, "ca.crt": paths.ca_file}
    secret = release.kubectl(
        "create", "secret", "generic", "safe-tls", "--dry-run=client", "--output=yaml",
        *(f"--from-file={key}={path}" for key, path in files.items()),
    )  # fmt: skip
    release.kubectl("apply", "--filename=-", stdin=secret)


def test_the_test_pod_speaks_tls(release: Release, figure: Figure) -> None:
    """With a certificate of its own, since clients must show one; and none is served without TLS."""
    assert "one record was produced with acks=all and consumed" in release.helm("test", "--logs")
    assert set(release.restarts().values()) == {0}
