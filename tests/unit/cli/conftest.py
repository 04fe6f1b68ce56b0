"""A cluster of dictionaries with the methods of `Admin`, `Producer` and `Consumer` that the command line uses."""

import io
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from headrace.cli.common import watching
from headrace.cli.main import run
from headrace.client.admin.balance import BalanceBy, BalancePlan, check_balance, plan_balance
from headrace.client.admin.processes import LogLevelResult, ProcessDescription
from headrace.client.admin.replication import (
    DiskInfo,
    DrainResult,
    FollowerInfo,
    LogInfo,
    PartitionChange,
    Reassignment,
    UnclaimedLogInfo,
)
from headrace.client.admin.rpc import (
    BrokerDescription,
    ClusterDescription,
    ConfigValue,
    CoordinatorDescription,
    MetadataEntry,
    OffsetAt,
    PartitionDescription,
    TopicDescription,
)
from headrace.client.base.call_counts import CallStats
from headrace.client.base.errors import DeliveryError
from headrace.client.base.records import Record
from headrace.client.producer.sender import ProducerStats
from headrace.placement.load import ReplicaLoad
from headrace.wire.errors import (
    ConflictError,
    HeadraceError,
    InvalidConfigError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    UnknownTopicError,
)
from headrace.wire.ids import TopicPartition

from tests.unit.cli.fake_groups import FakeGroup, FakeGroupMethods
from tests.unit.cli.fake_users import FakeUserMethods, FakeUsers

CREATED_MS = 1_700_000_000_000


@dataclass
class FakeTopics:
    """What the fake cluster holds."""

    topics: dict[str, TopicDescription] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    brokers: tuple[BrokerDescription, ...] = (BrokerDescription(1, "127.0.0.1:7181", "r1", "h1", 5, False, "0.1.0"),)
    controller_id: str = "a"
    undecodable_keys: int = 0
    # Topics that the caller may not describe: in the counts of the cluster, and in no list.
    hidden_topics: set[str] = field(default_factory=set)
    # Raised by every call of `Admin`.
    failure: BaseException | None = None
    # Raised by the method of this name alone.
    failures: dict[str, HeadraceError] = field(default_factory=dict)
    drained: set[int] = field(default_factory=set)
    # Unclaimed logs, by broker id.
    broker_logs: dict[int, list[UnclaimedLogInfo]] = field(default_factory=dict)
    # Ids of topics that brokers keep unclaimed logs of.
    unclaimed: list[bytes] = field(default_factory=list)
    # Log ends of replicas that lack records: (partition, broker id) -> offset.
    log_ends: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    # Offsets up to which replicas have compacted: (partition, broker id) -> offset.
    compacted: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    # Bytes in per second at the leader.
    loads: dict[TopicPartition, float] = field(default_factory=dict)
    # Why a broker has taken a replica offline.
    offline: dict[tuple[TopicPartition, int], str] = field(default_factory=dict)
    # Topics of which a broker deletes no unclaimed log when it comes to it.
    stuck_topics: set[str] = field(default_factory=set)
    # Why a partition cannot be changed.
    refused: dict[TopicPartition, HeadraceError] = field(default_factory=dict)
    groups: dict[str, FakeGroup] = field(default_factory=dict)
    # Log starts of partitions whose first records were deleted.
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    # Offsets whose records compaction has removed.
    removed: dict[TopicPartition, set[int]] = field(default_factory=dict)
    # What the administrator changed: (method, arguments).
    changes: list[tuple[str, Any]] = field(default_factory=list)
    # Settings of every object made.
    settings: list[dict[str, Any]] = field(default_factory=list)
    corrupt_batches: int = 0
    """Those that a consumer has passed."""
    processes: list[ProcessDescription] = field(default_factory=list)
    identity: FakeUsers = field(default_factory=FakeUsers)

    def add(self, name: str, partitions: int = 2, replicas: tuple[int, ...] = (1,), minimum: int = 1) -> None:
        parts = tuple(
            PartitionDescription(n, replicas[0], 4, replicas, replicas, (), min_insync_replicas=minimum)
            for n in range(partitions)
        )
        self.topics[name] = TopicDescription(name, uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes, parts, 1_048_576)
        self.configs.setdefault(name, {})
        for n in range(partitions):
            self.records.setdefault(TopicPartition(name, n), [])

    def start_brokers(self, *broker_ids: int, racks: str = "") -> None:
        """Register brokers, in place of those that were."""
        self.brokers = tuple(
            BrokerDescription(each, f"127.0.0.1:{7180 + each}", racks[n : n + 1], "", 5, False, "0.1.0")
            for n, each in enumerate(broker_ids)
        )

    def change(self, topic: str, partition: int, **fields: Any) -> None:
        """Change one partition's description."""
        parts = list(self.topics[topic].partitions)
        parts[partition] = replace(parts[partition], **fields)
        self.topics[topic] = replace(self.topics[topic], partitions=tuple(parts))

    def partition(self, where: TopicPartition) -> PartitionDescription:
        return self.topics[where.topic].partitions[where.partition]

    def lose_leader(self, topic: str, partition: int) -> None:
        self.change(topic, partition, leader_id=-1, replicas=(2,), in_sync_replicas=(2,))

    def append(self, topic: str, partition: int, value: bytes | None, **fields: Any) -> None:
        log = self.records[TopicPartition(topic, partition)]
        log.append(
            Record(
                topic,
                partition,
                len(log),
                fields.get("timestamp_ms") or CREATED_MS + 1000 * len(log),
                fields.get("key"),
                value,
                tuple(fields.get("headers") or ()),
            )
        )

    def require(self, name: str) -> TopicDescription:
        if name not in self.topics:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return self.topics[name]


