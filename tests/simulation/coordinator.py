"""A coordinator: the shipped controller, session and views on a loop in virtual time.

With it an administrator's acts: moves, drains, elections, each written once. Every write compares the key's version
and the sessions that it names (C1).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from headrace.log.directory import LogId
from headrace.v1 import cluster_pb2_grpc
from headrace.wire.errors import MetastoreUnavailableError
from headrace_coordinator.core.control import new_sessions
from headrace_coordinator.core.election import RegisteredBroker, elect_uncleanly, electable, is_session
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.cluster_service import SERVICE_NAME, ClusterServicer
from headrace_coordinator.rpc.topic_requests import TopicRequests
from headrace_coordinator.runtime.controller import Controller
from headrace_coordinator.runtime.partition_reconciler import registered_sessions
from headrace_coordinator.runtime.session import CoordinatorSession
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView, PartitionEntry
from headrace_server.metastore.api import (
    Compare,
    CreateRevisionIs,
    Delete,
    Metastore,
    MetastoreRolledBackError,
    ModRevisionIs,
    Operation,
    Put,
)
from headrace_server.metastore.view import PrefixView
from headrace_server.partition_state import Move, PartitionState, ask_hand_over, change, encode
from prometheus_client import CollectorRegistry

from tests.simulation.etcd import EtcdClient
from tests.simulation.transport import Server
from tests.simulation.virtual_lease import LoopRenewer
from tests.simulation.virtual_loop import LoopMetastore, VirtualLoop
from tests.simulation.world import NodeClock, WallClock, spawn

if TYPE_CHECKING:
    from headrace.log.directory import LogId

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
        self.etcd = EtcdClient(cluster.etcd, self.process)
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
            address = await self._serve(view)
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

    async def _serve(self, view: ClusterView) -> str:
        """Answer what clients ask: metadata, settings, producer ids. Administrators' acts are below."""
        unused: Any = None
        settings = CoordinatorSettings(coordinator_id=self.node.name)
        answers = Answers(unused, METRICS, default_timeout_ms=unused)
        servicer = ClusterServicer(
            self._metastore,
            view,
            topics=TopicRequests(unused, view, answers, settings, unused),
            partitions=unused,
            brokers=unused,
            settings=settings,
            metrics=METRICS,
            etcd_version="",
            draw=self.world.chance("producer ids").randrange,
        )
        server = Server(self.cluster.transport, self.loop, self.process)
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

    # --- an administrator's acts ---

    def _entry(self, key: LogId) -> PartitionEntry | None:
        return None if self.view is None else self.view.partition(*key)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        spawn(self.process, work)

    async def administrate(
        self, key: LogId, before: PartitionState, after: PartitionState, mod_revision: int, what: str
    ) -> None:
        """Write what an administrator wants of a partition, once."""
        etcd_key = self.cluster.partition_key(key)
        compares: list[Compare] = [
            ModRevisionIs(etcd_key, mod_revision),
            *(
                CreateRevisionIs(self.cluster.keyspace.broker(each.broker_id), each.broker_epoch)
                for each in new_sessions(before, after)
            ),
        ]
        with contextlib.suppress(MetastoreUnavailableError):
            await self.etcd.txn(compares, [Put(etcd_key, encode(after))], what=f"{self.cluster.name_of(key)} {what}")

    def move(self, key: LogId, target: Sequence[int]) -> None:
        """Begin to move a partition's replicas."""
        entry = self._entry(key)
        if entry is None or entry.state.adding or entry.state.removing or set(target) == set(entry.state.replicas):
            return
        state = entry.state
        adding = [broker_id for broker_id in target if broker_id not in state.replicas]
        removing = [broker_id for broker_id in state.replicas if broker_id not in target]
        move = Move([*state.replicas, *adding], adding, removing)
        after = change(state, leader=state.leader, in_sync=state.in_sync, move=move)
        self.world.count("moves begun")
        self._spawn(self.administrate(key, state, after, entry.mod_revision, f"move to {list(target)}"))

    def move_leader(self, key: LogId, chosen: int) -> None:
        """Ask for a member of the in-sync set to lead, by its place (H24)."""
        entry = self._entry(key)
        if entry is None or not entry.state.in_sync:
            return
        state = entry.state
        leader = state.in_sync[chosen % len(state.in_sync)]
        if leader == state.leader or not is_session(leader, self.sessions()):
            return
        after = ask_hand_over(state, (leader,))
        self.world.count("hand-overs asked for")
        self._spawn(self.administrate(key, state, after, entry.mod_revision, f"leader to {leader}"))

    def elect_uncleanly(self, key: LogId) -> None:
        """Elect any replica that is alive, where a clean election is impossible (H21)."""
        entry = self._entry(key)
        if entry is None or electable(entry.state, live := self.sessions()):
            return
        self.world.count("unclean elections asked for")
        self.cluster.checks.unclean_allowed(key)
        after = elect_uncleanly(entry.state, live)
        if after is not None:
            self._spawn(self.administrate(key, entry.state, after, entry.mod_revision, "unclean election"))

    def drain(self, broker_id: int, *, undo: bool) -> None:
        """Take a broker out of service, or back."""
        key = self.cluster.keyspace.drained_broker(broker_id)
        operation = Delete(key) if undo else Put(key, metadata_pb2.DrainedBroker().SerializeToString())

        async def write() -> None:
            with contextlib.suppress(MetastoreUnavailableError):
                await self.etcd.txn([], [operation], what=f"{'undrain' if undo else 'drain'} b{broker_id}")

        self._spawn(write())
