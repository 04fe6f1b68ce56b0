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


_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
