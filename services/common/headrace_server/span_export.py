"""Export of the spans of a service's process over OTLP/HTTP, by OpenTelemetry's own SDK.

Spans wait in a queue of a fixed size, from which a thread sends them; if the collector is away or slow, further spans
are dropped. No call waits for either. The SDK reads the variables `OTEL_*` of the OpenTelemetry specification itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Mapping

import structlog
from headrace.wire.errors import InvalidConfigError
from headrace.wire.releases import RELEASE

from headrace_server.call_spans import CallTracer, trace_calls
from headrace_server.clock import SystemClock
from headrace_server.telemetry import LogInterval

log = structlog.get_logger(__name__)

TRACES_PATH = "/v1/traces"
"""Path of spans at an OTLP/HTTP endpoint."""
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
STOP_SECONDS = 3.0
"""Maximum time for the last spans at the end of the process."""


def is_wanted(endpoint: str, environ: Mapping[str, str]) -> bool:
    """Return whether spans are exported: an endpoint is set, and OpenTelemetry is not disabled."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(endpoint) or any(environ.get(name) for name in ENDPOINT_VARIABLES)


@contextlib.asynccontextmanager
async def exported_spans(endpoint: str, *, name: str, cluster: str) -> AsyncIterator[None]:
    """Export the spans of calls until the block ends.

    Args:
        endpoint: base URL of the collector; if empty, the standard variables name it, and without them nothing is done.
        name: of the process, such as `broker-1`: its kind, and an id that may have dashes, too.
        cluster: name of the cluster.

    Raises:
        InvalidConfigError: If OpenTelemetry's SDK is not installed.
    """
    if not is_wanted(endpoint, os.environ):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
    except ImportError as error:
        raise InvalidConfigError(
            f"spans cannot be exported without {error.name}", action="Run `pip install 'headrace-server[tracing]'`."
        ) from error
    own = {
        "service.name": f"headrace-{name.partition('-')[0]}",
        "service.namespace": cluster,
        "service.instance.id": name,
        "service.version": RELEASE,
    }
    # What the standard variables say has precedence.
    resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
    _log_failures()
    exporter = OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH if endpoint else None)
    provider = TracerProvider(ParentBased(ALWAYS_OFF), resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace_calls(CallTracer(provider.get_tracer("headrace_server", RELEASE)))
    try:
        yield
    finally:
        trace_calls(None)
        # A thread that the process does not wait for at its exit: the collector may be away.
        last = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
        last.start()
        await asyncio.to_thread(last.join, STOP_SECONDS)


class _FailureLog(logging.Handler):
    """Writes what OpenTelemetry's SDK logs as lines of the service's log, at growing intervals."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._interval = LogInterval(SystemClock().monotonic_ms)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if self._interval.is_due():
            log.warning("spans_not_exported", reason=record.getMessage())


def _log_failures() -> None:
    found = logging.getLogger("opentelemetry")
    found.handlers = [_FailureLog()]
    found.propagate = False
