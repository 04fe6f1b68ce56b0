"""Sending at a fixed rate whatever became of what went before, and what the receiver makes of it.

Every value says when it was due, and its latency counts from then, so that a stall of sender, broker or reader is paid
for by all that it held up. The monotonic clock is one for all processes of a machine. Only the standard library: the
peers' clients use this in an environment of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

WARM_SECONDS = 1.0
"""From the beginning, not counted."""
SECONDS = 5.0
STAMP_BYTES = 8
VALUE_BYTES = 200
TICK_SECONDS = 0.0005


def record_count(rate: int) -> int:
    """How many records one measurement has."""
    return round(rate * (WARM_SECONDS + SECONDS))


def send_open_loop(send: Callable[[bytes], object], rate: int) -> None:
    """Send values of 200 bytes, each as soon as it is due, stamped with when that was."""
    rest, count = bytes(VALUE_BYTES - STAMP_BYTES), record_count(rate)
    gap_ns, started, sent = 1_000_000_000 // rate, time.monotonic_ns(), 0
    while sent < count:
        due = min(count, (time.monotonic_ns() - started) // gap_ns + 1)
        for number in range(sent, due):
            send((started + number * gap_ns).to_bytes(STAMP_BYTES, "little") + rest)
        sent = max(sent, due)
        time.sleep(TICK_SECONDS)


def pauses_ms(rate: int) -> list[float]:
    """How late a program is that only looks at the clock, for each of as many records: the machine's own pauses."""
    waits: list[float] = []
    gap_ns, started = 1_000_000_000 // rate, time.monotonic_ns()
    while len(waits) < record_count(rate):
        late_ns = time.monotonic_ns() - started - len(waits) * gap_ns
        if late_ns >= 0:
            waits.append(late_ns / 1e6)
    return waits


def waited_ms(value: bytes) -> float:
    """How long ago a value was due."""
    return (time.monotonic_ns() - int.from_bytes(value[:STAMP_BYTES], "little")) / 1e6


def percentiles(waits_ms: Sequence[float]) -> dict[str, float]:
    """Of what records waited, in the order they came in, those of the first second left out."""
    counted = sorted(waits_ms[round(len(waits_ms) * WARM_SECONDS / (WARM_SECONDS + SECONDS)) :])
    return {
        "p50_ms": counted[len(counted) // 2],
        "p99_ms": counted[int(len(counted) * 0.99)],
        "p999_ms": counted[int(len(counted) * 0.999)],
        "max_ms": counted[-1],
    }
