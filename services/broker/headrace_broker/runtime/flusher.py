"""Group commit: fsync in threads, at most eight at once, one a dirty log and round; one fsync serves all that wait.

A partition that asks while its round runs gets one more round afterwards, which covers everything appended meanwhile. A
failed fsync takes the replica offline and is never retried (PROTOCOL H34); one that a full disk or a busy machine
refused is tried again after a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from typing import Protocol

from headrace.wire.ids import Offset

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.storage.errors import REFUSALS, RETRY_AFTER_MS, LogClosedError

MAX_FLUSHES_AT_ONCE = 8


class FlushState(Enum):
    """Where a log stands with the flusher."""

    CLEAN = auto()
    QUEUED = auto()
    RUNNING = auto()
    RUNNING_DIRTY = auto()  # asked again while its round runs


class Flushable(Protocol):
    """What the flusher asks of a partition."""

    flush_state: FlushState

    def flush_blocking(self) -> Offset:
        """Fsync; called in a thread. Raises StorageFullError, StorageBusyError: try again; StorageOfflineError."""

    def on_flushed(self, offset: Offset) -> None:
        """Everything below `offset` is durable; on the event loop."""

    def on_flush_failed(self, error: BaseException) -> None:
        """The fsync failed; on the event loop."""


class Flusher:
    """Owner: the broker. Belongs to the event loop; its threads run `flush_blocking` only."""

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._metrics = metrics
        self._executor = ThreadPoolExecutor(MAX_FLUSHES_AT_ONCE, thread_name_prefix="flush")
        self._queue: deque[Flushable] = deque()  # at most one entry a partition
        self._running = 0
        self._retries: dict[Flushable, asyncio.TimerHandle] = {}
        self._is_closed = False

    def request(self, partition: Flushable) -> None:
        """See that everything appended to `partition` until now gets durable."""
        match partition.flush_state:
            case FlushState.CLEAN:
                partition.flush_state = FlushState.QUEUED
                self._queue.append(partition)
                self._start_rounds()
            case FlushState.RUNNING:
                partition.flush_state = FlushState.RUNNING_DIRTY
            case FlushState.QUEUED | FlushState.RUNNING_DIRTY:
                pass

    def _start_rounds(self) -> None:
        while self._queue and self._running < MAX_FLUSHES_AT_ONCE and not self._is_closed:
            partition = self._queue.popleft()
            partition.flush_state = FlushState.RUNNING
            self._running += 1
            started = time.perf_counter()
            future = asyncio.get_running_loop().run_in_executor(self._executor, partition.flush_blocking)
            future.add_done_callback(partial(self._finish, partition, started))

    def _finish(self, partition: Flushable, started: float, future: asyncio.Future[Offset]) -> None:
        self._running -= 1
        dirty = partition.flush_state is FlushState.RUNNING_DIRTY
        partition.flush_state = FlushState.CLEAN
        error = None if future.cancelled() else future.exception()
        if future.cancelled():
            pass
        elif isinstance(error, LogClosedError):
            pass  # Its replica is gone, and nobody waits for it.
        elif isinstance(error, REFUSALS):
            self._metrics.storage_refusals.inc()
            self._retry_later(partition)
        elif error is not None:
            partition.on_flush_failed(error)
        else:
            self._metrics.flush_seconds.observe(time.perf_counter() - started)
            if dirty:
                self.request(partition)
            partition.on_flushed(future.result())
        self._start_rounds()

    def _retry_later(self, partition: Flushable) -> None:
        if partition not in self._retries:
            self._retries[partition] = asyncio.get_running_loop().call_later(
                RETRY_AFTER_MS / 1000, self._retry, partition
            )

    def _retry(self, partition: Flushable) -> None:
        del self._retries[partition]
        self.request(partition)

    def close(self) -> None:
        """End the threads when their rounds are over; none begins any more."""
        self._is_closed = True
        for timer in self._retries.values():
            timer.cancel()
        self._executor.shutdown(wait=True)
