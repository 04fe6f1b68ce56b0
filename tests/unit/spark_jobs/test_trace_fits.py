"""Fits: the parameters with which requests were generated come back, and what is no such distribution is told."""

from dataclasses import replace

import numpy as np
import pytest
from headrace.cli.bench.distributions import Popularity, SizeModel, Tail
from headrace.cli.bench.models import ETC, POOLS, model_of
from headrace.wire.request_trace import ALL_KEYS
from spark_jobs.trace_analysis.fits import GOOD_DISTANCE, Fit, Interval, fit_all, fit_gev, fit_gpd, fit_zipf
from spark_jobs.trace_analysis.histogram import GROUPS, count_by_group
from spark_jobs.trace_analysis.model import hourly_load, model_of_summary
from spark_jobs.trace_analysis.requests import taken
from spark_jobs.trace_analysis.summary import summarise

from tests.unit.spark_jobs.trace_parts import drawn

pytest.importorskip("scipy")
EVEN = replace(ETC, keys=20_000, hourly_load=())


def counted(numbers: np.ndarray, seed: int = 1) -> np.ndarray:
    groups = np.random.default_rng(seed).integers(0, GROUPS, len(numbers))
    return count_by_group(numbers, groups)


def interval(fit: Fit, name: str) -> Interval:
    found = fit.intervals[name]
    assert found is not None
    return found


@pytest.mark.parametrize(
    "tail", [Tail("gev", 30.8, 8.2, 0.079), Tail("gev", 900.0, 300.0, -0.2), Tail("gev", 50, 5, 0.3)]
)
def test_a_generalized_extreme_value_distribution_comes_back(tail: Tail) -> None:
    """From whole numbers, also those in wide bins; the intervals have the parameters, and the distance is small."""
    sizes = SizeModel((), (), tail, 60_000, least=1).draw(np.random.default_rng(1).random(100_000))
    fit = fit_gev("key_bytes", counted(sizes))
    assert fit is not None
    assert fit.describes
    for name, wanted in (("location", tail.location), ("scale", tail.scale), ("shape", tail.shape)):
        assert fit.parameters[name] == pytest.approx(wanted, rel=0.05)
        low, high = interval(fit, name)
        assert low - (high - low) / 2 < wanted < high + (high - low) / 2
        assert high - low < 0.2 * abs(wanted)


@pytest.mark.parametrize(("scale", "shape", "location"), [(214.476, 0.348238, 15), (2_000.0, -0.1, 0), (40.0, 0.0, 7)])
def test_a_generalized_pareto_distribution_comes_back(scale: float, shape: float, location: int) -> None:
    """With heavy, bounded and exponential tails, from a location on; what is below it does not matter."""
    chance = np.random.default_rng(2)
    numbers = Tail("gpd", float(location), scale, shape).values(chance.random(100_000)).astype(np.int64)
    numbers = np.concatenate([numbers, chance.integers(0, location + 1, 50_000) - 1]) if location else numbers
    fit = fit_gpd("value_bytes", counted(np.maximum(numbers, 0)), location)
    assert fit is not None
    assert fit.describes
    assert fit.parameters["scale"] == pytest.approx(scale, rel=0.05)
    assert fit.parameters["shape"] == pytest.approx(shape, rel=0.05, abs=0.01)


@pytest.mark.parametrize(("exponent", "least"), [(0.99, 40), (1.2, 33)])
def test_intervals_have_the_parameters_if_few_keys_have_most_requests(exponent: float, least: int) -> None:
    """Of 25 traces whose keys have one size each: the most requested keys decide. With those of 1.2 they are rough."""
    chance, tail = np.random.default_rng(1), Tail("gpd", 15.0, 214.476, 0.348238)
    popularity = Popularity(4_000, exponent)
    covered = 0
    for _ in range(25):
        sizes, groups = tail.values(chance.random(4_000)).astype(np.int64), chance.integers(0, GROUPS, 4_000)
        keys = popularity.ranks(chance.random(20_000))
        fit = fit_gpd("value_bytes", count_by_group(sizes[keys], groups[keys]), 15)
        assert fit is not None
        intervals = [(interval(fit, name), getattr(tail, name)) for name in ("scale", "shape")]
        covered += sum(low <= wanted <= high for (low, high), wanted in intervals)
    assert least <= covered <= 50


