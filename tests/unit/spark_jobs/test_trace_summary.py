"""What is counted of a trace is what a loop over its requests counts, in one part or in many."""

from collections import Counter, defaultdict
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from headrace.wire.request_trace import UNKNOWN_GAP_US, RequestOutcome, TableOperation
from spark_jobs.trace_analysis import curves
from spark_jobs.trace_analysis.cache import cache_curve
from spark_jobs.trace_analysis.histogram import MIDDLES
from spark_jobs.trace_analysis.requests import TracedRequests, in_order_of_time, joined, taken
from spark_jobs.trace_analysis.summary import (
    CAUSES,
    WINDOWS_US,
    Summary,
    between_of_part,
    merged,
    summarise,
    summary_of_part,
    with_between,
)

NOON_US = 1_700_049_600_000_000


def trace(count: int = 4_000, keys: int = 150, seed: int = 3) -> TracedRequests:
    """Requests of some hours with every operation and outcome."""
    chance = np.random.default_rng(seed)
    hashes = chance.integers(0, 2**64, keys, np.uint64)
    chosen = (chance.random(count) ** 3 * keys).astype(np.int64)
    operation = chance.choice(5, count, p=[0.7, 0.15, 0.08, 0.04, 0.03]) + 1
    gets = chance.choice(
        [RequestOutcome.HIT, RequestOutcome.MISS, RequestOutcome.MISS_EXPIRED, RequestOutcome.MISS_DELETED], count
    )
    outcome = np.where(operation == TableOperation.GET, gets, RequestOutcome.DONE)
    value = np.where(
        (outcome == RequestOutcome.MISS) | (operation == TableOperation.DELETE), 0, chance.integers(0, 5_000, count)
    )
    return TracedRequests(
        hashes[chosen],
        NOON_US + np.sort(chance.integers(0, 10_000_000_000, count)),
        np.where(chance.random(count) < 0.01, UNKNOWN_GAP_US, chance.integers(0, 3_000, count)).astype(np.uint32),
        chance.integers(0, 200, count).astype(np.uint32),
        value.astype(np.uint32),
        (10 + chosen % 40).astype(np.uint16),
        operation.astype(np.uint8),
        outcome.astype(np.uint8),
    )


def equal(one: Summary, other: Summary) -> bool:
    """Whether all counts are the same, those of gets in any order."""
    for field in fields(Summary):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "windows":
            for name in mine.keys() | theirs.keys():
                assert mine[name].first == theirs[name].first
                for counts in ("requests", "keys", "again"):
                    assert np.array_equal(getattr(mine[name], counts), getattr(theirs[name], counts)), (name, counts)
        elif field.name not in ("reuses", "between"):
            assert np.array_equal(mine, theirs), field.name
    assert one.between is not None
    assert other.between is not None
    assert one.reuses.gets == other.reuses.gets
    rows, others = (np.array([*each.reuses[1:], *each.between]) for each in (one, other))
    assert np.array_equal(rows[:, np.lexsort(rows)], others[:, np.lexsort(others)])
    return True


def counted_in_parts(requests: TracedRequests, parts: int) -> Summary:
    """Return the summary of requests as Spark counts it: of the keys of each task, in two steps."""
    chosen = (requests.key_hash >> np.uint64(13)) % np.uint64(parts)
    held = [taken(requests, np.flatnonzero(chosen == part)) for part in range(parts)]
    share = curves.share_of_requests(len(requests.key_hash))
    summary = merged([summary_of_part(part, share) for part in held])
    return with_between(summary, [between_of_part(part, summary.reuses) for part in held])


