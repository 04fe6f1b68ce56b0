"""Keys between two requests of a key: those that a loop finds, of all keys or of a sample of them."""

import numpy as np
import pytest
from headrace.wire.request_trace import TableOperation
from spark_jobs.trace_analysis.curves import NEAR, Uses, all_between, counted_between, uses_of
from spark_jobs.trace_analysis.history import by_key

from tests.unit.spark_jobs.test_trace_summary import trace


def made(count: int, keys: int, seed: int) -> tuple[Uses, np.ndarray]:
    """Return uses of keys of which some are used often, and the gets that have one before."""
    chance = np.random.default_rng(seed)
    chosen = (chance.random(count) ** 2 * keys).astype(np.int64)
    hashes = chance.integers(0, 2**64, keys, np.uint64)
    previous, last = np.full(count, -1), {}
    for place, key in enumerate(chosen.tolist()):
        previous[place] = last.get(key, -1)
        last[key] = place
    weights = chance.integers(1, 1_000, keys)[chosen]
    gets = np.flatnonzero((previous >= 0) & (chance.random(count) < 0.3))
    return Uses(hashes[chosen], np.ones(count, np.bool_), previous, weights), gets


def between(uses: Uses, get: int, counted: np.ndarray) -> tuple[int, int]:
    """Return the number and the weight of the counted keys between a get and the use before."""
    found = {
        int(uses.key_hash[place]): int(uses.weights[place])
        for place in range(int(uses.previous[get]) + 1, get)
        if counted[place]
    }
    return len(found), sum(found.values())


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("count", "keys"), [(60, 5), (1_500, 200)])
def test_counted_keys_between_are_those_of_a_loop(count: int, keys: int, fraction: float) -> None:
    """Of gets of keys that are counted themselves, and of others."""
    uses, gets = made(count, keys, seed=count)
    counted = (uses.key_hash >> np.uint64(40)) / 2**24 < fraction
    found = counted_between(uses, gets, counted)
    for place, get in enumerate(gets.tolist()):
        assert (found[0][place], found[1][place]) == between(uses, get, counted)


def test_all_keys_between_near_requests_are_those_of_a_loop() -> None:
    """Each key once, however often it was used."""
    uses, gets = made(2_000, 60, seed=3)
    near = gets[gets - uses.previous[gets] <= NEAR]
    assert len(near) > 100
    found = all_between(uses, near)
    for place, get in enumerate(near.tolist()):
        assert (found[0][place], found[1][place]) == between(uses, get, np.ones(2_000, np.bool_))


def test_uses_are_without_deletes_and_begin_again_after_them() -> None:
    """The use before is that of the same key, unless the key was deleted since; a key weighs the same at every use."""
    requests = trace(keys=40)
    uses = uses_of(requests, by_key(requests.key_hash))
    last: dict[int, int] = {}
    place = 0
    for key, operation in zip(requests.key_hash.tolist(), requests.operation.tolist(), strict=True):
        if operation == TableOperation.DELETE:
            last.pop(key, None)
            continue
        assert (uses.key_hash[place], uses.previous[place]) == (key, last.get(key, -1))
        assert uses.is_get[place] == (operation == TableOperation.GET)
        last[key] = place
        place += 1
    assert place == len(uses.key_hash)
    assert uses.weights.min() >= 10
