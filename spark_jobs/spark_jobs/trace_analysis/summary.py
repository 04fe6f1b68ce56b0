"""Everything that is counted of a trace, for a set of keys. Summaries of disjoint sets of keys are merged by sums.

Only the curve of cache sizes is of a sample where there are many requests, and counted in a second step, for which each
set of keys has to know the drawn gets of the others: `spark_jobs.trace_analysis.curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
from headrace.wire.request_trace import UNKNOWN_GAP_US, RequestOutcome, TableOperation

from spark_jobs.trace_analysis.curves import (
    Between,
    Reuses,
    joined_reuses,
    reuses_of,
    share_of_requests,
    used_between,
    uses_of,
)
from spark_jobs.trace_analysis.histogram import Counts, count, count_by_group
from spark_jobs.trace_analysis.history import KeyOrder, by_key
from spark_jobs.trace_analysis.requests import TracedRequests

OPERATIONS, OUTCOMES = len(TableOperation) + 1, len(RequestOutcome)
CAUSES = ("compulsory", "capacity", "invalidation", "expiry")
"""Causes of misses. Compulsory: no request before it found or wrote the key. Capacity: the value was there before and
the store no longer had it. Invalidation: it was deleted. Expiry: the store said so; one that does not counts such a
miss as capacity."""
COMPULSORY, CAPACITY, INVALIDATION, EXPIRY = range(4)
WINDOWS_US = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": 86_400_000_000}
MAX_WINDOWS = 20_000
"""Windows of a length are counted up to this number; a longer trace has the longer ones."""
MINUTE_US = 60_000_000
_GROUP_SHIFT = np.uint64(60)


@dataclass(slots=True)
class Windows:
    """Counts of consecutive windows of time of one length, from the first window with a request."""

    first: int
    """Number of the first window since 1970."""
    requests: Counts
    keys: Counts
    """Distinct keys."""
    again: Counts
    """Keys among them that are requested in the next window as well."""


@dataclass(slots=True)
class Summary:
    """Counts of a trace."""

    requests: int
    first_us: int
    last_us: int
    operations: Counts
    """int64[OPERATIONS, OUTCOMES]."""
    causes: Counts
    """int64[len(CAUSES)]: misses of gets."""
    key_bytes: Counts
    """int64[BINS]: sizes of keys, by request."""
    key_bytes_of_keys: Counts
    """int64[GROUPS, BINS]: sizes of keys, each key once."""
    value_bytes: Counts
    """int64[GROUPS, BINS]: sizes of values that were written or returned, by request."""
    gap_us: Counts
    """int64[GROUPS, BINS]."""
    get_latency_us: Counts
    put_latency_us: Counts
    """int64[BINS] each, of operations but gets the second; only latencies that were measured."""
    reuse_us: Counts
    """int64[BINS]: times between two requests of a key."""
    requests_of_keys: Counts
    """int64[GROUPS, BINS]: numbers of requests of the keys."""
    minutes: dict[int, int]
    """Requests by minute since 1970."""
    windows: dict[str, Windows]
    """By name of `WINDOWS_US`."""
    reuses: Reuses
    between: Between | None
    """Of `reuses`; None until all keys are counted."""

    @property
    def keys(self) -> int:
        """Number of distinct keys."""
        return int(self.requests_of_keys.sum())

    def of_operation(self, operation: TableOperation) -> int:
        """Return the number of requests of an operation."""
        return int(self.operations[operation].sum())

    @property
    def gets(self) -> int:
        """Number of gets."""
        return self.of_operation(TableOperation.GET)

    @property
    def hits(self) -> int:
        """Number of gets that found a value."""
        return int(self.operations[TableOperation.GET, RequestOutcome.HIT])


def summarise(requests: TracedRequests) -> Summary:
    """Return the summary of all requests of a trace, at least one, in order of time."""
    keys = by_key(requests.key_hash)
    summary = _summary(requests, keys, share_of_requests(len(requests.key_hash)))
    return replace(summary, between=used_between(uses_of(requests, keys), summary.reuses))


def summary_of_part(requests: TracedRequests, share: float) -> Summary:
    """Return the summary of the requests of a set of keys, at least one, in order of time, without `between`.

    Args:
        requests: Requests.
        share: `share_of_requests` of the trace.
    """
    return _summary(requests, by_key(requests.key_hash), share)


def between_of_part(requests: TracedRequests, reuses: Reuses) -> Between:
    """Return the part of a set of keys in `between` of the drawn gets of all."""
    return used_between(uses_of(requests, by_key(requests.key_hash)), reuses)


def with_between(summary: Summary, parts: Sequence[Between]) -> Summary:
    """Return the summary of all parts, with the sum of their `between_of_part`."""
    return replace(summary, between=Between(*(sum(columns) for columns in zip(*parts, strict=True))))


def _summary(requests: TracedRequests, keys: KeyOrder, share: float) -> Summary:
    starts = np.flatnonzero(keys.first)
    at_us = requests.at_us[keys.order]
    groups = (requests.key_hash >> _GROUP_SHIFT).astype(np.int64)
    groups_of_keys = groups[keys.order[starts]]
    has_value = _has_value(requests)
    known_gap = requests.gap_us != UNKNOWN_GAP_US
    operation = requests.operation
    measured, of_gets = requests.latency_us > 0, operation == TableOperation.GET
    combined = operation.astype(np.int64) * OUTCOMES + requests.outcome
    return Summary(
        requests=len(at_us),
        first_us=int(requests.at_us[0]),
        last_us=int(requests.at_us[-1]),
        operations=np.bincount(combined, minlength=OPERATIONS * OUTCOMES).reshape(OPERATIONS, OUTCOMES),
        causes=_causes(operation[keys.order], requests.outcome[keys.order], keys.first),
        key_bytes=count(requests.key_bytes),
        key_bytes_of_keys=count_by_group(requests.key_bytes[keys.order[starts]], groups_of_keys),
        value_bytes=count_by_group(requests.value_bytes[has_value], groups[has_value]),
        gap_us=count_by_group(requests.gap_us[known_gap], groups[known_gap]),
        get_latency_us=count(requests.latency_us[measured & of_gets]),
        put_latency_us=count(requests.latency_us[measured & ~of_gets]),
        reuse_us=count(np.diff(at_us)[~keys.first[1:]]),
        requests_of_keys=count_by_group(np.diff(np.append(starts, len(at_us))), groups_of_keys),
        minutes=_minutes(requests.at_us),
        windows=_windows(at_us, keys.first),
        reuses=reuses_of(requests, keys, share),
        between=None,
    )


def merged(parts: Sequence[Summary]) -> Summary:
    """Return the summary of all keys of the parts, at least one, without `between`."""
    found: dict[str, object] = {}
    for field in fields(Summary):
        values = [getattr(part, field.name) for part in parts]
        match field.name:
            case "first_us":
                found[field.name] = min(values)
            case "last_us":
                found[field.name] = max(values)
            case "minutes":
                total: dict[int, int] = {}
                for minutes in values:
                    for minute, requests in minutes.items():
                        total[minute] = total.get(minute, 0) + requests
                found[field.name] = total
            case "windows":
                names = [name for name in WINDOWS_US if all(name in windows for windows in values)]
                found[field.name] = {name: _joined([windows[name] for windows in values]) for name in names}
            case "reuses":
                found[field.name] = joined_reuses(values)
            case "between":
                found[field.name] = None
            case _:
                found[field.name] = sum(values[1:], start=values[0])
    return Summary(**found)  # type: ignore[arg-type]


def _has_value(requests: TracedRequests) -> npt.NDArray[np.bool_]:
    operation, outcome = requests.operation, requests.outcome
    returned = (operation == TableOperation.GET) & (outcome == RequestOutcome.HIT)
    written = ((operation == TableOperation.PUT) | (operation == TableOperation.COMPARE_AND_PUT)) & (
        outcome == RequestOutcome.DONE
    )
    found: npt.NDArray[np.bool_] = returned | written
    return found


def _causes(operation: npt.NDArray[np.uint8], outcome: npt.NDArray[np.uint8], first: npt.NDArray[np.bool_]) -> Counts:
    """Return the misses of gets by cause; requests are ordered by key."""
    causes = np.zeros(len(CAUSES), np.int64)
    is_get = operation == TableOperation.GET
    for stated, cause in (
        (RequestOutcome.MISS_NEVER_WRITTEN, COMPULSORY),
        (RequestOutcome.MISS_DELETED, INVALIDATION),
        (RequestOutcome.MISS_EXPIRED, EXPIRY),
    ):
        causes[cause] += np.count_nonzero(is_get & (outcome == stated))
    # The last request before it that found, wrote or deleted the key.
    positions = np.arange(len(operation))
    tells = (outcome == RequestOutcome.HIT) | ((operation != TableOperation.GET) & (outcome == RequestOutcome.DONE))
    last = np.maximum.accumulate(np.where(tells & (operation != TableOperation.SCAN), positions, -1))
    start = np.maximum.accumulate(np.where(first, positions, 0))
    missed = np.flatnonzero(is_get & (outcome == RequestOutcome.MISS))
    before = last[missed]
    seen = before >= start[missed]
    deleted = seen & (operation[before] == TableOperation.DELETE)
    causes[COMPULSORY] += np.count_nonzero(~seen)
    causes[INVALIDATION] += np.count_nonzero(deleted)
    causes[CAPACITY] += np.count_nonzero(seen & ~deleted)
    return causes


def _minutes(at_us: npt.NDArray[np.int64]) -> dict[int, int]:
    minutes = at_us // MINUTE_US
    starts = np.flatnonzero(np.append(True, minutes[1:] != minutes[:-1]))
    counts = np.diff(np.append(starts, len(minutes)))
    return dict(zip(minutes[starts].tolist(), counts.tolist(), strict=True))


def _windows(at_us: npt.NDArray[np.int64], first: npt.NDArray[np.bool_]) -> dict[str, Windows]:
    """Return the counts of windows; requests are ordered by key, then time."""
    found = {}
    earliest, latest = int(at_us.min()), int(at_us.max())
    for name, length_us in WINDOWS_US.items():
        start, count_of_windows = earliest // length_us, latest // length_us - earliest // length_us + 1
        if count_of_windows > MAX_WINDOWS:
            continue
        window = (at_us - start * length_us) // length_us
        new = first.copy()
        new[1:] |= window[1:] != window[:-1]
        starts = np.flatnonzero(new)
        of_keys, begins = window[starts], first[starts]
        next_one = np.flatnonzero((np.diff(of_keys) == 1) & ~begins[1:])
        counts = (np.bincount(each, minlength=count_of_windows) for each in (window, of_keys, of_keys[next_one]))
        found[name] = Windows(start, *counts)
    return found


def _joined(parts: Sequence[Windows]) -> Windows:
    first = min(part.first for part in parts)
    total = max(part.first + len(part.requests) for part in parts) - first
    sums = np.zeros((3, total), np.int64)
    for part in parts:
        place = slice(part.first - first, part.first - first + len(part.requests))
        sums[:, place] += (part.requests, part.keys, part.again)
    return Windows(first, *sums)
