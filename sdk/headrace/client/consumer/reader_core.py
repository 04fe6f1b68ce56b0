"""Core of the blocking and the asyncio `Reader`: start and end, and decoding of fetches. Never waits itself."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from headrace.client.base.config import ReaderConfig
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Operation
from headrace.client.base.records import DecodedBatch, RecordBatch
from headrace.client.fetch.corrupt_batches import pass_corrupt_batch
from headrace.client.fetch.decoding import decoded_batches_of, deserializers_of
from headrace.client.fetch.fetch_manager import FetchManager
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.client.fetch.selections import NamedSelection, named_selection
from headrace.display.progress import ProgressBar, progress_bar
from headrace.wire.errors import CorruptBatchError, TimedOutError, UnknownPartitionError
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import parse_columns

OffsetPoint: TypeAlias = str | int | datetime | timedelta
"""`earliest`, `latest` or `current` (the end of the log), an offset, a time, or a negative time relative to now."""


class _Loop(NamedTuple):
    """Records of one partition that a loop yields."""

    source: TopicPartition
    offsets: Iterator[int]
    """Those of the batch's records that are left."""
    following: list[DecodedBatch]
    """Further batches, the next one last."""


class ReaderCore:
    """Range of one reader and the completed fetch that it decodes. Owned by the reader and run by its caller."""

    def __init__(self, config: ReaderConfig, fetcher: FetchManager) -> None:
        self._config = config
        self.fetcher = fetcher
        self._deserializers = deserializers_of(config)
        self._completed: CompletedFetch | None = None
        self._decoded_batches: Iterator[DecodedBatch] = iter(())
        self._rest: tuple[DecodedBatch, ...] = ()
        self._loop: _Loop | None = None
        self._topic = ""
        self._selection: NamedSelection | None = None
        self.topic_id = b""
        """Id of the topic, once `open` has run."""
        self.starts: dict[TopicPartition, int] = {}
        """First offset of each partition."""
        self._passed: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        """End offset of each partition, exclusive."""

    def open(
        self,
        topic: str,
        start: OffsetPoint | Mapping[int, OffsetPoint],
        end: OffsetPoint | Mapping[int, OffsetPoint],
        last_per_partition: int | None,
        partitions: Sequence[int] | None,
        columns: Sequence[str] | None = None,
        where: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> Operation[None]:
        """Look up the start and the end.

        Raises:
            ConfigError: For an invalid offset point, or both `start` and `last_per_partition`.
            UnknownTopicError, UnknownPartitionError: If the topic or a partition does not exist.
        """
        self._topic = topic
        count = (yield from self.fetcher.read_metadata({topic}))[topic]
        self._selection = named_selection(topic, self.fetcher.columns(topic), columns, where)
        with self.fetcher.changing() as positions:
            positions.selection = None if self._selection is None else self._selection.message
        numbers = list(range(count)) if partitions is None else list(dict.fromkeys(partitions))
        if not numbers:
            raise ConfigError("partitions is empty", action="Leave it out to read all.")
        if any(not 0 <= number < count for number in numbers):
            raise UnknownPartitionError(f"{topic} has the partitions 0 to {count - 1}")
        yield from self._place(topic, numbers, start, end, last_per_partition)

    def next_decoded_batches(self, timeout: float | None) -> Operation[list[DecodedBatch] | None]:
        """Wait for decoded batches of one completed fetch, at least one, at most `max_poll_bytes`; return `None` at the
        end.
        """
        while True:
            completed = self._completed
            if completed is None:
                completed = yield from self.fetcher.next_fetch(timeout)
                if completed is None:
                    with self.fetcher.changing() as positions:
                        finished = positions.is_finished()
                    if finished:
                        return None
                    raise TimedOutError(f"nothing was received for {timeout:g} s, and the end is not reached")
                self._completed = completed
                self._decoded_batches = decoded_batches_of(
                    completed, self._deserializers, self._config.max_payload_bytes, self._selection
                )
            decoded_batches: list[DecodedBatch] = []
            with self.fetcher.changing() as positions:
                before = positions.position(completed.where)
            try:
                self._take_decoded_batches(completed, decoded_batches)
            except CorruptBatchError as error:
                self._completed = None
                is_final = not self.fetcher.retries_corrupt(completed, error)
                if is_final and not decoded_batches:  # The records before the batch are returned first.
                    passed = yield from pass_corrupt_batch(self.fetcher, self._config, completed, error)
                    if not passed:
                        raise
            except Exception:
                self._completed = None
                with self.fetcher.changing() as positions:
                    if positions.generation(completed.where) == completed.generation:
                        positions.rewind(completed.where)
                if not decoded_batches:
                    raise
            except BaseException:  # Ctrl-C, between any two steps.
                self._go_back({completed.where: before})
                raise
            if decoded_batches:
                return decoded_batches

    def looped(self, decoded_batches: list[DecodedBatch]) -> Iterator[tuple[DecodedBatch, Iterator[int]]]:
        """Yield each batch, removed from the list, and its offsets, which a loop consumes record by record."""
        decoded_batches.reverse()
        while decoded_batches:
            decoded = decoded_batches.pop()
            self._loop = _Loop(decoded.source, iter(decoded.offsets()), decoded_batches)
            yield decoded, self._loop.offsets
            del decoded  # Before the next one is decompressed.

    def settle(self) -> None:
        """Return to the first record that a loop has not yielded which was left by `break`, and end that loop."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        offset = next(loop.offsets, None)
        if offset is None and loop.following:
            offset = loop.following[-1].offsets()[0]
        loop.following.clear()
        deque(loop.offsets, maxlen=0)
        if offset is not None:
            self._go_back({loop.source: offset})

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Return to the positions of before if the block ends with an error: its records were not returned."""
        self.settle()
        with self.fetcher.changing() as positions:
            before = {where: positions.position(where) for where in positions.assigned()}
        try:
            yield
        except BaseException:
            self._go_back(before)
            raise

    def _go_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not self.fetcher.is_usable:
            return
        self._completed, self._rest = None, ()
        with self.fetcher.changing() as positions:
            for where, offset in offsets.items():
                positions.seek(where, offset, self.topic_id)

    def progress_bar(self) -> ProgressBar:
        """Return the progress of reading the range."""
        self._passed = dict(self.starts)
        total = sum(max(0, end - self.starts[where]) for where, end in self.ends.items())
        return progress_bar(f"read {self._topic}", "records", total)

    def passed_offsets(self, decoded_batches: list[DecodedBatch]) -> int:
        """Return the number of offsets of the range that have been read since its start, with those of new batches."""
        for decoded in decoded_batches:
            self._passed[decoded.source] = decoded.end_offset
        return sum(self._passed.values()) - sum(self.starts.values())

    @property
    def columns(self) -> str:
        """Text of the topic's columns; empty if it is not typed."""
        return self.fetcher.columns(self._topic)

    @property
    def is_typed(self) -> bool:
        """Whether the topic is typed."""
        return bool(self.columns)

    def table_of(self, batch: RecordBatch) -> Any:
        """Return a `pyarrow.Table` of the records, with the columns that are read."""
        names = None if self._selection is None else self._selection.names
        if batch.decoded_batches:
            return batch.to_arrow(names)
        from headrace.client.base.arrow_tables import empty_table, typed_columns_of, typed_schema

        if not self.is_typed:
            return empty_table(self._deserializers.value)
        columns = parse_columns(self.columns).current
        return typed_schema(typed_columns_of(columns, names)).empty_table()

    def frame_of(self, batch: RecordBatch) -> Any:
        """Return a `pandas.DataFrame` of the records, with the columns that are read."""
        if not self.is_typed:
            return batch.to_pandas()
        from headrace.client.base.arrow_objects import frame_of

        return frame_of(self.table_of(batch))

    def _take_decoded_batches(self, completed: CompletedFetch, decoded_batches: list[DecodedBatch]) -> None:
        """Decode more of the open fetch into `decoded_batches`, within `max_poll_bytes`."""
        size = 0
        for decoded in chain(self._rest, self._decoded_batches):
            self._rest = ()
            size += decoded.payload_bytes
            if decoded_batches and size > self._config.max_poll_bytes:
                self._rest = (decoded,)
                return
            with self.fetcher.changing() as positions:
                if not positions.deliver(
                    completed.where, completed.generation, decoded.end_offset, decoded.leader_epoch
                ):
                    break
            if not decoded.is_empty:
                decoded_batches.append(decoded)
        self._completed = None

    def _place(
        self,
        topic: str,
        numbers: Sequence[int],
        start: OffsetPoint | Mapping[int, OffsetPoint],
        end: OffsetPoint | Mapping[int, OffsetPoint],
        last_per_partition: int | None,
    ) -> Operation[None]:
        """Look up start and end of every partition, once."""
        earliest = yield from self._offsets(topic, numbers, "earliest")
        self.ends = yield from self._resolve(topic, numbers, end, "end")
        if last_per_partition is not None:
            starts = {where: self.ends[where] - last_per_partition for where in self.ends}
        else:
            starts = yield from self._resolve(topic, numbers, start, "start")
        self.topic_id = topic_id = self.fetcher.topic_id(topic)
        with self.fetcher.changing() as positions:
            for where in sorted(starts):
                self.starts[where] = max(starts[where], earliest[where])
                self.ends[where] = max(self.ends[where], self.starts[where])
                positions.assign(where, self.starts[where], self.ends[where], topic_id=topic_id)

    def _resolve(
        self, topic: str, numbers: Sequence[int], point: OffsetPoint | Mapping[int, OffsetPoint], what: str
    ) -> Operation[dict[TopicPartition, int]]:
        if not isinstance(point, Mapping):
            return (yield from self._resolve_one(topic, numbers, point, what))
        missing = [number for number in numbers if number not in point]
        if missing:
            raise ConfigError(f"{what} does not name partition {missing[0]}", action="Name every partition read.")
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
                raise ConfigError(f"{what}={point} is negative", action="Use last_per_partition for the last records.")
            latest = yield from self._offsets(topic, numbers, "latest")
            return {where: min(point, latest[where]) for where in latest}
        if isinstance(point, timedelta):
            if point > timedelta():
                raise ConfigError(
                    f"{what}={point!r} is in the future",
                    action="Count back from now: timedelta(hours=-1) is an hour ago.",
                )
            point = datetime.now(UTC) + point
        if isinstance(point, str):
            words = {"earliest": "earliest", "latest": "latest", "current": "latest"}
            if point not in words:
                raise ConfigError(f"{what}={point!r} is not one of {', '.join(words)}, an offset or a time")
            point = words[point]
        return (yield from self._offsets(topic, numbers, point))

    def _offsets(self, topic: str, numbers: Sequence[int], at: str | datetime) -> Operation[dict[TopicPartition, int]]:
        _, found = yield from self.fetcher.admin.find_offsets(
            topic, at, partitions=numbers, topic_id=self.fetcher.topic_id(topic)
        )
        return {where: answer.offset for where, answer in found.items()}
