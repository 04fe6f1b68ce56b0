"""Decisions of a reader's background: fetches to start, metadata to read, new positions after lost ones.

Pure: no thread, lock, loop, clock or logging. `FetchManager` owns one and calls it under its lock, with the time in
milliseconds of the monotonic clock.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import TopicRecreatedError
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.client.fetch.fetch_plan import FetchPlan
from headrace.client.fetch.fetch_planner import FetchPlanner
from headrace.client.fetch.offset_resets import position_after
from headrace.client.fetch.subscription_state import SubscriptionState
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.v1 import cluster_pb2
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition


class Turn(NamedTuple):
    """Work that is due in the background."""

    plans: list[FetchPlan]
    """Fetches to start."""
    refreshes: bool
    """Whether metadata must be read."""
    lost: list[TopicPartition]
    """Partitions whose position is outside their log."""
    idle_seconds: float
    """Longest time until the next turn if nothing is due."""
    is_ready: bool
    """Whether the application has something to receive."""


class OffsetReset(NamedTuple):
    """Look-up of a new position for one partition."""

    where: TopicPartition
    topic_id: bytes
    """Id of the incarnation of the topic in which to look; empty means any."""
    replaced: tuple[bytes, bytes] | None
    """Ids of the old and the new topic if the topic was created again, else `None`."""


class FetchEngine:
    """State of the background of one `FetchManager`."""

    def __init__(self, config: FetchConfig, backoff: Backoff, auto_offset_reset: str, now_ms: int) -> None:
        """`auto_offset_reset` is earliest, latest or error."""
        self._config = config
        self._backoff = backoff
        self._auto_offset_reset = auto_offset_reset
        self._metadata_failures = 0
        self._look_at_ms = 0
        self.metadata_at_ms = 0
        """Time of the next metadata request."""
        self.cluster_metadata = ClusterMetadata()
        self.topics: set[str] = set()
        """Topics whose metadata is refreshed."""
        self.grows_with: Collection[str] = ()
        """Topics whose new partitions are read too."""
        self.raise_on_unknown_topic = True
        """Whether the deletion of a topic is raised to the application."""
        self.positions = SubscriptionState(config, backoff)
        self.fetches = FetchPlanner(config, self.positions, self.cluster_metadata)
        self.last_error: HeadraceError | None = None
        """The error of the last attempt to read metadata, or `None` if it succeeded."""
        self.last_answer_ms = now_ms

    def turn(self, now_ms: int) -> Turn:
        """Return what is due now."""
        positions = self.positions
        positions.has_news = False
        is_ready = self.fetches.give_up_overdue(now_ms)
        plans = self.fetches.plan(now_ms)
        lost = positions.resets()
        waits = [self.metadata_at_ms - now_ms, OVERDUE_MS // 2]  # Calls in flight are checked in between.
        if self.fetches.stale_topics:
            waits.append(self._look_at_ms - now_ms)
        retry_ms = positions.next_retry_ms(now_ms)
        if retry_ms is not None:
            waits.append(retry_ms)
        return Turn(plans, self._refreshes(now_ms), lost, max(1, min(waits)) / 1000, is_ready)

    def _refreshes(self, now_ms: int) -> bool:
        return now_ms >= self.metadata_at_ms or (bool(self.fetches.stale_topics) and now_ms >= self._look_at_ms)

    def land(
        self, plan: FetchPlan, answer: Any, error: HeadraceError | None, now_ms: int
    ) -> tuple[list[FetchPlan], bool]:
        """Process the end of a fetch; return fetches to start, and whether the application has something to receive."""
        if error is not None:
            is_ready = self.fetches.take_failure(plan, error, now_ms)
        else:
            self.last_answer_ms = now_ms
            is_ready = self.fetches.take_answer(plan, answer, now_ms)
        return self.fetches.plan(now_ms), is_ready

    # --- metadata ---

    def take_metadata(self, answer: cluster_pb2.GetMetadataResponse, topics: set[str], now_ms: int) -> bool:
        """Process the periodic metadata of `topics`; return whether the application has something to receive."""
        self.cluster_metadata.update(answer)
        self.fetches.stale_topics.clear()
        self._metadata_failures = 0
        self.metadata_at_ms = now_ms + self._config.metadata_max_age_ms
        self._look_at_ms = now_ms + self._backoff.look_delay_ms()
        self.last_error = None
        has_ended = self.fetches.give_up_overdue(now_ms)
        return self._fail_missing(topics, now_ms) or has_ended

    def metadata_failed(self, error: HeadraceError, now_ms: int) -> None:
        """Process a metadata request to which no server responded."""
        self._metadata_failures += 1
        delay_ms = self._backoff.delay_ms(self._metadata_failures, error.retry_after_ms)
        self.metadata_at_ms = self._look_at_ms = now_ms + delay_ms
        self.last_error = error

    def added_partitions(self) -> dict[str, list[int]]:
        """Return the partitions that were added to topics of `grows_with`."""
        found = {}
        for name in sorted(self.topics.intersection(self.grows_with)):
            leaders = self.cluster_metadata.topic(name)
            count = 0 if leaders is None else leaders.partitions
            new = [number for number in range(count) if TopicPartition(name, number) not in self.positions]
            if new:
                found[name] = new
        return found

    def _fail_missing(self, topics: set[str], now_ms: int) -> bool:
        """Fail the partitions of topics that were deleted."""
        has_failed = False
        for where in self.positions.assigned():
            error = self.cluster_metadata.error(where.topic) if where.topic in topics else None
            if error is not None and not error.retriable and self.raise_on_unknown_topic:
                self.positions.fail(where, error, now_ms)
                has_failed = True
        return has_failed

    # --- lost positions ---

    def begin_reset(self, where: TopicPartition, now_ms: int) -> OffsetReset | None:
        """Return the look-up that a lost position needs, or `None` if it needs none.

        A group member needs none for a re-created topic, because the group assigns the partition again.
        """
        replaced = self.positions.replaced(where)
        if replaced is None:
            return OffsetReset(where, self.positions.topic_id(where), None)
        if not self.raise_on_unknown_topic:
            self.positions.rewind(where, now_ms)
        elif self._auto_offset_reset == "error":
            self.positions.fail(where, TopicRecreatedError(where, self.positions.position(where), *replaced), now_ms)
        else:
            return OffsetReset(where, replaced[1], replaced)
        return None

    def end_reset(self, reset: OffsetReset, earliest: int, latest: int, now_ms: int) -> tuple[int, int] | None:
        """Process the bounds of the log; return the old and the new position, or `None` if it does not move."""
        where = reset.where
        if where not in self.positions or (reset.replaced and self.positions.replaced(where) != reset.replaced):
            return None
        position = self.positions.position(where)
        if reset.replaced:
            target: int | HeadraceError = earliest if self._auto_offset_reset == "earliest" else latest
        else:
            target = position_after(where, position, earliest, latest, self._auto_offset_reset)
        if isinstance(target, HeadraceError):
            self.positions.fail(where, target, now_ms)
            return None
        if not reset.replaced and target == position:  # It is in the log again: another replica has responded.
            self.positions.rewind(where, now_ms)
            return None
        self.positions.seek(where, target, reset.topic_id if reset.replaced else b"")
        return position, target
