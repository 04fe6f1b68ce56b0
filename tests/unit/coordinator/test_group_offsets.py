"""Offsets through the calls, on the in-memory metastore: fences, order, lost answers, old views, expiry."""

from __future__ import annotations

import asyncio

import pytest
from headrace.v1 import groups_pb2
from headrace.wire.errors import (
    ConflictError,
    FencedMemberEpochError,
    GroupNotEmptyError,
    InvalidRequestError,
    NotOwnerError,
    Outcome,
    TimedOutError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownTopicError,
    UnknownTopicIdError,
    from_detail,
)
from headrace_server.clock_watch import OPERATOR
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, Put

from tests.fakes.lossy_metastore import LOST, NEVER
from tests.unit.coordinator.group_parts import (
    GROUP,
    RETENTION_MS,
    SESSION_MS,
    Caller,
    delete_topic,
    error_of,
    make_topic,
    settle,
    until,
)
from tests.unit.coordinator.parts import SECONDS


@pytest.mark.parametrize("faults", [[], [LOST], [NEVER], [LOST, NEVER], [NEVER, LOST, LOST]])
async def test_a_commit_is_stored_whatever_answers_are_lost(a, faults, one):
    """With its leader epoch, its metadata, the time, and by whom."""
    await one.beat(a)
    a.metastore.faults = list(faults)
    assert await a.commit(one, {0: 5, 3: 7}, number=1) == {}
    assert await a.committed() == {0: 5, 3: 7}
    stored = a.entry().offsets[(a.parts.topic_id, 0)].message
    assert (stored.leader_epoch, stored.metadata, stored.commit_number) == (3, "m", 1)
    assert (stored.member_id, stored.member_epoch) == (one.id, one.epoch)
    assert stored.committed_ms == a.clock.now_ms()


async def test_a_former_owner_stores_nothing(a, one, two):
    """I26: partition by partition, and the others of the same commit are stored."""
    await settle(a, one, two)
    mine, foreign = one.numbers[0], two.numbers[0]
    refused = await a.commit(one, {mine: 5, foreign: 6})
    assert list(refused) == [foreign]
    assert isinstance(refused[foreign], NotOwnerError)
    assert refused[foreign].outcome is Outcome.NOT_APPLIED
    assert await a.committed() == {mine: 5}


async def test_the_epoch_of_a_commit_lies_between_the_grant_and_the_present(a, one, two):
    """Older than the grant: another tenure. Younger than the member: never given. In between: good (H62, H63)."""
    await one.beat(a)
    granted = one.epoch
    await two.beat(a)
    await one.beat(a)
    assert one.epoch > granted
    assert await a.commit(one, {0: 5}, epoch=granted) == {}
    assert isinstance((await a.commit(one, {0: 6}, epoch=granted - 1))[0], NotOwnerError)
    assert isinstance(await error_of(a.commit(one, {0: 6}, epoch=one.epoch + 1)), FencedMemberEpochError)
    await one.turn(a)
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    assert isinstance(await error_of(a.commit(one, {0: 6})), UnknownMemberError)
    assert await a.committed() == {0: 5}


async def test_a_member_may_still_commit_partitions_that_are_being_revoked(a, one, two):
    """Until it has said that it gave up; then no more."""
    await one.beat(a)
    await two.beat(a)
    await one.beat(a)
    asked = max(one.numbers)
    assert await a.commit(one, {asked: 5}) == {}
    await one.turn(a)
    assert isinstance((await a.commit(one, {asked: 6}))[asked], NotOwnerError)
    await two.beat(a)
    assert (await a.committed(min_revision=two.revision))[asked] == 5  # I27


async def test_a_good_commit_is_not_refused_by_a_view_that_is_behind(pair):
    """H63: the member joined, or was given the partition, where this coordinator has not seen it yet."""
    _, a, b = pair
    await b.pause_view()
    one = Caller(1)
    await one.beat(a)
    commit = asyncio.create_task(b.commit(one, {0: 5}, number=1))
    await asyncio.sleep(0)
    b.follow()
    assert await commit == {}
    two = Caller(2)
    await two.beat(a)
    await b.see()
    await b.pause_view()
    await one.turn(a)
    await two.beat(a)
    commit = asyncio.create_task(b.commit(two, {two.numbers[0]: 8}))
    await asyncio.sleep(0)
    b.follow()
    assert await commit == {}
    assert await a.committed() == {0: 5, two.numbers[0]: 8}


