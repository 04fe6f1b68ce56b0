"""The nemesis: at moments of its own it does one of the plan's faults, and later undoes it.

Each fault has a number. Its moment, kind and victims are drawn from a stream of chance that belongs to that number, so
that leaving one out (`Plan.skipped`) moves no other: what the shrinker needs.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial

from headrace_broker.storage.directory import LogId
from headrace_broker.storage.memory_filesystem import Loss

from tests.simulation.cluster import DAY_MS, Cluster
from tests.simulation.exercise import FAULT
from tests.simulation.host import Host
from tests.simulation.machine import LOSSES, BrokerNode


class Nemesis:
    """Owns no state but the number of the next fault."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.process = cluster.operator
        self.done: list[int] = []
        """The numbers of the faults that were done."""
        self._number = 0
        self._active = True
        self._acts: dict[str, Callable[[random.Random], bool]] = {
            "kill": self._kill,
            "power": self._power,
            "power all": self._power_all,
            "power in a call": self._power_in_a_call,
            "stop": self._stop,
            "pause": self._pause,
            "cut link": self._cut_link,
            "isolate": self._isolate,
            "deaf leader": self._deafen_leader,
            "swizzle": self._swizzle,
            "break streams": self._break_streams,
            "break at a cut": self._break_at_a_cut,
            "etcd away": self._etcd_away,
            "etcd leader change": self._etcd_leader_change,
            "answers lost": self._lose_answers,
            "lease ends early": self._end_lease,
            "etcd compacts": self._compact,
            "coordinator dies": self._coordinator_dies,
            "disk error": self._disk_error,
            "disk full": self._disk_full,
            "damage": self._damage,
            "scrub": self._scrub,
            "disk replaced": self._replace_disk,
            "volume put back": self._put_volume_back,
            "clock jump": self._clock_jump,
            "drain": self._drain,
            "move leader": self._move_leader,
            "move": self._move,
            "delete records": self._delete_records,
            "minimum changes": self._change_minimum,
            "durability changes": self._change_durability,
            "unclean election": self._elect_uncleanly,
            "topic made anew": self._make_topic_anew,
        }

    def start(self) -> None:
        """Begin."""
        if self.cluster.plan.faults:
            self._schedule()

    def stop(self) -> None:
        """Do nothing more; what is to be undone still is."""
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
        self._act(number, name, chance, _PATIENCE.get(name, 0))

    def _act(self, number: int, name: str, chance: random.Random, patience: int) -> None:
        """Do it, or wait for a cluster that it may meet; never once all is to be healed."""
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

    def _may_lose(self, loss: Loss) -> bool:
        """Async durability stands one loss at a time: everybody else has to be whole (docs/protocols/simulation.md)."""
        lossy = [key for key in self.cluster.partitions if not self.cluster.is_durable(key)]
        if loss is Loss.NOTHING or not lossy:
            return True
        return all(self.cluster.state(key).min_insync_replicas >= 2 for key in lossy) and self.cluster.is_whole()

    def _partition(self, chance: random.Random) -> LogId | None:
        """A partition of the topic; None while there is no topic."""
        partitions = self.cluster.partitions
        return chance.choice(partitions) if partitions else None

    # --- processes ---

    def _die(self, chance: random.Random, loss: Loss, node: BrokerNode | None) -> bool:
        if node is None or not self._may_lose(loss):
            return False
        node.kill(loss)
        self._later(_duration(chance), node.start)
        return True

    def _kill(self, chance: random.Random) -> bool:
        return self._die(chance, Loss.NOTHING, self._victim(chance))

    def _power(self, chance: random.Random) -> bool:
        return self._die(chance, chance.choice(LOSSES), self._victim(chance))

    def _power_all(self, chance: random.Random) -> bool:
        for node in self.cluster.brokers.values():
            self._die(chance, chance.choice((*LOSSES, Loss.NOTHING)), node)
        return True

    def _power_in_a_call(self, chance: random.Random) -> bool:
        """The machine stops at one of its next calls to the disk."""
        node = self._victim(chance)
        if node is None or not self._may_lose(Loss.ALL):
            return False
        node.filesystem.lose_power(after=chance.choice((0, 3, 12, 40)))
        return True

    def _stop(self, chance: random.Random) -> bool:
        node = self._victim(chance)
        broker = None if node is None else node.running
        if node is None or broker is None:
            return False
        everybody = [each.running for each in self.cluster.brokers.values()]
        if self.cluster.plan.is_orderly and any(each is None or each.stopping for each in everybody):
            return False  # One that stops while another does may find nobody to hand over to, until its time is over.
        node.wanted = False
        broker.stop()
        self._later(2_000 + _duration(chance), node.start)
        return True

    def _pause(self, chance: random.Random) -> bool:
        node = self._victim(chance)
        broker = None if node is None else node.running
        if broker is None:
            return False
        self.world.pause(broker.process)
        self._later(_duration(chance), lambda: self.world.resume(broker.process))
        return True

    def _coordinator_dies(self, chance: random.Random) -> bool:
        node = chance.choice(self.cluster.coordinators)
        node.kill()
        self._later(_duration(chance), node.start)
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
        until_ms = until_ms or _duration(chance)
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
            lambda: self._cut([("etcd", name)], chance, until_ms=1_000 + _duration(chance)),
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
        cluster = self.cluster
        cluster.breaks_at_cuts = True
        before, cluster.slow_disk_rate = cluster.slow_disk_rate, 0.5

        def end() -> None:
            cluster.breaks_at_cuts = False
            cluster.slow_disk_rate = min(before, cluster.slow_disk_rate)

        self._later(_duration(chance), end)
        return True

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

    # --- disks and clocks ---

    def _disk_error(self, chance: random.Random) -> bool:
        node = self._victim(chance)
        if node is None or not self._may_damage(node):
            return False
        operation = chance.choice(("fsync", "pwritev", "pread"))
        drops = chance if operation == "fsync" and chance.random() < 0.7 else None
        node.filesystem.fail(operation, errno.EIO, suffix=".log", drops=drops)
        return True

    def _disk_full(self, chance: random.Random) -> bool:
        node = self._victim(chance)
        if node is None:
            return False
        node.filesystem.capacity_bytes = node.filesystem._used_bytes() + chance.randrange(2_000)
        self._later(_duration(chance), lambda: setattr(node.filesystem, "capacity_bytes", 1 << 40))
        return True

    def _may_damage(self, node: BrokerNode) -> bool:
        """Damage may meet a minority: all others run, and everybody is in sync and undamaged."""
        return (
            all(other.running is not None for other in self.cluster.brokers.values())
            and self.cluster.plan.replication_factor >= 3
            and self.cluster.is_whole()
            and not any(s.damaged for p in self.cluster.checks.partitions.values() for s in p.replicas.values())
        )

    def _damage(self, chance: random.Random) -> bool:
        """Damage one log on one disk, below what its recovery point vouches for.

        A bit flips, the file ends early, or a write that was meant for another place went here.
        """
        node = self._victim(chance)
        if node is None or not self._may_damage(node):
            return False
        hosts = [host for host in _hosts(node) if host.is_open and host.log.flushed_offset > host.log.log_start_offset]
        if not hosts:
            return False
        host = chance.choice(hosts)
        host.log.checkpoint(host.broker.clock.now_ms(), host.replica.high_watermark, force=True)
        mark, directory = host.log._state.flushed, host.log.directory
        sizes = {
            int(name[:-4]): len(node.filesystem.content(f"{directory}/{name}"))
            for name in node.filesystem.list_directory(directory)
            if name.endswith(".log") and int(name[:-4]) <= mark.segment
        }
        sizes[mark.segment] = mark.position
        base_offset = chance.choice(sorted(sizes))
        if not sizes[base_offset]:
            return False
        path, position = f"{directory}/{base_offset:020d}.log", chance.randrange(sizes[base_offset])
        content, kind = node.filesystem.content(path), chance.choice(("flip", "flip", "cut", "misdirect"))
        block = min(len(content) - position, 512)
        source = chance.randrange(len(content) - block + 1)
        if content[source : source + block] == content[position : position + block]:
            kind = "flip"
        self.cluster.checks.damaged(node.broker_id, host.key)
        self.world.count(f"damage: {kind}")
        match kind:
            case "flip":
                node.filesystem.corrupt(path, position, 1 << chance.randrange(8))
            case "cut":
                node.filesystem.cut(path, position)
            case _:
                node.filesystem.overwrite(path, position, content[source : source + block])
        if chance.random() < 0.6:
            node.kill(Loss.NOTHING)
            self._later(_duration(chance), node.start)
        return True

    def _replace_disk(self, chance: random.Random) -> bool:
        """A machine comes back with an empty disk (H17, H42)."""
        node = self._victim(chance)
        if node is None or not self._may_damage(node):
            return False
        node.kill(Loss.ALL)
        node.replace_disk()
        self._later(_duration(chance), node.start)
        return True

    def _put_volume_back(self, chance: random.Random) -> bool:
        """A disk is put back to what was durable on it before its broker's present session (H16, H42)."""
        nodes = [
            node
            for node in self.cluster.brokers.values()
            if node.snapshot is not None and node.broker is not None and node.broker.registered
        ]
        if not nodes or not self._may_damage(nodes[0]):
            return False
        node = chance.choice(nodes)
        node.kill(Loss.ALL)
        node.put_back_disk()
        self._later(_duration(chance), node.start)
        return True

    def _scrub(self, chance: random.Random) -> bool:
        """A broker reads all that it has stored, to find what has rotted (H33)."""
        node = self._victim(chance)
        if node is None or node.broker is None:
            return False
        node.broker.scrub()
        return True

    def _clock_jump(self, chance: random.Random) -> bool:
        """Where records go by their age, a jump that is guarded against (H43)."""
        node = chance.choice(list(self.cluster.brokers.values()))
        jumps = (-3_600_000, -5_000, 5_000, 3_600_000)
        if self.cluster.plan.retention_ms >= 0:
            jumps = (-30 * DAY_MS, 30 * DAY_MS)
        node.wall.offset_ms += chance.choice(jumps)
        return True

    # --- administrators ---

    def _drain(self, chance: random.Random) -> bool:
        coordinator, broker_id = self.cluster.coordinator(), chance.choice(list(self.cluster.brokers))
        if coordinator is None:
            return False
        coordinator.drain(broker_id, undo=False)
        self._later(_duration(chance), lambda: self.cluster.undrain(broker_id))
        return True

    def _move_leader(self, chance: random.Random) -> bool:
        coordinator, key = self.cluster.coordinator(), self._partition(chance)
        if coordinator is None or key is None:
            return False
        coordinator.move_leader(key, chance.randrange(8))
        return True

    def _move(self, chance: random.Random) -> bool:
        coordinator, key = self.cluster.coordinator(), self._partition(chance)
        if coordinator is None or key is None:
            return False
        count = self.cluster.plan.replication_factor
        if count == len(self.cluster.brokers):
            count = max(self.cluster.plan.min_insync_replicas, 1) if chance.random() < 0.3 else count
        coordinator.move(key, chance.sample(sorted(self.cluster.brokers), count))
        return True

    def _delete_records(self, chance: random.Random) -> bool:
        key = self._partition(chance)
        host = None if key is None else self.cluster.leader_host(key)
        if host is None or host.broker.process.paused:
            return False
        start, end = int(host.log.log_start_offset), int(host.replica.high_watermark)
        host.broker.delete_records(host, start + chance.randrange(end - start + 1))
        return True

    def _change_minimum(self, chance: random.Random) -> bool:
        """The topic asks for more replicas in sync, or for as many as at first (H15, H30)."""
        plan = self.cluster.plan
        if not self.cluster.partitions:
            return False
        minimum = chance.randint(plan.min_insync_replicas, plan.replication_factor)
        self.cluster.configure(min_insync_replicas=str(minimum))
        return True

    def _change_durability(self, chance: random.Random) -> bool:
        """Only from a whole cluster to async: who lost power before comes back as one that async promises nothing."""
        running = all(node.running is not None for node in self.cluster.brokers.values())
        if not self.cluster.partitions or (self.cluster.flushed_only and not (running and self.cluster.is_whole())):
            return False
        self.cluster.change_durability(durable=not self.cluster.flushed_only)
        return True

    def _elect_uncleanly(self, chance: random.Random) -> bool:
        """All members of a partition's sets die; an administrator lets a replica lead that may lack records (H21)."""
        key = self._partition(chance)
        if key is None:
            return False
        state = self.cluster.state(key)
        members = {entry.broker_id for entry in (*state.in_sync, *state.eligible_leaders)}
        others = [broker_id for broker_id in state.replicas if broker_id not in members]
        if not any(self.cluster.host(broker_id, key) is not None for broker_id in others):
            return False
        for broker_id in sorted(members):
            node = self.cluster.brokers[broker_id]
            node.kill(Loss.NOTHING)
            self._later(6_000, node.start)
        self._later(4_000, lambda: self._ask_for_unclean(key))
        return True

    def _make_topic_anew(self, chance: random.Random) -> bool:
        """Delete the topic; another one gets its name, sooner or later."""
        if not self.cluster.partitions or not self.cluster.is_healthy():
            return False
        self.cluster.delete_topic()
        self._later(_duration(chance), self._create_topic)
        return True

    def _create_topic(self) -> None:
        if self._active and not self.cluster.partitions and not self.cluster.create_topic():
            self._later(300, self._create_topic)

    def _ask_for_unclean(self, key: LogId) -> None:
        coordinator = self.cluster.coordinator()
        if coordinator is not None:
            coordinator.elect_uncleanly(key)


_PATIENCE = {"damage": 8, "disk replaced": 8, "disk error": 8, "volume put back": 8}
"""These are tried so often again: the others have to be whole, and with other faults about they seldom are."""


def _hosts(node: BrokerNode) -> list[Host]:
    return list(node.broker.logs.values()) if node.broker is not None else []


def _duration(chance: random.Random) -> int:
    return chance.choice((50, 400, 1_500, 4_000))
