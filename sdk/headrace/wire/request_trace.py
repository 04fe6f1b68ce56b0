"""Blocks of a request trace: what a table's brokers record of its requests in `__table_trace`, never a key or value.

A block is the value of one record. It has the sampled requests of one table at one server, as columns, so that a
reader views a whole block with numpy without a loop. Numbers are little-endian and every column is aligned to 8 bytes.
The record batch around a block has the checksum; `decode_block` still accepts any bytes and refuses damaged ones.

    offset size field              meaning
     0     1    version            uint8   1
     1     1    table_bytes        uint8   length of the table's name, 1 to 249
     2     2    reserved           zero
     4     4    request_count      uint32  n, 1 to 32,768
     8     8    base_time_us       int64   the earliest time of the block, microseconds since 1970; until the year 9999
    16    16    table_id           topic id of the table
    32     4    server_id          int32   broker that served the requests; -1 in a generated trace
    36     4    reserved           zero
    40     8    sample_threshold   uint64  keys below it are sampled, 1 to 2^32: the sampled fraction times 2^32
    48     8    seen_requests      uint64  requests since the block before, sampled or not
    56     8    dropped_requests   uint64  requests among them that were sampled and not recorded: the buffer was full
    64     -    table              the table's name, which is that of a topic, then zeros up to a multiple of 8

    column              meaning; each begins at a multiple of 8, with zeros before it
    key_hash    uint64  keyed BLAKE2b of the key, 8 bytes; other servers of the cluster compute the same
    time_us     uint32  arrival of the request after base_time_us
    gap_us      uint32  time from the arrival of the table's request before it at this server, sampled or not, to its
                        own; at most 2^32 - 1, which also means unknown
    latency_us  uint32  time until the answer, at most 2^32 - 1; 0 means not measured
    value_bytes uint32  size of the value that was written or returned; 0 without one
    key_bytes   uint16  size of the key, at most 65,535
    operation   uint8   1 get, 2 put, also of a row whose columns it deletes, 3 delete of a row, 4 scan,
                        5 compare_and_put, also a delete with a version that was refused
    outcome     uint8   0 done, 1 hit: the row exists, if without the columns that were asked for, 2 miss of an
                        unknown cause, 3 miss: never written, 4 miss: deleted, 5 miss: expired, 6 conflict: the version
                        of a compare_and_put was not the newest

**Keys are sampled, not requests**: either every request of a key is in the trace or none. So the popularity of a
sampled key, its reuse periods and the causes of its misses are exact; numbers of keys and reuse distances scale by the
fraction (SHARDS: Waldspurger et al., FAST 2015). A sample of requests would have gaps in the history of each key: at
1 % most keys would seem to be requested once, reuse periods would grow a hundredfold, and no cause would be known.
The cost is that a few popular keys are either in the sample or not. `gap_us` counts all requests and is not affected.

Requests are those of `TableService`: reads, and writes of single rows. Rows that arrive as batches of records, by
`put_many` or any producer, are not recorded: to sample the key of each would cost a leader a tenth of what it takes to
apply the row, whatever the fraction.

The sample is drawn by CRC-32 of the key, which costs a fraction of the keyed hash; the hash of a key is keyed with the
cluster's secret and the table's id, so that a reader without the secret cannot test whether a key is in a trace.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.wire.batch import MAX_TIMESTAMP_MS
from headrace.wire.errors import InvalidTopicNameError
from headrace.wire.topic_names import MAX_TOPIC_NAME_CHARACTERS, check_topic_name

TRACE_TOPIC = "__table_trace"
VERSION = 1
HEADER = struct.Struct("<BBHIq16siIQQQ")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES
MAX_BLOCK_REQUESTS = 32_768
MAX_TABLE_BYTES = MAX_TOPIC_NAME_CHARACTERS
ALL_KEYS = 1 << 32
"""`sample_threshold` of a trace of all keys."""
UNKNOWN_GAP_US = (1 << 32) - 1
_MAX_UINT32 = (1 << 32) - 1
_MAX_UINT16 = (1 << 16) - 1
_HALF_SPAN_US = 1 << 31
_MANY_KEYS = 30
"""Keys of which a sample is drawn with numpy."""
_MIX = 0x9E3779B1
"""Odd factor of Fibonacci hashing (2^32 divided by the golden ratio): makes the sample independent of partitions,
which are the remainder of the same CRC."""
COLUMNS: dict[str, np.dtype[Any]] = {
    "key_hash": np.dtype("<u8"),
    "time_us": np.dtype("<u4"),
    "gap_us": np.dtype("<u4"),
    "latency_us": np.dtype("<u4"),
    "value_bytes": np.dtype("<u4"),
    "key_bytes": np.dtype("<u2"),
    "operation": np.dtype("u1"),
    "outcome": np.dtype("u1"),
}
"""Columns of a block, in order."""
_ROW = np.dtype([(name, "<i8" if name == "time_us" else dtype) for name, dtype in COLUMNS.items()])
"""A request of a `TraceBuffer`: `time_us` since 1970."""


class TableOperation(IntEnum):
    """TableOperation of a request on one key; a request for many keys is recorded once for each."""

    GET = 1
    PUT = 2
    DELETE = 3
    SCAN = 4
    COMPARE_AND_PUT = 5


class RequestOutcome(IntEnum):
    """What became of a request."""

    DONE = 0
    HIT = 1
    MISS = 2
    MISS_NEVER_WRITTEN = 3
    MISS_DELETED = 4
    MISS_EXPIRED = 5
    CONFLICT = 6


class TraceFormatError(ValueError):
    """The bytes are not a block of a request trace; a reader skips the record and counts it."""


class TraceColumns(NamedTuple):
    """Requests as columns of `COLUMNS`, all of the same length."""

    key_hash: npt.NDArray[np.uint64]
    time_us: npt.NDArray[np.uint32]
    gap_us: npt.NDArray[np.uint32]
    latency_us: npt.NDArray[np.uint32]
    value_bytes: npt.NDArray[np.uint32]
    key_bytes: npt.NDArray[np.uint16]
    operation: npt.NDArray[np.uint8]
    outcome: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TraceBlock:
    """Block of a request trace; the module's tables define the fields."""

    table: str
    table_id: bytes
    server_id: int
    base_time_us: int
    sample_threshold: int
    seen_requests: int
    dropped_requests: int
    columns: TraceColumns

    @property
    def requests(self) -> int:
        """Number of requests in the block."""
        return len(self.columns.key_hash)


