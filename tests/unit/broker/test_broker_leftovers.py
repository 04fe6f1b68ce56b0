"""What a broker that was refused or killed has left: logs to open again, directories of deleted logs to remove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headrace.log.directory import LogId
from headrace.log.errors import storage_full
from headrace.wire.errors import StorageOfflineError
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Put
from headrace_server.partition_state import PartitionState, Replica, encode
from prometheus_client import Gauge

from tests.unit.broker.test_broker_log_deletion import KEYS, NEW, OLD, WEEK_MS, Etcd, started


@pytest.fixture
def etcd() -> Etcd:
    return Etcd()


def deleted(path: Path, topic_id: bytes) -> Path:
    return path / f"{LogId(topic_id, 0).directory_name}.deleted-0"


async def test_a_log_that_is_opened_after_refusals_has_one_table(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the refused attempts would be kept up, and counted, for the life of the process."""
    topic = metadata_pb2.Topic(name="t", topic_id=NEW, partitions=1, replication_factor=1)
    topic.configs.update(cleanup_policy="compact", table="yes")
    async with started(etcd, tmp_path) as broker:
        open_log, refusals = broker.directory.open_log, 2

        def refused(*arguments: Any) -> Any:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise storage_full("here")
            return open_log(*arguments)

        monkeypatch.setattr(broker.directory, "open_log", refused)
        await etcd.create(NEW, "t")
        await etcd.write(*(Put(key, topic.SerializeToString()) for key in (KEYS.topic("t"), KEYS.topic_by_id(NEW))))
        await broker.see()
        for _ in range(2):
            await broker.replica_manager.reopen_refused()
            await broker.replica_manager.reconcile()
        partition = broker.replica_manager.get((NEW, 0))
        assert partition is not None
        assert partition.log is not None
        assert list(broker.context.tables) == [partition.table]


@pytest.mark.parametrize("goes", ["deleted", "moved", "reopened"])
async def test_an_offline_log_that_goes_is_counted_no_more(tmp_path: Path, etcd: Etcd, goes: str) -> None:
    """The alert would stay until a restart, although the operator has done what its page says."""

    def counted(gauge: Gauge) -> float:
        return next(sample.value for metric in gauge.collect() for sample in metric.samples)

    await etcd.create(OLD, "old", replicas=(1, 2))
    async with started(etcd, tmp_path) as broker:
        partition = broker.replica_manager.get((OLD, 0))
        assert partition is not None
        partition.fail(storage_full("here") if goes == "reopened" else StorageOfflineError("a disk error"))
        assert (counted(broker.metrics.offline_logs), counted(broker.metrics.partitions)) == (1, 1)
        if goes == "deleted":
            await etcd.delete(OLD, "old")
        elif goes == "moved":
            moved = PartitionState((2,), None, 0, (Replica(2, 1),), partition_epoch=1)
            await etcd.write(Put(KEYS.partition(OLD, 0), encode(moved)))
        else:
            await broker.replica_manager.reopen_refused()
        await broker.see()
        assert (counted(broker.metrics.offline_logs), counted(broker.metrics.partitions)) == (0, goes == "reopened")


async def test_a_deleted_log_that_a_killed_process_left_is_removed(tmp_path: Path, etcd: Etcd) -> None:
    """It has a name that only its removal looks for, and would fill the disk until another log is deleted."""
    deleted(tmp_path, OLD).mkdir()
    (deleted(tmp_path, OLD) / "0.log").write_bytes(b"records")
    async with started(etcd, tmp_path) as broker:
        await broker.wait(0)
        assert not deleted(tmp_path, OLD).exists()


async def test_a_deleted_log_that_cannot_be_removed_keeps_neither_the_broker_nor_others(
    tmp_path: Path, etcd: Etcd
) -> None:
    """An operator's copy is in it, or a file that a reader has open on NFS: the rest goes, and it is tried again."""
    for topic_id, name in ((OLD, "old"), (NEW, "new")):
        await etcd.create(topic_id, name)
    async with started(etcd, tmp_path) as broker:
        broker.write_records(OLD)
        copy = tmp_path / LogId(OLD, 0).directory_name / "0.copy"
        copy.mkdir()
        for topic_id, name in ((OLD, "old"), (NEW, "new")):
            await etcd.delete(topic_id, name)
        await broker.see()
        await broker.wait(WEEK_MS)
        assert not deleted(tmp_path, NEW).exists()
        kept = deleted(tmp_path, OLD)
        assert [found.name for found in kept.iterdir()] == ["0.copy"]
        (kept / "0.copy").rmdir()
        await broker.wait(59_999)
        assert kept.exists()
        await broker.wait(1)
        assert not kept.exists()