async def test_a_bad_commit_is_refused_though_the_view_still_shows_it_good(pair, one, two):
    """The transaction compares the present assignment."""
    parts, a, b = pair
    await one.beat(a)
    await two.beat(a)
    await b.see()
    await b.pause_view()
    await one.turn(a)
    commit = asyncio.create_task(b.commit(one, {3: 5}))
    await until(lambda: parts.metric("group_conflicts") > 0)
    b.follow()
    assert isinstance((await commit)[3], NotOwnerError)
    assert await a.committed() == {}


async def test_a_late_commit_does_not_undo_a_later_one(pair, one):
    """H64: whether it is late at the door, or was being tried again by a coordinator, and over two coordinators."""
    _, a, b = pair
    await one.beat(a)
    await a.commit(one, {0: 5, 1: 5}, number=1)
    await b.commit(one, {0: 9}, number=2)
    assert await a.commit(one, {0: 5, 1: 5}, number=1) == {}
    assert await a.committed() == {0: 9, 1: 5}
    a.metastore.faults = [NEVER]
    late = asyncio.create_task(a.commit(one, {0: 10}, number=3))
    await until(lambda: not a.metastore.faults)
    await b.commit(one, {0: 10}, number=3)
    await b.commit(one, {0: 11}, number=4)
    assert await late == {}
    assert await a.committed() == {0: 11, 1: 5}
    await a.commit(one, {0: 2}, number=5)  # The application has sought back.
    assert await a.committed() == {0: 2, 1: 5}


async def test_a_late_commit_of_which_a_part_is_refused_does_not_undo_a_later_one(pair, one, two, monkeypatch):
    """H64: the later one is stored while the coordinator makes sure of the refusal (group seed 210731)."""
    _, a, b = pair
    await settle(a, one, two)
    mine, foreign = one.numbers[0], two.numbers[0]
    get = a.metastore.get

    async def get_after_a_later_commit(key):
        monkeypatch.undo()
        await b.see()
        assert await b.commit(one, {mine: 9}, number=2) == {}
        await a.see()
        return await get(key)

    monkeypatch.setattr(a.metastore, "get", get_after_a_later_commit)
    assert list(await a.commit(one, {mine: 5, foreign: 6}, number=1)) == [foreign]
    assert await a.committed() == {mine: 9}


async def test_commits_of_two_members_do_not_disturb_each_other(pair, one, two):
    """Many at once, by both coordinators: each is one transaction for all of its partitions."""
    parts, a, b = pair
    await settle(a, one, two)
    await b.see()
    before = parts.metric("group_commits")
    for number in range(1, 6):
        await asyncio.gather(
            *(c.commit(m, dict.fromkeys(m.numbers, number), number=number) for c, m in ((a, one), (b, two)))
        )
    await a.see()
    assert await a.committed() == dict.fromkeys(range(4), 5)
    assert parts.metric("group_commits") - before == 10


@pytest.mark.parametrize("pair", [130], indirect=True)
async def test_a_commit_of_many_partitions_goes_in_transactions_that_etcd_takes(pair, one):
    """At most 60 a transaction; 130 are three."""
    parts, a, _ = pair
    await one.beat(a)
    assert await a.commit(one, dict.fromkeys(range(130), 1), number=1) == {}
    assert parts.metric("group_commits") == 3
    assert len(await a.committed()) == 130
    assert max(len(compares) for compares, _ in a.metastore.sent) == 61


