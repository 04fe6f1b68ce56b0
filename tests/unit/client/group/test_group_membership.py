"""A member's state machine: it never reads what it does not own, and never says that it gave up what it still reads."""

from __future__ import annotations

import itertools

import pytest
from headrace.client.base.config import ConsumerConfig
from headrace.client.group.membership import InitialPosition, Membership, Phase, Stage
from headrace.groups.assignors import AssignableTopic
from headrace.groups.heartbeats import MemberDeparture, MemberHeartbeat
from headrace.groups.state import Group, Member
from headrace.groups.transition import transition
from headrace.v1 import groups_pb2
from headrace.wire.errors import (
    FencedInstanceError,
    FencedMemberEpochError,
    GroupTooLargeError,
    MetadataLimitError,
    MetastoreUnavailableError,
    TimedOutError,
    UnknownMemberError,
)
from headrace.wire.ids import TopicPartition
from headrace_coordinator.core.group_encoding import encode_assignments
from headrace_server.internal_v1 import metadata_pb2
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

TOPIC = b"t" * 16
P = [TopicPartition("t", number) for number in range(6)]


def member_of_group(**options):
    config = ConsumerConfig(group_id="g", **options)
    ids = (number.to_bytes(16, "big") for number in itertools.count(1))
    return Membership(config, ["t"], "here", lambda: next(ids), now_ms=0)


def answer(revision, epoch, assigned, topic_id=TOPIC, name="t"):
    """`assigned`: assignment epoch by partition."""
    response = groups_pb2.HeartbeatResponse(member_epoch=epoch, revision=revision, heartbeat_interval_ms=3_000)
    if assigned:
        response.assigned.add(
            topic_id=topic_id, name=name, partitions=list(assigned), assignment_epochs=list(assigned.values())
        )
    return response


def hear(member, revision, epoch, assigned, **topic):
    member.request()
    member.heartbeat_answered(answer(revision, epoch, assigned, **topic), sent_ms=10)


def take_all(member):
    """Do what the application's thread does."""
    events = member.pending_events()
    member.acknowledge_lost(events.lost)
    member.acknowledge_revoked(events.revoked)
    for holding in member.to_start():
        member.started(holding, InitialPosition(0))
    member.acknowledge_assigned(member.pending_events().assigned)


def owned(member):
    return [holding.where for holding in member.owned()]


def said(request):
    assert request.HasField("owned")
    return [number for topic in request.owned.topics for number in topic.partitions]


def joined(assigned=(0, 1)):
    member = member_of_group()
    hear(member, 5, 1, dict.fromkeys(assigned, 1))
    take_all(member)
    return member


@pytest.fixture
def member():
    return joined()


def test_a_join_waits_for_nothing_and_a_member_that_has_nothing_to_say_waits_for_news():
    member = member_of_group(heartbeat_interval_ms=2_000)
    first = member.request()
    assert (first.member_epoch, first.known_revision, first.max_wait_ms) == (0, 0, 0)
    assert first.member_id == (1).to_bytes(16, "big")
    member.heartbeat_answered(answer(5, 1, {}), sent_ms=1)
    second = member.request()
    assert (second.member_epoch, second.known_revision, second.max_wait_ms) == (1, 5, 2_000)
    assert said(second) == [], "once after every change: it may be asked to give up what it never heard of"
    member.heartbeat_answered(answer(5, 1, {}), sent_ms=2)
    assert not member.request().HasField("owned")


def test_a_short_session_is_heard_of_four_times():
    member = member_of_group(session_timeout_ms=1_000)
    assert member.interval_ms == 250
    assert member.grace_ms == 500


def test_a_partition_is_read_only_after_its_start_is_known():
    member = member_of_group()
    hear(member, 5, 1, {0: 1})
    assert not member.pending_events()
    (holding,) = member.to_start()
    assert (holding.where, holding.revision, holding.assignment_epoch) == (P[0], 5, 1)
    member.started(holding, InitialPosition(7))
    (ready,) = member.pending_events().assigned
    assert ready.start == InitialPosition(7)
    assert owned(member) == []
    assert member.acknowledge_assigned([ready]) == [holding]
    assert owned(member) == [P[0]]


def test_a_revoked_partition_is_reported_as_owned_until_the_application_and_its_commit_are_done(member):
    hear(member, 6, 1, {0: 1})
    assert [holding.where for holding in member.pending_events().revoked] == [P[1]]
    assert owned(member) == P[:2]
    member.acknowledge_revoked(member.pending_events().revoked)
    assert owned(member) == [P[0]]
    member.release(lambda where: False)
    assert not member.needs_heartbeat
    member.request_heartbeat()
    assert said(member.request()) == [0, 1]
    member.heartbeat_answered(answer(6, 1, {0: 1}), sent_ms=20)
    member.release(lambda where: True)
    assert member.needs_heartbeat
    request = member.request()
    assert said(request) == [0]
    assert request.max_wait_ms == 0


