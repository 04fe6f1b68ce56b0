"""The clock by which a client measures waits, deadlines and ages."""

import time


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back; from when they count is not defined."""
    return time.monotonic_ns() // 1_000_000
