"""etcd away, away for one broker, or older than the logs: data is served (H84), or a broker refuses to start (H81)."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import headrace
import pytest
from headrace.log.checkpoint import read_sealed, seal
from headrace.log.directory import DataDirectory
from headrace.log.os_filesystem import OsFileSystem
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.errors import PartStartError

from tests.integration.etcd_backups import copy_data, put_back_data
from tests.integration.gates import Gate
from tests.integration.replicated import BROKER_SETTINGS, Follower, Replicated, Writer, append, until

OUTAGE_SECONDS = float(os.environ.get("HEADRACE_TEST_OUTAGE_SECONDS", "5"))
"""How long etcd is away; longer than a lease."""
SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


@pytest.mark.timeout(300 + 2 * OUTAGE_SECONDS)
def test_etcd_away_while_producing(replicated: Replicated) -> None:
    """H84, I15: with a steady in-sync set producers and consumers work without etcd, and nothing is lost after it."""
    replicated.create("outage", SPREAD, min_insync_replicas=2)
    with Follower(replicated.servers, "outage", 3) as follower, Writer(replicated.servers, "outage", 3) as writer:
        writer.wait_for(500)
        silent_before = [broker.log_file.read_text().count("lease_changed") for broker in replicated.cluster.brokers]
        replicated.cluster.etcd.pause()
        try:
            over = time.monotonic() + OUTAGE_SECONDS
            while time.monotonic() < over:
                writer.wait_for(100)
            for broker, before in zip(replicated.cluster.brokers, silent_before, strict=True):
                until(lambda: broker.log_file.read_text().count("lease_changed") > before, "a silent lease")  # noqa: B023
            writer.wait_for(500)
            follower.wait_for(len(writer.acknowledged_at))
        finally:
            replicated.cluster.etcd.resume()
        replicated.wait_in_sync("outage")
        writer.wait_for(500)
    writer.check(replicated)


def test_a_leader_dies_while_etcd_is_away(replicated: Replicated) -> None:
    """H84, L5: without etcd no leader is elected; once it is back one is, and no acknowledged record is missing."""
    replicated.create("headless", SPREAD, min_insync_replicas=2)
    with Writer(replicated.servers, "headless", 3, request_timeout_ms=3_000) as writer:
        writer.wait_for(500)
        replicated.cluster.etcd.pause()
        try:
            replicated.broker(1).kill()
        finally:
            replicated.cluster.etcd.resume()
        replicated.wait_for("headless", lambda part: part.leader_id in (2, 3), "another leader")
        writer.wait_for(500)
        replicated.cluster.restart(replicated.broker(1))
        writer.wait_for(500)
    writer.check(replicated)


@pytest.fixture(scope="module")
def gates(replicated_cluster: Replicated) -> Iterator[dict[int, Gate]]:
    """The gates between etcd and the brokers 1 and 3."""
    endpoint = replicated_cluster.cluster.etcd.endpoint
    with Gate(endpoint) as first, Gate(endpoint) as third:
        gates = {1: first, 3: third}
        for broker_id, gate in gates.items():
            replicated_cluster.reconfigure(broker_id, etcd_endpoints=gate.address)
        yield gates


@pytest.mark.parametrize("cut_off", [1, 3])
def test_etcd_away_for_one_broker(replicated: Replicated, gates: dict[int, Gate], cut_off: int) -> None:
    """H20, H27: a leader (1) or follower (3) that alone does not reach etcd is replaced or left out, and comes back."""
    topic = f"cut-off-{cut_off}"
    replicated.create(topic, [[1, 2, 3]], min_insync_replicas=2)
    with Writer(replicated.servers, topic, 1, request_timeout_ms=2_000) as writer:
        writer.wait_for(500)
        gates[cut_off].shut()
        try:
            replicated.wait_for(
                topic,
                lambda part: part.leader_id > 0 and cut_off not in part.in_sync_replicas,
                "the set without the broker that is cut off",
            )
            assert replicated.leader(topic) == (2 if cut_off == 1 else 1)
            writer.wait_for(500)
        finally:
            gates[cut_off].open()
        replicated.wait_in_sync(topic)
        writer.wait_for(500)
    writer.check(replicated)


# --- disks and metadata that do not belong together ---


@pytest.fixture
def other_disk(replicated: Replicated) -> Iterator[Callable[..., None]]:
    """Puts a data directory of another origin in the place of broker 3's, which is stopped; it is put back after."""
    path = replicated.cluster.directory / "broker-3"
    own = path.with_name("broker-3.own")
    replicated.broker(3).stop()
    path.rename(own)

    def put(**identity: object) -> None:
        mine = replicated.identity()
        values = {"cluster_id": mine.cluster_id, "generation": mine.generation, "broker_id": 3, **identity}
        shutil.rmtree(path, ignore_errors=True)
        DataDirectory.open(str(path), new_storage_id=b"s" * 16, **values).close(clean=True)  # type: ignore[arg-type]

    yield put
    shutil.rmtree(path, ignore_errors=True)
    own.rename(path)


