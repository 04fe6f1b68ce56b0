"""Measured load of each replica: bytes and requests, as moving averages.

Calls only count. `maintenance.measure_loads` samples the counts, and `DescribeLogs` reports the averages.
"""

from __future__ import annotations

from math import exp

from headrace.placement.load import ReplicaLoad


class LoadMeter:
    """Counts of one replica since it was opened, as leader or follower, and their averages."""

    __slots__ = ("_averages", "_sampled", "_sampled_ms", "_weight", "bytes_in", "bytes_out", "requests")

    def __init__(self, now_ms: int) -> None:
        """`now_ms` is the monotonic time."""
        self.bytes_in = self.bytes_out = self.requests = 0
        self._sampled = (0, 0, 0)
        self._averages = [0.0, 0.0, 0.0]
        self._sampled_ms = now_ms
        self._weight = 0.0

    def note_written(self, size_bytes: int) -> None:
        """Count one append, of a producer or from the leader."""
        self.bytes_in += size_bytes
        self.requests += 1

    def note_read(self, size_bytes: int) -> None:
        """Count one answer with batches, to a reader or a follower."""
        self.bytes_out += size_bytes
        self.requests += 1

    def sample(self, now_ms: int, window_ms: int) -> None:
        """Include the time since the last sample in the averages; older times lose weight exponentially."""
        elapsed_ms = now_ms - self._sampled_ms
        if elapsed_ms <= 0:
            return
        counts = self.bytes_in, self.bytes_out, self.requests
        share = 1 - exp(-elapsed_ms / window_ms)
        self._averages = [
            average + share * ((count - before) * 1000 / elapsed_ms - average)
            for average, count, before in zip(self._averages, counts, self._sampled, strict=True)
        ]
        self._weight += share * (1 - self._weight)
        self._sampled, self._sampled_ms = counts, now_ms

    @property
    def load(self) -> ReplicaLoad:
        """Averages per second, of the time since it was opened if that is less than the window; 0 before a sample."""
        return ReplicaLoad(*(average / self._weight for average in self._averages)) if self._weight else ReplicaLoad()
