"""Coordinators that serve groups on one in-memory metastore, and members that call them by hand."""

from __future__ import annotations

import asyncio
import contextlib
import random

from headrace.v1 import groups_pb2
from headrace.wire.errors import HeadraceError, from_detail
from headrace_coordinator.core.topics import TopicDefaults, TopicSpec, check_new_topic, place_new_topic
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.group_service import GroupServicer
from headrace_coordinator.runtime.group_maintenance import AssignableTopics, GroupMaintenance
from headrace_coordinator.runtime.group_offsets import GroupOffsets
from headrace_coordinator.runtime.group_transactions import GroupTransactions
from headrace_coordinator.runtime.group_view import GroupView
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_server.clock import SystemClock
from headrace_server.clock_watch import ClockWatch
from headrace_server.metastore.api import Delete, DeletePrefix, Put
from headrace_server.metastore.view import PrefixView

from tests.fakes.lossy_metastore import LossyMetastore
from tests.fakes.manual_clock import ManualClock
from tests.unit.coordinator.parts import SECONDS, make_parts

GROUP = "group"
SESSION_MS = 10_000
RETENTION_MS = 3_600_000


class Context:
    """What a call brings along."""

    def __init__(self, seconds=SECONDS):
        self._seconds = seconds

    def time_remaining(self):
        return self._seconds


class Coordinator:
    """One coordinator's share of the groups, with answers of etcd that get lost and a view that may pause."""

    def __init__(self, parts, name):
        self.parts = parts
        self.metastore = LossyMetastore(parts.memory)
        self.clock = ManualClock()
        self.clock_watch = ClockWatch(self.clock)
        self.source = PrefixView(self.metastore, parts.keyspace.groups_prefix, SystemClock())
        self.following = None
        self.name = name
        self.bounds = GroupBounds(groups=1_000, members=1_000, key_bytes=64 << 20)

    async def start(self):
        await self.source.load()
        keyspace, metrics = self.parts.keyspace, self.parts.metrics
        self.groups = GroupView(keyspace, self.source)
        topics = AssignableTopics(self.parts.view)
        arguments = (self.metastore, self.source, self.groups)
        self.transactions = GroupTransactions(*arguments, topics, metrics, self.clock, transaction_seconds=0)
        self.offsets = GroupOffsets(*arguments, metrics, self.clock)
        self.limits = MetadataLimits(self.bounds, self.groups)
        self.servicer = GroupServicer(
            self.metastore,
            self.parts.view,
            self.groups,
            transactions=self.transactions,
            offsets=self.offsets,
            answers=Answers(self.source, metrics, default_timeout_ms=SECONDS * 1000),
            metrics=metrics,
            clock=self.clock,
            limits=self.limits,
        )
        self.maintenance = GroupMaintenance(
            self.parts.view,
            self.groups,
            self.transactions,
            self.offsets,
            topics,
            metrics,
            self.clock,
            coordinator_id=self.name,
            offsets_retention_ms=RETENTION_MS,
            clock_doubt=self.clock_watch.doubt,
        )
        self.follow()
        return self

    def follow(self):
        """Take in changes, from the view's revision."""
        self.following = asyncio.create_task(self.source.run())

    async def pause_view(self):
        """See no more changes: the view gets old."""
        self.following.cancel()
        await asyncio.gather(self.following, return_exceptions=True)

    async def see(self):
        """Wait until the view shows all that was written."""
        revision = (await self.parts.memory.range(self.parts.keyspace.groups_prefix)).key_values
        if revision:
            await self.source.wait_for(max(found.mod_revision for found in revision), SECONDS)

    async def stop(self):
        await self.pause_view()
        await self.transactions.stop()

    async def call(self, method, request, seconds=SECONDS):
        """Call as gRPC does, but for the conversion of errors."""
        return await getattr(GroupServicer, method).__wrapped__(self.servicer, request, Context(seconds))

    def entry(self, group_id=GROUP):
        return self.groups.entry(group_id)

    @property
    def group(self):
        return self.entry().group

    async def commit(self, member, offsets, *, number=0, epoch=None, topic_id=None, group_id=GROUP):
        """Commit {partition: offset}; the errors, by partition."""
        request = groups_pb2.CommitOffsetsRequest(group_id=group_id, commit_number=number)
        if member is not None:
            request.member_id, request.member_epoch = member.id, member.epoch if epoch is None else epoch
        topic = request.topics.add(topic_id=topic_id or self.parts.topic_id)
        for partition, offset in offsets.items():
            topic.partitions.add(partition=partition, offset=offset, leader_epoch=3, metadata="m")
        answer = await self.call("CommitOffsets", request)
        self.stored_at = answer.revision
        return {
            each.partition: from_detail(each.error) for each in answer.topics[0].partitions if each.HasField("error")
        }

    async def committed(self, min_revision=0, group_id=GROUP):
        """All that is stored, by partition."""
        answer = await self.call(
            "FetchOffsets", groups_pb2.FetchOffsetsRequest(group_id=group_id, min_revision=min_revision)
        )
        return {each.partition: each.offset for topic in answer.topics for each in topic.partitions}


