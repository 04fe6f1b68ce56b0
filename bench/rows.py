"""Rows that `bench.tables` reads and writes, and how each case of them is measured.

Only the standard library: the client of Redis uses this in an environment of its own.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable

from bench.processor import processor_seconds

VALUE = b"v" * 100
OTHER_VALUE = b"w" * 100
MANY = 1_000
"""Rows of one call that reads or writes many."""
DRAWN = 200_003
"""A prime, so that the keys of a case are not always the same."""


def key(number: int) -> bytes:
    """Return the key of a row."""
    return b"user-%012d" % number


class Draw:
    """Keys of rows, drawn evenly beforehand."""

    def __init__(self, rows: int) -> None:
        chance = random.Random(1)
        self._keys = itertools.cycle([key(chance.randrange(rows)) for _ in range(DRAWN)])

    def one(self) -> bytes:
        """Return a key."""
        return next(self._keys)

    def many(self) -> list[bytes]:
        """Return `MANY` keys."""
        return list(itertools.islice(self._keys, MANY))


def measure(
    case: str, call: Callable[[], object], seconds: float, *, pid: int, rate: float | None = None, items: int = 1
) -> None:
    """Call again and again; print the figures of the case, with the processor time of the server `pid`."""
    used, started = processor_seconds(pid), time.perf_counter()
    latencies = sorted(_paced(call, seconds, rate))
    took, used = time.perf_counter() - started, processor_seconds(pid) - used
    figures = {
        "case": case,
        "a second": round(len(latencies) * items / took),
        "p50 ms": round(latencies[len(latencies) // 2], 3),
        "p99 ms": round(latencies[len(latencies) * 99 // 100], 3),
        "server's processor us each": round(used / len(latencies) / items * 1e6, 1),
    }
    print(json.dumps(figures), flush=True)


def _paced(call: Callable[[], object], seconds: float, rate: float | None) -> list[float]:
    """Return the latencies in ms, from when each call was due if there is a rate."""
    latencies: list[float] = []
    started = time.perf_counter()
    while True:
        due = started + len(latencies) / rate if rate else time.perf_counter()
        now = time.perf_counter()
        if due - started > seconds:
            return latencies
        if due > now:
            time.sleep(due - now)
        call()
        latencies.append((time.perf_counter() - due) * 1000)
