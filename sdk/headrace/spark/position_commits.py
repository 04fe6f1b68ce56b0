"""Commits of a stream's positions to a group without members, so that `headrace group describe` shows its lag.

For observation only: Spark's checkpoint determines where a stream continues.
"""

import logging
import time
from collections.abc import Mapping

from headrace.client.admin.admin import Admin
from headrace.client.fetch.position_commits import CommittedPositions
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.spark")

LEAST_INTERVAL_S = 1.0
IDLE_INTERVAL_S = 3_600.0
"""Time after which an idle stream commits its positions again, because they would expire."""


class StreamCommits:
    """Commits of one stream. For one thread."""

    def __init__(self, admin: Admin, group: str) -> None:
        """`group` is the group id; empty disables commits."""
        self._admin = admin
        self._group = group
        self._positions: dict[TopicPartition, int] = {}
        self._committed = CommittedPositions(group, log)
        self._is_due = False
        self._committed_at = -IDLE_INTERVAL_S

    def done(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the next record of each partition, unless the last commit was recent."""
        self._positions = dict(positions)
        self._is_due = True
        self._commit_after(LEAST_INTERVAL_S)

    def idle(self) -> None:
        """Commit positions that are not committed, or were committed long ago; called periodically."""
        self._commit_after(LEAST_INTERVAL_S if self._is_due else IDLE_INTERVAL_S)

    def _commit_after(self, interval_s: float) -> None:
        now = time.monotonic()
        if not self._group or not self._positions or now - self._committed_at < interval_s:
            return
        self._committed_at = now
        moved = self._committed.moved(self._positions) or self._positions
        problem: HeadraceError | None
        try:
            problem = self._committed.take(
                self._admin.reset_group_offsets(self._group, moved, timeout=LEAST_INTERVAL_S)
            )
        except HeadraceError as error:
            problem = error
        self._committed.end_round(problem)
        self._is_due = problem is not None
