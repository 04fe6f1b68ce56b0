"""Members of a group belong to the users that joined: others act for them in vain, as if they did not exist."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from headrace.v1 import errors_pb2, groups_pb2
from headrace.wire.errors import (
    FencedInstanceError,
    MetadataLimitError,
    NotAuthorizedError,
    UnauthenticatedError,
    UnknownMemberError,
    UnknownTopicIdError,
)
from headrace_server.identity.gate import set_access

from tests.fakes.open_gate import open_access
from tests.unit.common.identity.test_gate import KEYS, Known
from tests.unit.coordinator.group_parts import GROUP, Caller, error_of, make_topic, settle, until


class UserCaller(Caller):
    """A member of a user; the posture is `open`, which makes no difference."""

    def __init__(self, seed, user, **fields):
        super().__init__(seed, **fields)
        self.user = user

    async def beat(self, coordinator, **fields):
        set_access(open_access(self.user))
        return await super().beat(coordinator, **fields)

    def seen_by(self, user):
        """The same member, as a program of another user would speak for it."""
        other = UserCaller(0, user, **self.fields)
        other.id, other.epoch, other.revision, other.holds = self.id, self.epoch, self.revision, dict(self.holds)
        return other


async def join_ada(a):
    """Return a member of user ada that owns all partitions."""
    member = UserCaller(1, "ada")
    await settle(a, member)
    assert member.numbers == [0, 1, 2, 3]
    return member


def count_renewals(coordinator, monkeypatch):
    """Return a list that gets the lease of each renewal."""
    renewed, renew = [], coordinator.metastore.renew_lease

    async def renew_lease(lease_id):
        renewed.append(lease_id)
        return await renew(lease_id)

    monkeypatch.setattr(coordinator.metastore, "renew_lease", renew_lease)
    return renewed


@pytest.mark.parametrize("user", ["bob", ""])
@pytest.mark.parametrize("epoch", [0, None])
async def test_a_heartbeat_for_another_users_member_is_that_of_none(a, user, epoch, monkeypatch):
    """Also a join under its id; the lease is not renewed, the member stays as it is."""
    ada = await join_ada(a)
    intruder = ada.seen_by(user)
    if epoch is not None:
        intruder.epoch = epoch
    before, renewed = a.group, count_renewals(a, monkeypatch)
    error = await error_of(intruder.beat(a, owned=[], topics=["other"]))
    assert isinstance(error, UnknownMemberError)
    assert (a.group, renewed) == (before, [])
    await ada.beat(a)
    assert ada.numbers == [0, 1, 2, 3]


async def test_the_transaction_decides_about_a_member_that_the_view_does_not_show_yet(pair, monkeypatch):
    """Another user joins under the member's id at a coordinator that is behind, which has to catch up to write."""
    _, a, b = pair
    await b.pause_view()
    ada = await join_ada(a)
    before, renewed = a.group, count_renewals(b, monkeypatch)
    intruder = ada.seen_by("bob")
    intruder.epoch = intruder.revision = 0
    waiting = asyncio.create_task(error_of(intruder.beat(b, topics=["other"])))
    await until(lambda: GROUP in b.transactions._waiting)
    b.follow()
    assert isinstance(await waiting, UnknownMemberError)
    assert (a.group, renewed) == (before, [])


async def test_a_commit_for_another_users_member_is_that_of_none(a):
    """Nothing is stored; its own user commits."""
    ada = await join_ada(a)
    set_access(open_access("bob"))
    assert isinstance(await error_of(a.commit(ada, {0: 5})), UnknownMemberError)
    set_access(open_access("ada"))
    assert await a.commit(ada, {0: 7}) == {}
    assert await a.committed(a.stored_at) == {0: 7}


async def test_another_user_cannot_make_a_member_leave(a):
    """The answer is the same as for a member that has left."""
    ada = await join_ada(a)
    request = groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=ada.id)
    set_access(open_access("bob"))
    await a.call("LeaveGroup", request)
    await ada.beat(a)
    assert ada.id in a.group.members
    set_access(open_access("ada"))
    await a.call("LeaveGroup", request)
    assert ada.id not in a.group.members


async def test_a_static_members_place_is_its_users(a):
    """Another user with the same instance id does not replace it; the same user does."""
    first = UserCaller(1, "ada", instance_id="place")
    await settle(a, first)
    error = await error_of(UserCaller(2, "bob", instance_id="place").beat(a))
    assert isinstance(error, FencedInstanceError)
    assert "another user" in str(error)
    assert list(a.group.members) == [first.id]
    again = UserCaller(3, "ada", instance_id="place")
    await again.beat(a)
    assert list(a.group.members) == [again.id]


async def test_a_member_without_a_user_belongs_to_everyone(a):
    """A member that joined without a credential continues with one."""
    member = UserCaller(1, "")
    await settle(a, member)
    member.user = "ada"
    await member.beat(a)
    assert await a.commit(member, {0: 1}) == {}


async def test_other_users_see_only_the_name_of_a_member(a):
    """Four bytes of its id; the user itself sees all of it."""
    ada = await join_ada(a)
    request = groups_pb2.DescribeGroupRequest(group_id=GROUP)
    set_access(open_access("bob"))
    (shown,) = (await a.call("DescribeGroup", request)).members
    assert (shown.member_id, shown.user) == (ada.id[:4], "ada")
    set_access(open_access("ada"))
    (shown,) = (await a.call("DescribeGroup", request)).members
    assert shown.member_id == ada.id


