"""Spans of calls whose caller is in a sampled trace, by OpenTelemetry's conventions for RPCs.

A server begins no trace of its own: its callers decide what is sampled. The caller's context comes as `traceparent` in
the metadata of a gRPC call, and as the beginning of the request id over the native protocol
(`headrace.wire.trace_context`). `span_export` has the exporter; without one, a call costs a comparison. Belongs to the
event loops.

Spans have no names of records, keys or values: a method, stages, codes of errors.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import grpc
from headrace.wire.errors import GRPC_STATUS, ErrorCode
from headrace.wire.trace_context import TRACEPARENT, TraceParent, parse_traceparent

from headrace_server.call_metadata import texts_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

MAX_CALLS_PER_SECOND = 1_000
"""Maximum calls of a process with spans; further ones have none. Any caller can ask for spans, at 0.1 ms each."""

_SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Statuses that make a server's span an error, as the conventions list them."""

_CURRENT: ContextVar[CallSpan | None] = ContextVar("CALL_SPAN", default=None)


class CallSpan:
    """Span of one call, current in the task within the `with` block."""

    __slots__ = ("_span", "_token", "_tracer", "trace_id")

    _token: Any

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self.trace_id = f"{span.get_span_context().trace_id:032x}"

    def __enter__(self) -> CallSpan:
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _CURRENT.reset(self._token)
        self._span.end()

    def refused(self, code: ErrorCode) -> None:
        """Note the error with which the call ends."""
        from opentelemetry.trace import StatusCode

        status = GRPC_STATUS.get(code, grpc.StatusCode.INTERNAL)
        self._span.set_attribute("rpc.response.status_code", status.name)
        self._span.set_attribute("error.type", code.name)
        if status in _SERVER_FAULTS:
            self._span.set_status(StatusCode.ERROR)

    def stage(self, name: str, started: float, seconds: float) -> None:
        """Record a stage of the call as a child; `started` is by `time.perf_counter`."""
        from opentelemetry.trace import set_span_in_context

        start_ns = time.time_ns() - round((time.perf_counter() - started) * 1e9)
        child = self._tracer.start_span(name, set_span_in_context(self._span), start_time=start_ns)
        child.end(start_ns + round(seconds * 1e9))


class CallTracer:
    """Begins the spans of calls."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._second = 0
        self._calls = 0

    def begin(self, path: str, system: str, context: Any) -> CallSpan | None:
        """Begin the span of a call by its gRPC `path`; `None` if the caller is in no sampled trace."""
        parent = _parent_of(context)
        if parent is None or not parent.is_sampled or not self._has_budget():
            return None
        from opentelemetry import trace

        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        remote = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
        method = path.removeprefix("/")
        span = self._tracer.start_span(
            method,
            trace.set_span_in_context(trace.NonRecordingSpan(remote)),
            trace.SpanKind.SERVER,
            {"rpc.system.name": system, "rpc.method": method},
        )
        return CallSpan(self._tracer, span)

    def _has_budget(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._calls = second, 0
        self._calls += 1
        return self._calls <= MAX_CALLS_PER_SECOND


def _parent_of(context: Any) -> TraceParent | None:
    text = next(texts_of(context, TRACEPARENT), None)
    return None if text is None else parse_traceparent(text)


_tracer: CallTracer | None = None


def trace_calls(tracer: CallTracer | None) -> None:
    """Begin to trace the calls of this process; `None` ends it."""
    global _tracer  # noqa: PLW0603
    _tracer = tracer


def begin_call(path: str, system: str, context: Any) -> CallSpan | None:
    """Begin the span of a call; `None` if it has none. `system` is `grpc` or `headrace`, the native protocol."""
    return None if _tracer is None else _tracer.begin(path, system, context)


def current_span() -> CallSpan | None:
    """Return the span of the call that the task serves, or `None`."""
    return _CURRENT.get()


def current_trace_id() -> str:
    """Return the trace id of the call that the task serves, 32 hexadecimal digits; empty if it is not traced."""
    found = _CURRENT.get()
    return "" if found is None else found.trace_id
