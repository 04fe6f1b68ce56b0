"""What a cache would do: the hit rate of an LRU cache by its size, from reuse distances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

from spark_jobs.trace_analysis.fits import CONFIDENCE
from spark_jobs.trace_analysis.histogram import Floats
from spark_jobs.trace_analysis.plots import Axis, Plot, Series
from spark_jobs.trace_analysis.requests import TableTrace
from spark_jobs.trace_analysis.summary import Summary

SHARE = Axis("share", percent=True, low=0.0, high=1.0)
MIB = 1 << 20
MAX_SIZES = 200
FEW_KEYS = 30
"""Keys of a sample between two requests below which their number in the table is known to about a fifth."""


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
        name: `keys` for a size in keys, `bytes` for a size in bytes, of the keys in the trace.
    """
    assert summary.between is not None
    sizes, counts = np.unique(getattr(summary.between, name), return_counts=True)
    if not len(sizes):
        return np.empty(0), np.empty(0), np.empty(0)
    drawn = summary.reuses.gets
    rates = np.cumsum(counts) / drawn
    # Small sizes are shown closer together: the axis is logarithmic.
    shown = np.unique(np.geomspace(1, len(sizes), MAX_SIZES).astype(np.int64)) - 1
    sizes, rates = sizes[shown].astype(np.float64), rates[shown]
    if drawn == summary.gets:
        return sizes, rates, np.zeros(len(sizes))
    return sizes, rates, special.ndtri((1 + CONFIDENCE) / 2) * np.sqrt(rates * (1 - rates) / drawn)


def cache_charts(summary: Summary, trace: TableTrace) -> Iterator[Chart]:
    """Yield the charts of a cache's size in keys and in bytes."""
    for measure, name, label, scale in (
        ("distances", "keys", "size of the cache, keys", 1.0),
        ("bytes", "bytes", "size of the cache, MiB of keys and values", 1 / MIB),
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
            "Hit rate of gets in an LRU cache of each size, filled by the requests of the trace that found or wrote a "
            "value. Its limit is what gets of keys without a value leave: compulsory misses, deletes and expiry. "
        )
        if errors.any():
            text += f"From {summary.reuses.gets:,} gets that were drawn; 95 % interval at most ±{errors.max():.1%}."
        else:
            text += "From all gets of the trace."
        if trace.fraction < 1:
            text += _of_sample(trace.fraction, name)
        unit = "keys" if scale == 1 else "MiB"
        yield Chart(f"cache size, {measure}", f"What a cache of a size would do, in {unit}", text, plot)


def _of_sample(fraction: float, name: str) -> str:
    """Return the errors that a sample of the keys has, whatever the number of gets."""
    rough = f" Sizes below {FEW_KEYS / fraction:,.0f} keys are rough." if name == "keys" else ""
    return (
        f" The trace is a sample of {fraction:.3g} of the keys: whether the most popular ones are in it is an error "
        f"that is not known, and in no interval.{rough}"
    )
