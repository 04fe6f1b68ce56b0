"""Calls that reassign partitions and elect leaders: conversion between messages and the partition store.

Each partition has its own result and error; the call fails only if the whole request is invalid. State is read from
etcd, so that an administrator's next request sees earlier changes on every coordinator. Used by `cluster_service`;
belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog
from headrace.placement.policy import RACK, PlacementPolicy
from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView, PartitionEntry, Topic
from headrace_server.metastore.api import Compare, CreateRevisionIs
from headrace_server.partition_state import PartitionState
from headrace_server.rpc import let_others_run

from headrace_coordinator.core.election import RegisteredBroker
from headrace_coordinator.core.leader_requests import elect_preferred, elect_unclean, nobody_returned
from headrace_coordinator.core.reassignment import check_target, plan_cancel, plan_move
from headrace_coordinator.core.topics import stored_policy
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.partition_changes import AskedPartition, FoundTopic, PartitionChanges, topic_key
from headrace_coordinator.runtime.partition_store import (
    ChangedPartition,
    Decide,
    Guard,
    StoredPartition,
)
from headrace_coordinator.runtime.topic_store import TopicStore
from headrace_coordinator.settings import CoordinatorSettings

log = structlog.get_logger(__name__)


class PartitionRequests:
    """Implementation of the calls about reassignments and leaders."""

    def __init__(
        self,
        changes: PartitionChanges,
        topics: TopicStore,
        view: ClusterView,
        answers: Answers,
        settings: CoordinatorSettings,
        metrics: CoordinatorMetrics,
    ) -> None:
        self._changes = changes
        self._topics = topics
        self._view = view
        self._answers = answers
        self._settings = settings
        self._metrics = metrics

    async def reassign(
        self, request: cluster_pb2.ReassignPartitionsRequest, seconds_left: float
    ) -> cluster_pb2.ReassignPartitionsResponse:
        """Start, change or cancel reassignments; copying continues after the response."""
        deadline = self._answers.deadline(0, seconds_left)
        if len(request.partitions) > self._settings.max_request_partitions:
            raise InvalidRequestError(
                f"the request names {len(request.partitions)} partitions, more than "
                f"{self._settings.max_request_partitions}",
                action="Send several smaller requests.",
            )
        if request.copy_bytes_per_second < 0:
            raise InvalidRequestError(f"copy_bytes_per_second = {request.copy_bytes_per_second} is negative")
        response = cluster_pb2.ReassignPartitionsResponse()
        found = await self._changes.find((wanted.topic for wanted in request.partitions), deadline)
        asked = []
        for index, wanted in enumerate(request.partitions):
            await let_others_run(index)
            answer = response.partitions.add(**_named(wanted.topic), partition=wanted.partition)
            topic = found[topic_key(wanted.topic)]
            policy = RACK if isinstance(topic, HeadraceError) else stored_policy(topic.message)
            decide = _reassign(wanted, policy, request.copy_bytes_per_second)
            asked.append(AskedPartition(wanted.topic, wanted.partition, answer, decide, self._added_live))
        changed = await self._changes.change_all(asked, found, deadline, validate_only=request.validate_only)
        if not request.validate_only:
            await self._record_replication_factors(found, changed, deadline)
        for one, outcome in changed:
            if not outcome.unchanged and not request.validate_only:
                log.info(
                    "partition_reassigned",
                    client_id=request.client_id,
                    topic=one.answer.name,
                    partition=one.partition,
                    replicas=outcome.after.replicas,
                    adding=outcome.after.adding,
                    removing=outcome.after.removing,
                    copy_bytes_per_second=outcome.after.copy_bytes_per_second,
                )
        return response

    def list_reassignments(
        self, request: cluster_pb2.ListReassignmentsRequest
    ) -> cluster_pb2.ListReassignmentsResponse:
        """Return the reassignments in progress from the view, by topic name and partition.

        Raises:
            UnknownTopicError, UnknownTopicIdError, InvalidRequestError: If the request names an unknown topic.
        """
        topics = [self._view.resolve(reference) for reference in request.topics] or self._all_topics()
        response = cluster_pb2.ListReassignmentsResponse()
        for topic in topics:
            for partition in self._view.partitions(topic.topic_id):
                state = partition.state
                if state.adding or state.removing:
                    response.partitions.add(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        partition=partition.partition,
                        replicas=state.replicas,
                        adding=state.adding,
                        removing=state.removing,
                        in_sync_replicas=[entry.broker_id for entry in state.in_sync],
                        leader_id=state.leader_id,
                        copy_bytes_per_second=state.copy_bytes_per_second,
                    )
        return response

    async def elect(
        self, request: cluster_pb2.ElectLeadersRequest, seconds_left: float
    ) -> cluster_pb2.ElectLeadersResponse:
        """Elect the preferred replicas, or, on explicit request, replicas that may lack records."""
        deadline = self._answers.deadline(0, seconds_left)
        is_unclean = request.type == cluster_pb2.ELECTION_TYPE_UNCLEAN
        _check_election(request)
        broker_id = request.broker_id if request.HasField("broker_id") and request.broker_id >= 0 else None
        response = cluster_pb2.ElectLeadersResponse()
        decide: Decide = elect_preferred
        guard: Guard | None = None
        if is_unclean:
            decide, guard = (lambda state, live: elect_unclean(state, live, broker_id)), self._nobody_returned
        found: Mapping[str, FoundTopic | HeadraceError]
        if request.topics:
            found = await self._changes.find((entry.topic for entry in request.topics), deadline)
            asked = list(_asked_elections(request, found, response, decide, guard))
        else:
            found = {topic_key(_by_id(topic)): self._seen(topic) for topic in self._all_topics()}
            asked = [
                AskedPartition(_by_id(topic), number, response.partitions.add(partition=number), decide)
                for topic in self._all_topics()
                for number in range(topic.partitions)
            ]
        changed = await self._changes.change_all(asked, found, deadline, validate_only=request.validate_only)
        if not is_unclean:
            await self._changes.await_hand_overs(changed, deadline, validate_only=request.validate_only)
        for one, outcome in changed:
            if is_unclean and not outcome.unchanged and not request.validate_only:
                self._metrics.unclean_elections.inc()
                log.warning(
                    "unclean_election",
                    client_id=request.client_id,
                    topic=one.answer.name,
                    topic_id=one.answer.topic_id.hex(),
                    partition=one.partition,
                    replicas=outcome.before.replicas,
                    in_sync=[entry.broker_id for entry in outcome.before.in_sync],
                    eligible_leaders=[entry.broker_id for entry in outcome.before.eligible_leaders],
                    broker_id=one.answer.leader_id,
                    leader_epoch_before=outcome.before.leader_epoch,
                    leader_epoch=outcome.after.leader_epoch,
                )
        return response

    async def _record_replication_factors(
        self,
        found: Mapping[str, FoundTopic | HeadraceError],
        changed: Iterable[tuple[AskedPartition, ChangedPartition]],
        deadline: float,
    ) -> None:
        """Record the topic's replication factor once all its partitions have the same number of target replicas."""
        states: dict[bytes, dict[int, PartitionState]] = {}
        for one, outcome in changed:
            states.setdefault(one.answer.topic_id, {})[one.partition] = outcome.after
        for topic in found.values():
            if isinstance(topic, HeadraceError) or topic.message.topic_id not in states:
                continue
            before = {number: stored.state for number, stored in topic.partitions.items()}
            after = (before | states[topic.message.topic_id]).values()
            sizes = {len(state.replicas) - len(state.removing) for state in after}
            if len(sizes) == 1 and topic.message.replication_factor not in sizes:
                try:
                    reference = topics_pb2.TopicRef(topic_id=topic.message.topic_id)
                    await self._topics.set_replication_factor(reference, sizes.pop(), deadline)
                except HeadraceError as error:
                    log.warning("replication_factor_not_recorded", topic=topic.message.name, cause=error.message)

    def _all_topics(self) -> list[Topic]:
        return [topic for _, topic in sorted(self._view.topics.items())]

    def _seen(self, topic: Topic) -> FoundTopic:
        """Return a topic from the view; a write still compares its version in etcd."""
        message = metadata_pb2.Topic(name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions)
        return FoundTopic(
            message, {partition.partition: _stored(partition) for partition in self._view.partitions(topic.topic_id)}
        )

    def _added_live(
        self, before: PartitionState, after: PartitionState, live: Mapping[int, RegisteredBroker]
    ) -> tuple[Compare, ...]:
        """Return compares that the added brokers are registered in the sessions that were checked."""
        return tuple(
            CreateRevisionIs(self._view.keyspace.broker(broker_id), live[broker_id].broker_epoch)
            for broker_id in after.adding
            if broker_id not in before.replicas
        )

    def _nobody_returned(
        self, before: PartitionState, after: PartitionState, live: Mapping[int, RegisteredBroker]
    ) -> tuple[Compare, ...]:
        return nobody_returned(self._view.keyspace, before, live)