def test_causes_of_misses_follow_the_history_of_the_key() -> None:
    """Never there, there and gone, deleted, or as the server says; a miss between changes nothing."""
    get, put, delete, scan = TableOperation.GET, TableOperation.PUT, TableOperation.DELETE, TableOperation.SCAN
    history = [
        (get, RequestOutcome.MISS, "compulsory"),
        (scan, RequestOutcome.DONE, None),
        (get, RequestOutcome.MISS, "compulsory"),
        (put, RequestOutcome.DONE, None),
        (get, RequestOutcome.MISS, "capacity"),
        (delete, RequestOutcome.DONE, None),
        (get, RequestOutcome.MISS, "invalidation"),
        (get, RequestOutcome.MISS, "invalidation"),
        (get, RequestOutcome.HIT, None),
        (get, RequestOutcome.MISS, "capacity"),
        (TableOperation.COMPARE_AND_PUT, RequestOutcome.CONFLICT, None),
        (get, RequestOutcome.MISS_EXPIRED, "expiry"),
        (get, RequestOutcome.MISS_NEVER_WRITTEN, "compulsory"),
        (get, RequestOutcome.MISS_DELETED, "invalidation"),
    ]
    count = len(history)
    zeros = np.zeros(2 * count, np.uint32)
    # A second key, whose requests lie between, has all of it as well.
    requests = TracedRequests(
        np.tile(np.array([5 << 40, 9 << 40], np.uint64), count),
        NOON_US + np.arange(2 * count),
        *(zeros, zeros, zeros, zeros.astype(np.uint16)),
        np.repeat(np.array([operation for operation, _, _ in history], np.uint8), 2),
        np.repeat(np.array([outcome for _, outcome, _ in history], np.uint8), 2),
    )
    expected = Counter(cause for _, _, cause in history if cause)
    assert dict(zip(CAUSES, summarise(requests).causes.tolist(), strict=True)) == {
        cause: 2 * expected[cause] for cause in CAUSES
    }


