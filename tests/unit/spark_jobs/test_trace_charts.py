"""Charts: what their texts and points say of requests whose numbers are known."""

from dataclasses import replace

import numpy as np
import pytest
from headrace.cli.bench.models import ETC
from spark_jobs.trace_analysis.cache import Chart
from spark_jobs.trace_analysis.charts import charts_of
from spark_jobs.trace_analysis.requests import TableTrace, TracedRequests
from spark_jobs.trace_analysis.summary import summarise

from tests.unit.spark_jobs.trace_parts import START_US, drawn

pytest.importorskip("scipy")
MINUTES_OF_DAY = 1_440


def chart(measure: str, trace: TableTrace, requests: TracedRequests) -> Chart:
    (found,) = [each for each in charts_of(summarise(requests), trace, {}) if each.measure == measure]
    return found


def test_the_load_of_a_weekday_counts_its_minutes_without_requests() -> None:
    """Two weeks from a Wednesday 00:00 UTC on; a tenth of the load at weekends, where most minutes have no request."""
    chance = np.random.default_rng(1)
    minutes = np.arange(14 * MINUTES_OF_DAY)
    is_weekend = np.isin(minutes // MINUTES_OF_DAY % 7, (3, 4))
    counts = chance.poisson(np.where(is_weekend, 0.3, 3.0))
    trace, requests = drawn(replace(ETC, keys=100, hourly_load=()), int(counts.sum()))
    requests = requests._replace(at_us=START_US + np.repeat(minutes, counts) * 60_000_000)
    days = chart("load by day", trace, requests)
    assert tuple(days.plot.labels) == ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    load = days.plot.series[0].y
    assert np.mean(load[:5]) / np.mean(load[5:]) == pytest.approx(10.0, rel=0.1)


def requests_of_keys(counts: np.ndarray) -> tuple[TableTrace, TracedRequests]:
    """Requests of as many keys as there are numbers, each requested as often as its number says."""
    trace, requests = drawn(replace(ETC, keys=1), int(counts.sum()))
    hashes = np.random.default_rng(1).integers(0, 2**64, len(counts), np.uint64)
    trace.seen_requests = trace.requests
    return trace, requests._replace(key_hash=np.repeat(hashes, counts))


TOP, ONE_PERCENT, HALF = (
    "The most requested key of the trace has {} of its requests",
    "; 1 % of the keys have {}",
    "; the less requested half of the keys has {}",
)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (
            np.where(np.arange(10_000) < 3_000, 2, 1),
            f"{TOP.format('0.0%')}{ONE_PERCENT.format('1.5%')}{HALF.format('38.5%')}.",
        ),
        (np.full(10_000, 3), f"{TOP.format('0.0%')}{ONE_PERCENT.format('1.0%')}{HALF.format('50.0%')}."),
        (np.array([60, 30, 5, 5]), f"{TOP.format('60.0%')}{HALF.format('10.0%')}."),
        (np.array([7]), f"{TOP.format('100.0%')}."),
    ],
    ids=["two counts", "one count", "few keys", "one key"],
)
def test_keys_that_are_requested_as_often_share_their_requests(counts: np.ndarray, text: str) -> None:
    """In the text and in the plot, which begins at the most requested key, as that of the popularity does."""
    trace, requests = requests_of_keys(counts)
    concentration = chart("concentration", trace, requests)
    assert concentration.text == text
    (series,) = concentration.plot.series
    assert series.x[0] == pytest.approx(1 / len(counts))
    exact = np.append(0, np.cumsum(-np.sort(-counts))) / counts.sum()
    assert series.y == pytest.approx(np.interp(series.x, np.linspace(0, 1, len(exact)), exact))
    popularity = chart("popularity", trace, requests).plot.series[0]
    assert (popularity.x[0], popularity.y[0]) == (1.0, max(counts))