def test_gaps_of_rounded_times_come_back() -> None:
    """Differences of whole microseconds are as often too long as too short, which a fit must not take for a shift."""
    gaps = Tail("gpd", 0.0, 16.0292, 0.154971).values(np.random.default_rng(3).random(300_000))
    rounded = np.diff(np.cumsum(gaps).astype(np.int64))
    fit = fit_gpd("gap_us", counted(rounded), 0, rounding=0.5)
    assert fit is not None
    assert (fit.parameters["scale"], fit.parameters["shape"]) == pytest.approx((16.0292, 0.154971), rel=0.03)


@pytest.mark.parametrize(
    ("exponent", "keys", "new", "count", "fraction"),
    [(0.99, 20_000, 0.01, 400_000, 1.0), (0.7, 30_000, 0.0, 300_000, 1.0),
     (1.2, 20_000, 0.03, 400_000, 1.0), (0.9, 100_000, 0.02, 1_500_000, 0.25)],
)  # fmt: skip
def test_a_zipf_law_comes_back(exponent: float, keys: int, new: float, count: int, fraction: float) -> None:
    """Exponent, number of keys and rate of new keys, also from a sample of the keys."""
    model = replace(EVEN, zipf_exponent=exponent, keys=keys, new_key_rate=new)
    trace, requests = drawn(model, count, fraction)
    fit = fit_zipf(summarise(requests).requests_of_keys, fraction, trace.seen_requests)
    assert fit is not None
    assert fit.describes
    assert fit.parameters["exponent"] == pytest.approx(exponent, rel=0.05)
    assert fit.parameters["keys"] == pytest.approx(keys, rel=0.05)
    assert fit.parameters["new_key_rate"] == pytest.approx(new, rel=0.05, abs=0.001)
    assert interval(fit, "exponent")[0] < fit.parameters["exponent"] < interval(fit, "exponent")[1]


def test_an_even_popularity_has_an_exponent_near_zero() -> None:
    """The curvature of the likelihood is 0 there; the interval begins at 0 and ends where the law fits less well."""
    fit = fit_zipf(counted(np.random.default_rng(3).poisson(20, 10_000)), 1.0, 200_000)
    assert fit is not None
    assert fit.parameters["exponent"] == pytest.approx(0.0, abs=0.02)
    low, high = interval(fit, "exponent")
    assert low == 0
    assert 0.01 < high < 0.05
    assert fit.parameters["keys"] == pytest.approx(10_000, rel=0.01)


@pytest.mark.parametrize("group", [0, GROUPS - 1])
def test_keys_of_one_group_have_no_distance_and_no_intervals(group: int) -> None:
    """They are all in one half, and there is nothing to compare them with."""
    numbers = np.random.default_rng(1).integers(20, 2_000, 3_000)
    counts = count_by_group(numbers, np.full(3_000, group))
    popularity = count_by_group(np.random.default_rng(1).geometric(0.05, 3_000), np.full(3_000, group))
    for fit in (fit_gpd("value_bytes", counts, 15), fit_zipf(popularity, 1.0, 60_000)):
        assert fit is not None
        assert fit.distance is None
        assert not fit.describes
        assert fit.family == "zipf" or set(fit.intervals.values()) == {None}


