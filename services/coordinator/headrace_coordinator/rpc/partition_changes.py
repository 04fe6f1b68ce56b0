"""Changes to many partitions by one request, each with its own result and error.

Used by `partition_requests`; belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, Outcome, TimedOutError, UnknownPartitionError
from headrace.wire.ids import TopicId
from headrace_server.identity.gate import access
from headrace_server.identity.quotas import Use
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.partition_state import PartitionState
from headrace_server.rpc import let_others_run

from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.runtime.partition_reconciler import registered_sessions
from headrace_coordinator.runtime.partition_store import (
    ChangedPartition,
    Decide,
    Guard,
    PartitionStore,
    StoredPartition,
)
from headrace_coordinator.runtime.topic_store import TopicStore
from headrace_coordinator.runtime.waiting import wait_until

READS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class AskedPartition:
    """Partition of a request, with its result message."""

    reference: topics_pb2.TopicRef
    partition: int
    answer: cluster_pb2.PartitionChangeResult
    decide: Decide
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """Topic of a request, as stored in etcd."""

    message: metadata_pb2.Topic
    partitions: Mapping[int, StoredPartition]


class PartitionChanges:
    """Reads the topics of a request and changes their partitions."""

    def __init__(self, store: PartitionStore, topics: TopicStore, view: ClusterView, answers: Answers) -> None:
        self._store = store
        self._topics = topics
        self._view = view
        self._answers = answers

    async def find(
        self, references: Iterable[topics_pb2.TopicRef], deadline: float
    ) -> dict[str, FoundTopic | HeadraceError]:
        """Read the referenced topics, each once, with all their partitions."""
        permits = asyncio.Semaphore(READS_AT_ONCE)
        found: dict[str, FoundTopic | HeadraceError] = {}

        async def read(key: str, reference: topics_pb2.TopicRef) -> None:
            try:
                async with permits:
                    message = (await self._topics.find(reference, deadline)).message
                    found[key] = FoundTopic(message, await self._store.read_topic(message.topic_id, deadline))
            except HeadraceError as error:
                found[key] = error

        async with asyncio.TaskGroup() as tasks:
            for key, reference in {topic_key(reference): reference for reference in references}.items():
                tasks.create_task(read(key, reference))
        return found

    async def change_all(
        self,
        asked: Iterable[AskedPartition],
        found: Mapping[str, FoundTopic | HeadraceError],
        deadline: float,
        *,
        validate_only: bool,
    ) -> list[tuple[AskedPartition, ChangedPartition]]:
        """Change the partitions, fill in their results, and wait until the view shows the changes.

        Each partition that changed counts as a change of the caller's quota.
        """
        changed: list[tuple[AskedPartition, ChangedPartition]] = []

        async def change_one(one: AskedPartition, topic: FoundTopic) -> None:
            try:
                outcome = await self._change(one, topic, deadline, validate_only=validate_only)
            except HeadraceError as error:
                self._answers.put_error(one.answer, error)
                return
            if not validate_only and not outcome.unchanged:
                access().charge(Use.CHANGE)
            _fill(one.answer, outcome)
            changed.append((one, outcome))

        seen: set[tuple[bytes, int]] = set()
        async with asyncio.TaskGroup() as tasks:
            for index, one in enumerate(asked):
                await let_others_run(index)
                topic = found[topic_key(one.reference)]
                if isinstance(topic, HeadraceError):
                    self._answers.put_error(one.answer, topic)
                    continue
                one.answer.name, one.answer.topic_id = topic.message.name, topic.message.topic_id
                if (topic.message.topic_id, one.partition) in seen:
                    self._answers.put_error(one.answer, InvalidRequestError("the request names the partition twice"))
                    continue
                seen.add((topic.message.topic_id, one.partition))
                tasks.create_task(change_one(one, topic))
        with contextlib.suppress(TimedOutError):  # It is written, and the results are complete.
            await self._answers.see(max((outcome.revision for _, outcome in changed), default=0), deadline)
        return changed

    async def await_hand_overs(
        self, changed: Iterable[tuple[AskedPartition, ChangedPartition]], deadline: float, *, validate_only: bool
    ) -> None:
        """Wait until the leaders have handed over or kept leading, and fill in the results.

        With `validate_only` there is no wait, and the results are those that are expected.
        """
        asked = [(one, outcome) for one, outcome in changed if outcome.after.successors]
        if validate_only:
            for one, outcome in asked:
                one.answer.leader_id = outcome.after.successors[0].broker_id
                one.answer.leader_epoch = outcome.after.leader_epoch + 1
            return

        def state_of(one: AskedPartition) -> PartitionState | None:
            found = self._view.partition(TopicId(one.answer.topic_id), one.partition)
            return None if found is None else found.state

        def is_over() -> bool:
            states = [state_of(one) for one, _ in asked]
            return not any(state is not None and state.successors for state in states)

        await wait_until(self._view, is_over, deadline)
        for one, outcome in asked:
            state = state_of(one)
            if state is None:
                self._answers.put_error(one.answer, UnknownPartitionError("the partition was deleted meanwhile"))
            elif state.leader == outcome.after.leader:
                self._answers.put_error(one.answer, _not_handed_over(state))
            else:
                one.answer.leader_id = state.leader_id
                one.answer.leader_epoch = state.leader_epoch

    async def _change(
        self, one: AskedPartition, topic: FoundTopic, deadline: float, *, validate_only: bool
    ) -> ChangedPartition:
        found = topic.partitions.get(one.partition)
        if found is None or one.partition >= topic.message.partitions:
            raise UnknownPartitionError(f"topic {topic.message.name} has no partition {one.partition}")
        if not validate_only:
            return await self._store.change(
                topic.message.topic_id, one.partition, found, one.decide, deadline, guard=one.guard
            )
        after = one.decide(found.state, registered_sessions(self._view))
        return ChangedPartition(found.state, after or found.state, 0, after is None)


def _not_handed_over(state: PartitionState) -> TimedOutError:
    return TimedOutError(
        f"the replica did not reach the end of the leader's log in time; broker {state.leader_id} leads on",
        outcome=Outcome.UNKNOWN if state.successors else Outcome.NOT_APPLIED,
        action="Retry; if it persists, wait until fewer records are written or the replica is faster.",
    )


def _fill(answer: cluster_pb2.PartitionChangeResult, outcome: ChangedPartition) -> None:
    answer.unchanged = outcome.unchanged
    answer.leader_id = outcome.after.leader_id
    answer.leader_epoch = outcome.after.leader_epoch
    answer.replicas.extend(outcome.after.replicas)


def topic_key(reference: topics_pb2.TopicRef) -> str:
    """Return the key of a reference in the result of `PartitionChanges.find`."""
    return f"name {reference.name}" if reference.HasField("name") else f"id {reference.topic_id.hex()}"
