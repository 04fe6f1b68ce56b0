"""Time as an argument: the three clocks that services use, so that tests and simulations bring their own.

Wall time is only for what people and retention read; intervals and deadlines use the monotonic clock; the lease
deadline uses boot time, which advances while the machine sleeps (PROTOCOL H77).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Where a component reads the time. All answers are whole milliseconds."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since 1970 UTC; may jump either way."""

    def monotonic_ms(self) -> int:
        """Monotonic milliseconds; may stop while the machine sleeps."""

    def boottime_ms(self) -> int:
        """Monotonic milliseconds that include the time that the machine slept."""


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


def read_boot_id() -> str:
    """Name the machine's present boot: another one after each start of the kernel. Empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class ManualClock:
    """A clock that moves only when told. For tests and simulations; one thread moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        """Return the wall time set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the monotonic time set."""
        return self._monotonic_ms

    def boottime_ms(self) -> int:
        """Return the monotonic time set: this machine never sleeps."""
        return self._monotonic_ms

    def advance(self, by_ms: int) -> None:
        """Move all clocks forward by `by_ms` >= 0."""
        assert by_ms >= 0
        self._now_ms += by_ms
        self._monotonic_ms += by_ms

    def set_wall(self, by_ms: int) -> None:
        """Move the wall clock alone, either way, as who sets it does."""
        self._now_ms += by_ms


_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
