"""Synthetic requests in columns: due time, key and value length of each. Pure.

`PaperWorkload` is the experiment of the paper on Kafka (NetDB 2011, section 5). `EtcWorkload` is the model of the pool
ETC in "Workload Analysis of a Large-Scale Key-Value Store" (Atikoglu et al., SIGMETRICS 2012, section 5): gaps, key
sizes and value sizes follow the distributions fitted there. The popularity of keys is a Zipf distribution with a given
exponent, which the study leaves open. All steps are vectorized, so one core generates millions of requests/s.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHORT_VALUES = (
    *(0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606),
    *(0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326, 0.01980),
)
"""Probabilities of values of 0 to 14 bytes."""
LONG_VALUE_SCALE, LONG_VALUE_SHAPE = 214.476, 0.348238
GAP_SCALE_US, GAP_SHAPE = 16.0292, 0.154971
KEY_LOCATION, KEY_SCALE, KEY_SHAPE = 30.7984, 8.20449, 0.078688
MAX_KEY_BYTES = 250
"""Limit of the store in the study."""
MAX_VALUE_BYTES = 1_000_000
GUIDE_ENTRIES = 1 << 16


class Requests(NamedTuple):
    """Consecutive requests."""

    due_s: Floats
    """float64[n], ascending: seconds after the first request."""
    keys: Ints | None
    """int64[n]: ranks of keys, `0` is the most popular; `None` if requests have no keys."""
    value_bytes: Ints
    """int64[n]: lengths of the values."""


class Workload(Protocol):
    """Generator of requests; each call continues after the one before."""

    @property
    def usual_value_bytes(self) -> float:
        """Typical value size in bytes, from which the number of requests per block is derived."""

    def requests(self, count: int) -> Requests:
        """Return the next `count` requests."""


@dataclass(slots=True)
class PaperWorkload:
    """Values of one size, without keys, evenly spaced."""

    value_bytes: int
    rate: float
    """Requests per second; infinity means that all are due at once."""
    made: int = 0

    @property
    def usual_value_bytes(self) -> float:
        """Length of every value."""
        return self.value_bytes

    def requests(self, count: int) -> Requests:
        """Return the next `count` requests."""
        numbers = np.arange(self.made, self.made + count, dtype=np.float64)
        self.made += count
        return Requests(numbers / self.rate, None, np.full(count, self.value_bytes, np.int64))


class EtcWorkload:
    """Model of the pool ETC."""

    def __init__(self, keys: int, zipf_exponent: float, rate: float | None, seed: int) -> None:
        """Prepare.

        Args:
            keys: Number of distinct keys, at least 1.
            zipf_exponent: s, where the probability of the key of rank r is proportional to r^-s.
            rate: Average requests per second, infinity for all at once; `None` means the study's rate, 52,700.
            seed: Seed of the generator; the same seed generates the same requests.
        """
        self._chance = np.random.default_rng(seed)
        self._popularity = Popularity(keys, zipf_exponent)
        self._gap_scale = 1.0 if rate is None else 1e6 / rate / mean_gap_us()
        self._now_s = 0.0

    @property
    def usual_value_bytes(self) -> float:
        """Mean of the tail, which is above the mean of all values."""
        return len(SHORT_VALUES) + LONG_VALUE_SCALE / (1 - LONG_VALUE_SHAPE)

    def requests(self, count: int) -> Requests:
        """Return the next `count` requests."""
        chance = self._chance
        due = np.cumsum(gaps_us(chance.random(count)))
        due *= self._gap_scale / 1e6
        due += self._now_s
        self._now_s = float(due[-1]) if count else self._now_s
        keys = self._popularity.ranks(chance.random(count))
        return Requests(due, keys, etc_value_bytes(chance.random(count)))


class Popularity:
    """Ranks of keys by a bounded Zipf distribution, drawn by inverse transform sampling."""

    def __init__(self, keys: int, exponent: float) -> None:
        weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
        self._ends = np.cumsum(weights)
        self._ends /= self._ends[-1]
        # Bounds of the search for numbers with these leading bits; most numbers need no search.
        self._guide = np.searchsorted(self._ends, np.arange(GUIDE_ENTRIES + 1) / GUIDE_ENTRIES, side="right")

    def ranks(self, chances: Floats) -> Ints:
        """Return the rank for each number in 0 <= x < 1; int64[n], from 0."""
        slots = (chances * GUIDE_ENTRIES).astype(np.int64)
        found = self._guide[slots].astype(np.int64)
        open_ones = np.flatnonzero(found != self._guide[slots + 1])
        found[open_ones] = np.searchsorted(self._ends, chances[open_ones], side="right")
        return np.minimum(found, len(self._ends) - 1, out=found)


def generalised_pareto(chances: Floats, scale: float, shape: float) -> Floats:
    """Return values >= 0 for uniform numbers in 0 <= x < 1; `shape` must not be 0."""
    values = np.negative(chances)
    np.log1p(values, out=values)
    values *= -shape
    np.expm1(values, out=values)
    values *= scale / shape
    return values


def gaps_us(chances: Floats) -> Floats:
    """Return the gaps between requests in microseconds."""
    return generalised_pareto(chances, GAP_SCALE_US, GAP_SHAPE)


def mean_gap_us() -> float:
    """Return the mean gap between requests in microseconds."""
    return GAP_SCALE_US / (1 - GAP_SHAPE)


def etc_value_bytes(chances: Floats) -> Ints:
    """Return lengths of values: by the table up to 14 bytes, above by a generalised Pareto distribution; int64[n]."""
    ends = np.cumsum(SHORT_VALUES)
    sizes = np.searchsorted(ends, chances, side="right")
    long = np.flatnonzero(sizes == len(ends))
    rest = (chances[long] - ends[-1]) / (1 - ends[-1])
    lengths = len(ends) + generalised_pareto(rest, LONG_VALUE_SCALE, LONG_VALUE_SHAPE)
    sizes[long] = np.minimum(lengths, MAX_VALUE_BYTES)
    return sizes


def etc_key_bytes(chances: Floats) -> Ints:
    """Return lengths of keys by a generalised extreme value distribution, 1 to 250 bytes; int64[n].

    SciPy's `genextreme` has the shape with the opposite sign.
    """
    with np.errstate(divide="ignore"):
        sizes = KEY_LOCATION + KEY_SCALE / KEY_SHAPE * ((-np.log(chances)) ** -KEY_SHAPE - 1)
    return np.clip(sizes, 1, MAX_KEY_BYTES).astype(np.int64)
