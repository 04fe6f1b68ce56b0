"""Open batches of a producer: appending, growing within the buffer pool, sealing, lingering. No I/O.

The caller that fills a batch seals it, encodes it and starts the call, by `Sender`. A batch lingers for at least
`linger_ms`, and while its partition has a batch in flight, so batches grow under load.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ProducerConfig
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.producer.accumulator import (
    AppendKeyed,
    AppendValue,
    BufferPool,
    ClosedBatch,
    Headers,
    PartitionBuffer,
    append_nothing,
)
from headrace.client.producer.bulk import Bulk
from headrace.client.producer.futures import FutureType, PendingBatch, PendingRecord
from headrace.client.producer.maintenance import ProducerMaintenance
from headrace.client.producer.partition_queue import SealedBatch
from headrace.client.producer.producer_topics import ProducerTopics
from headrace.client.producer.rows import TypedBulk, TypedRow
from headrace.client.producer.sender import Sender
from headrace.client.tracing.sending import SendSpan, SendTracing
from headrace.wire.errors import BatchTooLargeError
from headrace.wire.typed.topic_columns import TopicColumns


class UnsentRecord(NamedTuple):
    """Record of one `send`."""

    topic: str
    value: bytes | TypedRow | None
    key: bytes | None
    headers: Headers | None
    partition: int | None
    timestamp_ms: int | None
    cost: int
    """See `record_cost`."""
    span: SendSpan | None = None
    """Its span, if it is sent within a trace."""
    columns: TopicColumns | None = None
    """Columns that the row was checked with; `None` for bytes."""


class OpenBatches:
    """Open batches of one producer's core. Any thread, if the buffers' locks are thread locks."""

    def __init__(
        self,
        config: ProducerConfig,
        buffer_pool: BufferPool,
        maintenance: ProducerMaintenance,
        sender: Sender,
        topics: ProducerTopics,
        tracing: SendTracing,
        *,
        future_type: FutureType,
        uses_appenders: bool,
    ) -> None:
        """`uses_appenders` fills the dictionaries of appenders: nothing but the key's hash selects the partition."""
        self._config = config
        self._buffer_pool = buffer_pool
        self._maintenance = maintenance
        self._sender = sender
        self._topics = topics
        self._tracing = tracing
        self._future_type = future_type
        self._fast_type = future_type if config.return_futures else None
        self._uses_appenders = uses_appenders
        self._lingering: dict[PartitionBuffer, None] = {}
        self.appenders: dict[str, AppendValue] = {}
        """By topic: appends a value without a key to the open batch."""
        self.keyed_appenders: dict[str, list[AppendKeyed]] = {}
        """By topic, for each partition, which the key's hash selects."""

    def add_topic(self, name: str, partitions: int) -> None:
        """Prepare the fast path of a topic, or of one that has more partitions now, before there are its buffers."""
        if self._uses_appenders and len(self.keyed_appenders.get(name, ())) < partitions:
            self.keyed_appenders[name] = [append_nothing] * partitions

    def forget(self, topics: Iterable[str]) -> None:
        """End the fast path of some topics."""
        for name in list(topics):
            self.appenders.pop(name, None)
            self.keyed_appenders.pop(name, None)

    def append(self, buffer: PartitionBuffer, record: UnsentRecord, sender: object) -> PendingRecord | int:
        """See `ProducerCore.append`; `sender` is what waits for room, see `BufferPool`.

        `0` also means that the topic has other columns than those that the row was checked with.
        """
        topic, value, key, headers, partition, timestamp_ms, cost, span, columns = record
        while True:
            with buffer.lock:
                if buffer.appender is not None:
                    buffer.stop_appender()
                if buffer.columns != columns:
                    return 0
                if buffer.has_room_for(cost):
                    assert buffer.pending is not None, "there is room: a batch is open"
                    index = buffer.append(value, key, headers, timestamp_ms, cost)
                    future = self._future_type.of(buffer.pending, index)
                    if buffer.pending.spans is not None:
                        buffer.pending.spans.take(span, future.index)
                    if self._uses_appenders and partition is None and buffer.columns is None:
                        if key is None:
                            self.appenders[topic] = buffer.start_appender(self._fast_type)
                        else:
                            append = buffer.start_keyed_appender(self._fast_type)
                            if (appenders := self.keyed_appenders.get(topic)) is not None:
                                appenders[buffer.where.partition] = append
                    return future
            missing = self._make_room(buffer, record.cost, sender)
            if missing is not None:
                return missing

    def _make_room(self, buffer: PartitionBuffer, cost: int, sender: object) -> int | None:
        """Grow the open batch for a record of `cost` bytes, or seal a full one.

        Return `None` if it has grown; see `ProducerCore.append` for other values.
        """
        if cost > buffer.largest:
            raise too_large(buffer, cost)
        with DeferredKeyboardInterrupt():
            with buffer.lock:
                if buffer.appender is not None:
                    buffer.stop_appender()
                if buffer.retired:
                    return 0
                if not buffer.is_full_for(cost):
                    return self._grow(buffer, cost, sender)
                sealed = self._seal(buffer)
            if sealed is not None:
                self._ship(buffer, *sealed)
        return 0

    def _grow(self, buffer: PartitionBuffer, cost: int, sender: object) -> int | None:
        """Add a piece of memory to the open batch, or open a batch with it. Called under the buffer's lock.

        Return `None`, or the number of bytes that the buffer pool lacks.
        """
        if buffer.has_room_for(cost):
            return None
        piece = buffer.piece_for(cost)
        if not self._buffer_pool.acquire(piece, sender):
            return piece
        if buffer.pending is not None:
            buffer.extend(piece)
            return None
        buffer.open(self.pending_for(buffer), monotonic_ms(), piece)
        self._lingering[buffer] = None
        if buffer.partition_queue.idle:  # Otherwise the end of the batch in flight triggers the check.
            self._maintenance.due_at(buffer.opened_ms + self._config.linger_ms)
        return None

    def pending_for(self, buffer: PartitionBuffer) -> PendingBatch:
        """Return the completion of a batch that is being opened."""
        spans = self._tracing.batch(buffer.largest)
        return PendingBatch(buffer.where, time.time_ns() // 1_000_000, self._flush_now, buffer.batch_records, spans)

    def send_bulk(
        self, buffer: PartitionBuffer, pending: PendingBatch, bulk: Bulk | TypedBulk, rows: range, cost: int
    ) -> int | None:
        """Queue a separate batch after the open one and send both. Return `None`, or the number of missing bytes.

        `0` means that the buffer is retired. Called with Ctrl-C deferred.
        """
        with buffer.lock:
            if buffer.retired:
                return 0
            if not self._buffer_pool.acquire(cost, bulk):
                return cost
            before = self._seal(buffer)
            batch = self._sender.enqueue(buffer.partition_queue, pending, len(rows), cost)
        if before is not None:
            self._sender.encode(before[0], 0, before[1])
        self._sender.encode(batch, rows.start, bulk)
        self._sender.dispatch()
        return None

    def _seal(self, buffer: PartitionBuffer) -> tuple[SealedBatch, ClosedBatch] | None:
        """Close the open batch and queue it in its place, not yet encoded. Called under the buffer's lock."""
        if buffer.appender is not None:
            buffer.stop_appender()
        self._lingering.pop(buffer, None)
        drained = buffer.drain()
        if drained is None:
            return None
        records, unused = drained
        if not records.values:
            self._buffer_pool.release(unused + records.reserved_bytes)
            records.pending.complete((), None)
            return None
        if unused:
            self._buffer_pool.release(unused)
        count = len(records.values)
        return self._sender.enqueue(buffer.partition_queue, records.pending, count, records.reserved_bytes), records

    def _ship(self, buffer: PartitionBuffer, batch: SealedBatch, records: ClosedBatch) -> None:
        """Encode a sealed batch and send it. Called with Ctrl-C deferred."""
        self._sender.encode(batch, 0, records)
        self._sender.dispatch()
        self.move_sticky(buffer)

    def seal_now(self, buffer: PartitionBuffer) -> None:
        """Seal the open batch, encode it and send it."""
        with DeferredKeyboardInterrupt():
            with buffer.lock:
                sealed = self._seal(buffer)
            if sealed is not None:
                self._ship(buffer, *sealed)

    def seal_all(self) -> None:
        """Seal, encode and send every open batch."""
        for buffer in list(self._lingering):
            self.seal_now(buffer)

    def _flush_now(self, pending: PendingBatch) -> None:
        """Send a batch that is still open, because a caller waits for its result."""
        for buffer in list(self._lingering):
            if buffer.pending is pending:
                self.seal_now(buffer)
                return

    def retire(self, buffer: PartitionBuffer) -> None:
        """Send the open batch; later appends are rejected."""
        self.seal_now(buffer)
        with buffer.lock:
            late = self._seal(buffer)
            buffer.retired = True
        self._ship_late(late)

    def change_columns(self, buffer: PartitionBuffer, columns: TopicColumns | None) -> None:
        """Send the open batch, whose rows have the columns of before; later rows have these. Under the topics' lock."""
        with DeferredKeyboardInterrupt():
            with buffer.lock:
                late = self._seal(buffer)
                buffer.set_columns(columns)
            self._ship_late(late)

    def _ship_late(self, late: tuple[SealedBatch, ClosedBatch] | None) -> None:
        """Encode a sealed batch and send it; records without a key keep their partition."""
        if late is not None:
            self._sender.encode(late[0], 0, late[1])
            self._sender.dispatch()

    def seal_lingering(self, now_ms: int) -> int | None:
        """Seal batches whose linger is over; return when the next one ends, in monotonic ms, or `None`."""
        next_ms: int | None = None
        for buffer in list(self._lingering):
            due_ms = buffer.opened_ms + self._config.linger_ms
            if due_ms > now_ms and not buffer.is_overdue:
                next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
            elif buffer.partition_queue.idle:
                self.seal_now(buffer)
        return next_ms

    def move_sticky(self, buffer: PartitionBuffer) -> None:
        """Move records without a key away from a partition whose batch was sealed."""
        if self._topics.moves_sticky(buffer):
            self.appenders.pop(buffer.where.topic, None)


def too_large(buffer: PartitionBuffer, cost: int) -> BatchTooLargeError:
    """Return the error of a record that is too large for any batch of its topic."""
    largest, topic = buffer.largest, buffer.where.topic
    return BatchTooLargeError(f"a record of {cost} bytes exceeds the limit {largest} of topic {topic}")
