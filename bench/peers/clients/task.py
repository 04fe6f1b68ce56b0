"""Common part of all client programs: the task is JSON in the first argument, the figures are printed as JSON.

A program is a table of operations. An operation is a generator that yields 0 when it is connected, which starts the
clock, and then occasionally the number of records acknowledged or received, or sent if the client reports none; it ends
when the last one is acknowledged, or received. Standard library only.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.open_loop import after_warm_up, percentiles

CHUNK_RECORDS = 10_000
MARKS = 20
"""Maximum number of times recorded during an operation."""


@dataclass(frozen=True)
class Task:
    """Operation and its parameters."""

    operation: str
    """Name of the operation in the program: `in`, `out`, `latency-in` or `latency-out`."""
    port: int
    """Port on loopback."""
    topic: str
    """Topic, stream or queue."""
    records: int
    value_bytes: int = 200
    batch: int = 0
    """Records per batch; `0` means the client's default."""
    rate: int = 0
    """Records per second of a latency measurement."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Further settings by the client's names."""

    def values(self) -> list[bytes]:
        """Return `CHUNK_RECORDS` values, half of each random."""
        chance = random.Random(self.value_bytes)
        return [
            (n.to_bytes(4, "big").hex() + chance.randbytes(self.value_bytes // 2).hex())[: self.value_bytes].encode()
            for n in range(CHUNK_RECORDS)
        ]

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield the values of all records, up to `CHUNK_RECORDS` at a time."""
        values, left = self.values(), self.records
        while left > 0:
            yield values if left >= len(values) else values[:left]
            left -= len(values)


Operation = Callable[[Task], Iterator[int]]


def main(operations: Mapping[str, Operation]) -> None:
    """Run the task in the first argument and print the figures."""
    task = Task(**json.loads(sys.argv[1]))
    running = operations[task.operation](task)
    first = next(running)
    assert first == 0, "an operation first says that it is connected"
    before, started = _processor_seconds(), time.perf_counter()
    marks: list[tuple[int, float]] = []
    step = task.records / MARKS
    for count in running:
        if count >= (len(marks) + 1) * step:
            marks.append((count, time.perf_counter() - started))
    seconds = time.perf_counter() - started
    used = _processor_seconds() - before
    print(json.dumps({"seconds": seconds, "cpu_seconds": used, "marks": [*marks, (task.records, seconds)]}), flush=True)
    # Some clients wait long for their threads at exit; the operation is complete.
    os._exit(0)


def report_waits(waits_ms: list[float]) -> None:
    """Print the figures of a latency measurement and exit."""
    print(json.dumps(percentiles(after_warm_up(waits_ms))), flush=True)
    os._exit(0)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
