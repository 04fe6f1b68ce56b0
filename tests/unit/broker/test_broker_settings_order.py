"""The settings of a topic and the key of a partition are taken up together, as of one revision of etcd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.wire.ids import BrokerId
from headrace_broker.core.messages import StateSeen
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Put
from headrace_server.partition_state import PartitionState, Replica, encode

from tests.unit.broker.test_broker_log_deletion import KEYS, OLD, Etcd, started


async def test_no_leader_is_deposed_later_than_it_takes_up_the_settings(tmp_path: Path) -> None:
    """A promotion behind an election: one who leads no more, as of that revision, must not serve producers for a while,
    during which the next leader appends copies.
    """
    etcd = Etcd()
    await etcd.create(OLD, "old")
    async with started(etcd, tmp_path) as broker:
        partition: Any = broker.replica_manager.get((OLD, 0))
        happened: list[tuple[str, bool, bool]] = []
        revision = partition.replica.revision
        handle, update = partition.handle, partition.update_log_settings

        def note(what: str) -> None:
            happened.append((what, bool(partition.config.mirror), partition.replica.revision > revision))

        def handled(event: Any) -> None:
            if isinstance(event, StateSeen):
                note("key")
            handle(event)

        async def updated() -> None:
            note("log")
            await update()

        partition.handle, partition.update_log_settings = handled, updated
        topic = metadata_pb2.Topic(name="old", topic_id=OLD, partitions=1, replication_factor=1)
        topic.configs["mirror"] = "m"
        value = topic.SerializeToString()
        state = PartitionState((BrokerId(1),), None, 7, (Replica(1, 1),), partition_epoch=1)
        await etcd.write(
            Put(KEYS.topic("old"), value),
            Put(KEYS.topic_by_id(OLD), value),
            Put(KEYS.partition(OLD, 0), encode(state)),
        )
        await broker.see()
        assert happened == [("key", True, False), ("log", True, True)]