async def test_an_outage_of_etcd_ends_in_an_unknown_outcome(a, one):
    """Within the caller's time."""
    await one.beat(a)
    a.metastore.faults = [NEVER] * 1_000
    request = groups_pb2.CommitOffsetsRequest(group_id=GROUP, member_id=one.id, member_epoch=one.epoch)
    request.topics.add(topic_id=a.parts.topic_id).partitions.add(partition=0, offset=1)
    error = await error_of(a.call("CommitOffsets", request, 0.3))
    assert isinstance(error, TimedOutError)
    assert error.outcome is Outcome.UNKNOWN


async def test_a_read_is_at_least_as_new_as_requested(pair, one):
    """I27, H65: a coordinator that is behind waits, and says so rather than answering with what was."""
    parts, a, b = pair
    await one.beat(a)
    await b.see()
    await b.pause_view()
    await a.commit(one, {0: 5}, number=1)
    revision = a.stored_at
    assert revision > one.revision
    await a.commit(one, {0: 5}, number=1)
    assert a.stored_at == revision, "asked again, the answer was lost"
    await a.commit(one, {3: 5}, number=2, epoch=0)
    assert a.stored_at == 0, "nothing is stored of it"
    request = groups_pb2.FetchOffsetsRequest(group_id=GROUP, min_revision=revision)
    assert isinstance(await error_of(b.call("FetchOffsets", request, 0.2)), TimedOutError)
    reading = asyncio.create_task(b.committed(min_revision=revision))
    await asyncio.sleep(0)
    b.follow()
    assert await reading == {0: 5}
    asked = groups_pb2.FetchOffsetsRequest(group_id=GROUP)
    asked.topics.add(topic_id=parts.topic_id, partitions=[0, 2])
    (topic,) = (await b.call("FetchOffsets", asked)).topics
    assert [(each.partition, each.offset, each.leader_epoch) for each in topic.partitions] == [(0, 5, 3), (2, -1, -1)]


async def test_an_administrator_sets_offsets_of_groups_without_members_only(pair):
    """Set, moved, removed by -1; refused while the group has a member, also where the view does not show it yet."""
    parts, a, b = pair
    assert await a.commit(None, {0: 5, 1: 6}) == {}
    assert await a.commit(None, {0: 2, 1: -1}) == {}
    assert await a.committed() == {0: 2}
    await b.see()
    await b.pause_view()
    one = Caller(1)
    await one.beat(a)
    assert isinstance(await error_of(a.commit(None, {0: 9})), GroupNotEmptyError)
    late = asyncio.create_task(error_of(b.commit(None, {0: 9})))
    await until(lambda: parts.metric("group_conflicts") > 0)
    b.follow()
    assert isinstance(await late, GroupNotEmptyError)
    assert await a.committed() == {0: 2}


async def test_a_removal_of_offsets_creates_no_group(pair):
    """What is not stored is removed without a write, which the transaction compares: the view may be behind."""
    parts, a, b = pair
    revision = (await parts.memory.get("none")).revision
    assert await a.commit(None, {0: -1}, group_id="new") == {}
    assert a.entry("new").is_gone
    assert (await parts.memory.get("none")).revision == revision
    await b.pause_view()
    await a.commit(None, {0: 5}, group_id="new")
    removing = asyncio.create_task(b.commit(None, {0: -1}, group_id="new"))
    await asyncio.sleep(0)
    b.follow()
    assert await removing == {}
    assert await a.committed(b.stored_at, group_id="new") == {}


