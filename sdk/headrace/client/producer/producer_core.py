"""Core of both producers: topics, partitions, bulk sending, metadata, flush and close. Never waits itself.

Owned by a blocking or an asyncio `Producer`. A `ProducerIO` creates its locks and calls, and runs its background; the
producer runs its operations and waits for its futures. `OpenBatches` appends and seals, `Sender` sends sealed batches.

Locks must be taken in this order: that of the topics, a buffer's (appending), then the sender's or the buffer pool's.
Except for that of the topics, none is held to encode, to call or to wait. The dictionaries of appenders are
the fast path: they lack unknown topics, and are empty after a fork or a close.
"""

import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ProducerConfig
from headrace.client.base.errors import (
    BufferFullError,
    ClosedError,
    ConfigError,
    ForkedError,
    NoBrokersAvailableError,
    SerializationError,
)
from headrace.client.base.forking import ForkGuard
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.base.operations import Operation, Pause
from headrace.client.base.retry import Backoff
from headrace.client.base.serializers import resolve_serializer, serialize
from headrace.client.interceptors.interceptor import Interceptors, ProducerInterceptor
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.cluster_metadata import TopicLeaders
from headrace.client.producer.accumulator import BufferPool, Headers, headers_cost, record_cost
from headrace.client.producer.bulk import Bulk, bulk_of
from headrace.client.producer.futures import FutureType, PendingRecord
from headrace.client.producer.maintenance import ProducerMaintenance
from headrace.client.producer.open_batches import OpenBatches, UnsentRecord, too_large
from headrace.client.producer.partition_queue import SealedBatch
from headrace.client.producer.producer_topics import ProducerTopic, ProducerTopics, is_unknown_topic
from headrace.client.producer.record_fields import checked_headers, checked_timestamp
from headrace.client.producer.rows import TypedBulk, TypedRow, bulk_of_table, checked_row
from headrace.client.producer.sender import ProducerIO, Sender
from headrace.client.tracing.sending import SendTracing
from headrace.display.progress import ProgressBar, progress_bar
from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import BatchTooLargeError, HeadraceError, Outcome, UnknownTopicIdError
from headrace.wire.typed.topic_columns import TopicColumns

_log = logging.getLogger("headrace.client")

TOPIC_GRACE_S = 2.0
"""Time for which a topic may be unknown before an error is raised: a server may lack the newest metadata."""


