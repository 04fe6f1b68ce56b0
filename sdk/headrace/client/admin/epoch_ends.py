"""Ends of leader epochs in a log, and leader epochs of records, from which a caller finds replaced records.

A record is one (offset, leader epoch): a log that has another epoch at an offset has another record there (KIP-320). No
I/O.
"""

from collections.abc import Mapping

from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.record_times import batches_at
from headrace.client.base.operations import Operation
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.errors import CorruptBatchError, OffsetOutOfRangeError

_NO_RECORD = 2**62
"""Offset beyond every log, for which a broker returns the point of divergence and no data."""


def truncation_points(
    admin: AdminOperations, client_id: str, topic: str, read: Mapping[int, tuple[int, int]], topic_id: bytes
) -> Operation[dict[int, int]]:
    """Return, by partition, the offset from which records that were read are lost or replaced; omitted if none are.

    Partitions whose epoch was removed by retention are omitted as well, because nothing is known about them.

    Args:
        admin: operations that find the leaders.
        client_id: id of the caller.
        topic: name of the topic.
        read: partition to the offset up to which it was read, and the leader epoch of the record before it.
        topic_id: id of the topic that was read.

    Raises:
        UnknownTopicIdError: If the topic was deleted and created again.
    """
    found: dict[int, int] = {}
    waiting = [list(read)]
    while waiting:
        some = waiting.pop()

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> broker_pb2.FetchRequest:
            request = broker_pb2.FetchRequest(client_id=client_id, max_bytes=1)
            entry = request.topics.add(topic=topics_pb2.TopicRef(topic_id=topic_id))
            for partition, epoch in parts:
                entry.partitions.add(
                    partition=partition,
                    offset=_NO_RECORD,
                    max_bytes=1,
                    leader_epoch=epoch,
                    last_epoch=read[partition][1],
                )
            return request

        try:
            _, results = yield from admin.brokers.at_leaders("Fetch", topic, some, build_request, None, topic_id)
        except OffsetOutOfRangeError:  # The log of one of them has no epoch as old as this.
            if len(some) > 1:
                waiting += [[partition] for partition in some]
            continue
        for result in results:
            offset, epoch = read[result.partition]
            end = int(result.diverged.end_offset)
            if result.HasField("diverged") and (result.diverged.leader_epoch != epoch or end < offset):
                found[result.partition] = min(end, offset)
    return found


def record_epochs(
    admin: AdminOperations, client_id: str, topic: str, offsets: Mapping[int, int], topic_id: bytes
) -> Operation[dict[int, int]]:
    """Return the leader epochs of records by partition; omitted if the record was deleted or is corrupt."""
    found: dict[int, int] = {}
    for partition, batches in (yield from batches_at(admin, client_id, topic, offsets, None, topic_id)).items():
        try:
            for header, _ in iter_batches(batches):
                if header.base_offset <= offsets[partition] < header.end_offset:
                    found[partition] = header.leader_epoch
                    break
        except CorruptBatchError:
            continue
    return found
