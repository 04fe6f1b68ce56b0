"""Where a reader stands in each partition, what to fetch next, and what has come. Pure: no I/O, no clock, no thread.

Shared by the blocking and the asyncio classes, whose owner holds a lock around every call. A partition is in at most
one fetch at a time, so an idle one, waiting in a long poll, holds up no other. Whatever changes a partition's position
from outside (a seek, a pause, an error) raises its generation: an answer of an older generation is dropped whole.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.client.config import FetchConfig
from headrace.client.retry import Backoff
from headrace.client.routing import RoutingTable
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.crc import ReadableBuffer
from headrace.wire.envelopes import Envelope
from headrace.wire.errors import (
    CorruptBatchError,
    HeadraceError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    from_detail,
)
from headrace.wire.ids import TopicPartition

FETCHES_PER_BROKER = 8
"""Fetches in flight to one broker at most."""


class Chunk(NamedTuple):
    """Whole batches of one partition, as a broker sent them."""

    where: TopicPartition
    generation: int
    offset: int
    """The first offset wanted; the first batch may start before it."""
    end_offset: int | None
    """Records from here on are not wanted; None: no bound."""
    data: ReadableBuffer


class Wanted(NamedTuple):
    """One partition of a fetch."""

    where: TopicPartition
    topic_id: bytes
    """As it was when the fetch was planned; metadata may have moved on when the answer comes."""
    generation: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One fetch to start."""

    broker_id: int
    address: str
    partitions: tuple[Wanted, ...]
    request: broker_pb2.FetchRequest


@dataclass(slots=True, eq=False)
class _Partition:
    where: TopicPartition
    position: int
    fetch_offset: int
    end_offset: int | None
    generation: int
    paused: bool = False
    in_flight: bool = False
    needs_reset: bool = False
    chunks: deque[Chunk] = field(default_factory=deque)
    buffered_bytes: int = 0
    failures: int = 0
    retry_at_ms: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1

    @property
    def at_end(self) -> bool:
        return self.end_offset is not None and self.position >= self.end_offset


