"""The checks of groups find what is planted."""

from contextlib import closing

import pytest
from headrace.groups.state import Group, Member
from headrace.v1 import groups_pb2
from headrace.wire.errors import ErrorCode

from tests.simulation.group_cluster import GroupCluster
from tests.simulation.group_invariants import Assigned
from tests.simulation.group_plan import GroupPlan
from tests.simulation.world import SimulationError

MEMBER, TOPIC = b"m", b"t"


@pytest.fixture
def checks():
    with closing(GroupCluster(GroupPlan(1))) as cluster:
        cluster.checks.now.group = Group(members={MEMBER: Member(member_id=MEMBER, member_epoch=7)})
        cluster.checks.now.assigned[MEMBER] = Assigned(7, {(TOPIC, 0): 5})
        yield cluster.checks


def commit(member_epoch):
    topics = [groups_pb2.TopicOffsets(topic_id=TOPIC, partitions=[groups_pb2.PartitionOffset(partition=0, offset=9)])]
    return groups_pb2.CommitOffsetsRequest(member_id=MEMBER, member_epoch=member_epoch, topics=topics)


def answer(code):
    response = groups_pb2.CommitOffsetsResponse()
    given = response.topics.add(topic_id=TOPIC).partitions.add(partition=0)
    if code is not None:
        given.error.code = code
    return response


@pytest.mark.parametrize("member_epoch", [5, 7])
def test_a_valid_commit_that_is_refused_is_found(checks, member_epoch):
    """It was of the owner, between the epoch of the grant and that of the member, from its arrival to the answer."""
    checks.commit_arrived("call", commit(member_epoch))
    with pytest.raises(SimulationError, match="H63"):
        checks.commit_answered("call", answer(ErrorCode.NOT_OWNER))


@pytest.mark.parametrize(
    ("member_epoch", "code"),
    [(4, ErrorCode.NOT_OWNER), (8, ErrorCode.NOT_OWNER), (6, ErrorCode.UNKNOWN_TOPIC), (6, None)],
)
def test_a_commit_that_is_not_valid_or_refused_for_something_else_is_none(checks, member_epoch, code):
    checks.commit_arrived("call", commit(member_epoch))
    checks.commit_answered("call", answer(code))


def test_a_commit_that_was_invalid_for_a_while_may_be_refused(checks):
    """The coordinator may have decided in any revision since it arrived."""
    checks.commit_arrived("call", commit(6))
    owned = checks.now.assigned.pop(MEMBER)
    checks._on_commit(1, [])
    checks.now.assigned[MEMBER] = owned
    checks.commit_answered("call", answer(ErrorCode.NOT_OWNER))
