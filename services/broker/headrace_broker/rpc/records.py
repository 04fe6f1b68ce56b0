"""Simple form: lists of `Record` messages instead of batches, for clients without the SDK.

No other code of the broker creates an object per record. The functions run in threads, off the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from headrace.partition.row_writes import identity_of
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import BatchHeader, iter_batches
from headrace.wire.columns import Columns, decode_batch
from headrace.wire.encoding import RowBlocks, column_parts, encode_batch, join_column
from headrace.wire.errors import BatchTooLargeError, CorruptBatchError, HeadraceError, InvalidRequestError
from headrace.wire.typed.json_values import row_of_json
from headrace.wire.typed.row_blocks import blocks_of_rows
from headrace.wire.typed.row_keys import keys_of_blocks
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

MAX_RECORDS = 10_000
MAX_RECORDS_BYTES = 1 << 20
MAX_ANSWER_BYTES = 3 << 20
MAX_PAYLOAD_BYTES = 8 << 20
"""Maximum inflated size of a batch that is read in this form."""
MAX_ROWS_BYTES = 3 * MAX_PAYLOAD_BYTES
"""Maximum memory of the rows of a typed batch that is read in this form."""
MAX_ENTRIES = 100_000
"""Maximum records and headers together of one partition in a request or response."""
_OVERHEAD_BYTES = 32
"""Overhead that is counted per record or header, in addition to its bytes."""


def check_records(records: Sequence[topics_pb2.Record]) -> None:
    """Check a list against the limits of the simple form, before it is encoded.

    Raises:
        BatchTooLargeError: If there are more than 10,000 records, or 100,000 records and headers; use several calls.
    """
    if len(records) > MAX_RECORDS:
        raise BatchTooLargeError(f"{len(records)} records are over the limit of {MAX_RECORDS} of the simple form")
    entries = len(records) + sum(len(record.headers) for record in records)
    if entries > MAX_ENTRIES:
        raise BatchTooLargeError(
            f"{entries} records and headers are over the limit of {MAX_ENTRIES} of the simple form"
        )


def encode_records(partition: broker_pb2.PartitionProduce, now_ms: int, columns: str = "") -> bytes:
    """Return one uncompressed batch of `partition.records`. `columns` are those of a typed topic: values are JSON.

    Raises:
        BatchTooLargeError: If keys, values and headers exceed 1 MiB, or the rows have more than 100,000 values.
        InvalidRequestError: If the producer identity is out of range, or a value is no row of the columns.
    """
    records = partition.records
    size_bytes = 0
    for record in records:
        size_bytes += len(record.key) + len(record.value)
        size_bytes += sum(len(header.key) + len(header.value) for header in record.headers)
    if size_bytes > MAX_RECORDS_BYTES:
        raise BatchTooLargeError(f"{size_bytes} bytes of records are over the limit of {MAX_RECORDS_BYTES}")
    identity = identity_of(partition.producer if partition.HasField("producer") else None)
    keys = [record.key if record.HasField("key") else None for record in records]
    if any(not header.HasField("value") for record in records for header in record.headers):
        raise InvalidRequestError("a header has no value", action="Send an empty value for a header without one.")
    headers = [[(header.key, header.value) for header in record.headers] for record in records]
    timestamps = [record.timestamp_ms or now_ms for record in records]
    one_time = len(set(timestamps)) == 1
    rows: RowBlocks | None = None
    if columns:
        rows, keys = _rows(records, parse_columns(columns))
    has_keys = any(key is not None for key in keys)
    fields: dict[str, Any] = {
        "base_timestamp_ms": timestamps[0],
        "headers": headers if any(headers) else None,
        "timestamps_ms": None if one_time else timestamps,
        "producer_id": identity[0],
        "producer_epoch": identity[1],
        "base_sequence": identity[2],
    }
    if rows is not None:
        return b"".join(column_parts(rows, join_column("key", keys) if has_keys else None, **fields))
    values = [record.value if record.HasField("value") else None for record in records]
    return encode_batch(values, keys=keys if has_keys else None, **fields)


def _rows(records: Sequence[topics_pb2.Record], columns: TopicColumns) -> tuple[RowBlocks, list[bytes | None]]:
    """Return the rows of values that are JSON objects, and the records' keys."""
    rows = [_row(place, record.value, columns) for place, record in enumerate(records)]
    blocks = blocks_of_rows(rows, columns, max_values=MAX_ENTRIES, max_bytes=MAX_PAYLOAD_BYTES)
    if not columns.keys:
        return blocks, [record.key if record.HasField("key") else None for record in records]
    if any(record.HasField("key") for record in records):
        names = ", ".join(column.name for column in columns.keys)
        raise InvalidRequestError(f"a key is given, but the key is {names}", action="Leave the key out.")
    key_blocks = [block for block, column in zip(blocks.blocks, columns.current, strict=True) if column.is_key]
    return blocks, [*keys_of_blocks(key_blocks, [column.type for column in columns.keys], len(rows))]


