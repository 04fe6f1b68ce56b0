"""A volume that is put back to an earlier state of itself, as from a VolumeSnapshot or with a VM (H16, H42).

Its broker starts first and alone, under the id and with the storage id of a member in sync: no election counts on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace_broker.runtime.directory_version import VERSION_SECONDS
from headrace_devcluster.cluster import LocalCluster

from tests.integration.replicated import BROKER_SETTINGS, Replicated, until

BEFORE, SINCE = range(10), range(10, 1_000)


def send(servers: str, values: range) -> None:
    """Send, and wait until all in sync have it on their disks."""
    with headrace.Producer(bootstrap_servers=servers, acks="all") as producer:
        for future in [producer.send("rolled-back", b"%d" % value, partition=0) for value in values]:
            future.result(30)


@pytest.mark.parametrize("taken", ["while the broker is down", "while it serves"])
def test_a_volume_that_was_put_back(own_cluster: Callable[..., LocalCluster], tmp_path: Path, taken: str) -> None:
    """I2, I3, I15: it does not lead, the others do not truncate, and everything acknowledged is read afterwards."""
    cluster = own_cluster(brokers=3, coordinators=1, broker_settings=BROKER_SETTINGS)
    replicated = Replicated(cluster)
    volume, copy = cluster.directory / "broker-1", tmp_path / "copy"
    try:
        replicated.create("rolled-back", [[1, 2, 3]], min_insync_replicas=2)
        send(replicated.servers, BEFORE)
        if taken == "while the broker is down":
            replicated.broker(1).kill()
            shutil.copytree(volume, copy)
            cluster.restart(replicated.broker(1))
            replicated.wait_in_sync("rolled-back")
            send(replicated.servers, SINCE)
        else:
            replicated.broker(1).pause()  # A snapshot of a volume is of one moment.
            shutil.copytree(volume, copy)
            replicated.broker(1).resume()
            version = replicated.directory_version(1)
            send(replicated.servers, SINCE)
            until(
                lambda: replicated.directory_version(1) > version,
                "a later version of the directory",
                10 * VERSION_SECONDS,
            )
        assert {log.flushed_offset for log in replicated.logs("rolled-back").values()} == {len(SINCE) + len(BEFORE)}
        for broker in cluster.brokers:
            broker.kill()
        shutil.rmtree(volume)
        shutil.copytree(copy, volume)
        cluster.restart(replicated.broker(1))
        replicated.wait_for("rolled-back", lambda part: part.leader_id not in (2, 3), "the last leader's end")
        assert replicated.partition("rolled-back").leader_id <= 0
        assert "directory_went_back" in replicated.broker(1).log_file.read_text()
        for broker_id in (2, 3):
            cluster.restart(replicated.broker(broker_id))
        replicated.wait_in_sync("rolled-back", {1, 2, 3})
        assert replicated.partition("rolled-back").leader_id > 0
        replicated.check_replicas_equal("rolled-back")
        wanted = [b"%d" % value for value in (*BEFORE, *SINCE)]
        assert replicated.values(1, "rolled-back") == wanted
        with headrace.Reader("rolled-back", bootstrap_servers=replicated.servers) as reader:
            assert [record.value for record in reader] == wanted
    finally:
        replicated.close()
