"""Distributions fitted to a summary: GEV for key sizes, generalized Pareto for value sizes and gaps, Zipf for keys.

All are maximum likelihood of the counts in their bins, so that sizes that are whole numbers are fitted as such. The
Zipf law is fitted to the number of keys by number of requests: requests of the key of rank r are Poisson with a mean of
A r^-s, for r = 1 to N, each key is in the sample by its fraction, and keys that are requested once beyond what that law
explains are a number of their own. So ranks, which a sample does not have, are not needed. Ranks are a continuous
measure: the few most popular keys of a trace are where they are by chance, and must not decide alone.

Confidence of sizes and gaps is the jackknife over `GROUPS` groups of keys: all data without each are fitted, and the
spread of the parameters is that of the whole by Student's t. Requests of a key are not independent, which an interval
from the number of requests would ignore. Groups with popular keys weigh more, which the spread of fits of each group
alone would ignore. With few keys that have most requests it is rough. Zipf's is from the curvature of the likelihood,
or from its profile near an exponent of 0, where it has none.

Goodness of fit is the Kolmogorov-Smirnov distance to the half of the keys on which the distribution was not fitted.
Needs scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from headrace.cli.bench.distributions import Tail
from headrace.cli.bench.models import MAX_SHAPE
from scipy import optimize, special

from spark_jobs.trace_analysis.histogram import EDGES, EXACT, GROUPS, MIDDLES, Counts, Floats
from spark_jobs.trace_analysis.summary import Summary

LEAST_COUNT = 1_000
"""Numbers below which nothing is fitted."""
TAIL_START = 15
"""Values below are counted by size, values from here on are fitted, as in the study."""
GOOD_DISTANCE = 0.05
"""Kolmogorov-Smirnov distance up to which a fit describes the data."""
CONFIDENCE = 0.95
RANK_STEP = 1.03
MAX_RANK = 1e12
PIVOT_KEY = 100
COUNT_STEP = 1.15
MAX_EXPONENT = 5.0
_NEVER = 1e30
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """Distribution fitted to data."""

    name: str
    """What it describes: key_bytes, value_bytes, gap_us or popularity."""
    family: Literal["gev", "gpd", "zipf"]
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval | None]
    """Interval of each parameter at `CONFIDENCE`; `None` if it is not known."""
    distance: float | None
    """Kolmogorov-Smirnov distance to the held-out half of the keys; `None` if one half has no numbers, or keys."""
    held_out: int
    """Numbers, or keys, in that half."""
    fitted: int
    """Numbers, or keys, in all data."""
    notes: tuple[str, ...] = field(default=())

    @property
    def describes(self) -> bool:
        """Whether the distance is at most `GOOD_DISTANCE`."""
        return self.distance is not None and self.distance <= GOOD_DISTANCE

    @property
    def tail(self) -> Tail:
        """The distribution of a `gev` or `gpd`."""
        assert self.family != "zipf"
        return Tail(self.family, *(self.parameters[name] for name in ("location", "scale", "shape")))


def fit_all(summary: Summary, fraction: float, requests: int) -> dict[str, Fit]:
    """Return the fits of a summary by name; those with too little data are missing.

    Args:
        summary: Counts of a trace.
        fraction: Fraction of the keys that are in it.
        requests: Number of requests of all keys.
    """
    found = (
        fit_gev("key_bytes", summary.key_bytes_of_keys),
        fit_gpd("value_bytes", summary.value_bytes, TAIL_START),
        fit_gpd("gap_us", summary.gap_us, 0, rounding=0.5),
        fit_zipf(summary.requests_of_keys, fraction, requests),
    )
    return {fit.name: fit for fit in found if fit is not None}


def fit_gev(name: str, counts: Counts) -> Fit | None:
    """Return the generalized extreme value distribution of sizes; `None` if there are too few or they are all equal.

    Args:
        name: What is fitted.
        counts: int64[GROUPS, BINS].
    """

    def start(bins: Counts) -> list[float]:
        mean, deviation = _moments(bins, 0.0)
        scale = max(deviation * math.sqrt(6) / math.pi, 1e-3)
        return [mean - 0.5772 * scale, math.log(scale), 0.05]

    def tail(numbers: Floats) -> Tail:
        return Tail("gev", float(numbers[0]), math.exp(min(numbers[1], 50.0)), float(numbers[2]))

    return _fit_tail(name, counts, 0, 0.0, start, tail)


def fit_gpd(name: str, counts: Counts, location: int, rounding: float = 0.0) -> Fit | None:
    """Return the generalized Pareto distribution of the numbers from `location` on; `None` if there are too few.

    Args:
        name: What is fitted.
        counts: int64[GROUPS, BINS].
        location: First number, below EXACT.
        rounding: What a number may be below its bin, because it is the difference of two rounded ones.
    """

    def start(bins: Counts) -> list[float]:
        mean, deviation = _moments(bins, location)
        shape = min(0.4, max(-0.4, (1 - mean**2 / max(deviation, 1e-3) ** 2) / 2))
        return [math.log(max(mean * (1 - shape), 1e-3)), shape]

    def tail(numbers: Floats) -> Tail:
        return Tail("gpd", float(location), math.exp(min(numbers[0], 50.0)), float(numbers[1]))

    return _fit_tail(name, counts, location, rounding, start, tail)


def _fit_tail(
    name: str,
    counts: Counts,
    first_bin: int,
    rounding: float,
    start: Callable[[Counts], list[float]],
    tail: Callable[[Floats], Tail],
) -> Fit | None:
    counts = counts.copy()
    counts[:, :first_bin] = 0
    total = counts.sum(axis=0)
    if total.sum() < LEAST_COUNT or np.count_nonzero(total) < 3:
        return None

    def fitted(bins: Counts, begin: list[float]) -> Floats:
        used = np.flatnonzero(bins)
        low, high = EDGES[used] - rounding * (used < EXACT), EDGES[used + 1] - rounding * (used + 1 < EXACT)
        held = bins[used]

        def loss(numbers: Floats) -> float:
            of = tail(numbers)
            if not -2 < of.shape < MAX_SHAPE:
                return _NEVER
            shares = of.distribution(high) - of.distribution(low)
            return -float((held * np.log(np.maximum(shares, 1e-300))).sum()) / float(held.sum())

        return _minimum(loss, begin)

    whole = fitted(total, start(total))
    best = tail(whole)
    train, held_out = counts[: GROUPS // 2].sum(axis=0), counts[GROUPS // 2 :].sum(axis=0)
    distance = None
    if train.any() and held_out.any():
        expected = tail(fitted(train, list(whole))).distribution(EDGES[first_bin + 1 :] - rounding)
        distance = _distance(held_out[first_bin:], expected)
    rests = [total - group for group in counts if group.any()]
    known = all(np.count_nonzero(rest) >= 3 for rest in rests)
    others = [tail(fitted(rest, list(whole))) for rest in rests] if known else []
    parameters = {"location": best.location, "scale": best.scale, "shape": best.shape}
    intervals = {name: _interval([getattr(other, name) for other in others], at) for name, at in parameters.items()}
    return Fit(name, best.family, parameters, intervals, distance, int(held_out.sum()), int(total.sum()))


def fit_zipf(counts: Counts, fraction: float, requests: int) -> Fit | None:
    """Return the Zipf law of the keys' popularity; `None` if there are too few keys.

    Args:
        counts: int64[GROUPS, BINS]: keys by number of requests.
        fraction: Fraction of the keys that are counted.
        requests: Number of requests of all keys: that of a sample depends on whether it has the most popular ones.
    """
    total = counts.sum(axis=0)
    if total.sum() < LEAST_COUNT // 10 or np.count_nonzero(total) < 3:
        return None
    spectrum = _Spectrum(total, fraction)
    log_all = math.log(float(total.sum()) / fraction)
    begins = ([spectrum.log_pivot, exponent, log_all] for exponent in (0.6, 1.0, 1.4))
    best = min((_minimum(spectrum.loss, begin) for begin in begins), key=spectrum.loss)
    # A simplex may shrink in a narrow valley; a new one continues.
    best = _minimum(spectrum.loss, list(best))
    errors = spectrum.errors(best)
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    exponent, log_keys = float(best[1]), float(best[2])
    new_key_rate = spectrum.new_keys(best) / fraction / requests
    # Keys that are requested once are Poisson: those that the law explains and the others.
    rate_error = z * math.sqrt(max(1.0, float(total[1]))) / fraction / requests
    parameters = {"exponent": exponent, "keys": math.exp(log_keys), "new_key_rate": new_key_rate}
    least, most = exponent - z * errors[1], exponent + z * errors[1]
    keys = None
    if math.isfinite(errors[2]):
        keys = (math.exp(log_keys - z * errors[2]), math.exp(min(log_keys + z * errors[2], 100.0)))
    intervals = {
        "exponent": (least, most) if least >= 0 else _flat_exponent(spectrum, best, z),
        "keys": keys,
        "new_key_rate": (max(0.0, new_key_rate - rate_error), new_key_rate + rate_error),
    }
    train, held_out = counts[: GROUPS // 2].sum(axis=0), counts[GROUPS // 2 :].sum(axis=0)
    distance = None
    if train.any() and held_out.any():
        half = _Spectrum(train, fraction / 2)
        expected = half.expected(_minimum(half.loss, list(best)))
        distance = _distance(half.binned(held_out), np.cumsum(expected) / max(expected.sum(), 1e-300))
    notes: tuple[str, ...] = ()
    if keys is None or keys[1] > 2 * keys[0]:
        short = "The trace is too short to tell keys that are used rarely from keys that are used once."
        notes = (f"{short} The model has the number of keys in the trace, and no new ones.",)
    return Fit("popularity", "zipf", parameters, intervals, distance, int(held_out.sum()), int(total.sum()), notes)


class _Spectrum:
    """Number of keys by number of requests, in bins, and what a Zipf law expects."""

    def __init__(self, counts: Counts, fraction: float) -> None:
        largest = int(np.flatnonzero(counts)[-1]) if counts.any() else 1
        limit = float(EDGES[largest + 1])
        starts = [*range(1, 17)]
        while starts[-1] < 3 * limit:
            starts.append(math.ceil(starts[-1] * COUNT_STEP))
        self._starts = np.array(starts, np.float64)
        self._fraction = fraction
        self._counts = self.binned(counts).astype(np.float64)
        self._ranks = 0.5 * RANK_STEP ** np.arange(math.log(2 * MAX_RANK) / math.log(RANK_STEP))
        # A key in the middle of the popular ones: its mean varies little with the exponent, as that of rank 1 does.
        pivot = max(1, min(PIVOT_KEY, int(counts.sum()) // 10))
        self._pivot_rank = pivot / fraction
        used = np.flatnonzero(counts)[::-1]
        self.log_pivot = math.log(MIDDLES[used[np.searchsorted(np.cumsum(counts[used]), pivot)]])
        """Logarithm of the number of requests of the key of rank `PIVOT_KEY` in the sample, about."""

    def binned(self, counts: Counts) -> Counts:
        """Return the number of keys in each bin; the last one has no end."""
        used = np.flatnonzero(counts)
        place = np.searchsorted(self._starts, MIDDLES[used], side="right") - 1
        return np.bincount(place[place >= 0], counts[used][place >= 0], minlength=len(self._starts)).astype(np.int64)

    def expected(self, numbers: Floats) -> Floats:
        """Return the expected number of keys in each bin for (log mean of the pivot, s, log N), and new ones."""
        found = self._of_law(numbers)
        found[0] += max(0.0, self._counts[0] - found[0])
        return found

    def new_keys(self, numbers: Floats) -> float:
        """Return the number of keys with one request that the law does not explain."""
        return max(0.0, float(self._counts[0] - self._of_law(numbers)[0]))

    def loss(self, numbers: Floats) -> float:
        """Return the negative logarithm of the likelihood, without constants."""
        if not (-5 < numbers[0] < 60 and 0 <= numbers[1] < MAX_EXPONENT and 0 <= numbers[2] < math.log(MAX_RANK)):
            return _NEVER
        expected = np.maximum(self.expected(numbers), 1e-12)
        return float((expected - self._counts * np.log(expected)).sum())

    def errors(self, numbers: Floats) -> list[float]:
        """Return the standard errors of the three numbers, by Fisher's information of the expected numbers.

        One that is not known is infinite.
        """
        steps = np.maximum(np.abs(numbers), 0.1) * 1e-3
        changes = np.array(
            [
                (self._of_law(numbers + step) - self._of_law(numbers - step)) / (2 * step.sum())
                for step in np.diag(steps)
            ]
        )
        expected = np.maximum(self._of_law(numbers), 1e-12)
        # The number of keys with one request is explained by the new keys, whatever the law is.
        informative = slice(1 if self.new_keys(numbers) else 0, None)
        information = (changes[:, informative] / expected[informative]) @ changes[:, informative].T
        try:
            variances = np.diag(np.linalg.inv(information)).tolist()
        except np.linalg.LinAlgError:
            return [math.inf] * len(numbers)
        return [math.sqrt(variance) if variance > 0 else math.inf for variance in variances]

    def _of_law(self, numbers: Floats) -> Floats:
        pivot, exponent, keys = math.exp(numbers[0]), numbers[1], math.exp(numbers[2])
        width = np.clip(keys + 0.5 - self._ranks[:-1], 0.0, np.diff(self._ranks))
        used = width > 0
        middle = self._ranks[:-1][used] + width[used] / 2
        means = pivot * (middle / self._pivot_rank) ** -exponent
        # Far from the mean the Poisson distribution function is 0 or 1.
        from_mean = self._starts[:, None] - 1 - means
        below = (from_mean > 0).astype(np.float64)
        near = np.nonzero(np.abs(from_mean) < 8 * np.sqrt(means) + 16)
        below[near] = special.pdtr(self._starts[near[0]] - 1, means[near[1]])
        shares = np.diff(np.vstack([below, np.ones(len(means))]), axis=0)
        found: Floats = shares @ width[used] * self._fraction
        return found


def _minimum(loss: Callable[[Floats], float], begin: list[float]) -> Floats:
    options = {"xatol": 1e-5, "fatol": 1e-9, "maxiter": 1_000}
    found: Floats = optimize.minimize(loss, np.array(begin), method="Nelder-Mead", options=options).x
    return found


def _flat_exponent(spectrum: _Spectrum, best: Floats, z: float) -> Interval:
    """Return the interval of an exponent near 0, where the curvature says nothing: the sign changes nothing there.

    It has the exponents whose likelihood, with the other numbers that fit them best, is at most z^2 / 2 lower.
    """
    lowest = spectrum.loss(best) + z * z / 2

    def excess(exponent: float) -> float:
        def loss(others: Floats) -> float:
            return spectrum.loss(np.array([others[0], exponent, others[1]]))

        return loss(_minimum(loss, [best[0], best[2]])) - lowest

    exponent, end = float(best[1]), MAX_EXPONENT * (1 - 1e-9)
    low = optimize.brentq(excess, 0.0, exponent, xtol=1e-3) if excess(0.0) > 0 else 0.0
    high = optimize.brentq(excess, exponent, end, xtol=1e-3) if excess(end) > 0 else end
    return (float(low), float(high))


def _interval(values: list[float], at: float) -> Interval | None:
    """Return the interval of a parameter from those of the data without each group of keys: the jackknife."""
    count = len(values)
    if count < 2:
        return None
    deviation = float(np.std(values)) * math.sqrt(count - 1)
    error = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * deviation
    return (at - error, at + error)


def _distance(counts: Counts, expected: Floats) -> float:
    """Return the largest difference of two distribution functions at the ends of the bins; `counts` has some."""
    return float(np.abs(np.cumsum(counts) / counts.sum() - expected).max())


def _moments(counts: Counts, location: float) -> tuple[float, float]:
    total = float(counts.sum())
    values = MIDDLES + 0.5 - location
    mean = float((counts * values).sum()) / total
    return mean, math.sqrt(max(0.0, float((counts * (values - mean) ** 2).sum()) / total))
