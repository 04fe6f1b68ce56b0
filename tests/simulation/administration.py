"""Administrators: the shipped asyncio `Admin` on the simulated network, and the judgement of what it was answered.

`Admin` decides what is tried again and where; the shipped services of coordinators write. The cluster's topic is what
etcd has, from the moment of the write on. `admin_history` compares both in the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace import aio
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.log.directory import LogId
from headrace.partition.topic_configs import CONFIGS, INT64_MAX
from headrace.wire.errors import HeadraceError, Outcome
from headrace.wire.ids import TopicPartition
from headrace_coordinator.core.election import electable
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.partition_state import PartitionState

from tests.simulation import typed_rows
from tests.simulation.admin_history import (
    CONFIGURE,
    CREATE,
    DELETE,
    GROW,
    MOVE,
    OK,
    REFUSED,
    UNKNOWN,
    Change,
    Replicas,
    TopicVersion,
    check_moves,
    check_topic,
)
from tests.simulation.broker import FILE_DELETE_DELAY_MS
from tests.simulation.clients import CALLING, TOPIC, Client
from tests.simulation.exercise import JUDGED
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

MARK = "timestamp_after_max_ms"
"""A setting that each change of settings sets to a value of its own; clocks of brokers jump by less."""
HARMLESS = ("timestamp_before_max_ms", "segment_bytes")
"""Settings without consequences for a topic that has no records."""
EMPTY_TOPIC = "u"
"""A topic without records, which administrators create and delete."""
BUSY_MS = 700
"""So often they ask something of it, on average."""
MARK_FROM = 86_400_000 * 365
RATE_FROM = 1 << 40
"""A move's rate, by which it is found in etcd, is more than any disk has."""
SECONDS = (1.0, 2.5, 4.0, 8.0)
"""Timeouts of requests: within the shortest, etcd may leave the outcome of a write open."""
BOTH = 0.3
"""So often both administrators change the same at once."""
EXPLICIT = 0.3
"""So often a topic is created with assignments."""
IN_DOUBT_MS = 20_000
"""A request in doubt is applied within this time, or never: a paused coordinator continues with it."""
Call = Callable[[aio.Admin], Awaitable[Any]]


