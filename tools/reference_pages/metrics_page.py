"""Generator of docs/reference/metrics.md: all instruments of the services, read from their registries."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.client.mirror.metrics import MirrorCollector
from headrace.metrics import ClientCollector
from headrace_broker.metrics import BrokerMetrics, partition_metrics
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.group_lag import MAX_LAGS
from headrace_server.identity.decision_counts import MAX_SERIES
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from reference_pages.markdown import table

_INTRO = f"""# Metrics

A service with `metrics_listen` set serves `GET /metrics` and `GET /metrics/detail` there, in Prometheus' text format.
`/metrics` has a bounded number of series, independent of partitions: scrape it every 15 seconds. It has at most
{MAX_LAGS:,} series of each metric by group or by group and topic, on the controller, and {MAX_SERIES:,} of each metric
by user.
`/metrics/detail` has series for each partition: scrape it once a minute. See [the guide](../guides/monitoring.md).

Units are the base units (seconds, bytes); counters end in `_total`; a histogram has the series `_bucket`, `_sum` and
`_count`. Every service also exports `process_*`, `python_gc_*` and `python_info` of its process."""

_SDK = """An application exports these by a registered `headrace.metrics.ClientCollector` (extra `metrics`) that watches
its producers and consumers."""

_MIRRORS = """`headrace mirror run --metrics-port` serves these (extra `metrics`): for each partition that this
worker copies, each topic of its mirrors that is not promoted, and each mirror."""


def metrics_body() -> str:
    """Return the page from its title."""
    broker = CollectorRegistry()
    BrokerMetrics(broker)
    coordinator = CollectorRegistry()
    lags = CoordinatorMetrics(coordinator).lags
    return "\n\n".join(
        [
            _INTRO,
            "## Broker",
            _instruments(broker),
            "## Broker, in detail",
            _families(partition_metrics([])),
            "## Coordinator",
            _instruments(coordinator),
            "## Coordinator, in detail",
            _families(lags.detail()),
            "## SDK",
            _SDK,
            _families(ClientCollector().collect()),
            "## Mirrors",
            _MIRRORS,
            _families(MirrorCollector().collect()),
        ]
    )


def _instruments(registry: CollectorRegistry) -> str:
    rows = []
    for family in sorted(registry.collect(), key=lambda family: family.name):
        collector = registry._names_to_collectors[family.name]
        rows.append(_row(family, getattr(collector, "_labelnames", getattr(family, "_labelnames", ()))))
    return table(("name", "type", "labels", "meaning"), rows)


def _families(families: Iterable[Metric]) -> str:
    rows = [_row(family, getattr(family, "_labelnames", ())) for family in families]
    return table(("name", "type", "labels", "meaning"), rows)


def _row(family: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"`{name}`", family.type, shown, f"{family.documentation}."
