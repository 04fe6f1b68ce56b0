"""Waits of the records of a load, counted in memory that does not grow with it."""

import numpy as np

from headrace.cli.bench.distributions import Floats

SHORTEST_S = 1e-6
"""Shorter waits count as this one."""
BIN_FACTOR = 1.01
"""Ratio of the bounds of a bin: quantiles are right to half a percent."""
_LONGEST_S = 1e6
_BINS = int(np.ceil(np.log(_LONGEST_S / SHORTEST_S) / np.log(BIN_FACTOR)))


class WaitHistogram:
    """Number of waits by their length, in bins of a constant ratio. Belongs to one thread at a time."""

    __slots__ = ("_counts", "_longest_s")

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self._longest_s = 0.0

    def add(self, waits_s: Floats) -> None:
        """Count the wait of each record, in seconds."""
        if not len(waits_s):
            return
        self._longest_s = max(self._longest_s, float(waits_s.max()))
        places = np.log(np.maximum(waits_s, SHORTEST_S) / SHORTEST_S) / np.log(BIN_FACTOR)
        np.add.at(self._counts, np.minimum(places.astype(np.int64), _BINS - 1), 1)

    @property
    def records(self) -> int:
        """Number of records that were counted."""
        return int(self._counts.sum())

    @property
    def longest_s(self) -> float:
        """The longest wait, in seconds; 0 without records."""
        return self._longest_s

    def quantile_s(self, share: float) -> float:
        """Return the wait in seconds that this share of the records does not exceed, of at least one record."""
        assert self.records, "no record was counted"
        rank = max(1, int(np.ceil(share * self.records)))
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(self._longest_s, SHORTEST_S * float(BIN_FACTOR ** (place + 0.5)))
