"""The cluster of one run of the simulation of consumer groups: etcd, two coordinators, members, topics that grow.

`prepare` brings the group up without faults; `finish` heals everything and waits for what liveness promises.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace_coordinator.core.group_encoding import encode_assignments
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, Operation, Put

from tests.simulation.etcd import Etcd, EtcdRates, run_now
from tests.simulation.group_calls import Calls
from tests.simulation.group_coordinator import GroupCoordinatorNode
from tests.simulation.group_invariants import GroupChecks
from tests.simulation.group_member import GROUP, MemberLife, Place
from tests.simulation.group_plan import GroupPlan
from tests.simulation.group_session import Shell
from tests.simulation.network import Network, NetworkRates
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import SimulationError, World

APPEND_MS = 60
CHECK_VIEWS_EVERY = 1_000
START_MS = 30_000
HEAL_MS = 120_000
"""Liveness is promised within this time after healing, plus the timeouts of the plan."""
MAX_HEAL_STEPS = 300_000
"""A group that does so much is busy with itself."""
LOOK_EVERY = 10
RESTART_MS = 700
SKEW_MS = 600_000
"""Coordinators' wall clocks are wrong by so much at most, before they jump."""


class GroupCluster:
    """Everything of one run. `step` does one event; keys are checked as they are written."""

    def __init__(self, plan: GroupPlan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.world = World(plan.seed, keep_trace=keep_trace)
        self.operator = self.world.start_process("op")
        self.network = Network(self.world, NetworkRates())
        self.etcd = Etcd(self.world, self.network, EtcdRates())
        self.identity = ClusterIdentity("simulation", "simulation", 1, b"s" * 32)
        self.keyspace = self.identity.keyspace
        self.relist_ms = 3_000 if plan.buggy_etcd else 60_000
        self.calls = Calls(self)
        self.checks = GroupChecks(self)
        self.dead_loops: list[VirtualLoop] = []
        self.shells: list[Shell] = []
        skew = self.world.chance("skew")
        self.coordinators = [
            GroupCoordinatorNode(self, name, skew.randrange(-SKEW_MS, SKEW_MS)) for name in ("c1", "c2")
        ]
        self.topics: dict[str, tuple[bytes, int]] = {}
        """Id and partitions by name."""
        self._ids: dict[bytes, str] = {}
        self._ends: dict[tuple[bytes, int], int] = {}
        self._chance = self.world.chance("topics")
        self._created = 0
        self._appends = True
        self.places = [self.draw_place(index) for index in range(plan.members)]
        self.wanted = [True] * plan.members
        """Whether a process is kept running in each place."""
        self.lives: list[list[MemberLife]] = [[] for _ in self.places]

    # --- parts ---

    def draw_place(self, index: int) -> Place:
        """What is started in a place; its subscription is drawn."""
        plan, chance = self.plan, self._chance
        names = [f"t{number}" for number in range(plan.topics)]
        pattern = "t*" if chance.random() < 0.25 else ""
        topics = names if chance.random() < 0.6 else chance.sample(names, 1 + chance.randrange(len(names)))
        return Place(
            name=f"m{index + 1}",
            instance_id=f"i{index + 1}" if index < plan.static else "",
            topics=() if pattern else tuple(topics),
            pattern=pattern,
            auto_commit=plan.auto_commit[index % len(plan.auto_commit)],
            rack=chance.choice(("", "r1", "r2")),
        )

    def coordinator_at(self, address: str) -> GroupCoordinatorNode | None:
        """Who listens there."""
        return next((node for node in self.coordinators if node.address == address), None)

    def start_life(self, index: int) -> MemberLife:
        """Start a process in a place, whether another one runs there or not."""
        life = MemberLife(self, self.places[index])
        self.world.note(life.process.name, f"starts: {life.place.topics or life.place.pattern}")
        self.lives[index].append(life)
        return life

    def alive(self, index: int) -> list[MemberLife]:
        """The processes of a place."""
        return [life for life in self.lives[index] if life.process.alive]

    def life_ended(self, ended: MemberLife) -> None:
        """A supervisor starts a place's process again after a while, where it is wanted and none runs."""
        index = next(index for index, lives in enumerate(self.lives) if ended in lives)
        self.lives[index].remove(ended)
        self.world.after(RESTART_MS, self.operator, "", lambda: self.supervise(index))

    def supervise(self, index: int) -> None:
        """See that a process runs where one is wanted."""
        if self.wanted[index] and not self.alive(index):
            self.start_life(index)

    # --- topics ---

    def create_topic(self, name: str, partitions: int) -> None:
        """Write what a coordinator writes of a new topic."""
        self._created += 1
        topic_id = self._created.to_bytes(16, "big")
        self.topics[name] = topic_id, partitions
        self._ids[topic_id] = name
        self.world.note("op", f"creates {name} with {partitions} partitions")
        self._write_topic(name)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Add partitions."""
        topic_id, before = self.topics[name]
        self.topics[name] = topic_id, max(before, partitions)
        self.world.note("op", f"{name} has {partitions} partitions")
        self._write_topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        topic_id, _ = self.topics.pop(name)
        del self._ids[topic_id]
        self.world.note("op", f"deletes {name}")
        operations: list[Operation] = [
            Delete(self.keyspace.topic(name)),
            Delete(self.keyspace.topic_by_id(topic_id)),
            Put(self.keyspace.deleted_topic(topic_id), metadata_pb2.DeletedTopic().SerializeToString()),
        ]
        run_now(self.etcd.store.txn([], operations))

    def _write_topic(self, name: str) -> None:
        topic_id, partitions = self.topics[name]
        topic = metadata_pb2.Topic(name=name, topic_id=topic_id, partitions=partitions, replication_factor=1)
        value = topic.SerializeToString()
        operations = [Put(self.keyspace.topic(name), value), Put(self.keyspace.topic_by_id(topic_id), value)]
        run_now(self.etcd.store.txn([], operations))

    def exists(self, topic_id: bytes) -> bool:
        """Whether the topic is there."""
        return topic_id in self._ids

    def end(self, partition: tuple[bytes, int]) -> int:
        """How many records a partition has."""
        return self._ends.get(partition, 0)

    def _append(self) -> None:
        if not self._appends:
            return
        for topic_id, partitions in self.topics.values():
            partition = topic_id, self._chance.randrange(partitions)
            self._ends[partition] = self._ends.get(partition, 0) + 1 + self._chance.randrange(3)
        self.world.after(APPEND_MS, self.operator, "", self._append)

    # --- events ---

    def step(self) -> None:
        """Do one event."""
        alive = self.world.step()
        assert alive, "etcd ticks for ever"
        if self.checks.failure is not None:
            raise self.checks.failure
        for node in self.coordinators:
            if node.coordinator is not None and node.coordinator.loop.failures:
                raise SimulationError("crash", f"{node.name}: {node.coordinator.loop.failures[0]}")
        if self.world.steps % CHECK_VIEWS_EVERY == 0:
            self.checks.check_views()

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Run until `condition` holds; return False if it does not within `within_ms`."""
        until_ms = self.world.now_ms + within_ms
        while not condition():
            if self.world.now_ms >= until_ms:
                return False
            self.step()
        return True

    # --- start and end ---

    def prepare(self) -> None:
        """Start everything."""
        for node in self.coordinators:
            live = metadata_pb2.CoordinatorLive(coordinator_id=node.name, address=node.address)
            run_now(self.etcd.store.txn([], [Put(self.keyspace.coordinator(node.name), live.SerializeToString())]))
            node.start()
        for number in range(self.plan.topics):
            self.create_topic(f"t{number}", self.plan.partitions)
        for index in range(len(self.places)):
            self.start_life(index)
        self._append()
        if not self.run_until(lambda: not self.unsettled(), START_MS):
            raise SimulationError("start", self.unsettled())

    def begin_faults(self) -> None:
        """Let the network and etcd misbehave as the plan says."""
        self.network.rates = self.plan.network_rates()
        self.etcd.rates = self.plan.etcd_rates()
        self.calls.late_rate = self.plan.late_request_rate

    def finish(self) -> None:
        """Heal everything, and wait until the group is whole and everything is committed."""
        self.world.note("op", "heals everything")
        self.network.rates = NetworkRates()
        self.network.unblock_all()
        self.etcd.rates = EtcdRates()
        self.etcd.lose_next_answers = 0
        self.etcd.away_until_ms = 0
        self.calls.late_rate = 0.0
        self._appends = False
        for node in self.coordinators:
            if node.coordinator is not None:
                self.world.resume(node.coordinator.process)
            node.start()
        for index, lives in enumerate(self.lives):
            self.wanted[index] = True
            for life in lives:
                life.slow_until_ms = 0
                self.world.resume(life.process)
            self.supervise(index)
        within_ms = HEAL_MS + self.plan.session_timeout_ms + self.plan.rebalance_timeout_ms
        last = self.world.steps + MAX_HEAL_STEPS

        def is_over() -> bool:
            steps = self.world.steps
            return steps > last or (steps % LOOK_EVERY == 0 and not self.unfinished())

        self.run_until(is_over, within_ms)
        if self.unfinished():
            raise SimulationError("liveness", self.unfinished())
        self.checks.check_views()

    def unfinished(self) -> str:
        """What is not yet in its final state; empty means nothing."""
        return self.unsettled() or self._uncommitted()

    def unsettled(self) -> str:
        """Why the group is not stable with exactly the processes that run; empty: it is."""
        group, now = self.checks.now.group, self.checks.now
        running = [life for index in range(len(self.places)) for life in self.alive(index)]
        ids = {life.member.membership.member_id for life in running}
        if len(running) != len(self.places) or ids != set(group.members):
            return f"{len(running)} processes run, the group has {len(group.members)} members"
        if not group.is_stable:
            return "the group is not stable"
        if set(now.assigned) != ids or set(now.live) != ids:
            return f"{len(now.assigned)} assignments and {len(now.live)} sessions of {len(ids)} members"
        derived = encode_assignments(group)
        for life in running:
            member_id = life.member.membership.member_id
            stored = self.etcd.store.now(self.keyspace.group_assignment(GROUP, member_id))
            if stored is None or stored.value != derived[member_id]:
                return f"the assignment of {life.place.name} is not what the state says"
            reads = {(tenure.topic_id, tenure.number): tenure.assignment_epoch for tenure in life.positions.values()}
            if reads != group.owned_by(member_id):
                return f"{life.place.name} reads {len(reads)}, owns {len(group.owned_by(member_id))} partitions"
        wanted = {
            (topic_id, number)
            for name, (topic_id, partitions) in self.topics.items()
            for number in range(partitions)
            if any(life.place.pattern or name in life.place.topics for life in running)
        }
        return "" if wanted == set(group.owners) else f"{len(wanted)} partitions, {len(group.owners)} are owned"

    def _uncommitted(self) -> str:
        for partition in self.checks.now.group.owners:
            stored = self.checks.now.offsets.get(partition)
            committed = 0 if stored is None else stored.offset
            if committed != self.end(partition):
                return f"{committed} of {self.end(partition)} records of {partition[1]} are committed"
        return ""

    def close(self) -> None:
        """Throw everything away."""
        for shell in self.shells:
            shell.close()
        loops = [node.coordinator.loop for node in self.coordinators if node.coordinator is not None]
        for loop in (*self.dead_loops, *loops):
            loop.close()
