"""Group commit: fsync of dirty logs in threads; one fsync serves all waiting requests of a log.

On a fast disk a round needs more CPU than I/O, and more than two threads would only contend for the GIL with each other
and the event loop; on a slow disk up to eight wait for I/O at once.

Partitions are flushed round-robin between callers, so that no caller waits for all partitions of another one. A request
during a round of its partition causes one more round, which covers everything appended meanwhile. A failed fsync takes
the replica offline and is never retried (PROTOCOL H34); one that was rejected because of a full disk or a busy machine
is retried later.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from headrace.log.errors import REFUSALS, RETRY_AFTER_MS, LogClosedError
from headrace.wire.ids import Offset
from headrace_server.caller_turns import CallerQueue

from headrace_broker.metrics import BrokerMetrics

MIN_FLUSHES_AT_ONCE, MAX_FLUSHES_AT_ONCE = 2, 8
SECONDS_A_THREAD = 0.001
"""One thread per millisecond of a short round, the first quartile of the recent durations."""
ROUNDS_LOOKED_AT = 32


class Flushable(Protocol):
    """Partition, as the flusher uses it."""

    def flush_blocking(self) -> Offset:
        """Fsync; called in a thread. Raises StorageFullError, StorageBusyError (retriable) or StorageOfflineError."""

    def on_flushed(self, offset: Offset) -> None:
        """Handle a successful fsync of everything below `offset`; called on the event loop."""

    def on_flush_failed(self, error: BaseException) -> None:
        """Handle a failed fsync; called on the event loop."""


class Flusher:
    """Group commit of one broker. Belongs to the event loop; its threads only run `flush_blocking`."""

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._metrics = metrics
        self._executor = ThreadPoolExecutor(MAX_FLUSHES_AT_ONCE, thread_name_prefix="flush")
        self._queue: CallerQueue[Flushable] = CallerQueue()
        self._queued: set[Flushable] = set()  # partitions with a pending round; other queue entries are stale
        self._running: dict[Flushable, dict[str, None]] = {}  # with the callers that requested another round
        self._retries: dict[Flushable, asyncio.TimerHandle] = {}
        self._lasted: deque[float] = deque(maxlen=ROUNDS_LOOKED_AT)
        self._at_once = MAX_FLUSHES_AT_ONCE
        self._is_closed = False

    def request(self, partition: Flushable, caller: str) -> None:
        """Request a flush of everything appended to `partition` so far, in the turn of `caller`."""
        if partition in self._running:
            self._running[partition][caller] = None
            return
        self._put(partition, caller)
        self._start_rounds()

    def _put(self, partition: Flushable, caller: str) -> None:
        self._queued.add(partition)
        self._queue.put(caller, partition)

    def _start_rounds(self) -> None:
        while self._queued and len(self._running) < self._at_once and not self._is_closed:
            caller, partition = self._queue.pop()
            if partition not in self._queued:
                continue
            self._queued.remove(partition)
            self._running[partition] = {}
            loop = asyncio.get_running_loop()
            started = loop.time()
            future = loop.run_in_executor(self._executor, partition.flush_blocking)
            future.add_done_callback(partial(self._finish, partition, caller, started))

    def _finish(self, partition: Flushable, caller: str, started: float, future: asyncio.Future[Offset]) -> None:
        asked_again = self._running.pop(partition)
        error = None if future.cancelled() else future.exception()
        if future.cancelled():
            pass
        elif isinstance(error, LogClosedError):
            pass  # The replica was removed, and no caller waits.
        elif isinstance(error, REFUSALS):
            self._metrics.storage_refusals.inc()
            self._retry_later(partition, caller)
        elif error is not None:
            partition.on_flush_failed(error)
        else:
            self._observe(asyncio.get_running_loop().time() - started)
            for each in asked_again:
                self._put(partition, each)
            partition.on_flushed(future.result())
        self._start_rounds()

    def _observe(self, seconds: float) -> None:
        self._metrics.flush_seconds.observe(seconds)
        self._lasted.append(seconds)
        if len(self._lasted) == ROUNDS_LOOKED_AT:
            threads = math.ceil(sorted(self._lasted)[ROUNDS_LOOKED_AT // 4] / SECONDS_A_THREAD)
            self._at_once = max(MIN_FLUSHES_AT_ONCE, min(threads, MAX_FLUSHES_AT_ONCE))

    def _retry_later(self, partition: Flushable, caller: str) -> None:
        if partition not in self._retries:
            self._retries[partition] = asyncio.get_running_loop().call_later(
                RETRY_AFTER_MS / 1000, self._retry, partition, caller
            )

    def _retry(self, partition: Flushable, caller: str) -> None:
        del self._retries[partition]
        self.request(partition, caller)

    def close(self) -> None:
        """Stop the threads after their current rounds."""
        self._is_closed = True
        for timer in self._retries.values():
            timer.cancel()
        self._executor.shutdown(wait=True)
