"""A release with the chart's own values: closed, with certificates, secrets and users of etcd that the chart makes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.matrix import OPEN
from tests.kubernetes.conftest import Figure
from tests.kubernetes.inside import CHART
from tests.kubernetes.machines import Machines
from tests.kubernetes.release import Release, run

pytestmark = pytest.mark.timeout(900)

TIMEOUT = "--timeout=10m"
NAMESPACE = "closed"
READ_WITHOUT_A_USER = """\
import os, ssl, urllib.error, urllib.request
variable = "HEADRACE_COORDINATOR_ETCD_{}".format
address = os.environ[variable("ENDPOINTS")].split(",")[0].removeprefix("https://")
context = ssl.create_default_context(cafile=os.environ[variable("TLS_CA_FILE")])
try:
    urllib.request.urlopen(f"https://{address}/v3/kv/range", b'{"key": "eA=="}', 20, context=context)
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""


@pytest.fixture(scope="module")
def release(machines: Machines) -> Iterator[Release]:
    """`helm install` with nothing else."""
    release = Release("closed", NAMESPACE)
    release.helm("install", "--wait", TIMEOUT)
    yield release
    release.helm("uninstall")


def test_a_closed_release_passes_its_own_test(release: Release, figure: Figure) -> None:
    """`helm test` sends a record with the administrator's key over TLS; nothing was restarted; etcd has its users."""
    assert "one record was produced" in release.helm("test", "--logs")
    assert set(release.restarts().values()) == {0}
    etcd = ("exec", f"{release.fullname}-etcd-0", "--", "etcdctl")
    assert release.kubectl(*etcd, "user", "list").split() == ["headrace", "root"]
    coordinator = ("exec", f"deploy/{release.fullname}-coordinator", "--", "python", "-c")
    assert "user name is empty" in release.kubectl(*coordinator, READ_WITHOUT_A_USER)


def test_an_upgrade_keeps_secrets_and_restarts_nothing(release: Release) -> None:
    """The same keys, certificates and passwords, also of an upgrade that changes nothing else."""
    before = _secrets(release)
    pods = {each["metadata"]["uid"] for each in release.objects("pods")}
    release.helm("upgrade", "--reset-then-reuse-values", "--wait", TIMEOUT)
    assert _secrets(release) == before
    assert pods <= {each["metadata"]["uid"] for each in release.objects("pods")}


def test_an_upgrade_of_an_open_release_keeps_it_open(machines: Machines) -> None:
    """Values without a word about identity, TLS or etcd's users: an upgrade changes none of them."""
    namespace = "once-open"
    was_open = Release("open", namespace)
    text = run("helm", "--namespace", namespace, "template", "open", str(CHART), "--values=-", stdin=json.dumps(OPEN))
    kept = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "StatefulSet"]
    for each in kept:
        each["spec"]["replicas"] = 0
        labels = {"app.kubernetes.io/managed-by": "Helm"}
        annotations = {"meta.helm.sh/release-name": "open", "meta.helm.sh/release-namespace": namespace}
        each["metadata"] = {**each["metadata"], "namespace": namespace, "annotations": annotations}
        each["metadata"]["labels"] |= labels
    run("kubectl", "apply", "--filename=-", stdin=yaml.safe_dump_all(kept))
    rendered = was_open.helm("install", "--dry-run=server")
    assert re.search(r"HEADRACE_BROKER_POSTURE\s+value: open", rendered)
    for closed in ("TLS_CERT_FILE", "ETCD_USER", "https://0.0.0.0", "etcd-auth"):
        assert closed not in rendered
    run("kubectl", "delete", "namespace", namespace, "--wait=false")


def _secrets(release: Release) -> dict[str, dict[str, str]]:
    names = [f"{release.fullname}-{each}" for each in ("admin", "monitor", "etcd", "tls")]
    found = {each["metadata"]["name"]: each["data"] for each in release.objects("secrets")}
    return {name: found[name] for name in names}
