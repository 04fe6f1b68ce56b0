"""Controlled hand-over of leadership: appends pause, a successor reaches the log end, the leader names it (H24).

Owned by a `Leadership`. No acknowledged record is lost, not even with `acks=1`: the successor has all that the leader
has appended, and the leader appends nothing after that.
"""

from __future__ import annotations

HAND_OVER_MS = 100
"""Maximum pause of appends before a successor is named or the hand-over is abandoned."""
HAND_OVER_RETRY_MS = 1_000
"""Minimum time without a pause after a failed hand-over."""


class HandOver:
    """State of a hand-over: whether appends are paused, and by which attempt. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self.paused = False  # appends are rejected
        self.proposal: int | None = None  # the write that names a successor, until its outcome is known
        self._pauses = 0
        self._not_before_ms = 0
        self._failed = False  # failed since the last `may_pause`, which sets `_not_before_ms`

    def may_pause(self, at_ms: int) -> bool:
        """Return whether appends are paused already or may be paused again."""
        if self._failed:
            self._failed = False
            self._not_before_ms = at_ms + HAND_OVER_RETRY_MS
        return self.paused or at_ms >= self._not_before_ms

    def pause(self) -> int:
        """Pause appends; return the number of this pause."""
        self.paused = True
        self._pauses += 1
        return self._pauses

    def propose(self, number: int) -> None:
        """Record that the write `number` names a successor; appends stay paused until its outcome is known."""
        self.paused, self.proposal = True, number

    def is_over(self, number: int) -> bool:
        """Return whether pause `number` still lasts and no successor has been named."""
        return self.paused and self._pauses == number and self.proposal is None

    def fail(self) -> None:
        """Resume appends, and do not pause them again for `HAND_OVER_RETRY_MS`."""
        self.end()
        self._failed = True

    def end(self) -> None:
        """Resume appends."""
        self.paused, self.proposal = False, None