async def test_bad_commits_are_refused_one_by_one_or_as_a_whole(a, one):
    """Unknown topics, partitions that are not there, negative offsets, too much metadata, a partition twice."""
    await one.beat(a)

    async def refusal(member, topic, **fields):
        request = groups_pb2.CommitOffsetsRequest(group_id=GROUP)
        if member:
            request.member_id, request.member_epoch = member.id, member.epoch
        request.topics.add(**topic).partitions.add(**({"partition": 0, "offset": 1} | fields))
        (place,) = (await a.call("CommitOffsets", request)).topics[0].partitions
        return type(from_detail(place.error)) if place.HasField("error") else None

    here = {"topic_id": a.parts.topic_id}
    assert await refusal(one, {"topic_id": b"x" * 16}) is UnknownTopicIdError
    assert await refusal(one, {"name": "nothing"}) is UnknownTopicError
    assert await refusal(one, {"name": "t"}) is None
    assert await refusal(one, here, partition=4) is NotOwnerError
    assert await refusal(one, here, partition=-1) is NotOwnerError
    assert await refusal(one, here, offset=-1) is InvalidRequestError
    assert await refusal(one, here, metadata="m" * 4_097) is InvalidRequestError
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    assert await refusal(None, {"topic_id": b"x" * 16}) is UnknownTopicIdError
    assert await refusal(None, here, partition=4) is InvalidRequestError
    assert await refusal(None, here, offset=-2) is InvalidRequestError
    twice = groups_pb2.CommitOffsetsRequest(group_id=GROUP)
    for _ in range(2):
        twice.topics.add(**here).partitions.add(partition=0, offset=1)
    assert isinstance(await error_of(a.call("CommitOffsets", twice)), InvalidRequestError)


async def test_an_offset_beyond_the_end_is_stored_as_it_is(a, one):
    """Coordinators know no logs: who reads from there is told OFFSET_OUT_OF_RANGE."""
    await one.beat(a)
    assert await a.commit(one, {0: (1 << 63) - 1}) == {}
    assert await a.committed() == {0: (1 << 63) - 1}


async def test_a_topic_that_is_deleted_takes_its_offsets_along(a, one):
    """Never used for the new topic of that name; removed at the next look, in a transaction that compares."""
    await one.beat(a)
    await a.commit(one, {0: 5})
    await a.maintenance.expire()
    assert await a.committed() == {0: 5}
    a.maintenance._gone = lambda entry: {a.parts.topic_id}
    await a.maintenance.expire()
    key = a.parts.keyspace.group_offset(GROUP, a.parts.topic_id, 0)
    assert (await a.parts.memory.get(key)).key_value is not None
    await delete_topic(a.parts, a.parts.topic_id)
    fresh = await make_topic(a.parts)
    assert isinstance((await a.commit(one, {0: 6}, topic_id=fresh))[0], NotOwnerError)
    del a.maintenance._gone
    await a.maintenance.expire()
    await a.see()
    await until(lambda: not a.entry().offsets)
    late = await a.commit(one, {0: 6})
    assert set(map(type, late.values())) <= {UnknownTopicIdError}


@pytest.mark.parametrize("keys", [["topic"], ["topic", "tid"]])
async def test_offsets_of_a_topic_that_is_only_absent_stay(a, keys, one):
    """H26: keys that an etcd lacks are no evidence; it may be a backup of before the topic was made."""
    await one.beat(a)
    await a.commit(one, {0: 5})
    names = {"topic": a.parts.keyspace.topic("t"), "tid": a.parts.keyspace.topic_by_id(a.parts.topic_id)}
    gone = await a.parts.memory.txn([], [Delete(names[key]) for key in keys])
    await a.parts.prefix_view.wait_for(gone.revision, SECONDS)
    await a.maintenance.expire()
    assert await a.offsets.forget_topics(GROUP, [a.parts.topic_id]) == 1
    key = a.parts.keyspace.group_offset(GROUP, a.parts.topic_id, 0)
    assert (await a.parts.memory.get(key)).key_value is not None


async def test_offsets_of_a_group_expire_when_it_was_empty_for_the_retention_time(a, one):
    """H70: counted from when the last member left, or from the last offsets that an administrator set."""
    await one.beat(a)
    await a.commit(one, {0: 5})
    a.clock.advance(10 * RETENTION_MS)
    await a.maintenance.expire()
    assert await a.committed() == {0: 5}
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    await a.maintenance.expire()
    a.clock.advance(RETENTION_MS - 1)
    await a.maintenance.expire()
    assert await a.committed() == {0: 5}
    await a.commit(None, {1: 6})
    await a.maintenance.expire()
    a.clock.advance(RETENTION_MS - 1)
    await a.maintenance.expire()
    assert await a.committed() == {0: 5, 1: 6}
    a.clock.advance(1)
    await a.maintenance.expire()
    assert not (await a.parts.memory.range(a.parts.keyspace.groups_prefix)).key_values
    assert a.groups.groups == {}


