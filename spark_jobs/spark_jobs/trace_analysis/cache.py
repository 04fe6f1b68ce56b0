"""What a cache would do: the hit rate of an LRU cache by its size, from reuse distances."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

from spark_jobs.trace_analysis.fits import CONFIDENCE
from spark_jobs.trace_analysis.histogram import BINS, EDGES, Floats
from spark_jobs.trace_analysis.plots import Axis, Plot, Series
from spark_jobs.trace_analysis.requests import TableTrace
from spark_jobs.trace_analysis.summary import Summary

SHARE = Axis("share", percent=True, low=0.0, high=1.0)
KIB = 1024
MAX_SIZES = 200


@dataclass(frozen=True, slots=True)
class Chart:
    """Plot of a measure, with the text around it."""

    measure: str
    """Name in the Parquet table."""
    heading: str
    """What the plot shows."""
    text: str
    """How to read it, and what it is computed from."""
    plot: Plot


def cache_curve(summary: Summary, name: str) -> tuple[Floats, Floats, Floats]:
    """Return sizes, hit rate of an LRU cache of each size, and the half width of its interval at `CONFIDENCE`.

    Args:
        summary: Counts of a trace.
        name: `distances` for a size in keys, `bytes` for a size in KiB, of the keys in the trace.
    """
    used = np.flatnonzero(sum((getattr(curve, name) for curve in summary.curves), start=np.zeros(BINS, np.int64)))
    if not len(used):
        return np.empty(0), np.empty(0), np.empty(0)
    # Small sizes are shown closer together: the axis is logarithmic.
    ends = used[np.unique(np.geomspace(1, len(used), MAX_SIZES).astype(np.int64)) - 1]
    rates = [np.cumsum(getattr(curve, name))[ends] / curve.gets for curve in summary.curves]
    held = np.array(rates)
    error = np.zeros(len(ends))
    if len(held) > 1:
        error = special.stdtrit(len(held) - 1, (1 + CONFIDENCE) / 2) * held.std(axis=0, ddof=1) / math.sqrt(len(held))
    return EDGES[ends + 1], np.maximum.accumulate(held.mean(axis=0)), error


def cache_charts(summary: Summary, trace: TableTrace) -> Iterator[Chart]:
    """Yield the charts of a cache's size in keys and in bytes."""
    for name, label, scale in (
        ("distances", "size of the cache, keys", 1.0),
        ("bytes", "size of the cache, MiB of keys and values", 1 / KIB),
    ):
        sizes, rates, errors = cache_curve(summary, name)
        if not len(sizes):
            continue
        scaled = (sizes * scale / trace.fraction).tolist()
        series = [Series("hit rate", scaled, rates.tolist())]
        if errors.any():
            series.append(Series("lower bound", scaled, np.clip(rates - errors, 0, 1).tolist()))
            series.append(Series("upper bound", scaled, np.clip(rates + errors, 0, 1).tolist()))
        plot = Plot("Hit rate of an LRU cache by its size", Axis(label, log=True), SHARE, series)
        text = (
            "Hit rate of gets in an LRU cache of each size, filled by the gets and puts of the trace. Its limit is "
            "what compulsory misses and deletes leave. "
        )
        if errors.any():
            text += f"From samples of the keys; 95 % interval at most ±{errors.max():.1%}."
        elif trace.fraction < 1:
            text += f"From the sample of {trace.fraction:.3g} of the keys; its error is not known."
        else:
            text += "Exact, from all requests of the trace."
        yield Chart(
            f"cache size, {name}", f"What a cache of a size would do, in {'keys' if scale == 1 else 'MiB'}", text, plot
        )
