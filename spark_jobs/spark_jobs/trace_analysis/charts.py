"""Results of an analysis as charts: what each shows, its data, and the rows of the Parquet table. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from headrace.wire.request_trace import TableOperation

from spark_jobs.trace_analysis.cache import SHARE, Chart, cache_charts
from spark_jobs.trace_analysis.fits import TAIL_START, Fit
from spark_jobs.trace_analysis.histogram import EDGES, MIDDLES, Counts, Floats
from spark_jobs.trace_analysis.model import MINUTES_OF_DAY, hourly_load, traced_minutes
from spark_jobs.trace_analysis.plots import Axis, Plot, Series
from spark_jobs.trace_analysis.requests import TableTrace
from spark_jobs.trace_analysis.summary import CAUSES, Summary

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
CONCENTRATION_POINTS = 200
_EPOCH_WEEKDAY = 3
"""1970-01-01 was a Thursday."""


def charts_of(summary: Summary, trace: TableTrace, fits: Mapping[str, Fit]) -> list[Chart]:
    """Return the charts of an analysis; those without data are missing."""
    found = [
        _composition(summary),
        _load(summary, trace),
        _hours(summary),
        _weekdays(summary),
        _key_sizes(summary, fits),
        _value_sizes(summary, fits),
        _misses(summary),
        _popularity(summary, trace, fits),
        _concentration(summary),
        _reuse(summary),
        *_windows(summary),
        _gaps(summary, fits),
        *cache_charts(summary, trace),
        _latency(summary),
    ]
    return [chart for chart in found if chart is not None]


def rows(charts: Sequence[Chart], fits: Mapping[str, Fit]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the Parquet table: a point of a plot, or a parameter of a fit with its interval."""
    for chart in charts:
        plot = chart.plot
        for series in plot.series:
            for x, y in zip(series.x, series.y, strict=True):
                label = plot.labels[int(x)] if plot.labels else None
                units = {"x_label": plot.x.label, "y_label": plot.y.label}
                yield {"measure": chart.measure, "series": series.label, "name": label, "x": x, "y": y, **units}
    for fit in fits.values():
        of = {"measure": f"fit of {fit.name}", "series": fit.family}
        for name, value in fit.parameters.items():
            low, high = fit.intervals[name] or (None, None)
            yield {**of, "name": name, "y": value, "y_low": low, "y_high": high}
        yield {**of, "name": "kolmogorov_smirnov_distance", "y": fit.distance}


def cumulative(counts: Counts, weights: Floats | None = None) -> Series:
    """Return the distribution function of a histogram, by number or by weight of the numbers; without a label."""
    held = counts * weights if weights is not None else counts.astype(np.float64)
    used = np.flatnonzero(held)
    if not len(used):
        return Series("", (), ())
    shares = np.cumsum(held[used]) / held.sum()
    before = max(EDGES[used[0]] - 1, 0.0)
    return Series("", [before, *np.maximum(EDGES[used + 1] - 1, 0).tolist()], [0.0, *shares.tolist()])


def _composition(summary: Summary) -> Chart:
    used = [operation for operation in TableOperation if summary.of_operation(operation)]
    shares = [summary.of_operation(operation) / summary.requests for operation in used]
    plot = Plot(
        "Share of each operation",
        Axis("operation"),
        Axis("share of requests", percent=True, low=0.0, high=max(1.0, *shares)),
        [Series("share", list(range(len(used))), shares)],
        "bar",
        [operation.name.lower() for operation in used],
    )
    writes = sum(
        summary.of_operation(each)
        for each in (TableOperation.PUT, TableOperation.COMPARE_AND_PUT, TableOperation.DELETE)
    )
    ratio = f"{summary.gets / writes:.3g} gets for each put or delete." if writes else "The trace has no write."
    return Chart("composition", "What is requested", ratio, plot)


