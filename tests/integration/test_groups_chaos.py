"""Faults drawn by a seed under a group of real processes: every record is delivered, and none again that was committed.

One short run belongs to the tests; `make chaos` runs more seeds, and longer: HEADRACE_TEST_GROUP_RUNS,
HEADRACE_TEST_CHAOS_SEED (the first), HEADRACE_TEST_GROUP_SECONDS. The seed fixes which faults come and for how long
each lasts; what the machine makes of them differs from run to run, so what is found here becomes a scenario of the
simulator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import time
from collections.abc import Iterator

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.service import LocalService

from tests.integration.chaos_machine import Machine
from tests.integration.gates import Gate
from tests.integration.group_chaos import EtcdHistory, MemberProcess, check_members, delivered
from tests.integration.replicated import Writer, until

RUNS = int(os.environ.get("HEADRACE_TEST_GROUP_RUNS", "1"))
FIRST_SEED = int(os.environ.get("HEADRACE_TEST_CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("HEADRACE_TEST_GROUP_SECONDS", "6"))
TOPIC = "shared"
PARTITIONS = 6
KINDS = ("read", "run", "read", "run")
SESSION_MS = 1_500
CATCH_UP_SECONDS = 90.0
HOLD_SECONDS = (0.1, 0.5, 1.0, 2.0, 3.5)
"""How long faults last: some longer than a session."""


class World:
    """A cluster whose coordinators have gates on both sides, a group on it, and the faults that may happen to them."""

    def __init__(self, cluster: LocalCluster, seed: int, stack: contextlib.ExitStack) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.past: list[MemberProcess] = []
        self.etcd_gates: list[Gate] = []
        self.member_gates: list[Gate] = []
        self.machines: list[Machine] = []
        for index, part in enumerate(cluster.coordinators):
            self.etcd_gates.append(stack.enter_context(Gate(cluster.etcd.endpoint)))
            self.member_gates.append(stack.enter_context(Gate(part.address)))
            self.machines.append(Machine(cluster.directory / f"machine-{part.name}"))
            self._put_behind_gates(index, part)
        self.servers = ",".join(gate.address for gate in self.member_gates)
        self.members = [self._join(kind) for kind in KINDS]
        stack.callback(self._end)

    def _put_behind_gates(self, index: int, part: LocalService) -> None:
        part.stop()
        settings = {
            **part.spec.settings,
            "etcd_endpoints": self.etcd_gates[index].address,
            "advertised_address": self.member_gates[index].address,
        }
        port = int(part.address.rpartition(":")[2])
        behind = LocalService(
            dataclasses.replace(part.spec, port=port, settings=settings, environment=self.machines[index].environment)
        )
        self.cluster.coordinators[index] = behind
        self.cluster.restart(behind)

    def _join(self, kind: str) -> MemberProcess:
        return MemberProcess(self.servers, TOPIC, kind, SESSION_MS)

    def everybody(self) -> list[MemberProcess]:
        """All members that there are and were."""
        return self.past + self.members

    def has_delivered(self, wanted: dict[int, set[int]]) -> bool:
        """Whether every record was delivered; fails if a member has ended by itself."""
        for member in self.members:
            member.check_alive()
        return delivered(self.everybody()) == wanted

    def _end(self) -> None:
        for member in self.members:
            member.kill()

    def leave(self) -> None:
        """Let all members leave cleanly."""
        while self.members:
            self.past.append(self.members.pop())
            self.past[-1].stop()

    # --- faults ---

    def strike(self) -> str:
        """Let one fault come, or two of different kinds at once, for a time; say what it was."""
        kinds = sorted(self.chance.sample(range(4), self.chance.choice((1, 1, 2))))
        drawn = [self.chance.choice(FAULTS[kind]) for kind in kinds]
        with contextlib.ExitStack() as stack:
            names = [stack.enter_context(fault(self)) for fault in drawn]
            seconds = self.chance.choice(HOLD_SECONDS)
            over = time.monotonic() + seconds
            until(lambda: time.monotonic() >= over, "the fault's end")
        return f"{' and '.join(names)} for {seconds:g} s"

    @contextlib.contextmanager
    def kill_member(self) -> Iterator[str]:
        index = self.chance.randrange(len(self.members))
        self.members[index].kill()
        self.past.append(self.members.pop(index))
        yield f"kill a {self.past[-1].kind} member"
        self.members.append(self._join(self.past[-1].kind))

    @contextlib.contextmanager
    def pause_member(self) -> Iterator[str]:
        member = self.chance.choice(self.members)
        member.pause()
        try:
            yield f"pause a {member.kind} member"
        finally:
            member.resume()

    @contextlib.contextmanager
    def add_member(self) -> Iterator[str]:
        member = self._join(self.chance.choice(KINDS))
        self.members.append(member)
        yield f"one more {member.kind} member"
        self.members.remove(member)
        self.past.append(member)
        member.kill()

    @contextlib.contextmanager
    def kill_coordinator(self) -> Iterator[str]:
        part = self.chance.choice(self.cluster.coordinators)
        part.kill()
        try:
            yield f"kill {part.name}"
        finally:
            self.cluster.restart(part)

    @contextlib.contextmanager
    def pause_coordinator(self) -> Iterator[str]:
        part = self.chance.choice(self.cluster.coordinators)
        part.pause()
        try:
            yield f"pause {part.name}"
        finally:
            part.resume()

    @contextlib.contextmanager
    def wrong_clock(self) -> Iterator[str]:
        """A coordinator starts with a clock that is wrong, and once more with the right one."""
        index = self.chance.randrange(len(self.machines))
        part, hours = self.cluster.coordinators[index], self.chance.choice((-720, 48, 720))
        part.kill()
        self.machines[index].set_clock(hours * 3_600_000)
        self.cluster.restart(part)
        try:
            yield f"a clock of {part.name} that is wrong by {hours} hours"
        finally:
            part.kill()
            self.machines[index].set_clock(0)
            self.cluster.restart(part)

    @contextlib.contextmanager
    def cut_coordinator_off_etcd(self) -> Iterator[str]:
        with _shut([self.chance.choice(self.etcd_gates)]):
            yield "cut a coordinator off etcd"

    @contextlib.contextmanager
    def cut_members_off_coordinator(self) -> Iterator[str]:
        with _shut([self.chance.choice(self.member_gates)]):
            yield "cut the members off a coordinator"

    @contextlib.contextmanager
    def cut_members_off(self) -> Iterator[str]:
        with _shut(self.member_gates):
            yield "cut the members off all coordinators"

    @contextlib.contextmanager
    def pause_etcd(self) -> Iterator[str]:
        self.cluster.etcd.pause()
        try:
            yield "pause etcd"
        finally:
            self.cluster.etcd.resume()

    @contextlib.contextmanager
    def kill_etcd(self) -> Iterator[str]:
        self.cluster.etcd.kill()
        try:
            yield "kill etcd"
        finally:
            self.cluster.restart_etcd()


@contextlib.contextmanager
def _shut(gates: list[Gate]) -> Iterator[None]:
    for gate in gates:
        gate.shut()
    try:
        yield
    finally:
        for gate in gates:
            gate.open()


FAULTS = (
    # They come in this order and go in the opposite one: a coordinator starts when etcd is there to be reached.
    (World.kill_member, World.pause_member, World.add_member),
    (World.kill_coordinator, World.pause_coordinator, World.wrong_clock),
    (World.cut_coordinator_off_etcd, World.cut_members_off_coordinator, World.cut_members_off),
    (World.pause_etcd, World.kill_etcd),
)


@pytest.fixture(scope="module")
def totals() -> Iterator[dict[str, int]]:
    """Sums over all seeds, printed at the end where there are several."""
    sums: dict[str, int] = {}
    yield sums
    if RUNS > 1:
        print("\nall runs:", ", ".join(f"{number} {name}" for name, number in sums.items()))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
def test_whatever_befalls_a_group_every_record_is_delivered(seed: int, totals: dict[str, int]) -> None:
    """I24, I26, I27, I29: see `Registries` and `check_members`; and every record was delivered."""
    with contextlib.ExitStack() as stack:
        spec = LocalClusterSpec(brokers=1, broker_settings={"lease_ttl_ms": 15_000})
        cluster = stack.enter_context(LocalCluster(spec))
        history = stack.enter_context(EtcdHistory(cluster.etcd.endpoint))
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, PARTITIONS, replication_factor=1)
        world = World(cluster, seed, stack)
        faults = []
        with Writer(world.servers, TOPIC, PARTITIONS) as writer:
            until(lambda: len(delivered(world.members)) == PARTITIONS, "records of every partition")
            over = time.monotonic() + SECONDS
            while time.monotonic() < over:
                faults.append(world.strike())
                print(f"seed {seed}: {faults[-1]}")
        assert writer.failure is None, writer.failure
        wanted = {number: {*range(len(writer.futures[number::PARTITIONS]))} for number in range(PARTITIONS)}
        healed = time.monotonic()
        until(lambda: world.has_delivered(wanted), "every record", CATCH_UP_SECONDS)
        caught_up = time.monotonic() - healed
        world.leave()
        registries = history.finish()
    check_members(world.past)
    assert registries.broken == []
    assert sorted(registries.offsets.values()) == sorted(map(len, wanted.values()))
    deliveries = sum(line.end - line.first for m in world.past for line in m.lines if line.what == "deliver")
    found = {
        "faults": len(faults),
        "records": len(writer.futures),
        "delivered again": deliveries - len(writer.futures),
        "commits in etcd": registries.commits,
        "grants": registries.grants,
        "revisions": registries.revisions,
    }
    print(f"seed {seed}: caught up in {caught_up:.1f} s;", ", ".join(f"{n} {name}" for name, n in found.items()))
    for name, number in found.items():
        totals[name] = totals.get(name, 0) + number
