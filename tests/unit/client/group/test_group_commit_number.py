"""The numbers of a member's commits: each new one has a higher one, one that is sent again keeps its own (H64)."""

from __future__ import annotations

from headrace.client.group.offsets import CommitQueue, CommitTicket, OffsetAndMetadata
from headrace.v1 import groups_pb2
from headrace.wire.ids import TopicPartition

WHERE = TopicPartition("t", 0)
MEMBER = b"m" * 16


def put(queue, offset):
    queue.put(CommitTicket({WHERE: OffsetAndMetadata(offset)}), {WHERE: b"t" * 16})


def answered(queue, request):
    answer = groups_pb2.CommitOffsetsResponse()
    answer.topics.add(topic_id=b"t" * 16).partitions.add(partition=0)
    assert queue.is_flying(request)
    queue.answered(answer)


def test_a_commit_that_is_sent_again_keeps_its_number():
    queue = CommitQueue("c", "g")
    put(queue, 5)
    first = queue.request(MEMBER, 1)
    put(queue, 7)
    assert queue.request(MEMBER, 1).commit_number == first.commit_number == 1
    answered(queue, first)
    assert queue.request(MEMBER, 1).commit_number == 2


def test_numbers_rise_also_after_what_was_dropped():
    queue = CommitQueue("c", "g")
    put(queue, 5)
    dropped = queue.request(MEMBER, 1)
    queue.drop_all()
    put(queue, 3)
    assert queue.request(MEMBER, 2).commit_number > dropped.commit_number
