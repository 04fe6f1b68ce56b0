"""Wall clock of an open directory, by which records are deleted: not while it has jumped (H43).

No other process confirms the time, as in a cluster: the clock is believed as it was when the directory was opened.
"""

from __future__ import annotations

import time

LIMIT_MS = 24 * 3_600_000
"""A clock that moved by more against the machine's time since its boot has jumped. A drift stays far below."""
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class WallClock:
    """Wall clock since the directory was opened. Stateless after that: any thread may use it."""

    def __init__(self) -> None:
        self._offset_ms = _offset_ms()

    def believed_ms(self) -> int | None:
        """Return the time in ms since 1970; `None` while the clock has jumped: nothing is old then."""
        has_jumped = abs(_offset_ms() - self._offset_ms) > LIMIT_MS
        return None if has_jumped else time.time_ns() // 1_000_000


def _offset_ms() -> int:
    return (time.time_ns() - time.clock_gettime_ns(_BOOTTIME)) // 1_000_000
