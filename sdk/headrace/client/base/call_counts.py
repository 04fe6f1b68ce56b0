"""Counts of a client's calls to brokers: durations, errors and retries. No I/O."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from headrace.wire.errors import ErrorCode

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets; there is one more bucket without a bound."""


class CallStats(NamedTuple):
    """Counts since the client was created."""

    calls_by_seconds: tuple[int, ...]
    """Number of calls per bucket of `SECONDS` (not cumulative), including calls without a response."""
    sum_seconds: float
    errors: Mapping[ErrorCode, int]
    """Number of errors of partitions in calls, including errors of whole calls."""
    retries: int
    """For a producer: batches queued again for another send. For a reader: partitions fetched again."""
    corrupt_batches: int = 0
    """For a reader: batches that could not be decoded and were skipped; see `on_corrupt_batch`."""
    grpc_fallbacks: int = 0
    """Calls made over gRPC because the native protocol could not be used; see `transport`."""


class CallCounts:
    """Counters of one client, changed under its lock (per call, not per record) and read without it."""

    __slots__ = ("_calls_by_seconds", "_sum_seconds", "corrupt_batches", "errors", "retries")

    def __init__(self) -> None:
        self._calls_by_seconds = [0] * (len(SECONDS) + 1)
        self._sum_seconds = 0.0
        self.errors: Counter[ErrorCode] = Counter()
        self.retries = 0
        self.corrupt_batches = 0

    def took(self, seconds: float) -> None:
        """Record the duration of a call that has ended."""
        self._calls_by_seconds[bisect_left(SECONDS, seconds)] += 1
        self._sum_seconds += seconds

    def stats(self) -> CallStats:
        """Return the counts."""
        return CallStats(
            tuple(self._calls_by_seconds), self._sum_seconds, dict(self.errors), self.retries, self.corrupt_batches
        )
