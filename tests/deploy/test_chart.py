"""The Helm chart, rendered with every set of values: what Kubernetes would refuse, and what operators would regret."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
import tomllib
from typing import Any

import pytest
import yaml
from headrace.cli.common.exit_codes import ExitCode
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.identity.api_keys import parse_api_key
from headrace_server.identity.posture import least_posture
from headrace_server.settings import load_settings
from headrace_server.tls_settings import TlsSettings
from pydantic import TypeAdapter

from tests.deploy.conftest import CHART, LOADER, ROOT, Files, Render, containers, one, pod_templates, select
from tests.deploy.matrix import EVERYTHING, MATRIX, REFUSED

CUSTOM = {"ServiceMonitor", "PrometheusRule", "Certificate", "Issuer"}
SET_BY_CHART = {
    "broker_id", "data_dir", "cluster", "etcd_endpoints", "listen", "metrics_listen", "advertised_address",
    "internal_advertised_address", "internal_listen", "native_listen", "replication_advertised_address",
    "replication_listen",
    "native_advertised_address", "internal_tls_allowed_names", "data_center", "rack", "host", "instance",
    "log_level", "schema_registry_listen",
    "otlp_endpoint",
    "log_format", "ready_file", "coordinator_id", "posture", "insecure", "admin_api_key_file", "monitor_api_key_file",
    "metrics_tls", "etcd_user", "etcd_password_file",
    *(field.name for field in dataclasses.fields(TlsSettings)),
}  # fmt: skip

every_set = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)


VALIDATED = [*((values, "1.32.0") for values in MATRIX.values()), (EVERYTHING, "1.28.0"), (EVERYTHING, "1.37.0")]


@pytest.mark.parametrize(("values", "version"), VALIDATED, ids=[*MATRIX, "everything, oldest", "everything, newest"])
def test_kubernetes_accepts_every_field(render: Render, values: dict[str, Any], version: str) -> None:
    """Strictly, against the schemas of Kubernetes; of the oldest release supported and the newest, too."""
    for each in render(values):
        if each["kind"] not in CUSTOM:
            _check_fields(json.dumps(each), version)


@functools.cache
def _check_fields(text: str, version: str) -> None:
    """Check an object once: most are the same in many sets of values."""
    import kubernetes_validate  # Seconds, which the workers of all other tests do not spend.

    kubernetes_validate.validate(json.loads(text), version, strict=True)


@every_set
def test_names_and_selectors_fit_together(render: Render, values: dict[str, Any]) -> None:
    """Names are unique and short; each selector finds its own pods and no others; ports of Services exist."""
    objects = render(values, name="a-release-with-quite-a-long-name-of-51-characters")
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    assert [
        name for kind, _, name in names if len(name) > 52 and kind not in ("ClusterRole", "ClusterRoleBinding")
    ] == []
    templates = dict(pod_templates(objects))
    for where in templates:
        owner = next(each for each in objects if f"{each['kind']}/{each['metadata']['name']}" == where)
        if "selector" in owner["spec"]:
            wanted = owner["spec"]["selector"]["matchLabels"]
            assert _selected(templates, wanted) == [where]
    for each in select(objects, "PodDisruptionBudget"):
        assert len(_selected(templates, each["spec"]["selector"]["matchLabels"])) == 1
    for each in select(objects, "NetworkPolicy"):
        selected = _selected(templates, each["spec"]["podSelector"]["matchLabels"])
        assert len(selected) == 1 or each["spec"]["policyTypes"] == ["Egress"]
    for each in select(objects, "Service"):
        wanted = {name: value for name, value in each["spec"]["selector"].items() if not name.endswith("/pod-index")}
        (where,) = _selected(templates, wanted)
        ports = {port["name"] for container in containers(templates[where]) for port in container.get("ports", [])}
        assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
    for each in select(objects, "StatefulSet"):
        assert one(objects, "Service", each["spec"]["serviceName"])["spec"]["clusterIP"] == "None"


def _selected(templates: dict[str, dict[str, Any]], labels: dict[str, str]) -> list[str]:
    return [where for where, template in templates.items() if labels.items() <= template["metadata"]["labels"].items()]


@every_set
def test_every_pod_passes_the_restricted_level(render: Render, values: dict[str, Any]) -> None:
    """Hooks and test pods too: no root, no privileges, no capabilities, no writable root, no token, bounded memory."""
    for where, template in pod_templates(render(values)):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, where
        assert spec["securityContext"]["runAsNonRoot"] is True, where
        assert spec["securityContext"]["runAsUser"] == 10001, where
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), where
        allowed = {"configMap", "emptyDir", "projected", "persistentVolumeClaim", "secret"}
        assert all(set(volume) - {"name"} <= allowed for volume in spec.get("volumes", [])), where
        for container in containers(template):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, where
            assert security["readOnlyRootFilesystem"] is True, where
            assert security["capabilities"] == {"drop": ["ALL"]}, where
            assert container["resources"]["limits"]["memory"], where
            assert container["resources"]["requests"]["cpu"], where
            assert "cpu" not in container["resources"]["limits"], where
            assert not re.search(r":(latest)?$", container["image"]), where
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            claimed = {"data"} if where.startswith("StatefulSet") else set()
            assert mounted <= {volume["name"] for volume in spec.get("volumes", [])} | claimed, where


@every_set
def test_pods_set_no_user_where_the_platform_assigns_one(render: Render, values: dict[str, Any]) -> None:
    """With `runAsImageUser: false` no pod or container sets a user or a group, and none may be root."""
    for where, template in pod_templates(render(values | {"runAsImageUser": False})):
        contexts = [each["securityContext"] for each in (template["spec"], *containers(template))]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & {name for context in contexts for name in context}, where
        assert contexts[0]["runAsNonRoot"] is True, where


@every_set
def test_services_have_three_probes_of_their_own(render: Render, values: dict[str, Any]) -> None:
    """Startup has half an hour, liveness asks nothing of etcd or peers, and each probe asks its own health service."""
    if "recovery" in values:
        return  # Nothing serves.
    objects = render(values)
    for kind, component in (("StatefulSet", "-broker"), ("Deployment", "-coordinator")):
        (container,) = one(objects, kind, component)["spec"]["template"]["spec"]["containers"]
        for name in ("startup", "liveness", "readiness"):
            has_tls = any(each["name"].endswith("_METRICS_TLS") for each in container["env"])
            scheme = {"scheme": "HTTPS"} if has_tls else {}
            asked = {"httpGet": {"path": f"/health/{name}", "port": "metrics", **scheme}}
            assert asked.items() <= container[f"{name}Probe"].items()
        startup = container["startupProbe"]
        assert (
            startup["periodSeconds"] * startup["failureThreshold"] == {"-broker": 1_800, "-coordinator": 600}[component]
        )
        liveness = container["livenessProbe"]
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60


@every_set
def test_rendering_twice_gives_the_same(chart: Any, files: Files, values: dict[str, Any]) -> None:
    """Nothing random, no time: GitOps sees no drift. Except for secrets of the chart, which named ones avoid."""
    again = chart.render(values, name="demo", namespace="prod")
    assert again is not files(values)
    assert _without_secrets(again) == _without_secrets(files(values))


def test_rendering_with_named_secrets_twice_gives_the_same(chart: Any) -> None:
    """All that there is: secrets too."""
    named = MATRIX["identities required, TLS"]
    assert chart.render(named, name="demo") == chart.render(named, name="demo")


def _without_secrets(files: dict[str, str]) -> dict[str, Any]:
    loaded = {
        path: list(yaml.load_all(text, LOADER)) if path.endswith(".yaml") else text for path, text in files.items()
    }
    for objects in loaded.values():
        for each in objects:
            if isinstance(each, dict) and each["kind"] == "Secret":
                del each["data"]
    return loaded


@pytest.mark.parametrize(("values", "sentence"), REFUSED, ids=[sentence[:60] for _, sentence in REFUSED])
def test_wrong_values_are_refused_in_a_sentence(
    helm: Any, render: Render, values: dict[str, Any], sentence: str
) -> None:
    """A typo, a wrong type, and what two values have to do with each other."""
    with pytest.raises(helm.HelmError, match=re.escape(sentence)):
        render(values)


def test_lint_finds_nothing(helm: Any) -> None:
    """`helm lint --strict`, with defaults and with everything on."""
    for values in ({}, EVERYTHING):
        report = helm.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert [each["error"] for each in report["messages"] if each["severity"] > 1] == []


def test_settings_are_those_of_the_services(chart: Any, render: Render) -> None:
    """The schema has each setting that the chart does not set, with its description; the TOML has the values given."""
    schema = chart.schema
    for component, settings in (("broker", BrokerSettings), ("coordinator", CoordinatorSettings)):
        known = {field.name for field in dataclasses.fields(settings)} - SET_BY_CHART  # type: ignore[arg-type]
        described = schema["properties"][component]["properties"]["settings"]["properties"]
        assert set(described) == known, component
        truth = TypeAdapter(settings).json_schema()["properties"]
        for name, each in described.items():
            keys = {"type", "minimum", "maximum", "description"} & truth[name].keys()
            assert each == {key: truth[name][key] for key in keys}, name
    broker = tomllib.loads(one(render(EVERYTHING), "ConfigMap", "-broker")["data"]["broker.toml"])
    assert broker == EVERYTHING["broker"]["settings"]
    assert isinstance(broker["max_fetch_bytes"], int)


def test_services_take_the_environment(render: Render) -> None:
    """Each HEADRACE_BROKER_... and HEADRACE_COORDINATOR_... variable is a setting, and a new cluster starts so."""
    for values in MATRIX.values():
        objects = render(values)
        for kind, component, settings in (
            ("StatefulSet", "broker", BrokerSettings),
            ("Deployment", "coordinator", CoordinatorSettings),
        ):
            (container,) = one(objects, kind, f"-{component}")["spec"]["template"]["spec"]["containers"]
            prefix = f"HEADRACE_{component.upper()}_"
            environ = {each["name"]: each.get("value", "7") for each in container["env"]}
            for entry in environ.get("HEADRACE_FROM_FILES", "").split(","):
                name = entry.partition("=")[0]
                environ[name] = "host:1" if name.endswith("_ADDRESS") else "zone-1"
            taken = load_settings(settings, environ=environ, environ_prefix=prefix)
            least_posture(taken.posture, insecure=taken.insecure, listens=taken.client_listens, is_new=True)


def test_every_value_is_described_and_used() -> None:
    """values.yaml, its @param lines and the schema name the same values, and a template uses each."""
    text = (CHART / "values.yaml").read_text("utf-8")
    described = re.findall(r"^\s*## @param (\S+) \S", text, re.MULTILINE)
    values = yaml.safe_load(text)
    assert len(set(described)) == len(described)
    assert [name for name in described if _value(values, name) is None] == []
    leaves = set(_leaves(values))
    assert {
        leaf for leaf in leaves if not any(leaf == name or leaf.startswith(f"{name}.") for name in described)
    } == set()
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert set(_schema_leaves(schema)) - {"global"} == set(described)
    templates = "".join(path.read_text("utf-8") for path in (CHART / "templates").rglob("*.*"))
    unused = [name for name in described if not re.search(rf"\.{name.rpartition('.')[2]}\b", templates)]
    assert unused == []


def _value(values: Any, name: str) -> Any:
    for part in name.split("."):
        if part not in values:
            return None
        values = values[part]
    return values


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        found += _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [prefix + name]
    return found


def _schema_leaves(schema: dict[str, Any], prefix: str = "") -> list[str]:
    """Every object that values.yaml spells out; `settings`, which a service defines, is one."""
    found = []
    for name, each in schema["properties"].items():
        nested = each.get("properties") if name != "settings" else None
        if nested:
            assert each["additionalProperties"] is False, prefix + name
        found += _schema_leaves(each, f"{prefix}{name}.") if nested else [prefix + name]
    return found


def test_an_explicit_false_is_kept() -> None:
    """`default true` in a template would take it for absent."""
    for path in (CHART / "templates").rglob("*.*"):
        assert not re.search(r"default\s+true", path.read_text("utf-8")), path.name


def test_brokers_keep_their_volumes_and_are_stopped_gently(render: Render) -> None:
    """Parallel start, one down at a time, volumes retained, the drain before SIGTERM, one broker an id."""
    objects = render()
    broker = one(objects, "StatefulSet", "-broker")["spec"]
    assert broker["podManagementPolicy"] == "Parallel"
    assert broker["minReadySeconds"] == 10
    assert broker["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    labels = broker["volumeClaimTemplates"][0]["metadata"]["labels"]
    assert not [name for name in labels if "version" in name or "chart" in name]
    pod = broker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"][:2] == ["headrace-container", "drain"]
    assert pod["terminationGracePeriodSeconds"] == 120
    assert [each["topologyKey"] for each in pod["topologySpreadConstraints"]] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    budget = one(objects, "PodDisruptionBudget", "-broker")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    told = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"] if "valueFrom" in each
    }
    assert "pod-index" in told["HEADRACE_BROKER_BROKER_ID"]
    assert told["HEADRACE_BROKER_INSTANCE"] == "metadata.uid"  # Or a pod's drain would be taken for the next one's.


def test_a_rollout_follows_settings_and_nothing_else(render: Render, chart: Any) -> None:
    """One broker more, or labels of another chart version, restart no pod; a setting restarts its service's."""

    def templates(values: dict[str, Any]) -> dict[str, Any]:
        objects = render(values)
        return {kind: one(objects, kind, name)["spec"]["template"] for kind, name in SERVICES}

    before = templates({})
    assert templates({"broker": {"replicas": 7}, "coordinator": {"replicas": 3}}) == before
    changed = templates({"broker": {"settings": {"lease_ttl_ms": 5_000}}})
    assert changed["StatefulSet"] != before["StatefulSet"]
    assert changed["Deployment"] == before["Deployment"]
    assert chart.version not in json.dumps([template["metadata"] for template in before.values()])


