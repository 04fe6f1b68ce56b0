"""A coordinator of consumer groups: the shipped service, transactions, offsets, maintenance and views on a loop in
virtual time.

Only gRPC is left out: `serve` calls the servicer's method as gRPC would, with a deadline, and cancels it with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.v1 import cluster_pb2
from headrace.wire.errors import HeadraceError, MetadataLimitError, MetastoreUnavailableError, from_detail, to_detail
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.group_service import GroupServicer
from headrace_coordinator.runtime.group_maintenance import AssignableTopics, GroupMaintenance
from headrace_coordinator.runtime.group_offsets import GroupOffsets
from headrace_coordinator.runtime.group_transactions import GroupTransactions
from headrace_coordinator.runtime.group_view import GroupView
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_server.identity.gate import set_access
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Metastore, MetastoreRolledBackError
from headrace_server.metastore.view import PrefixView
from prometheus_client import CollectorRegistry

from tests.fakes.open_gate import open_access
from tests.simulation.group_member import GROUP
from tests.simulation.virtual_loop import LoopMetastore, VirtualLoop
from tests.simulation.world import NodeClock, WallClock

if TYPE_CHECKING:
    from tests.simulation.group_cluster import GroupCluster

METRICS = CoordinatorMetrics(CollectorRegistry())
RESTART_MS = 300
DEFAULT_TIMEOUT_MS = 30_000

Reply = Callable[[Any, HeadraceError | None], object]


class GroupCoordinatorNode:
    """The machine; a coordinator keeps nothing."""

    def __init__(self, cluster: GroupCluster, name: str, skew_ms: int) -> None:
        self.cluster = cluster
        self.name = name
        self.address = f"{name}:9000"
        self.wall = WallClock(skew_ms)
        self.coordinator: GroupCoordinator | None = None

    def start(self) -> None:
        """Start a process, where none runs."""
        if self.coordinator is None:
            self.coordinator = GroupCoordinator(self)

    def kill(self) -> None:
        """End the process."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            self.cluster.world.note(self.name, "dies")
            coordinator.process.alive = False
            self.cluster.dead_loops.append(coordinator.loop)
            self.cluster.network.process_died(coordinator.process, silently=False)
            self.cluster.calls.process_died(coordinator.process)

    def restart_soon(self) -> None:
        """Kill, and start after a moment, as a supervisor does."""
        self.kill()
        self.cluster.world.after(RESTART_MS, self.cluster.operator, "", self.start)


class _Context:
    """What a servicer asks of gRPC."""

    def __init__(self, loop: VirtualLoop, seconds: float) -> None:
        self._loop = loop
        self._ends = loop.time() + seconds

    def time_remaining(self) -> float:
        """Seconds until the caller gives up."""
        return self._ends - self._loop.time()


class GroupCoordinator:
    """One life of the process."""

    def __init__(self, node: GroupCoordinatorNode) -> None:
        cluster = node.cluster
        self.node = node
        self.cluster = cluster
        self.process = cluster.world.start_process(node.name)
        self.loop = VirtualLoop(cluster.world, self.process)
        self.clock = NodeClock(cluster.world, self.process, node.wall)
        metastore: Metastore = LoopMetastore(cluster.etcd, self.process, self.loop)  # type: ignore[assignment]
        relist_s = cluster.relist_ms / 1000
        keyspace = cluster.keyspace
        self.source = PrefixView(metastore, keyspace.prefix, self.clock, relist_interval_s=relist_s)
        self.groups_source = PrefixView(metastore, keyspace.groups_prefix, self.clock, relist_interval_s=relist_s)
        self._metastore = metastore
        self._is_loaded = asyncio.Event()
        self._served = open_access()
        """Every caller may do everything."""
        self.servicer: GroupServicer
        self._groups: GroupView
        self.loop.create_task(self._live())

    async def _live(self) -> None:
        """What the app does: load, serve, and end where a task of it ends."""
        try:
            for source in (self.source, self.groups_source):
                while not source.revision:
                    try:
                        await source.load()
                    except MetastoreUnavailableError:
                        await asyncio.sleep(0.2)
            maintenance = self._build()
            async with asyncio.TaskGroup() as tasks:
                for run in (self.source.run(), self.groups_source.run(), maintenance.run()):
                    tasks.create_task(run)
        except* MetastoreRolledBackError:
            self.cluster.world.count("coordinators that met a restored etcd")
            self.cluster.world.after(0, self.cluster.operator, "", self.node.restart_soon)
        except* Exception as failed:
            self.loop.failures.append(f"the coordinator ended: {failed.exceptions!r}")

    def _build(self) -> GroupMaintenance:
        """Put the parts together as `headrace_coordinator.app` does."""
        clock, source, plan = self.clock, self.groups_source, self.cluster.plan
        view = ClusterView(self.cluster.identity, self.source)
        groups = self._groups = GroupView(view.keyspace, source)
        topics = AssignableTopics(view)
        transactions = GroupTransactions(self._metastore, source, groups, topics, METRICS, clock)
        offsets = GroupOffsets(self._metastore, source, groups, METRICS, clock)
        self.servicer = GroupServicer(
            self._metastore,
            view,
            groups,
            transactions=transactions,
            offsets=offsets,
            answers=Answers(source, METRICS, default_timeout_ms=DEFAULT_TIMEOUT_MS),
            metrics=METRICS,
            clock=clock,
            limits=MetadataLimits(GroupBounds(groups=1_000, members=plan.max_members, key_bytes=64 << 20), groups),
        )
        self._is_loaded.set()
        return GroupMaintenance(
            view,
            groups,
            transactions,
            offsets,
            topics,
            METRICS,
            clock,
            coordinator_id=self.node.name,
            offsets_retention_ms=plan.offsets_retention_ms,
        )

    def serve(self, method: str, request: Any, seconds: float, reply: Reply) -> Callable[[], object]:
        """Answer one call; returns what cancels it."""
        if method == "GetMetadata":
            addresses = [node.address for node in self.cluster.coordinators]
            reply(cluster_pb2.GetMetadataResponse(coordinators=addresses), None)
            return lambda: None
        task = self.loop.create_task(self._answer(method, request, seconds, reply))
        self.loop.call_later(seconds, task.cancel)
        return task.cancel

    async def _answer(self, method: str, request: Any, seconds: float, reply: Reply) -> None:
        await self._is_loaded.wait()  # Its port opens then.
        set_access(self._served)
        handler = getattr(GroupServicer, method).__wrapped__
        try:
            answer = await handler(self.servicer, request, _Context(self.loop, seconds))
        except HeadraceError as error:
            if isinstance(error, MetadataLimitError):
                self.cluster.checks.refused_for_limit(request, self._groups.entry(GROUP))
            reply(None, from_detail(to_detail(error)))
        except Exception as error:
            self.loop.failures.append(f"{method} failed: {error!r}")
        else:
            reply(answer, None)