def encode_block(block: TraceBlock) -> bytes:
    """Return the bytes of a block."""
    table = block.table.encode("ascii")
    count = block.requests
    assert 1 <= len(table) <= MAX_TABLE_BYTES, table
    assert 1 <= count <= MAX_BLOCK_REQUESTS, count
    assert 1 <= block.sample_threshold <= ALL_KEYS, block.sample_threshold
    head = HEADER.pack(
        *(VERSION, len(table), 0, count, block.base_time_us, block.table_id, block.server_id, 0),
        *(block.sample_threshold, block.seen_requests, block.dropped_requests),
    )
    parts = [head, table, bytes(-len(table) % 8)]
    columns: Sequence[npt.NDArray[Any]] = block.columns
    for dtype, column in zip(COLUMNS.values(), columns, strict=True):
        assert len(column) == count, (len(column), count)
        data = column.astype(dtype, copy=False).tobytes()
        parts += [data, bytes(-len(data) % 8)]
    return b"".join(parts)


def decode_block(value: bytes | bytearray | memoryview) -> TraceBlock:
    """Return the block in a record's value; its columns are views of `value`.

    Raises:
        TraceFormatError: If it is not a block of this version; the message says why.
    """
    if len(value) < HEADER_BYTES:
        raise TraceFormatError(f"{len(value)} bytes are no block of a request trace: its header has {HEADER_BYTES}")
    head = HEADER.unpack_from(value)
    version, table_bytes, reserved, count, base, table_id, server, also_reserved, threshold, seen, dropped = head
    if version != VERSION:
        raise TraceFormatError(f"a block of a request trace has version {version}; this release reads {VERSION}")
    if reserved or also_reserved:
        raise TraceFormatError("reserved bytes of a trace block are not zero")
    if not 1 <= count <= MAX_BLOCK_REQUESTS or not 1 <= threshold <= ALL_KEYS:
        raise TraceFormatError(f"a trace block has {count} requests and the sample threshold {threshold}")
    if not 1 <= table_bytes <= MAX_TABLE_BYTES:
        raise TraceFormatError(f"the table's name of a trace block has {table_bytes} bytes")
    expected = HEADER_BYTES + _padded(table_bytes) + sum(_padded(count * dtype.itemsize) for dtype in COLUMNS.values())
    if len(value) != expected:
        raise TraceFormatError(f"a trace block of {count} requests has {len(value)} bytes instead of {expected}")
    try:
        table = bytes(value[HEADER_BYTES : HEADER_BYTES + table_bytes]).decode("ascii")
        check_topic_name(table)
    except (UnicodeDecodeError, InvalidTopicNameError):
        raise TraceFormatError("the table's name of a trace block is not the name of a topic") from None
    if not 0 <= base < MAX_TIMESTAMP_MS * 1_000 - _MAX_UINT32:
        raise TraceFormatError(f"a trace block begins at {base} microseconds, which is no time from 1970 to 9999")
    position, columns = HEADER_BYTES + _padded(table_bytes), []
    for dtype in COLUMNS.values():
        columns.append(np.frombuffer(value, dtype, count, position))
        position += _padded(count * dtype.itemsize)
    found = TraceColumns(*columns)
    if not TableOperation.GET <= found.operation.min() <= found.operation.max() <= TableOperation.COMPARE_AND_PUT:
        raise TraceFormatError("a trace block has an unknown operation")
    if found.outcome.max() > RequestOutcome.CONFLICT:
        raise TraceFormatError("a trace block has an unknown outcome")
    return TraceBlock(table, table_id, server, base, threshold, seen, dropped, found)


