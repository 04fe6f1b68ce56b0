"""Clock interface with the three clocks that services use; tests and simulations pass their own.

Wall time is only for people and retention. Intervals and deadlines use the monotonic clock. The lease deadline uses
boot time, which advances while the machine sleeps (PROTOCOL H77).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time of a component, in whole milliseconds."""

    def now_ms(self) -> int:
        """Return wall time, milliseconds since 1970 UTC; may jump in both directions."""

    def monotonic_ms(self) -> int:
        """Return monotonic milliseconds; may stop while the machine sleeps."""

    def boottime_ms(self) -> int:
        """Return monotonic milliseconds that include sleep of the machine."""


class SystemClock:
    """The machine's clocks. Stateless: any thread may use it."""

    def now_ms(self) -> int:
        """Read CLOCK_REALTIME."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Read CLOCK_MONOTONIC."""
        return time.monotonic_ns() // 1_000_000

    def boottime_ms(self) -> int:
        """Read CLOCK_BOOTTIME, or CLOCK_MONOTONIC where the system has none (macOS)."""
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000


_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
