"""The cluster of one run: brokers, coordinators, clients and etcd in one world, and the end of a run.

`prepare` brings it up without faults and creates the topic as a coordinator does. `finish` heals everything, waits for
what liveness promises, reads every replica and lets `history` judge.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.wire.batch import iter_batches
from headrace_broker.core.replica import Role
from headrace_broker.storage.memory_filesystem import Loss, PowerLost
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Put
from headrace_server.partition_state import PartitionState, Replica, encode

from tests.simulation.broker import Broker
from tests.simulation.clients import Consumer, Producer
from tests.simulation.coordinator import Coordinator, CoordinatorNode
from tests.simulation.etcd import Etcd, EtcdRates, run_now
from tests.simulation.history import Final, Poll, Send, check
from tests.simulation.host import Host
from tests.simulation.invariants import Checks
from tests.simulation.machine import LOSSES, BrokerNode
from tests.simulation.metadata import Metadata
from tests.simulation.network import Network, NetworkRates
from tests.simulation.plan import Plan
from tests.simulation.world import Process, SimulationError, World

FULL_CHECK_EVERY = 100
START_MS = 5_000
HEAL_MS = 60_000
"""Liveness is promised within so long after healing."""
TOPIC_ID = bytes(range(16))


class Cluster:
    """Everything of one run. `step` does one event and checks what it touched."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.world = World(plan.seed, keep_trace=keep_trace)
        self.world.on_power_lost = self._lose_power
        self.operator = self.world.start_process("op")
        self.network = Network(self.world, NetworkRates())
        self.etcd = Etcd(self.world, self.network, EtcdRates())
        self.identity = ClusterIdentity("simulation", "simulation", 1)
        self.keyspace = self.identity.keyspace
        self.topic_id = TOPIC_ID
        self.partitions = tuple(range(plan.partitions))
        self.flushed_only = plan.durable
        self.not_durable_from: dict[int, int] = {}
        """The newest partition epoch that somebody proposed and that promises only what async does, by partition."""
        self.min_insync_replicas = plan.min_insync_replicas
        self.slow_disk_rate = 0.0
        self.relist_ms = 2_500 if plan.buggy_etcd else 8_000
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.checks = Checks(self)
        self.brokers = {number: BrokerNode(self, number) for number in range(1, plan.brokers + 1)}
        self.coordinators = [CoordinatorNode(self, "c1"), CoordinatorNode(self, "c2")]
        self.producers = [
            Producer(self, number, acks, plan.produce_period_ms) for number, acks in enumerate(plan.producers)
        ]
        self.consumers = [
            Consumer(self, 2 * number + follower, number, follower=bool(follower), period_ms=120 + 60 * follower)
            for number in self.partitions
            for follower in (0, 1)
        ]
        self._orders = 0

    def next_order(self) -> int:
        """Count what clients did."""
        self._orders += 1
        return self._orders

    def partition_key(self, number: int) -> str:
        """The key of a partition."""
        return self.keyspace.partition(self.topic_id, number)

    def state(self, number: int) -> PartitionState:
        """A partition's key as it stands in etcd."""
        state = self.checks.partitions[number].state
        assert state is not None, "prepare comes first"
        return state

    def is_durable(self, number: int) -> bool:
        """Whether a partition's key promises what fsync does, and no write on its way to etcd can end that any more."""
        state = self.state(number)
        return state.durable and self.not_durable_from.get(number, 0) <= state.partition_epoch

    # --- events ---

    def step(self) -> None:
        """Do one event and check what it touched."""
        alive = self.world.step()
        assert alive, "etcd ticks for ever"
        self.checks.after_event()
        if self.world.steps % FULL_CHECK_EVERY == 0:
            self.checks.check_all()

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Go on until `condition` holds; False where it does not within `within_ms`."""
        until_ms = self.world.now_ms + within_ms
        while not condition():
            if self.world.now_ms >= until_ms:
                return False
            self.step()
        return True

    def run_for(self, duration_ms: int) -> None:
        """Go on for virtual time."""
        self.run_until(lambda: False, duration_ms)

    # --- start ---

    def prepare(self) -> None:
        """Start everything and create the topic."""
        for coordinator in self.coordinators:
            coordinator.start()
        for node in self.brokers.values():
            node.start()
        if not self.run_until(self._is_up, START_MS):
            raise SimulationError("start", "the brokers do not register")
        self._create_topic()
        if not self.run_until(self.is_healthy, START_MS):
            raise SimulationError("start", "the topic has no leaders")
        for producer in self.producers:
            producer.start()
        for consumer in self.consumers:
            consumer.start()

    def _is_up(self) -> bool:
        registered = all(node.broker is not None and node.broker.registered for node in self.brokers.values())
        return registered and self.etcd.store.now(self.keyspace.controller()) is not None

    def _create_topic(self) -> None:
        """Write what a coordinator writes: all replicas in sync, the first leads in epoch 0."""
        plan = self.plan
        topic = metadata_pb2.Topic(
            name="t",
            topic_id=self.topic_id,
            partitions=plan.partitions,
            replication_factor=plan.replication_factor,
            configs={"min_insync_replicas": str(plan.min_insync_replicas)},
        )
        value = topic.SerializeToString()
        operations = [Put(self.keyspace.topic("t"), value), Put(self.keyspace.topic_by_id(self.topic_id), value)]
        ids = sorted(self.brokers)
        for number in self.partitions:
            replicas = [ids[(number + index) % len(ids)] for index in range(plan.replication_factor)]
            members = tuple(Replica(each, self.broker_epoch(each)) for each in replicas)
            state = PartitionState(
                replicas=tuple(replicas),
                leader=members[0],
                leader_epoch=0,
                in_sync=members,
                min_insync_replicas=plan.min_insync_replicas,
                durable=plan.durable,
            )
            operations.append(Put(self.partition_key(number), encode(state)))
        run_now(self.etcd.store.txn([], operations))

    def broker_epoch(self, broker_id: int) -> int:
        """The session of a broker that runs."""
        broker = self.brokers[broker_id].broker
        assert broker is not None, f"b{broker_id} runs"
        return broker.broker_epoch

    def change_durability(self, *, durable: bool) -> None:
        """Change the topic's setting; brokers take it up when they hear of it (H30)."""
        self.flushed_only = durable
        for node in self.brokers.values():
            broker = node.broker
            if broker is not None:
                delay_ms = self.world.chance("configs").randrange(400)
                self.world.after(delay_ms, broker.process, f"takes up durable {durable}", broker.take_up_durability)
        self.look_again()

    def look_again(self) -> None:
        """The topic's settings changed: coordinators look at all partitions."""
        for node in self.coordinators:
            if node.coordinator is not None:
                self.world.after(20, node.coordinator.process, "", node.coordinator.look_at_all)

    def _lose_power(self, lost: PowerLost) -> None:
        """A machine stopped, or only the process on it, in the middle of what it wrote (H22, H25)."""
        node = next(each for each in self.brokers.values() if each.filesystem is lost.filesystem)
        chance = self.world.chance(f"stop/{node.name}")
        self.world.count("machines that stopped in the middle of a call")
        node.kill(chance.choice((*LOSSES, Loss.NOTHING)), in_a_call=True)
        self.world.after(50 + chance.randrange(3_000), self.operator, "", node.start)

    def begin_faults(self) -> None:
        """Let the network, etcd and disks misbehave as the plan says."""
        self.network.rates = self.plan.network_rates()
        self.etcd.rates = self.plan.etcd_rates()
        self.slow_disk_rate = self.plan.slow_disk_rate

    # --- questions ---

    def caches(self) -> list[tuple[Process, Metadata]]:
        """All live processes' views of etcd."""
        nodes = [node.broker for node in self.brokers.values()] + [node.coordinator for node in self.coordinators]
        return [(node.process, node.metadata) for node in nodes if node is not None]

    def coordinator(self) -> Coordinator | None:
        """A coordinator that an administrator can ask."""
        for node in self.coordinators:
            if node.coordinator is not None and node.coordinator.metadata.source.revision:
                return node.coordinator
        return None

    def host(self, broker_id: int, partition: int = 0) -> Host | None:
        """A partition at a broker, where there is one."""
        broker = self.brokers[broker_id].broker
        return None if broker is None else broker.hosts.get(partition)

    def leader_for(self, chance: random.Random, partition: int) -> tuple[Broker, int] | None:
        """Whom a client takes for the leader, as any broker tells it, and in which epoch."""
        known = [node.running for node in self.brokers.values()]
        told = [broker for broker in known if broker is not None and broker.registered]
        if not told:
            return None
        entry = told[chance.randrange(len(told))].metadata.view.partition(self.topic_id, partition)
        if entry is None or entry.state.leader is None:
            return None
        broker = self.brokers[entry.state.leader.broker_id].broker
        return None if broker is None else (broker, entry.state.leader_epoch)

    def leader_host(self, partition: int = 0) -> Host | None:
        """The replica that leads in the key's epoch, where it does."""
        state = self.checks.partitions[partition].state
        if state is None or state.leader is None:
            return None
        host = self.host(state.leader.broker_id, partition)
        if host is None or host.replica.role is not Role.LEADING or host.replica.leader_epoch != state.leader_epoch:
            return None
        return host

    def log_start(self, partition: int) -> int:
        """The largest log start of the partition's replicas that run."""
        hosts = [self.host(broker_id, partition) for broker_id in self.brokers]
        return max((int(host.log.log_start_offset) for host in hosts if host is not None), default=0)

    def is_healthy(self) -> bool:
        """L1: every partition has a leader that leads, and all replicas are in sync."""
        for number in self.partitions:
            state = self.checks.partitions[number].state
            if self.leader_host(number) is None or state is None or len(state.in_sync) != len(state.replicas):
                return False
        return True

    def is_whole(self) -> bool:
        """Healthy by more than the key: each member of this session is at work and holds what is committed.

        The key names a machine whose disk was just replaced until its old session ends.
        """
        if not self.is_healthy():
            return False
        for number in self.partitions:
            leader = self.leader_host(number)
            assert leader is not None
            for member in self.state(number).in_sync:
                host = self.host(member.broker_id, number)
                if host is None or host.replica.broker_epoch != member.broker_epoch:
                    return False
                if host.replica.role not in (Role.LEADING, Role.FOLLOWING):
                    return False
                if host.log.log_end_offset < leader.replica.high_watermark:
                    return False
        return True

    def is_quiet(self) -> bool:
        """L1, L2 and L4: healthy, nothing unanswered, all replicas equal and their high watermarks too."""
        if not self.is_healthy() or any(producer.waits for producer in self.producers):
            return False
        for number in self.partitions:
            leader = self.leader_host(number)
            assert leader is not None
            end = leader.log.log_end_offset
            for broker_id in self.state(number).replicas:
                host = self.host(broker_id, number)
                if host is None or host.replica.high_watermark != end or host.log.log_end_offset != end:
                    return False
                if host.replica.role not in (Role.LEADING, Role.FOLLOWING):
                    return False
            if self.state(number).adding or self.state(number).removing:
                return False
        head = self.etcd.store.revision
        return all(metadata.source.revision == head or not metadata.source.revision for _, metadata in self.caches())

    # --- end ---

    def heal(self) -> None:
        """End every fault, and start whatever is down."""
        self.world.note("op", "heals everything")
        self.network.rates = NetworkRates()
        self.etcd.rates = EtcdRates()
        self.slow_disk_rate = 0.0
        self.etcd.away_until_ms = 0
        self.etcd.lose_next_answers = 0
        self.network.unblock_all()
        for node in self.brokers.values():
            node.filesystem.capacity_bytes = 1 << 40
            node.filesystem.keep_power()
            node.wanted = True
            if node.broker is not None and node.broker.process.paused:
                self.world.resume(node.broker.process)
            node.start()
        for coordinator in self.coordinators:
            coordinator.start()
        for broker_id in self.brokers:
            self.undrain(broker_id)
        self.min_insync_replicas = self.plan.min_insync_replicas
        self.look_again()
        for producer in self.producers:
            producer.sending = False

    def undrain(self, broker_id: int) -> None:
        """An administrator takes a broker back into service."""
        coordinator = self.coordinator()
        if coordinator is not None and self.etcd.store.now(self.keyspace.drained(broker_id)) is not None:
            coordinator.drain(broker_id, undo=True)

    def finish(self) -> None:
        """Heal, wait for what is promised, and let the history be judged."""
        self.heal()
        for scrubbed in (False, True):
            if not self.run_until(self._is_quiet_now, HEAL_MS):
                raise SimulationError("liveness", self._what_is_missing())
            if not scrubbed:
                self._scrub()
        self.checks.check_all()
        finals = self.read_all()
        lost = [(number, *each) for number in self.partitions for each in self.checks.partitions[number].lost]
        anomalies = check(self.sends, self.polls, finals, lost=lost)
        if anomalies:
            raise SimulationError(f"history: {anomalies[0].name}", "; ".join(str(each) for each in anomalies[:5]))

    def _scrub(self) -> None:
        """Look for the damage that nobody has met yet: what is found is fetched anew (H33)."""
        for partition in self.checks.partitions.values():
            for shadow in list(partition.replicas.values()):
                if shadow.damaged and shadow.host is not None:
                    shadow.host.scrub()
                    shadow.damaged = shadow.host.failed
                elif shadow.damaged:
                    del partition.replicas[shadow.broker_id]

    def _is_quiet_now(self) -> bool:
        # Asked after every event, so the cheap question comes first.
        if self.world.steps % 10:
            return False
        for node in self.brokers.values():
            node.start()  # Whoever exits while healing is started again.
        return self.is_quiet()

    def _what_is_missing(self) -> str:
        states = {number: self.checks.partitions[number].state for number in self.partitions}
        roles = {
            node.name: {
                host.name: (host.replica.role.name, host.log.log_end_offset, host.replica.high_watermark)
                for host in (node.broker.hosts.values() if node.broker is not None else ())
            }
            for node in self.brokers.values()
        }
        waits = [producer.name for producer in self.producers if producer.waits]
        return f"after {HEAL_MS} ms: {states}; {roles}; still waiting: {waits}"

    def read_all(self) -> list[Final]:
        """Read each replica from its log start to its high watermark."""
        finals = []
        for number in self.partitions:
            for broker_id in self.state(number).replicas:
                host = self.host(broker_id, number)
                assert host is not None, "quiet means that every replica is there"
                with host.broker.node.sound_disk():
                    finals.append(_read(host, broker_id))
        return finals


def _read(host: Host, broker_id: int) -> Final:
    log, records = host.log, []
    start = int(log.log_start_offset)
    offset, end = start, host.replica.high_watermark
    while offset < end:
        with log.read(offset, 1 << 20, end) as found:
            for header, _ in iter_batches(found.read()):
                for index in range(header.record_count):
                    if header.base_offset + index >= start:
                        name = f"{header.producer_id}.{header.producer_epoch}.{header.base_sequence + index}"
                        records.append((header.base_offset + index, name))
            offset = found.end_offset
    return Final(f"b{broker_id}", host.partition, start, tuple(records))
