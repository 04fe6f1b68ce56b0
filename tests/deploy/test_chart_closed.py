"""What a new release is closed with: certificates of the chart or of cert-manager, users and TLS of etcd, metrics."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from headrace_coordinator.etcd_auth import apply_etcd_auth, read_etcd_auth
from headrace_coordinator.replace_secret import run_replacement
from headrace_coordinator.settings import ENVIRON_PREFIX, CoordinatorSettings
from headrace_devcluster.etcd_program import find_etcd
from headrace_devcluster.guarded_exec import guarded
from headrace_devcluster.ports import ReservedPort
from headrace_server.cluster_identity import read_or_create
from headrace_server.metastore.api import Put
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.settings import load_settings
from headrace_server.tls import read_tls

from tests.deploy.conftest import Render, containers, one, pod_templates, select
from tests.deploy.matrix import MATRIX

ROOT_FILE = "/etc/headrace-etcd-auth/root-password"


def _environment(template: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in containers(template)[-1]["env"]}


def _volumes(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each["secret"] for each in template["spec"]["volumes"] if "secret" in each}


def test_the_chart_makes_certificates_where_no_others_are(render: Render, tmp_path: Path) -> None:
    """One authority and one certificate, valid for what clients and members of etcd check; kept over upgrades."""
    secret = one(render(MATRIX["TLS of the chart, outside"]), "Secret", "-tls")
    assert secret["type"] == "kubernetes.io/tls"
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    files = {name: base64.b64decode(data) for name, data in secret["data"].items()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    certificate, authority = (x509.load_pem_x509_certificate(files[name]) for name in ("tls.crt", "ca.crt"))
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {
        "demo-headrace.prod.svc.cluster.local",
        "*.demo-headrace-broker-headless.prod.svc.cluster.local",
        "demo-headrace-etcd-2.demo-headrace-etcd-headless.prod.svc.cluster.local",
        "broker-1.example.org",
    } <= set(names.get_values_for_type(x509.DNSName))
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.10"]
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {usage._name for usage in usages} == {"serverAuth", "clientAuth"}


def test_cert_manager_makes_them_where_it_is(chart: Any, render: Render) -> None:
    """An authority of the release's own, unless an issuer is named; the secret has the same name."""
    objects = render(MATRIX["TLS by cert-manager alone"])
    assert not select(objects, "Secret", "-tls")
    own, authority = one(objects, "Certificate", "headrace"), one(objects, "Certificate", "-authority")
    assert own["spec"]["secretName"] == "demo-headrace-tls"
    issuers = {each["metadata"]["name"]: each["spec"] for each in select(objects, "Issuer")}
    assert issuers[own["spec"]["issuerRef"]["name"]] == {"ca": {"secretName": authority["spec"]["secretName"]}}
    assert issuers[authority["spec"]["issuerRef"]["name"]] == {"selfSigned": {}}
    assert authority["spec"]["isCA"]
    assert not select(render(MATRIX["TLS by cert-manager"]), "Issuer")


