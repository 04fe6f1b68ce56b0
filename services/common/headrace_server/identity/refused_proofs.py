"""Log of refused API keys and session tokens, which a stranger may send by the thousand. Belongs to the event loop."""

from __future__ import annotations

import structlog

from headrace_server.clock import Clock

log = structlog.get_logger(__name__)

LOG_MS = 10_000
"""Least time between two lines."""


class RefusedProofs:
    """See the module. Metrics count each refusal as an error of its method."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unlogged = 0
        """Refusals since the last line."""
        self._log_at_ms = 0

    def note(self, proof: str, cause: str) -> None:
        """Log a refused proof, or hold it for the next line; neither argument has any of its text."""
        self._unlogged += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._log_at_ms:
            return
        log.info("identity_refused", proof=proof, cause=cause, count=self._unlogged)
        self._log_at_ms, self._unlogged = now_ms + LOG_MS, 0
