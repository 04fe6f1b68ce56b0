"""etcd restored from a snapshot under a cluster that went on since: `recover-metadata` brings everything back (H81)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.errors import PartStartError

from tests.integration.etcd_backups import export_log_states, recover_metadata, restore_snapshot, save_snapshot
from tests.integration.replicated import BROKER_SETTINGS, Replicated, until

GROUP = "goes-on"


def send(servers: str, topic: str, values: range) -> list[bytes]:
    """Send with acks=all to partition 0 and give what was acknowledged."""
    with headrace.Producer(bootstrap_servers=servers, acks="all") as producer:
        futures = [(b"%d" % value, producer.send(topic, b"%d" % value, partition=0)) for value in values]
        for _, future in futures:
            future.result(30)
        return [value for value, _ in futures]


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


def test_a_cluster_continues_under_a_restored_etcd(own_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
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
        save_snapshot(cluster, tmp_path / "snapshot.db")
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
    restore_snapshot(cluster, tmp_path / "snapshot.db")
    for part in [*cluster.coordinators, *cluster.brokers[:2]]:
        until(lambda: part.pid is None, f"{part.name} gives up")  # noqa: B023

    log_states = export_log_states(cluster, tmp_path, (1, 2))
    told = json.loads(log_states[-1].read_text())
    assert {log["topic_id"] for log in told["logs"]} == {topic_id.hex(), new_id.hex()}
    refused = recover_metadata(cluster, log_states, "--apply")
    assert refused.returncode == 1
    assert "the log state of broker 3 is missing; it may hold the only copy of records" in refused.stderr
    planned = recover_metadata(cluster, log_states, "--lost=3")
    assert planned.stdout.endswith("nothing was changed: pass --apply to begin it\n"), planned.stderr
    done = recover_metadata(cluster, log_states, "--lost=3", "--apply")
    assert done.returncode == 0, done.stderr
    assert "generation 2 of cluster headrace: 1 topics of the backup, 1 that it lacks; 2 of 2" in done.stdout
    again = recover_metadata(cluster, log_states, "--lost=3", "--apply")
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
