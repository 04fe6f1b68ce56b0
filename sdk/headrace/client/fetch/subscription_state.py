"""Positions of a reader and fetched batches of each partition. Pure: no I/O, no clock, no thread.

`FetchManager` holds a lock around every call; `FetchPlanner` plans the fetches. Every external change of a partition's
position (a seek, a pause, an error) raises its generation, and a response of an older generation is dropped as a whole.

A position belongs to one incarnation of its topic. If the topic was deleted and created again the position is lost, and
the owner's policy decides where to continue, as for a position that retention removed.
"""

from collections import deque

from headrace.client.base.call_counts import CallCounts
from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import LogTruncationError
from headrace.client.base.retry import Backoff
from headrace.client.fetch.partition_fetch_state import (
    ANY_EPOCH,
    NO_EPOCH,
    CompletedFetch,
    Corruption,
    Divergence,
    PartitionFetchState,
)
from headrace.v1 import broker_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError, HeadraceError
from headrace.wire.ids import TopicPartition


class SubscriptionState:
    """Partitions that a consumer or reader reads. The module's docstring states who may call it."""

    def __init__(self, config: FetchConfig, backoff: Backoff) -> None:
        self._config = config
        self._backoff = backoff
        self.partitions: dict[TopicPartition, PartitionFetchState] = {}
        self.turn: deque[TopicPartition] = deque()
        """Order in which partitions are fetched."""
        self._ready: deque[TopicPartition] = deque()
        self._problems: dict[TopicPartition, HeadraceError] = {}
        self._diverged: dict[TopicPartition, None] = {}
        self._lost: dict[TopicPartition, None] = {}
        self._waiting: dict[TopicPartition, None] = {}
        self._generation = 0
        self.buffered_bytes = 0
        self.selection: broker_pb2.ColumnSelection | None = None
        """Columns that are fetched of typed topics; `None` for whole batches."""
        self.counts = CallCounts()
        self.has_news = False
        """Whether an external change concerns the background; the engine clears it."""

    # --- assignment ---

    def assign(
        self,
        where: TopicPartition,
        offset: int,
        end_offset: int | None = None,
        *,
        topic_id: bytes = b"",
        leader_epoch: int = NO_EPOCH,
    ) -> None:
        """Read a partition from `offset` (up to `end_offset`); replaces its previous state.

        `leader_epoch` is that of the batch before `offset` in this incarnation of the topic, if known.
        """
        self.drop(where)
        self._generation += 1
        partition = PartitionFetchState(where, offset, offset, end_offset, self._generation, self._generation, topic_id)
        partition.epoch = partition.fetch_epoch = leader_epoch
        self.partitions[where] = partition
        self.turn.append(where)
        self.has_news = True

    def drop(self, where: TopicPartition) -> None:
        """Stop reading a partition; do nothing if it is not read."""
        self._problems.pop(where, None)
        partition = self.partitions.pop(where, None)
        if partition is not None:
            self.buffered_bytes -= partition.buffered_bytes
            self.turn.remove(where)
            if partition.is_ready:
                self._ready.remove(where)
            self.has_news = True

    def assigned(self) -> list[TopicPartition]:
        """Return the partitions that are read, ascending."""
        return sorted(self.partitions)

    def is_empty(self) -> bool:
        """Return whether no partition is read."""
        return not self.partitions

    def __contains__(self, where: object) -> bool:
        return where in self.partitions

    def position(self, where: TopicPartition) -> int:
        """Return the offset of the next record for the application."""
        return self.partitions[where].position

    def topic_id(self, where: TopicPartition) -> bytes:
        """Return the id of the position's topic; empty if it is unknown or the partition is not read."""
        partition = self.partitions.get(where)
        return b"" if partition is None else partition.topic_id

    def generation(self, where: TopicPartition) -> int:
        """Return the generation of a partition; `-1` means that it is not read."""
        partition = self.partitions.get(where)
        return -1 if partition is None else partition.generation

    def seek(self, where: TopicPartition, offset: int, topic_id: bytes = b"") -> None:
        """Continue from `offset`; drop fetched batches and errors of the former position.

        `topic_id` is that of the incarnation in which the offset was looked up; empty means the newest one known.
        """
        partition = self.partitions[where]
        partition.seek(offset, topic_id)
        self._rewind(partition)
        partition.placed = partition.generation
        self._problems.pop(where, None)

    def replaced(self, where: TopicPartition) -> tuple[bytes, bytes] | None:
        """Return the ids of the position's topic and of the topic that replaced it; `None` if not replaced.

        Fetches and commits of the position still belong to the old topic.
        """
        partition = self.partitions.get(where)
        return (partition.topic_id, partition.replaced_by) if partition is not None and partition.replaced_by else None

    def rewind(self, where: TopicPartition, now_ms: int | None = None) -> None:
        """Fetch undelivered records again: after a back-off if `now_ms` is given, else at once."""
        self._rewind(self.partitions[where])
        if now_ms is not None:
            self.back_off(self.partitions[where], NO_EPOCH, now_ms)

    def pause(self, where: TopicPartition) -> None:
        """Stop fetching and delivering a partition until `resume`."""
        partition = self.partitions[where]
        partition.paused = True
        self._rewind(partition)

    def resume(self, where: TopicPartition) -> None:
        """End a pause."""
        self.partitions[where].paused = False
        self.has_news = True

    def is_paused(self, where: TopicPartition) -> bool:
        """Return whether a partition is paused."""
        return self.partitions[where].paused

    def is_finished(self) -> bool:
        """Return whether every partition has reached its end offset; `False` if there is no partition."""
        return bool(self.partitions) and all(partition.at_end for partition in self.partitions.values())

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the number of records between position and last high watermark; `None` means unknown."""
        return {
            where: None if partition.high_watermark < 0 else max(0, partition.high_watermark - partition.position)
            for where, partition in sorted(self.partitions.items())
        }

    # --- fetching ---

    def next_retry_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until a partition in back-off may be fetched again; `None` means that none waits.

        A partition whose back-off is over was already planned, or waits for something else.
        """
        for where in list(self._waiting):
            if where not in self.partitions or self.partitions[where].retry_at_ms <= now_ms:
                del self._waiting[where]
        waits = [self.partitions[where].retry_at_ms - now_ms for where in self._waiting]
        return min(waits, default=None)

    def resets(self) -> list[TopicPartition]:
        """Return partitions whose position is outside the log, for `FetchManager` to move or to fail.

        A partition is included only after the application received everything that was fetched.
        """
        found = []
        for where in list(self._lost):
            partition = self.partitions.get(where)
            if partition is None or not partition.needs_reset:
                del self._lost[where]
            elif partition.position >= partition.fetch_offset:
                found.append(where)
        return found

    def lose(self, partition: PartitionFetchState) -> None:
        """Mark a position as outside the log."""
        partition.needs_reset = True
        self._lost[partition.where] = None

    def diverge(self, partition: PartitionFetchState, divergence: Divergence) -> None:
        """Mark the log of a partition as replaced; raises an error after everything fetched before is delivered."""
        partition.divergence = divergence
        self._diverged[partition.where] = None

    def corruption_detected(self, completed: CompletedFetch, error: CorruptBatchError, now_ms: int) -> bool:
        """Process a checksum failure of the batch at the position; return whether the batch is fetched again.

        Otherwise the error is raised to the application, and the batch is fetched again if the application continues
        unchanged. The broker that sent it receives a report, and may then refuse the batch or resign.
        """
        partition = self.partitions.get(completed.where)
        if partition is None or partition.generation != completed.generation:
            return True
        if error.written_so:  # Every replica has it in this state: no broker should verify its log.
            partition.corruption = None
            self._rewind(partition)
            return False
        corruption = partition.corruption = partition.corruption or Corruption(completed.broker_id, error, now_ms)
        corruption.came_from(completed.broker_id)
        self._rewind(partition)
        if corruption.is_hopeless(now_ms):
            if partition.near.broker_id != completed.broker_id:
                partition.corruption = None
                return False
            partition.near.refused(now_ms)
        self.back_off(partition, NO_EPOCH, now_ms, failures=corruption.copies)
        return True

    def fail(self, where: TopicPartition, error: HeadraceError, now_ms: int) -> None:
        """Raise an error of a partition once to the application, then try the partition again."""
        partition = self.partitions.get(where)
        if partition is not None:
            failures = partition.failures
            self._rewind(partition)
            self.back_off(partition, NO_EPOCH, now_ms, failures=failures + 1)
            self._problems[where] = error

    # --- delivery ---

    def pop(self, now_ms: int) -> CompletedFetch | None:
        """Return the next completed fetch, round-robin over partitions; `None` means that there is none now.

        Raises:
            HeadraceError: An error of one partition; the next call returns fetches of the others.
        """
        if self._diverged:
            self._find_truncations(now_ms)
        if self._problems:
            raise self._problems.pop(next(iter(self._problems)))
        while self._ready:
            partition = self.partitions[self._ready.popleft()]
            partition.is_ready = False
            if partition.completed_fetches:
                return self._take_out(partition)
        return None

    def _take_out(self, partition: PartitionFetchState) -> CompletedFetch:
        """Return the first completed fetch of a partition, which must have one."""
        was_full = self._is_full(partition)
        completed = partition.completed_fetches.popleft()
        partition.buffered_bytes -= completed.inflated_bytes
        self.buffered_bytes -= completed.inflated_bytes
        if partition.completed_fetches:
            self._make_ready(partition)
        self.has_news |= was_full and not self._is_full(partition)
        return completed

    def _is_full(self, partition: PartitionFetchState) -> bool:
        """Return whether fetching of a partition waits until records are delivered."""
        return self.buffered_bytes >= self._config.prefetch_bytes or partition.buffered_bytes >= self.share()

    def share(self) -> int:
        """Return the maximum number of bytes that are buffered for one partition."""
        return max(self._config.max_partition_fetch_bytes, self._config.prefetch_bytes // max(1, len(self.turn)))

    def receive(self, partition: PartitionFetchState, data: ReadableBuffer, broker_id: int) -> None:
        """Keep fetched batches of a partition."""
        self.buffered_bytes += partition.take(data, broker_id)
        self._make_ready(partition)

    def _make_ready(self, partition: PartitionFetchState) -> None:
        """Queue a partition with completed fetches for delivery, once."""
        if not partition.is_ready:
            partition.is_ready = True
            self._ready.append(partition.where)

    def is_ready(self) -> bool:
        """Return whether `pop` may return a fetch or raise an error."""
        return bool(self._problems or self._ready) or any(self._is_truncation_due(where) for where in self._diverged)

    def has_completed_fetches(self) -> bool:
        """Return whether `pop` would return a completed fetch without an error."""
        if self._problems or any(self._is_truncation_due(where) for where in self._diverged):
            return False
        return any(self.partitions[where].completed_fetches for where in self._ready)

    def _is_truncation_due(self, where: TopicPartition) -> bool:
        partition = self.partitions.get(where)
        return partition is not None and partition.has_diverged

    def deliver(self, where: TopicPartition, generation: int, position: int, leader_epoch: int) -> bool:
        """Record that the application receives the records below `position`; return `False` if it must not, because it
        has set another position since they were fetched.

        `leader_epoch` is that of the batch with the last record. If a failure rewound the partition in the meantime,
        the received records are not fetched again.
        """
        partition = self.partitions.get(where)
        if partition is None or generation < partition.placed:
            return False
        is_rewound = generation != partition.generation and position > partition.position
        partition.deliver(position, leader_epoch)
        if is_rewound:
            waits = partition.failures, partition.retry_at_ms, partition.failed_epoch, partition.seeks_leader
            self._rewind(partition)
            partition.failures, partition.retry_at_ms, partition.failed_epoch, partition.seeks_leader = waits
        self.has_news |= partition.needs_reset
        return True

    # --- internal ---

    def _find_truncations(self, now_ms: int) -> None:
        """Fail partitions whose log was replaced, after everything read before is delivered."""
        for where in list(self._diverged):
            partition = self.partitions.get(where)
            divergence = None if partition is None else partition.divergence
            if partition is None or divergence is None:
                del self._diverged[where]
            elif partition.has_diverged:
                del self._diverged[where]
                error = LogTruncationError(
                    where, divergence.offset, partition.diverging_offset(), divergence.leader_epoch
                )
                self.fail(where, error, now_ms)

    def back_off(
        self, partition: PartitionFetchState, leader_epoch: int, now_ms: int, *, failures: int = 0, at_least_ms: int = 0
    ) -> None:
        """Start a partition's back-off; a leader of an epoch above `leader_epoch` (-1 means any) is tried at once."""
        partition.failures = failures or partition.failures + 1
        partition.failed_epoch = leader_epoch if leader_epoch >= 0 else ANY_EPOCH
        partition.retry_at_ms = now_ms + self._backoff.delay_ms(partition.failures, at_least_ms)
        self._waiting[partition.where] = None
        self.has_news = True

    def hold_off(self, partition: PartitionFetchState, leader_epoch: int, until_ms: int) -> None:
        """Delay a partition for which the broker had no room; a newer leader is tried at once."""
        partition.failed_epoch, partition.retry_at_ms = leader_epoch, until_ms
        self._waiting[partition.where] = None
        self.has_news = True

    def _rewind(self, partition: PartitionFetchState) -> None:
        """Drop fetched batches and fetch again from the position, in a new generation."""
        self.buffered_bytes -= partition.buffered_bytes
        self._generation += 1
        partition.rewind(self._generation)
        self.has_news = True