def test_counts_are_those_of_a_loop() -> None:
    """Operations, sizes, keys, minutes, gaps, reuse periods, latencies."""
    requests = trace()
    found = summarise(requests)
    rows = list(zip(*(column.tolist() for column in requests), strict=True))
    by_key = defaultdict(list)
    for row in rows:
        by_key[row[0]].append(row)
    assert (found.requests, found.keys) == (4_000, len(by_key))
    assert (found.first_us, found.last_us) == (rows[0][1], rows[-1][1])
    for (operation, outcome), count in Counter((row[6], row[7]) for row in rows).items():
        assert found.operations[operation, outcome] == count
    values = [
        row[4] for row in rows if row[7] == RequestOutcome.HIT or (row[6] in (2, 5) and row[7] == RequestOutcome.DONE)
    ]
    assert found.value_bytes.sum() == len(values)
    assert (found.value_bytes.sum(axis=0) * MIDDLES).sum() == pytest.approx(sum(values), rel=0.001)
    assert found.key_bytes.tolist()[:60] == np.bincount([row[5] for row in rows], minlength=60)[:60].tolist()
    sizes = [rows_of_key[0][5] for rows_of_key in by_key.values()]
    assert found.key_bytes_of_keys.sum(axis=0)[:60].tolist() == np.bincount(sizes, minlength=60)[:60].tolist()
    assert found.minutes == Counter(row[1] // 60_000_000 for row in rows)
    assert found.gap_us.sum() == sum(row[2] != UNKNOWN_GAP_US for row in rows)
    periods = [after[1] - before[1] for own in by_key.values() for before, after in pairwise(own)]
    assert found.reuse_us.sum() == len(periods)
    assert (found.reuse_us * MIDDLES).sum() == pytest.approx(sum(periods), rel=0.001)
    counts = np.bincount([len(own) for own in by_key.values()], minlength=1_000)
    assert found.requests_of_keys.sum(axis=0)[:1_000].tolist() == counts[:1_000].tolist()
    latencies = [row[3] for row in rows if row[3] and row[6] == TableOperation.GET]
    assert found.get_latency_us.sum() == len(latencies)


def test_windows_are_those_of_a_loop() -> None:
    """Distinct keys of each window, and how many of them are in the next one."""
    requests = trace()
    found = summarise(requests)
    assert found.windows.keys() == WINDOWS_US.keys()
    for name, length_us in WINDOWS_US.items():
        keys = defaultdict(set)
        counts: Counter[int] = Counter()
        for key, at_us in zip(requests.key_hash.tolist(), requests.at_us.tolist(), strict=True):
            keys[at_us // length_us].add(key)
            counts[at_us // length_us] += 1
        windows = found.windows[name]
        for number, total in enumerate(windows.requests.tolist()):
            window = windows.first + number
            assert (total, windows.keys[number]) == (counts[window], len(keys[window]))
            assert windows.again[number] == len(keys[window] & keys[window + 1])


def test_keys_of_neighbouring_windows_are_not_the_same_key() -> None:
    """One request a key, each a minute after the one before: no key is seen again."""
    count = 20
    zeros = np.zeros(count, np.uint32)
    requests = TracedRequests(
        np.arange(1, count + 1, dtype=np.uint64) << np.uint64(40),
        NOON_US + np.arange(count) * 60_000_000,
        *(zeros, zeros, zeros, zeros.astype(np.uint16), zeros.astype(np.uint8) + np.uint8(1), zeros.astype(np.uint8)),
    )
    windows = summarise(requests).windows["minute"]
    assert windows.keys.tolist() == [1] * count
    assert not windows.again.any()


@pytest.mark.parametrize("parts", [2, 5])
def test_summaries_of_parts_are_that_of_all(parts: int) -> None:
    """Keys divided over tasks, some with a part of the time only."""
    requests = trace()
    assert equal(counted_in_parts(requests, parts), summarise(requests))


def test_requests_of_several_servers_are_ordered_by_time() -> None:
    """Blocks of servers come one after the other; the order within a server stays."""
    requests = trace()
    halves = [taken(requests, np.arange(start, 4_000, 2)) for start in range(2)]
    assert equal(summarise(in_order_of_time(joined(halves))), summarise(requests))


@pytest.mark.parametrize("unit", ["keys", "bytes"])
def test_the_cache_curve_is_that_of_an_lru_cache(unit: str) -> None:
    """The hit rate of gets where a list of keys by their last use is cut at a number of keys, or of bytes."""
    requests = trace(keys=60)
    requests = taken(requests, np.flatnonzero(requests.operation != TableOperation.DELETE))
    requests.outcome[:] = RequestOutcome.HIT
    held: dict[int, int] = defaultdict(int)
    for key, value_bytes, key_bytes in zip(
        requests.key_hash.tolist(), requests.value_bytes.tolist(), requests.key_bytes.tolist(), strict=True
    ):
        held[key] = max(held[key], 1 if unit == "keys" else value_bytes + key_bytes)
    found, rates, errors = cache_curve(summarise(requests), unit)
    assert not errors.any()
    for size, rate in list(zip(found.tolist(), rates.tolist(), strict=True))[::10]:
        by_use: list[int] = []
        hits = gets = 0
        for key, operation in zip(requests.key_hash.tolist(), requests.operation.tolist(), strict=True):
            if key in by_use:
                room = sum(held[other] for other in by_use[by_use.index(key) :])
                hits += operation == TableOperation.GET and room <= size
                by_use.remove(key)
            gets += operation == TableOperation.GET
            by_use.append(key)
        assert rate == pytest.approx(hits / gets, abs=1e-9), size


def test_a_get_after_a_delete_is_no_hit_of_any_cache() -> None:
    """Put, delete, get, again and again: there is nothing that a cache could serve."""
    operations = np.tile(np.array([TableOperation.PUT, TableOperation.DELETE, TableOperation.GET], np.uint8), 50)
    count = len(operations)
    zeros = np.zeros(count, np.uint32)
    requests = TracedRequests(
        np.full(count, 1 << 50, np.uint64),
        NOON_US + np.arange(count),
        *(zeros, zeros, zeros, zeros.astype(np.uint16), operations, zeros.astype(np.uint8)),
    )
    sizes, _, _ = cache_curve(summarise(requests), "keys")
    assert not len(sizes)


@pytest.mark.parametrize(
    ("history", "rate"),
    [
        ([(TableOperation.GET, RequestOutcome.MISS_NEVER_WRITTEN)] * 4, 0),
        ([(TableOperation.GET, RequestOutcome.MISS)] * 4, 0),
        ([(TableOperation.PUT, RequestOutcome.DONE), *[(TableOperation.GET, RequestOutcome.MISS_EXPIRED)] * 4], 0),
        ([(TableOperation.PUT, RequestOutcome.DONE), *[(TableOperation.GET, RequestOutcome.MISS)] * 4], 1),
        (
            [(TableOperation.COMPARE_AND_PUT, RequestOutcome.CONFLICT), (TableOperation.GET, RequestOutcome.HIT)] * 2,
            0.5,
        ),
        ([(TableOperation.GET, outcome) for outcome in (RequestOutcome.MISS_EXPIRED, RequestOutcome.HIT)] * 4, 0),
    ],
)
def test_a_cache_answers_only_gets_whose_value_a_request_has_left(
    history: list[tuple[TableOperation, RequestOutcome]], rate: float
) -> None:
    """Not those of a key that is not there; what is gone for an unknown reason a larger cache would have had."""
    operations, outcomes = (np.array(column, np.uint8) for column in zip(*history, strict=True))
    count = len(history)
    zeros = np.zeros(count, np.uint32)
    columns = (zeros, zeros, zeros, zeros.astype(np.uint16), operations, outcomes)
    requests = TracedRequests(np.full(count, 1 << 50, np.uint64), NOON_US + np.arange(count), *columns)
    _, rates, _ = cache_curve(summarise(requests), "keys")
    assert rates.tolist() == ([rate] if rate else [])


def gets_of(chosen: np.ndarray, keys: int) -> TracedRequests:
    """Return gets of these keys, which all find a value of 100 bytes, a microsecond after the other."""
    count = len(chosen)
    zeros = np.zeros(count, np.uint32)
    return TracedRequests(
        np.random.default_rng(5).integers(0, 2**64, keys, np.uint64)[chosen],
        NOON_US + np.arange(count),
        *(zeros, zeros, zeros + np.uint32(100), (zeros + 20).astype(np.uint16)),
        *(np.full(count, TableOperation.GET, np.uint8), np.full(count, RequestOutcome.HIT, np.uint8)),
    )


def test_a_drawn_curve_is_near_the_exact_one_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trace of which few gets are drawn, with popular keys: within twice its interval at every size."""
    chance = np.random.default_rng(7)
    requests = gets_of((chance.random(60_000) ** 4 * 8_000).astype(np.int64), 8_000)
    exact = {unit: cache_curve(summarise(requests), unit) for unit in ("keys", "bytes")}
    monkeypatch.setattr(curves, "EXACT", 1_000)
    monkeypatch.setattr(curves, "DRAWN", 6_000)
    summary = summarise(requests)
    for unit, (sizes, rates, errors) in exact.items():
        found, near, half_widths = cache_curve(summary, unit)
        assert not errors.any()
        assert half_widths.max() < 0.015
        for size, rate in list(zip(sizes.tolist(), rates.tolist(), strict=True))[:-1]:
            place = np.searchsorted(found, size, side="right") - 1
            before = near[place] if place >= 0 else 0.0
            after = near[min(place + 1, len(near) - 1)]
            margin = 2 * float(np.interp(size, found, half_widths)) + 0.001
            assert before - margin <= rate <= after + margin, (unit, size)


def test_a_curve_that_was_counted_in_parts_is_that_of_all() -> None:
    """With one key that has half of the requests, which is in one part."""
    chance = np.random.default_rng(5)
    count = 20_000
    chosen = np.where(chance.random(count) < 0.5, 0, chance.integers(1, 5_000, count))
    requests = gets_of(chosen, 5_000)
    for unit in ("keys", "bytes"):
        whole, parts = cache_curve(summarise(requests), unit), cache_curve(counted_in_parts(requests, 8), unit)
        for one, other in zip(whole, parts, strict=True):
            assert one.tolist() == other.tolist()
    sizes, rates, _ = cache_curve(summarise(requests), "keys")
    assert np.interp(10, sizes, rates) == pytest.approx(0.5, abs=0.01)
