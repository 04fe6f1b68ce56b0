"""Offset look-up by time: by segment, time index, batch header, and by record if nothing has to be decompressed."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from headrace.wire.batch import BatchFlags, BatchHeader, Codec
from headrace.wire.columns import decode_batch
from headrace.wire.ids import Offset


class TimestampKind(Enum):
    """Timestamp that a look-up uses."""

    APPEND = "append"  # the leader's clock when the batch was appended
    RECORD = "record"  # the producer's timestamp of the record


class TimestampedOffset(NamedTuple):
    """Result of a look-up by timestamp."""

    offset: Offset
    timestamp_ms: int


def batch_timestamp(header: BatchHeader, kind: TimestampKind) -> int:
    """Return the largest timestamp of a batch, in ms."""
    return header.append_timestamp_ms if kind is TimestampKind.APPEND else header.max_timestamp_ms


def has_plain_timestamps(header: BatchHeader) -> bool:
    """Return whether the records' own timestamps can be read without decompression."""
    return bool(header.flags & BatchFlags.RECORD_TIMESTAMPS) and header.codec == Codec.NONE


def first_record(
    batch: bytes, header: BatchHeader, timestamp_ms: int, start_offset: Offset
) -> TimestampedOffset | None:
    """Return the batch's first record from `start_offset` on at `timestamp_ms` or later. Raises CorruptBatchError."""
    columns = decode_batch(batch, max_payload_bytes=header.payload_bytes)
    timestamps = columns.timestamps_ms
    assert timestamps is not None, "the batch is flagged to have timestamps"
    offsets = columns.offset_array(0, columns.record_count)
    matches = np.flatnonzero((timestamps >= timestamp_ms) & (offsets >= start_offset))
    if not matches.size:
        return None
    at = matches[0]
    return TimestampedOffset(Offset(int(offsets[at])), int(timestamps[at]))