def test_what_the_application_was_never_told_of_is_given_up_without_it():
    member = member_of_group()
    hear(member, 5, 1, {0: 1, 1: 1})
    member.started(member.to_start()[0], InitialPosition(0))
    hear(member, 6, 2, {})
    assert not member.pending_events()
    assert said(member.request()) == []


def test_a_revocation_that_was_not_delivered_is_taken_back(member):
    hear(member, 6, 1, {0: 1})
    hear(member, 7, 2, {0: 1, 1: 1})
    assert not member.pending_events()
    assert owned(member) == P[:2]


def test_a_partition_that_comes_back_while_the_application_is_told_is_started_anew(member):
    """on_revoked runs when the group takes it back: the application does stop reading, and is to begin again."""
    hear(member, 6, 2, {0: 1})
    revoked = member.pending_events().revoked
    assert [holding.where for holding in revoked] == [P[1]]
    hear(member, 7, 3, {0: 1, 1: 1})  # while the application's callback runs
    member.acknowledge_revoked(revoked)
    assert owned(member) == [P[0]]
    member.release(lambda where: True)
    assert [holding.where for holding in member.to_start()] == [P[1]]
    take_all(member)
    assert owned(member) == [P[0], P[1]]


def test_a_partition_that_comes_back_while_it_is_given_up_is_started_anew(member):
    hear(member, 6, 1, {0: 1})
    member.acknowledge_revoked(member.pending_events().revoked)
    hear(member, 7, 2, {0: 1, 1: 1})
    assert not member.pending_events()
    assert not member.to_start()
    member.release(lambda where: True)
    (again,) = member.to_start()
    assert (again.where, again.stage) == (P[1], Stage.STARTING)
    assert said(member.request()) == [0, 1]


def test_a_partition_that_was_free_in_between_is_lost_first(member):
    hear(member, 8, 4, {0: 1, 1: 4})
    assert member.pending_events().lost == (P[1],)
    for holding in member.to_start():
        member.started(holding, InitialPosition(3))
    assert not member.pending_events().assigned
    member.acknowledge_lost([P[1]])
    assert [holding.assignment_epoch for holding in member.pending_events().assigned] == [4]


def test_a_topic_that_was_created_anew_waits_for_the_end_of_the_old_one():
    member = joined([0])
    hear(member, 6, 2, {0: 2}, topic_id=b"u" * 16)
    for holding in member.to_start():
        member.started(holding, InitialPosition(0))
    events = member.pending_events()
    assert [holding.topic_id for holding in events.revoked] == [TOPIC]
    assert not events.assigned
    member.acknowledge_revoked(events.revoked)
    assert not member.pending_events().assigned
    member.release(lambda where: True)
    assert [holding.topic_id for holding in member.pending_events().assigned] == [b"u" * 16]


def test_a_coordinator_that_is_behind_takes_nothing_back(member):
    hear(member, 4, 1, {})
    assert owned(member) == P[:2]
    assert member.revision == 5
    assert not member.pending_events()


@pytest.mark.parametrize("error", [UnknownMemberError("over"), FencedMemberEpochError("old")])
def test_a_fenced_member_loses_everything_and_joins_as_another_one(error, member):
    hear(member, 6, 1, {0: 1})
    request = member.request()
    member.heartbeat_failed(error, request, 0)
    assert member.pending_events().lost == (P[0], P[1])
    again = member.request()
    assert again.member_id != request.member_id
    assert (again.member_epoch, again.known_revision) == (0, 0)
    hear(member, 9, 3, {0: 3})
    for holding in member.to_start():
        member.started(holding, InitialPosition(0))
    assert not member.pending_events().assigned, "not before the application has heard of the loss"
    member.acknowledge_lost(member.pending_events().lost)
    assert [holding.where for holding in member.pending_events().assigned] == [P[0]]


@pytest.mark.parametrize("error", [FencedInstanceError("two"), GroupTooLargeError("many")])
def test_a_refusal_for_good_is_kept_and_no_more_heartbeats_are_made(error, member):
    member.heartbeat_failed(error, member.request(), 0)
    assert member.failure is error
    assert member.phase is Phase.FAILED
    assert member.is_over
    assert member.pending_events().lost == (P[0], P[1])


@pytest.mark.parametrize("error", [MetadataLimitError("all"), GroupTooLargeError("many")])
def test_a_join_that_a_limit_refuses_is_repeated_until_a_dead_member_s_session_is_over(error):
    """A process that was killed and comes back holds a place of its own until then; the same join is sent again."""
    member = member_of_group(session_timeout_ms=6_000)
    first = member.request()
    for now_ms in (1_000, 1_000 + 6_000):
        member.heartbeat_failed(error, first, now_ms)
        assert member.phase is Phase.JOINING
        assert member.request() == first
    hear(member, 5, 1, {0: 1})
    assert member.refused_since_ms is None
    member.heartbeat_failed(UnknownMemberError("over"), member.request(), 50_000)
    member.heartbeat_failed(error, member.request(), 50_000)
    assert member.phase is Phase.JOINING
    member.heartbeat_failed(error, member.request(), 50_000 + member.join_retry_ms)
    assert member.failure is error
    assert member.is_over


