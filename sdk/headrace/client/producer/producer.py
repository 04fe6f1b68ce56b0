"""The blocking `Producer`. Any thread.

No thread stands between the caller and the wire: the caller that fills a batch seals it, encodes it and starts the
call; answers come on gRPC's thread, which starts the next call; one timer thread seals batches that have lingered; one
more reads metadata and the producer id when they are wanted. A batch lingers at least `linger_ms`, and as long as its
partition has something in flight: so batches grow under load by themselves.

What becomes of a batch once it is sealed is `Sender`'s part.

Locks, always taken in this order: a buffer's (appending), then the producer's `_lock` (dispatching). Neither is held to
encode, to call or to wait. The path of a record is `send` down to the first `return`; it is written out flat because it
runs once a record. The dictionary `_open` leads there; it is empty while there is a reason to look closer: closed,
forked, not yet known.
"""

import atexit
import contextlib
import logging
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ProducerConfig, build, client_repr
from headrace.client.base.errors import BufferFullError, ClosedError, ForkedError
from headrace.client.base.forking import ForkGuard
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.base.operations import Operation, Pause, execute
from headrace.client.base.partitioner import check_partition, next_sticky, partition_for_key
from headrace.client.base.records import RecordMetadata
from headrace.client.base.serializers import resolve_serializer, serialize
from headrace.client.base.settings_types import ProducerSettings
from headrace.client.base.unclosed import ATEXIT_TIMEOUT_S, close_in_thread
from headrace.client.interceptors.audit_interceptor import AuditInterceptor, publisher_settings
from headrace.client.interceptors.interceptor import Interceptors, ProducerInterceptor
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.cluster_metadata import TopicLeaders
from headrace.client.net.connection import Connections
from headrace.client.producer.accumulator import RECORD_OVERHEAD, ClosedBatch, Headers, PartitionBuffer, record_cost
from headrace.client.producer.bulk import Bulk, EncodePart, bulk_of
from headrace.client.producer.futures import BatchFuture, PendingBatch, RecordFuture, future_for
from headrace.client.producer.inflight import MAX_BATCHES_IN_FLIGHT
from headrace.client.producer.maintenance import ProducerMaintenance
from headrace.client.producer.partition_queue import PartitionQueue, SealedBatch
from headrace.client.producer.sender import Sender
from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import BatchTooLargeError, HeadraceError, Outcome, UnknownPartitionError
from headrace.wire.ids import TopicPartition

__all__ = ["Producer", "RecordMetadata"]

_log = logging.getLogger("headrace.client")

DEFAULT_MAX_BATCH_BYTES = 1024 * 1024
UNNUMBERED_BATCHES = 1_024
"""Batches sealed together where no leader has to remember them."""
TOPIC_GRACE_S = 2.0
"""How long a topic may be unknown before that is believed: a server may not have heard of a new one yet."""


class ReserveMemory(NamedTuple):
    """A step: reserve bytes of the buffer pool, waiting for them."""

    amount: int
    deadline: float
    """In seconds of the monotonic clock."""


class _Topic:
    """What a producer keeps of one life of a topic. Changed under the producer's `_topics_lock`."""

    __slots__ = ("buffers", "sticky", "topic_leaders")

    def __init__(self, topic_leaders: TopicLeaders, buffers: list[PartitionBuffer], sticky: int) -> None:
        self.topic_leaders = topic_leaders
        self.buffers = buffers
        self.sticky = sticky


