"""Model of a workload from the analysis of its trace: what `headrace bench --workload fitted:FILE` replays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from headrace.cli.bench.distributions import SizeModel, Tail
from headrace.cli.bench.models import MAX_KEYS, MAX_VALUE_BYTES, WorkloadModel
from headrace.wire.request_trace import TableOperation

from spark_jobs.trace_analysis.fits import TAIL_START, Fit
from spark_jobs.trace_analysis.histogram import EDGES, Counts, quantiles
from spark_jobs.trace_analysis.requests import TableTrace
from spark_jobs.trace_analysis.summary import Summary

MAX_KEY_BYTES = (1 << 16) - 1
TABLE_ENTRIES = 256
MINUTES_OF_DAY = 1_440
WHOLE_DAY_SHARE = 0.9
"""Share of the minutes of a day that a trace must have requests in, for a daily pattern."""
DEFAULT_EXPONENT = 0.99
DEFAULT_GAP_US = 1e6
MAX_GAP_US = 3e11
"""Mean gap up to which its scale is one that a model may have."""


def model_of_summary(summary: Summary, fits: Mapping[str, Fit], trace: TableTrace) -> WorkloadModel:
    """Return the model of a trace, with those fits that `model_has`, and with the rate of the table.

    Args:
        summary: Counts of a trace.
        fits: Distributions that were fitted to it.
        trace: What the blocks say of it.
    """
    operations = {
        operation.name.lower(): summary.of_operation(operation) / summary.requests
        for operation in TableOperation
        if summary.of_operation(operation)
    }
    popularity = fits.get("popularity")
    law = {"exponent": DEFAULT_EXPONENT}
    if popularity is not None:
        law.update(popularity.parameters)
    if popularity is None or popularity.notes:  # The number of keys is not known: those of the trace.
        law |= {"keys": summary.keys / trace.fraction, "new_key_rate": 0.0}
    return WorkloadModel(
        operations=operations,
        hit_rate=summary.hits / summary.gets if summary.gets else 0.0,
        keys=max(1, min(MAX_KEYS, round(law["keys"]))),
        zipf_exponent=max(0.0, law["exponent"]),
        new_key_rate=min(1.0, law["new_key_rate"]),
        key_bytes=_key_bytes(summary.key_bytes_of_keys.sum(axis=0), fits.get("key_bytes")),
        value_bytes=_value_bytes(summary.value_bytes.sum(axis=0), fits.get("value_bytes")),
        gap_us=_gap_us(span_seconds(summary) * 1e6 / trace.seen_requests, fits.get("gap_us")),
        hourly_load=hourly_load(summary.minutes),
    )


def model_has(fit: Fit) -> bool:
    """Return whether a model has the fit; it replaces those that do not describe sizes, and gaps without a mean."""
    if fit.name == "gap_us":
        return fit.parameters["shape"] < 1
    return fit.name == "popularity" or fit.describes


def span_seconds(summary: Summary) -> float:
    """Return the time from the first to the last request."""
    return (summary.last_us - summary.first_us) / 1e6


def hourly_load(minutes: Mapping[int, int]) -> tuple[float, ...]:
    """Return the load of each hour of the day (UTC) with a mean of 1; empty if the trace is shorter than a day.

    Args:
        minutes: Requests by minute since 1970.
    """
    if len({minute % MINUTES_OF_DAY for minute in minutes}) < WHOLE_DAY_SHARE * MINUTES_OF_DAY:
        return ()
    requests = np.zeros(24)
    for minute, count in minutes.items():
        requests[minute % MINUTES_OF_DAY // 60] += count
    load = requests / np.maximum(traced_minutes(minutes, MINUTES_OF_DAY, 24), 1)
    load = np.maximum(load, load.mean() * 1e-3)
    return tuple((load / load.mean()).tolist())


def traced_minutes(minutes: Mapping[int, int], period: int, parts: int) -> Counts:
    """Return the minutes from the first to the last request, with requests or not, in each part of a period.

    Args:
        minutes: Requests by minute since 1970.
        period: Minutes of a day or a week; it begins where this number divides the minutes since 1970.
        parts: Number of equal parts of the period.
    """
    first = min(minutes)
    periods, rest = divmod(max(minutes) - first + 1, period)
    part = period // parts
    return periods * part + np.bincount((first + np.arange(rest)) % period // part, minlength=parts)


def _key_bytes(counts: Counts, fit: Fit | None) -> SizeModel:
    if fit is not None and model_has(fit):
        return SizeModel((), (), fit.tail, MAX_KEY_BYTES, least=1)
    return _table(counts, MAX_KEY_BYTES)


def _value_bytes(counts: Counts, fit: Fit | None) -> SizeModel:
    if fit is None or not model_has(fit):
        return _table(counts, MAX_VALUE_BYTES)
    shares = counts[:TAIL_START] / counts.sum()
    return SizeModel(tuple(range(TAIL_START)), tuple(shares.tolist()), fit.tail, MAX_VALUE_BYTES)


def _gap_us(average: float, fit: Fit | None) -> Tail:
    """Return the gaps of the table: in the form of those of one server, or of independent requests without a fit.

    Args:
        average: Mean time between two requests of the table, in microseconds, 0 if it is not known.
        fit: Gaps of the requests of a server: of a table with leaders on several they are longer.
    """
    average = min(max(average, 1e-3), MAX_GAP_US) if average else DEFAULT_GAP_US
    shape = fit.parameters["shape"] if fit is not None and model_has(fit) else 0.0
    return Tail("gpd", 0.0, average * (1 - shape), shape)


def _table(counts: Counts, most: int) -> SizeModel:
    """Return sizes with their shares, or with many sizes their quantiles."""
    used = np.flatnonzero(counts)
    if not len(used):
        return SizeModel((0,), (1.0,), None, most)
    if len(used) <= TABLE_ENTRIES:
        sizes, shares = EDGES[used], counts[used] / counts.sum()
    else:
        sizes = quantiles(counts, (np.arange(TABLE_ENTRIES) + 0.5) / TABLE_ENTRIES)
        shares = np.full(TABLE_ENTRIES, 1 / TABLE_ENTRIES)
    return SizeModel(tuple(int(min(size, most)) for size in sizes), tuple(shares.tolist()), None, most)
