"""Buffers in which records wait to become batches: one per partition, and one buffer pool for all of them.

A buffer's `lock` is held to append to or to drain the open batch, never to encode. On the fast path a generator
(`appender`) appends records without it. The bytes by which an open batch may grow (`room`) are acquired from the buffer
pool in pieces ahead of the records, so that the buffer has a strict bound and an append only counts down. A batch of
`batch_records` is sent at once if its partition is idle; otherwise more records are appended, and divided into batches
when they are sealed, because small batches share the cost of a request. No I/O, no clock.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any, TypeAlias

from headrace.client.base.operations import Changes, Operation, WaitUntil
from headrace.client.producer.futures import FutureType, PendingBatch, PendingRecord
from headrace.client.producer.partition_queue import PartitionQueue
from headrace.client.producer.rows import TypedRow, encode_rows
from headrace.client.producer.sequences import ProducerStamp
from headrace.wire.batch import MAX_BATCH_HEADERS, MAX_RECORD_HEADERS
from headrace.wire.batch_runs import EncodedRun, encode_run
from headrace.wire.compression import Codec
from headrace.wire.crc import ReadableBuffer
from headrace.wire.encoding import batch_parts
from headrace.wire.errors import InternalError
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import TopicColumns

RECORD_OVERHEAD = 24
"""Maximum bytes of a record in a batch besides its key, value and headers: every column's offsets, its timestamp, bits.
"""

HEADER_OVERHEAD = 16
"""Maximum bytes of one application header besides its key and value."""

BATCH_OVERHEAD = 512
"""Maximum bytes of a batch besides its records: its header, the first offsets, gaps and padding."""

COLUMN_OVERHEAD = 200
"""Maximum bytes of a column of rows in a batch besides its values and its text."""

PIECE_BYTES = 128 * 1024
"""First reservation of an open batch from the buffer pool; each further one doubles its size."""

APPENDER_TIMEOUT_S = 5.0
"""Time limit for another thread to leave the appender; a step of it takes a quarter of a microsecond."""

Headers = Sequence[tuple[str, bytes]]

AppendValue: TypeAlias = Callable[[bytes], PendingRecord | None]
"""Appends a value without a key; see `PartitionBuffer.start_appender`."""
AppendKeyed: TypeAlias = Callable[[tuple[bytes, bytes]], PendingRecord | None]
"""Appends a key and a value."""


class BufferPool:
    """Memory that all buffered records share, in bytes. Any thread.

    While senders wait for room, released memory goes to the one that has waited longest, so small records cannot starve
    a large one.
    """

    def __init__(self, limit: int, lock: AbstractContextManager[Any], changes: Changes) -> None:
        """`changes` is the condition variable of `lock`."""
        self.limit = limit
        self._used = 0
        self._waiting: dict[int, None] = {}
        """`id` of each waiting sender, in order of arrival."""
        self._is_closed = False
        self._lock = lock
        self._changes = changes

    @property
    def used(self) -> int:
        """Bytes reserved now."""
        return self._used

    @property
    def waiters(self) -> int:
        """Number of senders that wait for room."""
        return len(self._waiting)

    def acquire(self, amount: int, sender: object) -> bool:
        """Reserve `amount` bytes; return whether they were reserved. An empty pool grants more than its limit."""
        with self._lock:
            if not self._has_room(amount, sender):
                return False
            self._used += amount
            return True

    def release(self, amount: int) -> None:
        """Return reserved bytes to the pool."""
        with self._lock:
            self._used -= amount
            assert self._used >= 0, "more was released than acquired"
            if self._waiting:
                self._changes.notify_all()

    def wait_for(self, amount: int, sender: object, seconds: float) -> Operation[bool]:
        """Wait until `sender` can reserve `amount` bytes, or the pool is closed; return `False` on timeout.

        Nothing is reserved, so a cancelled wait loses nothing. The sender keeps its place until `leave`.
        """
        with self._lock:
            self._waiting.setdefault(id(sender))
        has_room: bool = yield WaitUntil(
            self._changes, lambda: self._is_closed or self._has_room(amount, sender), seconds
        )
        return has_room

    def leave(self, sender: object) -> None:
        """Pass the turn to the next sender. Does nothing if `sender` does not wait."""
        with self._lock:
            if id(sender) in self._waiting:
                del self._waiting[id(sender)]
                self._changes.notify_all()

    def close(self) -> None:
        """End all current and later waits."""
        with self._lock:
            self._is_closed = True
            self._changes.notify_all()

    def _has_room(self, amount: int, sender: object) -> bool:
        is_turn = not self._waiting or next(iter(self._waiting)) == id(sender)
        return is_turn and (self._used + amount <= self.limit or not self._used)


class ClosedBatch:
    """Records of a closed batch: nothing is appended to it any more."""

    __slots__ = ("columns", "headers", "keys", "pending", "reserved_bytes", "timestamps_ms", "values")

    def __init__(self, buffer: "PartitionBuffer", pending: PendingBatch) -> None:
        count = len(buffer.values)
        self.values = buffer.values
        self.columns = buffer.columns
        self.keys = None if buffer.keys is None else _column(buffer.keys, count)
        self.headers = None if buffer.headers is None else _column(buffer.headers, count)
        self.timestamps_ms = None if buffer.timestamps_ms is None else _column(buffer.timestamps_ms, count)
        self.pending = pending
        self.reserved_bytes = buffer.reserved_bytes

    def encode(
        self,
        start: int,
        end: int,
        stamp: ProducerStamp,
        *,
        base_timestamp_ms: int,
        codec: Codec,
        level: int | None,
        more_headers: Headers = (),
    ) -> list[ReadableBuffer]:
        """Encode the records `start` to `end` as one batch, in parts; see `Encodes`."""
        columns = self.values, self.keys, self.headers, self.timestamps_ms
        if end - start < len(self.values):
            columns = tuple(None if column is None else column[start:end] for column in columns)  # type: ignore[assignment]
        values, keys, headers, timestamps_ms = columns
        fields: Any = {
            "base_timestamp_ms": base_timestamp_ms,
            "headers": with_headers(headers, more_headers, end - start),
            "timestamps_ms": timestamps_ms,
            "codec": codec,
            "compression_level": level,
            **stamp._asdict(),
        }
        if self.columns is not None:
            return encode_rows(values, keys, self.columns, **fields)  # type: ignore[arg-type]
        return batch_parts(values, keys, **fields)  # type: ignore[arg-type]

    def encode_run(
        self, start: int, end: int, batch_records: int, stamp: ProducerStamp, *, base_timestamp_ms: int
    ) -> EncodedRun | None:
        """Encode the records `start` to `end` as batches of `batch_records`; `None` if only `encode` can."""
        if self.keys is not None or self.headers is not None or self.timestamps_ms is not None or self.columns:
            return None
        values: Any = self.values[start:end]
        return encode_run(values, batch_records, base_timestamp_ms=base_timestamp_ms, **stamp._asdict())


class PartitionBuffer:
    """Open batch of one partition. Access it under `lock`, and call `stop_appender` first.

    Attributes:
        room: bytes that may be appended before more must be acquired; negative while no batch is open. Belongs to the
            appender while there is one.
        reserved_bytes: bytes acquired from the buffer pool for the open batch, `room` included.
        limit: number of records in the open batch at which the producer checks whether to close it.
        is_overdue: a whole batch waits for the partition to be idle, and not for the linger to pass.
        columns: those of a typed topic, whose values are rows; `None` for another.
        retired: appends are rejected: the producer is closed, or the topic was created again.
        appender: generator that appends without the lock, or `None`.
    """

    __slots__ = (
        "_batch_bytes",
        "_max_batch_bytes",
        "appender",
        "batch_limit",
        "batch_records",
        "columns",
        "headers",
        "is_overdue",
        "keys",
        "largest",
        "limit",
        "lock",
        "opened_ms",
        "partition_queue",
        "pending",
        "reserved_bytes",
        "retired",
        "room",
        "run_records",
        "timestamps_ms",
        "values",
        "where",
    )

    def __init__(
        self,
        where: TopicPartition,
        partition_queue: PartitionQueue,
        lock: AbstractContextManager[Any],
        *,
        batch_bytes: int,
        max_batch_bytes: int,
        batch_records: int,
        run_batches: int,
        columns: TopicColumns | None = None,
    ) -> None:
        """At most `run_batches` batches of `batch_records` are sealed together."""
        self.where = where
        self.partition_queue = partition_queue
        self.lock = lock
        self._batch_bytes, self._max_batch_bytes = batch_bytes, max_batch_bytes
        self.set_columns(columns)
        self.batch_records = batch_records
        self.run_records = batch_records * run_batches
        self.retired = False
        self.appender: Generator[PendingRecord | None, Any, None] | None = None
        self._empty()

    def set_columns(self, columns: TopicColumns | None) -> None:
        """Set the columns of the rows to come. No batch is open: its rows have the columns of before."""
        self.columns = columns
        self.largest = self._max_batch_bytes - BATCH_OVERHEAD
        if columns is not None:
            self.largest = max(0, self.largest - len(columns.batch_text) - COLUMN_OVERHEAD * len(columns.current))
        self.batch_limit = min(self._batch_bytes, self.largest)

    def _empty(self) -> None:
        self.values: list[bytes | TypedRow | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.timestamps_ms: list[int | None] | None = None
        self.pending: PendingBatch | None = None
        self.room = -1
        self.reserved_bytes = 0
        self.limit = self.batch_records
        self.is_overdue = False
        self.opened_ms = 0

    def open(self, pending: PendingBatch, now_ms: int, taken: int) -> None:
        """Open a batch with `taken` bytes from the buffer pool."""
        assert self.pending is None
        self.pending = pending
        self.opened_ms = now_ms
        self.room = self.reserved_bytes = taken

    def start_appender(self, future_type: FutureType | None) -> AppendValue:
        """Return a function that appends one value without a lock, until the piece is full or the appender is stopped.

        It raises StopIteration if it has not appended, and ValueError while another thread runs it: then take the lock.
        The interpreter guarantees that a generator runs in one thread at a time, at no cost; a lock costs 190 ns a
        record (Python 3.11). The function returns `None` if `future_type` is `None`.
        """
        assert self.appender is None
        assert self.pending is not None
        appender = _append_values(self, self.pending, future_type)
        next(appender)
        self.appender = appender
        return appender.send

    def start_keyed_appender(self, future_type: FutureType | None) -> AppendKeyed:
        """Return a function that appends one (key, value), after a record with a key; see `start_appender`."""
        assert self.appender is None
        assert self.pending is not None
        appender = _append_keyed(self, self.pending, future_type)
        next(appender)
        self.appender = appender
        return appender.send

    def stop_appender(self) -> None:
        """End the appender, so that the buffer can be accessed. Called under the lock.

        Raises:
            InternalError: If it does not end, because this thread was interrupted in it and called `send` again.
        """
        appender = self.appender
        if appender is None:
            return
        deadline = time.monotonic() + APPENDER_TIMEOUT_S
        while True:
            try:
                appender.close()
            except ValueError:  # Another thread runs it, and needs the interpreter to leave.
                if time.monotonic() > deadline:
                    raise InternalError("send was called from a signal handler that interrupted send") from None
                time.sleep(0)
            else:
                self.appender = None
                return

    def is_full_for(self, cost: int) -> bool:
        """Return whether the open batch must be sealed before a record of `cost` bytes; may raise the record limit."""
        count = len(self.values)
        used = self.reserved_bytes - max(self.room, 0)
        if count and (used + cost > self.batch_limit or count >= self.run_records):
            return True
        if count < self.limit:
            return False
        self.is_overdue = True  # Set before the check: a response that makes the partition idle after it sees this.
        if self.partition_queue.idle:
            return True
        self.limit = self.run_records
        return False

    def has_room_for(self, cost: int) -> bool:
        """Return whether a record of `cost` bytes may be appended now."""
        return self.room >= cost and len(self.values) < self.limit and self.pending is not None

    def piece_for(self, cost: int) -> int:
        """Return the number of bytes to acquire from the buffer pool for a record of `cost` bytes.

        At most the bytes that the limits allow if all records have that cost.
        """
        left = min(self.batch_limit - self.reserved_bytes, (self.limit - len(self.values)) * cost - max(self.room, 0))
        return max(min(max(PIECE_BYTES, self.reserved_bytes), left), cost - max(self.room, 0))

    def extend(self, taken: int) -> None:
        """Add bytes from the buffer pool to the open batch."""
        self.room += taken
        self.reserved_bytes += taken

    def append(
        self,
        value: bytes | TypedRow | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        cost: int,
    ) -> int:
        """Append a record for which there is room; return its index in the batch."""
        index = len(self.values)
        if key is not None:
            self.keys = _column(self.keys, index)
            self.keys.append(key)
        if headers:
            self.headers = _column(self.headers, index)
            self.headers.append(headers)
        if timestamp_ms is not None:
            self.timestamps_ms = _column(self.timestamps_ms, index)
            self.timestamps_ms.append(timestamp_ms)
        self.values.append(value)
        self.room -= cost
        return index

    def drain(self) -> tuple[ClosedBatch, int] | None:
        """Close the open batch; return it with its unused bytes, or `None` if there is none."""
        pending = self.pending
        if pending is None:
            return None
        unused = max(self.room, 0)
        self.reserved_bytes -= unused
        closed = ClosedBatch(self, pending)
        pending.timestamps_ms = closed.timestamps_ms
        self._empty()
        return closed, unused


def _append_values(
    buffer: PartitionBuffer, pending: PendingBatch, future_type: FutureType | None
) -> Generator[PendingRecord | None, bytes, None]:
    """Append each value sent and yield its future; end if there is no room, or in a context that may have a span.

    Accesses only locals for each record.
    """
    append, overhead, current, outside = buffer.values.append, RECORD_OVERHEAD, *_context_of(pending)
    room = buffer.room
    future: PendingRecord | None = None
    try:
        for index in range(len(buffer.values), buffer.limit):
            value = yield future
            room -= len(value) + overhead
            if room < 0 or (current is not None and current() is not outside):
                room += len(value) + overhead
                return
            if future_type is not None:
                future = future_type()
                future.batch = pending
                future.index = index
            append(value)
        yield future  # A value sent after this is not appended.
    finally:
        buffer.room = room


def _append_keyed(
    buffer: PartitionBuffer, pending: PendingBatch, future_type: FutureType | None
) -> Generator[PendingRecord | None, tuple[bytes, bytes], None]:
    """Like `_append_values`, for records with keys."""
    assert buffer.keys is not None
    append, append_key = buffer.values.append, buffer.keys.append
    overhead, current, outside = RECORD_OVERHEAD, *_context_of(pending)
    room = buffer.room
    future: PendingRecord | None = None
    try:
        for index in range(len(buffer.values), buffer.limit):
            key, value = yield future
            room -= len(value) + len(key) + overhead
            if room < 0 or (current is not None and current() is not outside):
                room += len(value) + len(key) + overhead
                return
            if future_type is not None:
                future = future_type()
                future.batch = pending
                future.index = index
            append_key(key)
            append(value)
        yield future  # A record sent after this is not appended.
    finally:
        buffer.room = room


def _context_of(pending: PendingBatch) -> tuple[Callable[[], object] | None, object]:
    """Return what returns the current context, or `None` without tracing; and the context without spans."""
    spans = pending.spans
    return (None, None) if spans is None else (spans.current, spans.outside)


def append_nothing(_record: tuple[bytes, bytes]) -> PendingRecord | None:
    """Raise StopIteration, as an appender does that has ended."""
    raise StopIteration


def record_cost(value: bytes | TypedRow | None, key: bytes | None, headers: Headers | None) -> int:
    """Return the bytes counted for a record."""
    cost = RECORD_OVERHEAD + (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
    return cost + headers_cost(headers) if headers else cost


def headers_cost(headers: Headers) -> int:
    """Return the bytes counted for headers."""
    return sum(HEADER_OVERHEAD + 4 * len(name) + len(data) for name, data in headers)


def with_headers(
    headers: Sequence[Headers | None] | None, more: Headers, count: int
) -> Sequence[Headers | None] | None:
    """Return the headers of `count` records, with more of them for the first one."""
    if not more:
        return headers
    if headers is None:
        return [more, *repeat(None, count - 1)]
    first = headers[0] or ()
    if len(first) >= MAX_RECORD_HEADERS or sum(len(each or ()) for each in headers) >= MAX_BATCH_HEADERS:
        return headers
    return [[*first, *more], *headers[1:]]


def _column(column: list[Any] | None, length: int) -> list[Any]:
    """Return a column padded up to the next record: earlier records have no entry in it.

    It is longer by one if Ctrl-C came between the fast path's two appends.
    """
    if column is None:
        return [None] * length
    del column[length:]
    column.extend([None] * (length - len(column)))
    return column
