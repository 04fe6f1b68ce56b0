"""Instruments with minimal cost for the event loop, and the metrics that every service has.

The library's counters and histograms take a lock at every update, for 0.5 to 0.7 microseconds: six of them in a call of
a hundred microseconds are the three per cent that metrics may cost. Values that are updated per call or per batch use
`LoopCounter` and `LoopHistogram` instead: one thread writes, the event loop's, and a scrape reads from another one.
Rarer updates use the library's classes. Each service lists its instruments in its own `metrics.py`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

TRACE_ID_LABEL = "trace_id"
"""Label of exemplars, as Grafana and OpenTelemetry's collector expect it."""
LOOP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopCounter(Collector):
    """Counter with one writing thread."""

    __slots__ = ("_documentation", "_name", "value")

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        """`name` is without `_total`."""
        self._name, self._documentation = name, documentation
        self.value = 0.0
        registry.register(self)

    def inc(self, amount: float = 1) -> None:
        """Increment the counter."""
        self.value += amount

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for the registry."""
        yield CounterMetricFamily(self._name, self._documentation, value=self.value)

    describe = collect


class LoopCount:
    """One series of `LoopCounters`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Increment the counter."""
        self.value += amount


class LoopCounters(Collector):
    """Counters with one writing thread, one for each value of a label."""

    def __init__(
        self, name: str, documentation: str, registry: CollectorRegistry, *, label: str, values: Sequence[str]
    ) -> None:
        """`name` is without `_total`; `values` are all values of the label."""
        self._name, self._documentation = name, documentation
        self._labelnames = (label,)
        self._series = {value: LoopCount() for value in values}
        registry.register(self)

    def series(self, value: str) -> LoopCount:
        """Return the series of one value of the label."""
        return self._series[value]

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for the registry."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for value, count in self._series.items():
            family.add_metric([value], count.value)
        yield family

    describe = collect


class LoopTimes:
    """Observations of one series of a `LoopHistogram`."""

    __slots__ = ("_bounds", "counts", "exemplars", "sum_seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of observations per bucket, not cumulative; the last bucket has no bound."""
        self.sum_seconds = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """By bucket: the last observation of a traced call."""

    def observe(self, seconds: float, trace_id: str = "") -> None:
        """Observe one duration; with a `trace_id` it becomes the exemplar of its bucket."""
        bucket = bisect_left(self._bounds, seconds)
        self.counts[bucket] += 1
        self.sum_seconds += seconds
        if trace_id:
            self.exemplars[bucket] = Exemplar({TRACE_ID_LABEL: trace_id}, seconds, time.time())


class LoopHistogram(Collector):
    """Histogram with one writing thread, of one series or of one per value of a label."""

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry,
        *,
        bounds: Sequence[float],
        label: str = "",
        values: Sequence[str] = ("",),
    ) -> None:
        """`bounds` are the ascending upper limits of the buckets in seconds, `values` all values of the label."""
        self._name, self._documentation = name, documentation
        self._bounds = tuple(bounds)
        self._labelnames = (label,) if label else ()
        self._series = {value: LoopTimes(self._bounds) for value in values}
        self.observe = self._series[values[0]].observe
        """`observe` of the only series."""
        registry.register(self)

    def series(self, value: str) -> LoopTimes:
        """Return the series of one value of the label."""
        return self._series[value]

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for the registry."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for value, times in self._series.items():
            counts, total = list(times.counts), 0
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for bucket, (bound, count) in enumerate(zip((*self._bounds, float("inf")), counts, strict=True)):
                total += count
                name = "+Inf" if bound == float("inf") else str(bound)
                exemplar = times.exemplars.get(bucket)
                buckets.append((name, total) if exemplar is None else (name, total, exemplar))
            family.add_metric([value] if self._labelnames else [], buckets, sum_value=times.sum_seconds)
        yield family

    describe = collect


class CommonMetrics:
    """Metrics that every service has, part of its own metrics; `prefix` is such as `headrace_broker`."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self.info = Gauge(
            f"{prefix}_info",
            "Always 1; the labels are the release and the cluster",
            ["version", "cluster"],
            registry=registry,
        )
        self.health = Gauge(
            f"{prefix}_health", "1 if the health check of this name passes", ["name"], registry=registry
        )
        self.log_lines = Counter(
            f"{prefix}_log_lines", "Warnings and errors logged, by level", ["level"], registry=registry
        )
        self.call_errors = Counter(
            f"{prefix}_call_errors",
            "Calls that were rejected or failed as a whole, by method and code",
            ["method", "code"],
            registry=registry,
        )
        self.refused_calls = Counter(
            f"{prefix}_refused_calls",
            "Calls, and topics and groups in calls, refused because the user has no identity or no right",
            ["user", "method"],
            registry=registry,
        )
        self.observed_refusals = Counter(
            f"{prefix}_observed_refusals",
            "Calls, and topics and groups in calls, that posture=required would refuse, while it is observe",
            ["user", "method", "right"],
            registry=registry,
        )
        self.audit_events_lost = Counter(
            f"{prefix}_audit_events_lost",
            "Events of the audit log that were dropped because the topic could not be written",
            registry=registry,
        )
        self.quota_held_seconds = Counter(
            f"{prefix}_quota_held_seconds",
            "Time for which answers were held because the user's quota was used",
            ["user", "quota"],
            registry=registry,
        )
        self.loop_lag_seconds = LoopHistogram(
            f"{prefix}_loop_lag_seconds",
            "Delay of the event loop, sampled four times a second",
            registry,
            bounds=LOOP_SECONDS,
        )
        self.loop_cpu_seconds = LoopCounter(
            f"{prefix}_loop_cpu_seconds", "CPU time of the event loop's thread; saturated at 1 s/s", registry
        )
        self.loop_stalls = Counter(
            f"{prefix}_loop_stalls", "Stalls of the event loop that the watchdog detected", registry=registry
        )
        self.certificate_expiry = Gauge(
            f"{prefix}_certificate_expiry_timestamp_seconds",
            "Expiry of the certificate in use, by use",
            ["use"],
            registry=registry,
        )
        self.certificate_refused = Gauge(
            f"{prefix}_certificate_refused",
            "1 if changed certificate files are invalid; the previous ones stay in use",
            ["use"],
            registry=registry,
        )
        self.registered = Gauge(f"{prefix}_registered", "1 while the process is registered in etcd", registry=registry)
        self.clock_in_doubt = Gauge(
            f"{prefix}_clock_in_doubt",
            "1 while the wall clock is not trusted: no segment is deleted by age",
            registry=registry,
        )
        self.metadata_age_seconds = Gauge(
            f"{prefix}_metadata_age_seconds",
            "Time since etcd last confirmed the view of the metadata",
            registry=registry,
        )
        self.metadata_undecodable = Gauge(
            f"{prefix}_metadata_undecodable",
            "Values in etcd that this release cannot decode; while there is one, no log is deleted",
            registry=registry,
        )


def add_process_metrics(registry: CollectorRegistry) -> None:
    """Add the library's process metrics to a registry: memory, files, CPU, garbage collection, Python."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
