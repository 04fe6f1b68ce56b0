"""How a broker takes itself out of a partition's key (C3, C4)."""

from __future__ import annotations

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.isr_updater import IsrUpdater
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import GetResult, Put
from headrace_server.partition_state import PartitionState, Replica, change, decode, encode
from prometheus_client import CollectorRegistry

from tests.fakes.memory_metastore import MemoryMetastore

KEYS = Keyspace("test", 1)
TOPIC_ID = bytes(16)
KEY = KEYS.partition(TOPIC_ID, 0)
ONE, TWO = Replica(1, 10), Replica(2, 11)


class StaleReads(MemoryMetastore):
    """Answers the first read of all with what stood there before."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: list[GetResult] = []

    async def get(self, key: str) -> GetResult:
        return self.stale.pop() if self.stale else await super().get(key)


async def test_a_failed_replica_leaves_though_it_reads_that_it_has_left() -> None:
    """A read that does not name it may be of the past: only a compare says how the key is (C4)."""
    metastore = StaleReads()
    before = PartitionState((1, 2), ONE, 0, (ONE,))
    await metastore.txn([], [Put(KEY, encode(before))])
    stale = await metastore.get(KEY)
    await metastore.txn([], [Put(KEY, encode(change(before, leader=ONE, in_sync=(ONE, TWO))))])
    metastore.stale.append(stale)
    writer = IsrUpdater(metastore, KEYS, TWO.broker_id, BrokerMetrics(CollectorRegistry()))
    revision = await writer.leave(TOPIC_ID, 0, corrupt=False)
    found = (await metastore.get(KEY)).key_value
    assert found is not None
    assert decode(found.value).in_sync == (ONE,)
    assert found.mod_revision == revision
