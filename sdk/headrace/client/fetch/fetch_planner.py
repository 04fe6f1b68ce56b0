"""Planning of fetches and processing of their responses. Pure: no I/O, no clock, no thread.

Only a leader's response can move a position: after a response without data from a nearer replica, the partition is
fetched from its leader. A fetch without a response is abandoned when metadata names a newer leader.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.client.base.config import FetchConfig
from headrace.client.base.retry import Overdue
from headrace.client.fetch.fetch_plan import FetchPlan, Wanted, fetch_plan
from headrace.client.fetch.partition_fetch_state import NO_EPOCH, Divergence, PartitionFetchState
from headrace.client.fetch.subscription_state import SubscriptionState
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
"""Maximum number of fetches in flight to one broker."""
PARTITIONS_BEHIND = 64
"""Maximum number of partitions with unread records in a fetch, while responses have room for all of them."""
FEWEST_BEHIND = 8
"""Least to which it falls while responses have room for fewer: broker and client examine the others in vain."""
FETCHES_BEHIND = 2
"""Number of fetches planned at once for such partitions of a broker: one is served while another is in transit."""

FAST_S = 2.0
"""Time for a response of a fast connection. On a slow one, two at a time would exceed their timeout."""

MAX_THROTTLE_MS = 60_000
"""Upper bound on the throttle time that a reader accepts from a broker."""


class FetchPlanner:
    """Planner of one `FetchEngine`. A partition is in at most one fetch; an idle long poll delays no other."""

    def __init__(self, config: FetchConfig, positions: SubscriptionState, cluster_metadata: ClusterMetadata) -> None:
        self._config = config
        self._has_place = bool(config.client_rack or config.client_data_center)
        self._positions = positions
        self._cluster_metadata = cluster_metadata
        self._flying: dict[FetchPlan, Overdue] = {}
        self._partitions_behind = PARTITIONS_BEHIND
        """Twice as many as the last responses had room for, within `FEWEST_BEHIND` and `PARTITIONS_BEHIND`."""
        self._in_flight: dict[int, int] = {}
        """Number of fetches by broker."""
        self.is_fast = False
        """Whether the last response took less than `FAST_S`: the next one may be requested while one arrives."""
        self.stale_topics: set[str] = set()
        """Topics whose metadata must be read again; the engine clears it afterwards."""

    # --- which fetches start ---

    def plan(self, now_ms: int) -> list[FetchPlan]:
        """Return the fetches to start now; their partitions are marked as in flight."""
        if self._positions.buffered_bytes >= self._config.prefetch_bytes:
            return []
        share = self._positions.share()
        enough = self._partitions_behind * FETCHES_BEHIND * self._cluster_metadata.broker_count()
        behind = seen = 0
        by_target: dict[tuple[int, bool], tuple[str, list[_Candidate]]] = {}
        for where in self._positions.turn:
            if behind >= enough:  # The next plan continues from here.
                break
            seen += 1
            partition = self._positions.partitions[where]
            if not partition.is_wanted(share):
                continue
            target = self._target(partition, now_ms)
            if target is None or self._in_flight.get(target[0], 0) >= FETCHES_PER_BROKER:
                continue
            broker_id, address, epoch, from_leader = target
            names_place = self._has_place and partition.near.may_be_asked_for(now_ms)
            candidate = _Candidate(partition, epoch, from_leader)
            by_target.setdefault((broker_id, names_place), (address, []))[1].append(candidate)
            behind += partition.is_behind
        self._positions.turn.rotate(-1 if seen == len(self._positions.turn) else -seen)
        plans = []
        for (broker_id, names_place), (address, candidates) in by_target.items():
            for chosen in _fetches_of(candidates, self._partitions_behind):
                if self._in_flight.get(broker_id, 0) >= FETCHES_PER_BROKER:
                    break
                plan = fetch_plan(
                    self._config,
                    broker_id,
                    address,
                    [candidate.take_off() for candidate in chosen],
                    names_place=names_place,
                    selection=self._positions.selection,
                )
                self._start(plan, now_ms)
                plans.append(plan)
        return plans

    def give_up_overdue(self, now_ms: int) -> bool:
        """Drop overdue fetches that read a nearer replica or whose partition has a newer leader; see `pop`.

        For the others, metadata must be read. A late response to a dropped fetch is ignored.
        """
        news = False
        for plan, overdue in list(self._flying.items()):
            if not overdue.is_due(now_ms):
                continue
            if all(part.from_leader and not self._has_newer_leader(part) for part in plan.partitions):
                if overdue.takes_look(now_ms):
                    self.stale_topics.update(part.where.topic for part in plan.partitions)
                continue
            error = TimedOutError(f"broker {plan.broker_id} does not respond")
            news = self.take_failure(plan, error, now_ms) or news
        return news

    def _target(self, partition: PartitionFetchState, now_ms: int) -> tuple[int, str, int, bool] | None:
        """Return broker id, address, leader epoch to send, and whether it leads; `None` if no broker is available."""
        topic_leaders = self._cluster_metadata.topic(partition.where.topic)
        leader = self._cluster_metadata.leader(partition.where)
        if partition.is_waiting(NO_EPOCH if leader is None else leader[2], now_ms):
            if partition.seeks_leader or leader is None:
                self.stale_topics.add(partition.where.topic)
            return None
        if topic_leaders is not None and partition.was_replaced(topic_leaders.topic_id, topic_leaders.answer):
            self._positions.lose(partition)
            return None
        if leader is None or topic_leaders is None or partition.topic_id != topic_leaders.topic_id:
            self.stale_topics.add(partition.where.topic)
            return None
        broker_id, address, epoch = leader
        if partition.fetch_epoch > epoch:  # It led before the fetched records were written: its log may lack them.
            self.stale_topics.add(partition.where.topic)
            return None
        near = partition.near
        if near.broker_id == broker_id:
            near.leave()  # It is the leader now.
        if near.is_read(now_ms):
            near_address = self._cluster_metadata.address(near.broker_id)
            if near_address:
                return near.broker_id, near_address, epoch, False
            near.refused(now_ms)
        return broker_id, address, epoch, True

    def _has_newer_leader(self, part: Wanted) -> bool:
        leader = self._cluster_metadata.leader(part.where)
        return leader is not None and leader[2] > part.leader_epoch

    def plan_behind(self, plan: FetchPlan, response: broker_pb2.FetchResponse, now_ms: int) -> list[FetchPlan]:
        """Return a fetch that continues behind a response whose batches are still arriving, or nothing.

        `response` has where the next records are, so the broker sends them while these arrive and are processed. A
        partition that it has no batches of (there was no room) is included as it is.
        """
        if plan not in self._flying or not self.is_fast or self._in_flight[plan.broker_id] >= FETCHES_PER_BROKER:
            return []
        if self._positions.buffered_bytes >= self._config.prefetch_bytes:
            return []
        share, fetch_bytes = self._positions.share(), self._config.max_partition_fetch_bytes
        parts = []
        for part, result in _results_of(plan, response):
            partition = None if part is None else self._positions.partitions.get(part.where)
            if part is None or partition is None or partition.generation != part.generation or not part.from_leader:
                continue
            if result.HasField("error") or result.HasField("diverged") or self._has_newer_leader(part):
                continue
            offset, last_epoch, fetches = part.offset, part.last_epoch, partition.fetches
            if result.batches_size:
                offset, last_epoch, fetches = result.next_offset, result.last_epoch, fetches + 1
            is_behind = part.offset <= offset < result.high_watermark
            if is_behind and partition.wants_behind(offset, fetches * fetch_bytes, share):
                partition.fetches += 1
                parts.append(part._replace(offset=offset, last_epoch=last_epoch, corruption_detected=False))
        if not parts:
            return []
        following = fetch_plan(self._config, plan.broker_id, plan.address, parts, selection=self._positions.selection)
        self._start(following, now_ms)
        return [following]

    def _start(self, plan: FetchPlan, now_ms: int) -> None:
        self._in_flight[plan.broker_id] = self._in_flight.get(plan.broker_id, 0) + 1
        self._flying[plan] = Overdue(now_ms, self._config.fetch_max_wait_ms)

    # --- responses ---

    def take_answer(self, plan: FetchPlan, answer: SplicedMessage, now_ms: int) -> bool:
        """Process a FetchResponse; return whether the application has something to receive."""
        if not self._end_flight(plan):
            return False
        news = False
        filled, had_room = 0, True
        for (part, result), (data,) in zip(_results_of(plan, answer.message), answer.batches, strict=True):
            partition = None if part is None else self._current(part)
            if part is None or partition is None:
                continue
            if result.HasField("error"):
                news = self._take_error(partition, part, from_detail(result.error), now_ms) or news
            elif result.HasField("diverged"):
                news = self._take_diverged(partition, part, result.diverged, now_ms) or news
            else:
                news = self._take_data(partition, plan, part, result, data, now_ms) or news
                filled += bool(data)
                had_room = had_room and (bool(data) or not partition.is_behind)
                if answer.message.throttle_ms > 0 and not data:
                    until_ms = now_ms + min(answer.message.throttle_ms, MAX_THROTTLE_MS)
                    self._positions.hold_off(partition, part.leader_epoch, until_ms)
        if filled >= self._partitions_behind or (filled and not had_room):
            self._partitions_behind = min(PARTITIONS_BEHIND, max(FEWEST_BEHIND, 2 * filled))
        return news

    def _current(self, part: Wanted) -> PartitionFetchState | None:
        """Return the partition of a response; `None` if its position was changed, or the fetch before it has failed."""
        partition = self._positions.partitions.get(part.where)
        if partition is None or partition.generation != part.generation or partition.fetch_offset != part.offset:
            return None
        return partition

    def take_failure(self, plan: FetchPlan, error: HeadraceError, now_ms: int) -> bool:
        """Process the failure of a whole fetch; return whether the application has something to receive."""
        if not self._end_flight(plan):
            return False
        news = False
        for part in plan.partitions:
            partition = self._current(part)
            if partition is not None:
                if error.retriable and part.from_leader:
                    self._cluster_metadata.forget_leader(part.where, part.topic_id, part.leader_epoch)
                news = self._take_error(partition, part, error, now_ms) or news
        return news

    def _end_flight(self, plan: FetchPlan) -> bool:
        """Remove a fetch from those in flight; return `False` if it was already dropped."""
        if self._flying.pop(plan, None) is None:
            return False
        self._in_flight[plan.broker_id] -= 1
        for part in plan.partitions:
            partition = self._positions.partitions.get(part.where)
            if partition is not None and partition.generation == part.generation:
                partition.fetches -= 1
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
        elif (plan.request.rack or plan.request.data_center) and result.preferred_replica not in (-1, plan.broker_id):
            partition.near.offered(result.preferred_replica, now_ms, self._config.metadata_max_age_ms)
        if not data:
            return False
        self._positions.receive(partition, data, plan.broker_id)
        return True

    def _take_diverged(
        self, partition: PartitionFetchState, part: Wanted, diverged: broker_pb2.EpochEnd, now_ms: int
    ) -> bool:
        if not part.from_leader:
            partition.near.refused(now_ms)
            return False
        self._positions.diverge(partition, Divergence(part.offset, diverged.leader_epoch, diverged.end_offset))
        return True

    def _take_error(self, partition: PartitionFetchState, part: Wanted, error: HeadraceError, now_ms: int) -> bool:
        near = partition.near
        self._positions.counts.errors[error.code] += 1
        if not part.from_leader:
            self._positions.counts.retries += 1
            if isinstance(error, OffsetNotAvailableError) and near.lags():
                self._positions.back_off(partition, NO_EPOCH, now_ms, failures=near.tries)
            else:
                near.refused(now_ms)
            return False
        corruption = partition.corruption
        if corruption is not None and (error.retriable or isinstance(error, CorruptBatchError)):
            if corruption.is_hopeless(now_ms):
                partition.corruption = None
                self._positions.fail(partition.where, corruption.error, now_ms)
                return True
        elif isinstance(error, OffsetOutOfRangeError):
            self._positions.lose(partition)
            return False
        elif not error.retriable or (isinstance(error, UnknownTopicIdError) and partition.failures >= 3):
            self._positions.fail(partition.where, error, now_ms)
            return True
        self._positions.counts.retries += 1
        hint = error.leader
        learned = hint is not None and self._cluster_metadata.learn_leader(part.where, part.topic_id, hint)
        if not learned:
            self.stale_topics.add(partition.where.topic)
        self._positions.back_off(partition, part.leader_epoch, now_ms, at_least_ms=error.retry_after_ms)
        partition.seeks_leader = not learned
        return False


class _Candidate(NamedTuple):
    """Partition that can be included in a fetch."""

    partition: PartitionFetchState
    leader_epoch: int
    from_leader: bool

    def take_off(self) -> Wanted:
        """Count the fetch of the partition; return its part of the request."""
        partition = self.partition
        partition.fetches += 1
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


def _results_of(
    plan: FetchPlan, response: broker_pb2.FetchResponse
) -> Iterator[tuple[Wanted | None, broker_pb2.PartitionFetchResult]]:
    """Yield the results of a response in order, each with its partition of the plan; `None` if it has none."""
    wanted = {part.where: part for part in plan.partitions}
    names = {part.topic_id: part.where.topic for part in plan.partitions}
    for topic in response.topics:
        name = topic.name or names.get(topic.topic_id, "")
        for result in topic.partitions:
            yield wanted.get(TopicPartition(name, result.partition)), result


def _fetches_of(candidates: list[_Candidate], most_behind: int) -> list[list[_Candidate]]:
    """Divide the candidates of one broker: those with unread records, whose fetches return at once, and idle ones."""
    if len(candidates) <= most_behind:
        return [candidates]
    behind: list[_Candidate] = []
    idle: list[_Candidate] = []
    for candidate in candidates:
        (behind if candidate.partition.is_behind else idle).append(candidate)
    fetches = [behind[most_behind * n : most_behind * (n + 1)] for n in range(FETCHES_BEHIND)]
    return [fetch for fetch in (*fetches, idle) if fetch]
