"""A release that speaks TLS, by a secret made as the guide says."""

from __future__ import annotations

import json
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
    "identity": {"posture": "open"},
    "tls": {"enabled": True, "secretName": "safe-tls", "clientAuth": "required"},
    "networkPolicy": {"enabled": True, "clientsFrom": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]},  # This machine, too.
}
SERVICE = f"safe-headrace.{NAMESPACE}.svc.{DOMAIN}"
BROKER_PORT, COORDINATOR_PORT = 7181, 7170
# A client inside, by the SDK that is in the image: which process answers where, and what a group of one is given.
CLIENT = """
import json, sys, headrace
files = {name: f"/etc/headrace-tls/{file}" for name, file in
         (("ssl_cafile", "ca.crt"), ("ssl_certfile", "tls.crt"), ("ssl_keyfile", "tls.key"))}
settings = {"bootstrap_servers": sys.argv[1], "security_protocol": "SSL", **files}
with headrace.Admin(**settings) as admin:
    admin.create_topic("copied", partitions=3, replication_factor=3, config={"min_insync_replicas": 3})
    with headrace.Producer(acks="all", **settings) as producer:
        for number in range(300):
            producer.send("copied", b"%d" % number, key=b"%d" % number)
    found = {each.name: each.address for each in admin.describe_processes()}
read = []
with headrace.Consumer("copied", group_id="readers", auto_offset_reset="earliest", **settings) as consumer:
    while len(read) < 300:
        read += [int(record.value) for record in consumer.poll(timeout=1.0)]
print(json.dumps({"processes": found, "read": sorted(read)}))
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs."""
    return Authority(tmp_path_factory.mktemp("certificates"), "log")


@pytest.fixture(scope="module")
def release(machines: Machines, authority: Authority, figure: Figure) -> Iterator[Release]:
    """Three brokers and two coordinators with a certificate for the names of the guide, and policies for all."""
    release = Release("safe", NAMESPACE)
    renew(release, authority, "first")
    release.helm("install", "--wait", "--timeout=10m", values=VALUES)
    yield release
    release.helm("uninstall", "--wait")
    release.kubectl("delete", "pvc", "--all", "--wait=false")


def headless(component: str) -> str:
    """The domain of the pods of a component."""
    return f"safe-headrace-{component}-headless.{NAMESPACE}.svc.{DOMAIN}"


def renew(release: Release, authority: Authority, name: str) -> None:
    """The secret with a new certificate, in place of the one that is there."""
    pods = [f"*.{headless(component)}" for component in ("broker", "coordinator")]
    paths = authority.issue(name, hosts=[SERVICE, *pods])
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


def test_each_process_has_a_name_of_its_own(release: Release, figure: Figure) -> None:
    """Replicas are copied over TLS to all three brokers, groups are served, and no coordinator takes another's name."""
    said = release.kubectl(
        "exec", "deploy/safe-headrace-coordinator", "--", "python", "-c", CLIENT, f"{SERVICE}:{COORDINATOR_PORT}"
    )
    found = json.loads(said.splitlines()[-1])
    assert found["read"] == list(range(300))
    pods = release.objects("pods", "--selector=app.kubernetes.io/component=coordinator")
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"].replace(".", "-") for pod in pods}
    told = {f"coordinator-{pod}": f"{address}.{headless('coordinator')}" for pod, address in addresses.items()}
    told |= {f"broker-{number}": f"safe-headrace-broker-{number}.{headless('broker')}" for number in range(3)}
    assert {name: address.rpartition(":")[0] for name, address in found["processes"].items()} == told
    assert len(pods) == 2


def test_a_renewed_secret_is_taken_up_without_a_restart(release: Release, authority: Authority, figure: Figure) -> None:
    """Kubernetes brings it into the pods, and the services show the new certificate on new connections."""
    pod, *_ = release.objects("pods", "--selector=app.kubernetes.io/component=broker")
    address = (pod["status"]["podIP"], BROKER_PORT)
    before = ssl.get_server_certificate(address)
    renew(release, authority, "second")
    seconds = until(lambda: ssl.get_server_certificate(address) != before, "the new certificate is shown")
    figure("a renewed certificate is shown after", f"{seconds:.0f} s")
    assert set(release.restarts().values()) == {0}
    assert "one record was produced with acks=all and consumed" in release.helm("test", "--logs")
