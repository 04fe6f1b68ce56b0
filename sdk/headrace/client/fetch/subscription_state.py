"""The position of a reader in each partition, and what was fetched there. Pure: no I/O, no clock, no thread.

`FetchManager` holds a lock around every call, `FetchPlanner` plans the fetches. Whatever changes a partition's position
from outside (a seek, a pause, an error) raises its generation: a response of an older generation is dropped whole.

A position belongs to one life of its topic. Where the topic was deleted and created again the position is lost, and the
owner's policy decides where to continue, as for one that retention removed.
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
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError, HeadraceError
from headrace.wire.ids import TopicPartition


class SubscriptionState:
    """The partitions that a consumer or reader reads. See the module for who may call it."""

    def __init__(self, config: FetchConfig, backoff: Backoff) -> None:
        self._config = config
        self._backoff = backoff
        self.partitions: dict[TopicPartition, PartitionFetchState] = {}
        self.turn: deque[TopicPartition] = deque()
        """The order in which partitions are fetched."""
        self._ready: deque[TopicPartition] = deque()
        self._problems: deque[tuple[TopicPartition, HeadraceError]] = deque()
        self._diverged: dict[TopicPartition, None] = {}
        self._lost: dict[TopicPartition, None] = {}
        self._waiting: dict[TopicPartition, None] = {}
        self._generation = 0
        self.buffered_bytes = 0
        self.counts = CallCounts()
        self.has_news = False
        """Whether a change from outside concerns the background; the engine clears it."""

    # --- what is read ---

    def assign(
        self,
        where: TopicPartition,
        offset: int,
        end_offset: int | None = None,
        *,
        topic_id: bytes = b"",
        leader_epoch: int = NO_EPOCH,
    ) -> None:
        """Read a partition from `offset` (up to `end_offset`); replaces what was known of it.

        `leader_epoch` is that of the batch before `offset`, where it is known, in this life of the topic.
        """
        self.drop(where)
        self._generation += 1
        partition = PartitionFetchState(where, offset, offset, end_offset, self._generation, self._generation, topic_id)
        partition.epoch = partition.fetch_epoch = leader_epoch
        self.partitions[where] = partition
        self.turn.append(where)
        self.has_news = True

    def drop(self, where: TopicPartition) -> None:
        """Stop reading a partition; nothing where it is not read."""
        partition = self.partitions.pop(where, None)
        if partition is not None:
            self.buffered_bytes -= partition.buffered_bytes
            self.turn.remove(where)
            if partition.is_ready:
                self._ready.remove(where)
            self.has_news = True

    def assigned(self) -> list[TopicPartition]:
        """The partitions that are read, ascending."""
        return sorted(self.partitions)

    def is_empty(self) -> bool:
        """Whether no partition is read."""
        return not self.partitions

    def __contains__(self, where: object) -> bool:
        return where in self.partitions

    def position(self, where: TopicPartition) -> int:
        """The offset of the next record for the application."""
        return self.partitions[where].position

    def topic_id(self, where: TopicPartition) -> bytes:
        """Return the id of the topic that a position belongs to; empty: not known yet, or not read."""
        partition = self.partitions.get(where)
        return b"" if partition is None else partition.topic_id

    def generation(self, where: TopicPartition) -> int:
        """The generation of a partition; -1 where it is not read."""
        partition = self.partitions.get(where)
        return -1 if partition is None else partition.generation

    def seek(self, where: TopicPartition, offset: int, topic_id: bytes = b"") -> None:
        """Continue from `offset`; drop fetched batches and errors of the former position.

        `topic_id` is that of the life in which the offset was looked up; empty means the newest one known.
        """
        partition = self.partitions[where]
        partition.seek(offset, topic_id)
        self._rewind(partition)
        partition.placed = partition.generation
        for problem in [each for each in self._problems if each[0] == where]:
            self._problems.remove(problem)

    def replaced(self, where: TopicPartition) -> tuple[bytes, bytes] | None:
        """Return the ids of the topic that a position belongs to and of the one that has its name; `None`: one topic.

        What is fetched and committed of the position is the old topic's.
        """
        partition = self.partitions.get(where)
        return (partition.topic_id, partition.replaced_by) if partition is not None and partition.replaced_by else None

    def rewind(self, where: TopicPartition, now_ms: int | None = None) -> None:
        """Fetch again what was not delivered; given the time, after a while."""
        self._rewind(self.partitions[where])
        if now_ms is not None:
            self.back_off(self.partitions[where], NO_EPOCH, now_ms)

    def pause(self, where: TopicPartition) -> None:
        """Fetch and deliver nothing of a partition until `resume`."""
        partition = self.partitions[where]
        partition.paused = True
        self._rewind(partition)

    def resume(self, where: TopicPartition) -> None:
        """End a pause."""
        self.partitions[where].paused = False
        self.has_news = True

    def is_paused(self, where: TopicPartition) -> bool:
        """Whether a partition is paused."""
        return self.partitions[where].paused

    def is_finished(self) -> bool:
        """Whether every partition has reached its end offset; never where there is no partition."""
        return bool(self.partitions) and all(partition.at_end for partition in self.partitions.values())

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the records between the position and the last high watermark; `None` means that none is known."""
        return {
            where: None if partition.high_watermark < 0 else max(0, partition.high_watermark - partition.position)
            for where, partition in sorted(self.partitions.items())
        }

    # --- fetching ---

    def next_retry_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until a partition in back-off may be fetched again; `None` means that none waits.

        One whose wait is over has been planned by now, or waits for something else.
        """
        for where in list(self._waiting):
            if where not in self.partitions or self.partitions[where].retry_at_ms <= now_ms:
                del self._waiting[where]
        waits = [self.partitions[where].retry_at_ms - now_ms for where in self._waiting]
        return min(waits, default=None)

    def resets(self) -> list[TopicPartition]:
        """Return partitions whose position is not in the log any more, for `FetchManager` to move or to fail.

        Not before the application has received what was fetched.
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
        """Note that a position is not in the log any more."""
        partition.needs_reset = True
        self._lost[partition.where] = None

    def diverge(self, partition: PartitionFetchState, divergence: Divergence) -> None:
        """Note that the log of a partition was replaced; an error once all that was fetched before is delivered."""
        partition.divergence = divergence
        self._diverged[partition.where] = None

    def corruption_detected(self, completed: CompletedFetch, error: CorruptBatchError, now_ms: int) -> bool:
        """Note that the batch at the position failed its checksum; return whether it is fetched again.

        Otherwise the application gets the error; when it continues unchanged, the batch is fetched anew. The broker
        that sent it receives a report, and may refuse the batch from then on or resign.
        """
        partition = self.partitions.get(completed.where)
        if partition is None or partition.generation != completed.generation:
            return True
        if error.written_so:  # All replicas have it so: no broker should verify its log.
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
        """Raise an error of a partition once in the application; then try the partition again."""
        partition = self.partitions.get(where)
        if partition is not None:
            self._rewind(partition)
            self.back_off(partition, NO_EPOCH, now_ms)
            self._problems.append((where, error))

    # --- delivery ---

    def pop(self, now_ms: int) -> CompletedFetch | None:
        """Return the next completed fetch, partitions in turn; `None` means that there is none now.

        Raises:
            HeadraceError: an error of a partition; the next call returns what the others have.
        """
        if self._diverged:
            self._find_truncations(now_ms)
        if self._problems:
            raise self._problems.popleft()[1]
        while self._ready:
            partition = self.partitions[self._ready.popleft()]
            partition.is_ready = False
            if partition.completed_fetches:
                return self._take_out(partition)
        return None

    def _take_out(self, partition: PartitionFetchState) -> CompletedFetch:
        """Return a partition's first completed fetch; there is one."""
        was_full = self._is_full(partition)
        completed = partition.completed_fetches.popleft()
        partition.buffered_bytes -= completed.inflated_bytes
        self.buffered_bytes -= completed.inflated_bytes
        if partition.completed_fetches:
            self._make_ready(partition)
        self.has_news |= was_full and not self._is_full(partition)
        return completed

    def _is_full(self, partition: PartitionFetchState) -> bool:
        """Return whether nothing more of a partition is fetched until something is delivered."""
        return self.buffered_bytes >= self._config.prefetch_bytes or partition.buffered_bytes >= self.share()

    def share(self) -> int:
        """Return the maximum number of bytes that are buffered of one partition."""
        return max(self._config.max_partition_fetch_bytes, self._config.prefetch_bytes // max(1, len(self.turn)))

    def receive(self, partition: PartitionFetchState, data: ReadableBuffer, broker_id: int) -> None:
        """Keep fetched batches of a partition."""
        self.buffered_bytes += partition.take(data, broker_id)
        self._make_ready(partition)

    def _make_ready(self, partition: PartitionFetchState) -> None:
        """Let a partition with completed fetches have its turn; once, however many it has."""
        if not partition.is_ready:
            partition.is_ready = True
            self._ready.append(partition.where)

    def is_ready(self) -> bool:
        """Return whether `pop` may have something to return or to raise."""
        return bool(self._problems or self._ready) or any(self._is_truncation_due(where) for where in self._diverged)

    def has_completed_fetches(self) -> bool:
        """Return whether `pop` would return a completed fetch, and raise no error."""
        if self._problems or any(self._is_truncation_due(where) for where in self._diverged):
            return False
        return any(self.partitions[where].completed_fetches for where in self._ready)

    def _is_truncation_due(self, where: TopicPartition) -> bool:
        partition = self.partitions.get(where)
        return partition is not None and partition.has_diverged

    def deliver(self, where: TopicPartition, generation: int, position: int, leader_epoch: int) -> bool:
        """Note that the application receives the records below `position`; `False` means that it must not, as it has
        chosen another position since they were fetched.

        `leader_epoch` is that of the batch with the last one. Where a failure has rewound the partition meanwhile, what
        was received is not fetched again.
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

    # --- inside ---

    def _find_truncations(self, now_ms: int) -> None:
        """Fail partitions whose log was replaced, once all that was read before is delivered."""
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
        """Let a partition wait; a leader of an epoch over `leader_epoch` (-1: none) is tried at once."""
        partition.failures = failures or partition.failures + 1
        partition.failed_epoch = leader_epoch if leader_epoch >= 0 else ANY_EPOCH
        partition.retry_at_ms = now_ms + self._backoff.delay_ms(partition.failures, at_least_ms)
        self._waiting[partition.where] = None
        self.has_news = True

    def hold_off(self, partition: PartitionFetchState, leader_epoch: int, until_ms: int) -> None:
        """Let a partition wait here for which the broker had no room; a newer leader is tried at once."""
        partition.failed_epoch, partition.retry_at_ms = leader_epoch, until_ms
        self._waiting[partition.where] = None
        self.has_news = True

    def _rewind(self, partition: PartitionFetchState) -> None:
        """Drop what was fetched and begin again at the position, in a new generation."""
        self.buffered_bytes -= partition.buffered_bytes
        self._generation += 1
        partition.rewind(self._generation)
        self.has_news = True