def test_a_short_trace_says_that_it_cannot_tell() -> None:
    """A million keys and a twentieth of that in requests: how many keys there are is not known."""
    trace, requests = drawn(replace(EVEN, keys=1_000_000, zipf_exponent=0.3, new_key_rate=0.0), 50_000)
    summary = summarise(requests)
    fit = fit_zipf(summary.requests_of_keys, 1.0, trace.seen_requests)
    assert fit is not None
    model = model_of_summary(summary, {"popularity": fit}, trace)
    assert (model.keys, model.new_key_rate) == (summary.keys, 0.0)
    assert interval(fit, "keys")[1] > 2 * interval(fit, "keys")[0]
    assert "too short" in fit.notes[0]


def test_what_is_no_such_distribution_is_told() -> None:
    """Two sizes far apart: the distance to the held-out half says so; too few or equal sizes have no fit."""
    sizes = np.where(np.random.default_rng(1).random(20_000) < 0.5, 20, 400)
    for numbers in (np.full(20_000, 7), np.arange(500)):
        assert fit_gev("key_bytes", counted(numbers)) is None
    fit = fit_gpd("value_bytes", counted(np.append(sizes, 30)), 15)
    assert fit is not None
    assert fit.distance is not None
    assert fit.distance > 2 * GOOD_DISTANCE
    assert not fit.describes


def test_the_model_of_a_trace_is_that_of_its_requests() -> None:
    """Every parameter of ETC within 5 %, by way of the model's file."""
    trace, requests = drawn(replace(EVEN, keys=60_000), 1_000_000)
    summary = summarise(requests)
    fits = fit_all(summary, trace.fraction, trace.seen_requests)
    model = model_of(model_of_summary(summary, fits, trace).as_json())
    assert dict(model.operations) == pytest.approx(dict(EVEN.operations), rel=0.05)
    assert (model.hit_rate, model.keys) == pytest.approx((EVEN.hit_rate, 60_000), rel=0.05)
    assert (model.zipf_exponent, model.new_key_rate) == pytest.approx((0.99, 0.01), rel=0.05)
    assert model.key_bytes.tail is not None
    assert (model.key_bytes.tail.location, model.key_bytes.tail.scale) == pytest.approx((30.7984, 8.20449), rel=0.05)
    assert model.value_bytes.tail is not None
    assert (model.value_bytes.tail.scale, model.value_bytes.tail.shape) == pytest.approx((214.476, 0.348238), rel=0.05)
    assert model.value_bytes.probabilities[2] == pytest.approx(0.17820, rel=0.05)
    assert (model.gap_us.scale, model.gap_us.shape) == pytest.approx((16.0292, 0.154971), rel=0.05)
    assert model.hourly_load == ()


@pytest.mark.parametrize("fraction", [1.0, 0.2])
def test_the_rate_of_a_model_is_that_of_the_table(fraction: float) -> None:
    """Not that of one of its three servers, whose gaps are in the trace; they lend their shape alone."""
    trace, requests = drawn(EVEN, 60_000)
    server = np.random.default_rng(1).integers(0, 3, len(requests.at_us))
    for each in range(3):
        of_server = np.flatnonzero(server == each)
        requests.gap_us[of_server[1:]] = np.diff(requests.at_us[of_server])
    sampled = np.flatnonzero(requests.key_hash % np.uint64(10) < 10 * fraction)
    summary = summarise(taken(requests, sampled))
    fits = fit_all(summary, fraction, trace.seen_requests)
    model = model_of_summary(summary, fits, replace(trace, threshold=round(fraction * ALL_KEYS)))
    assert model.requests_per_second == pytest.approx(EVEN.requests_per_second, rel=0.03)
    assert model.gap_us.shape == fits["gap_us"].parameters["shape"]


