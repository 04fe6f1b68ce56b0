"""Charts: what their texts and points say of requests whose numbers are known."""

from dataclasses import replace

import numpy as np
import pytest
from headrace.cli.bench.models import ETC
from spark_jobs.trace_analysis.cache import Chart
from spark_jobs.trace_analysis.charts import charts_of
from spark_jobs.trace_analysis.summary import summarise

from tests.unit.spark_jobs.trace_parts import START_US, drawn

pytest.importorskip("scipy")
MINUTES_OF_DAY = 1_440


def chart(measure: str, trace_and_requests: tuple) -> Chart:
    trace, requests = trace_and_requests
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
    days = chart("load by day", (trace, requests))
    assert tuple(days.plot.labels) == ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    load = days.plot.series[0].y
    assert np.mean(load[:5]) / np.mean(load[5:]) == pytest.approx(10.0, rel=0.1)
