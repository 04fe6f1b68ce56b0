"""What a producer does with batches once they are sealed: from their place in line to their completion.

`_enqueue` gives a batch its place and its sequence, `_encode` makes its bytes, `_dispatch` starts the calls that may
start, `_landed` takes an answer in, `_finish` completes batches and gives their memory back. What may start and what an
answer means is decided by `InFlightRequests`; here are the calls, the lock and the counters. Any thread.
"""

import logging
import random
import threading
import time
from typing import Any, NamedTuple

import grpc

from headrace.client.base.call_counts import CallStats
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ProducerConfig
from headrace.client.base.errors import ClosedError, DeliveryError
from headrace.client.base.request_ids import metadata_of
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.client.interceptors.interceptor import Interceptors, ProducedBatch
from headrace.client.net.bootstrap_client import error_of_call
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.net.connection import Connections
from headrace.client.producer.accumulator import BufferPool, ClosedBatch
from headrace.client.producer.bulk import EncodePart
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.inflight import InFlightRequests
from headrace.client.producer.maintenance import ProducerMaintenance
from headrace.client.producer.partition_queue import Finished, PartitionQueue, Request, SealedBatch
from headrace.client.producer.produce_rpc import GRACE_MS, answers_of, produce_request
from headrace.client.producer.sequences import ProducerStamp
from headrace.wire.compression import Codec, compress
from headrace.wire.crc import ReadableBuffer
from headrace.wire.encoding import batch_parts
from headrace.wire.errors import HeadraceError, InternalError, Outcome, TimedOutError, TransportError
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import BufferVector

_log = logging.getLogger("headrace.client")

KEPT_FAILURES = 100


class ProducerStats(NamedTuple):
    """What a producer has done since it was made, and what it holds."""

    sent_records: int
    """Acknowledged; with acks=0, sent."""
    sent_batches: int
    failed_records: int
    buffered_bytes: int
    """Of records on their way, those in flight included."""
    inflight_requests: int


