"""A coordinator: the shipped controller, session, views and services on a loop in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.log.directory import LogId
from headrace.v1 import cluster_pb2_grpc
from headrace.wire.errors import MetastoreUnavailableError
from headrace_coordinator.core.election import RegisteredBroker
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.broker_requests import BrokerRequests
from headrace_coordinator.rpc.cluster_service import SERVICE_NAME, ClusterServicer
from headrace_coordinator.rpc.partition_changes import PartitionChanges
from headrace_coordinator.rpc.partition_requests import PartitionRequests
from headrace_coordinator.rpc.topic_requests import TopicRequests
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver
from headrace_coordinator.runtime.broker_store import BrokerStore
from headrace_coordinator.runtime.controller import Controller
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_coordinator.runtime.partition_reconciler import registered_sessions
from headrace_coordinator.runtime.partition_store import PartitionStore
from headrace_coordinator.runtime.session import CoordinatorSession
from headrace_coordinator.runtime.topic_owners import TopicOwners
from headrace_coordinator.runtime.topic_store import TopicStore
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Metastore, MetastoreRolledBackError, Operation, Put
from headrace_server.metastore.view import PrefixView
from prometheus_client import CollectorRegistry

from tests.simulation.transport import Server
from tests.simulation.virtual_lease import LoopRenewer
from tests.simulation.virtual_loop import LoopMetastore, VirtualLoop
from tests.simulation.world import NodeClock, WallClock

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

LEASE_TTL_MS = 3_000
RESTART_MS = 300
METRICS = CoordinatorMetrics(CollectorRegistry())


class CoordinatorNode:
    """The machine; a coordinator keeps nothing."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.coordinator: Coordinator | None = None

    def start(self) -> None:
        """Start a process, where none runs."""
        if self.coordinator is None and not self.cluster.recovery.stops_all:
            self.coordinator = Coordinator(self)

    def kill(self) -> None:
        """End the process."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            self.cluster.world.note(self.name, "dies")
            coordinator.process.alive = False
            self.cluster.dead_loops.append(coordinator.loop)
            self.cluster.network.process_died(coordinator.process, silently=False)
            self.cluster.transport.process_died(coordinator.process)

    def restart_soon(self) -> None:
        """Kill, and start after a moment, as a supervisor does."""
        self.kill()
        self.cluster.world.after(RESTART_MS, self.cluster.operator, "", self.start)


class Coordinator:
    """One life of the process."""

    def __init__(self, node: CoordinatorNode) -> None:
        cluster = node.cluster
        self.node = node
        self.cluster = cluster
        self.world = cluster.world
        self.process = cluster.world.start_process(node.name)
        self.loop = VirtualLoop(cluster.world, self.process)
        self.clock = NodeClock(cluster.world, self.process, WallClock(0))
        self.view: ClusterView | None = None
        self.controller: Controller | None = None
        self._epoch = 0
        self._metastore: Metastore = LoopMetastore(  # type: ignore[assignment]
            cluster.etcd, self.process, self.loop, self._epoch_of
        )
        self.process.after_event = self.loop.check
        self.loop.run(lambda: self.loop.create_task(self._live()))

    def _epoch_of(self, operations: Sequence[Operation]) -> int:
        """The controller epoch that it serves, or served last, where it writes a partition; otherwise 0."""
        prefix = self.cluster.keyspace.partition_prefix()
        if not any(isinstance(each, Put) and each.key.startswith(prefix) for each in operations):
            return 0
        if self.controller is not None and self.controller.epoch:
            self._epoch = self.controller.epoch
        return self._epoch

    async def _live(self) -> None:
        """What the app does with these parts."""
        cluster, plan = self.cluster, self.cluster.plan
        source = PrefixView(
            self._metastore, cluster.keyspace.prefix, self.clock, relist_interval_s=cluster.relist_ms / 1000
        )
        try:
            while not source.revision:
                try:
                    await source.load()
                except MetastoreRolledBackError:
                    raise
                except MetastoreUnavailableError:
                    await asyncio.sleep(0.2)
            view = self.view = ClusterView(cluster.identity, source)
            address = await self._serve(view, source)
            session = CoordinatorSession(
                self._metastore,
                cluster.keyspace,
                metadata_pb2.CoordinatorLive(coordinator_id=self.node.name, address=address),
                METRICS,
                lease_ttl_ms=LEASE_TTL_MS,
                clock=self.clock,
                make_renewer=lambda: LoopRenewer(self._metastore),  # type: ignore[arg-type,return-value]
            )
            self.controller = Controller(
                self._metastore,
                view,
                session,
                METRICS,
                self.clock,
                max_inflight=8,
                orphan_grace_ms=60_000,
                deleted_topics_retention_ms=604_800_000,
                leader_rebalance_interval_ms=plan.leader_rebalance_interval_ms,
            )
            self._watch_decisions(self.controller)
            async with asyncio.TaskGroup() as tasks:
                for run in (source.run(), session.run(), self.controller.run()):
                    tasks.create_task(run)
        except* MetastoreRolledBackError:
            self.world.after(0, cluster.operator, "", self.node.restart_soon)
        except* Exception as failed:
            self.loop.fail("the coordinator ended", failed)

    async def _serve(self, view: ClusterView, source: PrefixView) -> str:
        """Answer clients and administrators, as the app does. Their writes are not the controller's (I14)."""
        unused: Any = None
        cluster = self.cluster
        settings = CoordinatorSettings(coordinator_id=self.node.name)
        metastore: Metastore = LoopMetastore(cluster.etcd, self.process, self.loop)  # type: ignore[assignment]
        writes = AmbiguousWriteResolver(metastore, view.keyspace, METRICS, max_inflight=settings.max_inflight_writes)
        store = TopicStore(writes, view, METRICS, self.clock, TopicOwners(unused, view.keyspace, self.clock))
        answers = Answers(source, METRICS, default_timeout_ms=settings.default_timeout_ms)
        limits = MetadataLimits(GroupBounds(settings.max_groups, settings.max_group_members, settings.max_group_bytes))
        changes = PartitionChanges(PartitionStore(writes, view), store, view, answers)
        servicer = ClusterServicer(
            metastore,
            view,
            topics=TopicRequests(store, view, answers, settings, limits),
            partitions=PartitionRequests(changes, store, view, answers, settings, METRICS),
            brokers=BrokerRequests(BrokerStore(writes, view.keyspace, self.clock), view, answers),
            settings=settings,
            metrics=METRICS,
            etcd_version="",
            draw=self.world.chance("producer ids").randrange,
        )
        server = Server(cluster.transport, self.loop, self.process)
        server.add(cluster_pb2_grpc.add_ClusterServiceServicer_to_server, servicer, SERVICE_NAME)
        return await server.start(f"{self.node.name}:7170")

    def _watch_decisions(self, controller: Controller) -> None:
        """Count what the controller decides; an unclean election of its own is one that the rules allow."""
        reconciler: Any = controller._partitions
        decide = reconciler.changes

        async def changes() -> Any:
            decided = await decide()
            for _, found in decided:
                self.world.count(f"controller: {found.step.value}")
                if found.after.unclean and not found.before.unclean:
                    self.cluster.checks.unclean_allowed(LogId(found.topic_id, found.partition))
            return decided

        reconciler.changes = changes

    def sessions(self) -> dict[int, RegisteredBroker]:
        """The registered brokers as this coordinator sees them."""
        assert self.view is not None, "it is loaded"
        return registered_sessions(self.view)
