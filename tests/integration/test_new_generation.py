"""etcd restored from a snapshot under a cluster that went on since: `new-generation` brings everything back (H81)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.errors import PartStartError
from headrace_devcluster.etcd import find_etcd

from tests.integration.replicated import BROKER_SETTINGS, Replicated, until

GROUP = "goes-on"


def tool(name: str, *arguments: object) -> None:
    """Run etcdctl or etcdutl, which lie beside etcd."""
    beside = find_etcd().resolve().parent / name
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} beside etcd or on PATH")
    subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, timeout=60)


def command(module: str, verb: str, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    """A command of a service."""
    options = [f"--set={name}={value}" for name, value in settings.items()]
    words = [sys.executable, "-m", module, verb, *map(str, arguments), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)


def restore(cluster: LocalCluster, snapshot: Path) -> None:
    """As the guide says: all stopped, a new data directory from the snapshot."""
    data = cluster.etcd.directory / "data"
    cluster.etcd.stop()
    shutil.rmtree(data)
    peer = f"http://127.0.0.1:{cluster.etcd._peer_port}"
    options = ("--name=local", f"--initial-cluster=local={peer}", f"--initial-advertise-peer-urls={peer}")
    tool("etcdutl", "snapshot", "restore", snapshot, f"--data-dir={data}", *options)
    cluster.restart_etcd()


def send(servers: str, topic: str, values: range) -> list[bytes]:
    """Send with acks=all to partition 0 and give what was acknowledged."""
    with headrace.Producer(bootstrap_servers=servers, acks="all") as producer:
        receipts = [(b"%d" % value, producer.send(topic, b"%d" % value, partition=0)) for value in values]
        for _, receipt in receipts:
            receipt.result(30)
        return [value for value, _ in receipts]


def read(servers: str, topic: str) -> list[bytes | None]:
    with headrace.Reader(topic, partitions=[0], bootstrap_servers=servers) as reader:
        return [record.value for record in reader]


def consume(servers: str, topic: str, count: int) -> list[bytes | None]:
    """Read on in the group, and commit."""
    seen: list[bytes | None] = []
    with headrace.Consumer(
        topic, bootstrap_servers=servers, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        until(lambda: seen.extend(record.value for record in consumer.poll(0.2)) or len(seen) >= count, "records")
        consumer.commit()
    return seen


@pytest.mark.timeout(240)
def test_a_cluster_goes_on_under_a_restored_etcd(own_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
    """Everything that was acknowledged since the snapshot is there once: under a later leader, in a topic made since,
    with one disk lost. The processes of before end by themselves; begun twice it harms nothing; a disk that was not
    counted is not let in.
    """
    cluster = own_cluster(brokers=3, coordinators=2, broker_settings=BROKER_SETTINGS)
    replicated = Replicated(cluster)
    try:
        topic_id = replicated.create("before", [[3, 1, 2]], min_insync_replicas=2)
        acknowledged = send(replicated.servers, "before", range(50))
        assert len(consume(replicated.servers, "before", 50)) == 50
        tool("etcdctl", f"--endpoints={cluster.etcd.endpoint}", "snapshot", "save", tmp_path / "snapshot.db")
        # Since then: another leader, more records, a topic, an offset, and broker 3 out of sync.
        replicated.broker(3).kill()
        replicated.wait_for("before", lambda part: part.leader_id > 0 and 3 not in part.in_sync_replicas, "a leader")
        acknowledged += send(replicated.servers, "before", range(50, 100))
        new_id = replicated.create("since", [[1, 2]], min_insync_replicas=2)
        since = send(replicated.servers, "since", range(20))
        epoch = replicated.partition("before").leader_epoch
        cluster_id = replicated.admin.describe_cluster().cluster_id
    finally:
        replicated.close()
    restore(cluster, tmp_path / "snapshot.db")
    for part in [*cluster.coordinators, *cluster.brokers[:2]]:
        until(lambda: part.pid is None, f"{part.name} gives up")  # noqa: B023

    inventories = []
    for broker in cluster.brokers[:2]:
        told = command("headrace_broker", "inventory", **broker.spec.settings)
        assert told.returncode == 0, told.stderr
        inventories.append(tmp_path / f"{broker.name}.json")
        inventories[-1].write_text(told.stdout)
    assert {log["topic_id"] for log in json.loads(told.stdout)["logs"]} == {topic_id.hex(), new_id.hex()}
    own = cluster.coordinators[0].spec.settings
    options = [f"--inventory={path}" for path in inventories]
    refused = command("headrace_coordinator", "new-generation", *options, "--apply", **own)
    assert refused.returncode == 1
    assert "nothing is said of broker 3, which may hold records that nobody else has" in refused.stderr
    planned = command("headrace_coordinator", "new-generation", *options, "--lost=3", **own)
    assert planned.stdout.endswith("nothing was changed: say --apply to begin it\n"), planned.stderr
    done = command("headrace_coordinator", "new-generation", *options, "--lost=3", "--apply", **own)
    assert done.returncode == 0, done.stderr
    assert "generation 2 of cluster headrace: 1 topics of the backup, 1 that it lacks; 2 of 2" in done.stdout
    again = command("headrace_coordinator", "new-generation", *options, "--lost=3", "--apply", **own)
    assert "generation 3 of cluster headrace: 2 topics of the backup, 0 that it lacks; 2 of 2" in again.stdout

    for part in [*cluster.coordinators, *cluster.brokers[:2]]:
        cluster.restart(part)
    cluster.wait_until_healthy()
    with pytest.raises(PartStartError) as not_let_in:
        cluster.restart(cluster.broker(3))
    said = " ".join(str(not_let_in.value).split())
    assert "is of generation 1, and generation 3 began without it" in said
    assert "empty data directory" in said
    shutil.rmtree(cluster.directory / "broker-3")
    cluster.restart(cluster.broker(3))
    after = Replicated(cluster)
    try:
        description = after.admin.describe_cluster()
        assert (description.cluster_id, description.generation) == (cluster_id, 3)
        after.wait_in_sync("before")
        assert after.partition("before").leader_epoch > epoch
        acknowledged += send(after.servers, "before", range(100, 120))
        assert read(after.servers, "before") == acknowledged
        assert read(after.servers, f"recovered-{new_id.hex()}") == since
        after.check_replicas_equal("before")
        assert consume(after.servers, "before", 70) == acknowledged[50:]
    finally:
        after.close()
