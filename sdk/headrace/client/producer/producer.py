"""Blocking `Producer`. Any thread.

No thread is between the caller and the network: the caller that fills a batch seals it, encodes it and starts the call.
Responses arrive on gRPC's thread, which starts the next call. One background thread seals lingering batches and
requests metadata and the producer id when needed. `ProducerCore` makes all decisions.

The path of a record is `send` down to the first `return`; it is written inline because it runs once per record. Its
parameters can be positional because Python calls a function with keyword-only ones at twice the cost.
"""

import atexit
import contextlib
import logging
import time
import weakref
from collections.abc import Sequence
from typing import Any, Unpack
from zlib import crc32

from headrace.client.base.call_counts import CallStats
from headrace.client.base.config import ProducerConfig, build, client_repr
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.base.operations import execute
from headrace.client.base.records import RecordMetadata
from headrace.client.base.settings_types import ProducerSettings
from headrace.client.base.unclosed import ATEXIT_TIMEOUT_S, close_in_thread
from headrace.client.interceptors.audit import publisher_settings
from headrace.client.interceptors.audit_interceptor import AuditInterceptor
from headrace.client.producer.accumulator import Headers
from headrace.client.producer.futures import BatchFuture, PendingRecord, RecordFuture
from headrace.client.producer.producer_core import ProducerCore
from headrace.client.producer.producer_io import BlockingProducerIO
from headrace.client.producer.sender import ProducerStats
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

__all__ = ["Producer", "RecordMetadata"]

_log = logging.getLogger("headrace.client")