@pytest.mark.parametrize("error", [TimedOutError("slow"), MetastoreUnavailableError("away")])
def test_without_an_answer_everything_stays_and_what_was_said_is_said_again(error, member):
    hear(member, 6, 1, {0: 1})
    member.acknowledge_revoked(member.pending_events().revoked)
    member.release(lambda where: True)
    request = member.request()
    member.heartbeat_failed(error, request, 0)
    assert owned(member) == [P[0]]
    assert member.needs_heartbeat
    assert said(member.request()) == said(request) == [0]


def test_the_session_counts_from_when_the_answered_heartbeat_was_sent():
    member = member_of_group(session_timeout_ms=6_000)
    member.request()
    member.heartbeat_answered(answer(5, 1, {}), sent_ms=1_000)
    assert member.session_ends_ms() == 7_000
    member.heartbeat_failed(TimedOutError("slow"), member.request(), 0)
    assert member.session_ends_ms() == 7_000


def test_a_commit_that_was_refused_for_another_owner_loses_that_partition_alone(member):
    member.lose(P[1], TOPIC, 1)
    assert member.pending_events().lost == (P[1],)
    assert owned(member) == [P[0]]
    assert said(member.request()) == [0]


def test_a_refused_commit_loses_nothing_that_was_granted_after_it(member):
    """The topic was deleted and made anew under its name while the commit for the old one was on its way."""
    hear(member, 6, 2, {0: 2, 1: 2}, topic_id=b"u" * 16)
    member.lose(P[1], TOPIC, 2)
    take_all(member)
    member.release(lambda where: True)
    take_all(member)
    assert P[1] in owned(member)
    member.lose(P[1], b"u" * 16, 1)
    assert P[1] in owned(member)


class _Coordinators:
    """The coordinators' own transition over one state, without their I/O."""

    def __init__(self, partitions):
        self.group = Group()
        self.revision = 1
        self.stored: dict[bytes, tuple[int, bytes]] = {}
        self.live: set[bytes] = set()
        self.topics = {"t": AssignableTopic(TOPIC, "t", partitions, ())}
        self.now_ms = 1

    def round(self, heartbeats=(), leaving=()):
        self.live.update(beat.member.member_id for beat in heartbeats if beat.member_epoch == 0)
        while True:
            result = transition(
                self.group,
                heartbeats=heartbeats,
                leaving=leaving,
                live=self.live,
                topics=self.topics,
                deleted=(),
                stored={member_id: value for member_id, (_, value) in self.stored.items()},
                encode_assignments=encode_assignments,
                begun={},
                overdue=(),
                now_ms=self.now_ms,
            )
            self.revision += 1
            self.group = result.group
            for member_id in result.gone:
                self.stored.pop(member_id, None)
                self.live.discard(member_id)
            for member_id, value in result.assignments.items():
                self.stored[member_id] = (self.revision, value)
            if not result.more:
                return result
            heartbeats = leaving = ()

    def heartbeat(self, request):
        """Return the answer, or the error."""
        owned = None
        if request.HasField("owned"):
            owned = frozenset((topic.topic_id, n) for topic in request.owned.topics for n in topic.partitions)
        member = Member(
            request.member_id, topics=("t",), session_timeout_ms=30_000, rebalance_timeout_ms=300_000, joined_ms=1
        )
        if request.member_epoch and request.member_id not in self.live:
            return UnknownMemberError("over")
        result = self.round([MemberHeartbeat(member, request.member_epoch, "", owned)])
        error = result.errors.get(request.member_id)
        if error is not None:
            return error
        revision, value = self.stored[request.member_id]
        assignment = metadata_pb2.MemberAssignment.FromString(value)
        response = groups_pb2.HeartbeatResponse(revision=revision, member_epoch=assignment.member_epoch)
        for topic in assignment.topics:
            kept = [
                (number, epoch)
                for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
                if number not in topic.revoking
            ]
            response.assigned.add(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=[number for number, _ in kept],
                assignment_epochs=[epoch for _, epoch in kept],
            )
        return response


