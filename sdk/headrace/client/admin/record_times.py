"""Timestamps of single records by offset, from which `Admin` computes the age of the first unread record. No I/O.

Servers have no look-up of a time by offset, so one batch per partition, with the record, is fetched and decoded.
"""

from collections.abc import Mapping, Sequence

from headrace.client.admin.operations import AdminOperations
from headrace.client.base.config import MAX_MESSAGE_BYTES
from headrace.client.base.operations import Operation
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import check_batch, iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.errors import BatchTooLargeError, CorruptBatchError, OffsetOutOfRangeError, UnsupportedCodecError

ANSWER_BYTES = 8 << 20
"""Maximum bytes of one response; partitions that do not fit are requested again."""
ROUND_PARTITIONS = 500
MAX_PAYLOAD_BYTES = 64 << 20
"""Default limit of brokers; larger batches are not decompressed."""
MAX_RECORDS = 2**31 - 1


def record_times(
    admin: AdminOperations, client_id: str, topic: str, offsets: Mapping[int, int], timeout: float | None
) -> Operation[dict[int, int]]:
    """Return the timestamps of records in ms since 1970, by partition.

    A partition is omitted if the record was deleted in the meantime, its batch is corrupt or too large, or its codec is
    not installed.

    Args:
        admin: operations that find the leaders.
        client_id: id of the caller.
        topic: name of the topic.
        offsets: partition to the record's offset.
        timeout: in seconds, for one round of requests; `None` means the default.
    """
    found: dict[int, int] = {}
    for partition, batches in (yield from batches_at(admin, client_id, topic, offsets, timeout)).items():
        when = timestamp_of(batches, offsets[partition])
        if when is not None:
            found[partition] = when
    return found


def batches_at(
    admin: AdminOperations,
    client_id: str,
    topic: str,
    offsets: Mapping[int, int],
    timeout: float | None,
    topic_id: bytes = b"",
) -> Operation[dict[int, bytes]]:
    """Return the batch that holds a record, or the first one after it, by partition; omitted if there is none.

    Arguments as in `record_times`; `topic_id` is that of the incarnation of the topic, empty means any.
    """
    found: dict[int, bytes] = {}
    numbers = list(offsets)
    waiting = [numbers[at : at + ROUND_PARTITIONS] for at in range(0, len(numbers), ROUND_PARTITIONS)]
    while waiting:
        some = waiting.pop()

        def build_request(parts: list[tuple[int, int]], topic_id: bytes) -> object:
            return _request(client_id, topic_id, [(partition, epoch, offsets[partition]) for partition, epoch in parts])

        try:
            _, results = yield from admin.brokers.at_leaders("Fetch", topic, some, build_request, timeout, topic_id)
        except OffsetOutOfRangeError:  # The record of one of them was deleted.
            if len(some) > 1:
                waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
            continue
        answered = {result.partition: result.batches for result in results if result.batches}
        found.update(answered)
        if answered and len(answered) < len(some):  # The answer had no room for all of them.
            waiting.append([partition for partition in some if partition not in answered])
    return found


def timestamp_of(batches: bytes, offset: int) -> int | None:
    """Return the timestamp of the record at `offset`, or of the first one after it; `None` if it cannot be read."""
    try:
        for header, batch in iter_batches(batches):
            if header.end_offset <= offset:
                continue
            check_batch(
                batch,
                max_batch_bytes=MAX_MESSAGE_BYTES,
                max_records=MAX_RECORDS,
                max_payload_bytes=MAX_PAYLOAD_BYTES,
            )
            if header.base_timestamp_ms == header.max_timestamp_ms:
                return header.base_timestamp_ms
            columns = decode_batch(batch, max_payload_bytes=MAX_PAYLOAD_BYTES)
            assert columns.timestamps_ms is not None, "a batch that spans time has a column of times"
            return int(columns.timestamps_ms[min(columns.index_of(offset), columns.record_count - 1)])
    except (BatchTooLargeError, CorruptBatchError, UnsupportedCodecError):
        return None
    return None


def _request(client_id: str, topic_id: bytes, parts: Sequence[tuple[int, int, int]]) -> broker_pb2.FetchRequest:
    """Return a request for one batch of each partition: (partition, leader epoch, offset)."""
    request = broker_pb2.FetchRequest(client_id=client_id, max_bytes=ANSWER_BYTES)
    entry = request.topics.add(topic=topics_pb2.TopicRef(topic_id=topic_id))
    for partition, epoch, offset in parts:
        entry.partitions.add(partition=partition, offset=offset, max_bytes=1, leader_epoch=epoch)
    return request