class Producer:
    """Sends records.

    `send` returns at once, and blocks only while the buffer is full or a topic is new. Delivery errors are reported by
    futures, and by `flush` and `close`. Use it as a context manager, from any number of threads; create it after
    forking.
    """

    def __init__(self, **settings: Unpack[ProducerSettings]) -> None:
        """Create a producer with the settings of `ProducerConfig`. Connects on first use.

        Raises:
            ConfigError: For an unknown setting, a value out of range, or contradictory settings.
            UnsupportedCodecError: If the compression's package is not installed; the message names it.
        """
        config = build(ProducerConfig, settings)
        audit = [AuditInterceptor(config, lambda: _claims_producer(config))] if config.audit_topic else []
        self._io = BlockingProducerIO(config)
        self._core = ProducerCore(config, self._io, [*config.interceptors, *audit], RecordFuture)
        self._appenders = self._core.open_batches.appenders
        self._keyed_appenders = self._core.open_batches.keyed_appenders
        self._return_futures = config.return_futures
        _live.add(self)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flush and close; after an exception, close with a short wait so that the exception is not delayed."""
        if exc_type is None:
            self.close()
        else:
            with contextlib.suppress(HeadraceError):
                self.close(timeout=1.0)

    def __repr__(self) -> str:
        config = self._core.config
        return client_repr("Producer", config, f"client_id={config.client_id}")

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # Not set after wrong settings.
        if core is not None and self._io.connections.is_open and not core.is_forked:
            close_in_thread(self, self.close)

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Queue one record for delivery.

        Args:
            topic: name of the topic.
            value: bytes, or an input of value_serializer; `None` is a null value. For a typed topic a dict by column.
            key: bytes, or an input of key_serializer; determines the partition.
            headers: (name, bytes) pairs.
            partition: partition that overrides the partitioner.
            timestamp_ms: ms since 1970; `None` means now.

        Returns:
            A future; with `return_futures=False` it is `None`.

        Raises:
            BufferFullError: If the buffer stayed full for max_block_ms; the record was not accepted.
            BatchTooLargeError: If the record is larger than the topic allows.
            SerializationError: If it is not bytes, the serializer failed, or its headers or its timestamp are invalid.
            UnknownTopicError, UnknownPartitionError, NoBrokersAvailableError: If there is no destination.
            ClosedError, ForkedError: If a new producer is needed.
        """
        if headers is None and partition is None and timestamp_ms is None and type(value) is bytes:
            try:
                if key is None:
                    return self._appenders[topic](value)  # type: ignore[return-value]
                if type(key) is bytes:
                    appenders = self._keyed_appenders[topic]
                    return appenders[crc32(key) % len(appenders)]((key, value))  # type: ignore[return-value]
            except (KeyError, StopIteration, ValueError):
                pass  # There is no open batch with room for it.
        return self._send(topic, value, key, headers, partition, timestamp_ms)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> RecordFuture:
        """Queue a record that the fast path does not support."""
        core = self._core
        record = core.make_record(topic, value, key, headers, partition, timestamp_ms)
        try:
            done = core.append(record) or core.append(record)  # Again after the full batch was sealed.
            if not isinstance(done, PendingRecord):
                done = execute(core.append_waiting(record), self._io.run_step)
        except BaseException as error:
            if record.span is not None:
                record.span.fail(error)
            raise
        return done if self._return_futures else None  # type: ignore[return-value]

    def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps_ms: Any = None,
        partition: int | None = None,
        group_ends: Any = None,
    ) -> BatchFuture:
        """Queue many records at once: the bulk path.

        Args:
            topic: name of the topic.
            values: a sequence of values as for `send`, or a pyarrow binary or string array.
            keys: the same for keys; each record goes to its key's partition, unless `partition` is given.
            headers: one sequence of pairs per record, or `None` each.
            timestamps_ms: one per record; `None` means now.
            partition: partition of all records, in order. Without it and without keys they fill the sticky partition.
            group_ends: divides the records into groups, each of which is stored as a whole or not at all: the number of
                records up to the end of each group. Needs `partition`.

        Returns:
            A future per batch.

        Raises:
            HeadraceError: As `send`. Records before the one that failed may have been accepted.
        """
        operation = self._core.send_many(topic, values, keys, headers, timestamps_ms, partition, group_ends)
        return BatchFuture(execute(operation, self._io.run_step))

    def send_table(
        self, topic: str, table: Any, *, keys: Any = None, timestamps_ms: Any = None, partition: int | None = None
    ) -> BatchFuture:
        """Queue the rows of a table for a typed topic: the bulk path, without a step per row.

        Columns are found by name and cast without a loss; one that the table lacks has its default or null.

        Args:
            topic: name of a typed topic.
            table: a pyarrow table or record batch, or a data frame of pandas or Polars.
            keys: a key of bytes per row, unless the topic has key columns; see `send_many`.
            timestamps_ms: one per row; `None`, for one or for all, means now.
            partition: partition of all rows, in order. Without it and without keys they fill the sticky partition.

        Returns:
            A future per batch.

        Raises:
            SerializationError: If the table does not fit the columns; the message has the column and the row.
            HeadraceError: As `send`. Rows before the one that failed may have been accepted.
        """
        operation = self._core.send_table(topic, table, keys, timestamps_ms, partition)
        return BatchFuture(execute(operation, self._io.run_step))

    def flush(self, timeout: float | None = None) -> None:
        """Send all accepted records and wait until they are acknowledged.

        Raises:
            DeliveryError: For records that failed since the last flush, or are pending after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = self._core.begin_flush()
        for batch in waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                batch.pending.wait(left)
            except TimeoutError:
                break
            except HeadraceError:
                continue
        self._core.end_flush(waiting)

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush for up to `timeout` seconds, then abandon the rest, and close. Calling it again does nothing.

        Raises:
            DeliveryError: For records that were not delivered.
        """
        if self._core.is_closed or self._core.is_forked:
            self._core.is_closed = True
            return
        try:
            self._core.begin_close()
            self.flush(timeout)
        finally:
            with DeferredKeyboardInterrupt():
                self._core.end_close()
                self._io.close()
                _live.discard(self)
            self._core.interceptors.close(timeout)

    def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            UnknownTopicError, NoBrokersAvailableError: As `send`.
        """
        return len(execute(self._core.topic(topic), self._io.run_step).buffers)

    def stats(self) -> ProducerStats:
        """Return counts of records sent and records in flight; cheap, any thread."""
        return self._core.sender.stats()

    def calls(self) -> CallStats:
        """Return statistics of the produce calls; cheap, any thread."""
        return self._core.sender.calls()._replace(grpc_fallbacks=self._io.connections.native.ports.fallbacks)

    def continue_from(self, where: TopicPartition, sequence: int) -> None:
        """Start a partition without records at this sequence.

        It is the number of records stored there with this `producer_id` and `producer_epoch`, as far as the caller has
        seen. The leader refuses it if there are more.
        """
        self._core.sender.continue_from(where, sequence)


def _claims_producer(config: ProducerConfig) -> Producer:
    producer = Producer(**publisher_settings(config))
    _live.discard(producer)  # The interceptor that sends the claims closes it.
    return producer


_live: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _close_at_exit() -> None:
    """Flush producers that were left open, within a time limit."""
    for producer in list(_live):
        try:
            producer.close(ATEXIT_TIMEOUT_S)
        except HeadraceError as error:
            _log.error("records were lost at exit: %s", error)


# Runs after non-daemon threads have ended; gRPC's threads, which deliver, are daemons and still run.
atexit.register(_close_at_exit)
