"""A release of the chart on a real Kubernetes, from `helm install` as the guide has it to `helm uninstall`.

One release for all, and the tests are its life in order: each leaves it healthy, and begins with that.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import pytest

from tests.containers.records import in_sync, until, values
from tests.deploy.matrix import OPEN
from tests.kubernetes.conftest import Figure
from tests.kubernetes.inside import CHART, image_names
from tests.kubernetes.machines import DOMAIN, NODES, Machines, address_of
from tests.kubernetes.release import CommandError, Load, Release, run

pytestmark = pytest.mark.timeout(900)

TIMEOUT = "--timeout=10m"
NODE_PORTS = (31181, 31182, 31183, 31184)
SERVERS = f"{address_of('node-1')}:31170"
OUTSIDE = {
    **OPEN,
    "insecure": True,
    "broker": {
        "external": {
            "enabled": True,
            "type": "NodePort",
            "addressTemplate": "{nodeIP}:{nodePort}",
            "nodePorts": NODE_PORTS,
        }
    },
    "coordinator": {"service": {"type": "NodePort", "nodePort": 31170}, "advertisedAddress": SERVERS},
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "snapshots"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
LOADED = "loaded"


@pytest.fixture(scope="module")
def release(machines: Machines, figure: Figure) -> Iterator[Release]:
    """`helm install` of an open release, whose life does not depend on what it is closed with: test_closed.py."""
    release = Release("log", "log")
    begun = time.monotonic()
    release.helm("install", "--wait", TIMEOUT, values=OPEN)
    figure("helm install --wait, volumes made", f"{time.monotonic() - begun:.0f} s")
    yield release
    release.helm("uninstall")


@pytest.fixture(scope="module")
def outside(release: Release, figure: Figure) -> Release:
    """The same release, reached from outside by ports of the nodes, with a topic for loads."""
    begun = time.monotonic()
    upgrade(release, values=OUTSIDE)
    figure("helm upgrade --wait that restarts brokers and coordinators", f"{time.monotonic() - begun:.0f} s")
    create(LOADED)
    return release


def create(topic: str) -> None:
    """A topic of six partitions, each on three brokers."""
    with headrace.Admin(bootstrap_servers=SERVERS) as admin:
        admin.create_topic(topic, partitions=6, replication_factor=3)


def upgrade(release: Release, *changes: str, values: dict[str, Any] | None = None) -> None:
    """`helm upgrade` as the guide has it, and wait until all is as it was asked for."""
    release.helm("upgrade", "--reset-then-reuse-values", *changes, "--wait", TIMEOUT, values=values)
    release.kubectl("rollout", "status", f"statefulset/{release.fullname}-broker", TIMEOUT)


def healthy(release: Release) -> None:
    """The guide's question between steps."""
    release.headrace("cluster", "health", "--exit-when-healthy", "--wait-timeout", "180")


def ready(release: Release, pod: str, before: str) -> bool:
    """A pod of this name is ready that is another than `before`."""
    found = release.objects("pods", f"--field-selector=metadata.name={pod}")
    return any(
        each["metadata"]["uid"] != before and {"type": "Ready", "status": "True"}.items() <= condition.items()
        for each in found
        for condition in each["status"].get("conditions", [])
    )


def identity(release: Release, pod: str) -> str:
    """The pod's uid."""
    (found,) = release.objects("pod", pod)
    uid: str = found["metadata"]["uid"]
    return uid


def test_what_is_installed_runs(release: Release) -> None:
    """Three brokers, three members of etcd, two coordinators: ready, spread over the nodes, none restarted."""
    pods = release.objects("pods")
    assert len(pods) == 8
    for pod in pods:
        state = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
        assert state["Ready"] == "True", pod["metadata"]["name"]
    assert set(release.restarts().values()) == {0}
    for component in ("broker", "etcd"):
        found = release.objects("pods", f"--selector=app.kubernetes.io/component={component}")
        assert sorted(pod["spec"]["nodeName"] for pod in found) == list(NODES), component


def test_a_chart_with_a_new_value_is_an_upgrade(release: Release, tmp_path: Path) -> None:
    """With the flag that the guide of upgrading names, and not with the one that it warns of."""
    newer = tmp_path / "headrace"
    shutil.copytree(CHART, newer)
    values_file, schema_file = newer / "values.yaml", newer / "values.schema.json"
    values_file.write_text(values_file.read_text("utf-8") + "\nnewcomer: {enabled: true}\n", "utf-8")
    schema = json.loads(schema_file.read_text("utf-8"))
    schema["properties"]["newcomer"] = {"type": "object"}
    schema_file.write_text(json.dumps(schema), "utf-8")
    (newer / "templates" / "newcomer.yaml").write_text("{{ if .Values.newcomer.enabled }}{{ end }}\n", "utf-8")
    command = ("helm", "--namespace", release.namespace, "upgrade", release.name, str(newer), "--dry-run=server")
    run(*command, "--reset-then-reuse-values")
    with pytest.raises(CommandError, match="nil pointer"):
        run(*command, "--reuse-values")


