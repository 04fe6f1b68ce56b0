"""The cluster of one run: brokers, coordinators, clients and etcd in one world, and the end of a run.

`prepare` brings it up without faults and creates the topic as a coordinator does. `finish` heals everything, waits for
what liveness promises, reads every replica and lets `history` judge.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from headrace.log.directory import LogId
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace_broker.core.roles import Role
from headrace_server.cluster_identity import FORMAT_VERSION, ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace, meta_key
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Put
from headrace_server.partition_state import PartitionState

from tests.fakes.memory_filesystem import UNLIMITED, Loss, PowerLost
from tests.simulation.administration import BUSY_MS, Administration
from tests.simulation.broker import Broker
from tests.simulation.clients import TOPIC, Client, Consumer, Producer, Reader
from tests.simulation.coordinator import Coordinator, CoordinatorNode
from tests.simulation.etcd import Etcd, EtcdRates, run_now
from tests.simulation.exercise import CHECKED, JUDGED
from tests.simulation.history import ANOMALIES, OK, Final, Poll, Send, check
from tests.simulation.host import Host
from tests.simulation.invariants import Checks
from tests.simulation.machine import LOSSES, BrokerNode
from tests.simulation.mirrors import Copier, MirrorChecks
from tests.simulation.network import Network, NetworkRates
from tests.simulation.plan import Plan
from tests.simulation.promises import PromiseChecks, names_of
from tests.simulation.recovery import Recovery
from tests.simulation.reference_log import Entry, entry_of
from tests.simulation.registers import Operation, check_registers
from tests.simulation.table_clients import TableClient
from tests.simulation.table_columns import compare_columns, read_replica
from tests.simulation.time_lookups import TimeLookup, check_lookups, record_times
from tests.simulation.transport import Transport
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import Process, SimulationError, World

FULL_CHECK_EVERY = 100
START_MS = 5_000
HEAL_MS = 60_000
"""Liveness is promised within so long after healing."""
WATCH_MS = 6_000
"""A watch without events is heard of within so long: then a view that is due reads its list again."""
OPERATOR_MS = 1_000
OFFLINE_ROUNDS = 2
"""An operator looks so often, and acts when it looks for that time."""
DAY_MS = 86_400_000


class Cluster:
    """Everything of one run. `step` does one event and checks what it touched."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.world = World(plan.seed, keep_trace=keep_trace)
        self.world.on_power_lost = self._lose_power
        self.operator = self.world.start_process("op")
        self.network = Network(self.world, NetworkRates())
        self.transport = Transport(self.world, self.network)
        self.etcd = Etcd(self.world, self.network, EtcdRates())
        self.identity = ClusterIdentity("simulation", "simulation", 1, b"s" * 32)
        self._write_identity()
        self.topic = metadata_pb2.Topic()
        """As etcd has it; made anew it is another one, with an id of its own."""
        self.newest_topic_id = b""
        """The id of the topic that was made last."""
        self._topics: list[bytes] = []
        """The ids of all that there were."""
        self.not_durable_from: dict[LogId, int] = {}
        """The newest partition epoch that was proposed and that promises only what async does, by partition."""
        self.slow_disk_rate = 0.0
        self.strikes_at_cuts: list[Callable[[Broker], object]] = []
        """What happens to a follower that begins to cut its log."""
        self.relist_ms = 2_500 if plan.buggy_etcd else 8_000
        self.dead_loops: list[VirtualLoop] = []
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.time_lookups: dict[LogId, list[TimeLookup]] = {}
        """What readers were answered that began at a time."""
        self.row_operations: dict[bytes, list[Operation]] = {}
        """What clients of the table did, by topic."""
        self.row_problems: list[tuple[bytes, str]] = []
        self.removable: dict[int, int] = {}
        """By a partition's number: administrators have asked to remove what lies below."""
        self.checks = Checks(self)
        self.recovery = Recovery(self)
        self.promises = PromiseChecks(self)
        self.brokers = {number: BrokerNode(self, number) for number in range(1, plan.brokers + 1)}
        self.coordinators = [CoordinatorNode(self, "c1"), CoordinatorNode(self, "c2")]
        self.producers = [
            Producer(self, number, acks, plan.produce_period_ms) for number, acks in enumerate(plan.producers)
        ]
        self.consumers = [
            Consumer(self, f"r{2 * number + follower}", number, follower=bool(follower), period_ms=120 + 60 * follower)
            for number in range(plan.partitions)
            for follower in (0, 1)
        ]
        self.clients: list[Client] = [
            *self.producers,
            *self.consumers,
            *(Reader(self, f"e{number}", number, period_ms=1_000) for number in range(plan.partitions)),
        ]
        self.table_clients = [
            TableClient(self, number, plan.produce_period_ms) for number in range(3 if plan.is_table else 0)
        ]
        self.mirror = MirrorChecks(self) if plan.mirrors else None
        """Of a topic that is one."""
        self.copiers = [
            Copier(self, self.mirror, number, plan.produce_period_ms)
            for number in range(2 if self.mirror is not None else 0)
            if self.mirror is not None
        ]
        self.administration = Administration(self)
        self.etcd.store.on_commit.insert(0, self.administration.follow)
        self.clients += [*self.table_clients, *self.copiers, *self.administration.administrators]
        self.writers: list[Producer | TableClient | Copier] = [*self.producers, *self.table_clients, *self.copiers]
        self._orders = 0
        self._elects_after_ms = 0

    @property
    def keyspace(self) -> Keyspace:
        """The prefix of the present generation's keys."""
        return self.identity.keyspace

    def _write_identity(self) -> None:
        identity = self.identity
        meta = metadata_pb2.ClusterMeta(
            cluster_id=identity.cluster_id,
            generation=identity.generation,
            format_version=FORMAT_VERSION,
            secret=identity.secret,
        )
        run_now(self.etcd.store.txn([], [Put(meta_key(identity.cluster), meta.SerializeToString())]))

    def next_order(self) -> int:
        """Count what clients did."""
        self._orders += 1
        return self._orders

    # --- the topic ---

    @property
    def partitions(self) -> list[LogId]:
        """The partitions of the topic as it is now."""
        return [LogId(self.topic.topic_id, number) for number in range(self.topic.partitions)]

    def life_of(self, topic_id: bytes) -> int:
        """How many topics of its name there were before."""
        return self._topics.index(topic_id)

    def name_of(self, key: LogId) -> str:
        """What the trace calls a partition."""
        life = self._topics.index(key.topic_id)
        return f"p{key.partition}" if not life else f"t{life}p{key.partition}"

    def number_of(self, key: LogId) -> int:
        """The partition's number in clients' histories: no other topic's partition has it."""
        return 100 * self._topics.index(key.topic_id) + key.partition

    def partition_key(self, key: LogId) -> str:
        """The key of a partition."""
        return self.keyspace.partition(key.topic_id, key.partition)

    def state(self, key: LogId) -> PartitionState:
        """A partition's present key in etcd."""
        state = self.checks.partitions[key].state
        assert state is not None, "prepare comes first"
        return state

    def is_durable(self, key: LogId) -> bool:
        """Whether a partition's key promises what fsync does, and no write on its way to etcd can end that any more."""
        state = self.state(key)
        return state.durable and self.not_durable_from.get(key, 0) <= state.partition_epoch

    def is_all_durable(self) -> bool:
        """Whether every partition is, and no request of an administrator can end that."""
        return not self.administration.may_end_durability and all(self.is_durable(key) for key in self.partitions)

    # --- events ---

    def step(self) -> None:
        """Do one event and check what it touched."""
        alive = self.world.step()
        assert alive, "etcd ticks for ever"
        self.checks.after_event()
        if self.world.steps % FULL_CHECK_EVERY == 0:
            self.checks.check_all()

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Run until `condition` holds; return False if it does not within `within_ms`."""
        until_ms = self.world.now_ms + within_ms
        while not condition():
            if self.world.now_ms >= until_ms:
                return False
            self.step()
        return True

    def run_for(self, duration_ms: int) -> None:
        """Run for virtual time."""
        self.run_until(lambda: False, duration_ms)

    # --- start ---

    def prepare(self) -> None:
        """Start everything, and let an administrator create the topic."""
        for coordinator in self.coordinators:
            coordinator.start()
        for node in self.brokers.values():
            node.start()
        if not self.run_until(self.is_up, START_MS):
            raise SimulationError("start", "the brokers do not register")
        if not self.administration.create_topic(explicit=True):
            raise SimulationError("start", "not all brokers are registered")
        if not self.run_until(lambda: bool(self.partitions) and self.is_healthy(), START_MS):
            raise SimulationError("start", "the topic has no leaders")
        if self.mirror is not None:
            self.mirror.begin()
        for client in self.clients:
            client.start()
        self._look_after_brokers()

    def is_up(self) -> bool:
        """Whether all brokers are registered, and a controller is elected."""
        registered = all(node.broker is not None and node.broker.registered for node in self.brokers.values())
        return registered and self.etcd.store.now(self.keyspace.controller()) is not None

    def know_topic(self, topic: metadata_pb2.Topic) -> None:
        """A topic is about to be stored in etcd: from now on it and its partitions have names."""
        if topic.topic_id not in self._topics:
            self._topics.append(topic.topic_id)
            if topic.name == TOPIC:
                self.newest_topic_id = topic.topic_id
        for key in (LogId(topic.topic_id, number) for number in range(topic.partitions)):
            if key not in self.checks.partitions:
                self.checks.add(key)

    def give_up_topic(self, topic_id: bytes) -> None:
        """A topic is gone: nothing of it is promised, and no wait includes it."""
        for key in self.checks.partitions:
            if key.topic_id == topic_id:
                self.checks.deleted(key)

    def _look_after_brokers(self) -> None:
        """An operator restarts a broker that holds a log offline, as it asks for, once the disk is sound."""
        for node in self.brokers.values():
            broker = node.broker
            if broker is None or broker.process.paused or not broker.has_offline_log:
                continue
            broker.rounds_offline += 1
            if broker.rounds_offline == OFFLINE_ROUNDS:
                lossy = self.is_all_durable()
                node.kill(Loss.BLOCKS if lossy else Loss.NOTHING)
                self.world.after(500, self.operator, "", node.start)
        self.world.after(OPERATOR_MS, self.operator, "", self._look_after_brokers)

    def _lose_power(self, lost: PowerLost) -> None:
        """A machine stopped, or only the process on it, in the middle of what it wrote (H22, H25)."""
        node = next(each for each in self.brokers.values() if each.filesystem is lost.filesystem)
        chance = self.world.chance(f"stop/{node.name}")
        self.world.count("machines that stopped in the middle of a call")
        node.kill(chance.choice((*LOSSES, Loss.NOTHING)), in_a_call=True)
        self.world.after(50 + chance.randrange(3_000), self.operator, "", node.start)

    def begin_faults(self) -> None:
        """Let the network, etcd and disks misbehave as the plan says."""
        if self.plan.is_administrated:
            self.administration.be_busy(BUSY_MS)
        self.network.rates = self.plan.network_rates()
        self.etcd.rates = self.plan.etcd_rates()
        self.slow_disk_rate = self.plan.slow_disk_rate

    # --- questions ---

    def caches(self) -> list[tuple[Process, ClusterView]]:
        """All live processes' views of etcd."""
        nodes: list[Broker | Coordinator | None] = [node.broker for node in self.brokers.values()]
        nodes += [node.coordinator for node in self.coordinators]
        return [(node.process, node.view) for node in nodes if node is not None and node.view is not None]

    def coordinator(self) -> Coordinator | None:
        """A coordinator that an administrator can ask."""
        for node in self.coordinators if not self.recovery.is_due else ():
            if node.coordinator is not None and node.coordinator.view is not None:
                return node.coordinator
        return None

    def host(self, broker_id: int, key: LogId) -> Host | None:
        """A partition at a broker, where there is one."""
        broker = self.brokers[broker_id].broker
        return None if broker is None else broker.host(key)

    def leader_host(self, key: LogId) -> Host | None:
        """The replica that leads in the key's epoch, where it does."""
        state = self.checks.partitions[key].state
        if state is None or state.leader is None:
            return None
        host = self.host(state.leader.broker_id, key)
        if host is None or host.replica.role is not Role.LEADING or host.replica.leader_epoch != state.leader_epoch:
            return None
        return host

    def log_start(self, key: LogId) -> int:
        """The largest log start of the partition's replicas that run."""
        hosts = [self.host(broker_id, key) for broker_id in self.brokers]
        return max((int(host.log.log_start_offset) for host in hosts if host is not None), default=0)

    def answered(self, broker: Broker, key: LogId, base_offset: int, count: int) -> None:
        """A broker says that records are committed (I9)."""
        host = broker.host(key)
        if host is not None and base_offset >= 0 and not self.checks.partitions[key].is_deleted:
            self.checks.acknowledged(host, base_offset, base_offset + count)

    def is_healthy(self) -> bool:
        """L1: every partition has a leader that leads, and all replicas are in sync."""
        for key in self.partitions:
            state = self.checks.partitions[key].state
            if self.leader_host(key) is None or state is None or len(state.in_sync) != len(state.replicas):
                return False
        return True

    def is_whole(self) -> bool:
        """Healthy by more than the key: each member of this session is at work and holds what is committed.

        The key names a machine whose disk was just replaced until its old session ends.
        """
        if not self.is_healthy():
            return False
        for key in self.partitions:
            leader = self.leader_host(key)
            assert leader is not None
            for member in self.state(key).in_sync:
                host = self.host(member.broker_id, key)
                if host is None or host.replica.broker_epoch != member.broker_epoch:
                    return False
                if host.replica.role not in (Role.LEADING, Role.FOLLOWING):
                    return False
                if host.log.log_end_offset < leader.replica.high_watermark:
                    return False
        return True

    def is_quiet(self) -> bool:
        """L1, L2 and L4: healthy, nothing unanswered, all replicas equal and their high watermarks too."""
        if not self.is_healthy() or any(client.waits for client in self.writers):
            return False
        for key in self.partitions:
            leader = self.leader_host(key)
            assert leader is not None
            end = leader.log.log_end_offset
            for broker_id in self.state(key).replicas:
                host = self.host(broker_id, key)
                if host is None or host.replica.high_watermark != end or host.log.log_end_offset != end:
                    return False
                if host.replica.role not in (Role.LEADING, Role.FOLLOWING):
                    return False
            readers = [each for each in self.consumers if each.where.partition == key.partition]
            if self.topic.name == TOPIC and not all(each.is_at(end) for each in readers):
                return False  # A topic that etcd had lost continues under a name that no client uses.
            if self.state(key).adding or self.state(key).removing:
                return False
        head = self.etcd.store.revision
        return all(view.source.revision == head for _, view in self.caches())

    # --- end ---

    def heal(self) -> None:
        """End every fault, and start whatever is down."""
        self.world.note("op", "heals everything")
        self.network.rates = NetworkRates()
        self.etcd.rates = EtcdRates()
        self.slow_disk_rate = 0.0
        self.strikes_at_cuts.clear()
        self.etcd.away_until_ms = 0
        self.etcd.lose_next_answers = 0
        self.network.unblock_all()
        self.recovery.begin()
        for node in self.brokers.values():
            node.filesystem.capacity_bytes = UNLIMITED
            node.filesystem.keep_power()
            node.filesystem.stop_refusing()
            node.wanted = True
            if node.broker is not None:
                self.world.resume(node.broker.process)
            node.start()
        for coordinator in self.coordinators:
            if coordinator.coordinator is not None:
                self.world.resume(coordinator.coordinator.process)
            coordinator.start()
        self.administration.stop()
        if self.mirror is not None:
            self.mirror.promote()
        for client in self.writers:
            client.sending = False
        for consumer in self.consumers:
            consumer.hurries = True

    def finish(self) -> None:
        """Heal, wait for what is promised, and let the history be judged."""
        self.heal()
        self._await_quiet()
        if any(each.corrupt for partition in self.checks.partitions.values() for each in partition.replicas.values()):
            self._scrub()
            self._await_quiet()
        self._await_caches()
        if self.topic.name != TOPIC:
            self._await_quiet()
        elif self.plan.is_table:
            self._change_more()
        else:
            self._store_more()
        self.checks.check_all(is_last=True)
        self._check_abandoned()
        self.administration.judge()
        self._judge_lookups()
        if self.plan.is_table:
            self._judge_rows()
            return
        if self.mirror is not None:
            self._check_copies(self.mirror)
        self._judge_histories(self.read_all())

    def _check_abandoned(self) -> None:
        """No read is left to the garbage collector, which runs now."""
        gc.collect()
        for node in self.brokers.values():
            if node.broker is not None:
                node.broker.loop.check()

    def _judge_histories(self, finals: Sequence[Final]) -> None:
        """Compare what clients saw with what replicas hold, and with all that was committed."""
        # Of a topic that is gone, what was committed is judged; of one that an earlier etcd brought back, nothing.
        judged = [key for key, each in self.checks.partitions.items() if not (each.is_deleted and each.unclean)]
        known = {self.number_of(key): self.checks.partitions[key] for key in judged}
        lost = [(number, *each) for number, partition in known.items() for each in partition.lost]
        resent = [(number, *each) for number, partition in known.items() for each in partition.resent]
        sends = [each for each in self.sends if each.partition in known]
        polls = [each for each in self.polls if each.partition in known]
        compared: Counter[str] = Counter()
        committed = [self._committed(key) for key in judged]
        removable = self.removable
        anomalies = check(
            sends, polls, finals, committed=committed, removable=removable,
            deletions_go=self.plan.forgets_deletions, lost=lost, resent=resent, compared=compared,
        )  # fmt: skip
        for name in ANOMALIES:
            self.world.count(JUDGED + name, compared[name])
        if anomalies:
            raise SimulationError(f"history: {anomalies[0].name}", "; ".join(str(each) for each in anomalies[:5]))

    def _await_quiet(self) -> None:
        """Wait for what is left, longer than usual only while slow consumers read."""
        position = self._position_of_consumers()
        while not self.run_until(self._is_quiet_now, HEAL_MS):
            before, position = position, self._position_of_consumers()
            if position <= before:
                raise SimulationError("liveness", self._what_is_missing())

    def _await_caches(self) -> None:
        """A cache that missed an event has what it says after its next list."""
        within_ms = self.relist_ms + WATCH_MS
        if not self.run_until(lambda: self.world.steps % 10 == 0 and not self.checks.wrong_caches(), within_ms):
            raise SimulationError("I19", f"after {within_ms} ms: {self.checks.wrong_caches()}")

    def _store_more(self) -> None:
        """Every partition takes records of a new producer, now that all is well (L1)."""
        producer, before = Producer(self, len(self.producers), -1, self.plan.produce_period_ms), len(self.sends)
        for clients in (self.producers, self.writers, self.clients):
            clients.append(producer)
        producer.start()
        wanted = {self.number_of(key) for key in self.partitions[: self.plan.partitions]}

        def is_stored() -> bool:
            mine = (each for each in self.sends[before:] if each.process.partition(" ")[0] == producer.name)
            return wanted <= {each.partition for each in mine if each.outcome == OK}

        if not self.run_until(is_stored, HEAL_MS):
            raise SimulationError("liveness", f"a new producer stored only {self.sends[before:]}")
        self.world.count("producers that began when all was well")
        producer.sending = False
        self._await_quiet()

    def _change_more(self) -> None:
        """Who watches rows of the table is told of a change at once, now that all is well."""
        client = TableClient(self, len(self.table_clients), self.plan.produce_period_ms)
        self.clients.append(client)
        self.writers.append(client)
        client.spawn(client.watch_a_change())
        self._await_quiet()

    def _position_of_consumers(self) -> int:
        return sum(consumer.position for consumer in self.consumers)

    def _check_copies(self, mirror: MirrorChecks) -> None:
        for key in self.partitions:
            copies = set()
            for broker_id in self.state(key).replicas:
                host = self.host(broker_id, key)
                assert host is not None, "quiet means that every replica is there"
                with host.broker.node.sound_disk():
                    copies.add((int(host.log.log_start_offset), mirror.check_disk(host, host.log)))
            self.world.count("copies that stay", max(count for _, count in copies))

    def _judge_lookups(self) -> None:
        for key in self.partitions:
            partition, lookups = self.checks.partitions[key], self.time_lookups.get(key, [])
            leader = self.leader_host(key)
            if partition.unclean or not lookups or leader is None:
                continue
            with leader.broker.node.sound_disk():
                records = record_times(leader.log, leader.replica.high_watermark, compacts=self.plan.compacts)
            problems = check_lookups(lookups, records, self.log_start(key))
            self.world.count(JUDGED + "time look-ups", len(lookups))
            if problems:
                raise SimulationError("H162", f"{self.name_of(key)}: {'; '.join(problems[:5])}")

    def _judge_rows(self) -> None:
        for topic_id, operations in self.row_operations.items():
            partitions = [each for key, each in self.checks.partitions.items() if key.topic_id == topic_id]
            if any(each.unclean for each in partitions):
                continue
            problems = check_registers(operations, clocks_differ_ms=self._clocks_differ_ms())
            problems += [problem for told, problem in self.row_problems if told == topic_id]
            if topic_id == self.topic.topic_id:
                problems += self._compare_columns()
            self.world.count(CHECKED + "I31", len(operations))
            if problems:
                raise SimulationError("I31", "; ".join(problems[:5]))

    def _clocks_differ_ms(self) -> int:
        """By how much any two readings of brokers' clocks at one moment may have differed in the run."""
        walls = [node.wall for node in self.brokers.values()]
        return max(each.highest_ms for each in walls) - min(each.lowest_ms for each in walls)

    def _compare_columns(self) -> list[str]:
        """Compare the newest records of all replicas."""
        problems = []
        for key in self.partitions:
            replicas = {}
            for broker_id in self.state(key).replicas:
                host = self.host(broker_id, key)
                assert host is not None, "quiet means that every replica is there"
                with host.broker.node.sound_disk():
                    replicas[f"b{broker_id}"] = read_replica(host.log, host.replica.high_watermark)
            problems += compare_columns(replicas)
        return problems

    def _scrub(self) -> None:
        """Find corruption that is undetected yet: found batches are fetched anew (H33)."""
        for node in self.brokers.values():
            if node.broker is not None:
                node.broker.scrub()
        self.run_for(2_000)
        for partition in self.checks.partitions.values():
            for reference in list(partition.replicas.values()):
                if reference.host is None and reference.corrupt:
                    del partition.replicas[reference.broker_id]
                elif reference.host is not None and reference.corrupt:
                    reference.corrupt = not reference.host.is_open

    def _is_quiet_now(self) -> bool:
        # Asked after every event, so the cheap question comes first.
        if self.world.steps % 10:
            return False
        for node in self.brokers.values():
            node.start()  # A process that exits while healing is started again.
        if any(node.broker is not None and node.broker.stopping for node in self.brokers.values()):
            return False  # It refuses clients, and may be the only replica.
        if self.recovery.is_due:
            return False
        if self.coordinator() is None:
            return False
        self._elect_uncleanly_again()
        # Drained brokers first: a topic may need them.
        if not self.administration.settle() or self.administration.create_topic():
            return False
        return bool(self.partitions) and self.is_quiet()

    def _elect_uncleanly_again(self) -> None:
        """An administrator who let a replica lead asks again if its log has failed, too: no member is left (H21)."""
        if self.world.now_ms < self._elects_after_ms:
            return
        self._elects_after_ms = self.world.now_ms + 5_000
        for key in self.partitions:
            partition = self.checks.partitions[key]
            if partition.unclean and partition.state is not None and not partition.state.members:
                self.administration.elect_uncleanly(key)

    def _what_is_missing(self) -> str:
        states = {self.name_of(key): self.checks.partitions[key].state for key in self.partitions}
        roles = {
            node.name: {
                host.name: (host.replica.role.name, host.log.log_end_offset, host.replica.high_watermark)
                for host in (node.broker.logs.values() if node.broker is not None else ())
                if host.partition is not None
            }
            for node in self.brokers.values()
        }
        waits = [producer.name for producer in self.producers if producer.waits]
        waits += [f"{each.name} at {each.position}" for each in self.consumers]
        return f"after {HEAL_MS} ms: {states}; {roles}; still waiting: {waits}"

    def read_all(self) -> list[Final]:
        """Read each replica from its log start to its high watermark."""
        finals = []
        for key in self.partitions:
            for broker_id in self.state(key).replicas:
                host = self.host(broker_id, key)
                assert host is not None, "quiet means that every replica is there"
                with host.broker.node.sound_disk():
                    finals.append(_read(host, broker_id))
        return finals

    def _committed(self, key: LogId) -> Final:
        """All that was ever committed, as the checks saw it before anything was removed."""
        records = tuple(
            (entry.base + index, name)
            for entry in self.checks.partitions[key].committed.entries
            for index, name in enumerate(self.names_of(entry))
        )
        return Final("committed", self.number_of(key), 0, records)

    def may_remove(self, key: LogId, before: int) -> None:
        """Records below an offset may go: an administrator asked for it, or retention planned it."""
        number = self.number_of(key)
        self.removable[number] = max(self.removable.get(number, 0), before)

    def names_of(self, batch: Entry) -> Sequence[str]:
        """What the records of a batch in a log are called."""
        found = self.promises.values.get((batch.producer_id, batch.producer_epoch, batch.sequence, batch.crc))
        records = batch.end - batch.base
        return found or [
            f"{batch.producer_id}.{batch.producer_epoch}.{batch.sequence + each}" for each in range(records)
        ]

    def close(self) -> None:
        """Throw everything away."""
        nodes: list[Broker | Coordinator | None] = [node.broker for node in self.brokers.values()]
        nodes += [node.coordinator for node in self.coordinators]
        alive = (node.loop for node in nodes if node is not None)
        for loop in (*self.dead_loops, *alive, *(client.loop for client in self.clients)):
            loop.close()


def _read(host: Host, broker_id: int) -> Final:
    log, records, cluster = host.log, [], host.broker.cluster
    start = int(log.log_start_offset)
    offset, end = start, host.replica.high_watermark
    while offset < end:
        with log.reader.read(offset, 1 << 20, end) as found:
            for header, view in iter_batches(found.read()):
                batch = entry_of(header, header.base_offset, header.leader_epoch)
                named: Iterable[tuple[int, str]] = enumerate(cluster.names_of(batch), batch.base)
                if header.is_compacted:
                    columns = decode_batch(bytes(view), max_payload_bytes=1 << 20)
                    named = zip(columns.offsets(), names_of(columns), strict=True)
                records += [(at, name) for at, name in named if at >= start]
            offset = found.end_offset
    return Final(f"b{broker_id}", cluster.number_of(host.key), start, tuple(records))
