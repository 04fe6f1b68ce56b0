"""Appends of one directory, in the order of their requests: one thread writes, another one flushes.

One flush serves all requests that were written before it, of all clients; meanwhile the next ones are written.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from headrace.embedded.open_partition import DirectoryPartition
from headrace.v1 import broker_pb2
from headrace.wire.errors import HeadraceError, InternalError, Outcome, ShuttingDownError, to_detail
from headrace.wire.zero_copy import SplicedMessage

Done: TypeAlias = Callable[[broker_pb2.ProduceResponse | None, HeadraceError | None], None]
"""Called once with the response, or with the error of the whole request, on a thread of the directory."""

MANY_REQUESTS = 64
"""Maximum requests that wait for one flush."""


_log = logging.getLogger("headrace.embedded")


class Written(NamedTuple):
    """Request that was written."""

    response: broker_pb2.ProduceResponse
    partitions: list[DirectoryPartition]
    """Partitions that were written."""
    unflushed: list[tuple[DirectoryPartition, broker_pb2.PartitionProduceResult]]
    """Partitions to flush, with their results."""
    waits: bool
    """Whether the caller wants to know that they are flushed."""


class AppendQueue:
    """The two threads. They start with the first request."""

    def __init__(
        self, write: Callable[[SplicedMessage], Written], visible: Callable[[Iterable[DirectoryPartition]], None]
    ) -> None:
        """`write` appends a request, or raises the error for all of it; `visible` is told where records become so."""
        self._write = write
        self._visible = visible
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[tuple[SplicedMessage, Done] | None] = queue.SimpleQueue()
        self._unflushed: queue.SimpleQueue[tuple[Written, Done] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def put(self, request: SplicedMessage, done: Done) -> None:
        """Add a request."""
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._requests.put((request, done))
                if not self._threads:
                    self._start(self._run_writes, "headrace-append")
                    self._start(self._run_flushes, "headrace-flush")
        if is_closed:
            done(None, ShuttingDownError("the directory is closed", outcome=Outcome.NOT_APPLIED, retriable=False))

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """Threads on which callbacks run; none before the first request."""
        return self._threads

    def close(self) -> None:
        """Complete the requests in the queue and end the threads."""
        with self._lock:
            self._is_closed = True
            self._requests.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _start(self, target: Callable[[], Any], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run_writes(self) -> None:
        while (item := self._requests.get()) is not None:
            request, done = item
            try:
                written = self._write(request)
            except Exception as error:  # The thread serves the next requests whatever happens to this one.
                done(None, _told(error))
                continue
            if written.unflushed:
                self._unflushed.put((written, done))
                if written.waits:
                    continue
            else:
                self._visible(written.partitions)
            done(written.response, None)
        self._unflushed.put(None)

    def _run_flushes(self) -> None:
        is_over = False
        while not is_over:
            items = [self._unflushed.get()]
            while len(items) < MANY_REQUESTS and not self._unflushed.empty():
                items.append(self._unflushed.get())
            is_over = items[-1] is None
            found = [item for item in items if item is not None]
            errors: dict[DirectoryPartition, HeadraceError] = {}
            for partition in {partition: None for written, _ in found for partition, _ in written.unflushed}:
                try:
                    partition.flush_appended()
                except Exception as error:
                    errors[partition] = _told(error)
            self._visible({partition for written, _ in found for partition in written.partitions})
            for written, done in found:
                if not written.waits:
                    continue  # It was answered before the flush, and the response is the caller's.
                for partition, result in written.unflushed:
                    if partition in errors:
                        result.error.CopyFrom(to_detail(errors[partition]))
                done(written.response, None)


def _told(error: Exception) -> HeadraceError:
    """Return what the caller is told of a failure."""
    if isinstance(error, HeadraceError):
        return error
    _log.error("an append failed", exc_info=error)
    return InternalError(f"the append failed: {error!r}", outcome=Outcome.UNKNOWN)