async def test_a_wall_clock_that_is_wrong_removes_no_group(a):
    """H70: the coordinator that removes it has itself seen it without members for an hour, too.

    By less than a day, that is: beyond that it does not believe its clock.
    """
    await a.commit(None, {0: 5})
    a.clock.set_wall(20 * RETENTION_MS)
    await a.maintenance.expire()
    a.clock.advance(RETENTION_MS - 1)
    await a.maintenance.expire()
    assert await a.committed() == {0: 5}
    a.clock.advance(1)
    await a.maintenance.expire()
    assert a.groups.groups == {}


async def test_no_group_expires_while_the_clock_is_in_doubt(a):
    """H70, H43: not for an hour, but until the clock is right again or an administrator confirms it."""
    await a.commit(None, {0: 5})
    a.clock.set_wall(1_000 * RETENTION_MS)
    for _ in range(50):
        await a.maintenance.expire()
        a.clock.advance(RETENTION_MS)
    assert await a.committed() == {0: 5}
    a.clock_watch.note(OPERATOR, a.clock.now_ms(), doubtful=False)
    await a.maintenance.expire()
    assert a.groups.groups == {}


async def test_added_partitions_are_distinguished_from_initial_ones(pair, one, two):
    """So that `latest` skips nothing of them: while members read, and where none did when they were added."""
    parts, a, b = pair
    fetch = groups_pb2.FetchOffsetsRequest(group_id=GROUP)
    fetch.topics.add(topic_id=parts.topic_id, partitions=range(8))

    async def added(coordinator, member):
        fetch.min_revision = member.revision
        (topic,) = (await coordinator.call("FetchOffsets", fetch)).topics
        return [each.partition for each in topic.partitions if each.is_added]

    await one.beat(a)
    assert await added(a, one) == [4, 5, 6, 7]  # Those that are not there.
    await grow(parts, 6)
    a.transactions.look(GROUP)
    await until(lambda: len(a.group.target) == 6)
    await one.beat(a)
    assert await added(a, one) == [4, 5, 6, 7]
    await a.commit(one, {4: 1})
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    await grow(parts, 8)
    await b.see()
    await two.beat(b)
    assert two.numbers == list(range(8))
    assert await added(b, two) == [5, 6, 7]


async def grow(parts, partitions):
    """Add partitions to the topic."""
    topic = parts.view.topics["t"]
    message = metadata_pb2.Topic(name="t", topic_id=topic.topic_id, partitions=partitions, replication_factor=1)
    result = await parts.memory.txn([], [Put(parts.keyspace.topic("t"), message.SerializeToString())])
    await parts.prefix_view.wait_for(result.revision, SECONDS)


async def reset(coordinator, parts, offset, epoch, number=0, partition=0):
    """What an administrator sends who has seen the group at an epoch; older clients send no number."""
    request = groups_pb2.CommitOffsetsRequest(group_id=GROUP, expected_group_epoch=epoch, commit_number=number)
    request.topics.add(topic_id=parts.topic_id).partitions.add(partition=partition, offset=offset, leader_epoch=-1)
    await coordinator.call("CommitOffsets", request)


async def test_a_reset_that_raced_with_a_member_is_refused(pair):
    """Though the group is empty again: members came and went since the administrator looked, and read on."""
    parts, a, b = pair
    await reset(a, parts, 3, 0)
    seen = (await a.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id=GROUP))).group_epoch
    await reset(a, parts, 4, seen)
    await b.see()
    one = Caller(1)

    async def come_and_go(compares, operations):
        a.metastore.before_txn = None
        await one.beat(b)
        await b.commit(one, {0: 9})
        await b.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))

    a.metastore.before_txn = come_and_go
    error = await error_of(reset(a, parts, 5, seen))
    assert isinstance(error, ConflictError)
    assert not error.retriable
    assert isinstance(await error_of(reset(b, parts, 5, 0)), ConflictError)
    assert await b.committed() == {0: 9}
    delete = groups_pb2.DeleteGroupsRequest(group_ids=[GROUP], expected_group_epochs={GROUP: seen})
    (result,) = (await b.call("DeleteGroups", delete)).groups
    assert isinstance(from_detail(result.error), ConflictError)
    delete.expected_group_epochs[GROUP] = b.group.group_epoch
    (result,) = (await b.call("DeleteGroups", delete)).groups
    assert not result.HasField("error")
    assert b.groups.groups == {}


