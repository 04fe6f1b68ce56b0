"""The engine of blocking readers: it keeps fetches in flight, and the application empties a queue of what they bring.

In the background it plans fetches by `SubscriptionState`, reads metadata again where it is stale or old, and finds new
positions where an old one is gone. Each fetch in flight has a thread of its own, which makes a blocking call, takes the
answer in and goes on with the next fetch at once. (Futures would be simpler to read; but gRPC starts a thread for the
first one in flight and ends it with the last, so with one fetch at a time every fetch costs a new thread.) An answer is
only queued, with its batches' headers walked; checksums and columns are the application's thread's work, so that the
two overlap.
"""

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

import grpc

from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.rpc import by_name
from headrace.client.base.background import Background, BackgroundLoop, WaitSignal
from headrace.client.base.call_counts import CallStats
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import ClosedError, ForkedError, TopicRecreatedError, WakeupError
from headrace.client.base.forking import ForkGuard
from headrace.client.base.operations import Operation, Pause
from headrace.client.base.records import DecodedBatch
from headrace.client.base.request_ids import operation_metadata, request_id_scope
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.client.base.unclosed import close_in_thread
from headrace.client.fetch.corrupt_batches import WriteLetters
from headrace.client.fetch.dead_letters import producer_settings
from headrace.client.fetch.fetch_plan import FetchPlan
from headrace.client.fetch.offset_resets import log_bounds, position_after
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.client.fetch.position_commits import INTERVAL_S, PositionCommits
from headrace.client.fetch.subscription_state import SubscriptionState
from headrace.client.net.bootstrap_client import BootstrapClient, error_of_call
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.net.connection import Connections
from headrace.client.net.transfer import Transfers
from headrace.v1 import cluster_pb2
from headrace.wire.errors import CorruptBatchError, HeadraceError, InternalError
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")

STOP_TIMEOUT_S = 5.0


class NextFetch(NamedTuple):
    """A step: wait for the next completed fetch. Answered with it, or with None when the time is up or all is read."""

    timeout: float | None
    """In seconds; None: without end."""
    delivery_paused: bool = False
    """Take none, also where the owner is held back no more: what is left of the last one comes first. Then None."""


class Gate(Protocol):
    """Whoever can hold back what was fetched."""

    def delivery_paused(self) -> bool:
        """Whether nothing is delivered now. Under the fetcher's lock, any thread."""


class Iterated(Protocol):
    """A decoded batch that is iterated over: its position is ahead of that in `SubscriptionState`."""

    @property
    def decoded(self) -> DecodedBatch:
        """It."""

    def is_current(self, positions: SubscriptionState) -> bool:
        """Whether the partition's position was not changed from outside since."""

    def position(self) -> int:
        """The offset behind the last record that was delivered."""


