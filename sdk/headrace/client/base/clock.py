"""Clock for the waits, deadlines and ages of a client."""

import time


def monotonic_ms() -> int:
    """Return the milliseconds of a clock that never goes back; its epoch is undefined."""
    return time.monotonic_ns() // 1_000_000
