"""Counts of numbers from 0 to 2^44 with a bounded number of bins: exact below 1,024, above to 0.2 %.

A bin above 1,024 is a range of numbers that share the exponent and the first nine bits of the fraction of a float64, so
that a number's bin is a shift of its bits. Sums of histograms are histograms, whatever the numbers are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

EXACT = 1_024
"""Numbers below have a bin each."""
_FRACTION_BITS = 9
_SHIFT = 52 - _FRACTION_BITS
_FIRST = int(np.array([float(EXACT)]).view(np.int64)[0]) >> _SHIFT
MAX_VALUE = (1 << 44) - 1
"""Larger numbers count as this one: 200 days in microseconds."""
BINS = EXACT + ((44 - 10) << _FRACTION_BITS)
GROUPS = 16
"""Groups of keys that some histograms keep apart, by the first bits of the hash: for confidence and held-out data."""


def bins_of(values: npt.NDArray[np.generic]) -> Counts:
    """Return the bin of each number, int64[n]; numbers are integers, at least 0."""
    numbers = np.minimum(values.astype(np.int64), MAX_VALUE)
    if not len(numbers) or int(numbers.max()) < EXACT:
        return numbers
    bits = numbers.astype(np.float64).view(np.int64)
    bits >>= _SHIFT
    bits += EXACT - _FIRST
    return np.where(numbers < EXACT, numbers, bits)


def count(values: npt.NDArray[np.generic]) -> Counts:
    """Return how many numbers are in each bin; int64[BINS]."""
    return np.bincount(bins_of(values), minlength=BINS)


def count_by_group(values: npt.NDArray[np.generic], groups: npt.NDArray[np.int64]) -> Counts:
    """Return how many numbers of each group are in each bin; int64[GROUPS, BINS].

    Args:
        values: integers, at least 0.
        groups: int64[n], 0 to GROUPS - 1.
    """
    return np.bincount(groups * BINS + bins_of(values), minlength=GROUPS * BINS).reshape(GROUPS, BINS)


def _edges() -> Floats:
    above = ((np.arange(BINS - EXACT + 1, dtype=np.int64) + _FIRST) << _SHIFT).view(np.float64)
    return np.concatenate([np.arange(EXACT, dtype=np.float64), above])


EDGES = _edges()
"""float64[BINS + 1]: bin i has the integers from EDGES[i] to EDGES[i + 1], exclusive."""
MIDDLES = np.where(np.arange(BINS) < EXACT, EDGES[:-1], (EDGES[:-1] + EDGES[1:] - 1) / 2)
"""float64[BINS]: mean of the integers of each bin."""


def quantiles(counts: Counts, chances: npt.ArrayLike) -> Floats:
    """Return the smallest number of the bin that each of the probabilities falls into; NaN without counts."""
    ends = np.cumsum(counts)
    wanted = np.asarray(chances, np.float64)
    if not ends[-1]:
        return np.full(wanted.shape, np.nan)
    found: Floats = EDGES[np.minimum(np.searchsorted(ends, wanted * ends[-1], side="left"), BINS - 1)]
    return found


def mean(counts: Counts) -> float:
    """Return the mean of the numbers; NaN without counts."""
    total = int(counts.sum())
    return float((counts * MIDDLES).sum()) / total if total else float("nan")
