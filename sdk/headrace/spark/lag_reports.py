"""Publishing where a stream is, so that `headrace group list --observed` and `headrace group lag` show it.

Nothing depends on it: Spark's checkpoint alone decides where a stream goes on.
"""

import logging
import time
from collections.abc import Mapping

from headrace.client.admin.admin import Admin
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.spark")

LEAST_INTERVAL_S = 1.0
IDLE_INTERVAL_S = 10.0
"""A stream at rest says where it is so often, lest it be forgotten."""
EXPIRE_MS = 60_000


class LagReports:
    """The reports of one stream. For one thread."""

    def __init__(self, admin: Admin, group: str) -> None:
        """`group` names the stream; empty: nothing is reported."""
        self._admin = admin
        self._group = group
        self._positions: dict[TopicPartition, int] = {}
        self._is_news = False
        self._reported_at = -IDLE_INTERVAL_S
        self._failing = False

    def done(self, positions: Mapping[TopicPartition, int]) -> None:
        """Take note of the next record of each partition; said at once unless something was said just now."""
        self._positions = dict(positions)
        self._is_news = True
        self._report_after(LEAST_INTERVAL_S)

    def idle(self) -> None:
        """See to what was not said yet, or long ago; called now and then."""
        self._report_after(LEAST_INTERVAL_S if self._is_news else IDLE_INTERVAL_S)

    def _report_after(self, interval_s: float) -> None:
        now = time.monotonic()
        if not self._group or not self._positions or now - self._reported_at < interval_s:
            return
        self._reported_at = now
        try:
            self._admin.report_positions(self._group, self._positions, expire_ms=EXPIRE_MS, timeout=LEAST_INTERVAL_S)
            self._is_news = self._failing = False
        except HeadraceError as error:
            if not self._failing:
                log.warning("the stream's positions cannot be reported as %s: %s", self._group, error)
            self._failing = True
