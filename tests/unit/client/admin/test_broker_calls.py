"""Which failures of a call to the leaders of a topic are retried, with servers whose answers are written by hand."""

import time

import grpc
import pytest
from headrace.client.admin.operations import AdminOperations
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.operations import Pause, execute
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.errors import NotLeaderError, Outcome, TimedOutError, to_detail
from headrace.wire.ids import TopicPartition

from tests.fakes.failed_call import FailedCallError

TOPIC_ID = bytes(range(16))


class OpeningBroker:
    """Leads four partitions and opens one of them before each ListOffsets; the clock advances in pauses only."""

    def __init__(self, monkeypatch, hangs_at_call=0):
        config = build(AdminConfig, {"bootstrap_servers": "b:1"})
        self.operations = AdminOperations(config, BootstrapClient(config))
        self.asked = []
        self.metadata_requests = 0
        self.now = 0.0
        self.hangs_at_call = hangs_at_call
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def __call__(self, step):
        if isinstance(step, Pause):
            self.now += step.seconds
            return None
        if step.method == "GetMetadata":
            self.metadata_requests += 1
            response = cluster_pb2.GetMetadataResponse(coordinators=["b:1"])
            response.brokers.add(broker_id=1, address="b:1")
            topic = response.topics.add(name="t", topic_id=TOPIC_ID)
            for number in range(4):
                topic.partitions.add(partition=number, leader_id=1, leader_epoch=1)
            return response
        self.asked.append([part.partition for part in step.request.topics[0].partitions])
        if len(self.asked) == self.hangs_at_call:
            self.now += step.timeout
            raise FailedCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "")
        response = broker_pb2.ListOffsetsResponse()
        entry = response.topics.add(topic_id=TOPIC_ID, name="t")
        for number in self.asked[-1]:
            result = entry.partitions.add(partition=number)
            if number >= len(self.asked):
                result.error.CopyFrom(to_detail(NotLeaderError("this broker holds no replica of the partition")))
        return response

    def find(self, timeout):
        return execute(self.operations.find_offsets("t", "latest", timeout=timeout), self)[1]


def test_partitions_that_a_broker_opens_meanwhile_are_asked_again(monkeypatch):
    """Each round reads metadata and asks only for the partitions that are left."""
    broker = OpeningBroker(monkeypatch)
    assert list(broker.find(timeout=60)) == [TopicPartition("t", number) for number in range(4)]
    assert broker.asked == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert broker.metadata_requests == 4


def test_a_broker_that_hangs_at_the_end_does_not_hide_why_the_time_was_used_up(monkeypatch):
    """After rounds with NotLeaderError the last call's TimedOutError is only its cause."""
    broker = OpeningBroker(monkeypatch, hangs_at_call=3)
    with pytest.raises(NotLeaderError) as caught:
        broker.find(timeout=60)
    assert isinstance(caught.value.__cause__, TimedOutError)
    assert caught.value.__notes__ == ["ListOffsets of t: 2 partitions answered, 2 left"]


def test_a_broker_that_hangs_at_once_raises_timed_out(monkeypatch):
    """Without another reason the error is that of the call."""
    with pytest.raises(TimedOutError):
        OpeningBroker(monkeypatch, hangs_at_call=1).find(timeout=60)


def test_a_deletion_that_reached_some_partitions_may_have_been_applied(monkeypatch):
    broker = OpeningBroker(monkeypatch)
    with pytest.raises(NotLeaderError) as caught:
        execute(broker.operations.delete_records("t", dict.fromkeys(range(4), 5), timeout=0.0), broker)
    assert broker.asked == [[0, 1, 2, 3]]
    assert caught.value.outcome == Outcome.UNKNOWN
    with pytest.raises(NotLeaderError) as caught:
        broker.find(timeout=0.0)
    assert caught.value.outcome == Outcome.NOT_APPLIED
