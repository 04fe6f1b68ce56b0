"""Sending of sealed batches, from their place in the queue to their completion.

`enqueue` assigns a batch its place and its sequence, `encode` creates its bytes, `dispatch` starts the calls that may
start, `landed` processes a response, and completed batches release their memory. `InFlightRequests` decides which calls
start and interprets responses; the I/O layer makes the calls. Any thread.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from headrace.client.base.background import Background
from headrace.client.base.call_counts import CallStats
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ProducerConfig
from headrace.client.base.errors import DeliveryError
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.client.interceptors.interceptor import Interceptors, ProducedBatch
from headrace.client.net.cluster_metadata import ClusterMetadata, TopicLeaders
from headrace.client.producer.accumulator import BufferPool, ClosedBatch, Headers
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.inflight import InFlightRequests
from headrace.client.producer.maintenance import ProducerMaintenance
from headrace.client.producer.partition_queue import Finished, PartitionQueue, Request, SealedBatch
from headrace.client.producer.produce_rpc import answers_of
from headrace.client.producer.sequences import ProducerStamp
from headrace.v1 import cluster_pb2
from headrace.wire.batch_runs import FEW_BATCHES
from headrace.wire.compression import Codec, compress
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError, InternalError, Outcome, TransportError, UnknownPartitionError
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import BufferVector

_log = logging.getLogger("headrace.client")

KEPT_FAILURES = 100

Landed = Callable[[Request, Any, HeadraceError | None], None]
"""Called with a request and its response, or the error if there is none."""


class ProducerIO(Protocol):
    """Services that a producer's core needs from its I/O layer."""

    @property
    def background(self) -> Background:
        """Background that runs the producer's maintenance."""

    def make_lock(self) -> AbstractContextManager[Any]:
        """Return a lock for state that several threads change, if there are several."""

    def start(self, request: Request, landed: Landed) -> None:
        """Start a Produce call; `landed` is called when it ends, once, on any thread.

        Raises:
            ClosedError: If the connections are closed.
        """

    def cancel(self, request: Request) -> None:
        """Cancel a call; its `landed` is called with an error."""

    def stop_waiting(self, request: Request) -> None:
        """End a call that waits for the session: its `landed` is called with an error. Does nothing to another call."""


class Encodes(Protocol):
    """Records of one partition, of `send` or of `send_many`."""

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
        """Encode the records `start` to `end` as one batch, in parts; the first one also has `more_headers`."""


class ProducerStats(NamedTuple):
    """Counts of a producer since it was created, and its current load."""

    sent_records: int
    """Number of records acknowledged; with acks=0, sent."""
    sent_batches: int
    failed_records: int
    buffered_bytes: int
    """Bytes of records not yet resolved, including those in flight."""
    inflight_requests: int


