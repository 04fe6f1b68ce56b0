"""Groups on two coordinator processes and a real etcd: kills, pauses, a compaction, a dead member, errors on the wire.

Members are bare calls by the contract of groups.proto; each test has a group of its own on one cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time

import grpc
import headrace
import pytest
from headrace.v1 import groups_pb2, groups_pb2_grpc
from headrace.wire.errors import (
    DeadlineRequiredError,
    FencedInstanceError,
    GroupNotEmptyError,
    HeadraceError,
    InvalidRequestError,
    UnknownGroupError,
    UnknownMemberError,
    from_detail,
    from_rpc_error,
)
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.metastore.etcd import EtcdMetastore

PARTITIONS = 12
SECONDS = 60.0
ASYNC_SECONDS = 2 * SECONDS
CALL_SECONDS = 3.0
SESSION_MS = 15_000


@pytest.fixture(scope="module")
def cluster():
    """One etcd, two coordinators, one broker that holds a topic."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinator_settings={"lease_ttl_ms": 2_000})) as running:
        with headrace.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=PARTITIONS, replication_factor=1)
        yield running
        for part in running.coordinators:
            with contextlib.suppress(Exception):
                part.resume()


class Bench:
    """The calls of one test: a group, and a connection to each coordinator."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.group_id = f"g-{secrets.token_hex(4)}"
        self.channels = [
            grpc.aio.insecure_channel(part.address, options=[("grpc.use_local_subchannel_pool", 1)])
            for part in cluster.coordinators
        ]
        self.stubs = [groups_pb2_grpc.GroupServiceStub(channel) for channel in self.channels]
        self.members = []

    async def close(self):
        for member in self.members:
            await member.stop()
        for channel in self.channels:
            await channel.close()

    async def call(self, method, request, coordinator=0, timeout=CALL_SECONDS):
        """One call; its typed error."""
        try:
            return await getattr(self.stubs[coordinator], method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def error(self, method, request, **options):
        try:
            await self.call(method, request, **options)
        except HeadraceError as error:
            return error
        raise AssertionError("no error")

    def member(self, **fields):
        made = Member(self, len(self.members), fields)
        self.members.append(made)
        return made

    def start(self, count, **fields):
        members = [self.member(**fields) for _ in range(count)]
        for member in members:
            member.start()
        return members

    async def until(self, condition, what):
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come: {[sorted(m.owned) for m in self.members]}"
            await asyncio.sleep(0.01)

    async def settled(self, members):
        """Everything is owned once, and evenly."""

        def is_settled():
            owned = [partition for member in members for partition in member.owned]
            sizes = [len(member.owned) for member in members]
            return len(owned) == len(set(owned)) == PARTITIONS and max(sizes) - min(sizes) <= 1

        await self.until(is_settled, "an even assignment")

    async def at_rest(self, members):
        """The group is settled and each member has taken its last epoch: nothing more of it is written."""
        await self.settled(members)
        request = groups_pb2.DescribeGroupRequest(group_id=self.group_id)
        deadline = time.monotonic() + SECONDS
        while True:
            described = await self.call("DescribeGroup", request)
            if {member.epoch for member in members} == {described.group_epoch}:
                return
            assert time.monotonic() < deadline, f"{[member.epoch for member in members]} are not {described}"
            await asyncio.sleep(0.01)


class Member:
    """A member by the contract: it tries another coordinator when one fails, and joins again when it is removed."""

    def __init__(self, bench, index, fields):
        self.bench = bench
        self.fields = {"topics": ["t"], "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 60_000} | fields
        self.coordinator = index % len(bench.stubs)
        self.lives = 0
        self.task = None
        self.fatal = None
        self.begin()

    def begin(self):
        self.id = secrets.token_bytes(16)
        self.epoch = self.revision = self.number = self.stored_at = 0
        self.owned = {}
        self.lives += 1

    def start(self):
        self.task = asyncio.create_task(self.stay())

    async def stop(self):
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    async def heartbeat(self, max_wait_ms=0):
        request = groups_pb2.HeartbeatRequest(
            group_id=self.bench.group_id,
            member_id=self.id,
            member_epoch=self.epoch,
            known_revision=self.revision,
            max_wait_ms=max_wait_ms,
            **self.fields,
        )
        if self.epoch:
            request.owned.SetInParent()
            for topic_id, number in self.owned:
                request.owned.topics.add(topic_id=topic_id, partitions=[number])
        answer = await self.bench.call("Heartbeat", request, self.coordinator)
        news = answer.member_epoch != self.epoch
        self.epoch, self.revision = answer.member_epoch, answer.revision
        self.owned = {
            (topic.topic_id, number): epoch
            for topic in answer.assigned
            for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
        }
        return news

    async def stay(self):
        news = True
        while True:
            try:
                news = await self.heartbeat(0 if news else 1_000)
            except UnknownMemberError:
                self.begin()
            except FencedInstanceError as error:
                self.fatal = error
                self.owned = {}
                return
            except HeadraceError:
                self.coordinator = (self.coordinator + 1) % len(self.bench.stubs)
                await asyncio.sleep(0.05)

    async def commit(self, offset, coordinator=None):
        """Commit all that is owned until it is resolved; the errors."""
        self.number += 1
        request = groups_pb2.CommitOffsetsRequest(
            group_id=self.bench.group_id, member_id=self.id, member_epoch=self.epoch, commit_number=self.number
        )
        for topic_id, number in self.owned:
            request.topics.add(topic_id=topic_id).partitions.add(partition=number, offset=offset)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                answer = await self.bench.call("CommitOffsets", request, self.coordinator)
                self.stored_at = answer.revision
            except HeadraceError:
                assert time.monotonic() < deadline
                self.coordinator = (self.coordinator + 1) % len(self.bench.stubs)
                await asyncio.sleep(0.05)
            else:
                places = [place for topic in answer.topics for place in topic.partitions]
                return [from_detail(place.error) for place in places if place.HasField("error")]

    async def committed(self):
        newest = max(self.revision, self.stored_at)
        request = groups_pb2.FetchOffsetsRequest(group_id=self.bench.group_id, min_revision=newest)
        answer = await self.bench.call("FetchOffsets", request, self.coordinator)
        return {
            (topic.topic_id, place.partition): place.offset for topic in answer.topics for place in topic.partitions
        }


@pytest.fixture
@contextlib.asynccontextmanager
async def bench(cluster):
    """The calls of one test."""
    made = Bench(cluster)
    try:
        yield made
    finally:
        await made.close()


async def test_members_share_and_a_dead_one_is_replaced(bench):
    """Its lease ends in etcd by itself; one that leaves is replaced without that."""
    members = bench.start(4)
    await bench.settled(members)
    assert await members[1].commit(7) == []
    mortal = bench.start(1, session_timeout_ms=1_000)[0]
    await bench.settled(bench.members)
    await mortal.stop()
    await bench.settled(members)
    gone = members.pop()
    await gone.stop()
    request = groups_pb2.LeaveGroupRequest(group_id=bench.group_id, member_id=gone.id)
    await bench.call("LeaveGroup", request, coordinator=1)
    await bench.settled(members)
    assert [member.lives for member in members] == [1, 1, 1]
    assert set((await members[0].committed()).values()) == {7}


async def test_a_coordinator_that_dies_while_a_group_joins_takes_nothing_along(bench, cluster):
    """Joins at both; one is killed in the middle. All get in once at the other, as soon as it answers."""
    members = [bench.member() for _ in range(10)]
    for member in members:
        member.start()
    await bench.until(lambda: any(member.epoch for member in members), "the first member")
    victim = cluster.coordinator("a")
    await asyncio.to_thread(victim.kill)
    try:
        await bench.settled(members)
        described = await bench.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id=bench.group_id), 1)
        assert {member.member_id for member in described.members} == {member.id for member in members}
        assert described.listing.state == groups_pb2.GROUP_STATE_STABLE
    finally:
        await asyncio.to_thread(cluster.restart, victim)


async def test_a_restart_of_all_coordinators_moves_nothing(bench, cluster):
    """Everything is in etcd: who owns what since when stays (H73)."""
    members = bench.start(3)
    await bench.at_rest(members)
    before = [dict(member.owned) for member in members]
    revisions = [member.revision for member in members]
    for part in cluster.coordinators:
        await asyncio.to_thread(part.kill)
    for part in cluster.coordinators:
        await asyncio.to_thread(cluster.restart, part)
    for member in members:
        assert await member.commit(3) == []
    assert [member.owned for member in members] == before
    assert [member.revision for member in members] == revisions
    assert [member.lives for member in members] == [1, 1, 1]


async def test_while_etcd_is_paused_no_member_is_removed_and_commits_are_resolved_afterwards(bench, cluster):
    """H84: heartbeats fail with an error; then members continue where they were, and the commit is stored once."""
    members = bench.start(2)
    await bench.settled(members)
    before = [dict(member.owned) for member in members]
    cluster.etcd.pause()
    try:
        commit = asyncio.create_task(members[0].commit(5))
        late = bench.member()
        request = groups_pb2.HeartbeatRequest(
            group_id=bench.group_id, member_id=late.id, **{**late.fields, "session_timeout_ms": SESSION_MS}
        )
        error = await bench.error("Heartbeat", request, timeout=1.0)
        assert error.retriable
        assert not commit.done()
    finally:
        cluster.etcd.resume()
    assert await commit == []
    assert {offset for where, offset in (await members[0].committed()).items()} == {5}
    assert [member.owned for member in members] == before
    assert [member.lives for member in members] == [1, 1]


async def test_a_coordinator_that_slept_through_a_compaction_catches_up(bench, cluster):
    """Its watch is gone with the history: it reads everything again, and fences no member meanwhile (H80)."""
    sleeper = cluster.coordinator("b")
    members = bench.start(2)
    await bench.settled(members)
    for member in members:
        await member.stop()
        member.coordinator = 0
    sleeper.pause()
    metastore = EtcdMetastore([cluster.etcd.endpoint])
    try:
        third = bench.member()
        third.coordinator = 0
        while len(third.owned) < PARTITIONS // 3:
            for member in (third, *members):
                await member.heartbeat()
        assert await third.commit(9) == []
        await metastore.compact((await metastore.status()).revision)
    finally:
        sleeper.resume()
        await metastore.close()
    for member in bench.members:
        member.coordinator = 1
        member.start()
    await bench.settled(bench.members)
    assert [member.lives for member in bench.members] == [1, 1, 1]
    assert 9 in (await third.committed()).values()


async def test_an_instance_that_is_started_anew_takes_its_place_and_fences_its_former_life(bench):
    """H69, over both coordinators: nothing moves at the others."""
    members = [bench.member(instance_id=f"i{number}") for number in range(3)]
    for member in members:
        member.start()
    await bench.settled(members)
    others = [dict(member.owned) for member in members[1:]]
    again = bench.member(instance_id="i0")
    again.start()
    await bench.until(lambda: members[0].fatal is not None, "the fence")
    await bench.settled([again, *members[1:]])
    assert [member.owned for member in members[1:]] == others
    assert (again.fatal, again.lives) == (None, 1)


async def test_errors_are_typed_on_the_wire(bench):
    """Of administration; tests/contract has those of members."""
    await bench.settled(bench.start(1))
    unknown = groups_pb2.DescribeGroupRequest(group_id="unknown")
    assert isinstance(await bench.error("DescribeGroup", unknown), UnknownGroupError)
    long = groups_pb2.DescribeGroupRequest(group_id="g" * 10_000)
    assert isinstance(await bench.error("DescribeGroup", long), InvalidRequestError)
    assert isinstance(
        await bench.error("ListGroups", groups_pb2.ListGroupsRequest(), timeout=None), DeadlineRequiredError
    )
    deleted = await bench.call("DeleteGroups", groups_pb2.DeleteGroupsRequest(group_ids=[bench.group_id]))
    assert isinstance(from_detail(deleted.groups[0].error), GroupNotEmptyError)
