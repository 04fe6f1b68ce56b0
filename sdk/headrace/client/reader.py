"""The blocking `Reader`: a bounded part of a topic, without a group, read once from start to end.

with headrace.Reader("clicks", start=timedelta(hours=-1), end="current") as reader:
    table = reader.to_arrow()
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import TracebackType
from typing import Any, TypeAlias

from headrace.client.call_counts import CallStats
from headrace.client.config import ReaderConfig, build
from headrace.client.corrupt_batches import pass_corrupt_batch
from headrace.client.errors import ConfigError
from headrace.client.fetching import Fetcher, NextChunk
from headrace.client.read_position import Chunk
from headrace.client.records import Record, RecordBatch, Segment
from headrace.client.segments import deserializers_of, segments_of
from headrace.client.steps import Steps, drive
from headrace.wire.errors import CorruptBatchError, HeadraceError, TimedOutError, UnknownPartitionError
from headrace.wire.ids import TopicPartition

Edge: TypeAlias = str | int | datetime | timedelta
"""`earliest`, `latest` or `current` (where the next record will be), an offset, a time, or a time from now back."""


class Reader:
    """Reads one topic's partitions from `start` up to `end` and stops there. One thread; `close` from any."""

    def __init__(
        self,
        topic: str,
        *,
        start: Edge | Mapping[int, Edge] = "earliest",
        end: Edge | Mapping[int, Edge] = "current",
        last: int | None = None,
        partitions: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        """Connect and fix where to start and to end in each partition. See `ReaderConfig` for the settings.

        Args:
            topic: its name.
            start: where to start; a mapping gives each partition its own. A timedelta counts back from now, whatever
                its sign.
            end: where to end, exclusive, in the same ways; by default what is visible now.
            last: the last so many records of each partition before `end`, in place of `start`.
            partitions: which; None: all.
            settings: see `ReaderConfig`.

        Raises:
            ConfigError: an unknown setting, a bad edge, `start` and `last` together.
            NoBrokersAvailableError: no address answered.
            UnknownTopicError, UnknownPartitionError: there is none such.
        """
        self._set_up(settings, start, last, Fetcher)
        try:
            drive(self._open(topic, start, end, last, partitions), self._fetcher.perform)
            self._fetcher.start()
        except BaseException:
            self._fetcher.close()
            raise

    def _set_up(
        self,
        settings: Mapping[str, Any],
        start: Edge | Mapping[int, Edge],
        last: int | None,
        make_fetcher: Callable[..., Fetcher],
    ) -> None:
        """Check the settings; asks nobody yet."""
        self._config = build(ReaderConfig, settings)
        if last is not None and (last < 1 or start != "earliest"):
            raise ConfigError("last is at least 1 and goes without start")
        self._deserializers = deserializers_of(self._config)
        self._fetcher = make_fetcher(self._config, "Reader", auto_offset_reset="error")
        self._topic_id = b""
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._chunk: Chunk | None = None
        self._segments: Iterator[Segment] = iter(())
        self._rest: tuple[Segment, ...] = ()

    def _open(
        self,
        topic: str,
        start: Edge | Mapping[int, Edge],
        end: Edge | Mapping[int, Edge],
        last: int | None,
        partitions: Sequence[int] | None,
    ) -> Steps[None]:
        """Find where to start and to end."""
        count = (yield from self._fetcher.read_metadata({topic}))[topic]
        numbers = list(range(count)) if partitions is None else list(dict.fromkeys(partitions))
        if not numbers:
            raise ConfigError("partitions is empty", action="Leave it out to read all.")
        if any(not 0 <= number < count for number in numbers):
            raise UnknownPartitionError(f"{topic} has the partitions 0 to {count - 1}")
        yield from self._place(topic, numbers, start, end, last)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        """Give the records one by one, partitions as they come, each in order; ends at the end."""
        for segment in self._read(None):
            yield from segment.records(iter(segment.offsets()))
            del segment  # Before the next one is inflated.

    def batches(self, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Give the records in batches, one a fetch and partition, of at most `max_poll_bytes`.

        Raises:
            TimedOutError: nothing came for `timeout` seconds (None: wait without end).
        """
        for segments in self._chunks(timeout):
            yield RecordBatch(segments)

    def read(self, timeout: float | None = None) -> RecordBatch:
        """Give all records that are left, as one batch; they are all in memory then."""
        return RecordBatch(list(self._read(timeout)))

    def to_arrow(self, timeout: float | None = None) -> Any:
        """Give all records that are left as a `pyarrow.Table`; see `RecordBatch.to_arrow`."""
        return self.read(timeout).to_arrow()

    def to_pandas(self, timeout: float | None = None) -> Any:
        """Give all records that are left as a `pandas.DataFrame`."""
        return self.read(timeout).to_pandas()

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Give where each partition starts."""
        return dict(self._starts)

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Give where each partition ends, exclusive."""
        return dict(self._ends)

    @property
    def topic_id(self) -> bytes:
        """The id of the topic that is read: one that is created later under its name has another."""
        return self._topic_id

    def calls(self) -> CallStats:
        """Give how its fetches went, the wait for data included; cheap, any thread."""
        return self._fetcher.calls()

    def close(self) -> None:
        """End fetching and close the connections; returns within seconds. Again: nothing. Any thread."""
        self._fetcher.close()

    def _read(self, timeout: float | None) -> Iterator[Segment]:
        for segments in self._chunks(timeout):
            segments.reverse()
            while segments:
                yield segments.pop()

    def _chunks(self, timeout: float | None) -> Iterator[list[Segment]]:
        while (segments := drive(self._next_segments(timeout), self._fetcher.perform)) is not None:
            yield segments

    def _next_segments(self, timeout: float | None) -> Steps[list[Segment] | None]:
        """Wait for segments of one chunk, at least one, at most `max_poll_bytes`; None: the end is reached."""
        while True:
            chunk = self._chunk
            if chunk is None:
                chunk = yield NextChunk(timeout)
                if chunk is None:
                    with self._fetcher.changing() as positions:
                        finished = positions.is_finished()
                    if finished:
                        return None
                    raise TimedOutError(f"nothing was received for {timeout:g} s, and the end is not reached")
                self._chunk = chunk
                self._segments = segments_of(chunk, self._deserializers, self._config.max_payload_bytes)
            segments: list[Segment] = []
            try:
                self._take_segments(chunk, segments)
            except CorruptBatchError as error:
                self._chunk = None
                if not self._fetcher.ask_again(chunk, error) and not segments:  # What is before it comes first.
                    passed = yield from pass_corrupt_batch(self._fetcher, self._config, chunk, error)
                    if not passed:
                        raise
            except HeadraceError:
                self._chunk = None
                with self._fetcher.changing() as positions:
                    if positions.generation(chunk.where) == chunk.generation:
                        positions.rewind(chunk.where)
                if not segments:
                    raise
            if segments:
                return segments

    def _take_segments(self, chunk: Chunk, segments: list[Segment]) -> None:
        """Decode more of the open chunk into `segments`, within `max_poll_bytes`."""
        size = 0
        for segment in chain(self._rest, self._segments):
            self._rest = ()
            size += segment.payload_bytes
            if segments and size > self._config.max_poll_bytes:
                self._rest = (segment,)
                return
            with self._fetcher.changing() as positions:
                if not positions.deliver(chunk.where, chunk.generation, segment.end_offset, segment.leader_epoch):
                    break
            segments.append(segment)
        self._chunk = None

    def _place(
        self,
        topic: str,
        numbers: Sequence[int],
        start: Edge | Mapping[int, Edge],
        end: Edge | Mapping[int, Edge],
        last: int | None,
    ) -> Steps[None]:
        """Find start and end of every partition, once."""
        earliest = yield from self._offsets(topic, numbers, "earliest")
        self._ends = yield from self._resolve(topic, numbers, end, "end")
        if last is not None:
            starts = {where: self._ends[where] - last for where in self._ends}
        else:
            starts = yield from self._resolve(topic, numbers, start, "start")
        self._topic_id = topic_id = self._fetcher.topic_id(topic)
        with self._fetcher.changing() as positions:
            for where in sorted(starts):
                self._starts[where] = max(starts[where], earliest[where])
                self._ends[where] = max(self._ends[where], self._starts[where])
                positions.assign(where, self._starts[where], self._ends[where], topic_id=topic_id)

    def _resolve(
        self, topic: str, numbers: Sequence[int], edge: Edge | Mapping[int, Edge], what: str
    ) -> Steps[dict[TopicPartition, int]]:
        if not isinstance(edge, Mapping):
            return (yield from self._resolve_one(topic, numbers, edge, what))
        missing = [number for number in numbers if number not in edge]
        if missing:
            raise ConfigError(f"{what} says nothing of partition {missing[0]}", action="Name every partition read.")
        found: dict[TopicPartition, int] = {}
        for number in numbers:
            found.update((yield from self._resolve_one(topic, [number], edge[number], what)))
        return found

    def _resolve_one(
        self, topic: str, numbers: Sequence[int], edge: Edge, what: str
    ) -> Steps[dict[TopicPartition, int]]:
        if isinstance(edge, bool) or not isinstance(edge, str | int | datetime | timedelta):
            raise ConfigError(f"{what}={edge!r} is not a word, an offset or a time")
        if isinstance(edge, int):
            if edge < 0:
                raise ConfigError(f"{what}={edge} is negative", action="Use last=N for the last N records.")
            latest = yield from self._offsets(topic, numbers, "latest")
            return {where: min(edge, latest[where]) for where in latest}
        if isinstance(edge, timedelta):
            edge = datetime.now(UTC) - abs(edge)
        if isinstance(edge, str):
            words = {"earliest": "earliest", "latest": "latest", "current": "latest"}
            if edge not in words:
                raise ConfigError(f"{what}={edge!r} is not one of {', '.join(words)}, an offset or a time")
            edge = words[edge]
        return (yield from self._offsets(topic, numbers, edge))

    def _offsets(self, topic: str, numbers: Sequence[int], at: str | datetime) -> Steps[dict[TopicPartition, int]]:
        _, found = yield from self._fetcher.admin.find_offsets(
            topic, at, partitions=numbers, topic_id=self._fetcher.topic_id(topic)
        )
        return {where: answer.offset for where, answer in found.items()}
