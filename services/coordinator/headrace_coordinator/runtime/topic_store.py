"""Reads and writes of topics: executes the transactions of `core.topic_writes` through `ambiguous_writes`.

Any coordinator may write any topic; compares resolve every race. Each attempt to create a topic uses its own topic id,
so that the id shows whether the topic is of this call, and a late attempt cannot restore a topic that was deleted
meanwhile. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.partition.topic_configs import TopicConfig, parse_topic_config
from headrace.v1 import topics_pb2
from headrace.wire.errors import (
    ConflictError,
    InvalidRequestError,
    Outcome,
    TopicAlreadyExistsError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from headrace.wire.ids import TopicId
from headrace.wire.topic_names import check_topic_name
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import TxnResult
from headrace_server.partition_state import PartitionState

from headrace_coordinator.core import topic_writes
from headrace_coordinator.core.placement import BrokerLoad, Placement
from headrace_coordinator.core.topics import (
    Candidate,
    CheckedTopic,
    initial_state,
    place_more_partitions,
    place_new_topic,
)
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver, WriteTracker
from headrace_coordinator.runtime.topic_owners import TopicOwners

PARTITIONS_AT_ONCE = 100
"""Maximum partitions of a topic for which the event loop is kept, in clusters of 100 brokers for 20 ms."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """Topic in etcd, with the versions for a compare-and-swap."""

    message: metadata_pb2.Topic
    topic_revision: int
    tid_revision: int


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """Created topic."""

    topic_id: TopicId
    revision: int
    placement: Placement


class TopicStore:
    """Reads and writes topics, each call within its deadline (loop time, seconds)."""

    def __init__(
        self,
        writes: AmbiguousWriteResolver,
        view: ClusterView,
        metrics: CoordinatorMetrics,
        clock: Clock,
        owners: TopicOwners,
    ) -> None:
        self._writes = writes
        self._view = view
        self._keyspace: Keyspace = view.keyspace
        self._metrics = metrics
        self._clock = clock
        self.owners = owners

    def candidates(self) -> dict[int, Candidate]:
        """Return the brokers that accept replicas, with their loads, from the view."""
        replicas: dict[int, int] = {}
        leaders: dict[int, int] = {}
        for topic in self._view.topics.values():
            for partition in self._view.partitions(topic.topic_id):
                state = partition.state
                for broker_id in state.replicas:
                    replicas[broker_id] = replicas.get(broker_id, 0) + 1
                leaders[state.replicas[0]] = leaders.get(state.replicas[0], 0) + 1
        return {
            int(broker_id): Candidate(
                broker.broker_epoch,
                BrokerLoad(
                    int(broker_id),
                    broker.live.rack,
                    broker.live.host,
                    replicas=replicas.get(broker_id, 0),
                    leaders=leaders.get(broker_id, 0),
                    data_center=broker.live.data_center,
                ),
            )
            for broker_id, broker in sorted(self._view.brokers.items())
            if not self._view.is_draining(broker_id) and not broker.live.takes_no_replicas
        }

    async def exists(self, name: str, deadline: float) -> bool:
        """Return whether etcd has a topic of this name.

        Raises:
            MetastoreUnavailableError: If etcd does not respond; nothing was written.
        """
        return (await self._writes.read(self._keyspace.topic(name), deadline)) is not None

    async def check_reachable(self, deadline: float) -> None:
        """Probe etcd, so that an outage is reported before any write.

        Raises:
            MetastoreUnavailableError: If etcd does not respond; nothing was written.
        """
        await self._writes.read(self._keyspace.controller(), deadline)

    async def find(self, reference: topics_pb2.TopicRef, deadline: float) -> StoredTopic:
        """Read a topic from etcd by name or by id.

        Raises:
            InvalidRequestError, InvalidTopicNameError: If the reference is invalid.
            UnknownTopicError, UnknownTopicIdError: If there is no such topic.
            MetastoreUnavailableError: If etcd does not respond; nothing was written.
        """
        missing: UnknownTopicError | UnknownTopicIdError
        match reference.WhichOneof("topic"):
            case "name":
                check_topic_name(reference.name)
                missing = UnknownTopicError(f"there is no topic named {reference.name!r}")
                first = await self._writes.read(self._keyspace.topic(reference.name), deadline)
            case "topic_id":
                if len(reference.topic_id) != 16:
                    raise InvalidRequestError(f"a topic id has 16 bytes, not {len(reference.topic_id)}")
                missing = UnknownTopicIdError(f"there is no topic with id {reference.topic_id.hex()}")
                first = await self._writes.read(self._keyspace.topic_by_id(reference.topic_id), deadline)
            case _:
                raise InvalidRequestError("the request has neither the name nor the id of a topic")
        if first is None:
            raise missing
        message = metadata_pb2.Topic.FromString(first.value)
        while True:
            by_name = await self._writes.read(self._keyspace.topic(message.name), deadline)
            by_id = await self._writes.read(self._keyspace.topic_by_id(message.topic_id), deadline)
            if by_name is None or by_id is None:
                raise missing
            named = metadata_pb2.Topic.FromString(by_name.value)
            if named == metadata_pb2.Topic.FromString(by_id.value):
                return StoredTopic(named, by_name.mod_revision, by_id.mod_revision)
            if named.topic_id != message.topic_id:
                raise missing  # Deleted and recreated between the reads, or another topic has this name.
            await asyncio.sleep(0)  # A change of the topic came between the reads, which wrote both keys.

    async def create(self, topic: CheckedTopic, placement: Placement, deadline: float, owner: str = "") -> CreatedTopic:
        """Create a topic, which a user owns then; the first attempt uses `placement`.

        Raises:
            TopicAlreadyExistsError: If the name is taken, not by an attempt of this call; has the outcome, since an
                earlier attempt's topic may have been deleted meanwhile.
            NotEnoughBrokersError: If brokers are no longer registered.
            MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
        """
        attempted: set[bytes] = set()

        async def attempt(tracker: WriteTracker) -> CreatedTopic | None:
            nonlocal placement
            candidates = self.candidates()
            if any(broker_id not in candidates for replicas in placement.assignments for broker_id in replicas):
                placement = await compute(topic.partitions, place_new_topic, topic, candidates)
            config = parse_topic_config(topic.configs)
            states = await _initial_states(placement.assignments, candidates, config, first=0)
            grant = self.owners.grant(owner, topic.name)
            message = metadata_pb2.Topic(
                name=topic.name,
                topic_id=secrets.token_bytes(16),
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=topic.configs,
                created_ms=self._clock.now_ms(),
                owner="" if grant is None else grant.user,
            )
            attempted.add(message.topic_id)
            result = await self._write_new(tracker, message, states, grant)
            if result is None:
                return None
            if result.succeeded:
                self._metrics.topics_created.inc()
                return CreatedTopic(TopicId(message.topic_id), result.revision, placement)
            by_name = result.responses[0]
            if not by_name:
                return None  # A broker's registration changed: place again. Or the owner was deleted.
            winner = metadata_pb2.Topic.FromString(by_name[0].value)
            if winner.topic_id in attempted:
                self._metrics.topics_created.inc()
                return CreatedTopic(TopicId(winner.topic_id), by_name[0].create_revision, placement)
            raise TopicAlreadyExistsError(f"a topic named {topic.name} exists")

        return await self._writes.resolve(attempt, deadline, f"creating topic {topic.name}")

    async def grow(
        self,
        found: StoredTopic,
        total: int,
        assignments: Sequence[Sequence[int]],
        placement: Placement,
        deadline: float,
    ) -> tuple[int, Placement]:
        """Add partitions up to `total`; return the revision of the write and the placement. Raises also as `create`.

        Raises:
            ConflictError: If the topic was changed concurrently; nothing was applied.
        """
        sent = False
        added = total - found.message.partitions
        reference = topics_pb2.TopicRef(topic_id=found.message.topic_id)

        async def attempt(tracker: WriteTracker) -> tuple[int, Placement] | None:
            nonlocal sent, placement, found
            if sent:
                current = await self.find(reference, deadline)
                if current.message.partitions == total:
                    return current.topic_revision, placement
                if current.message.partitions != found.message.partitions:
                    raise ConflictError(
                        f"topic {found.message.name} got {current.message.partitions} partitions meanwhile",
                        outcome=Outcome.NOT_APPLIED,
                    )
                found = current
            candidates = self.candidates()
            if any(broker_id not in candidates for replicas in placement.assignments for broker_id in replicas):
                present = self.states(found.message.topic_id)
                placement = await compute(
                    total, place_more_partitions, found.message, added, assignments, candidates, present
                )
            config = self._view.topic_by_id(found.message.topic_id)
            states = await _initial_states(
                placement.assignments,
                candidates,
                TopicConfig() if config is None else config.config,
                first=found.message.partitions,
            )
            sent = True
            result = await self._write_growth(tracker, found, total, states)
            if result is None or not result.succeeded:
                return None
            return result.revision, placement

        return await self._writes.resolve(attempt, deadline, f"adding partitions to topic {found.message.name}")

    async def configure(
        self,
        reference: topics_pb2.TopicRef,
        decide: Callable[[metadata_pb2.Topic], Mapping[str, str]],
        deadline: float,
    ) -> tuple[metadata_pb2.Topic, int]:
        """Store the settings that `decide` returns; return the topic and the revision (`0` if nothing changed)."""

        def rewrite(message: metadata_pb2.Topic) -> None:
            configs = decide(message)
            message.configs.clear()
            message.configs.update(configs)

        return await self._rewrite(reference, rewrite, deadline)

    async def set_replication_factor(
        self, reference: topics_pb2.TopicRef, replication_factor: int, deadline: float
    ) -> None:
        """Record the number of replicas per partition, which is used for further partitions."""

        def rewrite(message: metadata_pb2.Topic) -> None:
            message.replication_factor = replication_factor

        await self._rewrite(reference, rewrite, deadline)

    async def _rewrite(
        self, reference: topics_pb2.TopicRef, rewrite: Callable[[metadata_pb2.Topic], None], deadline: float
    ) -> tuple[metadata_pb2.Topic, int]:
        async def attempt(tracker: WriteTracker) -> tuple[metadata_pb2.Topic, int] | None:
            found = await self.find(reference, deadline)
            message = metadata_pb2.Topic()
            message.CopyFrom(found.message)
            rewrite(message)
            if message == found.message:
                return found.message, 0
            write = topic_writes.configure(self._keyspace, message, found.topic_revision, found.tid_revision)
            result = await self._writes.send(tracker, write)
            return (message, result.revision) if result.succeeded else None

        return await self._writes.resolve(attempt, deadline, "changing a topic's settings")

    async def delete(self, reference: topics_pb2.TopicRef, deadline: float) -> tuple[metadata_pb2.Topic, int]:
        """Delete a topic with all its partitions; return the topic and the revision (`0` if it was already gone)."""
        last: StoredTopic | None = None

        async def attempt(tracker: WriteTracker) -> tuple[metadata_pb2.Topic, int] | None:
            nonlocal last
            try:
                found = await self.find(
                    reference if last is None else topics_pb2.TopicRef(topic_id=last.message.topic_id), deadline
                )
            except (UnknownTopicError, UnknownTopicIdError):
                if last is None:
                    raise
                return last.message, 0  # Deleted by another caller, or by an attempt whose response was lost.
            last = found
            result = await self._writes.send(
                tracker, topic_writes.delete(self._keyspace, found.message, found.topic_revision, self._clock.now_ms())
            )
            if not result.succeeded:
                return None
            self._metrics.topics_deleted.inc()
            return found.message, result.revision

        return await self._writes.resolve(attempt, deadline, "deleting a topic")

    async def delete_unclaimed(self, reference: topics_pb2.TopicRef, deadline: float, *, validate_only: bool) -> int:
        """Record that logs of an id without a topic may be deleted; return the revision, `0` if nothing was written.

        Raises:
            InvalidRequestError: If the reference is not an id of 16 bytes.
            ConflictError: If a topic has the id.
            MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
        """
        topic_id = reference.topic_id
        if len(topic_id) != 16:
            raise InvalidRequestError(
                f"{len(topic_id)} bytes are no topic id", action="Give the id that the broker's log names, 16 bytes."
            )

        async def attempt(tracker: WriteTracker) -> int | None:
            found = await self._writes.read(self._keyspace.topic_by_id(topic_id), deadline)
            if found is not None or self._view.topic_by_id(topic_id) is not None:
                raise ConflictError(
                    f"there is a topic with id {topic_id.hex()}",
                    outcome=Outcome.NOT_APPLIED,
                    retriable=False,
                    action="Delete the topic by its name.",
                )
            if validate_only:
                return 0
            write = topic_writes.delete_unclaimed(self._keyspace, topic_id, self._clock.now_ms())
            result = await self._writes.send(tracker, write)
            return result.revision if result.succeeded else None

        return await self._writes.resolve(attempt, deadline, "deleting unclaimed logs")

    def states(self, topic_id: bytes) -> list[PartitionState]:
        """Return the states of a topic's partitions from the view."""
        return [partition.state for partition in self._view.partitions(topic_id)]

    async def _write_new(
        self, tracker: WriteTracker, message: metadata_pb2.Topic, states: Mapping[int, PartitionState],
        grant: topic_writes.OwnerGrant | None,
    ) -> TxnResult | None:  # fmt: skip
        """Write a new topic in one or several transactions; return the last result, or `None` to start again."""
        whole = await compute(len(states), topic_writes.create, self._keyspace, message, states, grant)
        if whole.fits():
            return await self._writes.send(tracker, whole)
        reserved = await self._writes.send(tracker, topic_writes.reserve(self._keyspace, message))
        if not reserved.succeeded:
            return reserved
        if not await self._put_partitions(tracker, message.topic_id, reserved.revision, states):
            return None
        published = topic_writes.publish(self._keyspace, message, reserved.revision, grant)
        return await self._writes.send(tracker, published)

    async def _write_growth(
        self, tracker: WriteTracker, found: StoredTopic, total: int, states: Mapping[int, PartitionState]
    ) -> TxnResult | None:
        """Write further partitions in one or several transactions; return the last result, or `None` to start again."""
        message = metadata_pb2.Topic()
        message.CopyFrom(found.message)
        message.partitions = total
        whole = await compute(
            len(states), topic_writes.grow, self._keyspace, message, found.topic_revision, found.tid_revision, states
        )
        if whole.fits():
            return await self._writes.send(tracker, whole)
        if not await self._put_partitions(tracker, message.topic_id, found.tid_revision, states):
            return None
        return await self._writes.send(
            tracker, topic_writes.grow(self._keyspace, message, found.topic_revision, found.tid_revision, {})
        )

    async def _put_partitions(
        self, tracker: WriteTracker, topic_id: bytes, tid_revision: int, states: Mapping[int, PartitionState]
    ) -> bool:
        """Put invisible partitions; return False if the topic or a broker changed meanwhile."""
        for write in topic_writes.put_partitions(self._keyspace, topic_id, tid_revision, states):
            if not (await self._writes.send(tracker, write)).succeeded:
                return False
        return True


async def compute(partitions: int, call: Callable[..., ResultT], *arguments: object) -> ResultT:
    """Return the result of `call`, the time of which grows with `partitions`; of many it is computed in a thread."""
    if partitions <= PARTITIONS_AT_ONCE:
        return call(*arguments)
    return await asyncio.to_thread(call, *arguments)


async def _initial_states(
    assignments: Sequence[Sequence[int]], candidates: Mapping[int, Candidate], config: TopicConfig, *, first: int
) -> dict[int, PartitionState]:
    def make() -> dict[int, PartitionState]:
        least, durable = config.min_insync_replicas, config.counts_flushed
        return {
            first + index: initial_state(replicas, candidates, least, durable=durable)
            for index, replicas in enumerate(assignments)
        }

    return await compute(len(assignments), make)
