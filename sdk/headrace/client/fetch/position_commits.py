"""Commits of the positions of a reader without a group, every few seconds, so that its lag can be observed. No I/O.

The commits are for observation only: nothing reads them. A failed commit delays neither a record nor a close; the next
one replaces it. After a permanent refusal, such as by a group with members, commits stop with a warning.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from headrace.client.admin.groups import OffsetResult, commit_requests, commit_results
from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Operation, Pause
from headrace.client.base.records import DecodedBatch
from headrace.client.base.request_ids import request_id_scope
from headrace.client.fetch.subscription_state import SubscriptionState
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.wire.errors import GroupNotEmptyError, HeadraceError, InternalError, InvalidRequestError
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.fetch.fetch_manager import FetchManager

log = logging.getLogger("headrace.consumer")

INTERVAL_S = 5.0
"""Time between two commits."""
UNCHANGED_INTERVALS = 720
"""Number of intervals (one hour) after which unchanged positions are committed again, because they would expire."""
CALL_TIMEOUT_S = 5.0


class Iterated(Protocol):
    """Decoded batch under iteration: its position is ahead of that in `SubscriptionState`."""

    @property
    def decoded(self) -> DecodedBatch:
        """The batch."""

    def is_current(self, positions: SubscriptionState) -> bool:
        """Return whether the partition's position was not moved by anything else."""

    def position(self) -> int:
        """Return the offset after the last delivered record."""


class CommittedPositions:
    """Positions committed by one reader. Logs one warning each time that its commits begin to fail. No I/O."""

    def __init__(self, group: str, logger: logging.Logger) -> None:
        self._group = group
        self._log = logger
        self._committed: dict[TopicPartition, int] = {}
        self._is_failing = False

    def moved(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the positions that are not committed."""
        return {where: offset for where, offset in positions.items() if self._committed.get(where) != offset}

    def take(self, results: Iterable[OffsetResult]) -> HeadraceError | None:
        """Record the results of a commit; return the first refusal."""
        problem: HeadraceError | None = None
        for topic, partition, offset, error in results:
            if error is None:
                self._committed[TopicPartition(topic, partition)] = offset
            problem = problem or error
        return problem

    def end_round(self, problem: HeadraceError | None) -> None:
        """Record the result of a round of commits; log the first of several failures."""
        if problem is not None and not self._is_failing:
            self._log.warning("positions could not be committed to group %r, trying again: %s", self._group, problem)
        self._is_failing = problem is not None


class PositionCommits:
    """Committer owned by one thread or task; not shared."""

    def __init__(self, config: FetchConfig) -> None:
        self._group = config.commit_group
        self._calls = BootstrapClient(config)
        self._committed = CommittedPositions(config.commit_group, log)
        self._unchanged = 0
        self.is_over = False
        """Whether commits under this group id have stopped for good."""

    def commit(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> Operation[None]:
        """Commit positions that changed, and periodically all of them.

        Raises:
            ClosedError: If the reader was closed in the meantime.
        """
        self._unchanged += 1
        moved = self._committed.moved(positions)
        if not moved and self._unchanged >= UNCHANGED_INTERVALS:
            moved = dict(positions)
        problem: HeadraceError | None = None
        try:
            for request, some in commit_requests(self._group, moved, None, topic_ids):
                response = yield from self._calls.coordinator(
                    "CommitOffsets", request, CALL_TIMEOUT_S, group_id=self._group
                )
                results = commit_results(response, {where: moved[where] for where in some})
                if any(result.error is None for result in results):
                    self._unchanged = 0
                problem = self._committed.take(results) or problem
        except ClosedError:
            raise
        except (GroupNotEmptyError, InvalidRequestError) as error:
            log.warning("positions are not committed to group %r: %s", self._group, error)
            self.is_over = True
            return
        except HeadraceError as error:
            problem = error
        self._committed.end_round(problem)


def commit_positions(fetcher: "FetchManager", config: FetchConfig) -> Operation[None]:
    """Commit until the reader is closed; a failure here does not stop reading."""
    commits = PositionCommits(config)
    try:
        while not commits.is_over:
            with fetcher.changing() as positions:
                now = _current(positions, fetcher.cursor)
            with request_id_scope():
                yield from commits.commit(*now)
            yield Pause(INTERVAL_S)
    except (ClosedError, InternalError):  # The reader is closed or has failed.
        return
    except Exception:
        log.exception("the positions for group %r are no longer committed", config.commit_group)


def _current(
    positions: SubscriptionState, cursor: Iterated | None
) -> tuple[dict[TopicPartition, int], dict[str, bytes]]:
    """Return the application's positions, and the ids of the topics that are known."""
    offsets = {where: positions.position(where) for where in positions.assigned()}
    if cursor is not None and cursor.is_current(positions):
        offsets[cursor.decoded.source] = cursor.position()
    offsets = {where: offset for where, offset in offsets.items() if not positions.replaced(where)}
    ids = {where.topic: positions.topic_id(where) for where in offsets}
    return offsets, {name: topic_id for name, topic_id in ids.items() if topic_id}
