"""The nemesis: at moments of its own it does one of the plan's faults, and later undoes it."""

from __future__ import annotations

import random

from tests.fakes.memory_filesystem import Loss
from tests.simulation.admin_faults import AdminFaults
from tests.simulation.cluster import Cluster
from tests.simulation.disk_faults import DiskFaults
from tests.simulation.faults import duration
from tests.simulation.machine import LOSSES, BrokerNode
from tests.simulation.plan import COLUMNS_CHANGE
from tests.simulation.shared_faults import SharedFaults


class Nemesis(SharedFaults, DiskFaults, AdminFaults):
    """All that may go wrong, by name; here what ends and stops the processes of brokers."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._acts = {
            "kill": self._kill,
            "power": self._power,
            "power all": self._power_all,
            "power in a call": self._power_in_a_call,
            "stop": self._stop,
            "pause": self._pause,
            "cut link": self._cut_link,
            "isolate": self._isolate,
            "deaf leader": self._deafen_leader,
            "client cut off": self._cut_client_off,
            "swizzle": self._swizzle,
            "break streams": self._break_streams,
            "break at a cut": self._break_at_a_cut,
            "etcd away": self._etcd_away,
            "etcd leader change": self._etcd_leader_change,
            "answers lost": self._lose_answers,
            "lease ends early": self._end_lease,
            "etcd compacts": self._compact,
            "coordinator dies": self._coordinator_dies,
            "coordinator pauses": self._coordinator_pauses,
            "disk error": self._disk_error,
            "disk full": self._disk_full,
            "disk refuses": self._refuse,
            "corruption": self._corruption,
            "rot": self._rot,
            "scrub": self._scrub,
            "disk replaced": self._replace_disk,
            "volume put back": self._put_volume_back,
            "clock jump": self._clock_jump,
            "clock wrong at a start": self._start_with_wrong_clock,
            "session renewed": self._renew_session,
            "drain": self._drain,
            "move leader": self._move_leader,
            "move": self._move,
            "delete records": self._delete_records,
            "minimum changes": self._change_minimum,
            "partitions added": self._grow,
            COLUMNS_CHANGE: self._change_columns,
            "durability changes": self._change_durability,
            "unclean election": self._elect_uncleanly,
            "topic made anew": self._make_topic_anew,
            "etcd put back": self._put_etcd_back,
        }

    def _die(self, chance: random.Random, loss: Loss, node: BrokerNode | None) -> bool:
        if node is None or not self._may_lose(loss):
            return False
        node.kill(loss)
        self._later(duration(chance), node.start)
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
            return False  # One that stops while another does may find no successor until its time is over.
        node.wanted = False
        broker.stop()
        self._later(2_000 + duration(chance), node.start)
        return True

    def _renew_session(self, chance: random.Random) -> bool:
        """A broker that leads nothing loses its registration and makes another one: its leaders' epochs continue.

        So does, for a while, each one in the moment in which it begins to cut its log.
        """
        running = [node.running for node in self.cluster.brokers.values()]
        followers = [each for each in running if each is not None and each.registered and not each.leads_any]
        if not followers or self.world.now_ms < self.cluster.etcd.away_until_ms:
            return False
        self._end_session(chance.choice(followers).broker_id)
        self._strike_at_cuts(chance, lambda broker: self._end_session(broker.broker_id))
        return True

    def _cut_client_off(self, chance: random.Random) -> bool:
        """No broker hears a client, or it hears none, or both."""
        client = chance.choice(self.cluster.clients).name
        brokers = [node.name for node in self.cluster.brokers.values()]
        ways = chance.choice(((True, False), (False, True), (True, True)))
        links = [(client, broker) for broker in brokers if ways[0]]
        links += [(broker, client) for broker in brokers if ways[1]]
        return self._cut(links, chance)

    def _pause(self, chance: random.Random) -> bool:
        node = self._victim(chance)
        broker = None if node is None else node.running
        if broker is None:
            return False
        self.world.pause(broker.process)
        self._later(duration(chance), lambda: self.world.resume(broker.process))
        return True
