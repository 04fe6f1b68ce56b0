"""Between which offsets of a topic's partitions an idempotent producer, or its family, has stored records. No I/O."""

from typing import NamedTuple

from headrace.client.admin import rpc
from headrace.client.admin.operations import AdminOperations
from headrace.client.base.operations import Operation
from headrace.v1 import broker_pb2
from headrace.wire.ids import TopicPartition


class StoredOffsets(NamedTuple):
    """Where the records of one partition are; those of others may lie between them."""

    start: int
    """-1: there are none."""
    end: int
    """Exclusive; may be beyond the high watermark for a moment."""


def producer_offsets(
    admin: AdminOperations, client_id: str, topic: str, producer_id: int, producer_epoch: int, *, family: bool
) -> Operation[dict[TopicPartition, StoredOffsets]]:
    """Look up what a producer id has stored in its epoch, by partition, all partitions of the topic.

    Leaders know it as long as they remember the producer's sequences (`producer_expiry_ms`).

    Args:
        admin: what knows the leaders.
        client_id: names the caller.
        topic: its name.
        producer_id: whose records.
        producer_epoch: only those of this epoch, and only while it is the producer's newest.
        family: look up all own producer ids that differ in the lowest `PRODUCER_FAMILY_BITS` bits alone.

    Raises:
        InvalidRequestError: a broker is of a release that cannot tell.
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
