"""Uses of keys, the gets that a cache could answer, and the keys between: as a loop over the requests finds them."""

import numpy as np
import pytest
from headrace.wire.request_trace import RequestOutcome, TableOperation
from spark_jobs.trace_analysis import curves
from spark_jobs.trace_analysis.curves import joined_reuses, reuses_of, share_of_requests, used_between, uses_of
from spark_jobs.trace_analysis.history import by_key
from spark_jobs.trace_analysis.requests import TracedRequests, taken

from tests.unit.spark_jobs.test_trace_summary import trace

EMPTY = (RequestOutcome.MISS_NEVER_WRITTEN, RequestOutcome.MISS_DELETED, RequestOutcome.MISS_EXPIRED)


def uses_by_loop(requests: TracedRequests) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the positions of uses, and those of the gets that a cache could answer with the use before."""
    uses, gets = [], []
    last: dict[int, int] = {}
    held: set[int] = set()
    columns = (requests.key_hash.tolist(), requests.operation.tolist(), requests.outcome.tolist())
    for place, (key, operation, outcome) in enumerate(zip(*columns, strict=True)):
        if operation == TableOperation.DELETE or outcome in EMPTY:
            held.discard(key)
        elif outcome in (RequestOutcome.DONE, RequestOutcome.HIT) or key in held:
            if operation == TableOperation.GET and key in held:
                gets.append((place, last[key]))
            held.add(key)
            last[key] = place
            uses.append(place)
    return uses, gets


def test_uses_and_the_gets_that_a_cache_could_answer_are_those_of_a_loop() -> None:
    """After a delete there is no value until the next use; the use before is that of the same key nevertheless."""
    requests = trace(keys=40)
    keys = by_key(requests.key_hash)
    wanted, gets = uses_by_loop(requests)
    uses, reuses = uses_of(requests, keys), reuses_of(requests, keys, 1.0)
    assert uses.at_us.tolist() == requests.at_us[wanted].tolist()
    hashes = requests.key_hash[wanted]
    last: dict[int, int] = {}
    for place, key in enumerate(hashes.tolist()):
        assert uses.previous[place] == last.get(key, -1)
        last[key] = place
    assert uses.weights.min() >= 10
    assert reuses.gets == np.count_nonzero(requests.operation == TableOperation.GET)
    found = sorted(zip(reuses.end_us.tolist(), reuses.begin_us.tolist(), strict=True))
    assert found == sorted((int(requests.at_us[get]), int(requests.at_us[use])) for get, use in gets)


@pytest.mark.parametrize("parts", [1, 7])
def test_keys_between_are_those_of_a_loop_however_they_are_divided(parts: int) -> None:
    """Each key once, in number and bytes; the sum over parts for the drawn gets of all of them."""
    requests = trace(count=1_500)
    part_of = (requests.key_hash >> np.uint64(13)) % np.uint64(parts)
    held = [taken(requests, np.flatnonzero(part_of == part)) for part in range(parts)]
    keys = [by_key(part.key_hash) for part in held]
    reuses = joined_reuses([reuses_of(part, key, 1.0) for part, key in zip(held, keys, strict=True)])
    between = [used_between(uses_of(part, key), reuses) for part, key in zip(held, keys, strict=True)]
    uses, _ = uses_by_loop(requests)
    sizes: dict[int, int] = {}
    for use in uses:
        key = int(requests.key_hash[use])
        sizes[key] = max(sizes.get(key, 0), int(requests.value_bytes[use]) + int(requests.key_bytes[use]))
    used_us, hashes = requests.at_us[uses], requests.key_hash[uses]
    for place, (begin, end) in enumerate(zip(reuses.begin_us.tolist(), reuses.end_us.tolist(), strict=True)):
        found = set(hashes[(used_us >= begin) & (used_us < end)].tolist())
        assert sum(part.keys[place] for part in between) == len(found)
        assert sum(part.bytes[place] for part in between) == sum(sizes[key] for key in found)


def test_gets_are_drawn_alike_however_keys_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of a long trace, evenly, and the same ones in each division."""
    monkeypatch.setattr(curves, "EXACT", 1_000)
    monkeypatch.setattr(curves, "DRAWN", 2_000)
    requests = trace(count=20_000, keys=3_000)
    share = share_of_requests(20_000)
    assert (share, share_of_requests(1_000)) == (0.1, 1.0)
    whole = reuses_of(requests, by_key(requests.key_hash), share)
    gets = np.count_nonzero(requests.operation == TableOperation.GET)
    assert whole.gets == pytest.approx(0.1 * gets, rel=0.1)
    odd = (requests.key_hash >> np.uint64(13)) % np.uint64(2)
    halves = [taken(requests, np.flatnonzero(odd == half)) for half in range(2)]
    joined = joined_reuses([reuses_of(half, by_key(half.key_hash), share) for half in halves])
    assert joined.gets == whole.gets
    assert sorted(joined.end_us.tolist()) == sorted(whole.end_us.tolist())


def test_requests_at_the_same_time_have_no_order() -> None:
    """Two rounds of a get of five keys at once: between two requests of a key are all five, in any order of reading."""
    chance = np.random.default_rng(2)
    zeros = np.zeros(10, np.uint32)
    requests = TracedRequests(
        np.append(chance.permutation(5), chance.permutation(5)).astype(np.uint64) << np.uint64(40),
        np.repeat(np.array([1_000, 2_000]), 5),
        *(zeros, zeros, zeros, zeros.astype(np.uint16)),
        np.full(10, TableOperation.GET, np.uint8),
        np.full(10, RequestOutcome.HIT, np.uint8),
    )
    keys = by_key(requests.key_hash)
    assert used_between(uses_of(requests, keys), reuses_of(requests, keys, 1.0)).keys.tolist() == [5] * 5