async def test_a_reset_of_a_new_group_that_another_was_first_to_create_is_refused(pair):
    """An administrator who saw no group expects epoch 0: its next requests pass, unless another reset was first."""
    parts, a, b = pair
    await reset(a, parts, 3, 0)
    await reset(a, parts, 4, 0)
    (result,) = (await a.call("DeleteGroups", groups_pb2.DeleteGroupsRequest(group_ids=[GROUP]))).groups
    assert not result.HasField("error")
    await b.see()
    await b.commit(None, {0: 9})
    await a.see()
    assert isinstance(await error_of(reset(a, parts, 5, 0)), ConflictError)
    assert await b.committed() == {0: 9}


async def test_of_two_resets_with_one_epoch_one_is_stored(pair):
    """Of a group that exists, and of one that neither had seen. The requests of the first are accepted as one."""
    parts, a, b = pair
    for other, number in ((2, 20), (4, 40)):
        seen = a.group.group_epoch if GROUP in a.groups.groups else 0

        async def overtake(compares, operations, seen=seen, other=other):
            a.metastore.before_txn = None
            await reset(b, parts, other, seen, other)

        a.metastore.before_txn = overtake
        assert isinstance(await error_of(reset(a, parts, number, seen, number)), ConflictError)
        await a.see()
        began = a.group.group_epoch
        assert began > seen
        await reset(a, parts, other, seen, other)  # Its retry, after an answer that was lost.
        await reset(a, parts, 7, seen, other, partition=1)
        assert a.group.group_epoch == began
        assert await a.committed() == {0: other, 1: 7}
        assert isinstance(await error_of(reset(a, parts, number, seen, number)), ConflictError)
        await b.see()


async def test_a_reset_ends_with_the_epoch_that_it_began(pair):
    """Its next request is refused once a member has come and gone, or an offset was stored without an epoch."""
    parts, a, b = pair
    one = Caller(1)
    await reset(a, parts, 3, 0, 30)
    await b.see()
    await one.beat(b)
    await b.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    await a.see()
    assert isinstance(await error_of(reset(a, parts, 3, 0, 30, partition=1)), ConflictError)
    seen = a.group.group_epoch
    await reset(a, parts, 4, seen, 40)
    await a.commit(None, {0: 9})
    assert isinstance(await error_of(reset(a, parts, 4, seen, 40, partition=1)), ConflictError)
    assert await a.committed() == {0: 9}


async def test_epochs_of_a_group_that_resets_made_again_continue(pair):
    """Above those of the group of its name that was deleted, however many resets there were before a member joins."""
    parts, a, _ = pair
    one = Caller(1)
    await one.beat(a)
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    seen = a.group.group_epoch
    await a.call("DeleteGroups", groups_pb2.DeleteGroupsRequest(group_ids=[GROUP]))
    for offset in (1, 2):
        await a.commit(None, {0: offset})
    described = (await a.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id=GROUP))).group_epoch
    assert described > seen
    await reset(a, parts, 3, described)
    two = Caller(2)
    await two.beat(a)
    assert a.group.group_epoch > described


async def test_a_group_that_was_in_use_again_is_not_expired(pair):
    """A member came and went between the look and the deletion: the compare fails, and its age is looked at again."""
    parts, a, b = pair
    await a.commit(None, {0: 5})
    await b.see()
    since_ms = a.group.empty_since_ms
    a.clock.advance(RETENTION_MS)
    b.clock.advance(RETENTION_MS)

    async def come_and_go(compares, operations):
        a.metastore.before_txn = None
        one = Caller(1)
        await one.beat(b)
        await b.commit(one, {0: 9})
        await b.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))

    a.metastore.before_txn = come_and_go
    error = await error_of(a.offsets.delete_group(GROUP, parts.deadline, empty_since_ms=since_ms))
    assert isinstance(error, GroupNotEmptyError)
    assert await b.committed() == {0: 9}


