"""Where a member begins in a partition: never before what it or anybody else has committed."""

from __future__ import annotations

import pytest
from headrace import OffsetAndMetadata, TopicPartition
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.operations import execute
from headrace.client.group.initial_offsets import InitialOffsets
from headrace.client.group.membership import InitialPosition, OwnedPartition
from headrace.v1 import groups_pb2

TOPIC = b"t" * 16
P0 = TopicPartition("t", 0)


class Coordinator:
    """Answers every look-up with one stored offset."""

    def __init__(self, offset):
        self.offset = offset

    def ask(self, method, request, timeout):
        return (yield request)

    def answered(self):
        pass

    def failed(self):
        raise AssertionError("it answers")

    def answer(self, request):
        response = groups_pb2.FetchOffsetsResponse()
        for topic in request.topics:
            entry = response.topics.add(topic_id=topic.topic_id, name=topic.name)
            for number in topic.partitions:
                entry.partitions.add(partition=number, offset=self.offset, leader_epoch=2, metadata="m")
        return response


@pytest.mark.parametrize(
    ("assignment_epoch", "start"),
    [(3, InitialPosition(40, 5, "", is_committed=True)), (4, InitialPosition(10, 2, "m", is_committed=True))],
)
def test_what_comes_back_in_the_same_term_starts_at_our_own_commit(assignment_epoch, start):
    """A coordinator whose view has the assignment may still lack a commit that another one has acknowledged to us."""
    initial_offsets = InitialOffsets(ConsumerConfig(group_id="g"), admin=None)
    initial_offsets.remember(OwnedPartition(P0, TOPIC, 3, 7), OffsetAndMetadata(40, 5))
    holding = OwnedPartition(P0, TOPIC, assignment_epoch, 9)
    coordinator = Coordinator(10)
    assert execute(initial_offsets.find(coordinator, [holding]), coordinator.answer) == [(holding, start)]


def test_what_was_remembered_counts_once():
    initial_offsets = InitialOffsets(ConsumerConfig(group_id="g"), admin=None)
    holding = OwnedPartition(P0, TOPIC, 3, 7)
    initial_offsets.remember(holding, OffsetAndMetadata(40))
    coordinator = Coordinator(50)
    for offset in (40, 50):
        ((_, start),) = execute(initial_offsets.find(coordinator, [holding]), coordinator.answer)
        assert start.offset == offset
