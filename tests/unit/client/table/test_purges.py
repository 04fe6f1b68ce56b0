"""Purges of deleted rows: which replicas are asked."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.client.base.operations import Call
from headrace.client.table.table import Table
from headrace.v1 import cluster_pb2, tables_pb2


class Cluster:
    """Answers the calls of a `Table`; broker 3 gets a replica while broker 2 is purged."""

    def __init__(self) -> None:
        self.replicas = [1, 2]
        self.purged: list[str] = []

    def run_step(self, step: Any) -> Any:
        assert isinstance(step, Call)
        if step.method == "GetMetadata":
            return self.metadata()
        if step.method == "CountRows":
            return tables_pb2.CountRowsResponse(as_of_offset=7)
        assert step.method == "PurgeRows"
        assert step.request.before_offset == 7
        self.purged.append(step.address)
        self.replicas = [1, 3]
        return tables_pb2.PurgeRowsResponse(done=True, removed_records=len(self.purged))

    def metadata(self) -> cluster_pb2.GetMetadataResponse:
        response = cluster_pb2.GetMetadataResponse(cluster_id="c", revision=1)
        for broker_id in (1, 2, 3):
            response.brokers.add(broker_id=broker_id, address=f"b{broker_id}:1")
        topic = response.topics.add(name="users", topic_id=bytes(16))
        topic.partitions.add(
            partition=0, leader_id=1, leader_epoch=1, replicas=self.replicas, in_sync_replicas=self.replicas
        )
        return response


def test_a_replica_that_is_added_meanwhile_is_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have copied the rows from the leader, which is purged as the last one of those that are known."""
    cluster = Cluster()
    with Table("users", bootstrap_servers="b1:1") as table:
        monkeypatch.setattr(table._calls, "_run_step", cluster.run_step)
        results = list(table.purge(deleted=True))
    assert cluster.purged == ["b2:1", "b1:1", "b3:1"]
    assert [(each.broker_id, each.done) for each in results] == [(2, True), (1, True), (3, True)]