async def test_a_group_names_no_topic_that_its_reader_does_not_see(a):
    """Neither by an offset nor by a member; the others remain, and with the right all are there."""
    await make_topic(a.parts, "hidden", 2)
    member = UserCaller(1, "ada", topics=["hidden", "t"])
    await settle(a, member)
    for topic_id in (a.parts.topic_id, a.parts.view.topics["hidden"].topic_id):
        assert await a.commit(member, {0: 1}, topic_id=topic_id) == {}
    await a.see()
    known = Known()
    known.grant("bob", "reader", f"group:{GROUP}")
    known.grant("bob", "reader", "topic:t")
    access = known.access(known.user("bob"))
    set_access(access)

    async def names():
        offsets = await a.call("FetchOffsets", groups_pb2.FetchOffsetsRequest(group_id=GROUP))
        shown = await a.call("DescribeGroup", groups_pb2.DescribeGroupRequest(group_id=GROUP))
        (each,) = shown.members
        lists = (offsets.topics, shown.offsets, each.owned, each.target)
        assert len({tuple(sorted(topic.name for topic in topics)) for topics in lists}) == 1
        return {*each.topics}, {topic.name for topic in offsets.topics}

    assert await names() == ({"t"}, {"t"})
    known.grant("bob", "monitor", "topic:hidden")
    access.recheck()
    assert await names() == ({"hidden", "t"}, {"hidden", "t"})


@pytest.mark.parametrize("method", ["FetchOffsets", "DescribeGroup", "ListGroups"])
@pytest.mark.parametrize("lost", ["grant", "user"])
async def test_a_right_that_is_lost_while_a_call_waits_for_a_revision_counts(a, method, lost):
    """The caller chooses the revision, and with it how long the call waits."""
    await settle(a, UserCaller(1, "ada"))
    await a.see()
    known = Known()
    grant = known.grant("bob", "reader", f"group:{GROUP}")
    api_key = known.user("bob")
    set_access(known.access(api_key))
    request = getattr(groups_pb2, f"{method}Request")(min_revision=a.source.revision + 1)
    if method != "ListGroups":
        request.group_id = GROUP
    waiting = asyncio.create_task(a.call(method, request))
    await asyncio.sleep(0)
    known.keys.write({grant: None} if lost == "grant" else {KEYS.user("bob"): None})
    set_access(open_access("ada"))
    assert await a.commit(None, {0: 1}, group_id="other") == {}
    if lost == "grant" and method == "ListGroups":
        assert not (await waiting).groups
    else:
        assert isinstance(await error_of(waiting), NotAuthorizedError if lost == "grant" else UnauthenticatedError)


@pytest.mark.parametrize("name", ["t", "missing"])
async def test_a_commit_by_name_does_not_say_which_topics_exist(a, name):
    """A user of a group without the right to describe a topic; with it, the answer tells."""
    known = Known()
    known.grant("bob", "reader", "group:*")
    access = known.access(known.user("bob"))
    offset = groups_pb2.PartitionOffset(partition=99, offset=1)
    request = groups_pb2.CommitOffsetsRequest(
        group_id=GROUP, topics=[groups_pb2.TopicOffsets(name=name, partitions=[offset])]
    )

    async def code():
        set_access(access)
        (topic,) = (await a.call("CommitOffsets", request)).topics
        return topic.partitions[0].error.code

    assert await code() == errors_pb2.ERROR_CODE_NOT_AUTHORIZED
    known.grant("bob", "monitor", "topic:*")
    access.recheck()
    exists = name == "t"
    assert await code() == (errors_pb2.ERROR_CODE_INVALID_REQUEST if exists else errors_pb2.ERROR_CODE_UNKNOWN_TOPIC)


async def test_a_group_takes_the_share_of_the_user_that_created_it(a):
    """By a member or by a commit without one, for as long as it exists, also while others use it. A user that has its
    share of a scarce limit keeps no other user from a group of its own.
    """
    await join_ada(a)
    set_access(open_access("greedy"))
    for number in range(3):
        assert await a.commit(None, {0: 1}, group_id=f"greedy-{number}") == {}
    set_access(open_access("ada"))
    assert await a.commit(None, {0: 2, 1: 2}, group_id="greedy-0") == {}
    await a.see()
    assert {user: used.groups for user, used in a.groups.used_by.items()} == {"ada": 1, "greedy": 3}
    a.limits._bounds = replace(a.bounds, groups=5)
    set_access(open_access("greedy"))
    assert isinstance(await error_of(a.commit(None, {0: 1}, group_id="greedy-3")), MetadataLimitError)
    assert await a.commit(None, {0: 2}, group_id="greedy-1") == {}
    set_access(open_access("bob"))
    assert await a.commit(None, {0: 1}, group_id="bob") == {}


@pytest.mark.parametrize("is_member", [False, True])
async def test_a_commit_by_id_tells_of_no_topic_that_its_user_does_not_see(a, is_member):
    """Neither its name nor whether it exists. A member commits what it was assigned when its user saw the topic."""
    known = Known()
    known.grant("bob", "reader", f"group:{GROUP}")
    access = known.access(known.user("bob"))
    member = UserCaller(1, "bob")
    if is_member:
        await settle(a, member)
    set_access(access)
    hidden, unknown = [
        await a.commit(member if is_member else None, {999: 5}, topic_id=topic_id) for topic_id in (None, bytes(16))
    ]
    assert isinstance(hidden[999], UnknownTopicIdError)
    assert hidden[999].message.replace(a.parts.topic_id.hex(), bytes(16).hex()) == unknown[999].message
    errors = await a.commit(member if is_member else None, {0: 5})
    assert isinstance(errors.get(0), type(None) if is_member else UnknownTopicIdError)
    known.grant("bob", "monitor", f"topic:{a.parts.view.topic_by_id(a.parts.topic_id).name}")
    access.recheck()
    assert await a.committed() == ({0: 5} if is_member else {})
    assert not isinstance((await a.commit(member if is_member else None, {999: 5}))[999], UnknownTopicIdError)