SERVICES = (("StatefulSet", "-broker"), ("Deployment", "-coordinator"))


def test_etcd_is_always_three_members_with_each_others_addresses(render: Render) -> None:
    """Whatever the number of brokers; and brokers and coordinators are told the same three."""
    for values, scheme in ((MATRIX["open"], "http"), ({}, "https"), ({"broker": {"replicas": 9}}, "https")):
        objects = render(values)
        etcd = one(objects, "StatefulSet", "-etcd")["spec"]
        assert etcd["replicas"] == 3
        (container,) = etcd["template"]["spec"]["containers"]
        environment = {each["name"]: each.get("value") for each in container["env"]}
        domain = "demo-headrace-etcd-headless.prod.svc.cluster.local"
        assert environment["ETCD_INITIAL_CLUSTER"] == ",".join(
            f"demo-headrace-etcd-{number}={scheme}://demo-headrace-etcd-{number}.{domain}:2380" for number in range(3)
        )
        endpoints = ",".join(f"demo-headrace-etcd-{number}.{domain}:2379" for number in range(3))
        for kind, name in SERVICES:
            variables = one(objects, kind, name)["spec"]["template"]["spec"]["containers"][0]["env"]
            assert [each["value"] for each in variables if each["name"].endswith("_ETCD_ENDPOINTS")] == [endpoints]
    elsewhere = render(MATRIX["etcd elsewhere"])
    assert select(elsewhere, "StatefulSet", "-etcd") == []


