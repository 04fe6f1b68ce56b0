"""docs/reference/metrics.md: every instrument of the services, asked of the registry that serves `/metrics`."""

from __future__ import annotations

from headrace_broker.metrics import BrokerMetrics
from headrace_coordinator.metrics import CoordinatorMetrics
from prometheus_client import CollectorRegistry

from reference_pages.markdown import table

_INTRO = """# Metrics

A service with `metrics_listen` set answers `GET /metrics` there in Prometheus' text format. Units are the base units
(seconds, bytes); counters end in `_total`; a histogram has the series `_bucket`, `_sum` and `_count`."""


def metrics_body() -> str:
    """The page from its title on."""
    broker = CollectorRegistry()
    BrokerMetrics(broker)
    coordinator = CollectorRegistry()
    CoordinatorMetrics(coordinator)
    return "\n\n".join([_INTRO, "## Broker", _instruments(broker), "## Coordinator", _instruments(coordinator)])


def _instruments(registry: CollectorRegistry) -> str:
    rows = []
    for family in sorted(registry.collect(), key=lambda family: family.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = getattr(registry._names_to_collectors[family.name], "_labelnames", ())
        rows.append((f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), f"{family.documentation}."))
    return table(("name", "type", "labels", "meaning"), rows)