class Fetcher:
    """Owned by one consumer or reader, whose thread calls it; `wakeup` and `close` may come from any thread."""

    def __init__(
        self, config: FetchConfig, what: str, *, auto_offset_reset: str, grows_with: Collection[str] = ()
    ) -> None:
        """`what` names the owner in errors; `auto_offset_reset` is earliest, latest or error; partitions that are added
        to the topics of `grows_with` are read too.
        """
        self._config = config
        self._what = what
        self._auto_offset_reset = auto_offset_reset
        self._grows_with = frozenset(grows_with)
        self._connections = Connections(what, config)
        self._transfers = Transfers(what, config)
        self._bootstrap = BootstrapClient(config)
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.Random())
        self._lock = threading.Lock()
        self._data = threading.Condition(self._lock)
        self._cluster_metadata = ClusterMetadata()
        self._topics: set[str] = set()
        self._plans: deque[FetchPlan] = deque()
        self._planned = threading.Condition(self._lock)
        self._idle_fetchers = 0
        self._threads: list[threading.Thread] = []
        self._metadata_failures = 0
        self._metadata_at_ms = 0
        self._look_at_ms = 0
        self._failure: Exception | None = None
        self._wakeup = False
        self._woken = False
        self._closed = False
        self._forked = False
        self._fork_guard = ForkGuard(self._after_fork)
        self._letters: Any = None
        """The producer of dead letters, from the first one on."""
        self.positions = SubscriptionState(config, self._backoff)
        self.admin = AdminOperations(config, self._bootstrap)
        self.gate: Gate | None = None
        self.raise_on_unknown_topic = True
        """Whether the application is told that a topic was deleted under it."""
        self.last_error: HeadraceError | None = None
        """What keeps metadata from being read, or None while it works."""
        self.last_answer_ms = monotonic_ms()
        self.cursor: Iterated | None = None
        """What the application is in the middle of, where positions move with it."""
        self.interrupts: list[None] = []
        """Not empty while something besides records waits for the application."""
        self.background = self._make_background()
        self._work = self.background.make_signal()

    def _make_background(self) -> Background:
        return BackgroundLoop(f"headrace-{self._what.lower()}", self._connections.start)

    # --- for the application's thread ---

    def read_metadata(self, topics: set[str]) -> Operation[dict[str, int]]:
        """Read metadata of `topics` and give their numbers of partitions.

        Raises:
            NoBrokersAvailableError: no address answered.
            UnknownTopicError: one of them is not there.
        """
        self.check()
        answer = yield from self._ask_metadata(topics)
        with self._lock:
            self._cluster_metadata.update(answer)
            self._topics = set(topics)
            return {name: self._cluster_metadata.require(name).partitions for name in sorted(topics)}

    def topic_id(self, topic: str) -> bytes:
        """Return the id that a topic has by the newest metadata; empty: it is not known."""
        with self._lock:
            topic_leaders = self._cluster_metadata.topic(topic)
            return b"" if topic_leaders is None else topic_leaders.topic_id

    def run_step(self, step: Any) -> Any:
        """Do one step, and give what came of it."""
        if isinstance(step, NextFetch):
            return self.next_fetch(step.timeout, delivery_paused=step.delivery_paused)
        if isinstance(step, WriteLetters):
            return self._write_letters(step)
        return self._connections.run_step(step)

    def _write_letters(self, step: WriteLetters) -> None:
        if self._letters is None:
            from headrace.client.producer.producer import Producer

            self._letters = Producer(**producer_settings(self._config))
        futures = [
            self._letters.send(step.topic, letter.value, letter.key, headers=letter.headers) for letter in step.letters
        ]
        for future in futures:
            future.result()

    def read_topics(self, topics: set[str]) -> None:
        """Keep the metadata of these topics from now on; asks for what is new soon."""
        with self._lock:
            self.positions.stale_topics.update(topics - self._topics)
            self._topics = set(topics)
            self._wake_engine()

    def start(self) -> None:
        """Begin to fetch."""
        self._metadata_at_ms = monotonic_ms() + self._config.metadata_max_age_ms
        self.background.spawn(self._guard(self._engine()))
        if self._config.commit_group:
            self.background.spawn(self._commit_positions())

    @contextlib.contextmanager
    def changing(self) -> Any:
        """Hold the lock around a change of `positions`, then wake the engine where that is news for it."""
        self.check()
        with self._lock:
            yield self.positions
            if self.positions.has_news:
                self._wake_engine()

    def ask_again(self, completed: CompletedFetch, error: CorruptBatchError) -> bool:
        """Whether a batch that failed its checksum is asked for again; otherwise the error is the application's."""
        with self.changing() as positions:
            return bool(positions.corruption_detected(completed, error, monotonic_ms()))

    def _wake_engine(self) -> None:
        self._work.set()

    def _wake_application(self) -> None:
        self._data.notify()

    def next_fetch(self, timeout: float | None, *, delivery_paused: bool = False) -> CompletedFetch | None:
        """Wait for the next completed fetch; None when the time is up, after a `wake`, or when all have reached their
        end.

        Where `delivery_paused` none is taken, and the wait also ends when the owner is held back no more.

        Raises:
            WakeupError: another thread called `wakeup`.
            ClosedError, ForkedError: the owner is of no use any more.
            HeadraceError: an error of one partition.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while True:
                completed = self._pop(delivery_paused)
                if completed is not None:
                    return completed
                left = None if deadline is None else deadline - time.monotonic()
                if (left is not None and left <= 0) or self._take_wake() or self._ends_wait(delivery_paused):
                    return None
                self._data.wait(left)

    def _ends_wait(self, delivery_paused: bool) -> bool:
        """Whether nothing more will come, or nothing holds the owner back that was held. Under the lock."""
        return (delivery_paused and not self._is_held_back()) or self.positions.is_finished()

    def _is_held_back(self) -> bool:
        return self.gate is not None and self.gate.delivery_paused()

    def _pop(self, delivery_paused: bool) -> CompletedFetch | None:
        """Return the next completed fetch if there is one now. Under the lock."""
        self.check()
        if self._wakeup:
            self._wakeup = False
            raise WakeupError
        if delivery_paused or self._is_held_back():
            return None
        completed = self.positions.pop(monotonic_ms())
        if self.positions.has_news:
            self._wake_engine()
        return completed

    def _take_wake(self) -> bool:
        """Whether the wait is to end because of `wake`. Under the lock."""
        woken, self._woken = self._woken, False
        return woken

    def wakeup(self) -> None:
        """End the wait of the application's thread, now or the next."""
        with self._lock:
            self._wakeup = True
            self._data.notify_all()

    def wake(self) -> None:
        """End the wait of the application's thread, now or the next, without an error."""
        with self._lock:
            self._woken = True
            self._wake_application()

    def interrupt(self) -> None:
        """Bring the application to what waits for it besides records; any thread."""
        if not self.interrupts:
            self.interrupts.append(None)
        self.wake()

    def check(self) -> None:
        """Raise where the owner is closed, was forked away, or has failed."""
        if self._forked:
            raise ForkedError(self._what)
        if self._closed:
            raise ClosedError(self._what)
        if self._failure is not None:
            raise InternalError(f"the {self._what} has failed: {self._failure!r}", fatal=True) from self._failure

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls; any thread."""
        return self.positions.counts.stats()

    def is_usable(self) -> bool:
        """Whether it is neither closed nor forked away."""
        return not self._closed and not self._forked

    def close(self) -> None:
        """End all fetches and the thread; returns within seconds whatever the servers do. Again: nothing."""
        if self._forked:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads = list(self._threads)
            for condition in (self._data, self._planned):
                condition.notify_all()
        self._connections.close()
        self._transfers.close()
        if self._letters is not None:
            with contextlib.suppress(HeadraceError):  # Each letter was waited for.
                self._letters.close(0)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        self._end_background(STOP_TIMEOUT_S)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_open(self) -> bool:
        """Whether there is something to close."""
        return self._connections.is_open and not self._forked

    def close_unclosed(self, owner: object, close: Callable[[], Any]) -> None:
        """Close an owner that was collected and left something open."""
        if self.is_open:
            close_in_thread(owner, close)

    # --- the background ---

    def _end_background(self, seconds: float) -> None:
        assert isinstance(self.background, BackgroundLoop)
        self.background.close(seconds)

    def _guard(self, operation: Operation[None]) -> Operation[None]:
        """Run an operation without end; an error that nobody foresaw is the application's: it would wait for ever."""
        try:
            yield from operation
        except ClosedError:
            return
        except Exception as error:
            with self._lock:
                self._fail(error)

    def _engine(self) -> Operation[None]:
        while True:
            self._work.clear()
            with self._lock:
                if self._closed or self._failure is not None:
                    return
                now = monotonic_ms()
                self.positions.has_news = False
                self._look_after_calls(now)
                self._plan(now)
                resets = self.positions.resets()
                refresh = self._refresh_due(now)
                idle_seconds = self._idle_seconds(now)
            if not resets and not refresh:
                yield WaitSignal(self._work, idle_seconds)
                continue
            with request_id_scope():
                yield from self._turn(refresh, resets)

    def _guard_thread(self, target: Callable[[], None]) -> None:
        """Run a thread of the engine; an error that nobody foresaw is the application's, which would wait for ever."""
        try:
            target()
        except Exception as error:
            with self._lock:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the engine. Under the lock."""
        log.error("the %s has failed", self._what, exc_info=error)
        self._failure = error
        self._wake_application()
        self._planned.notify_all()

    def _look_after_calls(self, now: int) -> None:
        """See to fetches that nobody answers. Under the lock."""
        if self.positions.give_up_overdue(self._cluster_metadata, now):
            self._wake_application()

    def _turn(self, refresh: bool, resets: list[TopicPartition]) -> Operation[None]:
        """Ask the servers what the engine wants to know."""
        if refresh:
            yield from self._refresh()
        for where in resets[:1]:  # Between two of them the engine sees to what else is due.
            yield from self._guarded(self._find_position(where), where)

    def _refresh_due(self, now: int) -> bool:
        return now >= self._metadata_at_ms or (bool(self.positions.stale_topics) and now >= self._look_at_ms)

    def _idle_seconds(self, now: int) -> float:
        """How long there is nothing to do, at most: calls are looked after in between."""
        wait_ms = min(self._metadata_at_ms - now, OVERDUE_MS // 2)
        if self.positions.stale_topics:
            wait_ms = min(wait_ms, self._look_at_ms - now)
        retry_ms = self.positions.next_retry_ms(now)
        return max(wait_ms if retry_ms is None else min(wait_ms, retry_ms), 1) / 1000

    def _plan(self, now: int) -> None:
        """Queue the fetches that may start now, and see that each finds a thread. Under the lock."""
        self._plans.extend(self.positions.plan(self._cluster_metadata, now))
        for _ in range(len(self._plans) - self._idle_fetchers):
            self._idle_fetchers += 1
            self._start_thread(self._run_fetches)
        self._planned.notify(len(self._plans))

    def _start_thread(self, target: Callable[[], None]) -> None:
        name = f"headrace-{self._what.lower()}-fetch"
        thread = threading.Thread(target=self._guard_thread, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _commit_positions(self) -> Operation[None]:
        """Commit until the owner is closed; a failure here does not stop reading."""
        commits = PositionCommits(self._config)
        try:
            while not commits.is_over and self._failure is None:
                with self._lock:
                    now = self._positions_now()
                with request_id_scope():
                    yield from commits.commit(*now)
                yield Pause(INTERVAL_S)
        except ClosedError:
            return
        except Exception:
            log.exception("the positions of the %s are no longer committed", self._what)

    def _positions_now(self) -> tuple[dict[TopicPartition, int], dict[str, bytes]]:
        """Where the application is, and the topics' ids as far as they are known. Under the lock."""
        positions = {where: self.positions.position(where) for where in self.positions.assigned()}
        current = self.cursor
        if current is not None and current.is_current(self.positions):
            positions[current.decoded.source] = current.position()
        positions = {where: offset for where, offset in positions.items() if not self.positions.replaced(where)}
        ids = {where.topic: self.positions.topic_id(where) for where in positions}
        return positions, {name: topic_id for name, topic_id in ids.items() if topic_id}

    # --- a fetch's thread ---

    def _run_fetches(self) -> None:
        """Fetch one plan after the other. A thread that waits counts in `_idle_fetchers`, as does one that starts."""
        while True:
            with self._lock:
                while not self._plans and not self._closed and self._failure is None:
                    self._planned.wait()
                if self._closed or self._failure is not None:
                    return
                plan = self._plans.popleft()
                self._idle_fetchers -= 1
            try:
                self._fetch(plan)
            except ClosedError:
                return

    def _fetch(self, plan: FetchPlan) -> None:
        """Make one call and take its answer in."""
        timeout = (self._config.fetch_max_wait_ms + self._config.request_timeout_ms) / 1000
        answer, error, started_seconds = None, None, time.monotonic()
        try:
            answer = self._transfers.fetch(plan.transfer_address, plan.request, timeout)
            if answer is None:
                fetch = self._connections.endpoint(plan.address).fetch
                answer = fetch(plan.request, timeout=timeout, metadata=operation_metadata())
        except ClosedError:
            raise
        except HeadraceError as failure:
            error = failure
        except grpc.RpcError as failure:
            error = error_of_call(failure)
        except ValueError as failure:  # grpc says it of a channel that was closed meanwhile
            raise ClosedError(self._what) from failure
        with self._lock:
            now = monotonic_ms()
            self.positions.counts.took(time.monotonic() - started_seconds)
            self._take(plan, answer, error, now)
            self._idle_fetchers += 1  # This thread is free again, and takes the next plan itself.
            self._plan(now)
            if self.positions.stale_topics or self.positions.has_news or self.positions.resets():
                self._wake_engine()

    def _take(self, plan: FetchPlan, answer: Any, error: HeadraceError | None, now: int) -> None:
        """Take in what came of a fetch. Under the lock."""
        if error is not None:
            news = self.positions.take_failure(plan, error, self._cluster_metadata, now)
        else:
            self.last_answer_ms = now
            news = self.positions.take_answer(plan, answer, self._cluster_metadata, now)
        if news:
            self._wake_application()

    def _refresh(self) -> Operation[None]:
        with self._lock:
            topics = set(self._topics)
        try:
            answer = yield from self._ask_metadata(topics)
        except ClosedError:
            raise
        except HeadraceError as error:
            with self._lock:
                self._metadata_failures += 1
                delay_ms = self._backoff.delay_ms(self._metadata_failures, error.retry_after_ms)
                self._metadata_at_ms = self._look_at_ms = monotonic_ms() + delay_ms
                self.last_error = error
            return
        with self._lock:
            self._cluster_metadata.update(answer)
            self.positions.stale_topics.clear()
            self._metadata_failures = 0
            self._metadata_at_ms = monotonic_ms() + self._config.metadata_max_age_ms
            self._look_at_ms = monotonic_ms() + self._backoff.look_delay_ms()
            self._look_after_calls(monotonic_ms())
            self.last_error = None
            counts = {
                name: topic_leaders.partitions
                for name in topics
                if (topic_leaders := self._cluster_metadata.topic(name)) is not None
            }
            self._fail_missing(topics)
        for name, partitions in sorted(counts.items()):
            if name in self._grows_with:
                yield from self._guarded(self._read_added(name, partitions))

    def _read_added(self, topic: str, partitions: int) -> Operation[None]:
        """Read partitions that were added to a topic, from their beginning: nothing in them is skipped."""
        with self._lock:
            new = [n for n in range(partitions) if TopicPartition(topic, n) not in self.positions]
        if not new:
            return
        topic_id, found = yield from self.admin.find_offsets(topic, "earliest", partitions=new)
        with self._lock:
            for where, answer in found.items():
                self.positions.assign(where, answer.offset, topic_id=topic_id)

    def _fail_missing(self, topics: set[str]) -> None:
        """Tell the application of a topic that was deleted under it."""
        for where in self.positions.assigned():
            error = self._cluster_metadata.error(where.topic) if where.topic in topics else None
            if error is not None and not error.retriable and self.raise_on_unknown_topic:
                self.positions.fail(where, error, monotonic_ms())
                self._wake_application()

    def _ask_metadata(self, topics: set[str]) -> Operation[cluster_pb2.GetMetadataResponse]:
        request = cluster_pb2.GetMetadataRequest(
            topics=[by_name(name) for name in sorted(topics)], brokers_only=not topics
        )
        return self._bootstrap.metadata(request, self._config.request_timeout_ms / 1000)

    def _find_position(self, where: TopicPartition) -> Operation[None]:
        """Find where to go on in a partition whose position is not in its log."""
        with self._lock:
            ids = self.positions.replaced(where)
            life = self.positions.topic_id(where)
        if ids is not None:
            yield from self._find_position_anew(where, ids)
            return
        earliest, latest = yield from log_bounds(self.admin, where, self._config.request_timeout_ms / 1000, life)
        with self._lock:
            if where not in self.positions:
                return
            position = self.positions.position(where)
            target = position_after(where, position, earliest, latest, self._auto_offset_reset)
            if isinstance(target, HeadraceError):
                self.positions.fail(where, target, monotonic_ms())
                self._wake_application()
                return
            if target == position:  # It is in the log again: the answer was of another view.
                self.positions.rewind(where, monotonic_ms())
                return
            self.positions.seek(where, target)
        log.warning(
            "%s: offset %d is not in the log (%d to %d); going on at %d", where, position, earliest, latest, target
        )

    def _find_position_anew(self, where: TopicPartition, ids: tuple[bytes, bytes]) -> Operation[None]:
        """Find where to go on in a topic that was created again; a group does so itself, by another assignment."""
        old_id, new_id = ids
        if not self.raise_on_unknown_topic or self._auto_offset_reset == "error":
            with self._lock:
                if self.positions.replaced(where) != ids:
                    return
                if not self.raise_on_unknown_topic:
                    self.positions.rewind(where, monotonic_ms())
                    return
                error = TopicRecreatedError(where, self.positions.position(where), old_id, new_id)
                self.positions.fail(where, error, monotonic_ms())
                self._wake_application()
            return
        earliest, latest = yield from log_bounds(self.admin, where, self._config.request_timeout_ms / 1000, new_id)
        target = earliest if self._auto_offset_reset == "earliest" else latest
        with self._lock:
            if self.positions.replaced(where) != ids:
                return
            position = self.positions.position(where)
            self.positions.seek(where, target, new_id)
        log.warning(
            "%s: the topic was deleted and created again: offset %d was of the topic with id %s; going on at %d of the "
            "one with id %s",
            where, position, old_id.hex(), target, new_id.hex(),
        )  # fmt: skip

    def _guarded(self, operation: Operation[None], where: TopicPartition | None = None) -> Operation[None]:
        """Run `operation`; back off on retriable errors, report others to the application."""
        try:
            yield from operation
        except ClosedError:
            raise
        except HeadraceError as error:
            with self._lock:
                self.last_error = error
                if where is not None:
                    if not error.retriable:
                        self.positions.fail(where, error, monotonic_ms())
                        self._wake_application()
                    elif where in self.positions:
                        self.positions.rewind(where, monotonic_ms())
                    return
            yield Pause(self._backoff.delay_ms(1, error.retry_after_ms) / 1000)

    def _after_fork(self) -> None:
        self._forked = True
