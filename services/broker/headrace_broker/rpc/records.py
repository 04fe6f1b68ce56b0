"""The simple form: lists of `Record` messages in place of batches, for clients without the SDK.

The only place in the broker that makes an object a record. The functions run in a thread, off the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import BatchTooLargeError, InvalidRequestError

MAX_RECORDS = 10_000
MAX_RECORDS_BYTES = 1 << 20
MAX_ANSWER_BYTES = 3 << 20
_RECORD_OVERHEAD_BYTES = 32


def check_records(records: Sequence[topics_pb2.Record]) -> None:
    """Refuse a list over the limits of the simple form, before anything is encoded.

    Raises:
        BatchTooLargeError: more than 10,000 records; split them over several calls.
    """
    if len(records) > MAX_RECORDS:
        raise BatchTooLargeError(f"{len(records)} records are over the limit of {MAX_RECORDS} of the simple form")


def encode_records(partition: broker_pb2.PartitionProduce, now_ms: int) -> bytes:
    """Make one uncompressed batch of `partition.records`.

    Raises:
        BatchTooLargeError: more than 1 MiB of keys, values and headers.
        InvalidRequestError: a producer identity out of range.
    """
    records = partition.records
    size_bytes = 0
    for record in records:
        size_bytes += len(record.key) + len(record.value)
        size_bytes += sum(len(header.key) + len(header.value) for header in record.headers)
    if size_bytes > MAX_RECORDS_BYTES:
        raise BatchTooLargeError(f"{size_bytes} bytes of records are over the limit of {MAX_RECORDS_BYTES}")
    identity = (-1, -1, -1)
    if partition.HasField("producer"):
        producer = partition.producer
        identity = (producer.producer_id, producer.producer_epoch, producer.base_sequence)
        if min(identity) < 0:
            raise InvalidRequestError("producer_id, producer_epoch and base_sequence must not be negative")
    keys = [record.key if record.HasField("key") else None for record in records]
    if any(not header.HasField("value") for record in records for header in record.headers):
        raise InvalidRequestError("a header has no value", action="Send an empty value where there is none.")
    headers = [[(header.key, header.value) for header in record.headers] for record in records]
    timestamps = [record.timestamp_ms or now_ms for record in records]
    one_time = len(set(timestamps)) == 1
    return encode_batch(
        [record.value if record.HasField("value") else None for record in records],
        base_timestamp_ms=timestamps[0],
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        timestamps_ms=None if one_time else timestamps,
        producer_id=identity[0],
        producer_epoch=identity[1],
        base_sequence=identity[2],
    )


def decode_records(
    batches: bytes, offset: int, *, max_bytes: int, max_payload_bytes: int
) -> tuple[list[topics_pb2.Record], int]:
    """Inflate whole batches into records from `offset` on: at most `max_bytes`, at least one; and where to go on.

    Raises:
        CorruptBatchError: columns that are not what the format says; only where the first batch is so.
    """
    records: list[topics_pb2.Record] = []
    next_offset, size_bytes = offset, 0
    for header, batch in iter_batches(batches):
        if header.end_offset <= next_offset:
            continue
        columns = decode_batch(batch, max_payload_bytes=max_payload_bytes)
        rows = zip(
            columns.offsets(), columns.keys(), columns.values(), columns.timestamps(), columns.headers(), strict=True
        )
        for record_offset, key, value, timestamp_ms, headers in rows:
            if record_offset < next_offset:
                continue
            record = topics_pb2.Record(
                key=key,
                value=value,
                timestamp_ms=timestamp_ms,
                offset=record_offset,
                headers=[topics_pb2.RecordHeader(key=name, value=content) for name, content in headers],
            )
            size_bytes += record.ByteSize() + _RECORD_OVERHEAD_BYTES
            if records and size_bytes > max_bytes:
                return records, next_offset
            records.append(record)
            next_offset = record_offset + 1
    return records, next_offset
