"""Core of the blocking and the asyncio `Consumer`: positions, received records, the group. Never waits itself.

Fetching continues in the background, bounded in bytes. The position is exactly that of the records which the
application has received, also during an iteration.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from time import monotonic, time_ns
from typing import Any

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ConsumerConfig, client_repr
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Operation
from headrace.client.base.records import DecodedBatch, Record, RecordBatch
from headrace.client.consumer.record_cursor import RecordCursor
from headrace.client.fetch.corrupt_batches import pass_corrupt_batch
from headrace.client.fetch.fetch_manager import FetchManager
from headrace.client.fetch.offset_resets import offsets_at
from headrace.client.fetch.open_fetch import OpenFetch
from headrace.client.fetch.partition_fetch_state import NO_EPOCH
from headrace.client.group.consumer_health import ConsumerHealth
from headrace.client.group.member import ConsumerMember
from headrace.client.group.offsets import CommitCallback, OffsetAndMetadata
from headrace.client.tracing.receiving import ReceiveTracing
from headrace.wire.errors import (
    CorruptBatchError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")


class ConsumerCore:
    """Core of one consumer, which executes its operations one at a time."""

    def __init__(self, topics: Sequence[str], config: ConsumerConfig, fetcher: FetchManager) -> None:
        """Check the settings; does not connect yet."""
        self.config = config
        self.fetcher = fetcher
        if not all(isinstance(topic, str) and topic for topic in topics):
            raise ConfigError("a topic is not a name", action='Write Consumer("clicks", "views", ...).')
        self._topics = frozenset(topics)
        self._open_fetch = OpenFetch(self.config)
        self.tracing = ReceiveTracing(config)
        self.group: ConsumerMember | None = None
        if self.config.group_id:
            if not topics and not self.config.topic_pattern:
                raise ConfigError("a consumer of a group names no topic", action="Name topics or set topic_pattern.")
            self.group = ConsumerMember(self.config, topics, self.fetcher, self._open_fetch)
        else:
            fetcher.engine.grows_with = self._topics

    def open(self) -> Operation[None]:
        """Look up the initial positions."""
        if self.group is not None:
            absent = yield from self.fetcher.find_absent(set(self._topics))
            if absent:
                log.warning(
                    "group %s waits for topics that do not exist: %s; create them, or check their names",
                    self.config.group_id,
                    ", ".join(absent),
                )
        elif self._topics:
            counts = yield from self.fetcher.read_metadata(set(self._topics))
            yield from self._assign([TopicPartition(name, n) for name, count in counts.items() for n in range(count)])

    def start(self) -> None:
        """Start fetching, and join the group."""
        self.fetcher.start()
        if self.group is not None:
            self.group.session.start()

    def __repr__(self) -> str:
        group = [f"group_id={self.config.group_id}"] if self.config.group_id else []
        topics = [f"topics={','.join(sorted(self._topics))}"] if self._topics else []
        return client_repr("Consumer", self.config, *topics, *group)

    @property
    def _current(self) -> RecordCursor | None:
        """Batch under iteration."""
        cursor = self.fetcher.cursor
        assert cursor is None or isinstance(cursor, RecordCursor)
        return cursor

    def next_records(self) -> Operation[Iterator[Record]]:
        """Wait for the next records; the iterator starts at the first one, and `position` moves with it."""
        self.settle()  # Also after an earlier loop that was left early.
        telemetry, start_ns = self.tracing.telemetry, time_ns()
        with self._polling():
            while True:
                decoded = yield from self._first_decoded_batch(None, None)
                assert decoded is not None, "a wait without end ends with a decoded batch or an error"
                if self._receive(decoded, decoded.base_offset):
                    if not decoded.is_empty:
                        break
                    if self.group is not None:
                        self.group.mark_consumed(decoded.source, decoded.end_offset, decoded.leader_epoch)
            stopper = None if self.group is None else self.group.stopper()
            if telemetry is not None:
                self.tracing.received(telemetry, (decoded,), start_ns)
            cursor = self.fetcher.cursor = RecordCursor(decoded, self._open_fetch.generation_of(decoded), stopper)
        return cursor.records()

    def poll(self, timeout: float | None, max_records: int | None, *, is_traced: bool = True) -> Operation[RecordBatch]:
        """Wait for records; see `Consumer.poll`. Without `is_traced` it has no span: its caller passes records on."""
        if max_records is not None and max_records < 1:
            raise ConfigError(f"max_records={max_records} is not at least 1")
        self.settle()
        with self._polling() as decoded_batches:
            telemetry, start_ns = self.tracing.telemetry if is_traced else None, time_ns()
            yield from self._receive_batches(decoded_batches, timeout, max_records)
            if telemetry is not None and decoded_batches:
                self.tracing.received(telemetry, decoded_batches, start_ns)
        return RecordBatch(decoded_batches)

    def _receive_batches(
        self, decoded_batches: list[DecodedBatch], timeout: float | None, max_records: int | None
    ) -> Operation[None]:
        """Wait for records; receive at most `max_records`, and at most `max_poll_bytes`."""
        size = 0
        left = max_records
        while left is None or left > 0:
            if decoded_batches:
                decoded = self._further_decoded_batch(left)
            else:
                decoded = yield from self._first_decoded_batch(timeout, left)
            if decoded is None:
                break
            size += decoded.payload_bytes
            if decoded_batches and size > self.config.max_poll_bytes:
                rest = self._open_fetch.rest
                self._open_fetch.rest = decoded if rest is None else replace(decoded, end=rest.end)
                break
            decoded_batches.append(decoded)  # Before the position moves, for `_give_back`.
            is_received = self._receive(decoded, decoded.end_offset)
            if is_received and self.group is not None:
                self.group.mark_consumed(decoded.source, decoded.end_offset, decoded.leader_epoch)
            if not is_received or decoded.is_empty:
                decoded_batches.pop()
            elif left is not None:
                left -= decoded.end - decoded.start

    @contextmanager
    def _polling(self) -> Iterator[list[DecodedBatch]]:
        """Record that the application waits for records, until the wait ends, also with an error or a cancellation.

        The list that it yields has the decoded batches that the application receives, unless the handler of a signal
        raises an error, such as KeyboardInterrupt.
        """
        if self.group is not None:
            self.group.on_poll_begin()
        decoded_batches: list[DecodedBatch] = []
        try:
            yield decoded_batches
        except (KeyboardInterrupt, SystemExit):
            self._give_back(decoded_batches)
            raise
        finally:
            if self.group is not None:
                self.group.on_poll_end()

    def _give_back(self, decoded_batches: Sequence[DecodedBatch]) -> None:
        """Fetch decoded batches that are not returned again, and the rest of the open fetch."""
        offsets = {decoded.source: decoded.base_offset for decoded in reversed(decoded_batches)}
        completed = self._open_fetch.completed
        self._open_fetch.forget()
        with self.fetcher.changing() as positions:
            for where, offset in offsets.items():
                if where in positions:
                    positions.seek(where, offset, positions.topic_id(where))
            if completed is not None and completed.where in positions:
                positions.rewind(completed.where)
        if self.group is not None:
            self.group.unmark_consumed(offsets)

    # --- positions ---

    def assign_only(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> Operation[None]:
        """Read exactly these partitions; see `Consumer.assign`."""
        if self.group is not None:
            raise ConfigError(
                "the group assigns the partitions of this consumer", action="Leave out group_id to assign."
            )
        if self._topics:
            raise ConfigError("this consumer reads all partitions of its topics", action="Use Consumer() and assign().")
        wanted = [TopicPartition(*where) for where in partitions]
        counts = yield from self.fetcher.read_metadata({where.topic for where in wanted})
        for where in wanted:
            if not 0 <= where.partition < counts[where.topic]:
                raise UnknownPartitionError(f"{where.topic} has the partitions 0 to {counts[where.topic] - 1}")
        self._open_fetch.forget()
        with self.fetcher.changing() as positions:
            for where in positions.assigned():
                if where not in wanted:
                    positions.drop(where)
        yield from self._assign(wanted, partitions if isinstance(partitions, Mapping) else None)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read, ascending."""
        with self.fetcher.changing() as positions:
            return list(positions.assigned())

    def position(self, where: TopicPartition) -> int:
        """Return the offset of the next record that the application will receive of a partition."""
        current = self._current
        with self.fetcher.changing() as positions:
            self._require(positions, where)
            if current is not None and current.decoded.source == where and current.is_current(positions):
                return current.position()
            return int(positions.position(where))

    def seek(self, where: TopicPartition, offset: int, topic_id: bytes = b"") -> None:
        """Continue at `offset` of the topic with this id; empty means the newest one known."""
        if offset < 0:
            raise ConfigError(f"offset {offset} is negative", action="Use seek_to_end or seek_to_beginning.")
        self.settle()
        self._open_fetch.forget(where)
        with self.fetcher.changing() as positions:
            self._require(positions, where)
            positions.seek(where, offset, topic_id)
        if self.group is not None:
            self.group.on_seek(where, offset)

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop delivering some partitions until `resume`; their positions stay."""
        self.settle()
        for where in partitions:
            self._open_fetch.forget(where)
            with self.fetcher.changing() as positions:
                self._require(positions, where)
                positions.pause(where)

    def resume(self, *partitions: TopicPartition) -> None:
        """Receive records of paused partitions again."""
        with self.fetcher.changing() as positions:
            for where in partitions:
                self._require(positions, where)
                positions.resume(where)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused, ascending."""
        with self.fetcher.changing() as positions:
            return [where for where in positions.assigned() if positions.is_paused(where)]

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the lag in records by partition, as of the last fetch; `None` means unknown."""
        found: dict[TopicPartition, int | None] = {}
        with self.fetcher.changing() as positions:
            lags = positions.lag()
        for where, behind in lags.items():
            current = self._current
            ahead = 0
            if current is not None and current.decoded.source == where:
                ahead = current.delivered()
            found[where] = None if behind is None else max(0, behind - ahead)
        return found

    # --- offsets of the group ---

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit offsets in the background; `callback(offsets, error or None)` is called by the next poll."""
        group = self.in_group()
        self.settle()
        group.queue(offsets, callback)

    def commit(self, offsets: Mapping[TopicPartition, Any] | None, timeout: float) -> Operation[None]:
        """Commit offsets and wait for the result; see `Consumer.commit`."""
        group = self.in_group()
        self.settle()
        yield from group.commit(offsets, timeout)

    def committed(self, partitions: Sequence[TopicPartition], timeout: float) -> Operation[Any]:
        """Read the committed offsets; see `Consumer.committed`."""
        return (yield from self.in_group().committed(partitions or self.assignment(), timeout))

    def in_group(self) -> ConsumerMember:
        """Return this consumer's group member.

        Raises:
            ConfigError: If it has no group.
        """
        if self.group is None:
            raise ConfigError("this consumer has no group", action="Set group_id.")
        return self.group

    # --- health and close ---

    def health(self) -> ConsumerHealth:
        """Return whether this consumer can work; cheap, any thread."""
        fetcher = self.fetcher
        problem = "" if fetcher.engine.last_error is None else str(fetcher.engine.last_error)
        try:
            fetcher.check()
            with fetcher.changing() as positions:
                assigned = len(positions.assigned())
        except Exception as error:  # a closed or forked consumer is unhealthy, which this method must report
            return ConsumerHealth(False, str(error), 0, 0)
        silent_ms = monotonic_ms() - fetcher.engine.last_answer_ms
        limit_ms = self.config.request_timeout_ms + self.config.fetch_max_wait_ms
        if not problem and assigned and silent_ms > limit_ms and len(self.paused()) < assigned:
            problem = f"no broker has answered a fetch for {silent_ms} ms"
        if self.group is None:
            return ConsumerHealth(not problem, problem, assigned, silent_ms)
        return self.group.health(problem, assigned, silent_ms)

    def closing(self, timeout: float, *, finish: bool) -> Operation[None]:
        """Leave the group; `finish` means that all received records are processed. Calling it again does nothing."""
        if self.group is not None and self.group.begins_to_close():
            self.settle()
            yield from self.group.closing(timeout, finish=finish)

    # --- internal ---

    def _first_decoded_batch(self, timeout: float | None, most: int | None) -> Operation[DecodedBatch | None]:
        """Wait for the next records, at most `most`; `None` on timeout."""
        group = self.group
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            delivery_paused = False
            if group is not None:
                yield from group.follow()
                delivery_paused = group.delivery_paused()
            if not delivery_paused:
                decoded = self._open_fetch.take_rest()
                if decoded is None:
                    decoded = yield from self._decode_next()
                if decoded is not None:
                    return self._cut(decoded, most)
            if group is None and self.fetcher.positions.is_empty():
                raise ConfigError("this consumer reads nothing", action="Name topics, or assign partitions first.")
            left = None if deadline is None else max(0.0, deadline - monotonic())
            try:
                completed = yield from self.fetcher.next_fetch(left, delivery_paused=delivery_paused)
            except (UnknownTopicError, UnknownTopicIdError):
                if group is None:
                    raise
                completed = None  # The group ends the assignment of a deleted topic.
            if completed is None:
                if group is not None and left != 0:  # The group may have changed the assignment.
                    continue
                return None
            self._open_fetch.begin(completed)

    def _further_decoded_batch(self, most: int | None) -> DecodedBatch | None:
        """Return records for a poll that has received some, at most `most`; `None` if it must return those.

        Nothing is awaited and no error is raised, because the received records would be lost: the next poll does both.
        """
        while True:
            decoded = self._open_fetch.take_rest()
            if decoded is None:
                decoded = self._open_fetch.decode_unless_error()
            if decoded is not None:
                return self._cut(decoded, most)
            if most is None or self._open_fetch.completed is not None:
                return None  # One poll returns records of one fetch, or an error comes next.
            completed = self.fetcher.completed_fetch()
            if completed is None:
                return None
            self._open_fetch.begin(completed)

    def _cut(self, decoded: DecodedBatch, most: int | None) -> DecodedBatch:
        """Return at most `most` records of a decoded batch, and keep the rest."""
        if most is None or decoded.end - decoded.start <= most:
            return decoded
        self._open_fetch.rest = decoded.cut(most, decoded.end - decoded.start)
        return decoded.cut(0, most)

    def _decode_next(self) -> Operation[DecodedBatch | None]:
        completed = self._open_fetch.completed
        if completed is None:
            return None
        try:
            return self._open_fetch.decode()
        except CorruptBatchError as error:
            if not self.fetcher.retries_corrupt(completed, error):
                passed = yield from pass_corrupt_batch(
                    self.fetcher, self.config, completed, error, self.config.group_id
                )
                if not passed:
                    raise
                if self.group is not None:
                    self.group.mark_consumed(completed.where, error.next_offset, NO_EPOCH)
            return None
        except Exception:  # The fetch is not open any more.
            with self.fetcher.changing() as positions:
                if positions.generation(completed.where) == completed.generation:
                    positions.rewind(completed.where)
            raise

    def _receive(self, decoded: DecodedBatch, position: int) -> bool:
        """Record that the application receives a decoded batch up to `position`.

        `False` means that the rest of its completed fetch is dropped because the position has moved, for example to
        another incarnation of the topic.
        """
        with self.fetcher.changing() as positions:
            generation = self._open_fetch.generation_of(decoded)
            if positions.deliver(decoded.source, generation, position, decoded.leader_epoch):
                return True
        self._open_fetch.forget(decoded.source)
        return False

    def settle(self) -> None:
        """Record the delivered records of the iteration, end it, and keep the rest."""
        current = self._current
        if current is None:
            return
        delivered = current.end()
        decoded = current.decoded
        with self.fetcher.changing() as positions:
            position = decoded.offset_after(delivered)
            positions.deliver(decoded.source, current.generation, position, decoded.leader_epoch)
            stale = not current.is_current(positions)
        if self.group is not None and not stale:
            self.group.checkpoint(current)
        self.fetcher.cursor = None  # Only after the group has the processed offsets of it.
        if stale:  # The rest of the completed fetch is fetched again, with the undelivered records.
            self._open_fetch.forget(decoded.source)
        elif delivered < decoded.end - decoded.start:
            self._open_fetch.rest = decoded.cut(delivered, decoded.end - decoded.start)

    def _assign(
        self, wanted: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int] | None = None
    ) -> Operation[None]:
        ids = {topic: self.fetcher.topic_id(topic) for topic in {where.topic for where in wanted}}
        starts = {where: (offset, ids[where.topic]) for where, offset in (offsets or {}).items()}
        missing = [where for where in wanted if where not in starts]
        if missing:
            at = "earliest" if self.config.auto_offset_reset == "earliest" else "latest"
            starts.update((yield from offsets_at(self.fetcher.admin, missing, at)))
        with self.fetcher.changing() as positions:
            for where in wanted:
                offset, topic_id = starts[where]
                positions.assign(where, offset, topic_id=topic_id)

    def seek_to(self, at: str | float | datetime, partitions: Sequence[TopicPartition]) -> Operation[None]:
        """Seek to a time, or to the beginning or the end of the log, in some partitions, or in all."""
        found = yield from offsets_at(self.fetcher.admin, partitions or self.assignment(), at)
        for where, (offset, topic_id) in found.items():
            self.seek(where, offset, topic_id)

    @staticmethod
    def _require(positions: Any, where: TopicPartition) -> None:
        if where not in positions:
            raise UnknownPartitionError(f"this consumer does not read {where}", action="Assign it first.")