def requests_in(value: bytes) -> int:
    """Return the number of requests in a block that `encode_block` has made."""
    return int(HEADER.unpack_from(value)[3])


class KeySampler:
    """Chooses the keys of a table that are traced, and computes their hashes. Immutable."""

    __slots__ = ("_hash", "threshold")

    def __init__(self, secret: bytes, table_id: bytes, fraction: float) -> None:
        """Prepare.

        Args:
            secret: Secret of the cluster, 1 to 64 bytes.
            table_id: Topic id of the table, 16 bytes; the same key has other hashes in other tables.
            fraction: Fraction of the keys that are sampled, above 0 and at most 1.
        """
        assert secret, "a keyed hash without a key can be reversed by a dictionary of keys"
        assert 0 < fraction <= 1, fraction
        self.threshold = max(1, round(fraction * ALL_KEYS))
        self._hash = blake2b(digest_size=8, key=secret, person=table_id)

    def samples(self, key: bytes) -> bool:
        """Return whether requests of the key are traced; the same on all servers with the same fraction."""
        return (zlib.crc32(key) * _MIX & _MAX_UINT32) < self.threshold

    def positions(self, keys: Sequence[bytes]) -> list[int]:
        """Return the positions of the keys that are traced: as `samples`, faster for many."""
        if len(keys) < _MANY_KEYS:
            return [place for place, key in enumerate(keys) if self.samples(key)]
        mixed = np.fromiter(map(zlib.crc32, keys), np.uint64, len(keys)) * np.uint64(_MIX) & np.uint64(_MAX_UINT32)
        places: list[int] = np.flatnonzero(mixed < self.threshold).tolist()
        return places

    def key_hash(self, key: bytes) -> int:
        """Return the keyed hash of a key, 64 bits."""
        found = self._hash.copy()
        found.update(key)
        return int.from_bytes(found.digest(), "little")