def _row(place: int, value: bytes, columns: TopicColumns) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidRequestError(
            f"row {place}: the topic is typed, and the value is no JSON object", action=f"Its columns are {columns}."
        )
    try:
        return row_of_json(document, columns)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"row {place}: {error.message}", action=error.action) from error


def decode_records(batches: bytes, offset: int, *, max_bytes: int) -> tuple[list[topics_pb2.Record], int]:
    """Return the records of whole batches from `offset` on, at most `max_bytes` but at least one, and the next offset.

    The number of records is determined before any object is created.

    Raises:
        CorruptBatchError: If the columns of the first batch are malformed.
        BatchTooLargeError: If the first batch exceeds the limit of this form.
    """
    records: list[topics_pb2.Record] = []
    next_offset, entries = offset, 0
    for header, batch in iter_batches(batches):
        if header.end_offset <= next_offset:
            continue
        try:
            columns = _decode(header, batch)
        except HeadraceError:
            if records:
                break  # Return the records before it; the next call raises.
            raise
        start = columns.index_of(next_offset)
        if start == columns.record_count:
            next_offset = header.end_offset
            continue
        end, size_bytes, taken = _fitting(columns, start, max_bytes, MAX_ENTRIES - entries, first=not records)
        records += _make_records(columns, start, end)
        next_offset = columns.offset_after(end)
        max_bytes -= size_bytes
        entries += taken
        if end < header.record_count:
            break
    return records, next_offset


def _decode(header: BatchHeader, batch: memoryview) -> Columns:
    if header.payload_bytes > MAX_PAYLOAD_BYTES:
        raise BatchTooLargeError(
            f"the batch at offset {header.base_offset} has a payload of {header.payload_bytes} bytes, over the simple "
            f"form's limit of {MAX_PAYLOAD_BYTES}",
            action=f"Fetch batches by leaving out as_records, or continue at offset {header.end_offset}.",
        )
    try:
        columns = decode_batch(batch, max_payload_bytes=MAX_PAYLOAD_BYTES)
        size_bytes = 0 if columns.typed is None else columns.typed.object_bytes()
    except CorruptBatchError as error:
        raise CorruptBatchError(
            f"the batch at offset {header.base_offset} cannot be decoded: {error.message}",
            action=f"Continue at offset {header.end_offset}; the records of this batch cannot be read.",
        ) from error
    if size_bytes > MAX_ROWS_BYTES:
        raise BatchTooLargeError(
            f"the rows of the batch at offset {header.base_offset} may take {size_bytes} bytes as JSON, over the "
            f"simple form's limit of {MAX_ROWS_BYTES}",
            action=f"Fetch batches by leaving out as_records, or continue at offset {header.end_offset}.",
        )
    return columns


def _fitting(columns: Columns, start: int, max_bytes: int, max_entries: int, *, first: bool) -> tuple[int, int, int]:
    """Return the end of the records from `start` on that fit, their bytes, and their records and headers together."""
    sizes = np.diff(columns.value_column.offsets[start:]).astype(np.int64) + _OVERHEAD_BYTES
    counts = np.ones(len(sizes), np.int64)
    if columns.key_column is not None:
        sizes += np.diff(columns.key_column.offsets[start:])
    if columns.header_columns is not None:
        each = columns.header_columns
        ends = each.list_offsets[start:]
        counts += np.diff(ends)
        sizes += np.diff(ends) * _OVERHEAD_BYTES + np.diff(each.keys.offsets[ends]) + np.diff(each.values.offsets[ends])
    sizes, counts = np.cumsum(sizes), np.cumsum(counts)
    fits = int(min(np.searchsorted(sizes, max_bytes, "right"), np.searchsorted(counts, max_entries, "right")))
    fits = max(fits, 1) if first else fits
    return (start + fits, int(sizes[fits - 1]), int(counts[fits - 1])) if fits else (start, 0, 0)


def _make_records(columns: Columns, start: int, end: int) -> list[topics_pb2.Record]:
    keys = [None] * (end - start) if columns.key_column is None else columns.key_column.part(start, end).to_list()
    times = columns.timestamps_ms
    rows = zip(
        columns.offsets(start, end),
        keys,
        columns.value_column.part(start, end).to_list(),
        [columns.header.base_timestamp_ms] * (end - start) if times is None else times[start:end].tolist(),
        columns.headers(start, end),
        strict=True,
    )
    return [
        topics_pb2.Record(
            key=key,
            value=value,
            timestamp_ms=timestamp_ms,
            offset=offset,
            headers=[topics_pb2.RecordHeader(key=name, value=content) for name, content in headers],
        )
        for offset, key, value, timestamp_ms, headers in rows
    ]
