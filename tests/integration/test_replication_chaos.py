"""Faults drawn by a seed, one after another, under a producer and a consumer: nothing is lost, doubled or out of order.

For `make chaos`: runs only where HEADRACE_TEST_CHAOS_SECONDS says for how long. The seed fixes which faults come and
for how long each lasts; what the machine makes of them differs from run to run, so what is found here becomes a
scenario of the simulator.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable

import pytest
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.etcd import Etcd

from tests.integration.replicated import BROKER_SETTINGS, Follower, Gate, Replicated, Writer, until

CHAOS_SECONDS = float(os.environ.get("HEADRACE_TEST_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("HEADRACE_TEST_CHAOS_SEED", "1"))


class Nemesis:
    """Does one fault at a time and heals it, so that two of three brokers can always come together again."""

    def __init__(self, replicated: Replicated, gates: dict[int, Gate], chance: random.Random) -> None:
        self._replicated = replicated
        self._gates = gates
        self._chance = chance
        self.faults: list[Callable[[int], None]] = [
            self.kill, self.kill_two, self.restart, self.pause, self.pause_etcd, self.drain,
        ]  # fmt: skip
        if gates:
            self.faults += [self.cut_off, self.cut_off_beside_a_pause]
        if len(replicated.cluster.etcd_members) > 1:
            self.faults += [self.stop_etcd_leader, self.lose_machine]

    def strike(self) -> str:
        """Draw a fault, do it, and say what it was."""
        fault, broker_id = self._chance.choice(self.faults), self._chance.choice((1, 2, 3))
        fault(broker_id)
        return f"{fault.__name__} {broker_id}"

    def hold(self) -> None:
        """Let the fault last, up to twice the time of a lease."""
        over = time.monotonic() + self._chance.choice((0.0, 0.1, 0.5, 1.0, 2.5, 4.0))
        until(lambda: time.monotonic() >= over, "the fault's end")

    def kill(self, broker_id: int) -> None:
        broker = self._replicated.broker(broker_id)
        broker.kill()
        self.hold()
        self._replicated.cluster.restart(broker)

    def kill_two(self, broker_id: int) -> None:
        brokers = [self._replicated.broker(broker_id), self._replicated.broker(broker_id % 3 + 1)]
        for broker in brokers:
            broker.kill()
        self.hold()
        for broker in reversed(brokers):
            self._replicated.cluster.restart(broker)

    def restart(self, broker_id: int) -> None:
        broker = self._replicated.broker(broker_id)
        broker.stop()
        self.hold()
        self._replicated.cluster.restart(broker)

    def pause(self, broker_id: int) -> None:
        broker = self._replicated.broker(broker_id)
        broker.pause()
        self.hold()
        broker.resume()

    def cut_off(self, broker_id: int) -> None:
        self._gates[broker_id].shut()
        self.hold()
        self._gates[broker_id].open()

    def cut_off_beside_a_pause(self, broker_id: int) -> None:
        other = self._replicated.broker(broker_id % 3 + 1)
        self._gates[broker_id].shut()
        other.pause()
        self.hold()
        self._gates[broker_id].open()
        self.hold()
        other.resume()

    def pause_etcd(self, _: int) -> None:
        member = self.etcd_leader()
        member.pause()
        self.hold()
        member.resume()

    def stop_etcd_leader(self, _: int) -> None:
        member = self.etcd_leader()
        member.stop()
        self.hold()
        self._replicated.cluster.restart_etcd(member)

    def lose_machine(self, broker_id: int) -> None:
        """A broker stops in good order, and the member of etcd that leads falls silent as it does."""
        member, broker = self.etcd_leader(), self._replicated.broker(broker_id)
        member.pause()
        broker.stop()
        self.hold()
        member.resume()
        self._replicated.cluster.restart(broker)

    def etcd_leader(self) -> Etcd:
        """The member that leads, once one does."""

        def leader() -> Etcd | None:
            return next((member for member in self._replicated.cluster.etcd_members if member.is_leader()), None)

        found = until(leader, "a leader of etcd")
        assert found is not None
        return found

    def drain(self, broker_id: int) -> None:
        admin = self._replicated.admin
        until(lambda: admin.drain_broker(broker_id), "a drain")
        self.hold()
        until(lambda: admin.undrain_broker(broker_id), "its end")


@pytest.mark.skipif(not CHAOS_SECONDS, reason="HEADRACE_TEST_CHAOS_SECONDS says how long; see make chaos")
@pytest.mark.timeout(300 + 10 * CHAOS_SECONDS)
@pytest.mark.parametrize("durability", ["fsync", "async"])
@pytest.mark.parametrize("etcd_members", [1, 3])
def test_faults_at_random(own_cluster: Callable[..., LocalCluster], durability: str, etcd_members: int) -> None:
    """I1, I15, I20, I21, L1: whatever comes in whatever order, what was acknowledged stands there once, in order."""
    cluster = own_cluster(coordinators=1, etcd_members=etcd_members, broker_settings=BROKER_SETTINGS)
    replicated = Replicated(cluster)
    with contextlib.closing(replicated), contextlib.ExitStack() as stack:
        gates: dict[int, Gate] = {}
        if etcd_members == 1:  # A gate is a way to one endpoint.
            gates = {broker_id: stack.enter_context(Gate(cluster.etcd.endpoint)) for broker_id in (1, 2, 3)}
        for broker_id, gate in gates.items():
            replicated.reconfigure(broker_id, etcd_endpoints=gate.address)
        replicated.create("chaos", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas=2, durability=durability)
        nemesis = Nemesis(replicated, gates, random.Random(SEED))
        with Follower(replicated.servers, "chaos", 3) as follower:
            with Writer(replicated.servers, "chaos", 3, request_timeout_ms=3_000) as writer:
                over = time.monotonic() + CHAOS_SECONDS
                while time.monotonic() < over:
                    done = nemesis.strike()
                    writer.wait_for(50)
                    print(f"seed {SEED}: {done}; {len(writer.acknowledged_at)} acknowledged")
                replicated.wait_in_sync("chaos")
                writer.wait_for(200)
            follower.wait_for(len(writer.receipts))
        writer.check(replicated)
        follower.check(writer)
    assert all("Traceback" not in broker.log_file.read_text() for broker in replicated.cluster.brokers)
