"""Bounds on what requests may hold: bytes in flight, and fetches that wait."""

from __future__ import annotations

from headrace.wire.errors import Outcome, ThrottledError

from headrace_broker.metrics import BrokerMetrics

RETRY_AFTER_MS = 50


class MemoryBudget:
    """Bytes of requests being handled and of answers being sent. Belongs to the event loop."""

    def __init__(self, max_bytes: int, metrics: BrokerMetrics) -> None:
        self._max_bytes = max_bytes
        self._metrics = metrics
        self.used_bytes = 0
        metrics.inflight_bytes.set_function(lambda: self.used_bytes)

    def take(self, size_bytes: int) -> None:
        """Reserve `size_bytes`; a single reservation may use up what is left only as far as it fits.

        Raises:
            ThrottledError: they do not fit now; nothing was done, try again after `retry_after_ms`.
        """
        if self.used_bytes + size_bytes > self._max_bytes:
            self._metrics.throttled.inc()
            raise ThrottledError(
                f"the broker holds {self.used_bytes} of {self._max_bytes} bytes of requests and answers",
                outcome=Outcome.NOT_APPLIED,
                retry_after_ms=RETRY_AFTER_MS,
            )
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Return what `take` reserved."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
