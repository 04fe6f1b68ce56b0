"""Distributions of a workload's sizes, gaps and keys, drawn by inverse transform sampling of whole columns. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GUIDE_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class Tail:
    """Generalised extreme value (`gev`) or generalised Pareto (`gpd`) distribution.

    The shape has the sign of the literature: above 0 the tail is heavy. SciPy's `genextreme` has the opposite sign.
    """

    family: Literal["gev", "gpd"]
    location: float
    scale: float
    shape: float

    def values(self, chances: Floats) -> Floats:
        """Return the value for each number in 0 <= x < 1."""
        if self.family == "gpd":
            values = generalised_pareto(chances, self.scale, self.shape)
            values += self.location
            return values
        with np.errstate(divide="ignore", over="ignore"):
            logs = -np.log(chances)
            if abs(self.shape) < 1e-9:
                return self.location - self.scale * np.log(logs)
            # 0 has no finite value; the caller bounds it.
            return self.location + self.scale / self.shape * (logs**-self.shape - 1)

    def distribution(self, values: Floats) -> Floats:
        """Return the probability of at most each value."""
        scaled = (values - self.location) / self.scale
        if self.family == "gpd":
            scaled = np.maximum(scaled, 0.0)
            if abs(self.shape) < 1e-9:
                return -np.expm1(-scaled)
            with np.errstate(divide="ignore"):  # Above the end of a bounded tail.
                return -np.expm1(-np.log1p(np.maximum(self.shape * scaled, -1.0)) / self.shape)
        with np.errstate(over="ignore", divide="ignore"):
            if abs(self.shape) < 1e-9:
                return np.exp(-np.exp(-scaled))
            return np.exp(-(np.maximum(1 + self.shape * scaled, 1e-300) ** (-1 / self.shape)))


@dataclass(frozen=True, slots=True)
class SizeModel:
    """Sizes in bytes: of a table with their probabilities, and the rest of a distribution, rounded down."""

    sizes: tuple[int, ...]
    """Sizes of the table; empty if there is none."""
    probabilities: tuple[float, ...]
    """Probability of each; their sum is 1 without a tail."""
    tail: Tail | None
    most: int
    """Upper bound of the sizes of the tail."""
    least: int = 0
    """Lower bound of the sizes of the tail."""

    def draw(self, chances: Floats) -> Ints:
        """Return a size for each number in 0 <= x < 1; int64[n]."""
        ends = np.cumsum(self.probabilities)
        found = np.searchsorted(ends, chances, side="right")
        table = np.array((*self.sizes, 0), np.int64)
        if self.tail is None:
            return table[np.minimum(found, len(self.sizes) - 1)]
        sizes = table[found]
        of_tail = np.flatnonzero(found == len(ends))
        below = float(ends[-1]) if len(ends) else 0.0
        values = self.tail.values((chances[of_tail] - below) / (1 - below))
        sizes[of_tail] = np.clip(values, self.least, self.most)
        return sizes

    def mean(self) -> float:
        """Return the mean size, by numbers evenly between 0 and 1."""
        return float(self.draw((np.arange(10_000) + 0.5) / 10_000).mean())


class Popularity:
    """Ranks of keys by a bounded Zipf distribution."""

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


class DailyPattern:
    """Load over the hours of the day (UTC): converts times of an even load to times of the pattern."""

    def __init__(self, hourly_load: Sequence[float], start_hour: float) -> None:
        """Prepare.

        Args:
            hourly_load: Load of each hour of the day, with a mean of 1; 24 numbers above 0.
            start_hour: Hour of the day at which the load begins, 0 to 24.
        """
        self._ends = np.concatenate([[0.0], np.cumsum(hourly_load)]) / math.fsum(hourly_load) * 24.0
        self._hours = np.arange(25.0)
        self._start_hour = start_hour
        self._start = float(np.interp(start_hour, self._hours, self._ends))

    def times_s(self, even_s: Floats) -> Floats:
        """Return the time of each request, in seconds after the start, ascending as `even_s` is."""
        days, rest = np.divmod(even_s / 3_600 + self._start, 24.0)
        hours: Floats = np.interp(rest, self._ends, self._hours)
        return (hours + days * 24.0 - self._start_hour) * 3_600


def generalised_pareto(chances: Floats, scale: float, shape: float) -> Floats:
    """Return values >= 0 for uniform numbers in 0 <= x < 1."""
    values = np.negative(chances)
    np.log1p(values, out=values)
    if abs(shape) < 1e-9:
        values *= -scale
        return values
    values *= -shape
    np.expm1(values, out=values)
    values *= scale / shape
    return values
