"""What a member's loops do where no coordinator answers, and where the application stalls."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import grpc
import pytest
from headrace.client.base.background import LongPollCall, WaitSignal
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.operations import Call, Pause
from headrace.client.group import member as group_member
from headrace.client.group import session as group_session
from headrace.client.group.member import ConsumerMember
from headrace.client.group.membership import Phase
from headrace.client.group.offsets import CommitTicket, OffsetAndMetadata
from headrace.client.group.session import GroupSession
from headrace.v1 import groups_pb2
from headrace.wire.errors import ThrottledError
from headrace.wire.ids import TopicPartition

from tests.fakes.failed_call import FailedCallError

TOPIC = b"t" * 16
P0 = TopicPartition("t", 0)
REFUSED = FailedCallError(grpc.StatusCode.UNAVAILABLE, "connection refused")


class Background:
    """Its operations are taken by hand."""

    def make_signal(self):
        return SimpleNamespace(set=lambda: None, clear=lambda: None)

    def make_changes(self, _lock):
        return SimpleNamespace(notify_all=lambda: None)


def fetcher():
    return SimpleNamespace(
        background=Background(), admin=None, cursor=None, engine=SimpleNamespace(), interrupt=lambda: None
    )


@pytest.fixture
def session():
    """Of a member that has been assigned one partition."""
    session = GroupSession(ConsumerConfig(group_id="g", retry_backoff_ms=100), ["t"], fetcher())
    session._bootstrap._coordinators = ["c1:1", "c2:1"]
    session.membership.request()
    answer = groups_pb2.HeartbeatResponse(member_epoch=1, revision=1, heartbeat_interval_ms=3_000)
    answer.assigned.add(topic_id=TOPIC, name="t", partitions=[0], assignment_epochs=[1])
    session.membership.heartbeat_answered(answer, sent_ms=10)
    return session


def steps_after(operation, error):
    """Fail each call of an operation; yield the other steps, with how many calls came before each."""
    calls = 0
    step = next(operation)
    while True:
        if isinstance(step, Call | LongPollCall):
            calls += 1
            step = operation.throw(error)
        else:
            yield step, calls
            step = operation.send(None)


@pytest.mark.parametrize("error", [REFUSED, ThrottledError("slow")])
@pytest.mark.parametrize("loop", ["heartbeats", "committing", "starting"])
def test_a_failed_call_is_repeated_after_a_pause_that_no_news_cut_short(session, loop, error):
    """While no coordinator answers, each failure brings news to the loop itself: there is still something to do."""
    if loop == "committing":
        session.membership.started(session.membership.to_start()[0], SimpleNamespace(offset=0))
        session.membership.acknowledge_assigned(session.membership.pending_events().assigned)
        session.put(CommitTicket({P0: OffsetAndMetadata(3)}))
    steps = steps_after(getattr(session, loop)(), error)
    seen = [next(steps) for _ in range(4)]
    assert all(isinstance(step, Pause) and step.seconds > 0 for step, _ in seen), seen
    calls = [count for _, count in seen]
    assert calls == sorted(set(calls))


class ContendedLock:
    """A lock that another thread always gets first, until it has nothing more to do."""

    def __init__(self, first):
        self._first = first
        self._lock = threading.RLock()

    def __enter__(self):
        if self._first:
            self._first.pop()()
        self._lock.acquire()

    def __exit__(self, *exc):
        self._lock.release()


@pytest.fixture
def stalled(monkeypatch):
    """A member whose application has exceeded processing_timeout_ms."""
    now_ms = [0]
    for module in (group_member, group_session):
        monkeypatch.setattr(module, "boot_ms", lambda: now_ms[0])
    config = ConsumerConfig(group_id="g", processing_timeout_ms=500, leave_on_processing_timeout=True)
    member = ConsumerMember(config, ["t"], fetcher(), None)
    member.session._bootstrap._coordinators = ["c1:1"]
    now_ms[0] = 1_000
    return member


def test_a_poll_that_begins_as_the_stall_is_noticed_keeps_the_membership(stalled):
    """The application waits in the poll without a limit: nothing else would join again."""
    stalled.session.lock = ContendedLock([stalled.on_poll_begin])
    step = next(stalled.session.heartbeats())
    assert step.call.method == "Heartbeat"
    assert stalled.membership.phase is Phase.JOINING


def test_a_poll_that_begins_after_the_stall_joins_again(stalled):
    heartbeats = stalled.session.heartbeats()
    assert next(heartbeats).method == "LeaveGroup"
    stalled.on_poll_begin()
    assert heartbeats.send(None).call.method == "Heartbeat"


def test_a_stalled_member_stays_away_until_the_application_polls(stalled):
    heartbeats = stalled.session.heartbeats()
    next(heartbeats)
    assert isinstance(heartbeats.send(None), WaitSignal)
    stalled.on_poll_begin()
    assert heartbeats.send(None).call.method == "Heartbeat"