class FakeContext:
    def __init__(self, held: FakeTopics) -> None:
        self.held = held

    def __getattribute__(self, name: str) -> Any:
        """Raise the failure of the method that is about to be called."""
        found = super().__getattribute__(name)
        if name != "held" and name in self.held.failures:
            raise self.held.failures[name]
        return found

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class FakeAdmin(FakeGroupMethods, FakeUserMethods, FakeContext):
    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name != "held" and not name.startswith("_") and self.held.failure is not None:
            raise self.held.failure
        return found

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str], *, validate_only: bool
    ) -> TopicDescription:
        if name in self.held.topics:
            raise TopicAlreadyExistsError(f"topic {name!r} is there already")
        made = FakeTopics()
        made.add(name, partitions or 1)
        if not validate_only:
            self.held.add(name, partitions or 1)
            self.held.configs[name] = dict(config)
        return made.topics[name]

    def delete_topic(self, name: str, *, validate_only: bool) -> None:
        self.held.require(name)
        if not validate_only:
            del self.held.topics[name]

    def delete_unclaimed_logs(self, topic_id: bytes, *, validate_only: bool) -> None:
        if topic_id in [topic.topic_id for topic in self.held.topics.values()]:
            raise ConflictError("a topic has this id")
        if not validate_only:
            self.held.unclaimed.remove(topic_id)

    def describe_unclaimed_logs(self, broker_id: int) -> list[UnclaimedLogInfo]:
        return list(self.held.broker_logs.get(broker_id, ()))

    def delete_broker_logs(self, broker_id: int, logs: Sequence[tuple[bytes, int]]) -> list[UnclaimedLogInfo]:
        known = {(log.topic_id, log.partition): log for log in self.held.broker_logs[broker_id]}
        asked = [known[log] for log in logs]
        self.held.broker_logs[broker_id] = [
            log for log in known.values() if log not in asked or log.topic in self.held.stuck_topics
        ]
        return [replace(log, kept_because="in use" if log.topic in self.held.stuck_topics else "") for log in asked]

    def describe_topic(self, name: str) -> TopicDescription:
        return self.held.require(name)

    def describe_topics(self) -> list[TopicDescription]:
        return [self.held.topics[name] for name in sorted(self.held.topics.keys() - self.held.hidden_topics)]

    def list_topics(self) -> list[str]:
        return [topic.name for topic in self.describe_topics()]

    def create_partitions(self, name: str, total_partitions: int, *, validate_only: bool = False) -> list[str]:
        self.held.require(name)
        if not validate_only:
            self.held.add(name, total_partitions)
        return ["all on one rack"]

    def alter_config(
        self, name: str, set: Mapping[str, str], unset: Sequence[str], *, validate_only: bool = False
    ) -> None:
        self.held.require(name)
        if "retention" in set:
            raise InvalidConfigError("unknown setting 'retention', did you mean 'retention_ms'?")
        if not validate_only:
            self.held.configs[name].update(set)
            for each in unset:
                self.held.configs[name].pop(each, None)

    def describe_config(self, name: str) -> dict[str, ConfigValue]:
        own = self.held.configs[name].get("retention_ms")
        return {"retention_ms": ConfigValue(own or "604800000", own is None, "604800000", "How long records stay.")}

    def describe_cluster(self) -> ClusterDescription:
        brokers = tuple(
            replace(each, draining=each.draining or each.broker_id in self.held.drained) for each in self.held.brokers
        )
        coordinators = (CoordinatorDescription("a", "127.0.0.1:7170", "0.1.0"),)
        partitions = [each for topic in self.held.topics.values() for each in topic.partitions]
        offline = sum(each.leader_id < 0 for each in partitions)
        behind = sum(
            not set(each.replicas) - set(each.adding_replicas) <= set(each.in_sync_replicas) for each in partitions
        )
        counts = len(self.held.topics), len(partitions), offline, behind
        return ClusterDescription(
            "c1", 1, 1, self.held.controller_id, 3, brokers, coordinators, *counts, "3.5.1", 99,
            self.held.undecodable_keys,
        )  # fmt: skip

    def describe_logs(self, topic: str | None = None, *, brokers: Sequence[int] | None = None) -> list[LogInfo]:
        live = {each.broker_id for each in self.held.brokers}
        asked = live if brokers is None else live & set(brokers)
        return [
            self._log(where, broker_id)
            for where in sorted(self.held.records)
            if topic in (None, where.topic)
            for broker_id in self.held.partition(where).replicas
            if broker_id in asked
        ]

    def _log(self, where: TopicPartition, broker_id: int) -> LogInfo:
        partition = self.held.partition(where)
        leads = partition.leader_id == broker_id
        end = len(self.held.records[where])
        own = self.held.log_ends.get((where, broker_id), end)
        followers = tuple(
            FollowerInfo(
                each,
                5,
                at := self.held.log_ends.get((where, each), end),
                at,
                0 if at == end else 700,
                each in partition.in_sync_replicas,
                0.5,
            )
            for each in partition.replicas
            if each != broker_id
        )
        sizes = own, own, own, 100 * own, 1
        reason = self.held.offline.get((where, broker_id), "")
        return LogInfo(
            *where, broker_id, leads, 4, 0, *sizes, reason, not leads, followers if leads else (),
            compacted_offset=self.held.compacted.get((where, broker_id), 0),
        )  # fmt: skip

    def describe_disks(self, *, brokers: Sequence[int] | None = None) -> list[DiskInfo]:
        return [
            DiskInfo(each.broker_id, 4 << 30, 1 << 30)
            for each in self.held.brokers
            if brokers is None or each.broker_id in brokers
        ]

    def plan_balance(self, by: BalanceBy = "replicas", *, max_ratio: float = 1.2) -> BalancePlan:
        check_balance(by, max_ratio)
        loads = [
            replace(log, load=ReplicaLoad(self.held.loads.get(TopicPartition(log.topic, log.partition), 0.0)))
            if log.is_leader
            else log
            for log in self.describe_logs()
        ]
        cluster, topics = self.describe_cluster(), self.describe_topics()
        plan = plan_balance(cluster.brokers, topics, loads, by, max_ratio)
        return replace(plan, hidden_topics=cluster.count_hidden(topics))

    def reassign_partitions(
        self, moves: Mapping[TopicPartition, Sequence[int]], *, copy_bytes_per_second: int = 0, validate_only: bool
    ) -> list[PartitionChange]:
        if not validate_only:
            self.held.changes.append(("reassign", (dict(moves), copy_bytes_per_second)))
        results = []
        for where, after in moves.items():
            if where in self.held.refused:
                results.append(PartitionChange(*where, self.held.refused[where], False, -1, -1, ()))
                continue
            now = self.held.partition(where)
            removing = tuple(each for each in now.target_replicas if each not in after)
            adding = tuple(each for each in after if each not in now.target_replicas)
            if not validate_only and (removing or adding):
                self.held.change(
                    *where, replicas=(*after, *removing), adding_replicas=adding, removing_replicas=removing
                )
            results.append(PartitionChange(*where, None, False, now.leader_id, 4, (*after, *removing)))
        return results

    def cancel_reassignment(
        self, partitions: Sequence[TopicPartition], *, validate_only: bool
    ) -> list[PartitionChange]:
        if not validate_only:
            self.held.changes.append(("cancel", list(partitions)))
        results = []
        for where in partitions:
            now = self.held.partition(where)
            before = tuple(each for each in now.replicas if each not in now.adding_replicas)
            results.append(PartitionChange(*where, None, before == now.replicas, now.leader_id, 4, before))
            if not validate_only:
                self.held.change(*where, replicas=before, adding_replicas=(), removing_replicas=())
        return results

    def list_reassignments(self, topics: Sequence[str] | None = None) -> list[Reassignment]:
        return [
            Reassignment(
                name,
                each.partition,
                each.replicas,
                each.adding_replicas,
                each.removing_replicas,
                each.in_sync_replicas,
                each.leader_id,
                0,
            )
            for name in sorted(self.held.topics)
            if topics is None or name in topics
            for each in self.held.topics[name].partitions
            if each.adding_replicas or each.removing_replicas
        ]

    def elect_leaders(
        self,
        kind: str = "preferred",
        partitions: Sequence[TopicPartition] | None = None,
        *,
        broker_id: int | None = None,
        validate_only: bool = False,
    ) -> list[PartitionChange]:
        if not validate_only:
            self.held.changes.append(("elect", (kind, partitions, broker_id)))
        results = []
        for where in sorted(self.held.records) if partitions is None else partitions:
            now = self.held.partition(where)
            leader = now.target_replicas[0] if broker_id is None else broker_id
            if kind == "preferred" and leader not in now.in_sync_replicas:
                refused = LeaderNotAvailableError(f"{where.topic}-{where.partition}: {leader} is not in sync")
                results.append(PartitionChange(*where, refused, False, now.leader_id, 4, now.replicas))
                continue
            if not validate_only:
                self.held.change(*where, leader_id=leader)
            results.append(PartitionChange(*where, None, now.leader_id == leader, leader, 5, now.replicas))
        return results

    def drain_broker(self, broker_id: int) -> DrainResult:
        return self._drain(broker_id, {broker_id})

    def undrain_broker(self, broker_id: int) -> DrainResult:
        return self._drain(broker_id, set())

    def _drain(self, broker_id: int, drained: set[int]) -> DrainResult:
        self.held.changes.append(("drain" if drained else "undrain", broker_id))
        unchanged = (broker_id in self.held.drained) == bool(drained)
        self.held.drained = (self.held.drained - {broker_id}) | drained
        leads = sum(self.held.partition(where).leader_id == broker_id for where in self.held.records)
        return DrainResult(leads, unchanged)

    def list_offsets(
        self, topic: str, at: str | int, *, partitions: Sequence[int] | None
    ) -> dict[TopicPartition, OffsetAt]:
        self.held.require(topic)
        found = {}
        for where, log in sorted(self.held.records.items()):
            if where.topic != topic or (partitions is not None and where.partition not in partitions):
                continue
            offset = {"earliest": self.held.starts.get(where, 0), "latest": len(log)}.get(str(at))
            if offset is None:
                offset = next((each.offset for each in log if each.timestamp_ms >= int(at)), len(log))
            found[where] = OffsetAt(offset, -1)
        return found

    def drained_brokers(self) -> list[int]:
        return sorted(self.held.drained)

    def dump(self, prefix: str = "") -> Iterator[MetadataEntry]:
        keys = {f"topics/{name}": f'{{"name": "{name}"}}' for name in self.held.topics}
        keys |= {f"brokers/{each.broker_id}": "{}" for each in self.held.brokers}
        for key, value in sorted(keys.items()):
            if key.startswith(prefix):
                yield MetadataEntry(f"/headrace/c1/1/{key}", value, 1, 2, 3, 0)

    def describe_processes(self, *, measure_disk: bool) -> list[ProcessDescription]:
        assert measure_disk
        return self.held.processes

    def set_log_level(self, level: str, *, servers: Sequence[str] | None, duration_ms: int) -> list[LogLevelResult]:
        self.held.changes.append(("log level", (level, servers, duration_ms)))
        return [LogLevelResult("broker-1", "info"), LogLevelResult("broker-2", "", "UNAVAILABLE")]


