"""What all calls share: deadlines, reading one's own writes, errors next to other results.

Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.v1 import errors_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, to_detail
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.metrics import CoordinatorMetrics

ANSWER_MARGIN_SECONDS = 0.1
"""What is left of the caller's time for the answer itself."""


class AnswerWithError(Protocol):
    """A message that has room for an error."""

    @property
    def error(self) -> errors_pb2.ErrorDetail:
        """What went wrong with this one."""


class Answers:
    """Helps the classes that answer calls."""

    def __init__(self, prefix_view: PrefixView, metrics: CoordinatorMetrics, *, default_timeout_ms: int) -> None:
        self._prefix_view = prefix_view
        self._metrics = metrics
        self._default_timeout_ms = default_timeout_ms

    def deadline(self, timeout_ms: int, seconds_left: float) -> float:
        """When to end, in loop time: the request's own timeout, and in any case before the caller gives up.

        Raises:
            InvalidRequestError: `timeout_ms` is negative.
        """
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms = {timeout_ms} is negative")
        wanted = (timeout_ms or self._default_timeout_ms) / 1000
        margin = min(ANSWER_MARGIN_SECONDS, seconds_left / 10)
        return asyncio.get_running_loop().time() + min(wanted, seconds_left - margin)

    async def see(self, revision: int, deadline: float) -> None:
        """Wait until this coordinator's own view shows what was written (read your writes); 0: nothing was.

        Raises:
            TimedOutError: not in time; it is written all the same.
        """
        if revision:
            await self._prefix_view.wait_for(revision, max(0.0, deadline - asyncio.get_running_loop().time()))

    def put_error(self, answer: AnswerWithError, error: HeadraceError) -> None:
        """Put an error into one answer among others, and count it."""
        answer.error.CopyFrom(to_detail(error))
        self._metrics.answer_errors.labels(error.code.name).inc()
