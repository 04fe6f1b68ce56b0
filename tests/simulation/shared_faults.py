"""Faults of the network, of etcd and of coordinators: the same for replication and for consumer groups."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from tests.simulation.broker import Broker
from tests.simulation.faults import Faults, duration

LONG_MS = (200, 1_500, 5_000, 15_000)


class SharedFaults(Faults):
    """Each method does one fault and says whether it could."""

    def _coordinator_dies(self, chance: random.Random) -> bool:
        node = chance.choice(self.cluster.coordinators)
        node.kill()
        self._later(duration(chance), node.start)
        return True

    def _coordinator_pauses(self, chance: random.Random) -> bool:
        """Resumed, it handles what arrived meanwhile, on a view that is behind (H73), perhaps deposed (I14)."""
        coordinator = chance.choice(self.cluster.coordinators).coordinator
        if coordinator is None:
            return False
        self.world.pause(coordinator.process)
        self._later(chance.choice(LONG_MS), lambda: self.world.resume(coordinator.process))
        return True

    # --- network ---

    def _names(self) -> list[str]:
        return [node.name for node in self.cluster.brokers.values()] + ["c1", "c2", "etcd"]

    def _cut(
        self, links: list[tuple[str, str]], chance: random.Random, *, swizzle: bool = False, until_ms: int = 0
    ) -> bool:
        for source, target in links:
            self.cluster.network.block(source, target)
        if swizzle:
            chance.shuffle(links)
        until_ms = until_ms or duration(chance)
        for source, target in links:
            until_ms += chance.randrange(300) if swizzle else 0
            self._later(until_ms, partial(self.cluster.network.unblock, source, target))
        return True

    def _cut_link(self, chance: random.Random) -> bool:
        source, target = chance.sample(self._names(), 2)
        links = [(source, target)]
        if chance.random() < 0.5:
            links.append((target, source))
        return self._cut(links, chance)

    def _isolate(self, chance: random.Random) -> bool:
        """One broker from the other brokers, from etcd, or from both."""
        node = self._victim(chance)
        if node is None:
            return False
        kind = chance.randrange(3)
        others = [name for name in self._names() if name != node.name]
        if kind == 0:
            others = [name for name in others if name.startswith("b")]
        elif kind == 1:
            others = ["etcd"]
        return self._cut([link for other in others for link in ((node.name, other), (other, node.name))], chance)

    def _deafen_leader(self, chance: random.Random) -> bool:
        """A follower goes and comes back; before or after it went the leader hears nothing from etcd (H11, H12)."""
        key = self._partition(chance)
        leader = None if key is None else self.cluster.leader_host(key)
        if leader is None:
            return False
        name = leader.broker.process.name
        followers = [f"b{each}" for each in self.cluster.state(leader.key).replicas if f"b{each}" != name]
        if followers:
            follower = chance.choice(followers)
            self._cut([(name, follower), (follower, name)], chance, until_ms=2_200 + chance.randrange(800))
        self._later(
            chance.choice((0, 2_000, 2_200)),
            lambda: self._cut([("etcd", name)], chance, until_ms=1_000 + duration(chance)),
        )
        return True

    def _swizzle(self, chance: random.Random) -> bool:
        names = [name for name in self._names() if chance.random() < 0.5]
        links = [(a, b) for a in names for b in names if a != b]
        return self._cut(links, chance, swizzle=True)

    def _break_streams(self, chance: random.Random) -> bool:
        return self.cluster.network.break_some(chance.choice((0.2, 1.0))) > 0

    def _break_at_a_cut(self, chance: random.Random) -> bool:
        """For a while a follower that begins to cut its log loses its stream in that moment, and its disk is slow."""
        self._strike_at_cuts(chance, lambda broker: self.cluster.network.break_at(broker.process))
        return True

    def _strike_at_cuts(self, chance: random.Random, strike: Callable[[Broker], object]) -> None:
        cluster = self.cluster
        cluster.strikes_at_cuts.append(strike)
        before, cluster.slow_disk_rate = cluster.slow_disk_rate, 0.5

        def end() -> None:
            if strike in cluster.strikes_at_cuts:
                cluster.strikes_at_cuts.remove(strike)
            cluster.slow_disk_rate = min(before, cluster.slow_disk_rate)

        self._later(duration(chance), end)

    # --- etcd ---

    def _etcd_away(self, chance: random.Random) -> bool:
        self.cluster.etcd.away_until_ms = self.world.now_ms + chance.choice((500, 2_000, 6_000, 60_000))
        return True

    def _etcd_leader_change(self, chance: random.Random) -> bool:
        """A pause, and every lease has its time anew (H75)."""
        self.cluster.etcd.away_until_ms = self.world.now_ms + 200 + chance.randrange(800)
        self.cluster.etcd.store.prolong_leases(1_000 + chance.randrange(3_000))
        return True

    def _lose_answers(self, chance: random.Random) -> bool:
        self.cluster.etcd.lose_next_answers = 1 + chance.randrange(4)
        return True

    def _compact(self, chance: random.Random) -> bool:
        """etcd forgets its history: a watch that is opened anew behind it has to read everything (H80)."""
        etcd = self.cluster.etcd
        if not etcd.compact() or chance.random() < 0.5:
            return False
        self.cluster.network.break_some(0.5)
        return True

    def _end_lease(self, chance: random.Random) -> bool:
        leases = self.cluster.etcd.store.lease_ids()
        if not leases or self.world.now_ms < self.cluster.etcd.away_until_ms:
            return False
        self.cluster.etcd.store.end_lease(chance.choice(leases))
        return True