class Producer(Sender):
    """Sends records.

    `send` returns at once, and blocks only while the buffer is full or a topic is new. What cannot be delivered shows
    in futures, and in `flush` and `close`. Use it as a context manager, from any number of threads; make it after
    forking.
    """

    def __init__(self, **settings: Unpack[ProducerSettings]) -> None:
        """See `ProducerConfig` for the settings. Connects when first used.

        Raises:
            ConfigError: an unknown setting, a value out of range, or settings that contradict each other.
            UnsupportedCodecError: the compression's package is not installed; the message names it.
        """
        config = build(ProducerConfig, settings)
        super().__init__(config)
        self._key_serializer = resolve_serializer(config.key_serializer, "key_serializer")
        self._value_serializer = resolve_serializer(config.value_serializer, "value_serializer")
        self._plain = config.partitioner is None and self._value_serializer is None and self._key_serializer is None
        self._return_futures = config.return_futures
        self._open: dict[str, Callable[[bytes], RecordFuture | None]] = {}
        self._keyed: dict[str, list[PartitionBuffer]] = {}
        self._topics: dict[str, _Topic] = {}
        self._topics_lock = threading.Lock()
        self._bootstrap = BootstrapClient(config)
        self._lingering: dict[PartitionBuffer, None] = {}
        self._closed = False
        self._forked_at = False
        audit = [self._audit(config)] if config.audit_topic else []
        self._interceptors = Interceptors([*config.interceptors, *audit])
        self._fork = ForkGuard(self._forked)
        _live.add(self)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flush and close; after an exception close without waiting long, so that it is not hidden."""
        if exc_type is None:
            self.close()
        else:
            with contextlib.suppress(HeadraceError):
                self.close(timeout=1.0)

    def __repr__(self) -> str:
        return client_repr("Producer", self._config, f"client_id={self._config.client_id}")

    def __del__(self) -> None:
        connections = getattr(self, "_connections", None)  # Wrong settings leave none.
        if connections is not None and connections.is_open and not self._forked_at:
            close_in_thread(self, self._close_collected)

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Take one record; it is on its way when this returns.

        Args:
            topic: where to.
            value: bytes, or what value_serializer takes; None is a null value.
            key: bytes, or what key_serializer takes; decides the partition.
            headers: (name, bytes) pairs.
            partition: in place of the partitioner's choice.
            timestamp_ms: ms since 1970; None for now.

        Returns:
            A future; with `return_futures=False` it is None.

        Raises:
            BufferFullError: the buffer stayed full for max_block_ms; the record was not taken.
            BatchTooLargeError: larger than the topic takes.
            SerializationError: not bytes, or the serializer failed.
            UnknownTopicError, UnknownPartitionError, NoBrokersAvailableError: there is nowhere to send it.
            ClosedError, ForkedError: make a new producer.
        """
        if key is None and headers is None and partition is None and timestamp_ms is None and type(value) is bytes:
            try:
                return self._open[topic](value)  # type: ignore[return-value]
            except (KeyError, StopIteration, ValueError):
                return self._send(topic, value, None, None, None, None)
        if (
            type(key) is bytes
            and headers is None
            and partition is None
            and timestamp_ms is None
            and type(value) is bytes
            and topic in self._keyed
        ):
            buffers = self._keyed[topic]
            buffer = buffers[zlib.crc32(key) % len(buffers)]
            with buffer.lock:
                room = buffer.room - len(value) - len(key) - RECORD_OVERHEAD
                keys = buffer.keys
                if room >= 0 and keys is not None and buffer.appender is None:
                    values = buffer.values
                    index = len(values)
                    if len(keys) == index < buffer.limit:
                        buffer.room = room
                        keys.append(key)
                        values.append(value)
                        pending = buffer.pending
                        assert pending is not None, "there is room: a batch is open"
                        return future_for(pending, index) if self._return_futures else None  # type: ignore[return-value]
        return self._send(topic, value, key, headers, partition, timestamp_ms)

    def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps_ms: Any = None,
        partition: int | None = None,
    ) -> BatchFuture:
        """Take many records at once: the bulk path.

        Args:
            topic: where to.
            values: a sequence of values as for `send`, or a pyarrow binary or string array.
            keys: the same for keys; each record goes to its key's partition, unless `partition` is given.
            headers: one sequence of pairs a record, or None each.
            timestamps_ms: one a record; None for now.
            partition: all records go there, in order. Without it and without keys they fill the sticky partition.

        Returns:
            One future a batch.

        Raises:
            HeadraceError: as `send`. When it raises, records before the one that failed may have been taken.
        """
        return execute(self._send_many(topic, values, keys, headers, timestamps_ms, partition), self._run_step)

    def _send_many(
        self,
        topic: str,
        values: Any,
        keys: Any,
        headers: Sequence[Headers | None] | None,
        timestamps_ms: Any,
        partition: int | None,
    ) -> Operation[BatchFuture]:
        bulk = bulk_of(values, keys, headers, timestamps_ms, self._key_serializer, self._value_serializer)
        parts: list[tuple[RecordFuture, int]] = []
        found = yield from self._topic_operation(topic)
        count = len(found.buffers)
        if partition is not None:
            self._check_partition(found, partition)
            plan: list[tuple[int | None, Bulk]] = [(partition, bulk)]
        elif keys is not None or self._config.partitioner is not None:
            plan = [*bulk.by_partition(lambda key: self._partition_for(topic, key, count))]
        else:
            plan = [(None, bulk)]
        for chosen, share in plan:
            yield from self._send_bulk(topic, chosen, share, parts)
        return BatchFuture(parts)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything that was taken so far and wait until it is acknowledged.

        Raises:
            DeliveryError: what failed since the last flush, or is still on its way after `timeout` seconds.
        """
        self._check_usable(closed_is_fine=True)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._seal_all()
        with self._lock:
            waiting = list(self._in_flight_requests.unresolved)
        for batch in waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                batch.pending.wait(left)
            except TimeoutError:
                break
            except HeadraceError:
                continue
        self._raise_failures(sum(batch.records for batch in waiting if not batch.pending.done()))

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush for up to `timeout` seconds, then give up what is left, and close. Calling it again does nothing.

        Raises:
            DeliveryError: what was not delivered.
        """
        if self._closed or self._forked_at:
            self._closed = True
            return
        self._closed = True
        self._open.clear()
        self._keyed.clear()
        try:
            with DeferredKeyboardInterrupt():
                self._retire_buffers()
            self.flush(timeout)
        finally:
            with DeferredKeyboardInterrupt():
                self._give_up(ClosedError("Producer"))
                self._maintenance.close()
                self._connections.close()
                _live.discard(self)
            self._interceptors.close(timeout)

    def _close_collected(self) -> None:
        """Close after `__del__`. The collector may have ended the channels and the two threads: take new ones."""
        self._maintenance.close()
        self._connections.close()
        self._connections = Connections("Producer", self._config)
        self._maintenance = ProducerMaintenance(self._config, self._backoff, self._seal_due, self._refresh)
        self._maintenance.due_at(monotonic_ms())
        self._maintenance.refresh_wanted()
        self.close()

    def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            UnknownTopicError, NoBrokersAvailableError: as `send`.
        """
        return len(self._topic(topic).buffers)

    def _audit(self, config: ProducerConfig) -> ProducerInterceptor:
        return AuditInterceptor(self, config, lambda: _claims_producer(config))

    # The rest of the way of a record that the fast path does not take.

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> RecordFuture:
        data = serialize(self._value_serializer, value, "value")
        key_data = serialize(self._key_serializer, key, "key")
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        while True:
            found = self._topic(topic)
            chosen = self._choose(found, key_data, partition)
            sticky = partition is None and key_data is None
            future = self._append(found.buffers[chosen], data, key_data, headers, timestamp_ms, deadline, sticky)
            if future is not None:
                return future if self._return_futures else None  # type: ignore[return-value]

    def _append(
        self,
        buffer: PartitionBuffer,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        deadline: float,
        sticky: bool,
    ) -> RecordFuture | None:
        """Append one record, sealing and waiting for room as needed.

        None: look for a buffer again; this one is out of use, or was sealed and records that are `sticky` move on.
        """
        cost = record_cost(value, key, headers)
        while True:
            done = self._append_now(buffer, value, key, headers, timestamp_ms, cost, sticky)
            if isinstance(done, RecordFuture):
                return done
            if done:
                self._take_memory(done, deadline)
                with DeferredKeyboardInterrupt():
                    self._grow(buffer, done)
            elif buffer.retired or sticky:
                return None

    def _append_now(
        self,
        buffer: PartitionBuffer,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        cost: int,
        sticky: bool,
    ) -> RecordFuture | int:
        """Append one record without waiting, or give how many bytes must be taken from the buffer pool first.

        0: nothing was appended; the buffer is retired, or it was full and is sealed now.
        """
        if cost > buffer.largest:
            raise BatchTooLargeError(
                f"a record of {cost} bytes is over the {buffer.largest} that {buffer.where.topic} takes"
            )
        with buffer.lock:
            buffer.stop_appender()
            if buffer.retired:
                return 0
            if not buffer.is_full_for(cost):
                if buffer.has_room_for(cost):
                    assert buffer.pending is not None
                    future = future_for(buffer.pending, buffer.append(value, key, headers, timestamp_ms, cost))
                    if sticky and self._plain:
                        self._open[buffer.where.topic] = buffer.start_appender(return_futures=self._return_futures)
                    return future
                return buffer.piece_for(cost)
        self._seal_now(buffer, cost)
        return 0

    def _grow(self, buffer: PartitionBuffer, piece: int) -> None:
        """Add a piece of memory to the open batch, or open a batch with it."""
        with buffer.lock:
            buffer.stop_appender()
            if buffer.retired:
                self._buffer_pool.release(piece)
                return
            if buffer.pending is not None:
                buffer.extend(piece)
                return
            buffer.open(self._pending(buffer), monotonic_ms(), piece)
            self._lingering[buffer] = None
        if buffer.partition_queue.idle:  # Otherwise whatever becomes of what is in flight looks for what is due.
            self._maintenance.due_at(buffer.opened_ms + self._config.linger_ms)

    def _pending(self, buffer: PartitionBuffer) -> PendingBatch:
        return PendingBatch(buffer.where, _now_ms(), self._flush_now, buffer.batch_records)

    def _take_memory(self, amount: int, deadline: float) -> None:
        if self._buffer_pool.acquire(amount):
            return
        self._seal_all()
        if not self._buffer_pool.acquire(amount, max(0.0, deadline - time.monotonic())):
            self._check_usable()
            raise BufferFullError(self._config.buffer_memory, self._config.max_block_ms)
        if self._closed:
            self._buffer_pool.release(amount)
            raise ClosedError("Producer")

    def _send_bulk(
        self, topic: str, chosen: int | None, bulk: Bulk, parts: list[tuple[RecordFuture, int]]
    ) -> Operation[None]:
        """Turn columns into batches without a step a record, behind what is open in the partition."""
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        start = 0
        while start < len(bulk):
            found = yield from self._topic_operation(topic)
            buffer = found.buffers[found.sticky if chosen is None else chosen]
            end, cost = bulk.cut(start, buffer.batch_limit, buffer.run_records)
            if cost > buffer.largest:
                raise BatchTooLargeError(f"a record of {cost} bytes is over the {buffer.largest} that {topic} takes")
            yield ReserveMemory(cost, deadline)
            pending = self._pending(buffer)
            pending.timestamps_ms = bulk.timestamps(start, end)
            encode = partial(
                bulk.encode, base_timestamp_ms=pending.timestamp_ms, codec=self._codec,
                level=self._config.compression_level,
            )  # fmt: skip
            with DeferredKeyboardInterrupt():
                if not self._ship_bulk(buffer, pending, range(start, end), cost, encode):
                    continue
            for first in range(start, end, buffer.batch_records):
                parts.append((future_for(pending, first - start), min(buffer.batch_records, end - first)))
            if chosen is None:
                self._move_sticky(buffer)
            start = end

    def _ship_bulk(
        self, buffer: PartitionBuffer, pending: PendingBatch, rows: range, cost: int, encode: EncodePart
    ) -> bool:
        """Queue a batch of its own behind what is open and send both; False: the buffer is out of use.

        With Ctrl-C deferred.
        """
        with buffer.lock:
            if buffer.retired:
                self._buffer_pool.release(cost)
                return False
            before = self._seal(buffer)
            batch = self._enqueue(buffer.partition_queue, pending, len(rows), cost)
        if before is not None:
            self._encode_sealed(before)
        self._encode(batch, rows.start, encode)
        self._dispatch()
        return True

    # Sealing.

    def _seal(self, buffer: PartitionBuffer) -> "tuple[SealedBatch, ClosedBatch] | None":
        """Take the open batch and queue it in its place; still to be encoded. Under the buffer's lock."""
        buffer.stop_appender()
        drained = buffer.drain()
        self._lingering.pop(buffer, None)
        if drained is None:
            return None
        records, unused = drained
        self._buffer_pool.release(unused + (records.reserved_bytes if not records.values else 0))
        if not records.values:
            records.pending.complete((), None)
            return None
        return self._enqueue(
            buffer.partition_queue, records.pending, len(records.values), records.reserved_bytes
        ), records

    # Lingering, run by the timer and by answers.

    def _seal_due(self) -> int | None:
        """Seal what has lingered, send what can be sent, end what is too late; give when to look again, in monotonic
        ms.
        """
        now_ms = monotonic_ms()
        linger_ms = self._config.linger_ms
        next_ms: int | None = None
        for buffer in list(self._lingering):
            due_ms = buffer.opened_ms + linger_ms
            if due_ms > now_ms and not buffer.is_overdue:
                next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
            elif buffer.partition_queue.idle:
                self._seal_now(buffer)
        event_ms = self._look_after(now_ms)
        self._dispatch()
        return min((at for at in (next_ms, event_ms) if at is not None), default=None)

    def _seal_now(self, buffer: PartitionBuffer, cost: int | None = None) -> None:
        """Seal the open batch, encode it and send; with `cost` only if it is still full for a record of that cost."""
        with DeferredKeyboardInterrupt():
            with buffer.lock:
                buffer.stop_appender()
                if cost is not None and not buffer.is_full_for(cost):
                    return
                sealed = self._seal(buffer)
            if sealed is not None:
                self._encode_sealed(sealed)
                self._dispatch()
                self._move_sticky(buffer)

    def _seal_all(self) -> None:
        for buffer in list(self._lingering):
            self._seal_now(buffer)

    def _flush_now(self, pending: PendingBatch) -> None:
        """Send a batch that is still open: its result is waited for."""
        for buffer in list(self._lingering):
            if buffer.pending is pending:
                self._seal_now(buffer)
                return

    def _move_sticky(self, buffer: PartitionBuffer) -> None:
        """Records without a key move on from a partition whose batch was sealed."""
        topic = self._topics.get(buffer.where.topic)
        if topic is None or topic.sticky != buffer.where.partition or len(topic.buffers) == 1:
            return
        with self._topics_lock:
            if self._topics.get(buffer.where.topic) is not topic or self._closed:
                return
            topic_leaders = self._cluster_metadata.topic(buffer.where.topic) or topic.topic_leaders
            led = [partition for partition in topic_leaders.led_partitions() if partition < len(topic.buffers)]
            topic.sticky = next_sticky(buffer.where.partition, led, len(topic.buffers), self._random)
            self._open.pop(buffer.where.topic, None)

    # Topics.

    def _topic(self, name: str) -> _Topic:
        """Return a topic's buffers; the first time, ask for its metadata."""
        self._check_usable()
        found = self._topics.get(name)
        return execute(self._find_topic(name), self._run_step) if found is None else found

    def _topic_operation(self, name: str) -> Operation[_Topic]:
        self._check_usable()
        found = self._topics.get(name)
        return (yield from self._find_topic(name)) if found is None else found

    def _find_topic(self, name: str) -> Operation[_Topic]:
        """Ask for a topic's metadata until it is there, or is not for longer than a new topic may take."""
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        grace = time.monotonic() + min(TOPIC_GRACE_S, self._config.max_block_ms / 1000)
        attempt = 0
        unknown: HeadraceError | None = None
        while True:
            attempt += 1
            left = max(0.001, deadline - time.monotonic())
            try:
                yield from self._read_metadata([name], min(left, self._config.request_timeout_ms / 1000))
                topic_leaders = self._require_leaders(name)
            except HeadraceError as error:
                unknown = error if _is_unknown_topic(error) else unknown
                until = deadline if error.retriable else grace
                if (not error.retriable and not _is_unknown_topic(error)) or time.monotonic() >= until:
                    if unknown is None or unknown is error:
                        raise
                    raise unknown from error  # That nobody answered in the last moment says nothing new.
                delay = self._backoff.delay_ms(attempt, error.retry_after_ms) / 1000
                yield Pause(min(delay, max(0.0, until - time.monotonic())))
                self._check_usable()
                continue
            return self._install(topic_leaders)

    def _run_step(self, step: Any) -> Any:
        """Do one step; a pause ends with the producer."""
        if isinstance(step, Pause):
            return self._maintenance.pause(step.seconds)
        if isinstance(step, ReserveMemory):
            return self._take_memory(*step)
        return self._connections.run_step(step)

    def _require_leaders(self, name: str) -> TopicLeaders:
        with self._lock:
            topic_leaders = self._cluster_metadata.require(name)
        if not topic_leaders.partitions:
            raise UnknownPartitionError(f"topic {name} has no partitions yet", retriable=True)
        return topic_leaders

    def _install(self, topic_leaders: TopicLeaders) -> _Topic:
        """Make buffers for a topic, or for the partitions that it has got since."""
        with self._topics_lock:
            self._check_usable()
            known = self._topics.get(topic_leaders.name)
            if known is not None and known.topic_leaders.topic_id == topic_leaders.topic_id:
                buffers = known.buffers
                if len(buffers) >= topic_leaders.partitions:
                    return known
            else:
                if known is not None:
                    self._retire(known)
                buffers = []
            more = [
                self._make_buffer(topic_leaders, number) for number in range(len(buffers), topic_leaders.partitions)
            ]
            sticky = next_sticky(-1, topic_leaders.led_partitions(), topic_leaders.partitions, self._random)
            topic = _Topic(topic_leaders, [*buffers, *more], sticky)
            self._topics[topic_leaders.name] = topic
            if self._plain:
                self._keyed[topic_leaders.name] = topic.buffers
            return topic

    def _make_buffer(self, topic_leaders: TopicLeaders, partition: int) -> PartitionBuffer:
        where = TopicPartition(topic_leaders.name, partition)
        return PartitionBuffer(
            where,
            PartitionQueue(where, topic_leaders.topic_id),
            batch_bytes=self._config.batch_bytes,
            max_batch_bytes=min(topic_leaders.max_batch_bytes or DEFAULT_MAX_BATCH_BYTES, 24 * 1024 * 1024),
            batch_records=self._config.batch_records,
            run_batches=MAX_BATCHES_IN_FLIGHT if self._config.idempotent else UNNUMBERED_BATCHES,
        )

    def _retire(self, topic: _Topic) -> None:
        """Take a topic out of use: what is open goes its way, nothing more is appended."""
        self._topics.pop(topic.topic_leaders.name, None)
        self._open.pop(topic.topic_leaders.name, None)
        self._keyed.pop(topic.topic_leaders.name, None)
        for buffer in topic.buffers:
            self._seal_now(buffer)
            with buffer.lock:
                late = self._seal(buffer)
                buffer.retired = True
            if late is not None:
                self._encode_sealed(late)
        self._dispatch()

    def _retire_buffers(self) -> None:
        for topic in list(self._topics.values()):
            self._retire(topic)

    def _choose(self, topic: _Topic, key: bytes | None, partition: int | None) -> int:
        if partition is None:
            return self._partition_for(topic.topic_leaders.name, key, len(topic.buffers))
        self._check_partition(topic, partition)
        return partition

    def _partition_for(self, topic: str, key: bytes | None, count: int) -> int:
        custom = self._config.partitioner
        if custom is not None:
            return check_partition(custom(topic, key, count), count, topic)
        if key is not None:
            return partition_for_key(key, count)
        found = self._topics.get(topic)
        return 0 if found is None else found.sticky

    def _check_partition(self, topic: _Topic, partition: int) -> None:
        if not 0 <= partition < len(topic.buffers):
            raise UnknownPartitionError(
                f"{topic.topic_leaders.name} has partitions 0 to {len(topic.buffers) - 1}, not {partition}",
                outcome=Outcome.NOT_APPLIED,
            )

    # Metadata and the producer id, run by `ProducerMaintenance` or by the first sender to a topic.

    def _read_metadata(self, names: list[str], timeout: float) -> Operation[None]:
        refs = [topics_pb2.TopicRef(name=name) for name in names]
        request = cluster_pb2.GetMetadataRequest(topics=refs, brokers_only=not refs)
        response = yield from self._bootstrap.metadata(request, timeout)
        with self._lock:
            self._cluster_metadata.update(response)
            finished = self._in_flight_requests.metadata_changed()
        self._finish(finished)
        self._look_after(monotonic_ms())

    def _refresh(self) -> bool:
        return execute(self._refresh_operation(), self._run_step)

    def _refresh_operation(self) -> Operation[bool]:
        """Read metadata and the producer id where they are wanted; whether nothing is wanted any more."""
        timeout = self._config.request_timeout_ms / 1000
        with self._lock:
            queued = self._in_flight_requests.waiting_topics()
        yield from self._read_metadata(list(dict.fromkeys([*self._topics, *queued])), timeout)
        for name in [] if self._closed else list(self._topics):
            topic_leaders = self._cluster_metadata.topic(name)
            if topic_leaders is not None:
                self._install(topic_leaders)
            elif (error := self._cluster_metadata.error(name)) is not None and _is_unknown_topic(error):
                with self._topics_lock:
                    gone = self._topics.get(name)
                    if gone is not None:
                        self._retire(gone)
        if self._config.idempotent and not self._in_flight_requests.has_identity:
            answer = yield from self._bootstrap.coordinator(
                "InitProducerId", cluster_pb2.InitProducerIdRequest(), timeout
            )
            with self._lock:
                self._in_flight_requests.set_identity(answer.producer_id, answer.producer_epoch)
        self._dispatch()
        with self._lock:
            return not self._in_flight_requests.needs_metadata and not self._in_flight_requests.needs_producer_id

    # Ends.

    def _check_usable(self, *, closed_is_fine: bool = False) -> None:
        if self._forked_at:
            raise ForkedError("Producer")
        if self._closed and not closed_is_fine:
            raise ClosedError("Producer")

    def _forked(self) -> None:
        """In the child after a fork: every method says so from now on."""
        self._forked_at = True
        self._open.clear()
        self._keyed.clear()


def _claims_producer(config: ProducerConfig) -> Producer:
    producer = Producer(**publisher_settings(config))
    _live.discard(producer)  # It is closed by the one whose claims it sends.
    return producer


def _is_unknown_topic(error: HeadraceError) -> bool:
    return error.code.name in {"UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "UNKNOWN_PARTITION"}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_live: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _close_at_exit() -> None:
    """Flush producers that were left open, within a time limit."""
    for producer in list(_live):
        try:
            producer.close(ATEXIT_TIMEOUT_S)
        except HeadraceError as error:
            _log.error("records were lost at exit: %s", error)


# Runs after threads that are not daemons have ended; gRPC's own, which deliver, are daemons and still run.
atexit.register(_close_at_exit)
