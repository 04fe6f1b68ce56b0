"""Observability of a service from start to end: health, metrics, and lag of its event loop.

The app of a service enters `serve_observability` first, so that probes are answered while it waits for etcd or recovers
its logs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from headrace_server.event_loop_watchdog import EventLoopWatchdog, LoopLagSampler
from headrace_server.health import HEALTH_NAMES, Health, HealthCause
from headrace_server.http_endpoint import DetailCollector, MakeContext, serve_http
from headrace_server.instruments import CommonMetrics, add_process_metrics
from headrace_server.metrics_access import MetricsAccess

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Observability:
    """Running observability of a service, owned by its app."""

    health: Health
    detail: DetailCollector
    sampler: LoopLagSampler
    access: MetricsAccess
    metrics_address: str
    """host:port of the HTTP endpoint; empty if there is none."""

    def split(self, all_metrics: Sequence[CommonMetrics]) -> tuple[Observability, ...]:
        """Return one for each of several services of the process; the probes and pages of this one join theirs."""
        parts = tuple(
            replace(self, health=Health(), detail=DetailCollector(), sampler=LoopLagSampler([metrics]))
            for metrics in all_metrics
        )

        def sample() -> None:
            for part in parts:
                if part.sampler.on_sample is not None:
                    part.sampler.on_sample()

        def collect() -> Iterator[Metric]:
            for part in parts:
                yield from part.detail.collect()

        self.sampler.on_sample, self.detail.source = sample, collect
        for part in parts:
            self.health.include(part.health)
        self.health.release(HealthCause.STARTING)  # Theirs are left.
        return parts


def _is_well(health: Health, name: str) -> float:
    return float(not health.causes(name))


@contextlib.asynccontextmanager
async def serve_observability(
    all_metrics: Sequence[CommonMetrics],
    registry: CollectorRegistry,
    *,
    listen: str,
    loop_stall_ms: int,
    access: MetricsAccess,
    context: MakeContext = None,
) -> AsyncIterator[Observability]:
    """Serve HTTP on `listen` (empty disables it) and watch the running event loop until the block ends.

    Args:
        all_metrics: those of each service of the process.
        access: as of `serve_http`, and `context`.

    Raises:
        AddressInUseError: See `serve_http`.
    """
    add_process_metrics(registry)
    health, detail = Health(), DetailCollector()
    for metrics in all_metrics:
        for name in HEALTH_NAMES:
            metrics.health.labels(name).set_function(partial(_is_well, health, name))
    endpoint = None
    if listen:
        endpoint = serve_http(listen, registry=registry, detail=detail, health=health, access=access, context=context)
        log.info("http_serves", metrics_address=endpoint.address)
    sampler = LoopLagSampler(all_metrics)
    watchdog = EventLoopWatchdog(sampler, health, all_metrics, stall_ms=loop_stall_ms)
    sampling = asyncio.create_task(sampler.run())
    watchdog.start()
    try:
        yield Observability(health, detail, sampler, access, endpoint.address if endpoint else "")
    finally:
        watchdog.stop()
        sampling.cancel()
        if endpoint is not None:
            endpoint.stop()