@pytest.mark.parametrize("shape", [1.3, None])
def test_gaps_without_a_mean_become_those_of_independent_requests(shape: float | None) -> None:
    """At the rate of the table, as if there were no fit; requests of one microsecond have no rate."""
    trace, requests = drawn(EVEN, 2_000)
    fit = fit_gpd("gap_us", summarise(requests).gap_us, 0)
    assert fit is not None
    fits = {} if shape is None else {"gap_us": replace(fit, parameters={"location": 0.0, "scale": 1.0, "shape": shape})}
    model = model_of_summary(summarise(requests), fits, trace)
    assert model.gap_us.shape == 0.0
    assert model.requests_per_second == pytest.approx(EVEN.requests_per_second, rel=0.1)
    for seconds in (0, 10**8):
        apart = requests._replace(at_us=requests.at_us[0] + np.arange(2_000) // 1_999 * seconds * 10**6)
        model = model_of_summary(summarise(apart), fits, replace(trace, seen_requests=2))
        assert model_of(model.as_json()) == model


def test_sizes_with_a_very_heavy_tail_are_replayed() -> None:
    """From a shape of 1 on a tail has no mean; sizes are bounded, so that the model is one for all that."""
    trace, requests = drawn(EVEN, 60_000)
    tail = Tail("gpd", 15.0, 100.0, 1.2)
    sizes = SizeModel((), (), tail, 10**6)
    values = sizes.draw(np.random.default_rng(1).random(60_000)).astype(np.uint32)
    summary = summarise(requests._replace(value_bytes=values))
    fits = fit_all(summary, 1.0, trace.seen_requests)
    assert fits["value_bytes"].describes
    model = model_of(model_of_summary(summary, fits, trace).as_json())
    assert model.value_bytes.tail is not None
    assert model.value_bytes.tail.shape == pytest.approx(1.2, rel=0.05)
    assert model.value_bytes.mean() == pytest.approx(sizes.mean(), rel=0.2)


@pytest.mark.parametrize(
    ("keys", "values"), [((16, 21), (2,)), ((16, 21, 100), (20, 400, 401))], ids=["usr", "three sizes"]
)
def test_sizes_without_a_distribution_are_kept_as_they_are(keys: tuple[int, ...], values: tuple[int, ...]) -> None:
    """USR's keys of 16 or 21 bytes and values of 2 have no fit, others have one that does not describe them."""
    key_bytes, value_bytes = (SizeModel(sizes, (1 / len(sizes),) * len(sizes), None, 1_000) for sizes in (keys, values))
    known = replace(POOLS["usr"], keys=5_000, key_bytes=key_bytes, value_bytes=value_bytes)
    trace, requests = drawn(known, 50_000)
    summary = summarise(requests)
    model = model_of_summary(summary, fit_all(summary, trace.fraction, trace.seen_requests), trace)
    assert (model.key_bytes.sizes, model.value_bytes.sizes) == (keys, values)
    assert model.key_bytes.probabilities == pytest.approx(key_bytes.probabilities, abs=0.03)
    assert model_of(model.as_json()) == model


def test_the_load_of_the_hours_comes_back() -> None:
    """Of a trace of three days; less than a day has no daily pattern."""
    slow = replace(ETC, keys=1_000, gap_us=replace(ETC.gap_us, scale=800_000.0))
    _, requests = drawn(slow, 270_000)
    minutes = summarise(requests).minutes
    assert hourly_load(minutes) == pytest.approx(ETC.hourly_load, rel=0.05)
    first = min(minutes)
    assert hourly_load({minute: count for minute, count in minutes.items() if minute < first + 1_200}) == ()


def test_the_load_of_an_hour_counts_its_minutes_without_requests() -> None:
    """A tenth of the load at night, of a small sample: most of the night's minutes have no request at all."""
    first = 28_000_800 + 90
    rates = np.where(np.arange(first, first + 10 * 1_440) % 1_440 < 480, 0.3, 3.0)
    counts = np.random.default_rng(1).poisson(rates).tolist()
    load = hourly_load({first + minute: count for minute, count in enumerate(counts) if count})
    assert np.mean(load) == pytest.approx(1.0)
    assert np.mean(load[8:]) / np.mean(load[:8]) == pytest.approx(10.0, rel=0.1)