def _reassign(wanted: cluster_pb2.PartitionReassignment, policy: PlacementPolicy, copy_bytes_per_second: int) -> Decide:
    def decide(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> PartitionState | None:
        if wanted.cancel:
            if wanted.replicas:
                raise InvalidRequestError(
                    "a cancelled reassignment restores the previous replicas, so the request must not name replicas"
                )
            return plan_cancel(state)
        check_target(state, wanted.replicas, live, policy)
        return plan_move(state, tuple(wanted.replicas), copy_bytes_per_second)

    return decide


def _check_election(request: cluster_pb2.ElectLeadersRequest) -> None:
    match request.type:
        case cluster_pb2.ELECTION_TYPE_PREFERRED:
            if request.HasField("broker_id") and request.broker_id >= 0:
                raise InvalidRequestError(
                    "the order of the replicas determines the preferred leader",
                    action="Leave broker_id out, or change the order by a reassignment.",
                )
        case cluster_pb2.ELECTION_TYPE_UNCLEAN:
            if not request.topics:
                raise InvalidRequestError(
                    "the request is for an unclean election and names no topic",
                    action="Name the topics, or better the partitions.",
                )
        case _:
            raise InvalidRequestError(
                "the election type of the request is unspecified", action="Set type to PREFERRED or UNCLEAN."
            )


def _asked_elections(
    request: cluster_pb2.ElectLeadersRequest,
    found: Mapping[str, FoundTopic | HeadraceError],
    response: cluster_pb2.ElectLeadersResponse,
    decide: Decide,
    guard: Guard | None,
) -> Iterable[AskedPartition]:
    """Yield each partition that a request selects; a topic that does not exist gets one result."""
    for entry in request.topics:
        topic = found[topic_key(entry.topic)]
        numbers: Iterable[int] = entry.partitions
        if not entry.partitions:
            numbers = [0] if isinstance(topic, HeadraceError) else range(topic.message.partitions)
        for number in numbers:
            answer = response.partitions.add(**_named(entry.topic), partition=number)
            yield AskedPartition(entry.topic, number, answer, decide, guard)


def _stored(partition: PartitionEntry) -> StoredPartition:
    return StoredPartition(partition.state, partition.mod_revision)


def _by_id(topic: Topic) -> topics_pb2.TopicRef:
    return topics_pb2.TopicRef(topic_id=topic.topic_id)


def _named(reference: topics_pb2.TopicRef) -> dict[str, str | bytes]:
    return {"name": reference.name[:1_000], "topic_id": reference.topic_id[:16]}
