"""How a client's calls to brokers have gone: how long they took, what errors they met with, what went again. No I/O."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from headrace.wire.errors import ErrorCode

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets; one more has none."""


class CallStats(NamedTuple):
    """Everything since the client was made."""

    calls_by_seconds: tuple[int, ...]
    """How many calls fell into each bucket of `SECONDS` alone, those without an answer included."""
    sum_seconds: float
    errors: Mapping[ErrorCode, int]
    """How often a partition of a call met with an error, that of the whole call included."""
    retries: int
    """Of a producer: batches that were put back to be sent again. Of a reader: partitions that were fetched again."""
    corrupt_batches: int = 0
    """Of a reader: batches that could not be decoded and were passed; see `on_corrupt_batch`."""
    grpc_fallbacks: int = 0
    """Calls that went over gRPC because the native protocol could not be used; see `transport`."""


class CallCounts:
    """Owned by one client and changed under its lock, some steps a call and none a record; read without it."""

    __slots__ = ("_calls_by_seconds", "_sum_seconds", "corrupt_batches", "errors", "retries")

    def __init__(self) -> None:
        self._calls_by_seconds = [0] * (len(SECONDS) + 1)
        self._sum_seconds = 0.0
        self.errors: Counter[ErrorCode] = Counter()
        self.retries = 0
        self.corrupt_batches = 0

    def took(self, seconds: float) -> None:
        """Take in one call that has ended."""
        self._calls_by_seconds[bisect_left(SECONDS, seconds)] += 1
        self._sum_seconds += seconds

    def stats(self) -> CallStats:
        """Return the counts."""
        return CallStats(
            tuple(self._calls_by_seconds), self._sum_seconds, dict(self.errors), self.retries, self.corrupt_batches
        )