def test_a_follower_with_a_disk_that_is_not_its_own(replicated: Replicated, other_disk: Callable[..., None]) -> None:
    """H42: it refuses to start and says whose disk it is, in one line."""
    for identity, message in (
        ({"cluster_id": "of-another-cluster"}, "belongs to cluster_id of-another-cluster"),
        ({"generation": 7}, "belongs to generation 7"),
        ({"broker_id": 2}, "belongs to broker_id 2, not 3"),
    ):
        other_disk(**identity)
        with pytest.raises(PartStartError) as refused:
            replicated.cluster.restart(replicated.broker(3))
        assert message in " ".join(str(refused.value).split())
        assert "Traceback" not in str(refused.value)


def test_a_restored_etcd(own_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
    """H81: a revision that goes back ends a running broker, and one that has seen a later one refuses to start."""
    cluster = own_cluster(brokers=2, coordinators=1, broker_settings=BROKER_SETTINGS)
    replicated = Replicated(cluster)
    try:
        topic_id = replicated.create("restored", [[1, 2]])
        copy_data(cluster, tmp_path / "backup")
        cluster.wait_until_healthy()
        leader, epoch = replicated.leader("restored"), replicated.partition("restored").leader_epoch
        replicated.admin.drain_broker(leader)
        replicated.wait_for("restored", lambda part: part.leader_epoch > epoch and part.leader_id > 0, "another leader")
        append(lambda: replicated.leader_address("restored"), topic_id, b"in the later epoch")
        replicated.check_replicas_equal("restored")
    finally:
        replicated.close()
    put_back_data(cluster, tmp_path / "backup")
    for broker in cluster.brokers:
        until(lambda: broker.pid is None, f"{broker.name} gives up")  # noqa: B023
        log = " ".join(broker.log_tail().split())
        assert "restored or replaced" in log or "etcd was restored from a backup" in log
        assert "Traceback" not in log
        with pytest.raises(PartStartError) as refused:
            cluster.restart(broker)
        message = " ".join(str(refused.value).split())
        assert "etcd was restored from a backup" in message
        assert "Traceback" not in message


def forget_etcd(data_dir: Path) -> None:
    """Leave in a data directory what one that a broker of before had knows of etcd: nothing."""
    (data_dir / "metadata").unlink()
    session = read_sealed(OsFileSystem(), f"{data_dir}/session")
    assert session is not None
    (data_dir / "session").write_bytes(seal(json.dumps(json.loads(session) | {"announced": 0}).encode()))


def test_a_log_of_a_restored_volume_stays_until_it_is_deleted(own_cluster: Callable[..., LocalCluster]) -> None:
    """H25: the topic exists and the log is no replica of it. Deletions do not touch the replica that is assigned."""
    cluster = own_cluster(brokers=2, coordinators=1, broker_settings=BROKER_SETTINGS)
    replicated = Replicated(cluster)
    try:
        topic_id = replicated.create("moved", [[2]], file_delete_delay_ms=0)
        append(lambda: replicated.leader_address("moved"), topic_id, b"kept")
        held = replicated.log_directory(2, "moved")
        put_back = cluster.directory / "broker-1" / held.relative_to(cluster.directory / "broker-2")
        cluster.brokers[0].kill()
        shutil.copytree(held, put_back)
        cluster.restart(cluster.brokers[0])
        cluster.wait_until_healthy()
        until(lambda: replicated.metric(1, "unclaimed_logs") == 1, "one unclaimed")
        (log,) = replicated.admin.describe_unclaimed_logs(1)
        assert (log.topic, log.partition, log.size_bytes > 0, log.kept_because) == ("moved", 0, True, "")
        assert replicated.admin.describe_unclaimed_logs(2) == []
        (refused,) = replicated.admin.delete_broker_logs(2, [(topic_id, 0)])
        assert "is not unclaimed" in refused.kept_because
        with pytest.raises(headrace.InvalidRequestError, match="no log is named"):
            replicated.admin.delete_broker_logs(1, [])
        assert put_back.is_dir()
        assert replicated.admin.delete_broker_logs(1, [(topic_id, 0)]) == [log]
        assert not put_back.is_dir()
        assert held.is_dir()
        until(lambda: replicated.metric(1, "unclaimed_logs") == 0, "none unclaimed")
    finally:
        replicated.close()


def test_logs_that_a_restored_etcd_lacks_stay(own_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
    """H26, H81: where nothing tells a restored etcd, a topic that it lacks is not deleted, but unclaimed: its logs stay
    until an operator says otherwise, over restarts of all kinds.
    """
    cluster = own_cluster(brokers=2, coordinators=1, broker_settings=BROKER_SETTINGS)
    replicated = Replicated(cluster)
    try:
        replicated.create("before", [[1, 2]])
        copy_data(cluster, tmp_path / "backup")
        cluster.wait_until_healthy()
        topic_id = replicated.create_soon("since", [[1, 2]], file_delete_delay_ms=0)
        append(lambda: replicated.leader_address("since"), topic_id, b"kept")
        replicated.check_replicas_equal("since")
        directories = [replicated.log_directory(broker_id, "since") for broker_id in (1, 2)]
        for part in cluster.parts:
            part.kill()
        put_back_data(cluster, tmp_path / "backup")
        for broker_id in (1, 2):
            forget_etcd(cluster.directory / f"broker-{broker_id}")
        for _ in range(2):
            for part in cluster.parts:
                cluster.restart(part)
            cluster.wait_until_healthy()
            assert [replicated.metric(broker_id, "unclaimed_logs") for broker_id in (1, 2)] == [1, 1]
            for broker in cluster.brokers:
                (line, *_) = (line for line in broker.log_file.read_text().splitlines() if "log_unclaimed" in line)
                assert topic_id.hex() in line
                assert "headrace topic delete --unclaimed" in line
            assert all(directory.is_dir() for directory in directories)
            for part in cluster.parts:
                part.kill()
        for part in cluster.parts:
            cluster.restart(part)
        cluster.wait_until_healthy()
        with pytest.raises(headrace.HeadraceError, match="there is a topic"):
            replicated.admin.delete_unclaimed_logs(replicated.admin.describe_topic("before").topic_id)
        replicated.admin.delete_unclaimed_logs(topic_id, validate_only=True)
        assert all(directory.is_dir() for directory in directories)
        replicated.admin.delete_unclaimed_logs(topic_id)
        until(lambda: not any(directory.is_dir() for directory in directories), "the logs deleted")
        until(lambda: replicated.metric(1, "unclaimed_logs") == 0, "none unclaimed")
    finally:
        replicated.close()