def test_services_log_in_at_etcd_and_only_the_job_is_its_administrator(render: Render) -> None:
    """Brokers and coordinators have the password of their user; the job after an install has root's, and enables."""
    objects = render()
    job = one(objects, "Job", "-etcd-auth")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    template = job["spec"]["template"]
    (container,) = containers(template)
    assert container["args"] == ["coordinator", "etcd-auth", "--apply", "--enable", "--root-password-file", ROOT_FILE]
    taken = load_settings(CoordinatorSettings, environ=_environment(template), environ_prefix=ENVIRON_PREFIX)
    assert (taken.etcd_user, taken.etcd_password_file) == ("headrace", "/etc/headrace-etcd-auth/password")
    assert taken.etcd_files is not None
    assert _volumes(template)["etcd-auth"] == {"secretName": "demo-headrace-etcd", "defaultMode": 0o440}
    for kind, prefix in (("StatefulSet", "HEADRACE_BROKER_"), ("Deployment", "HEADRACE_COORDINATOR_")):
        name = "-broker" if kind == "StatefulSet" else "-coordinator"
        pod = one(objects, kind, name)["spec"]["template"]
        environment = _environment(pod)
        assert environment[f"{prefix}ETCD_USER"] == "headrace"
        assert environment[f"{prefix}ETCD_TLS_CA_FILE"] == "/etc/headrace-tls/ca.crt"
        assert _volumes(pod)["etcd-auth"]["items"] == [{"key": "password", "path": "password"}]
        assert "root-password" not in json.dumps(pod)
    secret = one(objects, "Secret", "-etcd")
    assert set(secret["data"]) == {"password", "root-password"}
    assert len(set(secret["data"].values())) == 2
    assert not select(render(MATRIX["open"]), "Job", "-etcd-auth")
    elsewhere = render(MATRIX["etcd elsewhere, with a user"])
    assert not select(elsewhere, "Job", "-etcd-auth")
    broker = one(elsewhere, "StatefulSet", "-broker")["spec"]["template"]
    assert _environment(broker)["HEADRACE_BROKER_ETCD_USER"] == "log"
    assert _volumes(broker)["etcd-auth"]["secretName"] == "log-etcd-user"


async def test_three_members_take_the_certificate_and_the_users_of_the_chart(render: Render, tmp_path: Path) -> None:
    """etcd itself, with the variables of the pods, as server and as peer; the job's command closes it, and a service
    logs in by its settings. Members check each other by what the names in the certificate resolve to."""
    objects = render({"tls": {"certManager": {"dnsNames": ["localhost"]}}})
    for name in ("-tls", "-etcd"):
        for file, data in one(objects, "Secret", name)["data"].items():
            (tmp_path / file).write_bytes(base64.b64decode(data))
    given = _environment(one(objects, "StatefulSet", "-etcd")["spec"]["template"])
    ports = [[ReservedPort() for _ in range(3)] for _ in range(3)]
    cluster = ",".join(f"etcd-{number}=https://localhost:{peer}" for number, (_, peer, _) in enumerate(ports))
    variables = {name: value for name, value in given.items() if name.startswith("ETCD_") and value}
    members = []
    try:
        for number, (client, peer, metrics) in enumerate(ports):
            own = {
                "ETCD_NAME": f"etcd-{number}",
                "ETCD_DATA_DIR": str(tmp_path / f"data-{number}"),
                "ETCD_INITIAL_CLUSTER": cluster,
                "ETCD_LISTEN_METRICS_URLS": f"http://127.0.0.1:{metrics}",
                "ETCD_LISTEN_CLIENT_URLS": f"https://127.0.0.1:{client}",
                "ETCD_LISTEN_PEER_URLS": f"https://127.0.0.1:{peer}",
                "ETCD_ADVERTISE_CLIENT_URLS": f"https://localhost:{client}",
                "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"https://localhost:{peer}",
            }
            environ = {
                name: value.replace("/etc/headrace-tls", str(tmp_path)) for name, value in (variables | own).items()
            }
            with (tmp_path / f"etcd-{number}.log").open("wb") as log:
                command = guarded([str(find_etcd()), "--unsafe-no-fsync"])
                members.append(await asyncio.create_subprocess_exec(*command, env=environ, stdout=log, stderr=log))
        settings = CoordinatorSettings(
            coordinator_id="a",
            etcd_endpoints=tuple(f"localhost:{client}" for client, _, _ in ports),
            etcd_user="headrace",
            etcd_password_file=str(tmp_path / "password"),
            etcd_tls_ca_file=str(tmp_path / "ca.crt"),
        )
        auth = read_etcd_auth(settings, (), str(tmp_path / "root-password"), enables=True)
        assert "etcd authenticates its callers" in await apply_etcd_auth(settings, auth, 60)
        identity = read_tls(settings).etcd
        store = EtcdMetastore(settings.etcd_endpoints, identity=identity, login=settings.etcd_login)
        assert (await store.txn([], [Put("/headrace/headrace/x", b"")])).succeeded
        assert [found.error for found in await store.describe_members()] == [""] * 3
        await read_or_create(store, "headrace", "c")
        steps: list[str] = []
        await run_replacement(settings, 0, steps.append)  # By the role of a service alone.
        assert [step.split(";")[0] for step in steps][-1] == "the old secret is refused"
        await store.close()
    finally:
        for member in members:
            member.kill()
            await member.wait()


