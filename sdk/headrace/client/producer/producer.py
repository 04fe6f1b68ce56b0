"""The blocking `Producer`. Any thread.

No thread is between the caller and the wire: the caller that fills a batch seals it, encodes it and starts the call;
responses come on gRPC's thread, which starts the next call; one background thread seals batches that have lingered, and
reads metadata and the producer id when they are wanted. `ProducerCore` decides all of it.

The path of a record is `send` down to the first `return`; it is written out flat because it runs once a record.
"""

import atexit
import contextlib
import logging
import time
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, Unpack

from headrace.client.base.call_counts import CallStats
from headrace.client.base.config import ProducerConfig, build, client_repr
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.base.operations import execute
from headrace.client.base.records import RecordMetadata
from headrace.client.base.settings_types import ProducerSettings
from headrace.client.base.unclosed import ATEXIT_TIMEOUT_S, close_in_thread
from headrace.client.interceptors.audit import publisher_settings
from headrace.client.interceptors.audit_interceptor import AuditInterceptor
from headrace.client.producer.accumulator import RECORD_OVERHEAD, Headers
from headrace.client.producer.futures import BatchFuture, RecordFuture, future_for
from headrace.client.producer.producer_core import ProducerCore
from headrace.client.producer.producer_io import BlockingProducerIO
from headrace.client.producer.sender import ProducerStats
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

__all__ = ["Producer", "RecordMetadata"]

_log = logging.getLogger("headrace.client")


class Producer:
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
        audit = [AuditInterceptor(config, lambda: _claims_producer(config))] if config.audit_topic else []
        self._io = BlockingProducerIO(config)
        self._core = ProducerCore(config, self._io, [*config.interceptors, *audit], uses_appenders=True)
        self._appenders = self._core.open_batches.appenders
        self._keyed = self._core.keyed
        self._return_futures = config.return_futures
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
        config = self._core.config
        return client_repr("Producer", config, f"client_id={config.client_id}")

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # Wrong settings leave none.
        if core is not None and self._io.connections.is_open and not core.is_forked:
            close_in_thread(self, self.close)

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
            topic: the topic's name.
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
                return self._appenders[topic](value)  # type: ignore[return-value]
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

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> RecordFuture:
        """Take a record that the fast path does not take."""
        core = self._core
        record = core.make_record(topic, value, key, headers, partition, timestamp_ms)
        done = core.append(record) or core.append(record)  # Once more after the full batch was sealed.
        if not isinstance(done, RecordFuture):
            done = execute(core.append_waiting(record), self._io.run_step)
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
    ) -> BatchFuture:
        """Take many records at once: the bulk path.

        Args:
            topic: the topic's name.
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
        operation = self._core.send_many(topic, values, keys, headers, timestamps_ms, partition)
        return BatchFuture(execute(operation, self._io.run_step))

    def flush(self, timeout: float | None = None) -> None:
        """Send everything that was taken so far and wait until it is acknowledged.

        Raises:
            DeliveryError: what failed since the last flush, or is still on its way after `timeout` seconds.
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
        """Flush for up to `timeout` seconds, then give up what is left, and close. Calling it again does nothing.

        Raises:
            DeliveryError: what was not delivered.
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
            UnknownTopicError, NoBrokersAvailableError: as `send`.
        """
        return len(execute(self._core.topic(topic), self._io.run_step).buffers)

    def stats(self) -> ProducerStats:
        """Return counts of records sent and records in flight; cheap, any thread."""
        return self._core.sender.stats()

    def calls(self) -> CallStats:
        """Return statistics of the produce calls; cheap, any thread."""
        return self._core.sender.calls()._replace(grpc_fallbacks=self._io.connections.native.ports.fallbacks)

    def continue_from(self, where: TopicPartition, sequence: int) -> None:
        """Begin a partition that has had no record yet with this sequence.

        It is the number of records of this `producer_id` and `producer_epoch` that are stored there, as far as the
        caller has seen. The leader refuses it if there are more.
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


# Runs after threads that are not daemons have ended; gRPC's own, which deliver, are daemons and still run.
atexit.register(_close_at_exit)
