"""Queue of records for handlers: order, retries and failures. Pure: no I/O, no clock, no thread.

Records of one key (or one partition) form a key queue: one at a time, in order; key queues run in parallel. A failed
record waits for its back-off at the head of its key queue and delays no other queue. Its owner holds a lock.
"""

import heapq
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from headrace.client.base.errors import ConfigError
from headrace.client.base.records import Record
from headrace.client.base.retry import Backoff
from headrace.client.handlers.offset_tracker import OffsetTracker
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")

ORDERINGS = ("key", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Number of and delays between handler calls for a record that fails.

    Raises:
        ConfigError: If a value is out of range.
    """

    attempts: int = 5
    """Number of handler calls for one record, at least 1."""
    backoff_ms: int = 200
    """First delay; it doubles, with full jitter."""
    backoff_max_ms: int = 30_000
    retriable: Callable[[Exception], bool] | None = None
    """Returns whether to retry after an error; `None` means after every error."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"attempts={self.attempts} is not at least 1")
        if not 1 <= self.backoff_ms <= self.backoff_max_ms:
            raise ConfigError(f"backoff_ms={self.backoff_ms} is not within 1 to backoff_max_ms={self.backoff_max_ms}")

    def may_retry(self, error: BaseException) -> bool:
        """Return what `retriable` says of an error of a handler; if it fails itself the error is not retried."""
        if self.retriable is None or not isinstance(error, Exception):
            return True
        try:
            return self.retriable(error)
        except Exception:
            log.exception("retriable failed on %s", type(error).__name__)
            return False


class RetryDecision(Enum):
    """Next step for a record whose handler failed."""

    RETRY = auto()
    GIVE_UP = auto()


@dataclass(slots=True, eq=False)
class Task:
    """Record in the queue or in progress. Changed by `WorkQueue` only."""

    record: Record
    """With key and value as bytes."""
    tracker: OffsetTracker
    key_queue: Any
    is_running: bool = False
    attempts: int = 0
    """Number of handler calls so far."""
    error: BaseException | None = None
    """Error of the last call."""
    is_given_up: bool = False
    """Whether it goes to the dead letters instead of the handler."""
    failures: int = 0
    """Number of failed writes of its dead letter."""

    @property
    def where(self) -> TopicPartition:
        """Partition of the record."""
        return TopicPartition(self.record.topic, self.record.partition)


@dataclass(slots=True)
class _Part:
    tracker: OffsetTracker
    running: int = 0
    revoked: bool = False
    held: deque[Task] | None = None
    """Records that wait until they are released; `None` means that none has to."""


@dataclass(slots=True, eq=False)
class _KeyQueue:
    name: Any
    tasks: deque[Task] = field(default_factory=deque)
    is_dropped: bool = False


class WorkQueue:
    """Queue of one run. The module's docstring states who may call it."""

    def __init__(self, ordering: str, retry: RetryPolicy, rng: random.Random) -> None:
        """`ordering` is `key` or `partition`; with `key`, records without a key are unordered."""
        if ordering not in ORDERINGS:
            raise ConfigError(f"ordering={ordering!r} is not one of {', '.join(map(repr, ORDERINGS))}")
        self._by_key = ordering == "key"
        self._retry = retry
        self._backoff = Backoff(retry.backoff_ms, retry.backoff_max_ms, rng)
        self._parts: dict[TopicPartition, _Part] = {}
        self._key_queues: dict[Any, _KeyQueue] = {}
        self._ready: deque[_KeyQueue] = deque()
        self._waiting: list[tuple[int, int, _KeyQueue]] = []
        self._count = 0
        self.size = 0
        """Number of records that wait or are in progress."""
        self.running = 0
        self.alone: TopicPartition | None = None
        """Partition that runs alone: nothing of others starts, and nothing of it while any record is in progress."""

    # --- partitions ---

    def open(self, where: TopicPartition, position: int, leader_epoch: int = -1, *, is_held: bool = False) -> None:
        """Start a term of a partition; if `is_held`, its records wait for `release_first` or `release_all`."""
        self.close(where)
        self._parts[where] = _Part(OffsetTracker(position, leader_epoch), held=deque() if is_held else None)

    def close(self, where: TopicPartition) -> None:
        """End a partition's term: waiting records are dropped, results of running ones are ignored."""
        part = self._parts.pop(where, None)
        if part is not None:
            part.tracker.is_over = True
            self._drop_held(part)
            self._drop_waiting(part.tracker)

    def revoke(self, where: TopicPartition) -> bool:
        """Start no more records of a partition; return whether none is running."""
        part = self._parts.get(where)
        if part is None:
            return True
        if not part.revoked:
            part.revoked = True
            self._drop_held(part)
            self._drop_waiting(part.tracker)
        return part.running == 0

    def revoke_all(self) -> None:
        """Start no more records."""
        for where in list(self._parts):
            self.revoke(where)

    def tracker(self, where: TopicPartition) -> OffsetTracker | None:
        """Return the tracker of a partition; `None` if the partition is not owned."""
        part = self._parts.get(where)
        return None if part is None else part.tracker

    def partitions(self) -> Iterable[TopicPartition]:
        """Return the owned partitions."""
        return list(self._parts)

    def span(self, where: TopicPartition) -> int:
        """Return the number of records that were accepted and are not below the committable offset."""
        part = self._parts.get(where)
        return 0 if part is None else part.tracker.span

    def first_held(self, where: TopicPartition) -> Record | None:
        """Return the first held record."""
        part = self._parts.get(where)
        return part.held[0].record if part is not None and part.held else None

    def release_all(self, where: TopicPartition) -> None:
        """Release all held records of a partition."""
        part = self._parts.get(where)
        if part is not None and part.held is not None:
            held, part.held = part.held, None
            for task in held:
                self._put(task)

    def release_first(self, where: TopicPartition, error: BaseException | None = None, attempts: int = 0) -> int | None:
        """Release one record, which fails for good if there is an error; return its offset or `None`."""
        part = self._parts.get(where)
        if part is None or not part.held:
            return None
        task = part.held.popleft()
        if error is not None:
            task.error, task.attempts, task.is_given_up = error, attempts, True
        self._put(task)
        return task.record.offset

    def _drop_held(self, part: _Part) -> None:
        if part.held is not None:
            self.size -= len(part.held)
            part.held.clear()

    def _drop_waiting(self, tracker: OffsetTracker) -> None:
        for name, key_queue in list(self._key_queues.items()):
            kept = deque(task for task in key_queue.tasks if task.tracker is not tracker or task.is_running)
            self.size -= len(key_queue.tasks) - len(kept)
            key_queue.tasks = kept
            if not kept:
                key_queue.is_dropped = True
                del self._key_queues[name]

    # --- records ---

    def add(self, record: Record, leader_epoch: int) -> None:
        """Add a record of an open partition; drop one that is revoked or not owned."""
        where = TopicPartition(record.topic, record.partition)
        part = self._parts.get(where)
        if part is None or part.revoked:
            return
        part.tracker.begin(record.offset, leader_epoch)
        task = Task(record, part.tracker, None)
        self.size += 1
        if part.held is not None:
            part.held.append(task)
        else:
            self._put(task)

    def _put(self, task: Task) -> None:
        """Put a record into its key queue."""
        record, where = task.record, task.where
        name: Any = where
        if self._by_key:
            name = (where, record.key) if record.key is not None else (where, None, record.offset)
        key_queue = self._key_queues.get(name)
        if key_queue is None:
            key_queue = self._key_queues[name] = _KeyQueue(name)
            self._ready.append(key_queue)
        task.key_queue = key_queue
        key_queue.tasks.append(task)

    def take(self, now_ms: int) -> Task | None:
        """Return the next record to handle; `None` if there is none now. `succeeded` or `failed` must follow."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            self._ready.append(heapq.heappop(self._waiting)[2])
        if self.alone is not None:
            return self._take_alone(self.alone)
        while self._ready:
            key_queue = self._ready.popleft()
            if not key_queue.is_dropped:
                return self._begin(key_queue)
        return None

    def _take_alone(self, where: TopicPartition) -> Task | None:
        if self.running:
            return None
        for key_queue in self._ready:
            if not key_queue.is_dropped and key_queue.tasks[0].where == where:
                self._ready.remove(key_queue)
                return self._begin(key_queue)
        return None

    def _begin(self, key_queue: _KeyQueue) -> Task:
        task = key_queue.tasks[0]
        task.is_running = True
        task.attempts += not task.is_given_up
        task.tracker.start(task.record.offset)
        self.running += 1
        part = self._parts.get(task.where)
        if part is not None and part.tracker is task.tracker:
            part.running += 1
        return task

    def next_due_ms(self) -> int | None:
        """Return the end of the next back-off; `None` if nothing waits."""
        return self._waiting[0][0] if self._waiting else None

    def succeeded(self, task: Task) -> bool:
        """Finish a record that was handled or is a dead letter; return whether the committable offset moved."""
        self._stop(task)
        key_queue: _KeyQueue = task.key_queue
        key_queue.tasks.popleft()
        self.size -= 1
        if key_queue.tasks:
            self._ready.append(key_queue)
        else:
            key_queue.is_dropped = True
            self._key_queues.pop(key_queue.name, None)
        return task.tracker.finish(task.record.offset) and not task.tracker.is_over

    def failed(self, task: Task, error: BaseException, now_ms: int, *, is_final: bool = False) -> RetryDecision:
        """Record a handler failure: the record is retried after a back-off, or fails for good (`is_final`: now).

        A record that fails for good is at the head of its key queue again, as a dead letter to send.
        """
        task.error = error
        retry = self._retry
        if is_final or task.attempts >= retry.attempts or not retry.may_retry(error):
            task.is_given_up = True
            self._again(task, now_ms)
            return RetryDecision.GIVE_UP
        self._again(task, now_ms + self._backoff.delay_ms(task.attempts))
        return RetryDecision.RETRY

    def not_sent(self, task: Task, now_ms: int) -> None:
        """Record that a dead letter could not be sent; it is retried after a back-off, without a limit."""
        task.failures += 1
        self._again(task, now_ms + self._backoff.delay_ms(task.failures))

    def _again(self, task: Task, at_ms: int) -> None:
        self._stop(task)
        key_queue: _KeyQueue = task.key_queue
        part = self._parts.get(task.where)
        if part is None or part.tracker is not task.tracker or part.revoked:
            key_queue.tasks.popleft()
            self.size -= 1
            if not key_queue.tasks:
                key_queue.is_dropped = True
                self._key_queues.pop(key_queue.name, None)
                return
            at_ms = 0  # It belongs to the next term and has not failed.
        self._count += 1
        heapq.heappush(self._waiting, (at_ms, self._count, key_queue))

    def _stop(self, task: Task) -> None:
        task.is_running = False
        self.running -= 1
        part = self._parts.get(task.where)
        if part is not None and part.tracker is task.tracker:
            part.running -= 1
