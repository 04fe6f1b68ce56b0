"""Where a reader stands in each partition, what to fetch next, and what has come. Pure: no I/O, no clock, no thread.

Shared by the blocking and the asyncio classes, whose owner holds a lock around every call. A partition is in at most
one fetch at a time, so an idle one, waiting in a long poll, holds up no other. Whatever changes a partition's position
from outside (a seek, a pause, an error) raises its generation: an answer of an older generation is dropped whole.

Only a leader's word decides what becomes of a position: whatever a nearer replica says that is not data sends the
partition back to its leader. A fetch that nobody answers is given up when metadata names a newer leader.

A position belongs to one life of its topic. Where the topic was deleted and created again the position is lost, and the
owner's policy decides where to go on, as for one that retention took.
"""

from collections import deque
from typing import NamedTuple

from headrace.client.base.call_counts import CallCounts
from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import LogTruncationError
from headrace.client.base.retry import Backoff, Overdue
from headrace.client.fetch.fetch_plan import FetchPlan, Wanted, fetch_plan
from headrace.client.fetch.partition_fetch_state import (
    ANY_EPOCH,
    NO_EPOCH,
    CompletedFetch,
    Corruption,
    Divergence,
    PartitionFetchState,
)
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.v1 import broker_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import (
    CorruptBatchError,
    HeadraceError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    TimedOutError,
    UnknownTopicIdError,
    from_detail,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import SplicedMessage

FETCHES_PER_BROKER = 8
"""Fetches in flight to one broker at most."""
PARTITIONS_BEHIND = 64
"""A fetch of more partitions asks first for so many that are known to have more: an answer has room for few, and the
broker would look at all of them each time."""
FETCHES_BEHIND = 2
"""Of such fetches so many are planned at once for a broker: one is answered while another is on its way."""

MAX_THROTTLE_MS = 60_000
"""No broker makes a reader wait for longer."""


class SubscriptionState:
    """The partitions that a consumer or reader reads. See the module for who may call it."""

    def __init__(self, config: FetchConfig, backoff: Backoff) -> None:
        self._config = config
        self._backoff = backoff
        self._partitions: dict[TopicPartition, PartitionFetchState] = {}
        self._turn: deque[TopicPartition] = deque()
        self._ready: deque[TopicPartition] = deque()
        self._problems: deque[tuple[TopicPartition, HeadraceError]] = deque()
        self._diverged: dict[TopicPartition, None] = {}
        self._lost: dict[TopicPartition, None] = {}
        self._waiting: dict[TopicPartition, None] = {}
        self._flying: dict[FetchPlan, Overdue] = {}
        self._in_flight: dict[int, int] = {}
        self._generation = 0
        self.buffered_bytes = 0
        self.counts = CallCounts()
        self.stale_topics: set[str] = set()
        """Topics whose metadata must be read again; the shell clears it when it has."""
        self.has_news = False
        """Whether something has changed from outside that the shell's engine should look at; it clears it."""

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
        self._partitions[where] = partition
        self._turn.append(where)
        self.has_news = True

    def drop(self, where: TopicPartition) -> None:
        """Stop reading a partition; nothing where it is not read."""
        partition = self._partitions.pop(where, None)
        if partition is not None:
            self.buffered_bytes -= partition.buffered_bytes
            self._turn.remove(where)
            if partition.is_ready:
                self._ready.remove(where)
            self.has_news = True

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

    def topic_id(self, where: TopicPartition) -> bytes:
        """Return the id of the topic that a position belongs to; empty: not known yet, or not read."""
        partition = self._partitions.get(where)
        return b"" if partition is None else partition.topic_id

    def generation(self, where: TopicPartition) -> int:
        """The generation of a partition; -1 where it is not read."""
        partition = self._partitions.get(where)
        return -1 if partition is None else partition.generation

    def seek(self, where: TopicPartition, offset: int, topic_id: bytes = b"") -> None:
        """Go on from `offset`, whatever batch is before it; what was fetched, or found wrong before, is dropped.

        `topic_id` is that of the life in which the offset was looked up; empty: in the newest one known.
        """
        partition = self._partitions[where]
        partition.seek(offset, topic_id)
        self._rewind(partition)
        partition.placed = partition.generation
        for problem in [each for each in self._problems if each[0] == where]:
            self._problems.remove(problem)

    def replaced(self, where: TopicPartition) -> tuple[bytes, bytes] | None:
        """Return the ids of the topic that a position belongs to and of the one that has its name; `None`: one topic.

        What is fetched and committed of the position is the old topic's.
        """
        partition = self._partitions.get(where)
        return (partition.topic_id, partition.replaced_by) if partition is not None and partition.replaced_by else None

    def rewind(self, where: TopicPartition, now_ms: int | None = None) -> None:
        """Fetch again what was not delivered; given the time, after a while."""
        self._rewind(self._partitions[where])
        if now_ms is not None:
            self._wait(self._partitions[where], NO_EPOCH, now_ms)

    def pause(self, where: TopicPartition) -> None:
        """Fetch and hand out nothing of a partition until `resume`."""
        partition = self._partitions[where]
        partition.paused = True
        self._rewind(partition)

    def resume(self, where: TopicPartition) -> None:
        """End a pause."""
        self._partitions[where].paused = False
        self.has_news = True

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

    def plan(self, cluster_metadata: ClusterMetadata, now_ms: int) -> list[FetchPlan]:
        """Say which fetches to start now; their partitions are in flight from here on."""
        if self.buffered_bytes >= self._config.prefetch_bytes:
            return []
        share = self._share()
        enough = PARTITIONS_BEHIND * FETCHES_BEHIND * cluster_metadata.broker_count()
        behind = seen = 0
        by_target: dict[tuple[int, bool], tuple[str, list[_Candidate]]] = {}
        for where in self._turn:
            if behind >= enough:  # The next plan looks on from here.
                break
            seen += 1
            partition = self._partitions[where]
            if not partition.is_wanted(share):
                continue
            target = self._target(partition, cluster_metadata, now_ms)
            if target is None or self._in_flight.get(target[0], 0) >= FETCHES_PER_BROKER:
                continue
            broker_id, address, epoch, from_leader = target
            names_rack = bool(self._config.client_rack) and partition.near.may_be_asked_for(now_ms)
            candidate = _Candidate(partition, epoch, from_leader)
            by_target.setdefault((broker_id, names_rack), (address, []))[1].append(candidate)
            behind += partition.is_behind
        self._turn.rotate(-1 if seen == len(self._turn) else -seen)
        plans = []
        for (broker_id, names_rack), (address, candidates) in by_target.items():
            for chosen in _fetches_of(candidates):
                if self._in_flight.get(broker_id, 0) >= FETCHES_PER_BROKER:
                    break
                self._in_flight[broker_id] = self._in_flight.get(broker_id, 0) + 1
                plan = fetch_plan(
                    self._config,
                    broker_id,
                    address,
                    [candidate.take_off() for candidate in chosen],
                    names_rack=names_rack,
                    transfer_address=cluster_metadata.transfer_address(broker_id),
                )
                self._flying[plan] = Overdue(now_ms, self._config.fetch_max_wait_ms)
                plans.append(plan)
        return plans

    def give_up_overdue(self, cluster_metadata: ClusterMetadata, now_ms: int) -> bool:
        """Drop overdue fetches from a nearer replica, or where there is a newer leader; see `pop`.

        For the others metadata is to be read. What a fetch that was given up brings later is dropped.
        """
        news = False
        for plan, overdue in list(self._flying.items()):
            if not overdue.is_due(now_ms):
                continue
            if all(part.from_leader and not _has_newer_leader(part, cluster_metadata) for part in plan.partitions):
                if overdue.takes_look(now_ms):
                    self.stale_topics.update(part.where.topic for part in plan.partitions)
                continue
            error = TimedOutError(f"broker {plan.broker_id} does not answer")
            news = self.take_failure(plan, error, cluster_metadata, now_ms) or news
        return news

    def next_retry_ms(self, now_ms: int) -> int | None:
        """Milliseconds until a partition that waits out a failure may be fetched again; None: none waits.

        One whose wait is over has been planned by now, or waits for something else.
        """
        for where in list(self._waiting):
            if where not in self._partitions or self._partitions[where].retry_at_ms <= now_ms:
                del self._waiting[where]
        waits = [self._partitions[where].retry_at_ms - now_ms for where in self._waiting]
        return min(waits, default=None)

    def take_answer(
        self, plan: FetchPlan, answer: SplicedMessage, cluster_metadata: ClusterMetadata, now_ms: int
    ) -> bool:
        """Take in what a fetch brought, a FetchResponse; whether there is something for the application."""
        if not self._end_flight(plan):
            return False
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
                    news = (
                        self._take_error(partition, part, from_detail(result.error), cluster_metadata, now_ms) or news
                    )
                elif result.HasField("diverged"):
                    news = self._take_diverged(partition, part, result.diverged, now_ms) or news
                else:
                    news = self._take_data(partition, plan, part, result, data, now_ms) or news
                    if answer.message.throttle_ms > 0 and not data:
                        self._hold_off(partition, part, now_ms + min(answer.message.throttle_ms, MAX_THROTTLE_MS))
        return news

    def take_failure(
        self, plan: FetchPlan, error: HeadraceError, cluster_metadata: ClusterMetadata, now_ms: int
    ) -> bool:
        """Take in that a fetch failed as a whole; whether there is something for the application."""
        if not self._end_flight(plan):
            return False
        news = False
        for part in plan.partitions:
            partition = self._partitions.get(part.where)
            if partition is not None and partition.generation == part.generation:
                if error.retriable and part.from_leader:
                    cluster_metadata.forget_leader(part.where, part.leader_epoch)
                news = self._take_error(partition, part, error, cluster_metadata, now_ms) or news
        return news

    def resets(self) -> list[TopicPartition]:
        """Partitions whose position is not in the log any more: the shell finds a new one, or says that it may not.

        Not before the application has received what was fetched.
        """
        found = []
        for where in list(self._lost):
            partition = self._partitions.get(where)
            if partition is None or not partition.needs_reset:
                del self._lost[where]
            elif partition.position >= partition.fetch_offset:
                found.append(where)
        return found

    def corruption_detected(self, completed: CompletedFetch, error: CorruptBatchError, now_ms: int) -> bool:
        """Note that the batch at the position failed its checksum; whether it is asked for again.

        Otherwise the error is the application's; when that goes on unchanged, the batch is asked for anew. The broker
        that sent it is told, and may refuse it from then on or resign.
        """
        partition = self._partitions.get(completed.where)
        if partition is None or partition.generation != completed.generation:
            return True
        if error.written_so:  # All replicas have it so: it is not asked for again, and no broker looks for corruption.
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
        self._wait(partition, NO_EPOCH, now_ms, failures=corruption.copies)
        return True

    def fail(self, where: TopicPartition, error: HeadraceError, now_ms: int) -> None:
        """Hand an error of a partition to the application, which is raised once; then the partition is tried again."""
        partition = self._partitions.get(where)
        if partition is not None:
            self._rewind(partition)
            self._wait(partition, NO_EPOCH, now_ms)
            self._problems.append((where, error))

    # --- handing out ---

    def pop(self, now_ms: int) -> CompletedFetch | None:
        """Return the next completed fetch, partitions in turn; None: there is nothing now.

        Raises:
            HeadraceError: an error of a partition; the others go on with the next call.
        """
        if self._diverged:
            self._find_truncations(now_ms)
        if self._problems:
            raise self._problems.popleft()[1]
        while self._ready:
            partition = self._partitions[self._ready.popleft()]
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
        """Whether nothing more of a partition is fetched until something is delivered."""
        return self.buffered_bytes >= self._config.prefetch_bytes or partition.buffered_bytes >= self._share()

    def _share(self) -> int:
        """How many bytes of one partition may be here."""
        return max(self._config.max_partition_fetch_bytes, self._config.prefetch_bytes // max(1, len(self._turn)))

    def _make_ready(self, partition: PartitionFetchState) -> None:
        """Let a partition with completed fetches have its turn; once, however many it has."""
        if not partition.is_ready:
            partition.is_ready = True
            self._ready.append(partition.where)

    def is_ready(self) -> bool:
        """Return whether `pop` may have something to return or to raise."""
        return bool(self._problems or self._ready) or any(self._is_truncation_due(where) for where in self._diverged)

    def has_completed_fetches(self) -> bool:
        """Whether `pop` would give a completed fetch, and no error."""
        if self._problems or any(self._is_truncation_due(where) for where in self._diverged):
            return False
        return any(self._partitions[where].completed_fetches for where in self._ready)

    def _is_truncation_due(self, where: TopicPartition) -> bool:
        partition = self._partitions.get(where)
        return partition is not None and partition.has_diverged

    def deliver(self, where: TopicPartition, generation: int, position: int, leader_epoch: int) -> bool:
        """Note that the application has received the records below `position`; False if it may not: the application has
        chosen another position since they were fetched.

        `leader_epoch` is that of the batch with the last one. Where a failure has rewound the partition meanwhile, what
        was received is not fetched again.
        """
        partition = self._partitions.get(where)
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

    def _target(
        self, partition: PartitionFetchState, cluster_metadata: ClusterMetadata, now_ms: int
    ) -> tuple[int, str, int, bool] | None:
        """Whom to ask: broker id, address, the leader epoch to name, whether it leads; None: nobody now."""
        topic_leaders = cluster_metadata.topic(partition.where.topic)
        leader = cluster_metadata.leader(partition.where)
        if partition.is_waiting(NO_EPOCH if leader is None else leader[2], now_ms):
            if partition.seeks_leader or leader is None:
                self.stale_topics.add(partition.where.topic)
            return None
        if topic_leaders is not None and partition.was_replaced(topic_leaders.topic_id, topic_leaders.answer):
            partition.needs_reset = True
            self._lost[partition.where] = None
            return None
        if leader is None or topic_leaders is None or partition.topic_id != topic_leaders.topic_id:
            self.stale_topics.add(partition.where.topic)
            return None
        broker_id, address, epoch = leader
        if partition.fetch_epoch > epoch:  # That one led before what was read was written: its log may lack it.
            self.stale_topics.add(partition.where.topic)
            return None
        near = partition.near
        if near.broker_id == broker_id:
            near.leave()  # It leads by now.
        if near.is_read(now_ms):
            near_address = cluster_metadata.address(near.broker_id)
            if near_address:
                return near.broker_id, near_address, epoch, False
            near.refused(now_ms)
        return broker_id, address, epoch, True

    def _end_flight(self, plan: FetchPlan) -> bool:
        """Take a fetch out of those in flight; whether it was there: one that was given up lands once more."""
        if self._flying.pop(plan, None) is None:
            return False
        self._in_flight[plan.broker_id] -= 1
        for part in plan.partitions:
            partition = self._partitions.get(part.where)
            if partition is not None and partition.generation == part.generation:
                partition.in_flight = False
        return True

    def _take_data(
        self,
        partition: PartitionFetchState,
        plan: FetchPlan,
        part: Wanted,
        result: broker_pb2.PartitionFetchResult,
        data: ReadableBuffer,
        now_ms: int,
    ) -> bool:
        partition.succeeded()
        partition.high_watermark = result.high_watermark
        partition.log_start_offset = result.log_start_offset
        if not part.from_leader:
            partition.near.answered(now_ms, data=bool(data))
        elif plan.request.rack and result.preferred_replica not in (-1, plan.broker_id):
            partition.near.offered(result.preferred_replica, now_ms, self._config.metadata_max_age_ms)
        if not data:
            return False
        self.buffered_bytes += partition.take(data, plan.broker_id)
        self._make_ready(partition)
        return True

    def _take_diverged(
        self, partition: PartitionFetchState, part: Wanted, diverged: broker_pb2.EpochEnd, now_ms: int
    ) -> bool:
        if not part.from_leader:
            partition.near.refused(now_ms)
            return False
        partition.divergence = Divergence(part.offset, diverged.leader_epoch, diverged.end_offset)
        self._diverged[partition.where] = None
        return True

    def _find_truncations(self, now_ms: int) -> None:
        """Say of partitions whose log was replaced that it was, once all that was read before is delivered."""
        for where in list(self._diverged):
            partition = self._partitions.get(where)
            divergence = None if partition is None else partition.divergence
            if partition is None or divergence is None:
                del self._diverged[where]
            elif partition.has_diverged:
                del self._diverged[where]
                error = LogTruncationError(
                    where, divergence.offset, partition.diverging_offset(), divergence.leader_epoch
                )
                self.fail(where, error, now_ms)

    def _take_error(
        self,
        partition: PartitionFetchState,
        part: Wanted,
        error: HeadraceError,
        cluster_metadata: ClusterMetadata,
        now_ms: int,
    ) -> bool:
        near = partition.near
        self.counts.errors[error.code] += 1
        if not part.from_leader:
            self.counts.retries += 1
            if isinstance(error, OffsetNotAvailableError) and near.lags():
                self._wait(partition, NO_EPOCH, now_ms, failures=near.tries)
            else:
                near.refused(now_ms)
            return False
        corruption = partition.corruption
        if corruption is not None and (error.retriable or isinstance(error, CorruptBatchError)):
            if corruption.is_hopeless(now_ms):
                partition.corruption = None
                self.fail(partition.where, corruption.error, now_ms)
                return True
        elif isinstance(error, OffsetOutOfRangeError):
            partition.needs_reset = True
            self._lost[partition.where] = None
            return False
        elif not error.retriable or (isinstance(error, UnknownTopicIdError) and partition.failures >= 3):
            self.fail(partition.where, error, now_ms)
            return True
        self.counts.retries += 1
        learned = error.leader is not None and cluster_metadata.learn_leader(partition.where, error.leader)
        if not learned:
            self.stale_topics.add(partition.where.topic)
        self._wait(partition, part.leader_epoch, now_ms, at_least_ms=error.retry_after_ms)
        partition.seeks_leader = not learned
        return False

    def _wait(
        self, partition: PartitionFetchState, leader_epoch: int, now_ms: int, *, failures: int = 0, at_least_ms: int = 0
    ) -> None:
        """Let a partition wait; a leader of an epoch over `leader_epoch` (-1: none) is tried at once."""
        partition.failures = failures or partition.failures + 1
        partition.failed_epoch = leader_epoch if leader_epoch >= 0 else ANY_EPOCH
        partition.retry_at_ms = now_ms + self._backoff.delay_ms(partition.failures, at_least_ms)
        self._waiting[partition.where] = None
        self.has_news = True

    def _hold_off(self, partition: PartitionFetchState, part: Wanted, until_ms: int) -> None:
        """Let a partition wait here that found no place to wait at the broker; a newer leader is asked at once."""
        partition.failed_epoch, partition.retry_at_ms = part.leader_epoch, until_ms
        self._waiting[partition.where] = None
        self.has_news = True

    def _rewind(self, partition: PartitionFetchState) -> None:
        """Drop what was fetched and begin again at the position, in a new generation."""
        self.buffered_bytes -= partition.buffered_bytes
        self._generation += 1
        partition.rewind(self._generation)
        self.has_news = True


class _Candidate(NamedTuple):
    """A partition that a fetch may ask for."""

    partition: PartitionFetchState
    leader_epoch: int
    from_leader: bool

    def take_off(self) -> Wanted:
        """Put it in flight, and say what is asked for."""
        partition = self.partition
        partition.in_flight = True
        return Wanted(
            partition.where,
            partition.topic_id,
            partition.generation,
            partition.fetch_offset,
            self.leader_epoch,
            partition.fetch_epoch,
            partition.corruption is not None and partition.fetch_offset == partition.position,
            self.from_leader,
        )


def _fetches_of(candidates: list[_Candidate]) -> list[list[_Candidate]]:
    """Part what is wanted of one broker: some that have more, whose fetches are answered at once, and idle ones."""
    if len(candidates) <= PARTITIONS_BEHIND:
        return [candidates]
    behind: list[_Candidate] = []
    idle: list[_Candidate] = []
    for candidate in candidates:
        (behind if candidate.partition.is_behind else idle).append(candidate)
    fetches = [behind[PARTITIONS_BEHIND * n : PARTITIONS_BEHIND * (n + 1)] for n in range(FETCHES_BEHIND)]
    return [fetch for fetch in (*fetches, idle) if fetch]


def _has_newer_leader(part: Wanted, cluster_metadata: ClusterMetadata) -> bool:
    leader = cluster_metadata.leader(part.where)
    return leader is not None and leader[2] > part.leader_epoch