def test_commands_in_a_coordinators_container_reach_the_cluster(render: Render) -> None:
    """`kubectl exec ... -- headrace` has what `helm test` has: address, authority and the administrator's key."""
    expected = {
        "defaults": {"BOOTSTRAP_SERVERS", "SECURITY_PROTOCOL", "SSL_CAFILE", "API_KEY_FILE"},
        "TLS by a secret": {
            *("BOOTSTRAP_SERVERS", "SECURITY_PROTOCOL", "SSL_CAFILE", "SSL_CERTFILE", "SSL_KEYFILE", "API_KEY_FILE"),
        },
        "identities required": {"BOOTSTRAP_SERVERS", "API_KEY_FILE", "ALLOW_PLAINTEXT_CREDENTIALS"},
        "open": {"BOOTSTRAP_SERVERS"},
    }
    for name, variables in expected.items():
        objects = render(MATRIX[name])
        test = _environment(one(objects, "Pod", "-test"))
        pod = one(objects, "Deployment", "-coordinator")["spec"]["template"]
        client = {variable: test[variable] for variable in (f"HEADRACE_{each}" for each in variables)}
        assert test == {**client, "HOME": "/tmp"}
        assert client.items() <= _environment(pod).items()
        mounted = {mount["mountPath"] for mount in containers(pod)[-1]["volumeMounts"]}
        files = [Path(path) for variable, path in client.items() if variable.endswith("FILE")]
        assert {str(path.parent) for path in files} <= mounted


def test_prometheus_has_a_key_and_checks_the_certificate(render: Render) -> None:
    """Of user monitor, for brokers and coordinators; etcd's metrics need none. Where all is open there is no key."""
    for name, is_closed in (("TLS of the chart, outside", True), ("open", False)):
        values = {**MATRIX[name], "monitoring": {"serviceMonitor": {"enabled": True, "detail": True}}}
        for monitor in select(render(values), "ServiceMonitor"):
            for endpoint in monitor["spec"]["endpoints"]:
                found = {key: endpoint.get(key) for key in ("scheme", "tlsConfig", "authorization")}
                if monitor["metadata"]["name"].endswith("-etcd") or not is_closed:
                    assert set(found.values()) == {None}
                    continue
                assert found == {
                    "scheme": "https",
                    "tlsConfig": {
                        "serverName": "demo-headrace.prod.svc.cluster.local",
                        "ca": {"secret": {"name": "demo-headrace-tls", "key": "ca.crt"}},
                    },
                    "authorization": {"credentials": {"name": "demo-headrace-monitor", "key": "api-key"}},
                }


@pytest.mark.parametrize("name", MATRIX)
def test_passwords_are_in_secrets_alone(render: Render, name: str) -> None:
    """No pod, job or map has a password or key in its text: each reads it from a file or by a reference."""
    objects = render(MATRIX[name])
    secrets = [base64.b64decode(text).decode() for each in select(objects, "Secret") for text in each["data"].values()]
    rest = json.dumps([each for each in objects if each["kind"] != "Secret"])
    assert not [secret for secret in secrets if secret in rest]
    for where, template in pod_templates(objects):
        for container in containers(template):
            for variable in container.get("env", []):
                assert "PASSWORD" not in variable["name"] or "FILE" in variable["name"] or "valueFrom" in variable, (
                    where
                )
