"""Metrics of a listener of the native protocol, for servers that a test makes by itself."""

from headrace_server.instruments import LoopCounter
from headrace_server.native.server import NativeMetrics
from prometheus_client import CollectorRegistry, Counter, Gauge


def native_metrics(registry: CollectorRegistry) -> NativeMetrics:
    """Return them, in `registry` under their bare names."""
    return NativeMetrics(
        Gauge("connections", "-", registry=registry),
        Counter("refused", "-", registry=registry),
        Counter("broken", "-", registry=registry),
        LoopCounter("sent_bytes", "-", registry),
    )