class Sender:
    """Sender of one producer's core."""

    def __init__(
        self,
        config: ProducerConfig,
        io: ProducerIO,
        backoff: Backoff,
        buffer_pool: BufferPool,
        maintenance: ProducerMaintenance,
        interceptors: Interceptors,
    ) -> None:
        """Create it without making a call.

        Raises:
            UnsupportedCodecError: If the compression's package is not installed; the message names it.
        """
        self._config = config
        self._io = io
        self._codec = Codec[config.compression_type.upper()]
        compress(self._codec, b"", config.compression_level)
        self._buffer_pool = buffer_pool
        self._maintenance = maintenance
        self._interceptors = interceptors if interceptors else None
        self.cluster_metadata = ClusterMetadata()
        """Changed under the lock; read without it."""
        self._in_flight_requests = InFlightRequests(
            self.cluster_metadata,
            backoff,
            idempotent=config.idempotent,
            max_in_flight_requests=config.max_in_flight_requests,
            max_request_bytes=config.max_request_bytes,
            request_timeout_ms=config.request_timeout_ms,
            identity=config.identity,
        )
        self._lock = io.make_lock()
        self._failures: list[tuple[TopicPartition, int, HeadraceError]] = []
        self._failed_records = 0
        self._is_definite = True
        """Whether no record that has failed since the last flush may be stored; not all failures are kept."""
        self._counted = ProducerStats(0, 0, 0, 0, 0)
        self._dispatching = False
        self._dispatch_again = False

    def stats(self) -> ProducerStats:
        """Return counts of records sent and records in flight; cheap, any thread."""
        in_flight = len(self._in_flight_requests.in_flight())
        return self._counted._replace(buffered_bytes=self._buffer_pool.used, inflight_requests=in_flight)

    def calls(self) -> CallStats:
        """Return statistics of the produce calls; cheap, any thread."""
        return self._in_flight_requests.counts.stats()

    def continue_from(self, where: TopicPartition, sequence: int) -> None:
        """See `Producer.continue_from`."""
        with self._lock:
            self._in_flight_requests.identity.continue_from(where, sequence)

    # --- from sealed to sent ---

    def enqueue(
        self, partition_queue: PartitionQueue, pending: PendingBatch, records: int, reserved_bytes: int
    ) -> SealedBatch:
        """Assign the place and the sequence of a batch. Called under the buffer's lock."""
        now_ms = monotonic_ms()
        deadline_ms = now_ms + self._config.delivery_timeout_ms
        with self._lock:
            if partition_queue.sequences.producer_id < 0:
                self._in_flight_requests.identity.start(partition_queue)
            batch = SealedBatch(partition_queue, pending, records, reserved_bytes, deadline_ms)
            self._in_flight_requests.add(batch)
            retry_at_ms = partition_queue.retry_at_ms
        if retry_at_ms > now_ms:  # The batches that failed may have expired: no timer ends the back-off.
            self._maintenance.due_at(min(retry_at_ms, deadline_ms))
        if self._interceptors is not None:
            self._interceptors.on_sealed(_produced(batch))
        return batch

    def encode(self, batch: SealedBatch, start: int, source: Encodes) -> None:
        """Encode the records of `source` from `start`, divided into batches; a batch that cannot be encoded fails."""
        step, records, stamp = batch.pending.batch_records, batch.records, batch.stamp
        encoded: list[BufferVector] = []
        together = None
        more_headers: Headers = ()
        try:
            if batch.pending.spans is not None:
                where, opened_ms = batch.partition_queue.where, batch.pending.timestamp_ms
                more_headers = batch.pending.spans.seal(where, records, batch.reserved_bytes, opened_ms)
            whole = records - records % step
            may_run = not more_headers and batch.count > FEW_BATCHES and self._codec is Codec.NONE
            if may_run and isinstance(source, ClosedBatch):
                together = source.encode_run(
                    start, start + whole, step, stamp, base_timestamp_ms=batch.pending.timestamp_ms
                )
            if together is not None:
                encoded.append(BufferVector([together.data], together.sizes))
            for at in range(0 if together is None else whole, records, step):
                parts = source.encode(
                    start + at,
                    start + min(at + step, records),
                    stamp.behind(at) if at else stamp,
                    base_timestamp_ms=batch.pending.timestamp_ms,
                    codec=self._codec,
                    level=self._config.compression_level,
                    more_headers=more_headers,
                )
                encoded.append(BufferVector(parts))
            batch.encoded = encoded
        except BaseException as error:
            typed = error
            if not isinstance(typed, HeadraceError):
                typed = InternalError(repr(error), outcome=Outcome.NOT_APPLIED)
                _log.exception("a batch of %s could not be encoded", batch.partition_queue.where)
            with self._lock:
                finished = self._in_flight_requests.give_up(batch, typed)
            self._finish(finished)
            if not isinstance(error, Exception):
                raise

    def dispatch(self) -> None:
        """Start every call that may start now.

        One thread at a time starts calls, so that they leave in the order of their sequences; another thread that comes
        in the meantime leaves its calls to it. Ctrl-C is deferred.
        """
        with self._lock:
            self._dispatch_again = True
            if self._dispatching:
                return
            self._dispatching = True
        while True:
            with self._lock:
                if not self._dispatch_again:
                    self._dispatching = False
                    return
                self._dispatch_again = False
                now_ms = monotonic_ms()
                requests = self._in_flight_requests.next_requests(now_ms)
                wanted = self._in_flight_requests.needs_metadata or self._in_flight_requests.identity.is_needed
            if wanted:
                self._maintenance.refresh_wanted()
            if requests:
                self._maintenance.due_at(now_ms + OVERDUE_MS)
            for request in requests:
                request.started_seconds = time.monotonic()
                try:
                    self._io.start(request, self.landed)
                except Exception as error:
                    self._not_started(request, error)

    def _not_started(self, request: Request, error: Exception) -> None:
        """Process a failure to start a call. It may succeed later, for example after a lack of threads or memory."""
        if not isinstance(error, HeadraceError):
            _log.exception("a call could not be started", exc_info=error)
            message = f"no call could be started: {error!r}"
            error = TransportError(message, outcome=Outcome.UNKNOWN, retriable=True)
        self._resolve(request, None, error)
        self._maintenance.due_at(monotonic_ms())

    # --- from sent to completed ---

    def landed(self, request: Request, response: Any, error: HeadraceError | None) -> None:
        """Process the end of a call, and do work that is now due."""
        try:
            self._resolve(request, response, error)
        except Exception as failure:
            _log.exception("a response could not be processed")
            self._resolve(request, None, InternalError(repr(failure), outcome=Outcome.UNKNOWN))
        self._maintenance.look()

    def _resolve(self, request: Request, response: Any, error: HeadraceError | None) -> None:
        now_ms, seconds = monotonic_ms(), time.monotonic() - request.started_seconds
        answers = [] if error is not None else answers_of(request, response, self._config)
        with self._lock:
            self._in_flight_requests.counts.took(seconds)
            if error is not None:
                error.request_id = error.request_id or request.request_id
                finished = self._in_flight_requests.failed(request, error, now_ms)
            else:
                finished = self._in_flight_requests.answered(request, answers, now_ms)
        self._finish(finished)

    def _finish(self, finished: list[Finished]) -> None:
        """Complete batches and release their memory."""
        if not finished:
            return
        sent_records = sent_batches = failed_records = 0
        failures = []
        for batch, _, error in finished:
            if error is None:
                sent_records += batch.records
                sent_batches += batch.count
            else:
                failed_records += batch.records
                failures.append((batch.partition_queue.where, batch.records, error))
        with self._lock:
            self._failed_records += failed_records
            self._failures += failures[: KEPT_FAILURES - len(self._failures)]
            self._is_definite &= all(error.outcome == Outcome.NOT_APPLIED for _, _, error in failures)
            before = self._counted
            self._counted = before._replace(
                sent_records=before.sent_records + sent_records,
                sent_batches=before.sent_batches + sent_batches,
                failed_records=before.failed_records + failed_records,
            )
        for batch, base_offsets, error in finished:
            self._buffer_pool.release(batch.reserved_bytes)
            batch.encoded = None
            if self._interceptors is not None:
                self._interceptors.on_finished(_produced(batch), error)
            batch.pending.complete(base_offsets, error)
        if failed_records:  # Behind an expired batch an open one may wait, for which no response comes and no timer.
            self._maintenance.due_at(monotonic_ms())

    def look_after(self, now_ms: int) -> int | None:
        """End expired batches, overdue calls if another leader is known, and the waits of calls that are late.

        Return the next time to check, in monotonic ms.
        """
        with self._lock:
            given_up, finished = self._in_flight_requests.give_up_overdue(now_ms)
            late = self._in_flight_requests.late(now_ms)
            finished += self._in_flight_requests.expire(now_ms)
            event_ms = self._in_flight_requests.next_event_ms(now_ms)
        self._finish(finished)
        for request in given_up:
            self._io.cancel(request)
        for request in late:
            self._io.stop_waiting(request)
        return event_ms

    def unresolved(self) -> list[SealedBatch]:
        """Return the batches that were sealed and have not finished, in order."""
        with self._lock:
            return list(self._in_flight_requests.unresolved)

    def raise_failures(self, pending_records: int) -> None:
        """Raise `DeliveryError` if records have failed since the last call, or `pending_records` is not 0."""
        with self._lock:
            failures, self._failures = self._failures, []
            failed, self._failed_records = self._failed_records, 0
            is_definite, self._is_definite = self._is_definite, True
        if failed or pending_records:
            raise DeliveryError(
                failures, failed_records=failed, pending_records=pending_records, is_definite=is_definite
            )

    def abandon(self, error: HeadraceError) -> None:
        """Fail the remaining batches, and cancel the calls in flight."""
        with self._lock:
            requests = self._in_flight_requests.in_flight()
            finished = self._in_flight_requests.abandon(error)
        self._finish(finished)
        for request in requests:
            self._io.cancel(request)

    # --- metadata and the producer id ---

    def require_topic(self, name: str) -> TopicLeaders:
        """Return the partitions of a topic from the last metadata.

        Raises:
            HeadraceError: The metadata's error for the topic.
        """
        with self._lock:
            topic_leaders = self.cluster_metadata.require(name)
        if not topic_leaders.partitions:
            raise UnknownPartitionError(f"topic {name} has no partitions yet", retriable=True)
        return topic_leaders

    def waiting_topics(self) -> list[str]:
        """Return the topics with queued batches."""
        with self._lock:
            return self._in_flight_requests.waiting_topics()

    def take_metadata(self, response: cluster_pb2.GetMetadataResponse) -> None:
        """Process metadata, and end the batches of deleted topics."""
        with self._lock:
            self.cluster_metadata.update(response)
            finished = self._in_flight_requests.metadata_changed()
        self._finish(finished)
        self.look_after(monotonic_ms())

    def needs_identity(self) -> bool:
        """Return whether batches need a producer id that is not assigned yet."""
        return self._in_flight_requests.identity.is_missing

    def take_identity(self, answer: cluster_pb2.InitProducerIdResponse) -> None:
        """Set the producer id that the coordinator assigned."""
        with self._lock:
            self._in_flight_requests.identity.set(answer.producer_id, answer.producer_epoch)

    def needs_refresh(self) -> bool:
        """Return whether batches wait for metadata or for a producer id."""
        with self._lock:
            return self._in_flight_requests.needs_metadata or self._in_flight_requests.identity.is_needed


def _produced(batch: SealedBatch) -> ProducedBatch:
    pending = batch.pending
    return ProducedBatch(pending.where, batch.records, pending.timestamp_ms, pending.timestamps_ms)