@pytest.mark.parametrize("faults", [[], [LOST], [NEVER]])
@pytest.mark.parametrize("pair", [130], indirect=True)
async def test_groups_without_members_are_deleted_with_all_their_keys(pair, faults, one):
    """Several transactions where there are many offsets; with members it is refused; an unknown one is named."""
    parts, a, _ = pair
    await one.beat(a)
    await a.commit(one, dict.fromkeys(range(130), 1))

    async def delete(*group_ids):
        answer = await a.call("DeleteGroups", groups_pb2.DeleteGroupsRequest(group_ids=group_ids))
        return [type(from_detail(each.error)) if each.HasField("error") else None for each in answer.groups]

    assert await delete(GROUP, "unknown", "a/b") == [GroupNotEmptyError, UnknownGroupError, InvalidRequestError]
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    a.metastore.faults = list(faults)
    assert await delete(GROUP) == [None]
    assert not (await parts.memory.range(parts.keyspace.groups_prefix)).key_values


async def test_a_deletion_of_groups_is_refused_only_by_what_etcd_has(pair, one):
    """A view that is behind shows neither a new group nor that the members of another have left."""
    _, a, b = pair
    await one.beat(a)
    await b.see()
    await b.pause_view()
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id))
    await a.commit(None, {0: 4}, group_id="new")
    deleting = asyncio.create_task(b.call("DeleteGroups", groups_pb2.DeleteGroupsRequest(group_ids=[GROUP, "new"])))
    await asyncio.sleep(0)
    b.follow()
    assert not any(each.HasField("error") for each in (await deleting).groups)
    await a.see()
    assert not await a.committed(b.source.revision, group_id="new")


async def test_an_offset_in_a_deleted_topic_is_not_described_as_one_in_the_new_topic_of_that_name(a, one):
    """Until it is forgotten it has the name of no topic; before the new topic exists, that of the deleted one."""

    async def names():
        described = await a.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id=GROUP))
        return [(topic.topic_id, topic.name) for topic in described.offsets]

    await one.beat(a)
    await a.commit(one, {0: 5})
    await delete_topic(a.parts, a.parts.topic_id)
    assert await names() == [(a.parts.topic_id, "t")]
    await make_topic(a.parts)
    assert await names() == [(a.parts.topic_id, "")]


async def test_groups_are_listed_and_described(a):
    """Members, what each owns since when and its target, offsets, unowned partitions; an unknown group is named."""
    one, two = Caller(1, client_id="c", host="h", instance_id="i", rack="r"), Caller(2)
    await one.beat(a)
    await two.beat(a)
    await a.commit(one, {0: 5})
    described = await a.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id=GROUP))
    assert described.listing.state == groups_pb2.GROUP_STATE_REBALANCING
    by_id = {member.member_id: member for member in described.members}
    first = by_id[one.id]
    assert (first.client_id, first.host, first.instance_id, first.rack) == ("c", "h", "i", "r")
    assert (first.live, first.session_timeout_ms, list(first.topics)) == (True, SESSION_MS, ["t"])
    assert [len(topic.partitions) for topic in first.owned] == [4]
    assert [len(topic.partitions) for topic in first.target] == [2]
    assert not by_id[two.id].owned
    assert described.offsets[0].partitions[0].offset == 5
    assert described.offsets[0].name == "t"
    await settle(a, one, two)
    await a.commit(None, {0: 1}, group_id="empty")
    (empty, stable) = (await a.call("ListGroups", groups_pb2.ListGroupsRequest())).groups
    assert (empty.group_id, empty.state) == ("empty", groups_pb2.GROUP_STATE_EMPTY)
    assert (stable.state, stable.members, stable.partitions) == (groups_pb2.GROUP_STATE_STABLE, 2, 4)
    unknown = groups_pb2.DescribeGroupRequest(group_id="unknown")
    assert isinstance(await error_of(a.call("DescribeGroup", unknown)), UnknownGroupError)


