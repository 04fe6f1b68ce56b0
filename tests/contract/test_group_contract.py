"""What a coordinator answers to members of a group, in the real coordinator and in the fake of the client's tests."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import headrace
import pytest
from headrace.v1 import groups_pb2 as pb
from headrace.v1 import groups_pb2_grpc
from headrace.wire.errors import (
    FencedMemberEpochError,
    GroupNotEmptyError,
    NotOwnerError,
    UnknownMemberError,
    from_detail,
    from_rpc_error,
)
from headrace_devcluster.cluster import LocalCluster

from tests.fakes.cluster import FakeCluster, running_fake
from tests.fakes.groups import fake_groups

NAMES = (f"group-contract-{number}" for number in itertools.count())
TIMEOUT = 30
LONG_MS = 20_000


@dataclass
class Group:
    """A group on one coordinator that assigns a topic of two partitions to its first member."""

    name: str
    topic_id: bytes
    revoke_one: Callable[[Group], object]
    """Revoke one of the first member's two partitions."""
    add_partition: Callable[[], object]
    stub: Any = None
    member_id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    epoch: int = 0
    revision: int = 0
    assigned: dict[int, int] = field(default_factory=dict)
    """The first member's assignment epoch by partition, as of the last answer."""

    def call(self, method: str, **fields: Any) -> Any:
        request = getattr(pb, f"{method}Request")(group_id=self.name, **fields)
        try:
            return getattr(self.stub, method)(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def request(self, wait_ms: int = 0, **fields: Any) -> dict[str, Any]:
        own = {"member_id": self.member_id, "member_epoch": self.epoch, "known_revision": self.revision}
        times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000, "max_wait_ms": wait_ms}
        return {"topics": [self.name]} | own | times | fields

    def heartbeat(self, **fields: Any) -> pb.HeartbeatResponse:
        return self.heard(self.call("Heartbeat", **self.request(**fields)))

    def heard(self, answer: pb.HeartbeatResponse) -> pb.HeartbeatResponse:
        self.epoch, self.revision, self.assigned = answer.member_epoch, answer.revision, {}
        for topic in answer.assigned:
            assert (topic.name, topic.topic_id) == (self.name, self.topic_id)
            self.assigned |= dict(zip(topic.partitions, topic.assignment_epochs, strict=True))
        return answer

    def reach(self, partitions: int) -> None:
        """Heartbeat, with long polls, until the first member has this many partitions."""
        while len(self.assigned) != partitions:
            self.heartbeat(wait_ms=LONG_MS)

    def commit(self, offsets: dict[int, int], **fields: Any) -> list[type[Exception] | None]:
        """Commit for the first member, by default; return the error of each partition, in order."""
        places = [pb.PartitionOffset(partition=n, offset=offset, leader_epoch=3) for n, offset in offsets.items()]
        topics = [pb.TopicOffsets(topic_id=self.topic_id, name=self.name, partitions=places)]
        own = {"member_id": self.member_id, "member_epoch": self.epoch}
        answer = self.call("CommitOffsets", **own | {"topics": topics} | fields)
        self.revision = max(self.revision, answer.revision)
        (topic,) = answer.topics
        assert [place.partition for place in topic.partitions] == list(offsets)
        return [type(from_detail(place.error)) if place.HasField("error") else None for place in topic.partitions]

    def stored(self, *partitions: int) -> Any:
        named = [pb.GroupTopicPartitions(topic_id=self.topic_id, name=self.name, partitions=partitions)]
        answer = self.call("FetchOffsets", topics=named if partitions else [], min_revision=self.revision)
        assert answer.revision >= self.revision
        return [place for topic in answer.topics for place in topic.partitions]

    def offsets(self) -> dict[int, int]:
        """All that are stored."""
        return {place.partition: place.offset for place in self.stored()}


@pytest.fixture
def real(headrace_cluster: LocalCluster) -> Iterator[tuple[str, Group]]:
    name = next(NAMES)

    def join_second(group: Group) -> None:
        group.call("Heartbeat", **group.request(member_id=secrets.token_bytes(16), member_epoch=0, known_revision=0))

    with headrace.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
        topic_id = admin.create_topic(name, 2, replication_factor=1).topic_id
        group = Group(name, topic_id, join_second, lambda: admin.create_partitions(name, 3))
        yield headrace_cluster.coordinators[0].address, group


@pytest.fixture
def fake() -> Iterator[tuple[str, Group]]:
    name = next(NAMES)
    with running_fake() as cluster:
        topic_id = FakeCluster.create_topic(cluster, name, 2).topic_id
        with fake_groups(cluster) as coordinator:
            coordinator.assign((name, 0), (name, 1))
            revoke, add = lambda group: coordinator.assign((name, 0)), lambda: coordinator.added.add((name, 2))
            yield coordinator.address, Group(name, topic_id, revoke, add)


