"""Load at a fixed rate, common to all measurements that have one, and the latencies of its records.

The loop is open: a record is sent when it is due, whatever happened to those before it. Its latency counts from its due
time, so that a stall of sender, broker or reader counts for every delayed record. All processes of a machine have the
same monotonic clock. Only the standard library: the peers' clients use this in an environment of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

WARM_SECONDS = 1.0
"""Warm-up at the start, not counted."""
SECONDS = 5.0
STAMP_BYTES = 8
VALUE_BYTES = 200
TICK_SECONDS = 0.0005


def record_count(rate: int) -> int:
    """Return the number of records of one measurement."""
    return round(rate * (WARM_SECONDS + SECONDS))


def due_times_ns(rate: int, is_over: Callable[[int], bool]) -> Iterator[int]:
    """Yield each due time at that time, until `is_over(records so far)`, evaluated between ticks."""
    gap_ns, started, count = 1_000_000_000 // rate, time.monotonic_ns(), 0
    while not is_over(count):
        due = (time.monotonic_ns() - started) // gap_ns + 1
        yield from range(started + count * gap_ns, started + due * gap_ns, gap_ns)
        count = max(count, due)
        time.sleep(TICK_SECONDS)


def send_open_loop(send: Callable[[bytes], object], rate: int) -> None:
    """Send values of 200 bytes, each as soon as it is due, stamped with that time."""
    rest, count = bytes(VALUE_BYTES - STAMP_BYTES), record_count(rate)
    for due_ns in islice(due_times_ns(rate, lambda sent: sent >= count), count):
        send(due_ns.to_bytes(STAMP_BYTES, "little") + rest)


def pauses_ms(rate: int) -> list[float]:
    """Return the machine's own pauses: the delays of a program that only reads the clock."""
    waits: list[float] = []
    gap_ns, started = 1_000_000_000 // rate, time.monotonic_ns()
    while len(waits) < record_count(rate):
        late_ns = time.monotonic_ns() - started - len(waits) * gap_ns
        if late_ns >= 0:
            waits.append(late_ns / 1e6)
    return waits


def waited_ms(value: bytes) -> float:
    """Return the time since a value was due, in ms."""
    return (time.monotonic_ns() - int.from_bytes(value[:STAMP_BYTES], "little")) / 1e6


def after_warm_up(waits_ms: Sequence[float]) -> Sequence[float]:
    """Return the latencies of the records of `send_open_loop`, in the order of arrival, without the first second."""
    return waits_ms[round(len(waits_ms) * WARM_SECONDS / (WARM_SECONDS + SECONDS)) :]


def percentiles(waits_ms: Iterable[float]) -> dict[str, float]:
    """Return median, 99th and 99.9th percentile and maximum of at least one latency, to the microsecond."""
    ordered = sorted(round(wait, 3) for wait in waits_ms)
    return {
        "p50_ms": ordered[len(ordered) // 2],
        "p99_ms": ordered[int(len(ordered) * 0.99)],
        "p999_ms": ordered[int(len(ordered) * 0.999)],
        "max_ms": ordered[-1],
    }
