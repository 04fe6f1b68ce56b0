"""Histories of keys and keys of ranges of requests: the same as a loop finds."""

import numpy as np
import pytest
from spark_jobs.trace_analysis.history import by_key, keys_of_ranges, previous_positions


def hashes_of(keys: np.ndarray) -> np.ndarray:
    """Hashes of small numbers, as different as BLAKE2b's are."""
    table = np.random.default_rng(7).integers(0, 2**64, int(keys.max()) + 1, np.uint64)
    return table[keys]


@pytest.mark.parametrize(("count", "keys"), [(1, 1), (2, 1), (300, 7), (1_000, 1_000), (5_000, 90)])
def test_requests_are_ordered_by_key_and_then_as_before(count: int, keys: int) -> None:
    """Every position once, those of a key together and ascending, with its first one marked."""
    chosen = np.random.default_rng(count).integers(0, keys, count)
    order, first = by_key(hashes_of(chosen))
    assert sorted(order.tolist()) == list(range(count))
    seen: set[int] = set()
    for place, position in enumerate(order.tolist()):
        key = int(chosen[position])
        assert first[place] == (key not in seen)
        if not first[place]:
            assert chosen[order[place - 1]] == key
            assert order[place - 1] < position
        seen.add(key)


@pytest.mark.parametrize(
    ("count", "keys", "ranges"),
    [(0, 1, 1), (1, 1, 4), (60, 5, 200), (1_500, 1_500, 300), (1_500, 200, 0), (5_000, 90, 9)],
)
def test_keys_of_ranges_are_those_of_a_loop(count: int, keys: int, ranges: int) -> None:
    """Number and weight of the distinct keys; of empty ranges and of all requests as well."""
    chance = np.random.default_rng(count)
    chosen = (chance.random(count) ** 2 * keys).astype(np.int64)
    previous = previous_positions(by_key(hashes_of(chosen))) if count else np.empty(0, np.int64)
    weights = chance.integers(0, 1_000, keys)[chosen]
    begins, ends = np.sort(chance.integers(0, count + 1, (2, ranges)), axis=0)
    begins[:1], ends[:1] = 0, count
    numbers, sums = keys_of_ranges(previous, weights, begins, ends)
    for place in range(ranges):
        found = dict(zip(*(column[begins[place] : ends[place]].tolist() for column in (chosen, weights)), strict=True))
        assert (numbers[place], sums[place]) == (len(found), sum(found.values()))


def test_previous_positions_are_those_of_the_same_key() -> None:
    """-1 for the first request of a key."""
    chosen = np.array([3, 1, 3, 3, 2, 1])
    assert previous_positions(by_key(hashes_of(chosen))).tolist() == [-1, -1, 0, 2, -1, 1]
