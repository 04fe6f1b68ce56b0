"""Where a reader without a group stands, told to the coordinators every few seconds, so that it has a lag. No I/O.

For observation only: a report that fails is not made good, waits for nothing and stops no reading; the next one
replaces it. A name that a group has is given up, with a warning.
"""

import logging
from collections.abc import Mapping

from headrace.client.admin.groups import report_request
from headrace.client.base.config import FetchConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Operation
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.wire.errors import ConflictError, HeadraceError, InvalidRequestError
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")

INTERVAL_S = 5.0
"""Between two looks at the positions."""
UNCHANGED_INTERVALS = 3
"""Positions that have not moved are reported again after so many looks, or they would be forgotten."""
EXPIRE_MS = 60_000
"""Coordinators forget a reader that has reported nothing for so long."""
CALL_TIMEOUT_S = 5.0


class PositionReports:
    """Owned by the thread or task that reports; nobody else touches it."""

    def __init__(self, config: FetchConfig) -> None:
        self._name = config.report_positions_as
        self._calls = BootstrapClient(config)
        self._reported: dict[TopicPartition, int] | None = None
        self._unchanged = 0
        self._is_failing = False
        self.is_over = False
        """The name cannot be used: there is nothing more to report."""

    def look(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> Operation[None]:
        """Report the positions of this moment where that is due.

        Raises:
            ClosedError: the reader was closed meanwhile.
        """
        now = dict(positions)
        self._unchanged = self._unchanged + 1 if now == self._reported else 0
        if not now or self._unchanged % UNCHANGED_INTERVALS:
            return
        request = report_request(self._name, now, EXPIRE_MS, topic_ids)
        try:
            yield from self._calls.group("ReportPositions", self._name, request, CALL_TIMEOUT_S)
        except ClosedError:
            raise
        except (ConflictError, InvalidRequestError) as error:
            log.warning("positions are not reported as %r: %s", self._name, error)
            self.is_over = True
        except HeadraceError as error:
            if not self._is_failing:
                log.warning("positions could not be reported as %r, which goes on: %s", self._name, error)
            self._is_failing, self._reported = True, None
        else:
            self._is_failing, self._reported = False, now
