"""Futures that `send` returns, resolved through the single completion of their batch.

A `PendingBatch` is created when a batch is opened, and completed once: on gRPC's thread, or on the thread that abandons
it. Futures are two words each and read everything else from their batch.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Self, TypeAlias, TypeVar

from headrace.client.base.records import RecordMetadata
from headrace.client.tracing.sending import BatchSpans
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

_log = logging.getLogger("headrace.client")

AnyFuture = TypeVar("AnyFuture", bound="PendingRecord")


class PendingBatch:
    """Completion of one batch. Any thread; the producer calls `complete` once.

    Attributes:
        where: its partition.
        timestamp_ms: timestamp of records without their own.
        timestamps_ms: own timestamps of the records, `None` each for `timestamp_ms`; `None` if no record has one.
        batch_records: more records than this are divided into batches of this number.
        base_offsets: offset of each batch's first record once done; empty if they are unknown.
        error: reason of the failure, once done.
        repeated: whether the leader already had part of it, or of its request; known once done.
        spans: those of its records; `None` without tracing.
    """

    __slots__ = (
        "_callbacks", "_done", "_flush_now", "_lock", "_waiter", "base_offsets", "batch_records", "error", "repeated",
        "spans", "timestamp_ms", "timestamps_ms", "where",
    )  # fmt: skip

    def __init__(
        self,
        where: TopicPartition,
        timestamp_ms: int,
        flush_now: Callable[["PendingBatch"], None],
        batch_records: int = 1 << 31,
        spans: BatchSpans | None = None,
    ) -> None:
        self.where = where
        self.batch_records = batch_records
        self.timestamp_ms = timestamp_ms
        self.timestamps_ms: list[int | None] | None = None
        self.base_offsets: tuple[int, ...] = ()
        self.error: HeadraceError | None = None
        self.repeated = False
        self.spans = spans
        self._flush_now = flush_now
        self._done = False
        self._lock = threading.Lock()
        self._waiter: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Return whether it was delivered or has failed."""
        return self._done

    def complete(self, base_offsets: tuple[int, ...], error: HeadraceError | None) -> None:
        """Resolve it; wakes waiters and runs callbacks on this thread."""
        with self._lock:
            assert not self._done, "a batch completes once"
            self.base_offsets = base_offsets
            self.error = error
            if self.spans is not None:
                self.spans.end(self.where, self.offset_of, error)
            self._done = True
            waiter, callbacks = self._waiter, self._callbacks
            self._callbacks = []
        if waiter is not None:
            waiter.set()
        for callback in callbacks:
            _run(callback)

    def wait(self, timeout: float | None) -> None:
        """Wait until it is done; an open batch is sent now instead of after its linger.

        Raises:
            TimeoutError: If it is not done within `timeout` seconds.
            HeadraceError: The reason of the failure.
        """
        if not self._done:
            self._flush_now(self)
            with self._lock:
                if not self._done and self._waiter is None:
                    self._waiter = threading.Event()
                waiter = self._waiter
            if not self._done and waiter is not None and not waiter.wait(timeout):
                raise TimeoutError(f"not delivered to {self.where} within {timeout} s; it may still be delivered")
        if self.error is not None:
            raise self.error

    def flush_now(self) -> None:
        """Send the batch now if it is still open, because a caller waits for its result."""
        if not self._done:
            self._flush_now(self)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Run `callback` once it is done: on the thread that completes it, or at once."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        _run(callback)

    def metadata(self, index: int) -> RecordMetadata:
        """Return the metadata of record `index` of the batch."""
        own = self.timestamps_ms
        timestamp_ms = own[index] if own is not None and index < len(own) else None
        timestamp_ms = self.timestamp_ms if timestamp_ms is None else timestamp_ms
        return RecordMetadata(*self.where, self.offset_of(index), timestamp_ms)

    def offset_of(self, index: int) -> int:
        """Return the offset of record `index` of the batch; -1 if it is unknown."""
        number, place = divmod(index, self.batch_records)
        base_offset = self.base_offsets[number] if number < len(self.base_offsets) else -1
        return base_offset + place if base_offset >= 0 else -1


def _run(callback: Callable[[], None]) -> None:
    """Run a callback of the application; whatever it raises would end the thread that completes other batches."""
    try:
        callback()
    except KeyboardInterrupt:  # On the main thread.
        raise
    except BaseException:
        _log.exception("a delivery callback raised")


class PendingRecord:
    """Record of a batch: the base of the futures of both producers. Any thread.

    It has no `__init__`, which would double its cost for `send`.
    """

    __slots__ = ("batch", "index")

    batch: PendingBatch
    index: int

    @classmethod
    def of(cls, batch: PendingBatch, index: int) -> Self:
        """Return the future of record `index` of a batch; the fast path does this inline."""
        future = cls()
        future.batch = batch
        future.index = index
        return future

    def done(self) -> bool:
        """Return whether the record was delivered or has failed."""
        return self.batch.done()

    def __repr__(self) -> str:
        return f"RecordFuture({self.batch.where}, {'done' if self.done() else 'pending'})"


FutureType: TypeAlias = type[PendingRecord]
"""Class of a producer's futures."""


class RecordFuture(PendingRecord):
    """Result of one record. Any thread."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; return the record's metadata.

        Raises:
            TimeoutError: If there is none within `timeout` seconds; the record may still be stored.
            HeadraceError: The reason of the failure; `outcome` states whether the record may be stored.
        """
        self.batch.wait(timeout)
        return self.batch.metadata(self.index)

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """Wait for the acknowledgement; return why it failed, or `None`.

        Raises:
            TimeoutError: not within `timeout` seconds.
        """
        try:
            self.batch.wait(timeout)
        except HeadraceError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[["RecordFuture"], Any]) -> None:
        """Call `callback(future)` once the record is delivered or has failed: on another thread, or at once.

        It must be quick, because it delays other acknowledgements. What it raises is logged, SystemExit included.
        """
        self.batch.call_when_done(lambda: callback(self))


class PendingRecords(Generic[AnyFuture]):
    """Records of one `send_many`: the base of the futures of both producers. Any thread."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[tuple[Any, int]]) -> None:
        self.parts: list[tuple[AnyFuture, int]] = parts
        """(future of the batch's first record, number of records), in the order in which they were sealed."""

    def __len__(self) -> int:
        return sum(records for _, records in self.parts)

    def done(self) -> bool:
        """Return whether every record was delivered or has failed."""
        return all(future.done() for future, _ in self.parts)

    def __repr__(self) -> str:
        return f"BatchFuture({len(self)} records, {'done' if self.done() else 'pending'})"


class BatchFuture(PendingRecords[RecordFuture]):
    """Results of the records of one `send_many`, with one future per batch. Any thread."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> list[tuple[RecordMetadata, int]]:
        """Wait for every acknowledgement; return the metadata of each run's first record, and the run's length.

        Raises:
            TimeoutError: If one is missing after `timeout` seconds.
            HeadraceError: The first failure.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        found = []
        for future, records in self.parts:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found.append((future.result(left), records))
        return found
