"""OpenTelemetry's API as the application has set it up; never imported from here.

A program that sets a tracer provider has imported `opentelemetry.trace`; one that has not, or has set none, has no
spans. So `import headrace` needs no package of OpenTelemetry, and the lookup costs other programs one dictionary access
for each batch or poll.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from headrace.wire.trace_context import TraceParent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

_log = logging.getLogger("headrace.client")

SYSTEM = "headrace"
"""Value of `messaging.system`."""
INSTRUMENTATION = "headrace"


class OpenTelemetry:
    """API with the tracer of one provider. Any thread.

    Samplers and span processors are code of the application, and the SDK passes their errors on. They are logged once,
    and affect no record.

    Attributes:
        current: returns the current context; the same object until another one is attached.
        root: a context without a span.
    """

    __slots__ = ("_contexts", "_has_failed", "_tracer", "_traces", "_variable", "current", "provider", "root")

    def __init__(self, traces: Any, contexts: Any, provider: "TracerProvider") -> None:
        """`traces` and `contexts` are the modules `opentelemetry.trace` and `opentelemetry.context`."""
        from headrace import __version__

        self._traces, self._contexts = traces, contexts
        self.provider = provider
        self._tracer: Tracer = provider.get_tracer(INSTRUMENTATION, __version__)
        self._has_failed = False
        self.root: Context = contexts.Context()
        # The variable itself, if it is where it has always been: a fifth of the cost of the function over it, and
        # `send` asks for each record.
        found = getattr(getattr(contexts, "_RUNTIME_CONTEXT", None), "_current_context", None)
        self._variable: ContextVar[Context] | None = found if isinstance(found, ContextVar) else None
        self.current: Callable[[], Context] = contexts.get_current if self._variable is None else self._variable.get

    def settle(self) -> "Context":
        """Return the current context, and make further lookups on this thread quick.

        A variable without a value of its own has its default, which Python looks up four times as slowly.
        """
        context = self.current()
        if self._variable is not None:
            self._variable.set(context)
        return context

    def span_context(self, context: "Context") -> "SpanContext":
        """Return the identity of the span in a context; an invalid one without a span."""
        found: SpanContext = self._traces.get_current_span(context).get_span_context()
        return found

    def context_of(self, span: "Span") -> "Context":
        """Return the current context with another span."""
        found: Context = self._traces.set_span_in_context(span)
        return found

    def remote(self, parent: TraceParent) -> "SpanContext":
        """Return the identity of a span of another process."""
        flags = self._traces.TraceFlags(self._traces.TraceFlags.SAMPLED if parent.is_sampled else 0)
        found: SpanContext = self._traces.SpanContext(
            parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags
        )
        return found

    def below(self, parent: "SpanContext") -> "Context":
        """Return a context for the children of a span."""
        found: Context = self._traces.set_span_in_context(self._traces.NonRecordingSpan(parent), self.root)
        return found

    def link(self, linked: "SpanContext") -> Any:
        """Return a link to a span."""
        return self._traces.Link(linked)

    def start_span(
        self,
        name: str,
        parent: "Context",
        kind: str,
        attributes: Mapping[str, Any],
        links: Sequence[Any] = (),
        start_ns: int | None = None,
    ) -> "Span":
        """Start a span of the kind `PRODUCER`, `CONSUMER` or `CLIENT`; if that fails, return the parent unrecorded."""
        try:
            return self._tracer.start_span(name, parent, self._traces.SpanKind[kind], attributes, links, start_ns)
        except Exception:
            self._log_failure("started")
            unrecorded: Span = self._traces.NonRecordingSpan(self.span_context(parent))
            return unrecorded

    def end_span(
        self, span: "Span", attributes: Mapping[str, Any], error_type: str = "", end_ns: int | None = None
    ) -> None:
        """End a span with further attributes. Messages of errors are left out, because they may quote a value."""
        try:
            span.set_attributes(attributes)
            if error_type:
                span.set_attribute("error.type", error_type)
                span.set_status(self._traces.StatusCode.ERROR)
            span.end(end_ns)
        except Exception:
            self._log_failure("ended")

    def _log_failure(self, what: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.exception("a span could not be %s; records are not affected, and further ones are not logged", what)

    def attach(self, context: "Context") -> Any:
        """Make a context the current one; return a token for `detach`."""
        return self._contexts.attach(context)

    def detach(self, token: Any) -> None:
        """Restore the context before `attach`."""
        self._contexts.detach(token)


_known: OpenTelemetry | None = None


def open_telemetry() -> OpenTelemetry | None:
    """Return the API, once the application has set a tracer provider; else `None`. Cheap, any thread."""
    traces = sys.modules.get("opentelemetry.trace")
    return None if traces is None else _of_provider(traces)


def _of_provider(traces: Any) -> OpenTelemetry | None:
    global _known  # noqa: PLW0603
    find = getattr(traces, "get_tracer_provider", None)  # Missing while another thread imports it.
    provider = None if find is None else find()
    known = _known
    if known is not None and known.provider is provider:
        return known
    if provider is None or isinstance(provider, traces.ProxyTracerProvider | traces.NoOpTracerProvider):
        return None
    known = _known = OpenTelemetry(traces, sys.modules["opentelemetry.context"], provider)
    return known


def ambient_traceparent() -> str:
    """Return the `traceparent` of the current span if it is sampled; else an empty string."""
    found = open_telemetry()
    if found is None:
        return ""
    span = found.span_context(found.current())
    return str(traceparent_for(span)) if span.is_valid and span.trace_flags.sampled else ""


def traceparent_for(span: "SpanContext") -> TraceParent:
    """Return the `traceparent` of a span."""
    return TraceParent(span.trace_id, span.span_id, span.trace_flags.sampled)
