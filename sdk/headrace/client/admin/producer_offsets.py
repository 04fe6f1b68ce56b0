"""Offset ranges of an idempotent producer's records, or of its family's, in the partitions of a topic. No I/O."""

from typing import NamedTuple

from headrace.client.admin import rpc
from headrace.client.admin.operations import AdminOperations
from headrace.client.base.operations import Operation
from headrace.v1 import broker_pb2
from headrace.wire.ids import TopicPartition


class StoredOffsets(NamedTuple):
    """Range of the records in one partition; records of other producers may be within it."""

    start: int
    """-1 means that there are none."""
    end: int
    """Exclusive; may exceed the high watermark temporarily."""


def producer_offsets(
    admin: AdminOperations, client_id: str, topic: str, producer_id: int, producer_epoch: int, *, family: bool
) -> Operation[dict[TopicPartition, StoredOffsets]]:
    """Look up the records that a producer id has stored in its epoch, in all partitions of the topic.

    Leaders can answer while they remember the producer's sequences (`producer_expiry_ms`).

    Args:
        admin: operations that find the leaders.
        client_id: id of the caller.
        topic: name of the topic.
        producer_id: producer of the records.
        producer_epoch: only records of this epoch, and only while it is the producer's newest.
        family: look up all producer ids that differ in the lowest `PRODUCER_FAMILY_BITS` bits only.

    Raises:
        InvalidRequestError: If a broker's release does not support the look-up.
    """
    spec = broker_pb2.OFFSET_SPEC_PRODUCER_FAMILY if family else broker_pb2.OFFSET_SPEC_PRODUCER
    producer = broker_pb2.ProducerIdentity(producer_id=producer_id, producer_epoch=producer_epoch)

    def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> broker_pb2.ListOffsetsRequest:
        request = broker_pb2.ListOffsetsRequest(client_id=client_id)
        entry = request.topics.add(topic=rpc.by_id(topic_id))
        for partition, epoch in parts:
            entry.partitions.add(partition=partition, spec=spec, leader_epoch=epoch, producer=producer)
        return request

    _, results = yield from admin.brokers.at_leaders("ListOffsets", topic, None, build_request, None, b"")
    found = {
        TopicPartition(topic, result.partition): StoredOffsets(result.offset, result.end_offset) for result in results
    }
    return dict(sorted(found.items()))
