"""Histories of keys and counts of smaller numbers: the same as a loop finds."""

import numpy as np
import pytest
from spark_jobs.trace_analysis.history import by_key, previous_positions, smaller_before


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
    ("count", "most"), [(0, 1), (1, 1), (2, 1), (64, 3), (700, 2_000), (1_023, 100), (1_024, 1 << 30)]
)
def test_smaller_numbers_before_are_those_of_a_loop(count: int, most: int) -> None:
    """Sums of both weights, with equal numbers, at lengths around powers of two."""
    chance = np.random.default_rng(count)
    numbers, weights = chance.integers(0, most, count), chance.integers(0, 1_000, (2, count))
    found = smaller_before(numbers, weights)
    for place in range(count):
        smaller = np.flatnonzero(numbers[:place] < numbers[place])
        assert found[:, place].tolist() == weights[:, smaller].sum(axis=1).tolist()


def test_previous_positions_are_those_of_the_same_key() -> None:
    """-1 for the first request of a key."""
    chosen = np.array([3, 1, 3, 3, 2, 1])
    assert previous_positions(by_key(hashes_of(chosen))).tolist() == [-1, -1, 0, 2, -1, 1]
