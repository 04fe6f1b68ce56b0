"""Shared part of the blocking and the asyncio reader: the background that fetches, and the queue of completed fetches.

`FetchEngine` decides; this module has the lock and the calls. One operation plans fetches, refreshes metadata, and
looks up lost positions. The thread or loop that receives a response processes it and starts the next fetch at once. A
response is queued after its batch headers are read; checksums and columns are processed on the application's thread, in
parallel with the next fetch.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.rpc import by_name
from headrace.client.base.background import Background, WaitSignal
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import ClosedError, ForkedError, WakeupError
from headrace.client.base.forking import ForkGuard
from headrace.client.base.operations import Call, Operation, Pause, WaitUntil
from headrace.client.base.request_ids import request_id_scope
from headrace.client.base.retry import Backoff
from headrace.client.fetch.fetch_engine import FetchEngine
from headrace.client.fetch.fetch_plan import FetchPlan
from headrace.client.fetch.fetch_planner import FAST_S
from headrace.client.fetch.offset_resets import log_bounds
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.client.fetch.position_commits import Iterated, commit_positions
from headrace.client.fetch.subscription_state import SubscriptionState
from headrace.client.net.bootstrap_client import BootstrapClient, error_of_call
from headrace.client.net.topic_versions import claims_absence
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.errors import CorruptBatchError, HeadraceError, InternalError, rpc_failures
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")


class Gate(Protocol):
    """Owner of a reader, which can pause the delivery of fetched records."""

    def delivery_paused(self) -> bool:
        """Return whether delivery is paused. Called under the manager's lock, on any thread."""