def listed(column: Any) -> list[bytes | None]:
    """A column as a list, whether it is one or an Arrow array."""
    return column if isinstance(column, list) else column.to_pylist()


class FakeProducer(FakeContext):
    taken = 0

    def send(self, topic: str, value: bytes | None, key: bytes | None = None, **fields: Any) -> None:
        partition = fields.pop("partition", None)
        self.taken += 1
        self.held.append(topic, partition or 0, value, key=key, **fields)

    def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> None:
        for index, value in enumerate(listed(values)):
            key = None if keys is None else listed(keys)[index]
            self.taken += 1
            self.held.append(topic, partition or 0, value, key=key, headers=headers[index] if headers else None)

    def flush(self, timeout: float | None = None) -> None:
        pass

    def close(self, timeout: float | None = 30.0) -> None:
        pass

    def stats(self) -> ProducerStats:
        failure = self.held.failures.get("flush")
        lost = failure.failed_records + failure.pending_records if isinstance(failure, DeliveryError) else 0
        return ProducerStats(self.taken - lost, 1, lost, 0, 0)


class FakeConsumer(FakeContext):
    def __init__(self, held: FakeTopics, topics: Sequence[str]) -> None:
        super().__init__(held)
        self._topics = topics
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self._grow()

    def calls(self) -> CallStats:
        """As many batches were passed as the cluster was told to have."""
        return CallStats((), 0.0, {}, 0, self.held.corrupt_batches)

    def assign(self, partitions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(partitions)
        self.paused = set()

    def assignment(self) -> list[TopicPartition]:
        return sorted(self.positions)

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.positions[where] = offset

    def _grow(self) -> None:
        """Read all partitions that the topics have, new ones from their start."""
        self.positions = {where: 0 for where in self.held.records if where.topic in self._topics} | self.positions

    def poll(self, timeout: float, max_records: int) -> list[Record]:
        self._grow()
        found: list[Record] = []
        progressed = False
        for where in sorted(set(self.positions) - self.paused):
            batch = self.held.records[where][self.positions[where] :][: max(0, min(3, max_records - len(found)))]
            self.positions[where] += len(batch)
            progressed |= bool(batch)
            found += [record for record in batch if record.offset not in self.held.removed.get(where, ())]
        if not progressed:
            raise KeyboardInterrupt  # The log has no more, so a test that gets here has waited for new records.
        return found

    def position(self, where: TopicPartition) -> int:
        return self.positions[where]

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)