def _load(summary: Summary, trace: TableTrace) -> Chart | None:
    minutes = sorted(summary.minutes)
    if len(minutes) < 3:
        return None
    first, last = minutes[0], minutes[-1]
    width = max(1, (last - first + 1) // 300)
    counts: dict[int, int] = {}
    for minute, requests in summary.minutes.items():
        counts[(minute - first) // width] = counts.get((minute - first) // width, 0) + requests
    scale = trace.seen_requests / max(1, summary.requests) / (width * 60)
    spans = range((last - first) // width + 1)
    # The first and the last are not whole.
    inner = [span for span in spans if 0 < span < len(spans) - 1] or list(spans)
    hours = [(span * width) / 60 for span in inner]
    rates = [counts.get(span, 0) * scale for span in inner]
    start = datetime.fromtimestamp(first * 60, UTC).strftime("%Y-%m-%d %H:%M")
    plot = Plot(
        "Requests a second over time",
        Axis(f"hours since {start} UTC"),
        Axis("requests/s", low=0.0),
        [Series("requests/s", hours, rates)],
        "step",
    )
    peak = f"The peak is {max(rates):,.4g} requests/s."
    text = f"All requests of the table, on average over {width} min. {peak}"
    if trace.fraction < 1:
        text += (
            f" Its course is that of a sample of {trace.fraction:.3g} of the keys; the mean is that of all requests."
        )
    return Chart("load", "Load over the trace", text, plot)


def _hours(summary: Summary) -> Chart | None:
    load = hourly_load(summary.minutes)
    if not load:
        return None
    busiest, quietest = int(np.argmax(load)), int(np.argmin(load))
    plot = Plot(
        "Load of each hour of the day relative to the mean",
        Axis("hour of the day, UTC", ticks=[(hour, str(hour)) for hour in range(0, 24, 3)]),
        Axis("load / mean load", low=0.0),
        [Series("load", list(range(24)), list(load))],
        "bar",
    )
    times = load[busiest] / load[quietest]
    text = f"The busiest hour is {busiest} h, with {times:.2f} times the load of {quietest} h UTC."
    return Chart("load by hour", "Load over the day", text, plot)


def _weekdays(summary: Summary) -> Chart | None:
    requests = np.zeros(7)
    for minute, count in summary.minutes.items():
        requests[(minute // MINUTES_OF_DAY + _EPOCH_WEEKDAY) % 7] += count
    # A week of minutes since 1970 begins on a Thursday.
    traced = np.roll(traced_minutes(summary.minutes, 7 * MINUTES_OF_DAY, 7), _EPOCH_WEEKDAY)
    used = np.flatnonzero((traced > MINUTES_OF_DAY / 2) & (requests > 0))
    if len(used) < 3:
        return None
    load = requests[used] / traced[used]
    plot = Plot(
        "Load of each day of the week relative to the mean",
        Axis("day of the week, UTC"),
        Axis("load / mean load", low=0.0),
        [Series("load", list(range(len(used))), (load / load.mean()).tolist())],
        "bar",
        [DAYS[day] for day in used],
    )
    return Chart("load by day", "Load over the week", "Days of which the trace has more than half.", plot)


def _key_sizes(summary: Summary, fits: Mapping[str, Fit]) -> Chart:
    series = [
        _named("by request", cumulative(summary.key_bytes)),
        _named("by key, each counted once", cumulative(summary.key_bytes_of_keys.sum(axis=0))),
    ]
    series += _fitted(fits.get("key_bytes"), series[1].x, 0.0, "by key: GEV fit")
    plot = Plot("Distribution of key sizes", Axis("size of a key, bytes"), SHARE, series)
    text = "Share of requests, and of keys, with a key of at most that size."
    return Chart("key sizes", "Key sizes", text, plot)


def _value_sizes(summary: Summary, fits: Mapping[str, Fit]) -> Chart | None:
    counts = summary.value_bytes.sum(axis=0)
    total = int(counts.sum())
    if not total:
        return None
    series = [_named("by request", cumulative(counts)), _named("by byte", cumulative(counts, MIDDLES))]
    below = float(counts[:TAIL_START].sum()) / total
    series += _fitted(
        fits.get("value_bytes"), [x for x in series[0].x if x >= TAIL_START], below, "by request: GPD fit"
    )
    plot = Plot("Distribution of value sizes", Axis("size of a value, bytes", log=True, low=1.0), SHARE, series)
    text = (
        "Values that were written or returned. By request: share of them of at most that size. By byte: share of all "
        f"their bytes that is in values of at most that size. {counts[0] / total:.2%} are empty."
    )
    return Chart("value sizes", "Value sizes", text, plot)


def _misses(summary: Summary) -> Chart | None:
    misses = int(summary.causes.sum())
    if not misses:
        return None
    shares = (summary.causes / misses).tolist()
    plot = Plot(
        "Causes of misses",
        Axis("cause"),
        Axis("share of misses", percent=True, low=0.0, high=1.0),
        [Series("share", list(range(len(CAUSES))), shares)],
        "bar",
        CAUSES,
    )
    text = (
        f"{summary.hits / max(1, summary.gets):.2%} of the gets found a value. Compulsory: no request before it found "
        "or wrote the key. Capacity: the value had been there and the store no longer had it. Invalidation: the key "
        "had been deleted. Expiry: as the server says. Causes that a server does not say are those of the key's "
        "requests before, so at the beginning of a trace too many count as compulsory."
    )
    return Chart("misses", "Why gets find nothing", text, plot)


def _popularity(summary: Summary, trace: TableTrace, fits: Mapping[str, Fit]) -> Chart:
    ranks, requests = _by_rank(summary)
    series = [Series("keys of the trace", [1.0, *ranks.tolist()], [float(requests[0]), *requests.tolist()])]
    fit = fits.get("popularity")
    if fit is not None:
        share = trace.fraction
        law = np.geomspace(1.0, max(2.0, fit.parameters["keys"]), 60)
        weights = law ** -fit.parameters["exponent"]
        exact = np.arange(1, min(1e6, fit.parameters["keys"]) + 1) ** -fit.parameters["exponent"]
        rest = _zipf_rest(len(exact), fit)
        scale = trace.seen_requests * (1 - fit.parameters["new_key_rate"]) / (exact.sum() + rest)
        series.append(Series("Zipf fit", np.maximum(law * share, 1e-9).tolist(), (weights * scale).tolist()))
    plot = Plot(
        "Requests of each key by rank",
        Axis("rank of the key in the trace", log=True, low=1.0),
        Axis("requests of the key", log=True, low=1.0),
        series,
    )
    text = "The most requested key has rank 1. A straight line is a Zipf law; its slope is the exponent."
    return Chart("popularity", "Popularity of keys, and its tail", text, plot)


def _zipf_rest(known: int, fit: Fit) -> float:
    keys, exponent = fit.parameters["keys"], fit.parameters["exponent"]
    if keys <= known:
        return 0.0
    if abs(exponent - 1) < 1e-9:
        return math.log(keys / known)
    return float((keys ** (1 - exponent) - known ** (1 - exponent)) / (1 - exponent))


def _concentration(summary: Summary) -> Chart:
    ranks, requests = _by_rank(summary)
    shares = np.append(0.0, np.cumsum(np.diff(ranks, prepend=0.0) * requests))
    shares /= shares[-1]
    ranks = np.append(0.0, ranks)
    keys = ranks[-1]
    # Keys that are requested as often have the same share.
    top, hundredth, half = np.interp([1.0, keys * 0.01, keys * 0.5], ranks, shares)

    shown = np.union1d(np.geomspace(1.0, keys, CONCENTRATION_POINTS), ranks[1:])
    plot = Plot(
        "Share of requests of the most requested keys",
        Axis("most requested keys, share of all keys", log=True, percent=True),
        SHARE,
        [Series("share of requests", (shown / keys).tolist(), np.interp(shown, ranks, shares).tolist())],
    )
    parts = [f"The most requested key of the trace has {top:.1%} of its requests"]
    if keys >= 100:
        parts.append(f"1 % of the keys have {hundredth:.1%}")
    if keys >= 2:
        parts.append(f"the less requested half of the keys has {1 - half:.1%}")
    text = "; ".join(parts) + "."
    return Chart("concentration", "How few keys have most requests", text, plot)


def _by_rank(summary: Summary) -> tuple[Floats, Floats]:
    """Return the last rank of the keys with the same number of requests, and that number; descending."""
    counts = summary.requests_of_keys.sum(axis=0)
    used = np.flatnonzero(counts)[::-1]
    return np.cumsum(counts[used]).astype(np.float64), MIDDLES[used]


def _reuse(summary: Summary) -> Chart | None:
    if not summary.reuse_us.any():
        return None
    series = cumulative(summary.reuse_us)
    seconds = [max(x, 1.0) / 1e6 for x in series.x]
    plot = Plot(
        "Time between two requests of a key",
        Axis("time since the key's request before, seconds", log=True),
        SHARE,
        [Series("share", seconds, series.y)],
    )
    repeated = int(summary.reuse_us.sum())
    text = (
        f"{repeated / summary.requests:.1%} of the requests are for a key that was requested before in the trace; the "
        "plot shows the share of these within each time. Steps at hours or days are periods of an application."
    )
    return Chart("reuse periods", "When a key is requested again", text, plot)


def _windows(summary: Summary) -> Iterator[Chart | None]:
    names, unique, again = [], [], []
    for name, windows in summary.windows.items():
        if len(windows.keys) < 2:
            continue
        names.append(name)
        unique.append(float(windows.keys.sum() / windows.requests.sum()))
        again.append(float(windows.again[:-1].sum() / max(1, windows.keys[:-1].sum())))
    if not names:
        return
    plot = Plot(
        "Distinct keys of windows of time, and how many are seen in the next window",
        Axis("length of a window"),
        Axis("share", percent=True, low=0.0, high=1.0),
        [
            Series("distinct keys / requests of the window", list(range(len(names))), unique),
            Series("keys of a window that are requested in the next one", list(range(len(names))), again),
        ],
        "bar",
        names,
    )
    text = "A cache that keeps a key for one window serves at most the keys that are seen again in the next one."
    yield Chart("windows", "How many keys of a window are seen again", text, plot)


def _gaps(summary: Summary, fits: Mapping[str, Fit]) -> Chart | None:
    counts = summary.gap_us.sum(axis=0)
    if not counts.any():
        return None
    series = [_named("requests", cumulative(counts))]
    series += _fitted(fits.get("gap_us"), series[0].x, 0.0, "GPD fit")
    plot = Plot("Time between two requests at a server", Axis("gap, microseconds", log=True, low=1.0), SHARE, series)
    text = "Time since the table's request before at the same server, sampled or not."
    return Chart("gaps", "Gaps between requests", text, plot)


def _latency(summary: Summary) -> Chart | None:
    series = [
        _named(label, cumulative(counts))
        for label, counts in (("gets", summary.get_latency_us), ("others", summary.put_latency_us))
        if counts.any()
    ]
    if not series:
        return None
    plot = Plot("Latency of requests", Axis("latency, microseconds", log=True), SHARE, series)
    return Chart("latency", "Latency at the server", "Time from a request to its answer, where it was measured.", plot)


def _named(label: str, series: Series) -> Series:
    return Series(label, series.x, series.y)


def _fitted(fit: Fit | None, x: Sequence[float], below: float, label: str) -> list[Series]:
    """Return the fitted distribution function at these numbers; `below` of the data is not described by it."""
    if fit is None or not x:
        return []
    shares = below + (1 - below) * fit.tail.distribution(np.array(x) + 1)
    return [Series(label, list(x), shares.tolist())]