class FetchManager:
    """Fetcher of one consumer or reader, used on its thread or task; `wakeup`, `wake` and `interrupt` on any thread."""

    def __init__(self, config: FetchConfig, what: str, background: Background, auto_offset_reset: str) -> None:
        """`what` names the owner in errors; `auto_offset_reset` is earliest, latest or error."""
        self._config = config
        self._what = what
        self._lock = threading.Lock()
        self._ready = background.make_changes(self._lock)
        self._work = background.make_signal()
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.Random())
        self._bootstrap = BootstrapClient(config)
        self._failure: Exception | None = None
        self._wakeup = False
        self._woken = False
        self._is_closed = False
        self._is_forked = False
        self._fork_guard = ForkGuard(self._after_fork)
        self.background = background
        self.engine = FetchEngine(config, self._backoff, auto_offset_reset, monotonic_ms())
        self.positions = self.engine.positions
        self.admin = AdminOperations(config, self._bootstrap)
        self.gate: Gate | None = None
        self.cursor: Iterated | None = None
        """Batch under iteration."""
        self.interrupts: list[None] = []
        """Not empty while the application has something other than records to process."""

    # --- for the application's thread ---

    def read_metadata(self, topics: set[str]) -> Operation[dict[str, int]]:
        """Request metadata of `topics`; return the number of partitions of each.

        Raises:
            NoBrokersAvailableError: If no server responded.
            UnknownTopicError: If one of the topics does not exist.
        """
        self.check()
        answer = yield from self._request_metadata(topics)
        with self._lock:
            self.engine.cluster_metadata.update(answer)
            self.engine.topics = set(topics)
            return {name: self.engine.cluster_metadata.require(name).partitions for name in sorted(topics)}

    def find_absent(self, topics: set[str]) -> Operation[list[str]]:
        """Request the brokers and metadata of `topics`; return the names of those that do not exist.

        Raises:
            NoBrokersAvailableError: If no server responded.
        """
        self.check()
        answer = yield from self._request_metadata(topics)
        with self._lock:
            self.engine.cluster_metadata.update(answer)
        return sorted(topic.name for topic in answer.topics if claims_absence(topic))

    def topic_id(self, topic: str) -> bytes:
        """Return the id of a topic in the newest metadata; empty if the topic is unknown."""
        with self._lock:
            leaders = self.engine.cluster_metadata.topic(topic)
            return b"" if leaders is None else leaders.topic_id

    def columns(self, topic: str) -> str:
        """Return the columns of a typed topic in the newest metadata; empty for another one."""
        with self._lock:
            leaders = self.engine.cluster_metadata.topic(topic)
            return "" if leaders is None else leaders.columns

    def read_topics(self, topics: set[str]) -> None:
        """Refresh the metadata of these topics from now on; metadata of new ones is requested soon."""
        with self._lock:
            self.engine.fetches.stale_topics.update(topics - self.engine.topics)
            self.engine.topics = set(topics)
            self._work.set()

    def start(self) -> None:
        """Start fetching."""
        self.engine.metadata_at_ms = monotonic_ms() + self._config.metadata_max_age_ms
        self.background.spawn(self._guarded(self._run()))
        if self._config.commit_group:
            self.background.spawn(commit_positions(self, self._config))

    @contextlib.contextmanager
    def changing(self) -> Iterator[SubscriptionState]:
        """Hold the lock during a change of `positions`, then wake the background if the change concerns it."""
        self.check()
        with self._lock:
            yield self.positions
            if self.positions.has_news:
                self._work.set()

    def retries_corrupt(self, completed: CompletedFetch, error: CorruptBatchError) -> bool:
        """Return whether a batch with a wrong checksum is fetched again; if not, the application gets the error."""
        with self.changing() as positions:
            return positions.corruption_detected(completed, error, monotonic_ms())

    def next_fetch(self, timeout: float | None, *, delivery_paused: bool = False) -> Operation[CompletedFetch | None]:
        """Wait for the next completed fetch, up to `timeout` seconds; `None` disables the limit.

        Returns `None` on timeout, after a `wake`, or when all partitions have reached their end offset. If
        `delivery_paused` is set, takes no fetch and returns `None` also when delivery resumes. Nothing is awaited
        between taking a fetch and returning it, so a cancelled wait loses none.

        Raises:
            WakeupError: If another thread called `wakeup`.
            ClosedError, ForkedError: If the owner is closed or was inherited by a fork.
            HeadraceError: An error of one partition.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                completed = self._pop(delivery_paused)
                if completed is not None:
                    return completed
                woken, self._woken = self._woken, False
                if woken or self._ends_wait(delivery_paused):
                    return None
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            yield WaitUntil(self._ready, lambda: self._is_ready(delivery_paused), left)

    def completed_fetch(self) -> CompletedFetch | None:
        """Return a completed fetch that is there; `None` if there is none, or if `next_fetch` would raise an error."""
        with self._lock:
            if self._wakeup or self._is_over() or not self.positions.has_completed_fetches():
                return None
            return self._pop(delivery_paused=False)

    def _pop(self, delivery_paused: bool) -> CompletedFetch | None:
        """Return the next completed fetch, or `None` if there is none now. Called under the lock."""
        self.check()
        if self._wakeup:
            self._wakeup = False
            raise WakeupError
        if delivery_paused or self._is_paused():
            return None
        completed = self.positions.pop(monotonic_ms())
        if self.positions.has_news:
            self._work.set()
        leaders = None if completed is None else self.engine.cluster_metadata.topic(completed.where.topic)
        if completed is not None and leaders is not None and leaders.columns:
            return completed._replace(columns=leaders.columns)
        return completed

    def _is_paused(self) -> bool:
        return self.gate is not None and self.gate.delivery_paused()

    def _ends_wait(self, delivery_paused: bool) -> bool:
        """Return whether no more fetches will complete, or paused delivery has resumed. Called under the lock."""
        return (delivery_paused and not self._is_paused()) or self.positions.is_finished()

    def _is_ready(self, delivery_paused: bool) -> bool:
        """Return whether `next_fetch` can return or raise. Called under the lock."""
        if self._wakeup or self._woken or self._is_over() or self._ends_wait(delivery_paused):
            return True
        return not delivery_paused and self.positions.is_ready() and not self._is_paused()

    def wakeup(self) -> None:
        """End the current or next wait of the application with a WakeupError."""
        with self._lock:
            self._wakeup = True
            self._ready.notify_all()

    def wake(self) -> None:
        """End the current or next wait of the application without an error."""
        with self._lock:
            self._woken = True
            self._ready.notify_all()

    def interrupt(self) -> None:
        """Wake the application to process something other than records. May be called on any thread."""
        if not self.interrupts:
            self.interrupts.append(None)
        self.wake()

    def check(self) -> None:
        """Raise an error if the owner is closed, was inherited by a fork, or has failed."""
        if self._is_forked:
            raise ForkedError(self._what)
        if self._is_closed:
            raise ClosedError(self._what)
        if self._failure is not None:
            raise InternalError(f"the {self._what} has failed: {self._failure!r}", fatal=True) from self._failure

    @property
    def is_usable(self) -> bool:
        """Whether the owner is neither closed nor inherited by a fork."""
        return not self._is_closed and not self._is_forked

    def begin_close(self) -> bool:
        """End all waits; return whether the owner must close its connections (once, not in a forked process)."""
        with self._lock:
            if not self.is_usable:
                return False
            self._is_closed = True
            self._ready.notify_all()
            return True

    def _after_fork(self) -> None:
        self._is_forked = True

    # --- the background ---

    def _guarded(self, operation: Operation[None]) -> Operation[None]:
        """Run an endless operation; raise an unexpected error to the application, which would wait forever."""
        try:
            yield from operation
        except ClosedError:
            return
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        log.error("the %s has failed", self._what, exc_info=error)
        with self._lock:
            self._failure = error
            self._ready.notify_all()

    def _is_over(self) -> bool:
        return self._is_closed or self._failure is not None

    def _run(self) -> Operation[None]:
        """Start the work that is due, until the owner is closed."""
        while True:
            self._work.clear()
            with self._lock:
                if self._is_over():
                    return
                turn = self.engine.turn(monotonic_ms())
                if turn.is_ready:
                    self._ready.notify_all()
            self._start(turn.plans)
            if not turn.refreshes and not turn.lost:
                yield WaitSignal(self._work, turn.idle_seconds)
                continue
            with request_id_scope():
                if turn.refreshes:
                    yield from self._refresh()
                for where in turn.lost[:1]:  # Other work is done between two resets.
                    yield from self._with_back_off(self._reset(where), where)

    def _with_back_off(self, operation: Operation[None], where: TopicPartition | None = None) -> Operation[None]:
        """Run `operation`; back off on retriable errors, report others to the application."""
        try:
            yield from operation
        except ClosedError:
            raise
        except HeadraceError as error:
            with self._lock:
                self.engine.last_error = error
                if where is not None:
                    if not error.retriable:
                        self.positions.fail(where, error, monotonic_ms())
                        self._ready.notify_all()
                    elif where in self.positions:
                        self.positions.rewind(where, monotonic_ms())
                    return
            yield Pause(self._backoff.delay_ms(1, error.retry_after_ms) / 1000)

    def _request_metadata(self, topics: set[str]) -> Operation[cluster_pb2.GetMetadataResponse]:
        request = cluster_pb2.GetMetadataRequest(
            topics=[by_name(name) for name in sorted(topics)], brokers_only=not topics
        )
        return self._bootstrap.metadata(request, self._config.request_timeout_ms / 1000)

    def _refresh(self) -> Operation[None]:
        """Refresh metadata, then look up the log start of partitions that were added."""
        with self._lock:
            topics = set(self.engine.topics)
        try:
            answer = yield from self._request_metadata(topics)
        except ClosedError:
            raise
        except HeadraceError as error:
            with self._lock:
                self.engine.metadata_failed(error, monotonic_ms())
            return
        with self._lock:
            if self.engine.take_metadata(answer, topics, monotonic_ms()):
                self._ready.notify_all()
            added = self.engine.added_partitions()
        for topic, partitions in added.items():
            yield from self._with_back_off(self._read_added(topic, partitions))

    def _read_added(self, topic: str, partitions: list[int]) -> Operation[None]:
        """Read new partitions of a topic from their log start, so that no record in them is skipped."""
        topic_id, found = yield from self.admin.find_offsets(topic, "earliest", partitions=partitions)
        with self._lock:
            for where, answer in found.items():
                self.positions.assign(where, answer.offset, topic_id=topic_id)

    def _reset(self, where: TopicPartition) -> Operation[None]:
        """Move the position of a partition if it is outside the log."""
        with self._lock:
            reset = self.engine.begin_reset(where, monotonic_ms())
            if reset is None:
                self._ready.notify_all()
                return
        timeout = self._config.request_timeout_ms / 1000
        earliest, latest = yield from log_bounds(self.admin, where, timeout, reset.topic_id)
        with self._lock:
            moved = self.engine.end_reset(reset, earliest, latest, monotonic_ms())
            if moved is None:
                self._ready.notify_all()
                return
        if reset.replaced is None:
            log.warning(
                "%s: offset %d is not in the log (%d to %d); the position is now %d",
                where, moved[0], earliest, latest, moved[1],
            )  # fmt: skip
        else:
            old_id, new_id = reset.replaced
            log.warning(
                "%s: the topic was deleted and created again: offset %d belongs to the topic with id %s; the position "
                "is now %d in the topic with id %s",
                where, moved[0], old_id.hex(), moved[1], new_id.hex(),
            )  # fmt: skip

    # --- fetches ---

    def _start(self, plans: list[FetchPlan]) -> None:
        """Start fetches. Not called under the lock, because it makes calls."""
        timeout = (self._config.fetch_max_wait_ms + self._config.request_timeout_ms) / 1000
        for plan in plans:
            begun = partial(self._begun, plan)
            call = Call(plan.address, "broker", "FetchZeroCopy", plan.request, timeout, begun)
            self.background.start(call, partial(self._ended, plan, time.monotonic()))

    def _begun(self, plan: FetchPlan, response: broker_pb2.FetchResponse) -> None:
        """Start the fetch behind a response whose batches are arriving. Called on the thread of the connection."""
        with self._lock:
            plans = [] if self._is_over() else self.engine.fetches.plan_behind(plan, response, monotonic_ms())
        self._start(plans)

    def _ended(self, plan: FetchPlan, started: float, answer: Any, failure: Exception | None) -> None:
        """Process the end of a fetch, and start the next ones. Called on the thread of the connection."""
        error = failure if failure is None or isinstance(failure, HeadraceError) else _error_of(failure)
        if isinstance(error, ClosedError):
            return
        try:
            with self._lock:
                if self._is_over():
                    return
                seconds = time.monotonic() - started
                self.positions.counts.took(seconds)
                self.engine.fetches.is_fast = error is None and seconds < FAST_S
                plans, is_ready = self.engine.land(plan, answer, error, monotonic_ms())
                if is_ready:
                    self._ready.notify_all()
                if self.engine.fetches.stale_topics or self.positions.has_news or self.positions.resets():
                    self._work.set()
            self._start(plans)
        except Exception as unexpected:
            self._fail(unexpected)


def _error_of(failure: Exception) -> HeadraceError:
    """Return the error of a call that has failed."""
    return error_of_call(failure) if isinstance(failure, rpc_failures()) else InternalError(repr(failure))
