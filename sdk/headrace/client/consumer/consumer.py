"""The blocking `Consumer`: an endless stream of the records of some partitions (paper, section 3).

One thread reads with it. Fetching goes on in the background, bounded in bytes; the position is that of the records
which this thread has received, exactly, also in the middle of `for record in consumer`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from headrace.client.base.call_counts import CallStats
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ConsumerConfig, build, client_repr
from headrace.client.base.errors import ConfigError, WakeupError
from headrace.client.base.operations import Operation, execute
from headrace.client.base.records import DecodedBatch, Record, RecordBatch
from headrace.client.base.settings_types import ConsumerSettings
from headrace.client.base.unclosed import close_in_thread
from headrace.client.consumer.record_cursor import RecordCursor
from headrace.client.fetch.corrupt_batches import pass_corrupt_batch
from headrace.client.fetch.fetching import Fetcher, NextFetch
from headrace.client.fetch.open_fetch import OpenFetch
from headrace.client.fetch.partition_fetch_state import NO_EPOCH, CompletedFetch
from headrace.client.group.consumer_health import ConsumerHealth
from headrace.client.group.member import CLOSE_TIMEOUT_S, GroupMember
from headrace.client.group.offsets import CommitCallback, OffsetAndMetadata
from headrace.client.handlers.handler_pool import RunOptions, RunSummary
from headrace.client.handlers.run_arguments import RunArguments
from headrace.wire.errors import (
    CorruptBatchError,
    HeadraceError,
    NotOwnerError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.handlers.runner import Runner


class Consumer:
    """Reads partitions for ever. Made for one thread; `wakeup`, `close` and `health` may be called by others.

    `Consumer("clicks", "views")` reads all partitions of the topics, those added later too; `Consumer()` and then
    `assign` reads chosen ones. `Consumer("clicks", group_id="billing")` shares them with the group's other consumers.
    """

    def __init__(self, *topics: str, **settings: Unpack[ConsumerSettings]) -> None:
        """Connect, and find where to start. See `ConsumerConfig` for the settings.

        Raises:
            ConfigError: an unknown setting or a value out of range.
            NoBrokersAvailableError: no address answered.
            UnknownTopicError: one of the topics is not there; a group waits for it.
        """
        self._set_up(topics, settings, Fetcher)
        try:
            self._do(self._open())
            self._start()
        except BaseException:
            self._fetcher.close()
            raise

    def _set_up(self, topics: Sequence[str], settings: Mapping[str, Any], make_fetcher: type[Fetcher]) -> None:
        """Check the settings; asks nobody yet."""
        self._config = build(ConsumerConfig, settings)
        if not all(isinstance(topic, str) and topic for topic in topics):
            raise ConfigError("a topic is not a name", action='Write Consumer("clicks", "views", ...).')
        self._topics = frozenset(topics)
        self._open_fetch = OpenFetch(self._config)
        self._fetcher = make_fetcher(
            self._config,
            "Consumer",
            auto_offset_reset=self._config.auto_offset_reset,
            grows_with=() if self._config.group_id else topics,
        )
        self._runner: Runner | None = None
        self._group: GroupMember | None = None
        if self._config.group_id:
            if not topics and not self._config.topic_pattern:
                raise ConfigError("a consumer of a group names no topic", action="Name topics or set topic_pattern.")
            self._group = GroupMember(self._config, topics, self._fetcher, self._open_fetch)

    def _open(self) -> Operation[None]:
        """Find where to start."""
        if self._group is not None:
            yield from self._fetcher.read_metadata(set())
        elif self._topics:
            counts = yield from self._fetcher.read_metadata(set(self._topics))
            yield from self._assign([TopicPartition(name, n) for name, count in counts.items() for n in range(count)])

    def _start(self) -> None:
        """Begin to fetch, and to be a member of the group."""
        self._fetcher.start()
        if self._group is not None:
            self._group.session.start()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; leaving the block without an error says that everything received was dealt with."""
        self._close(CLOSE_TIMEOUT_S, finish=kind is None)

    def __repr__(self) -> str:
        group = [f"group_id={self._config.group_id}"] if self._config.group_id else []
        topics = [f"topics={','.join(sorted(self._topics))}"] if self._topics else []
        return client_repr("Consumer", self._config, *topics, *group)

    def __del__(self) -> None:
        fetcher = getattr(self, "_fetcher", None)  # Wrong settings leave none.
        if fetcher is not None and fetcher.is_open:
            close_in_thread(self, self.close)

    def _do(self, operation: Operation[Any]) -> Any:
        return execute(operation, self._fetcher.run_step)

    @property
    def _current(self) -> RecordCursor | None:
        """What the iteration is in the middle of."""
        cursor = self._fetcher.cursor
        assert cursor is None or isinstance(cursor, RecordCursor)
        return cursor

    # --- records ---

    def __iter__(self) -> Iterator[Record]:
        """Yield records one by one, for ever; waits where there is none."""
        while True:
            yield from self._do(self._next_records())

    def _next_records(self) -> Operation[Iterator[Record]]:
        """Wait for the next records; the iterator is at their first, and `position` moves with it."""
        self._settle()  # Also what an earlier loop was left in the middle of.
        self._poll_begins()
        while True:
            decoded = yield from self._next_decoded_batch(None, None)
            assert decoded is not None, "a wait without end ends with a decoded batch or an error"
            if self._receive(decoded, decoded.base_offset):
                break
        stopper = None if self._group is None else self._group.stopper()
        cursor = self._fetcher.cursor = RecordCursor(decoded, self._open_fetch.generation_of(decoded), stopper)
        self._poll_ends()
        return cursor.records()

    def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> RecordBatch:
        """Return fetched records; wait up to `timeout` seconds for the first one (`None` disables the limit).

        Args:
            timeout: in seconds; 0 only looks.
            max_records: at most so many; None: what one fetch brought. Never more than `max_poll_bytes`.

        Raises:
            CorruptBatchError: a batch is corrupt wherever it can be read; `next_offset` says where to seek to go on.
            LogTruncationError: records that were received were lost or replaced; `diverging_offset` says from where on.
            OffsetOutOfRangeError: the position is gone, and auto_offset_reset is `error`.
            TopicRecreatedError: the topic was deleted and created again, and auto_offset_reset is `error`.
            WakeupError: another thread called `wakeup`.
        """
        batch: RecordBatch = self._do(self._poll(timeout, max_records))
        return batch

    def _poll(self, timeout: float | None, max_records: int | None) -> Operation[RecordBatch]:
        if max_records is not None and max_records < 1:
            raise ConfigError(f"max_records={max_records} is not at least 1")
        self._settle()
        self._poll_begins()
        decoded_batches: list[DecodedBatch] = []
        size = 0
        left = max_records
        wait = timeout
        while left is None or left > 0:
            try:
                decoded = yield from self._next_decoded_batch(wait, left, first=not decoded_batches)
            except WakeupError:
                if not decoded_batches:
                    raise
                self._fetcher.wakeup()  # What has been received is given; the next wait ends.
                break
            if decoded is None:
                break
            size += decoded.payload_bytes
            if decoded_batches and size > self._config.max_poll_bytes:
                rest = self._open_fetch.rest
                self._open_fetch.rest = decoded if rest is None else replace(decoded, end=rest.end)
                break
            if not self._receive(decoded, decoded.end_offset):
                continue
            decoded_batches.append(decoded)
            if self._group is not None:
                self._group.mark_consumed(decoded.source, decoded.end_offset, decoded.leader_epoch)
            if left is not None:
                left -= decoded.end - decoded.start
            wait = 0
        self._poll_ends()
        return RecordBatch(decoded_batches)

    # --- positions ---

    def assign(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from the offsets given or where `auto_offset_reset` says.

        Raises:
            UnknownTopicError, UnknownPartitionError: one is not there.
            ConfigError: the consumer was made with topics, or for a group.
        """
        self._do(self._assign_only(partitions))

    def _assign_only(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> Operation[None]:
        if self._group is not None:
            raise ConfigError("this consumer reads what its group assigns", action="Leave out group_id to assign.")
        if self._topics:
            raise ConfigError("this consumer reads all partitions of its topics", action="Use Consumer() and assign().")
        wanted = [TopicPartition(*where) for where in partitions]
        counts = yield from self._fetcher.read_metadata({where.topic for where in wanted})
        for where in wanted:
            if not 0 <= where.partition < counts[where.topic]:
                raise UnknownPartitionError(f"{where.topic} has the partitions 0 to {counts[where.topic] - 1}")
        self._open_fetch.forget()
        with self._fetcher.changing() as positions:
            for where in positions.assigned():
                if where not in wanted:
                    positions.drop(where)
        yield from self._assign(wanted, partitions if isinstance(partitions, Mapping) else None)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read, ascending."""
        with self._fetcher.changing() as positions:
            return list(positions.assigned())

    def position(self, where: TopicPartition) -> int:
        """Return the offset of the next record that the application will receive of a partition."""
        current = self._current
        with self._fetcher.changing() as positions:
            self._require(positions, where)
            if current is not None and current.decoded.source == where and current.is_current(positions):
                return current.position()
            return int(positions.position(where))

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on from `offset` in one partition."""
        if offset < 0:
            raise ConfigError(f"offset {offset} is negative", action="Use seek_to_end or seek_to_beginning.")
        self._seek(where, offset, b"")

    def _seek(self, where: TopicPartition, offset: int, topic_id: bytes) -> None:
        """Go on from an offset of the topic with this id; empty: of the newest one known."""
        self._settle()
        self._open_fetch.forget(where)
        with self._fetcher.changing() as positions:
            self._require(positions, where)
            positions.seek(where, offset, topic_id)
        if self._group is not None:
            self._group.on_seek(where, offset)

    def seek_to_timestamp(self, when: datetime | float, *partitions: TopicPartition) -> None:
        """Go on from the first record at or after `when` (a datetime, or ms since 1970) in some partitions, or all."""
        self._do(self._seek_to(when, partitions))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the log start of some partitions, or of all."""
        self._do(self._seek_to("earliest", partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from what comes next in some partitions, or in all."""
        self._do(self._seek_to("latest", partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        """Receive nothing of some partitions until `resume`; their positions stay."""
        self._settle()
        for where in partitions:
            self._open_fetch.forget(where)
            with self._fetcher.changing() as positions:
                self._require(positions, where)
                positions.pause(where)

    def resume(self, *partitions: TopicPartition) -> None:
        """Receive records of paused partitions again."""
        with self._fetcher.changing() as positions:
            for where in partitions:
                self._require(positions, where)
                positions.resume(where)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused, ascending."""
        with self._fetcher.changing() as positions:
            return [where for where in positions.assigned() if positions.is_paused(where)]

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the lag in records by partition, as of the last fetch; `None` means that it is not known yet."""
        found: dict[TopicPartition, int | None] = {}
        with self._fetcher.changing() as positions:
            lags = positions.lag()
        for where, behind in lags.items():
            current = self._current
            ahead = 0
            if current is not None and current.decoded.source == where:
                ahead = current.delivered()
            found[where] = None if behind is None else max(0, behind - ahead)
        return found

    # --- records by a handler ---

    def run(self, handler: Callable[[Record], Any], **options: Unpack[RunArguments]) -> RunSummary:
        """Call `handler` with every record, several at a time, and commit finished ones, until `stop`.

        Each record is handled at least once: what was not committed when a process died is handled again.

        Args:
            handler: called on threads of the run. A record at which it raises is given to it again, as `retry` says,
                while others go on; then it is written to `dead_letter` with the cause in its headers.
            options: see `RunOptions`: `concurrency=8` handlers at a time; `ordering="key"`: records of a key one by one
                and in order, those without a key in none, or `"partition"`; `retry=RetryPolicy(...)`;
                `dead_letter`, a topic; `handler_timeout_ms`: a handler that takes longer is left behind and its record
                given up at once; `buffer_records` and `window_records` bound what is read ahead and what finishes out
                of order; `drain_timeout_ms` bounds how long handlers may finish when partitions or the run end;
                `handle_signals`: SIGINT and SIGTERM end the run, on the main thread.

        Returns:
            What was done. The consumer stands at the first record that is not finished, in each partition.

        Raises:
            HandlerError: a record was given up, and there is no dead-letter topic.
            ConfigError: the consumer has no group, an option is unknown or out of range.
            HeadraceError: as `poll`.
        """
        from headrace.client.handlers.runner import Runner

        runner = self._runner = Runner(self, handler, RunOptions.of(options))
        try:
            return runner.run()
        finally:
            self._runner = None

    def stop(self) -> None:
        """End `run` after the handlers at work; any thread, also a handler's."""
        runner = self._runner
        if runner is not None:
            runner.stop()

    # --- offsets of the group ---

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float = 30.0
    ) -> None:
        """Store offsets for the group and wait until they are.

        Args:
            offsets: the next record to read, by partition; None: behind all that was received, the record at hand too.
            timeout: in seconds; when it is up, the commit is still being tried.

        Raises:
            NotOwnerError: a partition is another member's by now; the others are stored.
            UnknownMemberError: the session was over before they were stored; nothing was, as far as is known.
            TimedOutError: not known yet.
        """
        self._do(self._commit(offsets, timeout))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Store offsets in the background; `callback(offsets, error or None)` is called when records are asked for."""
        group = self._in_group()
        self._settle()
        group.queue(offsets, callback)

    def committed(
        self, *partitions: TopicPartition, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Ask what the group has stored of some partitions, or of all that are read; None: nothing.

        Raises:
            HeadraceError: no coordinator answered in time.
        """
        found: dict[TopicPartition, OffsetAndMetadata | None] = self._do(self._committed(partitions, timeout))
        return found

    def assignment_epoch(self, where: TopicPartition) -> int:
        """Return the fencing token of a partition: it is larger for every later owner.

        Raises:
            NotOwnerError: this consumer does not read it.
        """
        group = self._in_group()
        with group.session.lock:
            holding = group.membership.owned_partition(where)
        if holding is None:
            raise NotOwnerError(f"{where} is not this consumer's")
        return holding.assignment_epoch

    def _commit(self, offsets: Mapping[TopicPartition, Any] | None, timeout: float) -> Operation[None]:
        group = self._in_group()
        self._settle()
        yield from group.commit(offsets, timeout)

    def _committed(self, partitions: Sequence[TopicPartition], timeout: float) -> Operation[Any]:
        return (yield from self._in_group().committed(partitions or self.assignment(), timeout))

    def _in_group(self) -> GroupMember:
        if self._group is None:
            raise ConfigError("this consumer has no group", action="Set group_id.")
        return self._group

    # --- life ---

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls, waits for data included; cheap, any thread."""
        return self._fetcher.calls()

    def health(self) -> ConsumerHealth:
        """Say whether this consumer can work; cheap, any thread."""
        fetcher = self._fetcher
        problem = "" if fetcher.last_error is None else str(fetcher.last_error)
        try:
            fetcher.check()
            with fetcher.changing() as positions:
                assigned = len(positions.assigned())
        except Exception as error:  # a closed or forked consumer is unhealthy, and saying so is this method's work
            return ConsumerHealth(False, str(error), 0, 0)
        silent_ms = monotonic_ms() - fetcher.last_answer_ms
        limit_ms = self._config.request_timeout_ms + self._config.fetch_max_wait_ms
        if not problem and assigned and silent_ms > limit_ms and len(self.paused()) < assigned:
            problem = f"no broker has answered a fetch for {silent_ms} ms"
        if self._group is None:
            return ConsumerHealth(not problem, problem, assigned, silent_ms)
        return self._group.health(problem, assigned, silent_ms)

    def wakeup(self) -> None:
        """End the current or the next wait of the reading thread with a WakeupError. Any thread."""
        self._fetcher.wakeup()

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End fetching and close the connections; returns within seconds. Again: nothing. Any thread.

        A consumer of a group commits what it has finished with, which what was received last is not (`commit` before,
        or leave the `with` block, says that it is), calls on_revoked and leaves, within `timeout` seconds; call it from
        the thread that reads.
        """
        self._close(timeout, finish=False)

    def _close(self, timeout: float, *, finish: bool) -> None:
        try:
            if self._group is not None and self._group.begins_to_close():
                self._settle()
                self._do(self._group.closing(timeout, finish=finish))
        finally:
            self._fetcher.close()

    # --- inside ---

    def _next_decoded_batch(
        self, timeout: float | None, most: int | None, *, first: bool = True
    ) -> Operation[DecodedBatch | None]:
        """The next records, at most `most`; waits for the first only; None: nothing came in time."""
        group = self._group
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            delivery_paused = False
            if group is not None and first:
                yield from group.follow()
                delivery_paused = group.delivery_paused()
            decoded = None if delivery_paused else self._open_fetch.take_rest()
            if decoded is None and not delivery_paused:
                try:
                    decoded = yield from self._decode_next()
                except HeadraceError:
                    if first:
                        raise
                    return None  # What is before the batch is given; the next call comes upon it again.
            if decoded is not None:
                if most is not None and decoded.end - decoded.start > most:
                    self._open_fetch.rest = decoded.cut(most, decoded.end - decoded.start)
                    decoded = decoded.cut(0, most)
                return decoded
            if not first and (most is None or not self._has_completed_fetches()):
                return None  # What one fetch brought is given; more is another poll's.
            if group is not None:
                left = None if deadline is None else max(0.0, deadline - monotonic())
                completed = yield from self._next_fetch_of_group(left, delivery_paused)
                if completed is None and left != 0:
                    continue
            elif self._fetcher.positions.is_empty():
                raise ConfigError("this consumer reads nothing", action="Name topics, or assign partitions first.")
            else:
                completed = yield NextFetch(timeout)
            if completed is None:
                return None
            self._open_fetch.begin(completed)

    @staticmethod
    def _next_fetch_of_group(timeout: float | None, delivery_paused: bool) -> Operation[CompletedFetch | None]:
        """The next completed fetch; None: not yet, and the group may have news. A deleted topic is taken away by the
        group.
        """
        try:
            completed: CompletedFetch | None = yield NextFetch(timeout, delivery_paused)
        except (UnknownTopicError, UnknownTopicIdError):
            return None
        return completed

    def _poll_begins(self) -> None:
        if self._group is not None:
            self._group.on_poll_begin()

    def _poll_ends(self) -> None:
        if self._group is not None:
            self._group.on_poll_end()

    def _has_completed_fetches(self) -> bool:
        with self._fetcher.changing() as positions:
            return bool(positions.has_completed_fetches())

    def _decode_next(self) -> Operation[DecodedBatch | None]:
        completed = self._open_fetch.completed
        if completed is None:
            return None
        try:
            return self._open_fetch.decode()
        except CorruptBatchError as error:
            if not self._fetcher.ask_again(completed, error):
                passed = yield from pass_corrupt_batch(
                    self._fetcher, self._config, completed, error, self._config.group_id
                )
                if not passed:
                    raise
                if self._group is not None:
                    self._group.mark_consumed(completed.where, error.next_offset, NO_EPOCH)
            return None
        except Exception:
            with self._fetcher.changing() as positions:
                if positions.generation(completed.where) == completed.generation:
                    positions.rewind(completed.where)
            raise

    def _receive(self, decoded: DecodedBatch, position: int) -> bool:
        """Note that the application receives a decoded batch up to `position`.

        False, and the rest of its completed fetch is dropped: the engine goes on elsewhere, such as in another life of
        the topic.
        """
        with self._fetcher.changing() as positions:
            generation = self._open_fetch.generation_of(decoded)
            if positions.deliver(decoded.source, generation, position, decoded.leader_epoch):
                return True
        self._open_fetch.forget(decoded.source)
        return False

    def _settle(self) -> None:
        """Write down what the iteration has delivered, end it, and keep what it has not."""
        current = self._current
        if current is None:
            return
        delivered = current.end()
        decoded = current.decoded
        with self._fetcher.changing() as positions:
            position = decoded.base_offset + delivered
            positions.deliver(decoded.source, current.generation, position, decoded.leader_epoch)
            stale = not current.is_current(positions)
        if self._group is not None and not stale:
            self._group.checkpoint(current)
        self._fetcher.cursor = None  # Not before the group has what was finished of it.
        if stale:  # What is behind it in the completed fetch is fetched again, with what was not delivered.
            self._open_fetch.forget(decoded.source)
        elif delivered < decoded.end - decoded.start:
            self._open_fetch.rest = decoded.cut(delivered, decoded.end - decoded.start)

    def _assign(
        self, wanted: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int] | None = None
    ) -> Operation[None]:
        ids = {topic: self._fetcher.topic_id(topic) for topic in {where.topic for where in wanted}}
        starts = {where: (offset, ids[where.topic]) for where, offset in (offsets or {}).items()}
        missing = [where for where in wanted if where not in starts]
        if missing:
            at = "earliest" if self._config.auto_offset_reset == "earliest" else "latest"
            starts.update((yield from self._look_up(missing, at)))
        self._read_from({where: starts[where] for where in wanted})

    def _read_from(self, starts: Mapping[TopicPartition, tuple[int, bytes]]) -> None:
        """Read partitions from offsets, each in the life of its topic that goes with it."""
        with self._fetcher.changing() as positions:
            for where, (offset, topic_id) in starts.items():
                positions.assign(where, offset, topic_id=topic_id)

    def _look_up(
        self, partitions: Sequence[TopicPartition], at: str | float | datetime
    ) -> Operation[dict[TopicPartition, tuple[int, bytes]]]:
        """Find offsets, each with the id of the topic that it is of."""
        found: dict[TopicPartition, tuple[int, bytes]] = {}
        for topic in dict.fromkeys(where.topic for where in partitions):
            numbers = [where.partition for where in partitions if where.topic == topic]
            topic_id, answers = yield from self._fetcher.admin.find_offsets(topic, at, partitions=numbers)
            found.update({where: (answer.offset, topic_id) for where, answer in answers.items()})
        return found

    def _seek_to(self, at: str | float | datetime, partitions: Sequence[TopicPartition]) -> Operation[None]:
        for where, (offset, topic_id) in (yield from self._look_up(partitions or self.assignment(), at)).items():
            self._seek(where, offset, topic_id)

    @staticmethod
    def _require(positions: Any, where: TopicPartition) -> None:
        if where not in positions:
            raise UnknownPartitionError(f"this consumer does not read {where}", action="Assign it first.")
