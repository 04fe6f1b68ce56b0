"""Calls that create, delete, grow and configure topics: conversion between messages and the topic store.

Each topic has its own result and error; the call fails only if the whole request is invalid. Every wait ends before
the caller's deadline. Used by `cluster_service`; belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping

from headrace.partition.topic_configs import describe_topic_config
from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import (
    HeadraceError,
    InvalidPartitionsError,
    InvalidRequestError,
    TimedOutError,
    TopicAlreadyExistsError,
)
from headrace_server.identity.gate import access
from headrace_server.identity.quotas import Use
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.identity.topic_access import is_shown, require_topic, resolve_topic
from headrace_server.metadata_view import ClusterView, Topic
from headrace_server.rpc import let_others_run

from headrace_coordinator.core.placement import Placement
from headrace_coordinator.core.topics import (
    CheckedTopic,
    TopicDefaults,
    TopicSpec,
    add_load,
    altered_configs,
    check_more_partitions,
    check_new_topic,
    place_more_partitions,
    place_new_topic,
)
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.runtime.metadata_limits import MetadataLimits
from headrace_coordinator.runtime.topic_store import TopicStore, compute
from headrace_coordinator.runtime.waiting import wait_until
from headrace_coordinator.settings import CoordinatorSettings

TOPICS_PER_TURN = 25
"""Topics that are placed, or whose write starts, before yielding to the event loop: a few milliseconds."""
GRANT_SECONDS = 0.1
"""Time until the response in which the grant of a new owner reaches the other servers: 4 ms, 33 ms for one in 100."""
NO_LEADER_YET = "not every partition has a leader yet"


class TopicRequests:
    """Implementation of the calls about topics."""

    def __init__(
        self,
        store: TopicStore,
        view: ClusterView,
        answers: Answers,
        settings: CoordinatorSettings,
        limits: MetadataLimits,
    ) -> None:
        self._limits = limits
        self._store = store
        self._view = view
        self._answers = answers
        self._settings = settings
        self._defaults = TopicDefaults(
            settings.default_partitions, settings.default_replication_factor, settings.max_partitions_per_topic
        )

    async def create(
        self, request: cluster_pb2.CreateTopicsRequest, seconds_left: float
    ) -> cluster_pb2.CreateTopicsResponse:
        """Create topics, and return when they have leaders or the timeout has passed."""
        self._limits.check_reserve("the creation of a topic")
        deadline = self._answers.deadline(request.timeout_ms, seconds_left)
        await self._store.check_reachable(deadline)
        answers = [cluster_pb2.CreateTopicResult(name=topic.name[:1_000]) for topic in request.topics]
        plans = await self._plan_creation(request, answers, await self._taken_names(request, deadline))
        async with asyncio.TaskGroup() as tasks:
            for index, (topic, placement) in plans.items():
                await let_others_run(index, TOPICS_PER_TURN)
                if not request.validate_only:
                    access().charge(Use.CHANGE, topic.partitions)
                step = self._check_new_name if request.validate_only else self._create_one
                tasks.create_task(step(topic, placement, answers[index], deadline))
        return cluster_pb2.CreateTopicsResponse(topics=answers)

    async def delete(
        self, request: cluster_pb2.DeleteTopicsRequest, seconds_left: float
    ) -> cluster_pb2.DeleteTopicsResponse:
        """Delete topics, or with `unclaimed` allow brokers to delete logs of ids without a topic."""
        deadline = self._answers.deadline(0, seconds_left)
        await self._store.check_reachable(deadline)
        answers = [_result(reference) for reference in request.topics]

        async def one(reference: topics_pb2.TopicRef, answer: cluster_pb2.TopicResult) -> None:
            try:
                if request.unclaimed:
                    access().require(Operation.ADMIN, ResourceKind.CLUSTER)
                    revision = await self._store.delete_unclaimed(
                        reference, deadline, validate_only=request.validate_only
                    )
                    return await self._answers.see(revision, deadline)
                require_topic(self._view, reference, Operation.DELETE)
                if request.validate_only:
                    message, revision = (await self._store.find(reference, deadline)).message, 0
                else:
                    message, revision = await self._store.delete(reference, deadline)
                    access().charge(Use.CHANGE)
                answer.name, answer.topic_id = message.name, message.topic_id
                await self._answers.see(revision, deadline)
            except HeadraceError as error:
                self._answers.put_error(answer, error)

        async with asyncio.TaskGroup() as tasks:
            for reference, answer in zip(request.topics, answers, strict=True):
                tasks.create_task(one(reference, answer))
        return cluster_pb2.DeleteTopicsResponse(topics=answers)

    async def grow(
        self, request: cluster_pb2.CreatePartitionsRequest, seconds_left: float
    ) -> cluster_pb2.CreatePartitionsResponse:
        """Add partitions to a topic, and return when they have leaders or the timeout has passed."""
        deadline = self._answers.deadline(0, seconds_left)
        answer = cluster_pb2.CreatePartitionsResponse(result=_result(request.topic))
        assignments = [tuple(replicas.broker_ids) for replicas in request.assignments]
        try:
            require_topic(self._view, request.topic, Operation.ALTER)
            found = await self._store.find(request.topic, deadline)
            answer.result.name, answer.result.topic_id = found.message.name, found.message.topic_id
            self._limits.check_reserve("a further partition")
            total = request.total_partitions
            added = check_more_partitions(found.message, total, assignments, self._defaults.max_partitions)
            self._check_room(added)
            candidates, states = self._store.candidates(), self._store.states(found.message.topic_id)
            placement = await compute(
                added + len(states), place_more_partitions, found.message, added, assignments, candidates, states
            )
            answer.warnings.extend(placement.warnings)
            if request.validate_only:
                return answer
            access().charge(Use.CHANGE, added)
            revision, _ = await self._store.grow(found, total, assignments, placement, deadline)
            await self._answers.see(revision, deadline)
            if not await self._have_leaders(found.message.topic_id, total, deadline):
                answer.warnings.append(NO_LEADER_YET)
        except HeadraceError as error:
            self._answers.put_error(answer.result, error)
        return answer

    async def alter_configs(
        self, request: cluster_pb2.AlterConfigsRequest, seconds_left: float
    ) -> cluster_pb2.AlterConfigsResponse:
        """Change settings of a topic."""
        deadline = self._answers.deadline(0, seconds_left)
        answer = cluster_pb2.AlterConfigsResponse(result=_result(request.topic))
        changes: Mapping[str, str] = dict(request.set)
        unset = list(request.unset)
        try:
            require_topic(self._view, request.topic, Operation.ALTER)
            await self._store.check_reachable(deadline)
            if request.validate_only:
                message, revision = (await self._store.find(request.topic, deadline)).message, 0
                altered_configs(message, changes, unset, self._store.candidates())
            else:
                message, revision = await self._store.configure(
                    request.topic,
                    lambda topic: altered_configs(topic, changes, unset, self._store.candidates()),
                    deadline,
                )
            answer.result.name, answer.result.topic_id = message.name, message.topic_id
            await self._answers.see(revision, deadline)
        except HeadraceError as error:
            self._answers.put_error(answer.result, error)
        return answer

    def describe_configs(self, request: cluster_pb2.DescribeConfigsRequest) -> cluster_pb2.DescribeConfigsResponse:
        """Return all settings of each topic, from the view."""
        response = cluster_pb2.DescribeConfigsResponse()
        if not request.topics:
            for name in filter(is_shown, sorted(self._view.topics)):
                _describe(response.topics.add(), self._view.topics[name])
        for reference in request.topics:
            answer = response.topics.add(name=reference.name[:1_000], topic_id=reference.topic_id[:16])
            try:
                _describe(answer, resolve_topic(self._view, reference, Operation.DESCRIBE))
            except HeadraceError as error:
                self._answers.put_error(answer, error)
        return response

    async def _taken_names(self, request: cluster_pb2.CreateTopicsRequest, deadline: float) -> set[str]:
        """Return the requested names that topics have, by the view and by etcd: the view may show a deleted topic."""
        names = [topic.name for topic in request.topics if topic.name in self._view.topics]
        exist = await asyncio.gather(*(self._store.exists(name, deadline) for name in names))
        return {name for name, exists in zip(names, exist, strict=True) if exists}

    async def _plan_creation(
        self,
        request: cluster_pb2.CreateTopicsRequest,
        answers: list[cluster_pb2.CreateTopicResult],
        taken: Container[str],
    ) -> dict[int, tuple[CheckedTopic, Placement]]:
        """Check and place the topics in order, each after those before it; errors go into the results."""
        candidates = self._store.candidates()
        plans: dict[int, tuple[CheckedTopic, Placement]] = {}
        names: set[str] = set()
        asked = 0
        for index, new in enumerate(request.topics):
            await let_others_run(index, TOPICS_PER_TURN)
            answer = answers[index]
            try:
                if new.name in names:
                    raise InvalidRequestError(f"the request names the topic {new.name[:249]!r} twice")
                names.add(new.name)
                access().require(Operation.CREATE, ResourceKind.TOPIC, new.name)
                topic = check_new_topic(_spec(new), self._defaults, len(candidates))
                asked += topic.partitions
                self._check_room(asked)
                if new.name in taken:
                    raise TopicAlreadyExistsError(f"a topic named {new.name} exists")
                placement = await compute(topic.partitions, place_new_topic, topic, candidates)
            except HeadraceError as error:
                self._answers.put_error(answer, error)
                continue
            candidates = add_load(candidates, placement.assignments)
            answer.partitions, answer.replication_factor = topic.partitions, topic.replication_factor
            answer.warnings.extend((*topic.warnings, *placement.warnings))
            plans[index] = (topic, placement)
        return plans

    async def _create_one(
        self, topic: CheckedTopic, placement: Placement, answer: cluster_pb2.CreateTopicResult, deadline: float
    ) -> None:
        try:
            owner = self._store.owners.new_owner(access().caller, topic.name)
            created = await self._store.create(topic, placement, deadline, owner)
        except HeadraceError as error:
            self._answers.put_error(answer, error)
            return
        answer.topic_id = created.topic_id
        try:
            await self._answers.see(created.revision, deadline)
        except TimedOutError as error:
            answer.warnings.append(error.message)
            return
        if not await self._have_leaders(created.topic_id, topic.partitions, deadline):
            answer.warnings.append(NO_LEADER_YET)
        if owner:
            await asyncio.sleep(GRANT_SECONDS)

    async def _check_new_name(
        self, topic: CheckedTopic, placement: Placement, answer: cluster_pb2.CreateTopicResult, deadline: float
    ) -> None:
        try:
            if await self._store.exists(topic.name, deadline):
                raise TopicAlreadyExistsError(f"a topic named {topic.name} exists")
        except HeadraceError as error:
            self._answers.put_error(answer, error)

    async def _have_leaders(self, topic_id: bytes, partitions: int, deadline: float) -> bool:
        """Wait until all partitions have leaders or the topic is gone; return False at the deadline."""

        def shown() -> bool:
            if self._view.topic_by_id(topic_id) is None:
                return True
            states = self._store.states(topic_id)
            return len(states) >= partitions and all(state.leader is not None for state in states)

        return await wait_until(self._view, shown, deadline)

    def _check_room(self, asked: int) -> None:
        if asked > self._settings.max_request_partitions:
            raise InvalidPartitionsError(
                f"the request creates {asked} partitions, more than {self._settings.max_request_partitions}",
                action="Create them by several requests, or raise max_request_partitions of the coordinators.",
            )
        present = sum(topic.partitions for topic in self._view.topics.values())
        if present + asked > self._settings.max_partitions:
            raise InvalidPartitionsError(
                f"the cluster has {present} partitions; {asked} more would exceed {self._settings.max_partitions}",
                action="Delete topics, ask for fewer, or raise max_partitions of the coordinators.",
            )


def _spec(new: cluster_pb2.NewTopic) -> TopicSpec:
    return TopicSpec(
        new.name,
        new.partitions,
        new.replication_factor,
        dict(new.configs),
        tuple(tuple(replicas.broker_ids) for replicas in new.assignments),
    )


def _result(reference: topics_pb2.TopicRef) -> cluster_pb2.TopicResult:
    return cluster_pb2.TopicResult(name=reference.name[:1_000], topic_id=reference.topic_id[:16])


def _describe(answer: cluster_pb2.TopicConfigs, topic: Topic) -> None:
    answer.name, answer.topic_id = topic.name, topic.topic_id
    answer.configs.extend(describe_topic_config(topic.overrides, topic.replication_factor))
