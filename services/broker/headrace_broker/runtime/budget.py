"""Memory limit of requests in progress."""

from __future__ import annotations

from headrace.wire.errors import Outcome, ThrottledError

from headrace_broker.metrics import BrokerMetrics

RETRY_AFTER_MS = 50


class MemoryBudget:
    """Bytes of requests being handled and of responses being sent. Belongs to the event loop."""

    def __init__(self, max_bytes: int, metrics: BrokerMetrics) -> None:
        self._max_bytes = max_bytes
        self._metrics = metrics
        self.used_bytes = 0
        metrics.inflight_bytes.set_function(lambda: self.used_bytes)

    def take(self, size_bytes: int) -> None:
        """Reserve `size_bytes`.

        Raises:
            ThrottledError: If they do not fit now; retry after `retry_after_ms`.
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
        """Release a reservation of `take`."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0


class GrowingReservation:
    """Bytes of one response whose size is known only once it is made."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._size_bytes = 0

    def grow_to(self, size_bytes: int) -> None:
        """Reserve `size_bytes` in all; fewer than before change nothing. Raises as `MemoryBudget.take`."""
        if size_bytes > self._size_bytes:
            self._budget.take(size_bytes - self._size_bytes)
            self._size_bytes = size_bytes

    def give_back(self) -> None:
        """Release everything. Idempotent."""
        self._budget.give_back(self._size_bytes)
        self._size_bytes = 0
