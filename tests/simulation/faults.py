"""When the nemesis strikes and whom; what it does is in the classes that derive from this one.

Each fault has a number. Its moment, kind and victims are drawn from a stream of chance that belongs to that number, so
that leaving one out (`Plan.skipped`) moves no other: what the shrinker needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.log.directory import LogId

from tests.fakes.memory_filesystem import Loss
from tests.simulation.cluster import Cluster
from tests.simulation.exercise import DRAWN, FAULT
from tests.simulation.machine import BrokerNode

PATIENCE = {"corruption": 8, "disk replaced": 8, "disk error": 8, "volume put back": 20, "rot": 8}
"""These are tried so often again: the others have to be whole, and with other faults about they seldom are."""


class Faults:
    """Owns no state but the number of the next fault."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.process = cluster.operator
        self.done: list[int] = []
        """The numbers of the faults that were done."""
        self._number = 0
        self._active = True
        self._acts: dict[str, Callable[[random.Random], bool]] = {}

    def start(self) -> None:
        """Begin."""
        if self.cluster.plan.faults:
            self._schedule()

    def stop(self) -> None:
        """Do nothing more; pending undos still happen."""
        self._active = False

    def _schedule(self) -> None:
        self._number += 1
        chance = random.Random(f"{self.cluster.plan.seed}/fault/{self._number}")
        delay_ms = 1 + int(chance.expovariate(1 / self.cluster.plan.fault_period_ms))
        number = self._number
        self.world.after(delay_ms, self.process, "", lambda: self._do(number, chance))

    def _do(self, number: int, chance: random.Random) -> None:
        if not self._active:
            return
        self._schedule()
        plan = self.cluster.plan
        possible = plan.faults
        name = possible[chance.randrange(len(possible))]
        if number in plan.skipped:
            return
        self.world.note("op", f"fault {number}: {name}")
        self.world.count(DRAWN + name)
        self._act(number, name, chance, PATIENCE.get(name, 0))

    def _act(self, number: int, name: str, chance: random.Random, patience: int) -> None:
        """Do it, or wait for a cluster that it may meet; never after healing has begun."""
        if not self._active:
            return
        if self._acts[name](chance):
            self.done.append(number)
            self.world.count(FAULT + name)
        elif patience:
            self._later(300, lambda: self._act(number, name, chance, patience - 1))

    def _later(self, delay_ms: int, call: Callable[[], object]) -> None:
        self.world.after(delay_ms, self.process, "", call)

    def _victim(self, chance: random.Random) -> BrokerNode | None:
        """A broker that runs; more often one that leads."""
        running = [node for node in self.cluster.brokers.values() if node.running is not None]
        if not running:
            return None
        leading = [node for node in running if node.broker is not None and node.broker.leads_any]
        return chance.choice(leading if leading and chance.random() < 0.5 else running)

    def _end_session(self, broker_id: int) -> None:
        """End a broker's registration, where it has one."""
        live = self.cluster.etcd.store.now(self.cluster.keyspace.broker(broker_id))
        if live is not None:
            self.cluster.etcd.store.end_lease(live.lease_id)

    def _may_lose(self, loss: Loss) -> bool:
        """Async durability survives one loss at a time: all others have to be whole (docs/protocols/simulation.md)."""
        if loss is Loss.NOTHING or self.cluster.is_all_durable():
            return True
        if not self.cluster.partitions:
            return False  # One is being created with the present sessions.
        lossy = [key for key in self.cluster.partitions if not self.cluster.is_durable(key)]
        return all(self.cluster.state(key).min_insync_replicas >= 2 for key in lossy) and self.cluster.is_whole()

    def _partition(self, chance: random.Random) -> LogId | None:
        """A partition of the topic; None while there is no topic, or an etcd of the past."""
        partitions = [] if self.cluster.recovery.is_due else self.cluster.partitions
        return chance.choice(partitions) if partitions else None


def duration(chance: random.Random) -> int:
    """How long a fault lasts, in milliseconds."""
    return chance.choice((50, 400, 1_500, 4_000))
