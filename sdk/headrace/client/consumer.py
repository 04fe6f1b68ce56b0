"""The blocking `Consumer`: an endless stream of the records of some partitions (paper, section 3).

One thread reads with it. Fetching goes on in the background, bounded in bytes; the position is that of the records
which this thread has received, exactly, also in the middle of `for record in consumer`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import length_hint
from types import TracebackType
from typing import Any

from headrace.client.config import ConsumerConfig, build
from headrace.client.errors import ConfigError, WakeupError
from headrace.client.fetching import Fetcher, NextChunk, now_ms
from headrace.client.read_position import Chunk
from headrace.client.records import Record, RecordBatch, Segment
from headrace.client.segments import deserializers_of, segments_of
from headrace.client.steps import Steps, drive
from headrace.wire.errors import CorruptBatchError, UnknownPartitionError
from headrace.wire.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """Whether a consumer can work, fit for a probe."""

    healthy: bool
    """False: see `problem`."""
    problem: str
    """What is wrong, or empty."""
    assigned: int
    """Partitions that it reads."""
    since_last_answer_ms: int
    """How long ago a broker last answered a fetch."""


class Consumer:
    """Reads partitions for ever. Made for one thread; `wakeup`, `close` and `health` may be called by others.

    `Consumer("clicks", "views")` reads all partitions of the topics, those added later too; `Consumer()` and then
    `assign` reads chosen ones.
    """

    def __init__(self, *topics: str, **settings: Any) -> None:
        """Connect, and find where to start. See `ConsumerConfig` for the settings.

        Raises:
            ConfigError: an unknown setting or a value out of range.
            NoBrokersAvailableError: no address answered.
            UnknownTopicError: one of the topics is not there.
        """
        self._set_up(topics, settings, Fetcher)
        try:
            drive(self._open(), self._fetcher.perform)
            self._fetcher.start()
        except BaseException:
            self._fetcher.close()
            raise

    def _set_up(self, topics: Sequence[str], settings: Mapping[str, Any], make_fetcher: Callable[..., Fetcher]) -> None:
        """Check the settings; asks nobody yet."""
        self._config = build(ConsumerConfig, settings)
        if not all(isinstance(topic, str) and topic for topic in topics):
            raise ConfigError("a topic is not a name", action='Write Consumer("clicks", "views", ...).')
        self._deserializers = deserializers_of(self._config)
        self._topics = frozenset(topics)
        self._fetcher = make_fetcher(
            self._config,
            "Consumer",
            auto_offset_reset=self._config.auto_offset_reset,
            on_metadata=self._take_new_partitions,
        )
        self._chunk: Chunk | None = None
        self._segments: Iterator[Segment] = iter(())
        self._rest: Segment | None = None
        self._current: _Current | None = None

    def _open(self) -> Steps[None]:
        """Find where to start."""
        if self._topics:
            counts = yield from self._fetcher.read_metadata(set(self._topics))
            yield from self._assign([TopicPartition(name, n) for name, count in counts.items() for n in range(count)])

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- records ---

    def __iter__(self) -> Iterator[Record]:
        """Give records one by one, for ever; waits where there is none."""
        while True:
            yield from drive(self._next_records(), self._fetcher.perform)

    def _next_records(self) -> Steps[Iterator[Record]]:
        """Wait for the next records; the iterator is at their first, and `position` moves with it."""
        self._settle()  # Also what an earlier loop was left in the middle of.
        segment = yield from self._next_segment(None, None)
        assert segment is not None, "a wait without end ends with a segment or an error"
        self._current = _Current(segment, self._generation_of(segment))
        return self._current.records()

    def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> RecordBatch:
        """Give what is there, waiting up to `timeout` seconds for the first record (None: without end).

        Args:
            timeout: in seconds; 0 only looks.
            max_records: at most so many; None: what one fetch brought.

        Raises:
            CorruptBatchError: a batch is damaged wherever it can be read; `next_offset` says where to seek to go on.
            LogTruncationError: records that were received were lost or replaced; `diverging_offset` says from where on.
            OffsetOutOfRangeError: the position is gone, and auto_offset_reset is `error`.
            WakeupError: another thread called `wakeup`.
        """
        return drive(self._poll(timeout, max_records), self._fetcher.perform)

    def _poll(self, timeout: float | None, max_records: int | None) -> Steps[RecordBatch]:
        if max_records is not None and max_records < 1:
            raise ConfigError(f"max_records={max_records} is not at least 1")
        self._settle()
        segments: list[Segment] = []
        left = max_records
        wait = timeout
        while left is None or left > 0:
            try:
                segment = yield from self._next_segment(wait, left, first=not segments)
            except CorruptBatchError:
                if not segments:
                    raise
                break  # What is before the damage is given; the next poll comes upon it again.
            except WakeupError:
                if not segments:
                    raise
                self._fetcher.wakeup()  # What has been received is given; the next wait ends.
                break
            if segment is None:
                break
            segments.append(segment)
            with self._fetcher.changing() as positions:
                generation = self._generation_of(segment)
                positions.deliver(segment.source, generation, segment.end_offset, segment.leader_epoch)
            if left is not None:
                left -= segment.end - segment.start
            wait = 0
        return RecordBatch(segments)

    # --- positions ---

    def assign(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from the offsets given or where `auto_offset_reset` says.

        Raises:
            UnknownTopicError, UnknownPartitionError: one is not there.
            ConfigError: the consumer was made with topics.
        """
        drive(self._assign_only(partitions), self._fetcher.perform)

    def _assign_only(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> Steps[None]:
        if self._topics:
            raise ConfigError("this consumer reads all partitions of its topics", action="Use Consumer() and assign().")
        wanted = [TopicPartition(*where) for where in partitions]
        counts = yield from self._fetcher.read_metadata({where.topic for where in wanted})
        for where in wanted:
            if not 0 <= where.partition < counts[where.topic]:
                raise UnknownPartitionError(f"{where.topic} has the partitions 0 to {counts[where.topic] - 1}")
        self._forget_open()
        with self._fetcher.changing() as positions:
            for where in positions.assigned():
                if where not in wanted:
                    positions.drop(where)
        yield from self._assign(wanted, partitions if isinstance(partitions, Mapping) else None)

    def assignment(self) -> list[TopicPartition]:
        """Give the partitions that are read, ascending."""
        with self._fetcher.changing() as positions:
            return list(positions.assigned())

    def position(self, where: TopicPartition) -> int:
        """Give the offset of the next record that the application will receive of a partition."""
        current = self._current
        with self._fetcher.changing() as positions:
            self._require(positions, where)
            if current is not None and current.segment.source == where and current.is_current(positions):
                return current.position()
            return int(positions.position(where))

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on from `offset` in one partition."""
        if offset < 0:
            raise ConfigError(f"offset {offset} is negative", action="Use seek_to_end or seek_to_beginning.")
        self._settle()
        self._forget_open(where)
        with self._fetcher.changing() as positions:
            self._require(positions, where)
            positions.seek(where, offset)

    def seek_to_timestamp(self, when: datetime | float, *partitions: TopicPartition) -> None:
        """Go on from the first record at or after `when` (a datetime, or ms since 1970) in some partitions, or all."""
        drive(self._seek_to(when, partitions), self._fetcher.perform)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the log start of some partitions, or of all."""
        drive(self._seek_to("earliest", partitions), self._fetcher.perform)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from what comes next in some partitions, or in all."""
        drive(self._seek_to("latest", partitions), self._fetcher.perform)

    def pause(self, *partitions: TopicPartition) -> None:
        """Receive nothing of some partitions until `resume`; their positions stay."""
        self._settle()
        for where in partitions:
            self._forget_open(where)
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
        """Give the partitions that are paused, ascending."""
        with self._fetcher.changing() as positions:
            return [where for where in positions.assigned() if positions.is_paused(where)]

    def lag(self) -> dict[TopicPartition, int | None]:
        """Give, by partition, how many records are still ahead, as far as the last fetch tells; None: not known yet."""
        found: dict[TopicPartition, int | None] = {}
        with self._fetcher.changing() as positions:
            lags = positions.lag()
        for where, behind in lags.items():
            current = self._current
            ahead = 0
            if current is not None and current.segment.source == where:
                ahead = current.delivered()
            found[where] = None if behind is None else max(0, behind - ahead)
        return found

    # --- life ---

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
        silent_ms = now_ms() - fetcher.last_answer_ms
        limit_ms = self._config.request_timeout_ms + self._config.fetch_wait_ms
        if not problem and assigned and silent_ms > limit_ms and len(self.paused()) < assigned:
            problem = f"no broker has answered a fetch for {silent_ms} ms"
        return ConsumerHealth(not problem, problem, assigned, silent_ms)

    def wakeup(self) -> None:
        """End the current or the next wait of the reading thread with a WakeupError. Any thread."""
        self._fetcher.wakeup()

    def close(self) -> None:
        """End fetching and close the connections; returns within seconds. Again: nothing. Any thread."""
        self._fetcher.close()

    # --- inside ---

    def _next_segment(self, timeout: float | None, most: int | None, *, first: bool = True) -> Steps[Segment | None]:
        """The next records, at most `most`; waits for the first only; None: nothing came in time."""
        while True:
            segment, self._rest = self._rest, None
            if segment is None:
                segment = self._decode_next()
            if segment is not None:
                if most is not None and segment.end - segment.start > most:
                    self._rest = segment.cut(most, segment.end - segment.start)
                    segment = segment.cut(0, most)
                return segment
            if not first and (most is None or not self._has_chunks()):
                return None  # What one fetch brought is given; more is another poll's.
            if self._fetcher.positions.is_empty():
                raise ConfigError("this consumer reads nothing", action="Name topics, or assign partitions first.")
            self._chunk = yield NextChunk(timeout)
            if self._chunk is None:
                return None
            self._segments = segments_of(self._chunk, self._deserializers, self._config.max_payload_bytes)

    def _has_chunks(self) -> bool:
        with self._fetcher.changing() as positions:
            return bool(positions.has_chunks())

    def _decode_next(self) -> Segment | None:
        chunk = self._chunk
        if chunk is None:
            return None
        try:
            segment = next(self._segments, None)
        except CorruptBatchError as error:
            self._forget_open()
            if not self._fetcher.ask_again(chunk, error):
                raise
            return None
        except Exception:
            self._forget_open()
            with self._fetcher.changing() as positions:
                if positions.generation(chunk.where) == chunk.generation:
                    positions.rewind(chunk.where)
            raise
        if segment is None:
            self._chunk = None
        return segment

    def _generation_of(self, segment: Segment) -> int:
        chunk = self._chunk
        return chunk.generation if chunk is not None and chunk.where == segment.source else -1

    def _settle(self) -> None:
        """Write down what the iteration has handed out, end it, and keep what it has not."""
        current, self._current = self._current, None
        if current is None:
            return
        delivered = current.end()
        segment = current.segment
        with self._fetcher.changing() as positions:
            position = segment.base_offset + delivered
            positions.deliver(segment.source, current.generation, position, segment.leader_epoch)
            stale = not current.is_current(positions)
        if delivered < segment.end - segment.start and not stale:
            self._rest = segment.cut(delivered, segment.end - segment.start)

    def _forget_open(self, where: TopicPartition | None = None) -> None:
        """Drop the chunk that is open, if it is of this partition (None: of any)."""
        if self._chunk is not None and where in (None, self._chunk.where):
            self._chunk, self._segments, self._rest = None, iter(()), None

    def _assign(
        self, wanted: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int] | None = None
    ) -> Steps[None]:
        starts = dict(offsets or {})
        missing = [where for where in wanted if where not in starts]
        if missing:
            at = "earliest" if self._config.auto_offset_reset == "earliest" else "latest"
            starts.update((yield from self._look_up(missing, at)))
        with self._fetcher.changing() as positions:
            for where in wanted:
                positions.assign(where, starts[where])

    def _look_up(
        self, partitions: Sequence[TopicPartition], at: str | float | datetime
    ) -> Steps[dict[TopicPartition, int]]:
        found: dict[TopicPartition, int] = {}
        for topic in dict.fromkeys(where.topic for where in partitions):
            numbers = [where.partition for where in partitions if where.topic == topic]
            answers = yield from self._fetcher.admin.list_offsets(topic, at, partitions=numbers)
            found.update({where: answer.offset for where, answer in answers.items()})
        return found

    def _seek_to(self, at: str | float | datetime, partitions: Sequence[TopicPartition]) -> Steps[None]:
        for where, offset in (yield from self._look_up(partitions or self.assignment(), at)).items():
            self.seek(where, offset)

    def _take_new_partitions(self, topic: str, partitions: int) -> Steps[None]:
        """Read partitions that were added to a topic, from their beginning: nothing in them is skipped."""
        if topic not in self._topics:
            return
        with self._fetcher.changing() as positions:
            new = [TopicPartition(topic, n) for n in range(partitions) if TopicPartition(topic, n) not in positions]
        if not new:
            return
        starts = yield from self._look_up(new, "earliest")
        with self._fetcher.changing() as positions:
            for where in new:
                positions.assign(where, starts[where])

    @staticmethod
    def _require(positions: Any, where: TopicPartition) -> None:
        if where not in positions:
            raise UnknownPartitionError(f"this consumer does not read {where}", action="Assign it first.")


class _Current:
    """A segment that `for record in consumer` is in the middle of.

    The records are made by C loops that take one offset a record off a list's iterator. How many have been taken says
    how many records were handed out; emptying the list ends the loop.
    """

    __slots__ = ("_iterator", "_offsets", "generation", "segment")

    def __init__(self, segment: Segment, generation: int) -> None:
        self.segment = segment
        self.generation = generation
        self._offsets = list(segment.offsets())
        self._iterator = iter(self._offsets)

    def records(self) -> Iterator[Record]:
        return self.segment.records(self._iterator)

    def delivered(self) -> int:
        return len(self.segment.offsets()) - length_hint(self._iterator)

    def position(self) -> int:
        return self.segment.base_offset + self.delivered()

    def is_current(self, positions: Any) -> bool:
        return bool(positions.generation(self.segment.source) == self.generation)

    def end(self) -> int:
        delivered = self.delivered()
        self._offsets.clear()
        return delivered
