"""The blocking `Reader`: a bounded part of a topic, without a group, read once from start to end.

with headrace.Reader("clicks", start=timedelta(hours=-1), end="current") as reader:
    table = reader.to_arrow()
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import TracebackType
from typing import Any, TypeAlias

from headrace.client.base.call_counts import CallStats
from headrace.client.base.config import ReaderConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Operation, execute
from headrace.client.base.records import DecodedBatch, Record, RecordBatch
from headrace.client.fetch.corrupt_batches import pass_corrupt_batch
from headrace.client.fetch.decoding import decoded_batches_of, deserializers_of
from headrace.client.fetch.fetching import Fetcher, NextFetch
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.wire.errors import CorruptBatchError, HeadraceError, TimedOutError, UnknownPartitionError
from headrace.wire.ids import TopicPartition

OffsetPoint: TypeAlias = str | int | datetime | timedelta
"""`earliest`, `latest` or `current` (where the next record will be), an offset, a time, or a time from now back."""


class Reader:
    """Reads one topic's partitions from `start` up to `end` and stops there. One thread; `close` from any."""

    def __init__(
        self,
        topic: str,
        *,
        start: OffsetPoint | Mapping[int, OffsetPoint] = "earliest",
        end: OffsetPoint | Mapping[int, OffsetPoint] = "current",
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
            ConfigError: an unknown setting, a bad offset point, `start` and `last` together.
            NoBrokersAvailableError: no address answered.
            UnknownTopicError, UnknownPartitionError: there is none such.
        """
        self._set_up(settings, start, last, Fetcher)
        try:
            execute(self._open(topic, start, end, last, partitions), self._fetcher.run_step)
            self._fetcher.start()
        except BaseException:
            self._fetcher.close()
            raise

    def _set_up(
        self,
        settings: Mapping[str, Any],
        start: OffsetPoint | Mapping[int, OffsetPoint],
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
        self._completed: CompletedFetch | None = None
        self._decoded_batches: Iterator[DecodedBatch] = iter(())
        self._rest: tuple[DecodedBatch, ...] = ()

    def _open(
        self,
        topic: str,
        start: OffsetPoint | Mapping[int, OffsetPoint],
        end: OffsetPoint | Mapping[int, OffsetPoint],
        last: int | None,
        partitions: Sequence[int] | None,
    ) -> Operation[None]:
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
        """Yield the records one by one, partitions as they come, each in order; ends at the end."""
        for decoded in self._read(None):
            yield from decoded.records(iter(decoded.offsets()))
            del decoded  # Before the next one is inflated.

    def batches(self, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Yield the records in batches, one a fetch and partition, of at most `max_poll_bytes`.

        Raises:
            TimedOutError: nothing came for `timeout` seconds (None: wait without end).
        """
        for decoded_batches in self._fetched_batches(timeout):
            yield RecordBatch(decoded_batches)

    def read(self, timeout: float | None = None) -> RecordBatch:
        """Return all records that are left, as one batch; they are all in memory then."""
        return RecordBatch(list(self._read(timeout)))

    def to_arrow(self, timeout: float | None = None) -> Any:
        """Return all records that are left as a `pyarrow.Table`; see `RecordBatch.to_arrow`."""
        return self.read(timeout).to_arrow()

    def to_pandas(self, timeout: float | None = None) -> Any:
        """Return all records that are left as a `pandas.DataFrame`."""
        return self.read(timeout).to_pandas()

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return dict(self._starts)

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of each partition, exclusive."""
        return dict(self._ends)

    @property
    def topic_id(self) -> bytes:
        """The id of the topic that is read: one that is created later under its name has another."""
        return self._topic_id

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls, waits for data included; cheap, any thread."""
        return self._fetcher.calls()

    def close(self) -> None:
        """End fetching and close the connections; returns within seconds. Again: nothing. Any thread."""
        self._fetcher.close()

    def _read(self, timeout: float | None) -> Iterator[DecodedBatch]:
        for decoded_batches in self._fetched_batches(timeout):
            decoded_batches.reverse()
            while decoded_batches:
                yield decoded_batches.pop()

    def _fetched_batches(self, timeout: float | None) -> Iterator[list[DecodedBatch]]:
        while (decoded_batches := execute(self._next_decoded_batches(timeout), self._fetcher.run_step)) is not None:
            yield decoded_batches

    def _next_decoded_batches(self, timeout: float | None) -> Operation[list[DecodedBatch] | None]:
        """Wait for decoded batches of one completed fetch, at least one, at most `max_poll_bytes`; None: the end is
        reached.
        """
        while True:
            completed = self._completed
            if completed is None:
                completed = yield NextFetch(timeout)
                if completed is None:
                    with self._fetcher.changing() as positions:
                        finished = positions.is_finished()
                    if finished:
                        return None
                    raise TimedOutError(f"nothing was received for {timeout:g} s, and the end is not reached")
                self._completed = completed
                self._decoded_batches = decoded_batches_of(
                    completed, self._deserializers, self._config.max_payload_bytes
                )
            decoded_batches: list[DecodedBatch] = []
            try:
                self._take_decoded_batches(completed, decoded_batches)
            except CorruptBatchError as error:
                self._completed = None
                if (
                    not self._fetcher.ask_again(completed, error) and not decoded_batches
                ):  # What is before it comes first.
                    passed = yield from pass_corrupt_batch(self._fetcher, self._config, completed, error)
                    if not passed:
                        raise
            except HeadraceError:
                self._completed = None
                with self._fetcher.changing() as positions:
                    if positions.generation(completed.where) == completed.generation:
                        positions.rewind(completed.where)
                if not decoded_batches:
                    raise
            if decoded_batches:
                return decoded_batches

    def _take_decoded_batches(self, completed: CompletedFetch, decoded_batches: list[DecodedBatch]) -> None:
        """Decode more of the open completed fetch into `decoded_batches`, within `max_poll_bytes`."""
        size = 0
        for decoded in chain(self._rest, self._decoded_batches):
            self._rest = ()
            size += decoded.payload_bytes
            if decoded_batches and size > self._config.max_poll_bytes:
                self._rest = (decoded,)
                return
            with self._fetcher.changing() as positions:
                if not positions.deliver(
                    completed.where, completed.generation, decoded.end_offset, decoded.leader_epoch
                ):
                    break
            decoded_batches.append(decoded)
        self._completed = None

    def _place(
        self,
        topic: str,
        numbers: Sequence[int],
        start: OffsetPoint | Mapping[int, OffsetPoint],
        end: OffsetPoint | Mapping[int, OffsetPoint],
        last: int | None,
    ) -> Operation[None]:
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
        self, topic: str, numbers: Sequence[int], point: OffsetPoint | Mapping[int, OffsetPoint], what: str
    ) -> Operation[dict[TopicPartition, int]]:
        if not isinstance(point, Mapping):
            return (yield from self._resolve_one(topic, numbers, point, what))
        missing = [number for number in numbers if number not in point]
        if missing:
            raise ConfigError(f"{what} says nothing of partition {missing[0]}", action="Name every partition read.")
        found: dict[TopicPartition, int] = {}
        for number in numbers:
            found.update((yield from self._resolve_one(topic, [number], point[number], what)))
        return found

    def _resolve_one(
        self, topic: str, numbers: Sequence[int], point: OffsetPoint, what: str
    ) -> Operation[dict[TopicPartition, int]]:
        if isinstance(point, bool) or not isinstance(point, str | int | datetime | timedelta):
            raise ConfigError(f"{what}={point!r} is not a word, an offset or a time")
        if isinstance(point, int):
            if point < 0:
                raise ConfigError(f"{what}={point} is negative", action="Use last=N for the last N records.")
            latest = yield from self._offsets(topic, numbers, "latest")
            return {where: min(point, latest[where]) for where in latest}
        if isinstance(point, timedelta):
            point = datetime.now(UTC) - abs(point)
        if isinstance(point, str):
            words = {"earliest": "earliest", "latest": "latest", "current": "latest"}
            if point not in words:
                raise ConfigError(f"{what}={point!r} is not one of {', '.join(words)}, an offset or a time")
            point = words[point]
        return (yield from self._offsets(topic, numbers, point))

    def _offsets(self, topic: str, numbers: Sequence[int], at: str | datetime) -> Operation[dict[TopicPartition, int]]:
        _, found = yield from self._fetcher.admin.find_offsets(
            topic, at, partitions=numbers, topic_id=self._fetcher.topic_id(topic)
        )
        return {where: answer.offset for where, answer in found.items()}