class Caller:
    """A member by the contract, without a loop of its own."""

    def __init__(self, seed, **fields):
        self.id = random.Random(seed).randbytes(16)
        self.fields = {"topics": ["t"], "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 60_000} | fields
        self.epoch = self.revision = 0
        self.holds = {}

    async def beat(self, coordinator, *, owned=None, wait_ms=0, seconds=SECONDS, **fields):
        """Heartbeat; afterwards the member owns what it may, and gives up nothing by itself."""
        request = groups_pb2.HeartbeatRequest(
            group_id=GROUP,
            member_id=self.id,
            member_epoch=self.epoch,
            known_revision=self.revision,
            max_wait_ms=wait_ms,
        )
        for name, value in (self.fields | fields).items():
            getattr(request, name).extend(value) if name == "topics" else setattr(request, name, value)
        if self.epoch:
            request.owned.SetInParent()
            for topic_id, number in self.holds if owned is None else owned:
                request.owned.topics.add(topic_id=topic_id, partitions=[number])
        answer = await coordinator.call("Heartbeat", request, seconds)
        self.epoch, self.revision = answer.member_epoch, answer.revision
        self.may_own = {
            (topic.topic_id, number): epoch
            for topic in answer.assigned
            for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
        }
        self.holds |= self.may_own
        return answer

    async def turn(self, coordinator):
        """Heartbeat, release revoked partitions, and report that."""
        await self.beat(coordinator)
        if self.holds != self.may_own:
            self.holds = dict(self.may_own)
            await self.beat(coordinator)

    @property
    def numbers(self):
        return sorted(number for _, number in self.holds)


async def settle(coordinator, *members):
    """Let the members heartbeat in turn until no assignment changes any more."""
    for _ in range(20):
        before = [(member.epoch, member.revision) for member in members]
        for member in members:
            await member.turn(coordinator)
        if before == [(member.epoch, member.revision) for member in members]:
            return
    raise AssertionError("the group does not come to rest")


async def make_topic(parts, name="t", partitions=4):
    """Create a topic on broker 1; its id."""
    if not parts.view.brokers:
        await parts.register(1)
    topic = check_new_topic(TopicSpec(name, assignments=((1,),) * partitions), TopicDefaults(), 1)
    created = await parts.store.create(topic, place_new_topic(topic, parts.store.candidates()), parts.deadline)
    await parts.prefix_view.wait_for(created.revision, SECONDS)
    return bytes(created.topic_id)


async def delete_topic(parts, topic_id, name="t"):
    keyspace = parts.keyspace
    result = await parts.memory.txn(
        [],
        [
            Delete(keyspace.topic(name)),
            Delete(keyspace.topic_by_id(topic_id)),
            DeletePrefix(keyspace.partition_prefix(topic_id)),
            Put(keyspace.deleted_topic(topic_id), b""),
        ],
    )
    await parts.prefix_view.wait_for(result.revision, SECONDS)


@contextlib.asynccontextmanager
async def coordinators(parts, *names, partitions=4):
    """Coordinators on a topic `t`."""
    parts.topic_id = await make_topic(parts, partitions=partitions)
    made = [await Coordinator(parts, name).start() for name in names]
    try:
        yield made
    finally:
        for coordinator in made:
            await coordinator.stop()


@contextlib.asynccontextmanager
async def pair_of_coordinators(partitions):
    """The parts and two coordinators."""
    async with make_parts() as parts, coordinators(parts, "a", "b", partitions=partitions) as (a, b):
        yield parts, a, b


@contextlib.asynccontextmanager
async def first_of_pair():
    """One of two coordinators."""
    async with pair_of_coordinators(4) as (_, a, _):
        yield a


async def error_of(call):
    """The typed error that a call ends with."""
    try:
        await call
    except HeadraceError as error:
        return error
    raise AssertionError("no error")


async def until(condition):
    """Let the others run until `condition` holds."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")
