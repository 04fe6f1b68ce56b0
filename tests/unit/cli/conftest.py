"""A cluster of dictionaries with the methods of `Admin`, `Producer` and `Consumer` that the command line uses."""

import io
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
from headrace.cli.main import run
from headrace.client.admin_replication import LogInfo
from headrace.client.admin_rpc import (
    BrokerDescription,
    ClusterDescription,
    ConfigValue,
    CoordinatorDescription,
    MetadataEntry,
    OffsetAt,
    PartitionDescription,
    TopicDescription,
)
from headrace.client.records import Record
from headrace.wire.errors import HeadraceError, InvalidConfigError, TopicAlreadyExistsError, UnknownTopicError
from headrace.wire.ids import TopicPartition

CREATED_MS = 1_700_000_000_000


@dataclass
class FakeTopics:
    """What the fake cluster holds."""

    topics: dict[str, TopicDescription] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    brokers: tuple[BrokerDescription, ...] = (BrokerDescription(1, "127.0.0.1:7181", "r1", "h1", 5, False, "0.1.0"),)
    controller_id: str = "a"
    # Raised by every call.
    failure: BaseException | None = None
    # Raised by describe_logs alone.
    logs_failure: HeadraceError | None = None
    # Settings of every object made.
    settings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, partitions: int = 2) -> None:
        parts = tuple(PartitionDescription(n, 1, 0, (1,), (1,), (1,)) for n in range(partitions))
        self.topics[name] = TopicDescription(name, uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes, parts, 1_048_576)
        self.configs.setdefault(name, {})
        for n in range(partitions):
            self.records.setdefault(TopicPartition(name, n), [])

    def lose_leader(self, topic: str, partition: int) -> None:
        parts = list(self.topics[topic].partitions)
        parts[partition] = replace(parts[partition], leader_id=-1, replicas=(2,), in_sync_replicas=(2,))
        self.topics[topic] = replace(self.topics[topic], partitions=tuple(parts))

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
        if self.failure is not None:
            raise self.failure
        if name not in self.topics:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return self.topics[name]


class FakeContext:
    def __init__(self, held: FakeTopics) -> None:
        self.held = held

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class FakeAdmin(FakeContext):
    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str], *, validate_only: bool
    ) -> TopicDescription:
        if self.held.failure is not None:
            raise self.held.failure
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

    def describe_topic(self, name: str) -> TopicDescription:
        return self.held.require(name)

    def describe_topics(self) -> list[TopicDescription]:
        if self.held.failure is not None:
            raise self.held.failure
        return [self.held.topics[name] for name in sorted(self.held.topics)]

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
        if self.held.failure is not None:
            raise self.held.failure
        coordinators = (CoordinatorDescription("a", "127.0.0.1:7170", "0.1.0"),)
        counts = len(self.held.topics), sum(len(topic.partitions) for topic in self.held.topics.values())
        return ClusterDescription(
            "c1", 1, 1, self.held.controller_id, 3, self.held.brokers, coordinators, *counts, 0, 0, "3.5.1", 99
        )

    def describe_logs(self, topic: str | None = None) -> list[LogInfo]:
        if self.held.logs_failure is not None:
            raise self.held.logs_failure
        return [
            LogInfo(where.topic, where.partition, 1, True, 0, 0, len(log), len(log), len(log), 100 * len(log), 1, "")
            for where, log in self.held.records.items()
            if topic in (None, where.topic)
        ]

    def list_offsets(
        self, topic: str, at: str | int, *, partitions: Sequence[int] | None
    ) -> dict[TopicPartition, OffsetAt]:
        self.held.require(topic)
        found = {}
        for where, log in sorted(self.held.records.items()):
            if where.topic != topic or (partitions is not None and where.partition not in partitions):
                continue
            offset = {"earliest": 0, "latest": len(log)}.get(str(at))
            if offset is None:
                offset = next((each.offset for each in log if each.timestamp_ms >= int(at)), len(log))
            found[where] = OffsetAt(offset, -1)
        return found

    def dump(self, prefix: str = "") -> Iterator[MetadataEntry]:
        for name in self.held.topics:
            if f"topics/{name}".startswith(prefix):
                yield MetadataEntry(f"topics/{name}", f'{{"name": "{name}"}}', 1, 2, 3, 0)


class FakeProducer(FakeContext):
    def send(self, topic: str, value: bytes | None, key: bytes | None = None, **fields: Any) -> None:
        partition = fields.pop("partition", None)
        self.held.append(topic, partition or 0, value, key=key, **fields)

    def send_many(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        for value in values:
            self.held.append(topic, partition or 0, value)

    def flush(self, timeout: float | None = None) -> None:
        if self.held.failure is not None:
            raise self.held.failure


class FakeConsumer(FakeContext):
    def assign(self, partitions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(partitions)
        self.paused: set[TopicPartition] = set()

    def poll(self, timeout: float, max_records: int) -> list[Record]:
        found: list[Record] = []
        for where in sorted(set(self.positions) - self.paused):
            batch = self.held.records[where][self.positions[where] :][: max(0, min(3, max_records - len(found)))]
            self.positions[where] += len(batch)
            found += batch
        if not found:
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

    def consumer(self, **settings: Any) -> Any:
        self.held.settings.append(settings)
        return FakeConsumer(self.held)


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
    held: FakeTopics, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    return CommandLine(held, capsysbinary, monkeypatch)
