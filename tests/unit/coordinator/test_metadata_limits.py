"""How much metadata public calls may make: counts and bytes of groups, and a reserve of etcd's quota."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace.groups.heartbeats import replaced_member
from headrace.groups.messages import read_member
from headrace.groups.state import Member
from headrace.v1 import groups_pb2
from headrace.wire.errors import InvalidRequestError, MetadataLimitError
from headrace_coordinator.runtime.group_view import GroupView
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import MemberStatus

from tests.fakes.written_keys import WrittenKeys

KEYS = Keyspace("test", 1)
MIB = 1 << 20


@pytest.fixture
def source():
    return WrittenKeys()


def limits_of(source, **bounds):
    view = GroupView(KEYS, source)
    return view, MetadataLimits(GroupBounds(**{"groups": 100, "members": 100, "key_bytes": MIB, **bounds}), view)


def test_view_counts_members_and_bytes_of_what_is_there(source):
    """Keys that change count as they are now, deleted ones not at all; a new view of the same keys counts the same."""
    view, _ = limits_of(source)
    member, offset = KEYS.group_member("g", b"m" * 16), KEYS.group_offset("g", b"t" * 16, 0)
    source.write({member: metadata_pb2.LiveMember(client_id="c").SerializeToString()})
    source.write({offset: b""})
    source.write({offset: metadata_pb2.CommittedOffset(metadata="x" * 500).SerializeToString()})
    expected = len(member) + len(offset) + sum(len(each.value) for each in source.key_values.values())
    assert (view.used.members, view.used.key_bytes) == (1, expected)
    again, _ = limits_of(source)
    assert (again.used.members, again.used.key_bytes) == (1, expected)
    source.write({member: None})
    source.write({offset: None})
    assert (view.used.members, view.used.key_bytes) == (0, 0)


def test_new_groups_members_and_bytes_are_refused_at_their_limits(source):
    """Known groups are served; each refusal names the setting and its value, and nothing was applied."""
    view, limits = limits_of(source, groups=2, members=1)
    source.write({KEYS.group("known"): b""})
    limits.check_member("another", "")
    source.write({KEYS.group("reader"): b""})
    with pytest.raises(MetadataLimitError, match="max_groups = 2"):
        limits.check_group("another", "")
    limits.check_group("reader", "")
    source.write({KEYS.group_member("known", b"m" * 16): b""})
    with pytest.raises(MetadataLimitError, match="max_group_members = 1"):
        limits.check_member("known", "")
    limits.check_group("known", "")
    _, small = limits_of(source, key_bytes=view.used.key_bytes)
    with pytest.raises(MetadataLimitError, match="max_group_bytes"):
        small.check_member("known", "")


def created(user, group_id):
    """The key of a group that a user created, as it is written."""
    return {KEYS.group(group_id): metadata_pb2.GroupState(user=user).SerializeToString()}


def test_of_a_scarce_number_of_groups_each_user_has_a_share(source):
    """A user alone gets three quarters, and two that come later a quarter each at most; its groups stay. Groups of
    callers without an identity are bounded by the limit alone.
    """
    view, limits = limits_of(source, groups=12)
    for number in range(9):
        limits.check_group("another", "greedy")
        source.write(created("greedy", f"greedy-{number}"))
    with pytest.raises(MetadataLimitError, match="'greedy' created have 9 groups, and 6 are its share of max_groups"):
        limits.check_group("another", "greedy")
    limits.check_group("greedy-0", "greedy")
    for user in ("ada", "bob"):
        limits.check_group("another", user)
        source.write(created(user, user))
    assert {user: used.groups for user, used in view.used_by.items()} == {"greedy": 9, "ada": 1, "bob": 1}
    limits.check_group("another", "ada")
    limits.check_group("another", "")
    source.write({KEYS.group(f"greedy-{number}"): None for number in range(9)})
    limits.check_group("another", "greedy")
    assert {user: used.groups for user, used in view.used_by.items()} == {"ada": 1, "bob": 1}


def test_members_and_bytes_take_the_share_of_the_user_that_created_the_group(source):
    """Also if another user joins it; a group of another user has its own share."""
    view, limits = limits_of(source, members=4)
    source.write(created("greedy", "g") | created("ada", "a"))
    source.write({KEYS.group_member("g", bytes([number]) * 16): b"" for number in range(3)})
    for user in ("greedy", "ada"):
        with pytest.raises(MetadataLimitError, match="'greedy' created have 3 members"):
            limits.check_member("g", user)
    limits.check_member("a", "greedy")
    long = metadata_pb2.CommittedOffset(metadata="x" * 1_000).SerializeToString()
    source.write({KEYS.group_offset("g", b"t" * 16, 0): long})
    _, full = limits_of(source, key_bytes=view.used.key_bytes * 5 // 4)
    with pytest.raises(MetadataLimitError, match=r"'greedy' created have .* bytes of etcd"):
        full.check_growth("an offset", None, 0, "greedy")
    full.check_growth("an offset", None, 0, "ada")
    full.check_growth("an offset", 1_000, 1_000, "greedy")


@pytest.mark.parametrize(
    ("before", "after", "passes"),
    [(None, 0, False), (0, 64, True), (0, 65, False), (100, 100, True), (100, 101, False), (100, 0, True)],
)
def test_at_the_limit_of_bytes_only_what_adds_is_refused(source, before, after, passes):
    """What takes the place of something no shorter passes; below the limit everything does."""
    source.write({KEYS.group("g"): b"x"})
    view, limits = limits_of(source)
    limits.check_growth("an offset", before, after, "")
    _, full = limits_of(source, key_bytes=view.used.key_bytes)
    if passes:
        full.check_growth("an offset", before, after, "")
    else:
        with pytest.raises(MetadataLimitError, match=r"an offset is refused: .* max_group_bytes"):
            full.check_growth("an offset", before, after, "")


async def test_groups_that_are_known_commit_while_another_caller_has_filled_the_share(parts):
    """Offsets that are there are overwritten, partition by partition; a first one, a longer text and a join are not."""
    from tests.unit.coordinator.group_parts import Caller, coordinators, error_of

    async with coordinators(parts, "a") as (coordinator,):
        assert await coordinator.commit(None, {0: 1, 1: 1}) == {}
        await coordinator.see()
        coordinator.limits._bounds = replace(coordinator.bounds, key_bytes=1)
        refused = await coordinator.commit(None, {0: 2, 1: 2, 2: 2})
        assert {number: type(error) for number, error in refused.items()} == {2: MetadataLimitError}
        assert await coordinator.committed(coordinator.stored_at) == {0: 2, 1: 2}
        request = groups_pb2.CommitOffsetsRequest(group_id="group")
        topic = request.topics.add(topic_id=parts.topic_id)
        topic.partitions.add(partition=0, offset=3, metadata="x" * 65)
        topic.partitions.add(partition=1, offset=-1)
        answer = await coordinator.call("CommitOffsets", request)
        assert [each.HasField("error") for each in answer.topics[0].partitions] == [True, False]
        assert await coordinator.committed(answer.revision) == {0: 2}
        assert isinstance(await error_of(Caller(1).beat(coordinator)), MetadataLimitError)
        limit = [MemberStatus("a", used_bytes=70 * MIB, quota_bytes=100 * MIB)]
        coordinator.limits.look_at(limit)
        assert isinstance(await error_of(coordinator.commit(None, {0: 3})), MetadataLimitError)


async def test_a_static_member_that_restarts_takes_its_place_while_groups_have_all_members(parts):
    """Its former process was killed and its session lasts: it counts once. Another member, or one whose former session
    is over and has made room for others, counts anew; and at the limit of bytes its subscription grows no longer."""
    from tests.unit.coordinator.group_parts import Caller, coordinators, error_of

    async with coordinators(parts, "a") as (coordinator,):
        await Caller(1, instance_id="i").turn(coordinator)
        await coordinator.see()
        coordinator.limits._bounds = replace(coordinator.bounds, members=1)
        again = Caller(2, instance_id="i")
        await again.turn(coordinator)
        assert again.numbers == [0, 1, 2, 3]
        assert list(coordinator.group.members) == [again.id]
        for other in (Caller(3), Caller(4, instance_id="j")):
            assert isinstance(await error_of(other.beat(coordinator)), MetadataLimitError)
        coordinator.limits._bounds = replace(coordinator.bounds, members=1, key_bytes=1)
        longer = Caller(5, instance_id="i", topics=["t", "x" * 100])
        assert isinstance(await error_of(longer.beat(coordinator)), MetadataLimitError)
        group, joining = coordinator.group, Member(Caller(6).id, instance_id="i")
        assert replaced_member(group, [again.id], joining) == group.members[again.id]
        assert replaced_member(group, [], joining) is None


async def test_a_member_subscribes_to_no_more_at_the_limit(parts):
    """A heartbeat with the same names is accepted."""
    from tests.unit.coordinator.group_parts import Caller, coordinators, error_of

    async with coordinators(parts, "a") as (coordinator,):
        member = Caller(1)
        await member.turn(coordinator)
        coordinator.limits._bounds = replace(coordinator.bounds, key_bytes=1)
        await member.turn(coordinator)
        await member.beat(coordinator, topics=["t", "u"])
        long = [f"{number:03}" + "x" * 100 for number in range(3)]
        assert isinstance(await error_of(member.beat(coordinator, topics=long)), MetadataLimitError)


@pytest.mark.parametrize(
    ("members", "refused"),
    [
        ([], False),
        ([MemberStatus("a", used_bytes=69 * MIB, quota_bytes=100 * MIB)], False),
        ([MemberStatus("a", used_bytes=70 * MIB, quota_bytes=100 * MIB)], True),
        ([MemberStatus("a", database_bytes=70 * MIB, quota_bytes=100 * MIB)], True),
        ([MemberStatus("a", database_bytes=99 * MIB, used_bytes=20 * MIB, quota_bytes=100 * MIB)], False),
        ([MemberStatus("a", quota_bytes=MIB), MemberStatus("b", used_bytes=MIB)], True),
    ],
)
def test_reserve_of_etcd_begins_at_70_percent_of_what_is_used(source, members, refused):
    """Free pages of the file do not count; the fullest member and the smallest quota do; it ends when space is back."""
    _, limits = limits_of(source)
    limits.look_at(members)
    assert limits.is_reserve is refused
    if refused:
        with pytest.raises(MetadataLimitError, match="kept for elections") as caught:
            limits.check_group("g", "")
        assert caught.value.retriable
        limits.look_at([MemberStatus("a", used_bytes=MIB, quota_bytes=100 * MIB)])
    limits.check_group("g", "")


def test_a_member_cannot_fill_etcd_with_names():
    """A subscription has 64 KiB of names at most, however many topics it may name."""
    request = groups_pb2.HeartbeatRequest(
        group_id="g", member_id=b"m" * 16, session_timeout_ms=30_000, rebalance_timeout_ms=30_000
    )
    request.topics.extend(f"{number:03}" + "x" * 246 for number in range(263))
    read_member(request, "")
    request.topics.append("y" * 249)
    with pytest.raises(InvalidRequestError, match="more than 65536"):
        read_member(request, "")