class Positions:
    """The partitions that a consumer or reader reads. See the module for who may call it."""

    def __init__(self, config: FetchConfig, backoff: Backoff) -> None:
        self._config = config
        self._backoff = backoff
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._turn: deque[TopicPartition] = deque()
        self._problems: deque[HeadraceError] = deque()
        self._in_flight: dict[int, int] = {}
        self._generation = 0
        self.buffered_bytes = 0
        self.stale_topics: set[str] = set()
        """Topics whose metadata must be read again; the shell clears it when it has."""

    # --- what is read ---

    def assign(self, where: TopicPartition, offset: int, end_offset: int | None = None) -> None:
        """Read a partition from `offset` (up to `end_offset`); replaces what was known of it."""
        self.drop(where)
        self._generation += 1
        self._partitions[where] = _Partition(where, offset, offset, end_offset, self._generation)
        self._turn.append(where)

    def drop(self, where: TopicPartition) -> None:
        """Stop reading a partition; nothing where it is not read."""
        partition = self._partitions.pop(where, None)
        if partition is not None:
            self.buffered_bytes -= partition.buffered_bytes
            self._turn.remove(where)

    def assigned(self) -> list[TopicPartition]:
        """The partitions that are read, ascending."""
        return sorted(self._partitions)

    def is_empty(self) -> bool:
        """Whether no partition is read."""
        return not self._partitions

    def __contains__(self, where: object) -> bool:
        return where in self._partitions

    def position(self, where: TopicPartition) -> int:
        """The offset of the next record for the application."""
        return self._partitions[where].position

    def generation(self, where: TopicPartition) -> int:
        """The generation of a partition; -1 where it is not read."""
        partition = self._partitions.get(where)
        return -1 if partition is None else partition.generation

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on from `offset`; what was fetched is dropped."""
        partition = self._partitions[where]
        partition.position = offset
        partition.needs_reset = False
        self._rewind(partition)

    def pause(self, where: TopicPartition) -> None:
        """Fetch and hand out nothing of a partition until `resume`."""
        partition = self._partitions[where]
        partition.paused = True
        self._rewind(partition)

    def resume(self, where: TopicPartition) -> None:
        """End a pause."""
        self._partitions[where].paused = False

    def is_paused(self, where: TopicPartition) -> bool:
        """Whether a partition is paused."""
        return self._partitions[where].paused

    def is_finished(self) -> bool:
        """Whether every partition has reached its end offset; never where there is no partition."""
        return bool(self._partitions) and all(partition.at_end for partition in self._partitions.values())

    def lag(self) -> dict[TopicPartition, int | None]:
        """Records between the position and the last high watermark seen; None while none was."""
        return {
            where: None if partition.high_watermark < 0 else max(0, partition.high_watermark - partition.position)
            for where, partition in sorted(self._partitions.items())
        }

    # --- fetching ---

    def plan(self, routes: RoutingTable, now_ms: int) -> list[FetchPlan]:
        """Say which fetches to start now; their partitions are in flight from here on."""
        if self.buffered_bytes >= self._config.prefetch_bytes:
            return []
        share = max(self._config.partition_fetch_max_bytes, self._config.prefetch_bytes // max(1, len(self._turn)))
        by_broker: dict[int, tuple[str, list[Wanted]]] = {}
        for where in self._turn:
            partition = self._partitions[where]
            if not self._is_wanted(partition, share, now_ms):
                continue
            leader = routes.leader(where)
            if leader is None:
                self.stale_topics.add(where.topic)
                self._wait(partition, now_ms)
                continue
            broker_id, address, epoch = leader
            if self._in_flight.get(broker_id, 0) >= FETCHES_PER_BROKER:
                continue
            topic_id = routes.require(where.topic).topic_id
            wanted = Wanted(where, topic_id, partition.generation, partition.fetch_offset, epoch)
            by_broker.setdefault(broker_id, (address, []))[1].append(wanted)
        plans = []
        for broker_id, (address, parts) in by_broker.items():
            self._in_flight[broker_id] = self._in_flight.get(broker_id, 0) + 1
            for part in parts:
                self._partitions[part.where].in_flight = True
            plans.append(FetchPlan(broker_id, address, tuple(parts), self._request(parts)))
        self._turn.rotate(-1)
        return plans

    def next_retry_ms(self, now_ms: int) -> int | None:
        """Milliseconds until a partition that waits out a failure may be fetched again; None: none waits."""
        waits = [partition.retry_at_ms - now_ms for partition in self._partitions.values() if partition.failures]
        return max(0, min(waits)) if waits else None

    def take_answer(self, plan: FetchPlan, answer: Envelope, routes: RoutingTable, now_ms: int) -> bool:
        """Take in what a fetch brought, a FetchResponse; whether there is something for the application."""
        self._end_flight(plan)
        batches = iter(answer.batches)
        wanted = {part.where: part for part in plan.partitions}
        names = {part.topic_id: part.where.topic for part in plan.partitions}
        news = False
        for topic in answer.message.topics:
            name = topic.name or names.get(topic.topic_id, "")
            for result in topic.partitions:
                (data,) = next(batches)
                part = wanted.get(TopicPartition(name, result.partition))
                partition = self._partitions.get(part.where) if part is not None else None
                if part is None or partition is None or partition.generation != part.generation:
                    continue
                if result.HasField("error"):
                    news = self._take_error(partition, from_detail(result.error), routes, now_ms) or news
                else:
                    news = self._take_data(partition, result, data) or news
        return news

    def take_failure(self, plan: FetchPlan, error: HeadraceError, routes: RoutingTable, now_ms: int) -> bool:
        """Take in that a fetch failed as a whole; whether there is something for the application."""
        self._end_flight(plan)
        news = False
        for part in plan.partitions:
            partition = self._partitions.get(part.where)
            if partition is not None and partition.generation == part.generation:
                if error.retriable:
                    routes.forget_leader(part.where, part.leader_epoch)
                news = self._take_error(partition, error, routes, now_ms) or news
        return news

    def resets(self) -> list[TopicPartition]:
        """Partitions whose position is not in the log any more: the shell finds a new one, or says that it may not.

        Not before the application has received what was fetched.
        """
        return [
            where
            for where, partition in self._partitions.items()
            if partition.needs_reset and partition.position >= partition.fetch_offset
        ]

    def fail(self, where: TopicPartition, error: HeadraceError, now_ms: int) -> None:
        """Hand an error of a partition to the application, which is raised once; then the partition is tried again."""
        partition = self._partitions.get(where)
        if partition is not None:
            partition.needs_reset = False
            self._rewind(partition)
            self._wait(partition, now_ms)
            self._problems.append(error)

    # --- handing out ---

    def pop(self) -> Chunk | None:
        """Give the next chunk, partitions in turn; None: there is nothing now.

        Raises:
            HeadraceError: an error of a partition; the others go on with the next call.
        """
        if self._problems:
            raise self._problems.popleft()
        for _ in range(len(self._turn)):
            partition = self._partitions[self._turn[0]]
            self._turn.rotate(-1)
            if partition.chunks and not partition.paused:
                chunk = partition.chunks.popleft()
                partition.buffered_bytes -= len(chunk.data)
                self.buffered_bytes -= len(chunk.data)
                return chunk
        return None

    def has_chunks(self) -> bool:
        """Whether `pop` would give a chunk, and no error."""
        return not self._problems and any(part.chunks and not part.paused for part in self._partitions.values())

    def deliver(self, where: TopicPartition, generation: int, position: int) -> None:
        """Note that the application has received the records below `position`; nothing for another generation."""
        partition = self._partitions.get(where)
        if partition is not None and partition.generation == generation:
            partition.position = position

    # --- inside ---

    def _is_wanted(self, partition: _Partition, share: int, now_ms: int) -> bool:
        return not (
            partition.in_flight
            or partition.paused
            or partition.needs_reset
            or partition.buffered_bytes >= share
            or partition.retry_at_ms > now_ms
            or (partition.end_offset is not None and partition.fetch_offset >= partition.end_offset)
        )

    def _request(self, parts: Iterable[Wanted]) -> broker_pb2.FetchRequest:
        config = self._config
        request = broker_pb2.FetchRequest(
            client_id=config.client_id,
            max_wait_ms=config.fetch_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
        )
        entries: dict[str, broker_pb2.TopicFetch] = {}
        for part in parts:
            entry = entries.get(part.where.topic)
            if entry is None:
                reference = topics_pb2.TopicRef(topic_id=part.topic_id)
                entry = entries[part.where.topic] = request.topics.add(topic=reference)
            entry.partitions.add(
                partition=part.where.partition,
                offset=part.offset,
                max_bytes=config.partition_fetch_max_bytes,
                leader_epoch=part.leader_epoch,
            )
        return request

    def _end_flight(self, plan: FetchPlan) -> None:
        self._in_flight[plan.broker_id] -= 1
        for part in plan.partitions:
            partition = self._partitions.get(part.where)
            if partition is not None and partition.generation == part.generation:
                partition.in_flight = False

    def _take_data(self, partition: _Partition, result: broker_pb2.PartitionFetchResult, data: ReadableBuffer) -> bool:
        partition.failures = partition.retry_at_ms = 0
        partition.high_watermark = result.high_watermark
        partition.log_start_offset = result.log_start_offset
        if not data:
            return False
        offset = partition.fetch_offset
        partition.fetch_offset = max(offset, _end_of(data, offset))
        partition.chunks.append(Chunk(partition.where, partition.generation, offset, partition.end_offset, data))
        partition.buffered_bytes += len(data)
        self.buffered_bytes += len(data)
        return True

    def _take_error(self, partition: _Partition, error: HeadraceError, routes: RoutingTable, now_ms: int) -> bool:
        if isinstance(error, OffsetOutOfRangeError):
            partition.needs_reset = True
            return False
        if isinstance(error, UnknownTopicIdError) and partition.failures >= 3:
            self.fail(partition.where, error, now_ms)
            return True
        if not error.retriable:
            self.fail(partition.where, error, now_ms)
            return True
        moved = isinstance(error, NotLeaderError) and error.leader is not None
        if not (moved and error.leader is not None and routes.learn_leader(partition.where, error.leader)):
            self.stale_topics.add(partition.where.topic)
            self._wait(partition, now_ms, error.retry_after_ms)
        return False

    def _wait(self, partition: _Partition, now_ms: int, at_least_ms: int = 0) -> None:
        partition.failures += 1
        partition.retry_at_ms = now_ms + self._backoff.delay_ms(partition.failures, at_least_ms)

    def _rewind(self, partition: _Partition) -> None:
        """Drop what was fetched and begin again at the position, in a new generation."""
        self.buffered_bytes -= partition.buffered_bytes
        partition.buffered_bytes = 0
        partition.chunks.clear()
        self._generation += 1
        partition.generation = self._generation
        partition.in_flight = False
        partition.fetch_offset = partition.position
        partition.failures = partition.retry_at_ms = 0


def _end_of(data: ReadableBuffer, offset: int) -> int:
    """The offset behind the last batch whose header can be read; the reader finds out what is wrong with the rest."""
    end = offset
    try:
        for header, _ in iter_batches(data):
            end = header.end_offset
    except CorruptBatchError:
        return end
    return end