class FakeClients:
    def __init__(self, held: FakeTopics) -> None:
        self.held = held

    def admin(self, **settings: Any) -> Any:
        self.held.settings.append(settings)
        return FakeAdmin(self.held)

    def producer(self, **settings: Any) -> Any:
        self.held.settings.append(settings)
        return FakeProducer(self.held)

    def consumer(self, *topics: str, **settings: Any) -> Any:
        self.held.settings.append(settings)
        return FakeConsumer(self.held, topics)


class Ended(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs command lines in this process against the fake cluster."""

    def __init__(
        self, held: FakeTopics, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.held = held
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"", terminal: bool = False) -> Ended:
        stream = io.TextIOWrapper(io.BytesIO(stdin))
        self._monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
        self._monkeypatch.setattr(sys, "stdin", stream)
        code = run(arguments, FakeClients(self.held))
        captured = self._capture.readouterr()
        return Ended(int(code), captured.out.decode(), captured.err.decode())


@pytest.fixture
def held() -> FakeTopics:
    return FakeTopics()


@pytest.fixture
def headrace(
    held: FakeTopics, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    for name in ("BOOTSTRAP_SERVERS", "DEBUG", "API_KEY", "API_KEY_FILE", "TOKEN_FILE"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return CommandLine(held, capsysbinary, monkeypatch)


class ScriptedTime:
    """Replaces the clock and the wait of commands: a wait takes no time and runs the next step of the script."""

    def __init__(self, held: FakeTopics, script: Sequence[Callable[[FakeTopics], object]]) -> None:
        self._held = held
        self._script = list(script)
        self._now = 1000.0

    def monotonic(self) -> float:
        return self._now

    def pause(self, seconds: float) -> None:
        self._now += seconds
        if not self._script:
            raise KeyboardInterrupt  # Nothing more will happen: the command would wait for ever.
        self._script.pop(0)(self._held)


@pytest.fixture
def happens(held: FakeTopics, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`happens(change, change, ...)`: what changes in the cluster, one thing each time that a command waits."""

    def script(*changes: Callable[[FakeTopics], object]) -> None:
        scripted = ScriptedTime(held, changes)
        monkeypatch.setattr(watching, "time", scripted)
        monkeypatch.setattr(watching, "pause", scripted.pause)

    return script