@pytest.fixture(params=["real", "fake"])
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group without members."""
    address, group = request.getfixturevalue(request.param)
    with grpc.insecure_channel(address) as channel:
        group.stub = groups_pb2_grpc.GroupServiceStub(channel)
        yield group


@pytest.fixture
def joined(group: Group) -> Group:
    """A group whose first member has both partitions."""
    group.reach(2)
    return group


def test_a_join_is_answered_at_once_and_may_be_repeated(joined: Group) -> None:
    answer = joined.heartbeat(member_epoch=0, known_revision=0)
    assert sorted(joined.assigned) == [0, 1]
    assert 0 < min(joined.assigned.values()) <= max(joined.assigned.values()) <= answer.member_epoch
    assert (answer.heartbeat_interval_ms, answer.assignor) == (3_000, "uniform")
    again = joined.heartbeat(member_epoch=0, known_revision=0)
    assert (again.member_epoch, again.revision, again.assigned) == (
        answer.member_epoch,
        answer.revision,
        answer.assigned,
    )


def test_a_long_poll_without_a_change_ends_with_the_same_answer(joined: Group) -> None:
    before = joined.heartbeat()
    after = joined.heartbeat(wait_ms=100)
    assert (after.member_epoch, after.revision, after.assigned) == (
        before.member_epoch,
        before.revision,
        before.assigned,
    )


def test_a_change_ends_a_long_poll_and_keeps_the_epochs_of_what_stays(joined: Group) -> None:
    before, epoch, revision = joined.assigned, joined.epoch, joined.revision
    waiting = joined.stub.Heartbeat.future(
        pb.HeartbeatRequest(group_id=joined.name, **joined.request(wait_ms=LONG_MS)), timeout=TIMEOUT
    )
    joined.revoke_one(joined)
    joined.heard(waiting.result())
    joined.reach(1)
    assert joined.epoch > epoch
    assert joined.revision > revision
    assert joined.assigned.items() < before.items()


def test_a_commit_is_shown_by_a_read_of_its_revision(joined: Group) -> None:
    revision = joined.revision
    assert joined.commit({1: 11, 0: 10}) == [None, None]
    assert joined.revision > revision
    assert [(place.partition, place.offset, place.leader_epoch) for place in joined.stored(0, 1)] == [
        (0, 10, 3),
        (1, 11, 3),
    ]
    assert joined.commit({0: 12}) == [None]
    assert joined.offsets() == {0: 12, 1: 11}


def test_a_partition_without_an_offset_is_read_as_minus_one_and_as_added_where_it_came_later(joined: Group) -> None:
    joined.add_partition()
    found = [(place.offset, place.leader_epoch, place.is_added) for place in joined.stored(0, 2)]
    assert found == [(-1, -1, False), (-1, -1, True)]
    assert joined.offsets() == {}


def test_an_older_commit_of_a_member_does_not_undo_a_later_one(joined: Group) -> None:
    assert joined.commit({0: 20}, commit_number=2) == [None]
    assert joined.commit({0: 10}, commit_number=1) == [None]
    assert joined.commit({0: 20}, commit_number=2) == [None]
    assert joined.offsets() == {0: 20}
    assert joined.commit({0: 5}, commit_number=3) == [None]
    assert joined.offsets() == {0: 5}


def test_a_revoked_partition_may_be_committed_until_it_is_released(joined: Group) -> None:
    joined.revoke_one(joined)
    joined.reach(1)
    (kept,) = joined.assigned
    assert joined.commit({0: 10, 1: 11}) == [None, None]
    own = pb.GroupTopicPartitions(topic_id=joined.topic_id, name=joined.name, partitions=[kept])
    joined.heartbeat(owned=pb.OwnedPartitions(topics=[own]))
    assert joined.commit({kept: 20, 1 - kept: 21}) == [None, NotOwnerError]
    assert joined.offsets() == {kept: 20, 1 - kept: 10 + 1 - kept}


def test_a_commit_of_another_epoch_or_of_no_owned_partition_is_refused(joined: Group) -> None:
    assert joined.commit({0: 1}, member_epoch=min(joined.assigned.values()) - 1) == [NotOwnerError]
    assert joined.commit({7: 1}) == [NotOwnerError]
    with pytest.raises(FencedMemberEpochError):
        joined.commit({0: 1}, member_epoch=joined.epoch + 1)
    assert joined.offsets() == {}


@pytest.mark.parametrize("left", [False, True])
def test_who_is_no_member_is_unknown(joined: Group, left: bool) -> None:
    if left:
        for _ in range(2):  # A repeated request has the same result.
            joined.call("LeaveGroup", member_id=joined.member_id)
    else:
        joined.member_id = secrets.token_bytes(16)
    with pytest.raises(UnknownMemberError):
        joined.heartbeat()
    with pytest.raises(UnknownMemberError):
        joined.commit({0: 1})


def test_without_a_member_id_only_a_group_without_members_is_committed(joined: Group) -> None:
    with pytest.raises(GroupNotEmptyError):
        joined.commit({0: 1}, member_id=b"", member_epoch=0)
    joined.call("LeaveGroup", member_id=joined.member_id)
    assert joined.commit({0: 1}, member_id=b"", member_epoch=0) == [None]
    assert joined.offsets() == {0: 1}
