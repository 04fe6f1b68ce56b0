"""What a member's loops do where no coordinator answers."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import pytest
from headrace.client.base.background import LongPollCall
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.operations import Call, Pause
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


@pytest.fixture
def session():
    """Of a member that has been assigned one partition."""
    fetcher = SimpleNamespace(background=Background(), admin=None, cursor=None, interrupt=lambda: None)
    session = GroupSession(ConsumerConfig(group_id="g", retry_backoff_ms=100), ["t"], fetcher)
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
