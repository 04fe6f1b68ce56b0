"""Shared parts of all calls: deadlines, read-your-writes, errors of single results. Belongs to the event loop."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.v1 import errors_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, to_detail
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.metrics import CoordinatorMetrics

ANSWER_MARGIN_SECONDS = 0.1
"""Part of the caller's timeout that is reserved for the response."""


class AnswerWithError(Protocol):
    """Result message with a field for an error."""

    @property
    def error(self) -> errors_pb2.ErrorDetail:
        """Error of this result."""


class Answers:
    """Deadlines, waits and errors of the request classes."""

    def __init__(self, prefix_view: PrefixView, metrics: CoordinatorMetrics, *, default_timeout_ms: int) -> None:
        self._prefix_view = prefix_view
        self._metrics = metrics
        self._default_timeout_ms = default_timeout_ms

    def deadline(self, timeout_ms: int, seconds_left: float) -> float:
        """Return the deadline in loop time: the request's own timeout, but before the caller's deadline.

        Raises:
            InvalidRequestError: If `timeout_ms` is negative.
        """
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms = {timeout_ms} is negative")
        wanted = (timeout_ms or self._default_timeout_ms) / 1000
        margin = min(ANSWER_MARGIN_SECONDS, seconds_left / 10)
        return asyncio.get_running_loop().time() + min(wanted, seconds_left - margin)

    async def see(self, revision: int, deadline: float) -> None:
        """Wait until this coordinator's view has reached `revision` (read your writes); `0` means nothing was written.

        Raises:
            TimedOutError: If the view does not reach it in time. The write is applied nevertheless.
        """
        if revision:
            await self._prefix_view.wait_for(revision, max(0.0, deadline - asyncio.get_running_loop().time()))

    def put_error(self, answer: AnswerWithError, error: HeadraceError) -> None:
        """Store an error in one result of a response, and count it."""
        answer.error.CopyFrom(to_detail(error))
        self._metrics.answer_errors.labels(error.code.name).inc()
