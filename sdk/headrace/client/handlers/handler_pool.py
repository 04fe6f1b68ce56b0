"""Core of `Consumer.run` without its threads or tasks: received records are queued, finished ones are committed.

Every record is handled at least once. The tracker determines the committable offset of a partition: never beyond a
record that is in progress or waits. A revoked partition is drained first: none of its waiting records is started, and
running handlers have `drain_timeout_ms`. No record of a partition is started before `poison_records` has released it.
"""

import contextlib
import dataclasses
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.config_text import nearest
from headrace.client.base.errors import ConfigError, HandlerError, SerializationError, error_text
from headrace.client.base.operations import Operation
from headrace.client.base.records import Deserializers, Record, RecordBatch, bytes_of
from headrace.client.base.serializers import deserialize
from headrace.client.fetch.corrupt_batches import WriteLetters
from headrace.client.fetch.dead_letters import dead_letter
from headrace.client.fetch.decoding import deserializers_of
from headrace.client.group.member import ConsumerMember
from headrace.client.group.membership import InitialPosition, OwnedPartition, Stage
from headrace.client.group.offsets import OffsetAndMetadata
from headrace.client.handlers.poison_records import PREFIX, PoisonRecordDetector
from headrace.client.handlers.work_queue import RetryDecision, RetryPolicy, Task, WorkQueue
from headrace.client.tracing.receiving import ReceiveTracing
from headrace.wire.errors import BatchTooLargeError, HeadraceError, NotOwnerError, UnknownMemberError
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")

TURN_S = 0.2
"""Maximum time for which the reading thread waits for records before it does other due work."""
MAX_CONCURRENCY = 1_000
_UNTRACED: AbstractContextManager[object] = contextlib.nullcontext()