class Administrator(Client):
    """One process with an `Admin`; each request is a task of its own."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster, f"a{number}")
        self.open = 0
        """Requests without an answer."""
        self._admin: aio.Admin | None = None

    def start(self) -> None:
        """Do nothing: requests come from the nemesis."""

    def _cluster_metadata(self) -> ClusterMetadata | None:
        return None

    def request(self, change: Change, call: Call, then: Callable[[Change], object] = lambda _: None) -> None:
        """Send a request, note how it ended, and call `then` with that."""
        self.open += 1
        self.spawn(self._request(change, call, then))

    async def _request(self, change: Change, call: Call, then: Callable[[Change], object]) -> None:
        if self._admin is None:
            servers = [*self._servers, *(f"{node.name}:7170" for node in self.cluster.coordinators)]
            self._admin = aio.Admin(bootstrap_servers=servers, transport="grpc", **CALLING)
        change = change._replace(client=self.name, begin=self.cluster.next_order())
        administration, era = self.cluster.administration, self.cluster.administration.era
        administration.requests.append(change)
        place = len(administration.requests) - 1
        try:
            found = await call(self._admin)
            ended = change._replace(outcome=OK, topic_id=getattr(found, "topic_id", b""))
            for result in found if isinstance(found, list) else ():
                if (error := getattr(result, "error", None)) is not None:
                    raise error
                if getattr(result, "unchanged", False):
                    ended = ended._replace(outcome=UNKNOWN, error="unchanged")
        except HeadraceError as error:
            outcome = REFUSED if error.outcome is Outcome.NOT_APPLIED else UNKNOWN
            ended = change._replace(outcome=outcome, error=error.code.name)
        self.open -= 1
        self.world.count(f"administrators: {change.kind} {ended.outcome} {ended.error}".rstrip())
        ended = ended._replace(end=self.cluster.next_order())
        if administration.era == era:  # Otherwise etcd was put back meanwhile.
            administration.requests[place] = ended
        then(ended)


class Administration:
    """What administrators do to the topic, its partitions and brokers; the topic as etcd has it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.administrators = [Administrator(cluster, number) for number in range(2)]
        self.chance = cluster.world.chance("administrators")
        self.wants_flushed = cluster.plan.durable
        """The topic's durability that was asked for last."""
        self.requests: list[Change] = []
        self.era = 0
        """How often etcd was put back."""
        self._versions = {name: [TopicVersion(0)] for name in (TOPIC, EMPTY_TOPIC)}
        """Of each topic that administrators create, by name."""
        self._replicas: list[Replicas] = []
        self._marks = self._open_creations = 0
        self._is_busy = False
        self._in_doubt_until_ms = 0

    # --- what etcd has ---

    def follow(self, _revision: int, events: Sequence[Any]) -> None:
        """Take the topics from what is written to etcd."""
        keyspace = self._cluster.keyspace
        names = {keyspace.topic(name): name for name in self._versions}
        for event in events:
            put = getattr(event, "key_value", None)
            name = names.get(event.key if put is None else put.key)
            if name:
                self._take(name, metadata_pb2.Topic() if put is None else metadata_pb2.Topic.FromString(put.value))

    def _take(self, name: str, topic: metadata_pb2.Topic) -> None:
        cluster = self._cluster
        if topic.topic_id:
            cluster.know_topic(topic)
        if cluster.recovery.is_due:
            if topic.topic_id and topic.topic_id != cluster.topic.topic_id:
                cluster.give_up_topic(topic.topic_id)
            return
        before = self._versions[name][-1].topic_id
        if before and before != topic.topic_id:
            cluster.give_up_topic(before)
        if name != EMPTY_TOPIC:
            cluster.topic = topic
        self._note_version(name, topic)

    def _note_version(self, name: str, topic: metadata_pb2.Topic) -> None:
        versions, order = self._versions.setdefault(name, []), self._cluster.next_order()
        version = TopicVersion(order, topic.topic_id, topic.partitions, dict(topic.configs))
        if not versions or version[1:] != versions[-1][1:]:  # Otherwise the number of replicas alone has changed.
            versions.append(version)

    def placed(self, key: LogId, before: PartitionState | None, after: PartitionState) -> None:
        """Note the target replicas of a partition."""
        if key.topic_id == self._cluster.topic.topic_id and (before is None or _placing(before) != _placing(after)):
            target = frozenset(after.replicas) - frozenset(after.removing)
            rate = after.copy_bytes_per_second
            found = Replicas(self._cluster.next_order(), key.partition, target, str(rate or ""))
            self._replicas.append(found)

    def etcd_went_back(self) -> None:
        """Judge what was done and answered so far; what is still in doubt may come in either etcd, or in none."""
        self.judge()
        self.era += 1
        self.requests = [each._replace(error="") for each in self.requests if each.outcome == UNKNOWN]

    def generation_began(self) -> None:
        """Continue with the topic as the new generation has it."""
        cluster = self._cluster
        self._replicas.clear()
        self._versions = {name: [TopicVersion(0)] for name in (TOPIC, EMPTY_TOPIC)}
        for topic_id in {key.topic_id: None for key in cluster.checks.partitions}:
            if topic_id != cluster.topic.topic_id:
                cluster.give_up_topic(topic_id)
        if cluster.topic.name:
            self._versions[cluster.topic.name] = []
            self._note_version(cluster.topic.name, cluster.topic)

    def judge(self) -> None:
        """Compare what administrators were answered with what etcd has stored."""
        world = self._cluster.world
        for each in self.requests:
            world.count(JUDGED + f"administrators, {each.kind}", each.outcome != UNKNOWN)
        problems = check_moves(self.requests, self._replicas)
        for name, versions in self._versions.items():
            asked = [each for each in self.requests if each.topic == name]
            problems += check_topic(asked, versions, MARK, has_stale_reads=self._cluster.plan.buggy_etcd)
        if problems:
            raise SimulationError("C2", "; ".join(problems[:5]))

    # --- requests ---

    @property
    def open(self) -> int:
        """Requests without an answer."""
        return sum(each.open for each in self.administrators)

    @property
    def may_end_durability(self) -> bool:
        """Whether a request may make the topic one that acknowledges records which are not flushed."""
        return self._cluster.world.now_ms < self._in_doubt_until_ms

    def _mark(self) -> int:
        self._marks += 1
        return self._marks

    def _request(
        self, change: Change, call: Callable[[aio.Admin, float], Awaitable[Any]],
        then: Callable[[Change], object] = lambda _: None,
    ) -> None:  # fmt: skip
        seconds = self.chance.choice(SECONDS)
        self.chance.choice(self.administrators).request(change, lambda admin: call(admin, seconds), then)

    def create_topic(self, *, explicit: bool | None = None) -> bool:
        """Ask for the topic; False: there is one, it was asked for, or too few brokers are registered."""
        cluster, plan = self._cluster, self._cluster.plan
        if cluster.recovery.is_due or cluster.partitions or self._open_creations:
            return False
        cluster.etcd.store.expire_leases()  # As any write to it does first.
        live = [each for each in sorted(cluster.brokers) if cluster.etcd.store.now(cluster.keyspace.broker(each))]
        if len(live) < plan.replication_factor:
            return False
        if not (self.wants_flushed or cluster.is_up()):
            return False  # A session may be of a machine that lost power: async survives one at a time.
        count = 2 if explicit is None and self.chance.random() < BOTH else 1
        if explicit is None:
            explicit = self.chance.random() < EXPLICIT
        assignments = [
            [live[(number + index) % len(live)] for index in range(plan.replication_factor)]
            for number in range(plan.partitions)
        ]
        for _ in range(count):
            self._create(assignments if explicit else None)
        return True

    def _create(self, assignments: Sequence[Sequence[int]] | None) -> None:
        plan, mark = self._cluster.plan, str(MARK_FROM + self._mark())
        configs = {**self._new_settings(), MARK: mark}
        if not self.wants_flushed:
            self._doubt_durability()

        async def create(admin: aio.Admin, seconds: float) -> Any:
            return await admin.create_topic(
                TOPIC, plan.partitions, plan.replication_factor, configs, assignments=assignments, timeout=seconds
            )

        def ended(_: Change) -> None:
            self._open_creations -= 1

        self._open_creations += 1
        self._request(Change("", CREATE, 0, 0, UNKNOWN, "", TOPIC, mark, _stored(configs)), create, ended)

    def _new_settings(self) -> dict[str, str]:
        """Settings of a topic that is created."""
        plan = self._cluster.plan
        configs = {
            "min_insync_replicas": str(plan.min_insync_replicas),
            "file_delete_delay_ms": str(FILE_DELETE_DELAY_MS),
        }
        if plan.retention_ms >= 0:
            configs |= {"retention_ms": str(plan.retention_ms), "segment_ms": "1000"}
        if plan.compacts:
            policy = "compact" if plan.retention_ms < 0 else "compact,delete"
            configs |= {"cleanup_policy": policy, "min_dirty_percent": "5"}
            if plan.is_table:
                configs["table"] = "yes"
            if plan.expires or plan.forgets_deletions:
                configs["delete_retention_ms"] = "0"
            if plan.retention_ms < 0:
                configs["retention_ms"] = "-1"
        configs |= self._flush_settings(flushed_only=self.wants_flushed)
        if plan.typed:
            configs["columns"] = typed_rows.COLUMNS
        if plan.mirrors:
            configs |= {"mirror": "m", "retention_ms": "-1"}
        return configs

    def _flush_settings(self, *, flushed_only: bool) -> dict[str, str]:
        """The topic's settings of its durability."""
        plan = self._cluster.plan
        if not plan.flush_ms:
            return {"durability": "fsync" if flushed_only else "async"}
        bounds = (plan.flush_messages, plan.flush_ms) if flushed_only else (INT64_MAX, INT64_MAX)
        return {"durability": "async", "flush_messages": str(bounds[0]), "flush_ms": str(bounds[1])}

    def delete_topic(self) -> None:
        """Ask for the end of the topic with all its partitions."""
        for _ in range(1 + (self.chance.random() < BOTH)):
            self._delete(self._cluster.topic.name)

    def _delete(self, name: str) -> None:
        self._request(
            Change("", DELETE, 0, 0, UNKNOWN, topic=name),
            lambda admin, seconds: admin.delete_topic(name, timeout=seconds),
        )

    def grow(self) -> None:
        """Ask for another partition."""
        name, total = self._cluster.topic.name, self._cluster.topic.partitions + 1

        async def grow(admin: aio.Admin, seconds: float) -> Any:
            await admin.create_partitions(name, total, timeout=seconds)

        self._request(Change("", GROW, 0, 0, UNKNOWN, topic=name, partitions=total), grow)

    def configure(self, **configs: str) -> None:
        """Ask for settings of the topic; brokers and coordinators take them up when they hear of it (H30)."""
        name, mark = self._cluster.topic.name, str(MARK_FROM + self._mark())
        configs[MARK] = mark
        settings = _stored(configs)
        free = tuple(setting for setting in ("columns",) if settings.pop(setting, None))
        self._request(
            Change("", CONFIGURE, 0, 0, UNKNOWN, "", name, mark, settings, free),
            lambda admin, seconds: admin.alter_config(name, configs, timeout=seconds),
        )

    def change_durability(self, *, durable: bool) -> None:
        """Ask for the other durability of the topic."""
        self.wants_flushed = durable
        if not durable:
            self._doubt_durability()
        self.configure(**self._flush_settings(flushed_only=durable))

    def _doubt_durability(self) -> None:
        self._in_doubt_until_ms = self._cluster.world.now_ms + IN_DOUBT_MS

    def drain(self, broker_id: int) -> None:
        """Ask for no leader and no new replica at a broker."""
        self._request(
            Change("", "drain", 0, 0, UNKNOWN), lambda admin, seconds: admin.drain_broker(broker_id, timeout=seconds)
        )

    def undrain(self, broker_id: int) -> None:
        """Ask for a broker to be back in service, if it was drained."""
        cluster = self._cluster
        found = cluster.etcd.store.now(cluster.keyspace.drained_broker(broker_id))
        if found is not None and not found.lease_id:
            self._request(
                Change("", "undrain", 0, 0, UNKNOWN),
                lambda admin, seconds: admin.undrain_broker(broker_id, timeout=seconds),
            )

    def move(self, key: LogId, target: Sequence[int]) -> None:
        """Ask for a partition to be at other brokers."""
        where, rate = TopicPartition(self._cluster.topic.name, key.partition), RATE_FROM + self._mark()
        self._cluster.world.count("moves begun")
        self._request(
            Change("", MOVE, 0, 0, UNKNOWN, mark=str(rate), partition=key.partition, replicas=frozenset(target)),
            lambda admin, seconds: admin.reassign_partitions(
                {where: list(target)}, copy_bytes_per_second=rate, timeout=seconds
            ),
        )

    def cancel_move(self, key: LogId) -> None:
        """Ask for the end of a move, if there is one."""
        where = TopicPartition(self._cluster.topic.name, key.partition)
        self._request(
            Change("", "cancel", 0, 0, UNKNOWN),
            lambda admin, seconds: admin.cancel_reassignment([where], timeout=seconds),
        )

    def move_leader(self, key: LogId, chosen: int) -> None:
        """Ask for a member of the in-sync set to be the preferred leader, by its place, and to lead (H24)."""
        state = self._cluster.state(key)
        target = [each for each in state.replicas if each not in state.removing]
        members = [each.broker_id for each in state.in_sync if each.broker_id in target]
        if not members:
            return
        leader = members[chosen % len(members)]
        where = TopicPartition(self._cluster.topic.name, key.partition)
        order = [leader, *(each for each in target if each != leader)]
        self._cluster.world.count("hand-overs asked for")

        async def elect(admin: aio.Admin, seconds: float) -> Any:
            if order != target:
                await admin.reassign_partitions({where: order}, timeout=seconds)
            return await admin.elect_leaders("preferred", [where], timeout=seconds)

        self._request(Change("", "elect", 0, 0, UNKNOWN), elect)

    def elect_uncleanly(self, key: LogId) -> None:
        """Ask for any replica that is alive to lead, where a clean election is impossible (H21)."""
        cluster = self._cluster
        coordinator = cluster.coordinator()
        if coordinator is None or cluster.topic.topic_id != key.topic_id:
            return
        if electable(cluster.state(key), coordinator.sessions()):
            return
        cluster.world.count("unclean elections asked for")
        cluster.checks.unclean_allowed(key)
        where = TopicPartition(cluster.topic.name, key.partition)
        self._request(
            Change("", "elect uncleanly", 0, 0, UNKNOWN),
            lambda admin, seconds: admin.elect_leaders("unclean", [where], timeout=seconds),
        )

    # --- a topic without records ---

    def be_busy(self, period_ms: int) -> None:
        """Let administrators create, change and delete a topic without records, until everything is healed."""
        self._is_busy = True
        self._do_something(period_ms)

    def _do_something(self, period_ms: int) -> None:
        cluster = self._cluster
        if not self._is_busy:
            return
        if not cluster.recovery.is_due:
            for _ in range(1 + (self.chance.random() < BOTH)):
                self._ask_of_empty_topic()
        cluster.world.after(
            1 + self.chance.randrange(2 * period_ms), cluster.operator, "", lambda: self._do_something(period_ms)
        )

    def _ask_of_empty_topic(self) -> None:
        mark, name = str(MARK_FROM + self._mark()), EMPTY_TOPIC
        versions, draw = self._versions[name], self.chance.random()
        configs: dict[str, str] = {MARK: mark}
        if not versions[-1].topic_id or draw < 0.1:

            async def create(admin: aio.Admin, seconds: float) -> Any:
                return await admin.create_topic(name, 1, 1, configs, timeout=seconds)

            self._request(Change("", CREATE, 0, 0, UNKNOWN, "", name, mark, _stored(configs)), create)
        elif draw < 0.5:
            self._delete(name)
        else:
            configs[self.chance.choice(HARMLESS)] = str(self.chance.randrange(1_000_000, 2_000_000))
            self._request(
                Change("", CONFIGURE, 0, 0, UNKNOWN, "", name, mark, _stored(configs)),
                lambda admin, seconds: admin.alter_config(name, configs, timeout=seconds),
            )

    # --- the end ---

    def stop(self) -> None:
        """Begin nothing more of what is not needed."""
        self._is_busy = False

    def settle(self) -> bool:
        """Take back what was changed for a while; return whether nothing is left to take back."""
        cluster = self._cluster
        if self.open:
            return False
        wanted: dict[str, str] = {}
        for name, value in {"min_insync_replicas": str(cluster.plan.min_insync_replicas), "mirror": ""}.items():
            if cluster.partitions and cluster.topic.configs.get(name, "") != value:
                wanted[name] = value
        if wanted:
            self.configure(**wanted)
        for broker_id in cluster.brokers:
            self.undrain(broker_id)
        return not self.open


def _stored(configs: Mapping[str, str]) -> dict[str, str | None]:
    """Return what etcd has of settings: no defaults."""
    return {name: None if value == str(CONFIGS[name].default) else value for name, value in configs.items()}


def _placing(state: PartitionState) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """What a move changes."""
    return state.replicas, state.removing, state.copy_bytes_per_second
