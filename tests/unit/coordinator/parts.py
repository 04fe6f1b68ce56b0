"""A coordinator's parts on the in-memory metastore, with answers that get lost where a test says so."""

from __future__ import annotations

import asyncio
import contextlib

from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver
from headrace_coordinator.runtime.topic_owners import TopicOwners
from headrace_coordinator.runtime.topic_store import TopicStore
from headrace_server.clock import SystemClock
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.identity.identity_view import IdentityView
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Delete, ModRevisionIs, Put
from headrace_server.metastore.view import PrefixView
from headrace_server.partition_state import ask_hand_over, encode, hand_over
from prometheus_client import CollectorRegistry

from tests.fakes.lossy_metastore import LossyMetastore
from tests.fakes.memory_metastore import MemoryMetastore

SECONDS = 20


class Parts:
    """What the tests of the runtime need."""

    def __init__(self, metastore, view, prefix_view, identity_source):
        self.memory = metastore._inner
        self.metastore = metastore
        self.view = view
        self.prefix_view = prefix_view
        self.keyspace = view.keyspace
        self.metrics = CoordinatorMetrics(CollectorRegistry())
        self.writes = AmbiguousWriteResolver(metastore, self.keyspace, self.metrics, max_inflight=8)
        self.identity_source = identity_source
        self.identity_view = IdentityView(view.keyspace, identity_source)
        owners = TopicOwners(self.identity_view, view.keyspace, SystemClock())
        self.store = TopicStore(self.writes, view, self.metrics, SystemClock(), owners)

    @property
    def deadline(self):
        return asyncio.get_running_loop().time() + SECONDS

    async def register(self, broker_id, **fields):
        """Begin a session; its epoch, once the view shows it."""
        live = metadata_pb2.BrokerLive(broker_id=broker_id, **fields)
        await self.memory.txn([], [Delete(self.keyspace.broker(broker_id))])
        result = await self.memory.txn([], [Put(self.keyspace.broker(broker_id), live.SerializeToString())])
        await self.prefix_view.wait_for(result.revision, SECONDS)
        return result.revision

    async def unregister(self, broker_id):
        result = await self.memory.txn([], [Delete(self.keyspace.broker(broker_id))])
        await self.prefix_view.wait_for(result.revision, SECONDS)

    async def keys(self, prefix):
        return [found.key for found in (await self.memory.range(self.keyspace.prefix + prefix)).key_values]

    async def shows(self, condition):
        """Wait until the view satisfies `condition`."""
        changed = asyncio.Event()
        unsubscribe = self.view.subscribe(lambda revision, keys: changed.set())
        try:
            while not condition():
                await changed.wait()
                changed.clear()
        finally:
            unsubscribe()

    @contextlib.asynccontextmanager
    async def leaders(self, *, yield_leadership=True):
        """Leaders that do at once what they are asked: hand over, or not, and say so."""
        changed = asyncio.Event()
        unsubscribe = self.view.subscribe(lambda revision, keys: changed.set())

        async def serve():
            while True:
                await changed.wait()
                changed.clear()
                for topic in list(self.view.topics.values()):
                    for partition in list(self.view.partitions(topic.topic_id)):
                        await self._obey(topic.topic_id, partition, yield_leadership=yield_leadership)

        task = asyncio.create_task(serve())
        try:
            yield
        finally:
            unsubscribe()
            task.cancel()
            await asyncio.wait([task])

    async def _obey(self, topic_id, partition, *, yield_leadership):
        state = partition.state
        if not state.successors:
            return
        key = self.keyspace.partition(topic_id, partition.partition)
        after = ask_hand_over(state, ())
        if yield_leadership:
            after = hand_over(
                state, state.successors[0], leaves=self.view.brokers[state.leader.broker_id].live.draining
            )
        await self.memory.txn([ModRevisionIs(key, partition.mod_revision)], [Put(key, encode(after))])

    def metric(self, name):
        return getattr(self.metrics, name)._value.get()


@contextlib.asynccontextmanager
async def make_parts():
    metastore = LossyMetastore(MemoryMetastore())
    identity = ClusterIdentity("test", "cluster-id", 3, b"s" * 32)
    prefix_view = PrefixView(metastore, identity.keyspace.prefix, SystemClock())
    identity_source = PrefixView(metastore, identity.keyspace.identity_prefix, SystemClock())
    await prefix_view.load()
    await identity_source.load()
    view = ClusterView(identity, prefix_view)
    following = [asyncio.create_task(each.run()) for each in (prefix_view, identity_source)]
    try:
        async with asyncio.timeout(SECONDS):
            yield Parts(metastore, view, prefix_view, identity_source)
    finally:
        for task in following:
            task.cancel()
        await asyncio.wait(following)
