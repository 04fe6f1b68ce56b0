"""A coordinator: stands for election as controller and writes what the shipped `change_partition` says.

The counterpart of `headrace_coordinator.runtime.controller`, with an administrator's acts beside it: moves, drains,
elections. Every write compares the key's version, the controller's own key and the sessions that it names (C1).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.wire.errors import MetastoreUnavailableError
from headrace_coordinator.core.control import change_partition, new_sessions
from headrace_coordinator.core.election import Session, elect_uncleanly, electable, is_session, sessions_of
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import PartitionKey
from headrace_server.metastore.api import (
    Compare,
    CreateRevisionIs,
    Delete,
    LeaseNotFoundError,
    ModRevisionIs,
    Put,
    VersionIs,
)
from headrace_server.partition_state import Move, PartitionState, change, encode

from tests.simulation.etcd import EtcdClient, describe_state
from tests.simulation.metadata import Metadata
from tests.simulation.world import NodeClock, WallClock, sleep, spawn

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

LEASE_TTL_MS = 3_000
RETRY_MS = 200
REBALANCE_MS = 3_000


class CoordinatorNode:
    """The machine; a coordinator keeps nothing."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.coordinator: Coordinator | None = None

    def start(self) -> None:
        """Start a process, where none runs."""
        if self.coordinator is None:
            self.coordinator = Coordinator(self)
            spawn(self.coordinator.process, self.coordinator.run())

    def kill(self) -> None:
        """End the process."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            self.cluster.world.note(self.name, "dies")
            coordinator.process.alive = False
            self.cluster.network.process_died(coordinator.process, silently=False)

    def restart(self) -> None:
        """Kill and start."""
        self.kill()
        self.start()


class Coordinator:
    """One life of the process."""

    def __init__(self, node: CoordinatorNode) -> None:
        cluster = node.cluster
        self.cluster = cluster
        self.world = cluster.world
        self.process = cluster.world.start_process(node.name)
        self.etcd = EtcdClient(cluster.etcd, self.process)
        self.metadata = Metadata(
            cluster.world,
            self.process,
            self.etcd,
            NodeClock(cluster.world, self.process, WallClock(0)),
            cluster.identity,
            relist_ms=cluster.relist_ms,
            on_rolled_back=node.restart,
        )
        self.epoch = 0
        """The controller epoch while elected."""
        self._lease_id = 0
        self._working: dict[int, None] = {}
        self._rebalance = False

    async def run(self) -> None:
        """Load the metadata, then stand for election for ever."""
        await self.metadata.load()
        self.metadata.view.subscribe(self._on_change)
        self.metadata.follow()
        spawn(self.process, self._keep_lease())
        self.world.after(REBALANCE_MS, self.process, "", self._rebalance_now)
        while True:
            await self._stand()
            await sleep(self.world, self.process, RETRY_MS)

    async def _stand(self) -> None:
        """One attempt at `ctl`, where nobody holds it."""
        key = self.cluster.keyspace.controller()
        present = self.metadata.source.get(key)
        if self.epoch:
            if self.metadata.source.revision >= self.epoch and (
                present is None or present.create_revision != self.epoch
            ):
                self._step_down()
            return
        try:
            if not self._lease_id:
                self._lease_id = (await self.etcd.grant_lease(LEASE_TTL_MS)).lease_id
            if present is not None and present.lease_id == self._lease_id:
                self._serve(present.create_revision)
            elif present is None:
                value = metadata_pb2.CoordinatorLive(coordinator_id=self.process.name).SerializeToString()
                result = await self.etcd.txn(
                    [VersionIs(key, 0)], [Put(key, value, self._lease_id)], what="stands for controller"
                )
                if result.succeeded:
                    self._serve(result.revision)
        except LeaseNotFoundError:
            self._lease_id = 0
        except MetastoreUnavailableError:
            pass

    def _serve(self, epoch: int) -> None:
        self.epoch = epoch
        self.world.count("controllers elected")
        self.look_at_all()

    def _step_down(self) -> None:
        self.world.note(self.process.name, f"is controller {self.epoch} no more")
        self.epoch = 0

    async def _keep_lease(self) -> None:
        while True:
            await sleep(self.world, self.process, LEASE_TTL_MS // 3)
            lease_id = self._lease_id
            if not lease_id:
                continue
            try:
                left_ms = await self.etcd.renew_lease(lease_id)
            except MetastoreUnavailableError:
                continue
            if left_ms == 0 and lease_id == self._lease_id:
                self._lease_id = 0
                if self.epoch:
                    self._step_down()

    def _rebalance_now(self) -> None:
        self._rebalance = True
        self.look_at_all()
        self._rebalance = False
        self.world.after(REBALANCE_MS, self.process, "", self._rebalance_now)

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        keyspace = self.cluster.keyspace
        for key in keys:
            if key.startswith((keyspace.live_prefix(), keyspace.topic_prefix(), f"{keyspace.prefix}drain/")):
                self.look_at_all()
                return
            parsed = keyspace.parse(key)
            if isinstance(parsed, PartitionKey):
                self._look_at(parsed.partition)

    def look_at_all(self) -> None:
        """Write what any partition's key is to become."""
        if not self.metadata.source.revision:
            return
        for number in self.cluster.partitions:
            self._look_at(number)

    def sessions(self) -> dict[int, Session]:
        """The registered brokers as this coordinator sees them."""
        view = self.metadata.view
        return sessions_of(
            [(int(broker_id), each.broker_epoch, each.live) for broker_id, each in view.brokers.items()],
            [int(broker_id) for broker_id in view.drained],
        )

    def _look_at(self, number: int) -> None:
        """Write what the partition's key is to become, one write at a time."""
        entry = self.metadata.view.partition(self.cluster.topic_id, number)
        if not self.epoch or entry is None or number in self._working:
            return
        setting = self.cluster.min_insync_replicas
        decision = change_partition(
            entry.state,
            self.sessions(),
            setting,
            rebalance=self._rebalance,
        )
        if decision is None:
            return
        self._working[number] = None
        self.world.count(f"controller: {decision.step.value}")
        if decision.after.unclean and not entry.state.unclean:
            self.cluster.checks.unclean_allowed(number)
        spawn(
            self.process,
            self._write(number, entry.mod_revision, entry.state, decision.after, decision.step.value),
        )

    async def _write(
        self, number: int, mod_revision: int, before: PartitionState, after: PartitionState, why: str
    ) -> None:
        epoch, keyspace = self.epoch, self.cluster.keyspace
        key = self.cluster.partition_key(number)
        compares: list[Compare] = [
            ModRevisionIs(key, mod_revision),
            CreateRevisionIs(keyspace.controller(), epoch),
            *self._registered(before, after),
        ]
        what = f"p{number} {why}: {describe_state(after)}"
        written = False
        with contextlib.suppress(MetastoreUnavailableError):
            result = await self.etcd.txn(compares, [Put(key, encode(after))], what=what, controller_epoch=epoch)
            written = result.succeeded
        await sleep(self.world, self.process, 20 if written else RETRY_MS)
        del self._working[number]
        self._look_at(number)

    # --- an administrator's acts ---

    async def administrate(
        self, number: int, before: PartitionState, after: PartitionState, mod_revision: int, what: str
    ) -> None:
        """Write what an administrator wants of a partition, once."""
        key = self.cluster.partition_key(number)
        with contextlib.suppress(MetastoreUnavailableError):
            await self.etcd.txn(
                [ModRevisionIs(key, mod_revision), *self._registered(before, after)],
                [Put(key, encode(after))],
                what=f"p{number} {what}",
            )

    def _registered(self, before: PartitionState, after: PartitionState) -> list[Compare]:
        keyspace = self.cluster.keyspace
        return [
            CreateRevisionIs(keyspace.live(each.broker_id), each.broker_epoch) for each in new_sessions(before, after)
        ]

    def move(self, number: int, target: Sequence[int]) -> None:
        """Begin to move a partition's replicas."""
        entry = self.metadata.view.partition(self.cluster.topic_id, number)
        if entry is None or entry.state.adding or entry.state.removing or set(target) == set(entry.state.replicas):
            return
        state = entry.state
        adding = [broker_id for broker_id in target if broker_id not in state.replicas]
        removing = [broker_id for broker_id in state.replicas if broker_id not in target]
        move = Move([*state.replicas, *adding], adding, removing)
        after = change(state, leader=state.leader, in_sync=state.in_sync, move=move)
        self.world.count("moves begun")
        spawn(self.process, self.administrate(number, state, after, entry.mod_revision, f"move to {list(target)}"))

    def move_leader(self, number: int, chosen: int) -> None:
        """Let a member of the in-sync set lead, by its place (H24)."""
        entry = self.metadata.view.partition(self.cluster.topic_id, number)
        if entry is None or not entry.state.in_sync:
            return
        state = entry.state
        leader = state.in_sync[chosen % len(state.in_sync)]
        if leader == state.leader or not is_session(leader, self.sessions()):
            return
        after = change(state, leader=leader, in_sync=state.in_sync)
        self.world.count("leaders moved")
        spawn(self.process, self.administrate(number, state, after, entry.mod_revision, f"leader to {leader}"))

    def elect_uncleanly(self, number: int) -> None:
        """Let whoever is there lead, where nobody can cleanly (H21)."""
        entry, live = self.metadata.view.partition(self.cluster.topic_id, number), self.sessions()
        if entry is None or electable(entry.state, live):
            return
        self.world.count("unclean elections asked for")
        self.cluster.checks.unclean_allowed(number)
        after = elect_uncleanly(entry.state, live)
        if after is not None:
            spawn(self.process, self.administrate(number, entry.state, after, entry.mod_revision, "unclean election"))

    def drain(self, broker_id: int, *, undo: bool) -> None:
        """Take a broker out of service, or back."""
        key = self.cluster.keyspace.drained(broker_id)
        operation = Delete(key) if undo else Put(key, metadata_pb2.DrainedBroker().SerializeToString())

        async def write() -> None:
            with contextlib.suppress(MetastoreUnavailableError):
                await self.etcd.txn([], [operation], what=f"{'undrain' if undo else 'drain'} b{broker_id}")

        spawn(self.process, write())