async def test_a_late_reset_does_not_undo_the_commit_of_a_reader_without_membership(pair):
    """A mirror's worker, and `headrace group reset`, repeat their write for seconds."""
    parts, a, b = pair
    await reset(a, parts, 3, 0)
    seen = (await a.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id=GROUP))).group_epoch

    async def commit(compares, operations):
        a.metastore.before_txn = None
        await b.commit(None, {0: 9})

    a.metastore.before_txn = commit
    assert isinstance(await error_of(reset(a, parts, 5, seen)), ConflictError)
    assert await b.committed() == {0: 9}
    await reset(b, parts, 5, b.group.group_epoch)
    assert await b.committed() == {0: 5}


async def test_a_reader_without_membership_commits_and_is_seen_as_an_empty_group(pair):
    """Listed with its partitions, described; refused as soon as the group has members, unseen ones too."""
    _, a, b = pair
    await a.commit(None, {0: 4, 1: 7}, group_id="reader")
    (listed,) = (await a.call("ListGroups", groups_pb2.ListGroupsRequest())).groups
    assert (listed.group_id, listed.state, listed.partitions) == ("reader", groups_pb2.GROUP_STATE_EMPTY, 2)
    described = await a.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id="reader"))
    assert described.listing == listed
    assert [(each.partition, each.offset) for each in described.offsets[0].partitions] == [(0, 4), (1, 7)]
    await b.pause_view()
    await Caller(1).beat(a, group_id="reader")
    refused = asyncio.create_task(error_of(b.commit(None, {0: 5}, group_id="reader")))
    await asyncio.sleep(0)
    b.follow()
    assert isinstance(await refused, GroupNotEmptyError)


def commit_of(parts, group_id):
    """One offset without membership."""
    request = groups_pb2.CommitOffsetsRequest(group_id=group_id)
    request.topics.add(topic_id=parts.topic_id).partitions.add(partition=0, offset=1)
    return request


async def test_what_was_committed_or_deleted_is_seen_at_another_coordinator(pair, one):
    """Responses to changes carry a revision; a list or a description at least as new waits for it."""
    parts, a, b = pair
    await one.beat(a, group_id="left")
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id="left", member_id=one.id))
    await b.see()
    await b.pause_view()
    committed = await a.call("CommitOffsets", commit_of(parts, "reader"))
    deleted = await a.call("DeleteGroups", groups_pb2.DeleteGroupsRequest(group_ids=["left"]))
    assert deleted.revision > committed.revision > 0
    described = groups_pb2.DescribeGroupRequest(group_id="reader", min_revision=committed.revision)
    assert isinstance(await error_of(b.call("DescribeGroup", described, 0.2)), TimedOutError)
    listing = groups_pb2.ListGroupsRequest(min_revision=deleted.revision)
    reading = asyncio.create_task(b.call("ListGroups", listing))
    await asyncio.sleep(0)
    b.follow()
    assert [each.group_id for each in (await reading).groups] == ["reader"]
    assert (await b.call("DescribeGroup", described)).listing.group_id == "reader"


async def test_the_keeper_puts_out_dead_members_and_sees_topics_by_itself(a):
    """At once where the group is at home, a moment later elsewhere; and it stops its rounds when it is stopped."""
    keeping = asyncio.create_task(a.maintenance.run())
    one, two = Caller(1), Caller(2)
    await settle(a, one, two)
    await a.parts.memory.revoke_lease(a.entry().live[two.id].lease_id)
    answer = await one.beat(a, wait_ms=SESSION_MS)
    assert len(one.holds) == 4
    assert answer.member_epoch == one.epoch
    one.fields["topics"] = ["t", "u"]
    await one.beat(a)
    await make_topic(a.parts, "u", 1)
    await until(lambda: len(a.group.owners) == 5)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert not a.transactions._waiting
