"""Reuse distances of gets, for the hit rate of an LRU cache by its size.

A delete is no use of a key; a get after it finds nothing, whatever the size of the cache. A key that is deleted and
written again counts as two between other requests, which makes distances across deletes a little too long.

Of many requests, gets are drawn at random, and the keys between are counted on a sample of the keys (SHARDS:
Waldspurger et al., FAST 2015), but not limited to gets of these keys: so it does not matter which of the most popular
keys are in the sample. The few keys between two requests that follow closely are counted one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from headrace.wire.request_trace import TableOperation

from spark_jobs.trace_analysis.histogram import BINS, Counts, bins_of
from spark_jobs.trace_analysis.history import KeyOrder, previous_positions, smaller_before
from spark_jobs.trace_analysis.requests import TracedRequests

EXACT = 1 << 18
"""Requests up to which all gets are computed exactly."""
SAMPLES = 4
"""Independent samples of a larger trace, whose spread is the error."""
SAMPLE_REQUESTS = 1 << 15
"""Gets of a sample, and about the requests of its keys."""
NEAR = 128
"""Requests since the one before up to which keys are counted one by one."""
_SAMPLE_SHIFT = np.uint64(20)
_SAMPLE_VALUES = 1 << 24
KIB = 1024


@dataclass(slots=True)
class CurveSample:
    """Reuse distances of gets, scaled to all keys."""

    gets: int
    """Gets of the sample, with and without a distance."""
    distances: Counts
    """Histogram of the numbers of other keys."""
    bytes: Counts
    """Histogram of the KiB of the key, the other keys, and their values."""


class Uses(NamedTuple):
    """Requests that use a key, in order of time."""

    key_hash: npt.NDArray[np.uint64]
    is_get: npt.NDArray[np.bool_]
    previous: npt.NDArray[np.int64]
    """Use of the same key before, -1 without one or if the key was deleted since."""
    weights: npt.NDArray[np.int64]
    """Size of the key and of its largest value, bytes."""


def curves_of(requests: TracedRequests, keys: KeyOrder, part_of: int, seed: int = 1) -> list[CurveSample]:
    """Return the distances of all gets if there are few requests, else of `SAMPLES` samples.

    Args:
        requests: Requests in order of time.
        keys: Their order by key.
        part_of: Number of equal parts of the keys of which these are one.
        seed: Seed of the samples.
    """
    uses = uses_of(requests, keys)
    gets = np.flatnonzero(uses.is_get)
    if not len(gets):
        return []
    count = len(uses.key_hash)
    if count <= EXACT:
        return [_curve(uses, gets, np.ones(count, np.bool_), part_of, 1.0)]
    chance = np.random.default_rng(seed)
    fraction = SAMPLE_REQUESTS / count
    width = max(1, round(fraction * _SAMPLE_VALUES))
    place = ((uses.key_hash >> _SAMPLE_SHIFT) & np.uint64(_SAMPLE_VALUES - 1)).astype(np.int64) // width
    samples = []
    for number in range(SAMPLES):
        drawn = np.sort(chance.choice(gets, min(len(gets), SAMPLE_REQUESTS), replace=False))
        samples.append(_curve(uses, drawn, place == number, part_of, width / _SAMPLE_VALUES))
    return samples


def uses_of(requests: TracedRequests, keys: KeyOrder) -> Uses:
    """Return the uses of keys in requests, with the keys' sizes and the uses before."""
    used = requests.operation != TableOperation.DELETE
    kept = used[keys.order]
    starts = keys.first.copy()
    starts[1:] |= ~kept[:-1]
    places = np.cumsum(used) - 1
    positions = keys.order[kept]
    # A start at a request that is not kept is one at the next that is.
    numbers = np.cumsum(starts)[kept]
    first = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    order = KeyOrder(places[positions], first)
    weights = np.empty(len(positions), np.int64)
    if len(positions):
        begins = np.flatnonzero(first)
        largest = np.maximum.reduceat(requests.value_bytes[positions], begins).astype(np.int64)
        sizes = largest + requests.key_bytes[positions[begins]]
        weights[order.order] = np.repeat(sizes, np.diff(np.append(begins, len(positions))))
    is_get = requests.operation[used] == TableOperation.GET
    return Uses(requests.key_hash[used], is_get, previous_positions(order), weights)


def _curve(
    uses: Uses, gets: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_], part_of: int, fraction: float
) -> CurveSample:
    """Return the distances of gets.

    Args:
        uses: All uses.
        gets: Positions of the gets, ascending.
        counted: bool[n]: whether the key of a use is in the sample on which keys are counted.
        part_of: See `curves_of`.
        fraction: Fraction of the keys that are counted.
    """
    repeated = gets[uses.previous[gets] >= 0]
    near = (repeated - uses.previous[repeated] <= NEAR) & (fraction < 1)
    far_keys, far_bytes = counted_between(uses, repeated[~near], counted)
    near_keys, near_bytes = all_between(uses, repeated[near])
    keys = np.concatenate([far_keys / fraction, near_keys]) * part_of
    weight = np.concatenate([far_bytes / fraction, near_bytes]) * part_of
    own = np.concatenate([uses.weights[repeated[~near]], uses.weights[repeated[near]]])
    return CurveSample(
        gets=len(gets),
        distances=np.bincount(bins_of(keys), minlength=BINS),
        bytes=np.bincount(bins_of((weight + own) / KIB), minlength=BINS),
    )


def counted_between(
    uses: Uses, gets: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number and the bytes of the counted keys between each get and the use of its key before."""
    held = counted.copy()
    held[gets] = True
    positions = np.flatnonzero(held)
    is_counted = counted[positions]
    # Numbers are compared only among these: that of a use is how many of them are up to the use before, twice, and one
    # less if its key is counted, since then the use before is one of them.
    before = np.cumsum(held)
    previous = uses.previous[positions]
    numbers = np.where(previous >= 0, 2 * before[previous] - is_counted, 0)
    keys, weights = is_counted.astype(np.int64), np.where(is_counted, uses.weights[positions], 0)
    found = np.searchsorted(positions, gets)
    smaller, smaller_weight = smaller_before(numbers, np.stack([keys, weights]))[:, found]
    until = np.searchsorted(positions, uses.previous[gets], side="right")
    sums = np.concatenate([[[0], [0]], np.cumsum([keys, weights], axis=1)], axis=1)[:, until]
    return smaller - sums[0], smaller_weight - sums[1]


def all_between(uses: Uses, gets: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number and the bytes of the keys between gets and the uses before, at most `NEAR` requests apart."""
    keys, weights = np.zeros(len(gets), np.int64), np.zeros(len(gets), np.int64)
    previous = uses.previous[gets]
    for after in range(1, NEAR):
        place = previous + after
        inside = np.flatnonzero(place < gets)
        # The first use of its key since.
        new = inside[uses.previous[place[inside]] < previous[inside]]
        keys[new] += 1
        weights[new] += uses.weights[place[new]]
    return keys, weights