def test_helm_test_passes(release: Release, figure: Figure) -> None:
    """One record in, the same record out."""
    begun = time.monotonic()
    said = release.helm("test", "--logs")
    figure("helm test", f"{time.monotonic() - begun:.0f} s")
    assert "one record was produced with acks=all and consumed" in said


def test_clients_outside_write_and_read(outside: Release, figure: Figure) -> None:
    """By the addresses that they are told: each broker's own port, on the node that it runs on."""
    begun = time.monotonic()
    with headrace.Producer(bootstrap_servers=SERVERS, acks="all") as producer:
        for number in range(10_000):
            producer.send(LOADED, b"%d" % number, key=b"%d" % number)
    figure("10,000 records with acks=all from outside", f"{time.monotonic() - begun:.2f} s")
    assert sorted(map(int, values(SERVERS, LOADED))) == list(range(10_000))
    told = {each["address"] for each in json.loads(outside.headrace("broker", "list", "--output", "json"))}
    assert told == {f"{address_of(node)}:{port}" for node, port in where_brokers_are(outside)}


def where_brokers_are(release: Release) -> list[tuple[str, int]]:
    """(node, port of the nodes) of each broker."""
    pods = release.objects("pods", "--selector=app.kubernetes.io/component=broker")
    return [
        (pod["spec"]["nodeName"], NODE_PORTS[int(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"])])
        for pod in pods
    ]


@pytest.mark.parametrize("force", [(), ("--force", "--grace-period=0")], ids=["with grace", "by force"])
def test_a_deleted_broker_loses_nothing(outside: Release, figure: Figure, force: tuple[str, ...]) -> None:
    """Under load with acks=all: nothing fails, each record acknowledged is there once, replicas are in sync again."""
    pod, topic = f"{outside.fullname}-broker-1", f"deleted-{len(force)}"
    create(topic)
    before = identity(outside, pod)
    with Load(SERVERS, topic).running() as load:
        begun = time.monotonic()
        outside.kubectl("delete", "pod", pod, *force)
        until(lambda: ready(outside, pod, before), f"{pod} is ready")
        figure(f"kubectl delete pod {' '.join(force)}: ready again after", f"{time.monotonic() - begun:.0f} s")
        until(lambda: in_sync(SERVERS, topic), "in sync")
        sent = len(load.acknowledged)
        until(lambda: len(load.acknowledged) > sent + 100, "the load continues")
    figure(
        f"p99 and slowest send meanwhile, {len(load.seconds)} records", f"{load.p99():.3f} s, {max(load.seconds):.3f} s"
    )
    assert load.failures == []
    assert sorted(values(SERVERS, topic)) == sorted(load.acknowledged)


def test_an_upgrade_under_load_fails_no_send(outside: Release, machines: Machines, figure: Figure) -> None:
    """Another tag: each broker and coordinator is restarted, one after the other, and no client sees an error."""
    image = image_names()["headrace"]
    repository, _, _ = image.rpartition(":")
    for node in NODES:
        machines.images(node, "tag", image, f"{repository}:next")
    topic = "upgraded"
    create(topic)
    before = {pod["metadata"]["uid"] for pod in outside.objects("pods")}
    with Load(SERVERS, topic).running() as load:
        begun = time.monotonic()
        upgrade(outside, "--set=image.tag=next")
        figure("rolling restart of three brokers and two coordinators", f"{time.monotonic() - begun:.0f} s")
        figure("replicas in sync after another", f"{until(lambda: in_sync(SERVERS, topic), 'in sync'):.1f} s")
    figure(
        f"p99 and slowest send meanwhile, {len(load.seconds)} records", f"{load.p99():.3f} s, {max(load.seconds):.3f} s"
    )
    left = [pod["metadata"]["name"] for pod in outside.objects("pods") if pod["metadata"]["uid"] in before]
    assert sorted(left) == [f"{outside.fullname}-etcd-{number}" for number in range(3)]
    assert load.failures == []
    assert sorted(values(SERVERS, topic)) == sorted(load.acknowledged)


def test_a_node_is_drained_and_comes_back(outside: Release, machines: Machines, figure: Figure) -> None:
    """`kubectl drain` takes the pods of one node; a second broker may not be evicted meanwhile; nothing fails."""
    topic = "drained"
    create(topic)
    brokers = {node: NODE_PORTS.index(port) for node, port in where_brokers_are(outside)}
    other = f"{outside.fullname}-broker-{brokers['node-2']}"
    with Load(SERVERS, topic).running() as load:
        begun = time.monotonic()
        run("kubectl", "drain", "node-3", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=300s")
        figure("kubectl drain of a node", f"{time.monotonic() - begun:.0f} s")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": other, "namespace": outside.namespace},
        }
        path = f"/api/v1/namespaces/{outside.namespace}/pods/{other}/eviction"
        with pytest.raises(Exception, match="would violate the pod's disruption budget"):
            machines.api.create(path, eviction)
        run("kubectl", "uncordon", "node-3")
        until(lambda: in_sync(SERVERS, topic), "in sync")
        healthy(outside)
    figure(
        f"p99 and slowest send meanwhile, {len(load.seconds)} records", f"{load.p99():.3f} s, {max(load.seconds):.3f} s"
    )
    assert load.failures == []
    assert sorted(values(SERVERS, topic)) == sorted(load.acknowledged)


def test_a_volume_grows_under_a_running_broker(outside: Release) -> None:
    """The commands of docs/guides/growing-volumes.md: no pod is restarted, and the file systems are larger. Also with
    values that say nothing about identity, TLS and etcd's users, as those from before the closed defaults."""
    broker = "--selector=app.kubernetes.io/component=broker"
    before = {pod["metadata"]["uid"] for pod in outside.objects("pods")}
    sizes = free_bytes(outside)
    for claim in outside.kubectl("get", "pvc", broker, "--output=name").split():
        patch = {"spec": {"resources": {"requests": {"storage": "60Gi"}}}}
        outside.kubectl("patch", claim, "--type=merge", f"--patch={json.dumps(patch)}")

    def grown() -> bool:
        return {each["status"]["capacity"]["storage"] for each in outside.objects("pvc", broker)} == {"60Gi"}

    until(grown, "all claims have their new size")
    outside.kubectl("delete", "statefulset", f"{outside.fullname}-broker", "--cascade=orphan")
    unsaid = "identity.posture=,tls.enabled=auto,etcd.auth.enabled=auto"
    upgrade(outside, f"--set=broker.persistence.size=60Gi,{unsaid}")
    assert {pod["metadata"]["uid"] for pod in outside.objects("pods")} == before
    assert all(now > was + 9 * 2**30 for was, now in zip(sizes, free_bytes(outside), strict=True))
    healthy(outside)


def free_bytes(release: Release) -> list[int]:
    """The size of each broker's file system, as it sees it."""
    program = "import os; s = os.statvfs('/var/lib/headrace'); print(s.f_blocks * s.f_frsize)"
    pods = sorted(
        pod["metadata"]["name"] for pod in release.objects("pods", "--selector=app.kubernetes.io/component=broker")
    )
    return [int(release.kubectl("exec", pod, "--", "python", "-c", program)) for pod in pods]


def test_a_broker_more_takes_its_share(outside: Release, figure: Figure) -> None:
    """Scaled up, no other pod restarts; the documented command gives it replicas, all in sync."""
    before = {pod["metadata"]["uid"] for pod in outside.objects("pods")}
    begun = time.monotonic()
    upgrade(outside, "--set=broker.replicas=4")
    figure("a fourth broker ready after", f"{time.monotonic() - begun:.0f} s")
    assert before < {pod["metadata"]["uid"] for pod in outside.objects("pods")}
    outside.headrace("partition", "reassign", "--add-broker", "3", "--watch", "--wait-timeout", "300")
    assert replicas_of(3) > 0
    healthy(outside)


def replicas_of(broker: int) -> int:
    """How many replicas a broker holds."""
    with headrace.Admin(bootstrap_servers=SERVERS) as admin:
        topics = admin.describe_topics()
    return sum(broker in partition.replicas for topic in topics for partition in topic.partitions)


def test_a_broker_with_data_is_not_scaled_away(outside: Release, figure: Figure) -> None:
    """Refused with the command that moves the data; after that command it is allowed, and nothing is lost."""
    begun = time.monotonic()
    with pytest.raises(CommandError) as caught:
        upgrade(outside, "--set=broker.replicas=3")
    figure("scaling down is refused after", f"{time.monotonic() - begun:.0f} s")
    assert len(outside.objects("pods", "--selector=app.kubernetes.io/component=broker")) == 4
    said = re.search(r"`headrace (partition reassign [^`]*)`", str(caught.value))
    assert said is not None, str(caught.value)
    outside.headrace(*said[1].split(), "--wait-timeout", "300")
    assert replicas_of(3) == 0
    upgrade(outside, "--set=broker.replicas=3")
    until(lambda: len(outside.objects("pods", "--selector=app.kubernetes.io/component=broker")) == 3, "three are left")
    healthy(outside)
    assert sorted(map(int, values(SERVERS, LOADED))) == list(range(10_000))


def test_a_lost_volume_is_filled_again(outside: Release, figure: Figure) -> None:
    """The commands of docs/guides/replacing-a-broker.md."""
    pod = f"{outside.fullname}-broker-1"
    before = identity(outside, pod)
    outside.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
    begun = time.monotonic()
    outside.kubectl("delete", "pod", pod)
    until(lambda: ready(outside, pod, before), f"{pod} is ready")
    until(lambda: in_sync(SERVERS, LOADED), "in sync")
    figure("a broker with an empty volume is in sync after", f"{time.monotonic() - begun:.0f} s")
    healthy(outside)
    assert sorted(map(int, values(SERVERS, LOADED))) == list(range(10_000))


def test_racks_come_from_the_nodes(outside: Release) -> None:
    """Each broker's rack is its node's zone, which its pod may read; so is its data center."""
    labels = ("rack", "dataCenter")
    upgrade(outside, *(f"--set=broker.{name}.fromNodeLabel=topology.kubernetes.io/zone" for name in labels))
    found = json.loads(outside.headrace("broker", "list", "--output", "json"))
    assert sorted(each["rack"] for each in found) == ["zone-1", "zone-2", "zone-3"]
    assert all(each["data_center"] == each["rack"] for each in found)


def test_a_member_of_etcd_is_replaced_under_load(outside: Release, figure: Figure) -> None:
    """The commands of docs/guides/replacing-an-etcd-member.md: no send fails meanwhile."""
    create("etcd-replaced")
    lost, name = f"{outside.fullname}-etcd-1", f"{outside.fullname}-etcd"
    url = f"http://{lost}.{name}-headless.{outside.namespace}.svc.{DOMAIN}:2380"

    def etcdctl(*arguments: str) -> str:
        return outside.kubectl("exec", f"{name}-0", "--", "etcdctl", *arguments)

    def is_added() -> bool:
        with contextlib.suppress(CommandError):  # The leader may be the one that went, and the others still elect one.
            etcdctl("--command-timeout=30s", "member", "add", lost, f"--peer-urls={url}")
        return url in etcdctl("member", "list")

    with Load(SERVERS, "etcd-replaced").running() as load:
        begun = time.monotonic()
        members = [line.split(", ") for line in etcdctl("member", "list").splitlines()]
        (number,) = (member[0] for member in members if member[2] == lost)
        etcdctl("member", "remove", number)
        until(is_added, "etcd knows the new member")
        outside.helm("upgrade", "--reset-then-reuse-values", "--set=etcd.bundled.initialClusterState=existing")
        outside.kubectl("delete", "pvc", f"data-{lost}", "--wait=false")
        outside.kubectl("delete", "pod", lost)
        until(lambda: outside.kubectl("get", "pvc", f"data-{lost}", "--output=name") != "", "a new claim")
        outside.kubectl("rollout", "status", f"statefulset/{name}", TIMEOUT)
        outside.helm(
            "upgrade", "--reset-then-reuse-values", "--set=etcd.bundled.initialClusterState=new", "--wait", TIMEOUT
        )
        figure("a member of etcd replaced in", f"{time.monotonic() - begun:.0f} s")
    figure("p99 and slowest send meanwhile", f"{load.p99():.3f} s, {max(load.seconds):.3f} s")
    members = [line.split(", ") for line in etcdctl("member", "list").splitlines()]
    assert [member[1] for member in members] == ["started"] * 3
    assert load.failures == []
    assert sorted(values(SERVERS, "etcd-replaced")) == sorted(load.acknowledged)
    healthy(outside)


def test_etcd_is_restored_from_a_backup(outside: Release, figure: Figure, tmp_path: Path) -> None:
    """The commands of docs/guides/disaster-recovery.md, with the volumes of two members lost."""
    etcd, broker = f"{outside.fullname}-etcd", f"{outside.fullname}-broker"
    create("kept")
    acknowledged = send("kept", 500)
    snapshot = tmp_path / "headrace.db"
    outside.kubectl("apply", "--filename=-", stdin=json.dumps(CLAIM))
    upgrade(outside, "--set=backup.enabled=true,backup.claimName=snapshots")
    backup = f"{outside.fullname}-backup"
    outside.kubectl("create", "job", f"--from=cronjob/{backup}", "by-hand")
    outside.kubectl("wait", "--for=condition=complete", "job/by-hand", "--timeout=180s")
    outside.kubectl("delete", "job", "by-hand")
    acknowledged += send("kept", 500)
    create("since")
    since = send("since", 100)

    begun = time.monotonic()
    outside.helm("upgrade", "--reset-then-reuse-values", "--set=recovery.name=first")
    outside.kubectl("delete", "pvc", f"data-{etcd}-1", f"data-{etcd}-2", "--wait=false")
    former = f"--selector=app.kubernetes.io/instance={outside.name},!headrace.dev/recovery"
    outside.kubectl("delete", "pod", former, "--wait=false")
    outside.kubectl("rollout", "status", f"deployment/{backup}", TIMEOUT)
    (name,) = outside.kubectl("exec", f"deployment/{backup}", "--", "ls", "/backup").split()
    with snapshot.open("wb") as file:
        command = ["kubectl", "-n", outside.namespace, "exec", f"deployment/{backup}", "--", "cat", f"/backup/{name}"]
        subprocess.run(command, stdout=file, check=True)
    whole = f"test $(wc -c < part) -eq {snapshot.stat().st_size}"
    take = f"cd /var/lib/etcd && cat > part && {whole} && mv part snapshot-first.db"
    for number in range(3):
        pod = f"{etcd}-{number}"
        until(lambda pod=pod: taken(outside, pod, take, snapshot), f"{pod} has the snapshot")
    for what in (f"statefulset/{etcd}", f"statefulset/{broker}", f"deployment/{outside.fullname}-coordinator"):
        outside.kubectl("rollout", "status", what, TIMEOUT)
    waiting = "--selector=app.kubernetes.io/component=coordinator,headrace.dev/recovery"
    coordinator, *_ = outside.kubectl("get", "pod", waiting, "--output=name").split()
    options = ["--lost", "3"]  # It was scaled away, empty; etcd remembers it.
    for number in range(3):
        config = ("--config", "/etc/headrace/broker.toml")
        found = outside.kubectl("exec", f"{broker}-{number}", "--", "headrace-broker", "export-log-state", *config)
        path = f"/tmp/broker-{number}.json"
        outside.kubectl("exec", "-i", coordinator, "--", "sh", "-c", f"cat > {path}", stdin=found)
        options += ["--log-state", path]
    command = ("headrace-coordinator", "recover-metadata", "--config", "/etc/headrace/coordinator.toml", *options)
    planned = outside.kubectl("exec", coordinator, "--", *command)
    assert planned.endswith("nothing was changed: pass --apply to begin it\n")
    outside.kubectl("exec", coordinator, "--", *command, "--apply")
    upgrade(outside, "--set=recovery.name=")
    healthy(outside)
    figure("etcd restored, and a new generation begun, in", f"{time.monotonic() - begun:.0f} s")

    assert sorted(values(SERVERS, "kept")) == sorted(acknowledged)
    with headrace.Admin(bootstrap_servers=SERVERS) as admin:
        (recovered,) = (each.name for each in admin.describe_topics() if each.name.startswith("recovered-"))
    assert sorted(values(SERVERS, recovered)) == sorted(since)
    assert json.loads(outside.headrace("cluster", "describe", "--output", "json"))["generation"] == 2


def send(topic: str, count: int) -> list[bytes]:
    """That many records with acks=all, and what they were."""
    sent = [b"%s-%d" % (secrets.token_hex(4).encode(), number) for number in range(count)]
    with headrace.Producer(bootstrap_servers=SERVERS, acks="all") as producer:
        for value in sent:
            producer.send(topic, value, key=value)
    return sent


def taken(release: Release, pod: str, script: str, snapshot: Path) -> bool:
    """Whether the pod waits for the snapshot, and has all of it now."""
    command = ["kubectl", "-n", release.namespace, "exec", "-i", pod, "-c", "snapshot", "--", "sh", "-c", script]
    with snapshot.open("rb") as content:
        return subprocess.run(command, stdin=content, capture_output=True, check=False).returncode == 0


def test_what_is_uninstalled_leaves_its_volumes(outside: Release) -> None:
    """And an installation under the same name has all that was there."""
    outside.helm("uninstall", "--wait")
    claims: list[dict[str, Any]] = outside.objects("pvc")
    assert len(claims) >= 6
    outside.helm("install", "--set=broker.persistence.size=60Gi", "--wait", TIMEOUT, values=OUTSIDE)
    healthy(outside)
    assert sorted(map(int, values(SERVERS, LOADED))) == list(range(10_000))
