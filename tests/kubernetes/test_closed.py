"""A release with the chart's own values: closed, with certificates, secrets and users of etcd that the chart makes."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.containers.records import until
from tests.deploy.matrix import OPEN
from tests.kubernetes.conftest import Figure
from tests.kubernetes.inside import CHART
from tests.kubernetes.machines import Machines
from tests.kubernetes.release import CommandError, Release, run

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


def test_commands_in_a_coordinators_container_reach_the_cluster(release: Release) -> None:
    """The last command of docs/guides/disaster-recovery.md: over TLS and as the administrator, without an option."""
    assert "healthy" in release.headrace("cluster", "health", "--exit-when-healthy", "--wait-timeout", "180")


def test_an_upgrade_keeps_secrets_and_restarts_nothing(release: Release) -> None:
    """The same keys, certificates and passwords, also of an upgrade that changes nothing else."""
    before = _secrets(release)
    pods = {each["metadata"]["uid"] for each in release.objects("pods")}
    release.helm("upgrade", "--reset-then-reuse-values", "--wait", TIMEOUT)
    assert _secrets(release) == before
    assert pods <= {each["metadata"]["uid"] for each in release.objects("pods")}


def test_the_service_has_the_schema_registry(release: Release) -> None:
    """Over TLS, for those who may: a schema is registered, found, and not shown to a stranger."""
    registry = ("--registry", f"https://{_host(release)}:8081")
    schema = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
    register = ("schema", "register", "orders-value", "/dev/stdin", "--type", "AVRO")
    release.headrace(*register, *registry, stdin=schema)
    found = json.loads(release.headrace("schema", "get", "orders-value", "--output", "json", *registry))
    assert (found["version"], json.loads(found["schema"])) == (1, json.loads(schema))
    stranger = ("env", "--unset=HEADRACE_API_KEY_FILE", "headrace", "schema", "list", *registry)
    with pytest.raises(CommandError, match="the call has no identity"):
        release.kubectl("exec", f"deploy/{release.fullname}-coordinator", "--", *stranger)


def test_the_token_of_a_service_account_is_a_proof(release: Release) -> None:
    """One value of the chart accepts the tokens of this Kubernetes, for the audience headrace alone."""
    issuer = json.loads(run("kubectl", "get", "--raw", "/.well-known/openid-configuration"))["issuer"]
    quotas = [{"user": "*", "changes": 500}]
    values = {"identity": {"kubernetesIssuer": issuer, "quotas": quotas}}
    release.helm("upgrade", "--reset-then-reuse-values", "--wait", TIMEOUT, values=values)
    described = json.loads(release.headrace("quota", "describe", "web", "--output", "json"))
    assert (described["changes_per_minute"], described["quota_of"]["changes_per_minute"]) == (500, "*")
    release.headrace("topic", "create", "orders")
    user = f"kubernetes:system:serviceaccount:{NAMESPACE}:web"
    release.headrace("grant", user, "writer", "topic:orders")
    release.kubectl("create", "serviceaccount", "web")
    release.kubectl("apply", "--filename=-", stdin=json.dumps(_writer(release)))
    until(lambda: _phase(release) in ("Succeeded", "Failed"), "the pod has ended", seconds=180)
    log = release.kubectl("logs", "web")
    assert _phase(release) == "Succeeded", log
    written, refused = log.split("---\n")
    assert user in written
    assert "claim aud lacks" in refused
    assert release.headrace("consume", "orders", "--last", "1").strip() == "one order"


def _phase(release: Release) -> str:
    """Return how far the writer's pod is."""
    (pod,) = release.objects("pod", "web")
    return str(pod["status"]["phase"])


def _host(release: Release) -> str:
    return f"{release.fullname}.{release.namespace}.svc.cluster.local"


def _writer(release: Release) -> dict[str, Any]:
    """Return a pod that writes a record by the token of its service account, and tries one for another audience."""
    (coordinator,) = release.objects("deployment", f"{release.fullname}-coordinator")
    image = coordinator["spec"]["template"]["spec"]["containers"][0]["image"]
    script = """\
        set -eu
        HEADRACE_TOKEN_FILE=/run/proof/headrace headrace auth whoami
        echo 'one order' | HEADRACE_TOKEN_FILE=/run/proof/headrace headrace produce orders
        echo ---
        ! (echo 'no order' | HEADRACE_TOKEN_FILE=/run/proof/other headrace produce orders 2>&1)
        """
    tokens = [{"serviceAccountToken": {"audience": each, "path": each}} for each in ("headrace", "other")]
    authority = {"secret": {"name": f"{release.fullname}-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    environment = {
        "HEADRACE_BOOTSTRAP_SERVERS": f"{_host(release)}:7170",
        "HEADRACE_SECURITY_PROTOCOL": "SSL",
        "HEADRACE_SSL_CAFILE": "/run/proof/ca.crt",
        "HOME": "/tmp",
    }
    container = {
        "name": "web",
        "image": image,
        "command": ["/bin/sh", "-c", textwrap.dedent(script)],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "proof", "mountPath": "/run/proof", "readOnly": True}],
    }
    spec = {
        "serviceAccountName": "web",
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "proof", "projected": {"defaultMode": 0o444, "sources": [*tokens, authority]}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}


def test_an_upgrade_of_an_open_release_keeps_it_open(machines: Machines) -> None:
    """Values without a word about identity, TLS or etcd's users: an upgrade changes none of them, nor does one
    that makes the StatefulSet of the brokers again (docs/guides/growing-volumes.md)."""
    namespace = "once-open"
    was_open = Release("open", namespace)
    text = run("helm", "--namespace", namespace, "template", "open", str(CHART), "--values=-", stdin=json.dumps(OPEN))
    kept = [each for each in yaml.safe_load_all(text) if each and each["kind"] in ("StatefulSet", "Deployment")]
    for each in kept:
        each["spec"]["replicas"] = 0
        labels = {"app.kubernetes.io/managed-by": "Helm"}
        annotations = {"meta.helm.sh/release-name": "open", "meta.helm.sh/release-namespace": namespace}
        each["metadata"] = {**each["metadata"], "namespace": namespace, "annotations": annotations}
        each["metadata"]["labels"] |= labels
    run("kubectl", "apply", "--filename=-", stdin=yaml.safe_dump_all(kept))
    _assert_kept_open(was_open)
    was_open.kubectl("delete", "statefulset", f"{was_open.fullname}-broker", "--cascade=orphan")
    _assert_kept_open(was_open)
    run("kubectl", "delete", "namespace", namespace, "--wait=false")


def _assert_kept_open(release: Release) -> None:
    rendered = release.helm("install", "--dry-run=server")
    assert re.search(r"HEADRACE_BROKER_POSTURE\s+value: open", rendered)
    for closed in ("TLS_CERT_FILE", "ETCD_USER", "https://0.0.0.0", "etcd-auth"):
        assert closed not in rendered


def _secrets(release: Release) -> dict[str, dict[str, str]]:
    names = [f"{release.fullname}-{each}" for each in ("admin", "monitor", "etcd", "tls")]
    found = {each["metadata"]["name"]: each["data"] for each in release.objects("secrets")}
    return {name: found[name] for name in names}