class ProducerCore:
    """Core of one producer. Any thread, if its locks are thread locks."""

    def __init__(
        self,
        config: ProducerConfig,
        io: ProducerIO,
        interceptors: Sequence[ProducerInterceptor],
        future_type: FutureType,
    ) -> None:
        """Connect on first use. `future_type` is the class of its futures.

        Raises:
            ConfigError: If an interceptor lacks a method.
            UnsupportedCodecError: If the compression's package is not installed; the message names it.
        """
        self.config = config
        self._future_type = future_type
        self.interceptors = Interceptors(interceptors)
        self._key_serializer = resolve_serializer(config.key_serializer, "key_serializer")
        self._value_serializer = resolve_serializer(config.value_serializer, "value_serializer")
        is_plain = config.partitioner is None and self._value_serializer is None and self._key_serializer is None
        chance = random.Random()
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, chance)
        pool_lock = io.make_lock()
        self.buffer_pool = BufferPool(config.buffer_memory, pool_lock, io.background.make_changes(pool_lock))
        self.maintenance = ProducerMaintenance(
            self, io.background, io.make_lock(), backoff, metadata_max_age_ms=config.metadata_max_age_ms
        )
        self.sender = Sender(config, io, backoff, self.buffer_pool, self.maintenance, self.interceptors)
        self.topics = ProducerTopics(config, io, self.sender.cluster_metadata, chance)
        self._tracing = SendTracing(config)
        self.open_batches = OpenBatches(
            config,
            self.buffer_pool,
            self.maintenance,
            self.sender,
            self.topics,
            self._tracing,
            future_type=future_type,
            uses_appenders=is_plain,
        )
        self._backoff = backoff
        self._bootstrap = BootstrapClient(config)
        self.is_closed = False
        self.is_forked = False
        self._fork = ForkGuard(self._after_fork)

    # --- records ---

    def make_record(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> UnsentRecord:
        """Return the argument of `append`. Its span, if it has one, is ended with its batch, or by the caller.

        Raises:
            SerializationError: If it is not bytes, the serializer failed, or its headers or its timestamp are invalid.
        """
        if headers is not None:
            headers = checked_headers(headers)
        if timestamp_ms is not None:
            timestamp_ms = checked_timestamp(timestamp_ms)
        data: bytes | TypedRow | None
        if self._value_serializer is None and isinstance(value, Mapping):
            data = TypedRow(value)
        else:
            data = serialize(self._value_serializer, value, "value")
        key_data = None if key is None else serialize(self._key_serializer, key, "key")
        span = None
        if self._tracing.telemetry is not None:
            span, headers = self._tracing.begin(topic, headers)
        cost = record_cost(data, key_data, headers)
        return UnsentRecord(topic, data, key_data, headers, partition, timestamp_ms, cost, span)

    def append(self, record: UnsentRecord) -> PendingRecord | int:
        """Append one record if that needs no wait.

        Returns:
            Its future; or the number of bytes that the buffer pool lacks; or 0 if a batch was sealed or the topic is
            unknown: then use `append_waiting`.
        """
        found = self.topics.known.get(record.topic)
        if found is None:
            return 0
        sender = record  # Waits for room, whatever copy of it is appended.
        if found.columns is not None or isinstance(record.value, TypedRow):
            record = _typed(record, found.columns)
        buffer = found.buffers[self.topics.choose(found, record.key, record.partition)]
        if record.cost > buffer.largest and record.span is not None and record.span.adds_header:
            record = _without_last_header(record)
        return self.open_batches.append(buffer, record, sender)

    def append_waiting(self, record: UnsentRecord) -> Operation[PendingRecord]:
        """Append one record; wait for metadata and for room, at most `max_block_ms` each."""
        deadline = time.monotonic() + self.config.max_block_ms / 1000
        try:
            while True:
                yield from self.topic(record.topic)
                done = self.append(record)
                if isinstance(done, PendingRecord):
                    return done
                if done:
                    yield from self._wait_for_room(done, record, deadline)
                else:
                    yield Pause(0)  # A batch was sealed: a loop that only sends must let its call start.
        finally:
            self.buffer_pool.leave(record)

    def _wait_for_room(self, amount: int, sender: object, deadline: float) -> Operation[None]:
        """Wait until `sender` has its turn and the buffer pool has `amount` bytes."""
        self.open_batches.seal_all()
        has_room = yield from self.buffer_pool.wait_for(amount, sender, max(0.0, deadline - time.monotonic()))
        self.check_usable()
        if not has_room:
            raise BufferFullError(self.config.buffer_memory, self.config.max_block_ms)

    def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any,
        headers: Sequence[Headers | None] | None,
        timestamps_ms: Any,
        partition: int | None,
        group_ends: Any,
    ) -> Operation[list[tuple[PendingRecord, int]]]:
        """Queue many records; return the future of each batch's first record, and the number of records."""
        if group_ends is not None and partition is None:
            raise ConfigError("group_ends needs partition", action="Send the records of each partition by themselves.")
        bulk = bulk_of(values, keys, headers, timestamps_ms, self._key_serializer, self._value_serializer, group_ends)
        found = yield from self.topic(topic)
        if found.columns is not None:
            raise _is_typed(topic, found.columns)
        return (yield from self._send_parts(topic, found, bulk, keys is not None, partition))

    def send_table(
        self, topic: str, table: Any, keys: Any, timestamps_ms: Any, partition: int | None
    ) -> Operation[list[tuple[PendingRecord, int]]]:
        """Queue the rows of a table; see `send_many`."""
        found = yield from self.topic(topic)
        if found.columns is None:
            raise SerializationError(
                f"{topic} is not a typed topic", action="Create one with columns, or send bytes by send_many."
            )
        bulk = bulk_of_table(topic, table, keys, timestamps_ms, found.columns)
        has_keys = keys is not None or bool(found.columns.keys)
        return (yield from self._send_parts(topic, found, bulk, has_keys, partition))

    def _send_parts(
        self, topic: str, found: ProducerTopic, bulk: Bulk | TypedBulk, has_keys: bool, partition: int | None
    ) -> Operation[list[tuple[PendingRecord, int]]]:
        parts: list[tuple[PendingRecord, int]] = []
        plan: Iterable[tuple[int | None, Bulk | TypedBulk]] = [(partition, bulk)]
        if partition is not None:
            self.topics.choose(found, None, partition)
        elif has_keys or self.config.partitioner is not None:
            plan = [*bulk.by_partition(lambda key: self.topics.choose(found, key, None))]
        with progress_bar(f"send to {topic}", "records", len(bulk)) as bar:
            for chosen, share in plan:
                try:
                    yield from self._send_bulk(found.topic_leaders, chosen, share, parts, bar)
                finally:
                    self.buffer_pool.leave(share)
        return parts

    def _send_bulk(
        self,
        topic_leaders: TopicLeaders,
        chosen: int | None,
        bulk: Bulk | TypedBulk,
        parts: list[tuple[PendingRecord, int]],
        progress: ProgressBar,
    ) -> Operation[None]:
        """Convert columns into batches without a step per record, after the open batch of the partition.

        Raises:
            UnknownTopicIdError: If the topic for which they were divided was created again in the meantime.
        """
        deadline = time.monotonic() + self.config.max_block_ms / 1000
        start = 0
        while start < len(bulk):
            found = yield from self.topic(topic_leaders.name)
            if found.topic_leaders.topic_id != topic_leaders.topic_id:
                message = f"topic {topic_leaders.name} was deleted and created again"
                raise UnknownTopicIdError(message, outcome=Outcome.NOT_APPLIED)
            buffer = found.buffers[found.sticky if chosen is None else chosen]
            together = buffer.run_records if bulk.group_ends is None else buffer.batch_records
            end, cost = bulk.cut(start, buffer.batch_limit, together)
            if end - start > together:
                raise BatchTooLargeError(f"a group of {end - start} records exceeds batch_records={together}")
            if cost > buffer.largest:
                raise too_large(buffer, cost)
            pending = self.open_batches.pending_for(buffer)
            if isinstance(bulk, TypedBulk) and end - start <= buffer.batch_records:
                pending.batch_records = end - start
                most = min(self.config.max_request_bytes, self.config.buffer_memory // 4)
                end, cost = bulk.two_batches(start, end, cost, most)
            pending.timestamps_ms = bulk.timestamps(start, end)
            if pending.spans is not None:
                pending.spans.inherit()
            with DeferredKeyboardInterrupt():
                missing = self.open_batches.send_bulk(buffer, pending, bulk, range(start, end), cost)
            if missing is not None:
                yield from self._wait_for_room(missing, bulk, deadline)
                continue
            self.buffer_pool.leave(bulk)
            for first in range(start, end, pending.batch_records):
                parts.append((self._future_type.of(pending, first - start), min(pending.batch_records, end - first)))
            if chosen is None:
                self.open_batches.move_sticky(buffer)
            progress.add(end - start)
            start = end

    def seal_due(self) -> int | None:
        """Seal lingering batches, send batches that can be sent, and end expired ones.

        Return the next time to check, in monotonic ms. Called by the maintenance, after a response and on a timer.
        """
        now_ms = monotonic_ms()
        next_ms = self.open_batches.seal_lingering(now_ms)
        event_ms = self.sender.look_after(now_ms)
        self.sender.dispatch()
        if next_ms is None or event_ms is None:
            return event_ms if next_ms is None else next_ms
        return min(next_ms, event_ms)

    # --- topics and metadata ---

    def topic(self, name: str) -> Operation[ProducerTopic]:
        """Return a topic's buffers; read its metadata the first time.

        Raises:
            UnknownTopicError, NoBrokersAvailableError: If it cannot be read within `max_block_ms`.
            ClosedError, ForkedError: If a new producer is needed.
        """
        self.check_usable()
        found = self.topics.known.get(name)
        return (yield from self._find_topic(name)) if found is None else found

    def _find_topic(self, name: str) -> Operation[ProducerTopic]:
        """Read a topic's metadata until it exists, or has been unknown for longer than a new topic can be."""
        deadline = time.monotonic() + self.config.max_block_ms / 1000
        grace = time.monotonic() + min(TOPIC_GRACE_S, self.config.max_block_ms / 1000)
        attempt = 0
        unknown: HeadraceError | None = None
        while True:
            attempt += 1
            left = max(0.001, deadline - time.monotonic())
            try:
                yield from self._read_metadata([name], min(left, self.config.request_timeout_ms / 1000))
                topic_leaders = self.sender.require_topic(name)
            except HeadraceError as error:
                unknown = error if is_unknown_topic(error) else unknown
                until = deadline if error.retriable else grace
                if (not error.retriable and not is_unknown_topic(error)) or time.monotonic() >= until:
                    if unknown is None or unknown is error:
                        raise
                    raise unknown from error  # A missing response at the deadline adds no information.
                if attempt == 1 and isinstance(error, NoBrokersAvailableError):
                    seconds = self.config.max_block_ms / 1000
                    _log.warning("%s; send to %s is tried again for up to %g s", error.message, name, seconds)
                delay = self._backoff.delay_ms(attempt, error.retry_after_ms) / 1000
                yield Pause(min(delay, max(0.0, until - time.monotonic())))
                self.check_usable()
                continue
            return self._install(topic_leaders)

    def _install(self, topic_leaders: TopicLeaders) -> ProducerTopic:
        """Create buffers for a topic, or for its new partitions, and change the columns of those that exist."""
        with self.topics.lock:
            self.check_usable()
            known = self.topics.known.get(topic_leaders.name)
            if known is not None and known.topic_leaders.topic_id != topic_leaders.topic_id:
                self._retire(known)
            self.open_batches.add_topic(topic_leaders.name, topic_leaders.partitions)
            topic = self.topics.install(topic_leaders)
            for buffer in topic.buffers:
                if buffer.columns != topic.columns:
                    self.open_batches.change_columns(buffer, topic.columns)
            return topic

    def _retire(self, topic: ProducerTopic) -> None:
        """Retire a topic: open batches are sent, later appends are rejected."""
        self.topics.known.pop(topic.topic_leaders.name, None)
        self.open_batches.forget([topic.topic_leaders.name])
        for buffer in topic.buffers:
            self.open_batches.retire(buffer)

    def _read_metadata(self, names: Iterable[str], timeout: float) -> Operation[None]:
        refs = [topics_pb2.TopicRef(name=name) for name in names]
        request = cluster_pb2.GetMetadataRequest(topics=refs, brokers_only=not refs)
        self.sender.take_metadata((yield from self._bootstrap.metadata(request, timeout)))

    def refresh(self) -> Operation[bool]:
        """Read metadata, and the producer id if it is missing; return whether nothing is needed any more."""
        timeout = self.config.request_timeout_ms / 1000
        names = dict.fromkeys([*self.topics.known, *self.sender.waiting_topics()])
        yield from self._read_metadata(names, timeout)
        for name in [] if self.is_closed else list(self.topics.known):
            topic_leaders = self.sender.cluster_metadata.topic(name)
            if topic_leaders is not None:
                self._install(topic_leaders)
            elif (error := self.sender.cluster_metadata.error(name)) is not None and is_unknown_topic(error):
                with self.topics.lock:
                    gone = self.topics.known.get(name)
                    if gone is not None:
                        self._retire(gone)
        if self.sender.needs_identity():
            request = cluster_pb2.InitProducerIdRequest()
            self.sender.take_identity((yield from self._bootstrap.coordinator("InitProducerId", request, timeout)))
        self.sender.dispatch()
        return not self.sender.needs_refresh()

    # --- flush and close ---

    def begin_flush(self) -> list[SealedBatch]:
        """Send all open batches; return the batches to wait for."""
        self.check_usable(closed_is_fine=True)
        self.open_batches.seal_all()
        return self.sender.unresolved()

    def end_flush(self, waiting: list[SealedBatch]) -> None:
        """Raise `DeliveryError` for records that failed since the last flush, or are still pending of `waiting`."""
        self.sender.raise_failures(sum(batch.records for batch in waiting if not batch.pending.done()))

    def begin_close(self) -> None:
        """Reject new records; waits for room end, and open batches are sent."""
        self.is_closed = True
        self.open_batches.forget(self.topics.known)
        with DeferredKeyboardInterrupt():
            self.buffer_pool.close()
            with self.topics.lock:  # After another thread has finished installing a topic.
                topics = list(self.topics.known.values())
            for topic in topics:
                self._retire(topic)

    def end_close(self) -> None:
        """Abandon the rest, and end the maintenance."""
        self.sender.abandon(ClosedError("Producer"))
        self.maintenance.stop()

    def check_usable(self, *, closed_is_fine: bool = False) -> None:
        """Raise `ForkedError` in a child process, and `ClosedError` after the close."""
        if self.is_forked:
            raise ForkedError("Producer")
        if self.is_closed and not closed_is_fine:
            raise ClosedError("Producer")

    def _after_fork(self) -> None:
        """Make every method raise in the child after a fork."""
        self.is_forked = True
        self.open_batches.forget(self.topics.known)
        self.topics.known.clear()


def _typed(record: UnsentRecord, columns: TopicColumns | None) -> UnsentRecord:
    """Return the record of a row with its key, once the row is checked.

    Raises:
        SerializationError: If the topic is not typed, or the value is not a row that fits.
    """
    if columns is None:
        raise SerializationError(
            f"the value for {record.topic} is a dict, and the topic has no columns",
            action='Set value_serializer="json", or create the topic with columns.',
        )
    if not isinstance(record.value, TypedRow):
        raise _is_typed(record.topic, columns)
    return record._replace(key=checked_row(record.topic, record.value, record.key, columns), columns=columns)


def _without_last_header(record: UnsentRecord) -> UnsentRecord:
    """Return a record that has no room for the context of its span."""
    assert record.headers, "the last header is the context"
    headers, last = record.headers[:-1], record.headers[-1:]
    return record._replace(headers=headers or None, cost=record.cost - headers_cost(last))


def _is_typed(topic: str, columns: TopicColumns) -> SerializationError:
    return SerializationError(
        f"{topic} is a typed topic with the columns {columns.batch_text}",
        action="Send a dict for each record, without value_serializer, or a table by send_table.",
    )