def test_tls_reaches_services_and_jobs(render: Render) -> None:
    """Files from the secrets, by settings that the services take; jobs speak TLS, too; names fit the certificate."""
    objects = render(MATRIX["TLS by a secret"])
    for kind, component, settings in (
        ("StatefulSet", "broker", BrokerSettings),
        ("Deployment", "coordinator", CoordinatorSettings),
    ):
        spec = one(objects, kind, f"-{component}")["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        prefix = f"HEADRACE_{component.upper()}_"
        environ = {each["name"]: each.get("value", "7") for each in container["env"] if each["name"].startswith(prefix)}
        taken = load_settings(settings, environ=environ, environ_prefix=prefix)
        assert taken.clients_files.key_file == "/etc/headrace-tls/tls.key"
        assert taken.internal_files.ca_file == "/etc/headrace-internal-tls/ca.crt"
        assert taken.etcd_files.cert_file == "/etc/headrace-etcd-tls/tls.crt"
        assert taken.tls_client_auth == "required"
        secrets = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
        own = {"demo-headrace-admin", "demo-headrace-monitor"} if component == "coordinator" else set()
        assert secrets == {"log-tls", "log-internal-tls", "etcd-tls"} | own
    for pod in (one(objects, "Job", "-topics")["spec"]["template"], one(objects, "Pod", "-test")):
        environment = {each["name"]: each["value"] for each in containers(pod)[0]["env"]}
        assert environment["HEADRACE_SECURITY_PROTOCOL"] == "SSL"
        assert environment["HEADRACE_SSL_CERTFILE"] == "/etc/headrace-tls/tls.crt"
    objects = render(MATRIX["TLS by cert-manager"])
    (container,) = one(objects, "StatefulSet", "-broker")["spec"]["template"]["spec"]["containers"]
    (names,) = (each["value"] for each in container["env"] if each["name"].endswith("_INTERNAL_TLS_ALLOWED_NAMES"))
    certificate = one(objects, "Certificate")["spec"]
    assert names in certificate["dnsNames"]
    assert certificate["secretName"] == "demo-headrace-tls"
    assert {
        "demo-headrace.prod.svc.cluster.local",
        "*.demo-headrace-broker-headless.prod.svc.cluster.local",
        "log.example.org",
        "x.example.org",
    } <= set(certificate["dnsNames"])


@pytest.mark.parametrize(
    ("name", "posture", "secret"),
    [
        ("defaults", "required", "demo-headrace-admin"),
        ("open", "open", ""),
        ("identities required", "required", "demo-headrace-admin"),
        ("identities required, TLS", "required", "log-admin"),
        ("identities observed", "observe", "demo-headrace-admin"),
        ("identities optional", "open", "log-admin"),
        ("identities in plain text", "required", "log-admin"),
    ],
)
def test_the_posture_reaches_services_and_the_administrators_key_those_who_need_it(
    render: Render, name: str, posture: str, secret: str
) -> None:
    """Coordinators, which make the administrator, and jobs: not brokers, and none where the posture is open."""
    values = MATRIX[name]
    objects = render({**values, "topics": [{"name": "plain"}]})
    coordinator = one(objects, "Deployment")["spec"]["template"]
    broker = one(objects, "StatefulSet", "-broker")["spec"]["template"]
    for prefix, template in (("HEADRACE_BROKER_", broker), ("HEADRACE_COORDINATOR_", coordinator)):
        environment = _environment(template)
        assert environment[f"{prefix}POSTURE"] == posture
        assert (environment.get(f"{prefix}INSECURE") == "true") == (posture != "required")
    test, topics, guard = (
        one(objects, "Pod", "-test"),
        *(one(objects, "Job", each)["spec"]["template"] for each in ("-topics", "-scale-down")),
    )
    file = "/etc/headrace-admin/api-key" if secret else None
    assert _environment(coordinator).get("HEADRACE_COORDINATOR_ADMIN_API_KEY_FILE") == file
    for template in (test, topics, guard):
        environment = _environment(template)
        assert environment.get("HEADRACE_API_KEY_FILE") == file
        is_plain = secret and "HEADRACE_BROKER_TLS_CERT_FILE" not in _environment(broker)
        assert environment.get("HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS") == ("true" if is_plain else None)
    for template, is_optional in ((coordinator, None), (test, None), (topics, None), (guard, True)):
        mounts = {mount["name"]: mount["mountPath"] for mount in containers(template)[0]["volumeMounts"]}
        assert mounts.get("admin") == ("/etc/headrace-admin" if secret else None)
        volumes = {each["name"]: each["secret"] for each in template["spec"]["volumes"] if "secret" in each}
        wanted = {"secretName": secret, "defaultMode": 0o440} | ({"optional": True} if is_optional else {})
        assert volumes.get("admin") == (wanted if secret else None)
    assert "admin" not in json.dumps([broker, one(objects, "StatefulSet", "-etcd")])
    assert ("/etc/headrace-monitor/api-key" in json.dumps(coordinator)) == bool(secret)


def test_the_charts_own_secret_has_an_api_key_and_outlives_the_release(render: Render) -> None:
    """Another one for each release; a named secret is not made."""
    keys = set()
    for release in ("demo", "other"):
        objects = render(MATRIX["identities required"], name=release)
        for name in ("-admin", "-monitor"):
            secret = one(objects, "Secret", name)
            assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
            key = base64.b64decode(secret["data"]["api-key"]).decode()
            assert parse_api_key(key) is not None
            keys.add(key)
    assert len(keys) == 4
    assert not select(render(MATRIX["identities required, TLS"]), "Secret")
    assert not select(render(MATRIX["open"]), "Secret")


def _environment(template: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in containers(template)[-1]["env"]}


@pytest.mark.parametrize(
    ("name", "names", "addresses"),
    [
        ("TLS by cert-manager", {"log.example.org", "x.example.org"}, []),
        ("TLS by cert-manager, outside", {f"broker-{number}.example.org" for number in range(3)}, ["192.0.2.10"]),
        ("TLS by cert-manager, listed", {"a.example.org"}, ["192.0.2.1", "2001:db8::1"]),
        ("TLS by cert-manager, node ports", set(), ["192.0.2.5"]),
    ],
)
def test_a_certificate_is_valid_for_every_advertised_address(
    render: Render, name: str, names: set[str], addresses: list[str]
) -> None:
    """Names of Services and pods inside, what is told outside, and addresses where addresses belong."""
    certificate = one(render(MATRIX[name]), "Certificate")["spec"]
    inside = {
        "demo-headrace", "demo-headrace.prod", "demo-headrace.prod.svc", "demo-headrace.prod.svc.cluster.local",
        "demo-headrace-etcd-headless.prod.svc.cluster.local",
        *(f"demo-headrace-etcd-{each}.demo-headrace-etcd-headless.prod.svc.cluster.local" for each in range(3)),
        *(f"*.demo-headrace-{each}-headless.prod.svc.cluster.local" for each in ("broker", "coordinator")),
    }  # fmt: skip
    assert set(certificate["dnsNames"]) == inside | names
    assert certificate.get("ipAddresses", []) == addresses


def test_spans_go_to_the_collector_and_a_policy_lets_them_out(render: Render) -> None:
    """Both services have the endpoint; the policy selects both, and opens the port that the URL has or implies."""
    for endpoint, port in (("https://otel.obs:4318", 4318), ("http://otel.obs", 80), ("https://otel.obs/base", 443)):
        peers = [{"podSelector": {"matchLabels": {"app": "otel"}}}]
        objects = render({"tracing": {"endpoint": endpoint, "egress": {"enabled": True, "to": peers}}})
        policy = one(objects, "NetworkPolicy", "-tracing")["spec"]
        assert policy["policyTypes"] == ["Egress"]
        assert policy["egress"] == [{"ports": [{"port": port, "protocol": "TCP"}], "to": peers}]
        for kind, component in (("StatefulSet", "broker"), ("Deployment", "coordinator")):
            template = one(objects, kind, f"-{component}")["spec"]["template"]
            environ = {each["name"]: each.get("value") for each in template["spec"]["containers"][0]["env"]}
            assert environ[f"HEADRACE_{component.upper()}_OTLP_ENDPOINT"] == endpoint
            labels = template["metadata"]["labels"]
            assert labels.items() >= policy["podSelector"]["matchLabels"].items()
            (expression,) = policy["podSelector"]["matchExpressions"]
            assert labels[expression["key"]] in expression["values"]
    assert not any(each["metadata"]["name"].endswith("-tracing") for each in render({}))
    assert "OTLP" not in json.dumps(render({}))


def test_coordinators_have_distinct_ids(render: Render) -> None:
    """Each by its own address, with TLS by a name that certificates can bear; the same for all only where asked."""
    own = "{podIP}.demo-headrace-coordinator-headless.prod.svc.cluster.local:7170"
    for name, told in (
        ("open", "$(HEADRACE_POD_IP):7170"),
        ("defaults", own),
        ("TLS by a secret", own),
        ("TLS by cert-manager, listed", own),
        ("TLS by cert-manager", "log.example.org:7170"),
    ):
        (container,) = one(render(MATRIX[name]), "Deployment")["spec"]["template"]["spec"]["containers"]
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert environment["HEADRACE_COORDINATOR_ADVERTISED_ADDRESS"] == told


def test_outside_addresses_are_set_by_number(render: Render) -> None:
    """By a template, a list, or the node's own address; peers keep using the internal names."""
    for name, expected in (
        ("everything", {str(number): f"broker-{number}.example.org:7181" for number in range(5)}),
        ("node ports", {str(number): f"${{HEADRACE_NODE_IP}}:{30181 + number}" for number in range(3)}),
        ("listed addresses", {"0": "a.example.org:1", "1": "b.example.org:2", "2": "192.0.2.1:3"}),
    ):
        objects = render(MATRIX[name])
        told = one(objects, "ConfigMap", "-broker-addresses")["data"]
        assert {number: address for number, address in told.items() if number.isdigit()} == expected
        services = select(objects, "Service", "-external")
        assert [each["spec"]["selector"]["apps.kubernetes.io/pod-index"] for each in services] == list(expected)
        (container,) = one(objects, "StatefulSet", "-broker")["spec"]["template"]["spec"]["containers"]
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert environment["HEADRACE_FROM_FILES"].startswith(
            "HEADRACE_BROKER_ADVERTISED_ADDRESS=/etc/headrace-addresses/$(HEADRACE_BROKER_BROKER_ID)"
        )
        assert "-broker-headless.prod.svc." in environment["HEADRACE_BROKER_INTERNAL_ADVERTISED_ADDRESS"]
        assert "HEADRACE_BROKER_ADVERTISED_ADDRESS" not in environment


def test_external_services_have_annotations_and_labels_of_their_broker(render: Render) -> None:
    """DNS has a record for each advertised address, as external-dns makes them from annotations."""
    objects = render(MATRIX["everything"])
    addresses = one(objects, "ConfigMap", "-broker-addresses")["data"]
    for number, service in enumerate(select(objects, "Service", "-external")):
        annotations = service["metadata"]["annotations"]
        host = addresses[str(number)].partition(":")[0]
        assert annotations["external-dns.alpha.kubernetes.io/hostname"] == host
        assert annotations["example.org/address"] == f"192.0.2.{number}"
        assert service["metadata"]["labels"]["example.org/broker"] == f"b{number}"


def test_extra_containers_are_added_to_the_charts_own(render: Render) -> None:
    """A sidecar does not replace the service, nor an init container the one that reads the rack."""
    sidecar, before = {"name": "sidecar", "image": "a:1"}, {"name": "before", "image": "b:1"}
    extra = {"extraContainers": [sidecar], "extraInitContainers": [before]}
    rack = {"fromNodeLabel": "topology.kubernetes.io/zone"}
    for kind, component, values, first in (
        ("StatefulSet", "broker", extra, []),
        ("StatefulSet", "broker", extra | {"rack": rack}, ["rack"]),
        ("Deployment", "coordinator", extra, []),
    ):
        spec = one(render({component: values}), kind, f"-{component}")["spec"]["template"]["spec"]
        assert [each["name"] for each in spec["containers"]] == [component, "sidecar"]
        assert [each["name"] for each in spec["initContainers"]] == [*first, "before"]
        assert (spec["containers"][-1], spec["initContainers"][-1]) == (sidecar, before)


def test_clients_reach_the_native_protocol_unless_it_is_switched_off(render: Render) -> None:
    """It is listened on, published, named to clients and open to those who may call gRPC, with TLS and without."""
    headless = "$(HEADRACE_POD_NAME).demo-headrace-broker-headless.prod.svc.cluster.local:7183"
    for name, told in (
        ("defaults", headless),
        ("TLS by a secret alone", headless),
        ("everything", "broker-1.example.org:7183"),
        ("TLS by cert-manager, listed", "192.0.2.1:7183"),
        ("node ports", "${HEADRACE_NODE_IP}:30282"),
    ):
        objects = render(MATRIX[name])
        environment, ports = _of_broker(objects)
        assert environment["HEADRACE_BROKER_NATIVE_LISTEN"] == "0.0.0.0:7183"
        assert {"name": "native", "containerPort": 7183} in ports
        variable = "HEADRACE_BROKER_NATIVE_ADVERTISED_ADDRESS"
        if told != headless:
            assert variable not in environment
            path = "/etc/headrace-addresses/native-$(HEADRACE_BROKER_BROKER_ID)"
            assert f"{variable}={path}" in environment["HEADRACE_FROM_FILES"].split(",")
            assert one(objects, "ConfigMap", "-broker-addresses")["data"]["native-1"] == told
        else:
            assert environment[variable] == told
        for service in (one(objects, "Service", "-broker-headless"), *select(objects, "Service", "-external")):
            (port,) = (each for each in service["spec"]["ports"] if each["name"] == "native")
            assert (port["port"], port["targetPort"]) == (7183, "native")
            assert ("nodePort" in port) == (service["spec"].get("type") == "NodePort")
        for policy in select(objects, "NetworkPolicy", "-broker"):
            opened = [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["ingress"]]
            assert opened == [[7181, 7183], [7381, 7383], [9464]]


@pytest.mark.parametrize("name", ["gRPC alone", "node ports, gRPC alone", "one host for all"])
def test_brokers_serve_grpc_alone(render: Render, name: str) -> None:
    """Switched off, or where clients outside could not be told an address that is one broker's: none of it is there."""
    objects = render(MATRIX[name])
    environment, _ = _of_broker(objects)
    assert environment.pop("HEADRACE_BROKER_NATIVE_LISTEN") == "off"
    assert "NATIVE" not in json.dumps(environment)
    services = [each for each in objects if each["kind"] in ("StatefulSet", "Service", "NetworkPolicy", "ConfigMap")]
    assert not re.search(r"7183|native-\d|\"native\"", json.dumps(services))


def _of_broker(objects: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The environment and the ports of the broker's container."""
    (container,) = one(objects, "StatefulSet", "-broker")["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}, container["ports"]


@pytest.mark.parametrize(
    ("names", "containers_with_token"),
    [(["rack"], ["rack"]), (["dataCenter"], ["data-center"]), (["dataCenter", "rack"], ["data-center", "rack"])],
)
def test_nodes_are_readable_only_for_failure_domains(
    render: Render, names: list[str], containers_with_token: list[str]
) -> None:
    """No role without a failure domain; with one, the token is in the init containers that read the labels alone."""
    assert not select(render(), "ClusterRole")
    objects = render({"broker": {name: {"fromNodeLabel": f"label/{name}"} for name in names}})
    assert one(objects, "ClusterRole")["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    template = one(objects, "StatefulSet", "-broker")["spec"]["template"]
    holders = [
        container["name"]
        for container in containers(template)
        if any(mount["name"] == "token" for mount in container["volumeMounts"])
    ]
    assert holders == containers_with_token
    environ, _ = _of_broker(objects)
    assert environ["HEADRACE_FROM_FILES"] == ",".join(
        f"HEADRACE_BROKER_{name.upper().replace('-', '_')}=/run/headrace/{name}" for name in containers_with_token
    )


def test_pod_template_is_merged_over_all(render: Render) -> None:
    """For what there is no value for; and what is there can be replaced."""
    template = {"spec": {"runtimeClassName": "gvisor", "enableServiceLinks": True}}
    for kind, name, values in (
        ("StatefulSet", "-broker", {"broker": {"podTemplate": template}}),
        ("Deployment", "-coordinator", {"coordinator": {"podTemplate": template}}),
        ("StatefulSet", "-etcd", {"etcd": {"bundled": {"podTemplate": template}}}),
    ):
        spec = one(render(values), kind, name)["spec"]["template"]["spec"]
        assert (spec["runtimeClassName"], spec["enableServiceLinks"]) == ("gvisor", True)
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_quotas_and_the_issuer_are_set_by_the_job_of_topics(render: Render) -> None:
    """By the administrator's key; only with the issuer may anybody read the API server's public keys."""
    assert not select(render(), "ClusterRoleBinding") + select(render(), "Job", "-topics")
    quotas = [
        {"user": "*", "produceBytes": "10MB", "changes": 0},
        {"user": "web", "fetchBytes": 0, "requests": 2000000},
    ]
    identity = {"quotas": quotas, "kubernetesIssuer": "https://kubernetes.default.svc.cluster.local"}
    objects = render({"identity": identity})
    pod = one(objects, "Job", "-topics")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0].splitlines() == [
        "set -eu",
        "headrace issuer create kubernetes --issuer 'https://kubernetes.default.svc.cluster.local' --audience headrace "
        "--keys-url https://kubernetes.default.svc/openid/v1/jwks --keys-ca-file /etc/kubernetes-ca/ca.crt",
        "headrace quota set '*' --produce-bytes 10MB --changes 0",
        "headrace quota set 'web' --fetch-bytes 0 --requests 2000000",
    ]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts["kubernetes-ca"] == "/etc/kubernetes-ca"
    assert {"name": "kubernetes-ca", "configMap": {"name": "kube-root-ca.crt"}} in pod["volumes"]
    binding = one(objects, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "system:service-account-issuer-discovery"
    assert [each["name"] for each in binding["subjects"]] == ["system:unauthenticated"]


def test_hooks_say_what_they_do(render: Render) -> None:
    """Scaling down is guarded before an upgrade, topics are made after it, the test produces and consumes."""
    objects = render({"topics": EVERYTHING["topics"]})
    guard = one(objects, "Job", "-scale-down")
    assert guard["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert guard["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    (container,) = containers(guard["spec"]["template"])
    assert container["args"] == ["broker", "check-removal", "--from", "3", "--allow-missing"]  # No server to query.
    (rule,) = guard["spec"]["podFailurePolicy"]["rules"]
    refused = {"containerName": container["name"], "operator": "In", "values": [ExitCode.FAILED]}
    assert rule == {"action": "FailJob", "onExitCodes": refused, "onPodConditions": []}
    topics = one(objects, "Job", "-topics")
    assert topics["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    assert containers(topics["spec"]["template"])[0]["args"][0].splitlines() == [
        "set -eu",
        "headrace topic create 'orders' --if-not-exists --partitions 12 --replication-factor 3 "
        "--config 'min_insync_replicas=2'",
        "headrace topic create 'plain' --if-not-exists",
    ]
    test = one(objects, "Pod", "-test")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    for pod in (guard["spec"]["template"], topics["spec"]["template"], test):
        environment = {each["name"]: each["value"] for each in containers(pod)[0]["env"]}
        assert environment["HEADRACE_BOOTSTRAP_SERVERS"] == "demo-headrace.prod.svc.cluster.local:7170"


def test_the_guard_starts_before_there_is_anything(render: Render) -> None:
    """Where Helm only renders, it runs before a first installation: without the secret that is yet to be made."""
    objects = render({**MATRIX["TLS by cert-manager"], "topics": [{"name": "plain"}]})
    for pod, optional in (
        (one(objects, "Job", "-scale-down")["spec"]["template"], True),
        (one(objects, "Job", "-topics")["spec"]["template"], None),
        (one(objects, "Pod", "-test"), None),
    ):
        secrets = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        assert [secret.get("optional") for secret in secrets] == [optional] * 2


@pytest.mark.parametrize("name", ["defaults", "small"])
def test_requests_are_those_of_the_guide(render: Render, name: str) -> None:
    """Processors, memory and volumes: whether it fits is known before it is installed."""
    milli = mebi = gibi = 0
    objects = render(MATRIX[name])
    for each in (*select(objects, "StatefulSet"), *select(objects, "Deployment")):
        copies = each["spec"]["replicas"]
        for container in each["spec"]["template"]["spec"]["containers"]:
            requests = container["resources"]["requests"]
            milli += copies * int(requests["cpu"].removesuffix("m"))
            mebi += copies * int(requests["memory"].removesuffix("Mi"))
        for claim in each["spec"].get("volumeClaimTemplates", []):
            gibi += copies * int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    guide = (ROOT / "docs" / "guides" / "installing.md").read_text("utf-8")
    assert f"| {name} | {milli / 1000:g} | {mebi / 1024:g} GiB | {gibi} GiB |" in guide


def test_prometheus_scrapes_each_pod_once(render: Render) -> None:
    """A ServiceMonitor a component; its labels are on one Service only, whose port it names."""
    objects = render(MATRIX["everything"])
    services = select(objects, "Service")
    monitors = select(objects, "ServiceMonitor")
    assert len(monitors) == 4
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"]
        marker = monitor["spec"]["selector"]["matchExpressions"][0]["key"]
        found = [
            each
            for each in services
            if wanted.items() <= each["metadata"]["labels"].items() and marker in each["metadata"]["labels"]
        ]
        assert len(found) == 1
        ports = {port["name"] for port in found[0]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_prometheus_instances_are_named_after_broker_ids(render: Render) -> None:
    """`broker-1` and not an address: series continue when a pod is replaced, and panels and alerts name the broker."""
    found: dict[str, set[str]] = {}
    for monitor in select(render(MATRIX["everything"]), "ServiceMonitor"):
        component = monitor["metadata"]["name"].rpartition("-")[2]
        pod = f"{monitor['metadata']['name']}-{'5d9c-x7k' if component in ('coordinator', 'mirror') else 1}"
        for endpoint in monitor["spec"]["endpoints"]:
            (rule,) = (each for each in endpoint["relabelings"] if each["targetLabel"] == "instance")
            assert rule["sourceLabels"] == ["__meta_kubernetes_pod_name"]
            match = re.fullmatch(rule.get("regex", "(.*)"), pod)
            assert match is not None
            found.setdefault(component, set()).add(match[1])
    pods = {each: {f"a-name-of-thirty-one-characters-{each}-5d9c-x7k"} for each in ("coordinator", "mirror")}
    assert found == {"broker": {"broker-1"}, "etcd": {"etcd-1"}, **pods}


def test_notes_lead_on(chart: Any) -> None:
    """What to do next, what is not there yet, and what was left open."""

    def notes(values: dict[str, Any]) -> str:
        text: str = chart.render(values, name="demo", namespace="prod")["headrace/templates/NOTES.txt"]
        return text

    for words in (
        "demo-headrace.prod.svc.cluster.local:7170",
        "helm --namespace prod test demo",
        "networkPolicy.enabled",
    ):
        assert words in notes(MATRIX["open"])
    assert "networkPolicy.internal is false" not in notes({})
    assert "networkPolicy.internal is false: every pod that reaches the bundled etcd can change" in notes(
        MATRIX["open"] | MATRIX["no policies"]
    )
    assert "the bundled etcd can change" not in notes(MATRIX["no policies"])
    assert "clientsFrom is empty" in notes({"networkPolicy": {"enabled": True}})
    assert "Prometheus cannot reach the metrics" in notes({"networkPolicy": {"enabled": True}})
    assert "is empty: " not in notes(EVERYTHING)
    everybody, key, plain = (
        "every client that reaches",
        "The API key of the administrator:",
        "API keys cross the network",
    )
    assert "Clients check certificates by the authority in ca.crt of the secret demo-headrace-tls" in notes({})
    for values, said in (
        ({}, {key}),
        (MATRIX["open"], {everybody}),
        (MATRIX["identities required"], {key, plain}),
        (MATRIX["identities required, TLS"], {key}),
        (MATRIX["identities observed"], {everybody, key, plain}),
        (MATRIX["identities in plain text"], {key, plain}),
    ):
        text = notes(values)
        assert {each for each in (everybody, key, plain, "insecure is true") if each in text} == said
    assert "insecure is true" in notes(MATRIX["node ports"])
    assert "get secret log-admin -o" in notes(MATRIX["identities required, TLS"])
    empty = "The dashboard Topics is empty"
    monitoring = {"dashboards": {"enabled": True}, "serviceMonitor": {"enabled": True}}
    assert empty not in notes({})
    assert empty in notes({"monitoring": monitoring})
    assert empty not in notes(EVERYTHING)