class TraceBuffer:
    """Requests of one table at one server between two blocks. Belongs to one thread.

    Memory is bounded: beyond `capacity` sampled requests are counted as dropped until `drain`.
    """

    def __init__(
        self, sampler: KeySampler, table: str, table_id: bytes, server_id: int, capacity: int = MAX_BLOCK_REQUESTS
    ) -> None:
        self._sampler = sampler
        self._threshold = sampler.threshold
        self._table = table
        self._table_id = table_id
        self._server_id = server_id
        self._capacity = capacity
        self._rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._seen = 0
        self._dropped = 0
        self._arrived_us: int | None = None
        self.overflowed = 0
        """Sampled requests that were dropped because the buffer was full, of all time."""

    def __len__(self) -> int:
        return len(self._rows)

    def arrive(self, at_us: int) -> int:
        """Return the gap of a request that arrives now: since the one before it, microseconds.

        Requests that are served at the same time end in another order than they arrive, so that only this one has gaps.

        Args:
            at_us: Time of the arrival, microseconds since 1970. After a clock that steps back the gap is 0.
        """
        last, self._arrived_us = self._arrived_us, at_us
        if last is None or at_us - last > UNKNOWN_GAP_US:
            return UNKNOWN_GAP_US
        return at_us - last if at_us > last else 0

    def add(
        self,
        at_us: int,
        gap_us: int,
        operation: TableOperation,
        outcome: RequestOutcome,
        key: bytes,
        value_bytes: int,
        latency_us: int,
    ) -> None:
        """Record a request on one key, if its key is sampled.

        Args:
            at_us: Arrival of the request, microseconds since 1970.
            gap_us: What `arrive` returned then; 0 for all keys of a request but the first.
            operation: What was requested.
            outcome: What became of it.
            key: The key, of which only size and hash are kept.
            value_bytes: Size of the value that was written or returned.
            latency_us: Time until the answer; 0 means not measured.
        """
        self._seen += 1
        if zlib.crc32(key) * _MIX & _MAX_UINT32 >= self._threshold:  # KeySampler.samples, without a call.
            return
        if len(self._rows) >= self._capacity:
            self._dropped += 1
            self.overflowed += 1
            return
        self._rows.append(
            (
                *(self._sampler.key_hash(key), at_us, gap_us),
                *(min(latency_us, _MAX_UINT32), min(value_bytes, _MAX_UINT32)),
                *(min(len(key), _MAX_UINT16), operation, outcome),
            )
        )

    def skip(self, count: int) -> None:
        """Count requests on keys that are not sampled, as `add` does."""
        self._seen += count

    def note_lost(self, value: bytes) -> None:
        """Count what an earlier block had, which could not be written."""
        _, _, _, count, *_, seen, dropped = HEADER.unpack_from(value)
        self._seen += seen
        self._dropped += dropped + count

    def drain(self) -> list[bytes]:
        """Return the blocks of the requests since the last call, and begin again; empty if none was sampled."""
        if not self._rows:
            return []
        rows, self._rows = self._rows, []
        table = np.array(rows, _ROW)
        at_us = table["time_us"].astype(np.int64)
        blocks = []
        for start, end in block_ranges(at_us):
            base = int(at_us[start:end].min())
            columns = [table[name][start:end] for name in COLUMNS]
            columns[1] = at_us[start:end] - base
            block = TraceBlock(
                *(self._table, self._table_id, self._server_id, base, self._sampler.threshold),
                *(self._seen, self._dropped, TraceColumns(*columns)),
            )
            self._seen = self._dropped = 0
            blocks.append(encode_block(block))
        return blocks


def block_ranges(at_us: npt.NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return the ranges of requests that fit into a block each: by number, and by the span of `time_us`.

    A clock may jump in either direction within `at_us`, microseconds since 1970.
    """
    ranges = []
    start = 0
    while start < len(at_us):
        after = at_us[start : start + MAX_BLOCK_REQUESTS] - at_us[start]
        outside = np.flatnonzero(np.abs(after) >= _HALF_SPAN_US)
        end = start + (int(outside[0]) if len(outside) else len(after))
        ranges.append((start, end))
        start = end
    return ranges


def _padded(size: int) -> int:
    return size + -size % 8