class Sender:
    """The part of a producer that does not know of records any more. `Producer` is the other one."""

    def __init__(self, config: ProducerConfig) -> None:
        """Asks nobody yet.

        Raises:
            UnsupportedCodecError: the compression's package is not installed; the message names it.
        """
        self._config = config
        self._codec = Codec[config.compression_type.upper()]
        compress(self._codec, b"", config.compression_level)
        self._buffer_pool = BufferPool(config.buffer_memory)
        self._connections = Connections("Producer", config)
        self._random = random.Random()
        self._cluster_metadata = ClusterMetadata()
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, self._random)
        self._in_flight_requests = InFlightRequests(
            self._cluster_metadata,
            self._backoff,
            idempotent=config.idempotent,
            max_in_flight_requests=config.max_in_flight_requests,
            max_request_bytes=config.max_request_bytes,
            request_timeout_ms=config.request_timeout_ms,
            identity=config.identity,
        )
        self._lock = threading.Lock()
        self._failures: list[tuple[TopicPartition, int, HeadraceError]] = []
        self._failed_records = 0
        self._counted = ProducerStats(0, 0, 0, 0, 0)
        self._calls: dict[Request, Any] = {}
        self._dispatching = False
        self._dispatch_again = False
        self._maintenance = ProducerMaintenance(config, self._backoff, self._seal_due, self._refresh)
        self._interceptors = Interceptors(())

    def _seal_due(self) -> int | None:
        """Seal what is due, after an answer or by the clock; give when to look again, in monotonic ms."""
        raise NotImplementedError

    def _refresh(self) -> bool:
        """Read metadata and the producer id where they are wanted; whether nothing is wanted any more."""
        raise NotImplementedError

    def stats(self) -> ProducerStats:
        """Return counts of records sent and records in flight; cheap, any thread."""
        return self._counted._replace(buffered_bytes=self._buffer_pool.used, inflight_requests=len(self._calls))

    def calls(self) -> CallStats:
        """Return statistics of the produce calls; cheap, any thread."""
        return self._in_flight_requests.counts.stats()

    def continue_from(self, where: TopicPartition, sequence: int) -> None:
        """Begin a partition that has had no record yet with this sequence: so many records of this `producer_id` and
        `producer_epoch` are stored there, as far as the caller knows. Refused by the leader where there are more.
        """
        with self._lock:
            self._in_flight_requests.continue_from(where, sequence)

    def _enqueue(
        self, partition_queue: PartitionQueue, pending: PendingBatch, records: int, reserved_bytes: int
    ) -> SealedBatch:
        """Assign the place and the sequence of a batch. Under the buffer's lock."""
        with self._lock:
            self._in_flight_requests.add_partition(partition_queue)
            deadline_ms = monotonic_ms() + self._config.delivery_timeout_ms
            batch = SealedBatch(partition_queue, pending, records, reserved_bytes, deadline_ms)
            self._in_flight_requests.add(batch)
        if self._interceptors:
            self._interceptors.on_sealed(_produced(batch))
        return batch

    def _encode_sealed(self, sealed: tuple[SealedBatch, ClosedBatch]) -> None:
        """Encode what was an open batch."""
        batch, records = sealed

        def encode(start: int, end: int, stamp: ProducerStamp) -> list[ReadableBuffer]:
            part = records if batch.count == 1 else records.part(start, end)
            return batch_parts(
                part.values,
                part.keys,
                base_timestamp_ms=batch.pending.timestamp_ms,
                headers=part.headers,
                timestamps_ms=part.timestamps_ms,
                codec=self._codec,
                compression_level=self._config.compression_level,
                producer_id=stamp.producer_id,
                producer_epoch=stamp.producer_epoch,
                base_sequence=stamp.base_sequence,
            )

        self._encode(batch, 0, encode)

    def _encode(self, batch: SealedBatch, start: int, encode: EncodePart) -> None:
        """Encode the records from `start` on, cut into batches."""
        step = batch.pending.batch_records
        try:
            batch.encoded = [
                BufferVector(encode(start + first, start + min(first + step, batch.records), batch.stamp.behind(first)))
                for first in range(0, batch.records, step)
            ]
        except BaseException as error:
            typed = (
                error if isinstance(error, HeadraceError) else InternalError(repr(error), outcome=Outcome.NOT_APPLIED)
            )
            with self._lock:
                finished = self._in_flight_requests.give_up(batch, typed)
            self._finish(finished)
            if not isinstance(error, HeadraceError):
                raise

    def _dispatch(self) -> None:
        """Start every call that may start now.

        One thread at a time starts calls, so that they leave in the order of their sequences; another one that comes
        meanwhile leaves its wish with it. Runs uninterrupted.
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
                requests = self._in_flight_requests.next_requests(monotonic_ms())
                wanted = self._in_flight_requests.needs_metadata or self._in_flight_requests.needs_producer_id
            if wanted:
                self._maintenance.refresh_wanted()
            if requests:
                self._maintenance.due_at(monotonic_ms() + OVERDUE_MS)
            for request in requests:
                request.started_seconds = time.monotonic()
                self._call(request)

    def _call(self, request: Request) -> None:
        try:
            produce = self._connections.endpoint(request.address).produce
            call = produce.future(
                produce_request(request, self._config),
                timeout=(request.timeout_ms + GRACE_MS) / 1000,
                metadata=metadata_of(request.request_id),
            )
        except (ClosedError, ValueError):  # grpc says ValueError of a channel that was closed meanwhile
            self._resolve(request, None, ClosedError("Producer"))
            return
        except Exception as error:  # No thread to be had, no memory: it may be better at the next try.
            _log.exception("a call could not be started")
            typed = TransportError(f"no call could be started: {error!r}", outcome=Outcome.UNKNOWN, retriable=True)
            self._resolve(request, None, typed)
            return
        self._calls[request] = call
        call.add_done_callback(lambda done: self._landed(request, done))

    def _landed(self, request: Request, call: Any) -> None:
        """Take an answer, on gRPC's thread."""
        self._calls.pop(request, None)
        try:
            self._resolve(request, call.result(), None)
        except grpc.FutureCancelledError:
            self._resolve(
                request, None, TimedOutError("the call was given up", outcome=Outcome.UNKNOWN, retriable=False)
            )
        except grpc.RpcError as error:
            self._resolve(request, None, error_of_call(error))
        except Exception as error:
            _log.exception("an answer could not be handled")
            self._resolve(request, None, InternalError(repr(error), outcome=Outcome.UNKNOWN))

    def _resolve(self, request: Request, response: Any, error: HeadraceError | None) -> None:
        now_ms, seconds = monotonic_ms(), time.monotonic() - request.started_seconds
        with self._lock:
            self._in_flight_requests.counts.took(seconds)
            if error is not None:
                error.request_id = error.request_id or request.request_id
                finished = self._in_flight_requests.failed(request, error, now_ms)
            else:
                finished = self._in_flight_requests.answered(
                    request, answers_of(request, response, self._config), now_ms
                )
        self._finish(finished)
        self._maintenance.due_at(self._seal_due())

    def _finish(self, finished: list[Finished]) -> None:
        """Complete batches and give their memory back."""
        for batch, base_offsets, error in finished:
            self._buffer_pool.release(batch.reserved_bytes)
            batch.encoded = None
            if self._interceptors:
                self._interceptors.on_finished(_produced(batch), error)
            if error is not None:
                with self._lock:
                    self._failed_records += batch.records
                    if len(self._failures) < KEPT_FAILURES:
                        self._failures.append((batch.partition_queue.where, batch.records, error))
            batch.pending.complete(base_offsets, error)
        if finished:
            self._count(finished)

    def _count(self, finished: list[Finished]) -> None:
        sent = [batch for batch, _, error in finished if error is None]
        failed = sum(batch.records for batch, _, error in finished if error is not None)
        with self._lock:
            before = self._counted
            self._counted = before._replace(
                sent_records=before.sent_records + sum(batch.records for batch in sent),
                sent_batches=before.sent_batches + sum(batch.count for batch in sent),
                failed_records=before.failed_records + failed,
            )

    def _look_after(self, now_ms: int) -> int | None:
        """End what is too late, and cancel the calls that nobody answers where another leader is known.

        Gives when to look again, in monotonic ms.
        """
        with self._lock:
            given_up, finished = self._in_flight_requests.give_up_overdue(now_ms)
            finished += self._in_flight_requests.expire(now_ms)
            event_ms = self._in_flight_requests.next_event_ms(now_ms)
            calls = [self._calls[request] for request in given_up if request in self._calls]
        self._finish(finished)
        for call in calls:
            call.cancel()
        return event_ms

    def _raise_failures(self, pending_records: int) -> None:
        with self._lock:
            failures, self._failures = self._failures, []
            failed, self._failed_records = self._failed_records, 0
        if failed or pending_records:
            raise DeliveryError(failures, failed_records=failed, pending_records=pending_records)

    def _give_up(self, error: HeadraceError) -> None:
        """End what is left, and cancel the calls that still fly."""
        with self._lock:
            finished = self._in_flight_requests.abandon(error)
        self._finish(finished)
        for call in list(self._calls.values()):
            call.cancel()


def _produced(batch: SealedBatch) -> ProducedBatch:
    pending = batch.pending
    return ProducedBatch(pending.where, batch.records, pending.timestamp_ms, pending.timestamps_ms)