class MembersOfOneGroup(RuleBasedStateMachine):
    """Members and the coordinators' transition; answers are lost, sessions end, applications are slow."""

    def __init__(self):
        super().__init__()
        self.coordinators = _Coordinators(5)
        self.members: list[Membership] = []
        self.number = 0
        self.late: list[groups_pb2.HeartbeatRequest] = []

    def draw(self):
        self.number += 1
        return self.number.to_bytes(16, "big")

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def comes(self):
        config = ConsumerConfig(group_id="g")
        self.members.append(Membership(config, ["t"], "here", self.draw, now_ms=0))

    def pick(self, data):
        return data.draw(strategies.sampled_from(self.members))

    @precondition(lambda self: self.members)
    @rule(data=strategies.data(), fate=strategies.sampled_from(["answered", "answered", "lost", "late"]))
    def heartbeats(self, data, fate):
        member = self.pick(data)
        request = member.request()
        if fate == "late":
            self.late.append(request)
        else:
            answered = self.coordinators.heartbeat(request)
        if fate != "answered":
            member.heartbeat_failed(TimedOutError("lost"), request, 0)
        elif isinstance(answered, Exception):
            member.heartbeat_failed(answered, request, 0)
        else:
            member.heartbeat_answered(answered, sent_ms=1)

    @precondition(lambda self: self.late)
    @rule(data=strategies.data())
    def a_late_heartbeat_arrives(self, data):
        request = self.late.pop(data.draw(strategies.integers(0, len(self.late) - 1)))
        if request.member_epoch:
            self.coordinators.heartbeat(request)

    @precondition(lambda self: self.members)
    @rule(data=strategies.data())
    def a_start_is_found(self, data):
        member = self.pick(data)
        for holding in member.to_start()[:2]:
            member.started(holding, InitialPosition(0))

    @precondition(lambda self: self.members)
    @rule(data=strategies.data())
    def the_application_follows(self, data):
        member = self.pick(data)
        events = member.pending_events()
        member.acknowledge_lost(events.lost)
        member.acknowledge_revoked(events.revoked)
        member.acknowledge_assigned(events.assigned)

    @precondition(lambda self: self.members)
    @rule(data=strategies.data(), resolved=strategies.sets(strategies.sampled_from(P)))
    def commits_are_resolved(self, data, resolved):
        self.pick(data).release(lambda where: where in resolved)

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=strategies.data())
    def leaves(self, data):
        member = self.pick(data)
        self.members.remove(member)
        self.coordinators.round(leaving=[MemberDeparture(member.member_id)])

    @precondition(lambda self: self.members)
    @rule(data=strategies.data())
    def a_session_ends(self, data):
        member = self.pick(data)
        self.coordinators.live.discard(member.member_id)
        self.coordinators.round()
        # What it reads until it hears of it is fenced, not prevented: others may read it, too (H66).
        member.heartbeat_failed(UnknownMemberError("over"), member.request(), 0)
        member.acknowledge_lost(member.pending_events().lost)

    @invariant()
    def no_two_members_read_the_same_partition(self):
        read = [where for member in self.members for where in owned(member)]
        assert len(read) == len(set(read))

    @invariant()
    def what_is_read_is_owned(self):
        for member in self.members:
            granted = self.coordinators.group.owned_by(member.member_id)
            for holding in member.owned():
                if holding.where not in member.pending_events().lost:
                    key = (holding.topic_id, holding.where.partition)
                    assert granted.get(key) == holding.assignment_epoch

    def teardown(self):
        """Once all members send heartbeats again, they own and read every partition."""
        for _ in range(12):
            for member in self.members:
                request = member.request()
                answered = self.coordinators.heartbeat(request)
                if isinstance(answered, Exception):
                    member.heartbeat_failed(answered, request, 0)
                else:
                    member.heartbeat_answered(answered, sent_ms=1)
                take_all(member)
                member.release(lambda where: True)
        if self.members:
            assert sorted(where for member in self.members for where in owned(member)) == P[:5]


TestMembersOfOneGroup = MembersOfOneGroup.TestCase
TestMembersOfOneGroup.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_late_heartbeat_gives_up_nothing_that_was_granted_after_it():
    coordinators = _Coordinators(2)
    ids = (number.to_bytes(16, "big") for number in itertools.count(1))
    first, second = (Membership(ConsumerConfig(group_id="g"), ["t"], "", lambda: next(ids), 0) for _ in range(2))

    def beat(member):
        request = member.request()
        member.heartbeat_answered(coordinators.heartbeat(request), sent_ms=1)
        take_all(member)
        member.release(lambda where: True)

    for member in (first, second) * 4:
        beat(member)
    assert (owned(first), owned(second)) == ([P[0]], [P[1]])
    first.request_heartbeat()
    late = first.request()
    coordinators.round(leaving=[MemberDeparture(second.member_id)])
    beat(first)
    assert owned(first) == P[:2]
    second.lose_all()
    second.acknowledge_lost(second.pending_events().lost)
    beat(second)
    assert not owned(second)
    coordinators.heartbeat(late)
    beat(second)
    assert owned(first) == P[:2]
    assert not owned(second)