Handler = Callable[[Record], Any]
AsyncHandler = Callable[[Record], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Arguments of `Consumer.run`."""

    concurrency: int = 8
    ordering: str = "key"
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009  (frozen)
    dead_letter: str | None = None
    handler_timeout_ms: int | None = None
    buffer_records: int = 1_000
    window_records: int = 10_000
    drain_timeout_ms: int = 30_000
    handle_signals: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "RunOptions":
        """Check the options of a call.

        Raises:
            ConfigError: If one is unknown or out of range.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(f"run has no option {name!r}{nearest(name, known)}")
        return cls(**{name: value for name, value in given.items() if value is not None})

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError(f"concurrency={self.concurrency} is not within 1 to {MAX_CONCURRENCY}")
        for name in ("buffer_records", "window_records", "handler_timeout_ms", "drain_timeout_ms"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} is not at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Counts of a run."""

    handled: int
    """Records whose handler returned."""
    failed: int
    """Handler calls that raised an error or timed out."""
    dead_letters: int
    """Records written to the dead-letter topic."""
    seconds: float
    uncommitted: int
    """Records that may be handled again although a handler has had them: started, and not below a commit."""


class HandlerPool:
    """Pool of one run. `lock` guards the queue and the counts; workers and the reading thread take it."""

    def __init__(
        self,
        options: RunOptions,
        config: ConsumerConfig,
        group: ConsumerMember,
        *,
        wake_workers: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        if not config.enable_auto_commit:
            raise ConfigError("run commits finished records automatically", action="Leave enable_auto_commit on.")
        self.options = options
        self._config = config
        self._group = group
        self._wake_workers = wake_workers
        self._wake = wake
        self._deserializers = deserializers_of(config)
        self._tracing = ReceiveTracing(config)
        self._started_ms = monotonic_ms()
        self._revoking: dict[TopicPartition, int] = {}
        self._was_full = False
        self._paused: set[TopicPartition] = set()
        self.lock = threading.RLock()
        self.queue = WorkQueue(options.ordering, options.retry, random.Random())
        self._poison_records = PoisonRecordDetector(
            self.queue, attempts=options.retry.attempts, watch_ms=2 * config.auto_commit_interval_ms
        )
        self.handled = self.failed = self.dead_letters = 0
        self.stops = False
        self.error: BaseException | None = None
        """Error that ends the run."""

    # --- the reading thread: `group_member.Work` ---

    def opened(self, where: TopicPartition, start: InitialPosition) -> None:
        """See `Work`."""
        with self.lock:
            self.queue.open(where, start.offset, start.leader_epoch, is_held=True)
            self._poison_records.opened(where, start.metadata)

    def may_give_up(self, holdings: list[OwnedPartition]) -> list[OwnedPartition]:
        """See `Work`; handlers that exceed the limit are abandoned, and the next owner handles their records again."""
        ready = []
        now = monotonic_ms()
        with self.lock:
            for holding in holdings:
                since = self._revoking.setdefault(holding.where, now)
                if self.queue.revoke(holding.where) or now - since >= self.options.drain_timeout_ms:
                    ready.append(holding)
            for holding in ready:
                self._leave_in_order(holding.where)
        return ready

    def closed(self, where: TopicPartition) -> None:
        """See `Work`."""
        with self.lock:
            self._revoking.pop(where, None)
            self.queue.close(where)
            self._poison_records.closed(where)
            self._advance()

    def is_full(self) -> bool:
        """See `Work`."""
        full = self.queue.size >= self.options.buffer_records
        self._was_full |= full
        return full

    def room(self) -> int:
        """Return the number of records that the queue still accepts."""
        return max(1, self.options.buffer_records - self.queue.size)

    def take(self, batch: RecordBatch) -> None:
        """Queue received records."""
        with self.lock:
            for decoded in batch.decoded_batches:
                raw = replace(decoded, deserializers=Deserializers())
                offsets = raw.offsets()
                self._follow_reset(decoded.source, offsets[0])
                for record in raw.records(iter(offsets)):
                    self.queue.add(record, decoded.leader_epoch)
            self._advance()
        if batch.decoded_batches:
            self._wake_workers()

    def _follow_reset(self, where: TopicPartition, offset: int) -> None:
        """Begin again at a lower offset, to which `auto_offset_reset` has moved the position."""
        tracker = self.queue.tracker(where)
        if tracker is not None and offset < tracker.next_offset:
            self.opened(where, InitialPosition(offset))

    def _continue_kept(self) -> None:
        """Continue partitions whose revocation the group has withdrawn while handlers were finishing."""
        session = self._group.session
        with session.lock:
            kept = {holding.where for holding in self._group.membership.owned() if holding.stage is Stage.OWNED}
        positions = {}
        with self.lock:
            for where in kept.intersection(self._revoking):
                del self._revoking[where]
                tracker = self.queue.tracker(where)
                if tracker is not None:
                    positions[where] = tracker.position
                    self.opened(where, InitialPosition(tracker.position, tracker.leader_epoch))
        self._group.go_back(positions)

    def turn(self, assigned: list[TopicPartition]) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Do due work; return the partitions to pause, and those to resume."""
        if self._revoking:
            self._continue_kept()
        with self.lock:
            if self._revoking:
                self._group.wake()
            self._advance()
            spans = {where: self.queue.span(where) for where in self.queue.partitions()}
        most = self.options.window_records
        paused = {where for where in assigned if where in self._paused}
        pause = [where for where in assigned if where not in paused and spans.get(where, 0) >= most]
        resume = [where for where in sorted(paused) if spans.get(where, most) <= most // 2]
        self._paused = paused.union(pause).difference(resume)
        return pause, resume

    def paused(self, assigned: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that the run has paused."""
        return [where for where in assigned if where in self._paused]

    # --- poison records ---

    def _advance(self) -> None:
        """Store due markers, then release the records that may start. Called under the lock."""
        was_searching = self._poison_records.is_searching
        for where, value in self._poison_records.step(monotonic_ms()):
            self._store(where, value)
        if was_searching:
            self._wake_workers()

    def _store(self, where: TopicPartition, value: OffsetAndMetadata) -> None:
        term = self._poison_records.term(where)

        def resolved(_: object, error: HeadraceError | None) -> None:
            if isinstance(error, NotOwnerError | UnknownMemberError):
                return  # It is not owned any more.
            with self.lock:
                self._poison_records.stored(where, monotonic_ms(), term=term)
                self._advance()
            self._wake_workers()

        with contextlib.suppress(HeadraceError):  # It is not owned any more, or the next `poll` raises the reason.
            self._group.queue({where: value}, resolved)

    def _leave_in_order(self, where: TopicPartition) -> None:
        """Remove the mark of a partition at the end of its term, unless the process ends."""
        tracker = self.queue.tracker(where)
        if tracker is None or (self._poison_records.leaves_mark(where) and self.options.dead_letter is not None):
            return
        session, value = self._group.session, OffsetAndMetadata(tracker.position, tracker.leader_epoch)
        with session.lock:
            self._group.finish(where, value)
            latest = session.commits.latest(where)
            if latest is not None and latest.metadata.startswith(PREFIX):
                with contextlib.suppress(HeadraceError):
                    self._group.queue({where: value}, None)

    # --- workers ---

    def span_of(self, record: Record) -> AbstractContextManager[object]:
        """Return a context manager for the handler's call: the span of a record that has headers, if it is traced."""
        return self._tracing.processing(record) or _UNTRACED

    def record_of(self, task: Task) -> Record:
        """Return the record with deserialized key and value.

        Raises:
            SerializationError: If its key or value cannot be deserialized.
        """
        record, how = task.record, self._deserializers
        key, value = record.key, record.value
        if how.key is not None:
            key = deserialize(how.key, key, "key", task.where, record.offset)
        if how.value is not None:
            value = deserialize(how.value, bytes_of(value), "value", task.where, record.offset)
        return record._replace(key=key, value=value)

    def succeeded(self, task: Task) -> None:
        """Record that the handler has returned, or that the dead letter is written."""
        with self.lock:
            if task.is_given_up:
                self.dead_letters += 1
            else:
                self.handled += 1
            if self.queue.succeeded(task):
                tracker, text = task.tracker, self._poison_records.text(task.where)
                self._group.finish(task.where, OffsetAndMetadata(tracker.position, tracker.leader_epoch, text))
            if not task.tracker.is_over:
                self._poison_records.finished(task.where, task.record.offset)
            self._after(task)

    def handler_failed(self, task: Task, error: BaseException, *, is_final: bool = False) -> None:
        """Record that the handler raised an error or timed out."""
        with self.lock:
            self.failed += 1
            verdict = self.queue.failed(task, error, monotonic_ms(), is_final=is_final)
            if verdict is RetryDecision.GIVE_UP:
                self._given_up(task)
            self._after(task)

    def _given_up(self, task: Task, refused_letter: str = "") -> None:
        """Start other partitions while the dead letter is written; end the run if no topic takes it."""
        if task.tracker.is_over:
            return
        self._poison_records.given_up(task.where, task.record.offset)
        if self.options.dead_letter is None or refused_letter:
            cause, where = error_text(task.error, repr), task.where
            wrong = HandlerError(where, task.record.offset, task.attempts, cause, refused_letter=refused_letter)
            wrong.__cause__ = task.error
            self.fail(wrong)

    def send_to_dead_letter_topic(self, task: Task) -> Operation[None]:
        """Write the dead letter of a record."""
        topic, now_ms = self.options.dead_letter, time.time_ns() // 1_000_000
        if topic is None:
            self._letter_failed(task)  # The run is ending because of it.
            return
        try:
            letter = dead_letter(task.record, task.error, task.attempts, self._config.group_id, now_ms)
            yield WriteLetters(topic, (letter,))
        except (BatchTooLargeError, SerializationError) as error:  # No retry changes that.
            self._letter_failed(task, error.message)
        except HeadraceError as error:
            log.warning("%s offset %d: dead letter not written, will retry: %s", task.where, task.record.offset, error)
            self._letter_failed(task)
        except BaseException:
            self._letter_failed(task)
            raise
        else:
            self.succeeded(task)

    def _letter_failed(self, task: Task, refused_letter: str = "") -> None:
        """Record that writing the dead letter failed, to retry it unless it was refused."""
        with self.lock:
            self._given_up(task, refused_letter)
            self.queue.not_sent(task, monotonic_ms())
            self._after(task)

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        with self.lock:
            self.error = self.error or error
            self.stop()

    def stop(self) -> None:
        """Stop the run: running handlers finish, waiting records are dropped."""
        self.stops = True
        self._wake()
        self._wake_workers()

    def _after(self, task: Task) -> None:
        if self._was_full and self.queue.size <= self.options.buffer_records // 2:
            self._was_full = False
            self._wake()
        if task.where in self._revoking:
            self._group.wake()
        if self._poison_records.is_searching:
            self._advance()
        self._wake_workers()

    # --- begin and end ---

    def begin(self) -> Operation[None]:
        """Take over the partitions that the consumer already reads."""
        self._group.on_poll_begin()
        with self._group.session.lock:
            self._group.work = self
            owned = [holding.where for holding in self._group.membership.owned()]
            stored = {where: self._group.session.commits.latest(where) for where in owned}
        for where, position in self._group.positions(owned).items():
            known = stored[where]
            metadata = known.metadata if known is not None and known.offset == position.offset else ""
            self.opened(where, InitialPosition(position.offset, position.leader_epoch, metadata))
        yield from ()

    def drained(self) -> bool:
        """Return whether no handler is running."""
        return self.queue.running == 0

    def finish(self) -> Operation[RunSummary]:
        """Commit finished records, and seek the consumer to the first unfinished ones.

        Handlers that are still running change no offset any more.
        """
        positions, uncommitted = {}, 0
        with self.lock:
            for where in self.queue.partitions():
                tracker = self.queue.tracker(where)
                assert tracker is not None
                positions[where] = tracker.position
                uncommitted += tracker.started
                self._leave_in_order(where)
                self.queue.close(where)
                self._poison_records.closed(where)
        session = self._group.session
        with session.lock:
            session.auto_commit()
            ticket = session.commits.last_ticket()
        if ticket is not None:
            yield from session.await_commit(ticket, self.options.drain_timeout_ms / 1000)
        with session.lock:
            self._group.work = None
        self._group.go_back(positions)
        return RunSummary(
            handled=self.handled,
            failed=self.failed,
            dead_letters=self.dead_letters,
            seconds=(monotonic_ms() - self._started_ms) / 1000,
            uncommitted=uncommitted,
        )
