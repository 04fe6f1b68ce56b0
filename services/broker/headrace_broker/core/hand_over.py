"""Handing a leadership over in order: appends stop, a successor reaches the log end, then the leader names it (H24).

Owned by a `Leadership`. Nothing that was acknowledged is lost, with `acks=1` neither: what the
leader has appended the successor has too, and nothing is appended after that.
"""

from __future__ import annotations

HAND_OVER_MS = 100
"""Appends stop for at most so long before the successor is named, or the hand-over is abandoned."""
HAND_OVER_RETRY_MS = 1_000
"""After one that failed appends do not stop again for at least so long."""


class HandOver:
    """Whether appends stop, and since which attempt. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self.paused = False  # appends are refused
        self.proposal: int | None = None  # the write that names a successor, until its end is known
        self._pauses = 0
        self._not_before_ms = 0
        self._failed = False  # when is not known yet

    def may_pause(self, at_ms: int) -> bool:
        """Return whether appends stop already, or may again."""
        if self._failed:
            self._failed = False
            self._not_before_ms = at_ms + HAND_OVER_RETRY_MS
        return self.paused or at_ms >= self._not_before_ms

    def pause(self) -> int:
        """Stop appends; return the number of this pause."""
        self.paused = True
        self._pauses += 1
        return self._pauses

    def propose(self, number: int) -> None:
        """Note that the write `number` names a successor: until its end is known nothing is appended."""
        self.paused, self.proposal = True, number

    def is_over(self, number: int) -> bool:
        """Return whether pause `number` has lasted too long: appends still stop, and no successor has been named."""
        return self.paused and self._pauses == number and self.proposal is None

    def fail(self) -> None:
        """Resume appends, and do not stop them again for a while."""
        self.end()
        self._failed = True

    def end(self) -> None:
        """Resume appends."""
        self.paused, self.proposal = False, None
