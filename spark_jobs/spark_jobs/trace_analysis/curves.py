"""Reuse distances of gets, for the hit rate of an LRU cache by its size.

A request uses a key if it leaves its value in a cache: it found or wrote one. After a delete, or a miss of which the
server says that the key was never written, was deleted or has expired, there is nothing to cache until the next use. A
miss of an unknown cause is a use of what an earlier use left, since a larger cache would have had it.

All gets of a small trace are counted, and of a larger one some that are drawn at random; keys are counted one by one,
so that the draw is the only error. Two requests at one microsecond have no order. So nothing depends on the order in
which requests are read, and each task of Spark draws, and counts its keys for the gets of all tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from headrace.wire.request_trace import RequestOutcome, TableOperation

from spark_jobs.trace_analysis.history import KeyOrder, Positions, keys_of_ranges, previous_positions
from spark_jobs.trace_analysis.requests import TracedRequests

EXACT = 1 << 18
"""Requests up to which all gets are counted."""
DRAWN = 1 << 14
"""Requests of a larger trace that are drawn, on average; the gets among them are counted."""


class Reuses(NamedTuple):
    """Gets that were drawn; columns have one row for each whose key has a value that a use before has left."""

    gets: int
    """Drawn gets, with and without such a use."""
    begin_us: Positions
    """Time of the use before."""
    end_us: Positions
    """Time of the get; one more than `begin_us` if it is the same."""


class Between(NamedTuple):
    """What is used from the use before each get of `Reuses` to the get, with the key itself."""

    keys: Positions
    bytes: Positions
    """Sizes of the keys and of their largest values."""


class Uses(NamedTuple):
    """Requests that use a key, in order of time."""

    at_us: Positions
    previous: Positions
    """Use of the same key before, -1 without one."""
    weights: Positions
    """Size of the key and of its largest value, bytes."""


def share_of_requests(requests: int) -> float:
    """Return the share that is drawn of a trace of this number of requests."""
    return 1.0 if requests <= EXACT else DRAWN / requests


def reuses_of(requests: TracedRequests, keys: KeyOrder, share: float) -> Reuses:
    """Return the gets that are drawn of a share of the requests; the same ones, however keys are divided over tasks."""
    is_used, has_value = _uses_by_key(requests, keys)
    at_us = requests.at_us[keys.order]
    is_get = requests.operation[keys.order] == TableOperation.GET
    if share < 1:
        is_get &= _random(requests.key_hash[keys.order], at_us) < np.uint64(share * 2.0**64)
    places = np.arange(len(at_us))
    last_use = np.maximum.accumulate(np.where(is_used, places, -1))
    reused = np.flatnonzero(is_get & is_used & has_value)
    begin_us, end_us = at_us[last_use[reused - 1]], at_us[reused]
    return Reuses(int(np.count_nonzero(is_get)), begin_us, np.maximum(end_us, begin_us + 1))


def uses_of(requests: TracedRequests, keys: KeyOrder) -> Uses:
    """Return the uses of keys in requests that are in order of time."""
    kept, _ = _uses_by_key(requests, keys)
    positions = keys.order[kept]
    numbers = np.cumsum(keys.first)[kept]
    first = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    used = np.zeros(len(kept), np.bool_)
    used[positions] = True
    order = KeyOrder((np.cumsum(used) - 1)[positions], first)
    weights = np.empty(len(positions), np.int64)
    if len(positions):
        begins = np.flatnonzero(first)
        largest = np.maximum.reduceat(requests.value_bytes[positions], begins).astype(np.int64)
        sizes = largest + requests.key_bytes[positions[begins]]
        weights[order.order] = np.repeat(sizes, np.diff(np.append(begins, len(positions))))
    return Uses(requests.at_us[used], previous_positions(order), weights)


def used_between(uses: Uses, reuses: Reuses) -> Between:
    """Return which of these keys are used between the uses and the gets of any keys."""
    begins, ends = np.searchsorted(uses.at_us, reuses.begin_us), np.searchsorted(uses.at_us, reuses.end_us)
    return Between(*keys_of_ranges(uses.previous, uses.weights, begins, ends))


def joined_reuses(parts: Sequence[Reuses]) -> Reuses:
    """Return the drawn gets of disjoint sets of keys, at least one, in their order."""
    begin_us, end_us = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
    return Reuses(sum(part.gets for part in parts), begin_us, end_us)


def _uses_by_key(requests: TracedRequests, keys: KeyOrder) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which requests use their key, and before which of them a use has left a value; ordered by key."""
    operation, outcome = requests.operation[keys.order], requests.outcome[keys.order]
    fills = (operation != TableOperation.DELETE) & ((outcome == RequestOutcome.DONE) | (outcome == RequestOutcome.HIT))
    empties = (operation == TableOperation.DELETE) | (
        (outcome >= RequestOutcome.MISS_NEVER_WRITTEN) & (outcome <= RequestOutcome.MISS_EXPIRED)
    )
    places = np.arange(len(operation))
    start = np.maximum.accumulate(np.where(keys.first, places, 0))
    last = np.append(-1, np.maximum.accumulate(np.where(fills | empties, places, -1))[:-1])
    has_value = (last >= start) & fills[last]
    return fills | (has_value & (outcome == RequestOutcome.MISS)), has_value


def _random(key_hash: npt.NDArray[np.uint64], at_us: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return an evenly distributed number for each request (the finalizer of SplitMix64)."""
    mixed: npt.NDArray[np.uint64] = key_hash ^ (at_us.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed
