"""Two services of one process: its probes, pages and samples are those of both."""

import asyncio

from headrace_server.health import HealthCause
from headrace_server.instruments import CommonMetrics
from headrace_server.metrics_access import MetricsAccess
from headrace_server.observability import serve_observability
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily


async def test_a_process_of_two_services_joins_what_they_say():
    """A probe passes once it passes for each, with the causes of all; pages and samples come from both, in order."""
    registry = CollectorRegistry()
    all_metrics = [CommonMetrics(f"headrace_{name}", registry) for name in ("x", "y")]
    async with serve_observability(
        all_metrics, registry, listen="", loop_stall_ms=10_000, access=MetricsAccess(is_closed=False)
    ) as whole:
        x, y = whole.split(all_metrics)
        told = []
        whole.health.subscribe(lambda: told.append(whole.health.causes("readiness")))
        assert whole.health.causes("startup") == (HealthCause.STARTING,)
        x.health.release(HealthCause.STARTING)
        assert whole.health.causes("startup") == (HealthCause.STARTING,)
        y.health.release(HealthCause.STARTING)
        assert whole.health.causes("startup") == ()
        x.health.hold(HealthCause.DRAINED)
        whole.health.hold(HealthCause.STOPPING)
        assert told[-1] == (HealthCause.STOPPING, HealthCause.DRAINED)
        assert y.health.causes("readiness") == ()
        for name in ("x", "y"):
            assert registry.get_sample_value(f"headrace_{name}_health", {"name": "readiness"}) == 0
        x.detail.source = lambda: iter([GaugeMetricFamily("of_x", "", value=1)])
        y.detail.source = lambda: iter([GaugeMetricFamily("of_y", "", value=1)])
        assert [family.name for family in whole.detail.collect()] == ["of_x", "of_y"]
        sampled = asyncio.Event()
        x.sampler.on_sample = lambda: None
        y.sampler.on_sample = sampled.set
        async with asyncio.timeout(60):
            await sampled.wait()
        for name in ("x", "y"):
            assert registry.get_sample_value(f"headrace_{name}_loop_lag_seconds_count") >= 1
