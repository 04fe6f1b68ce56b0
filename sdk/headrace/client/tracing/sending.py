"""Spans of a producer: `send TOPIC`, from `send` to the acknowledgement.

A record that is sent within a sampled trace has a span of its own, and its context in the header `traceparent`.
Records that are sent outside of any trace are sampled as batches: the sampler is asked once for each batch, and the
context of its span is that of all its records (`headrace.wire.trace_context`). A sampler takes about ten microseconds,
`send` a quarter of one; so a decision for each record would cost 40 times the record. `send_many` and `send_table` have
a span for each batch in any case, below the span in which they are called: the conventions recommend a "Create" span
for each message, which would be ten thousand for a batch.

A context that the application has put into `headers` stays as it is, and the span links to it.
"""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.client.base.config import ProducerConfig
from headrace.client.base.open_telemetry import SYSTEM, OpenTelemetry, open_telemetry, traceparent_for
from headrace.wire.batch import MAX_RECORD_HEADERS
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition
from headrace.wire.trace_context import BATCH_TRACEPARENT, TRACEPARENT, parse_traceparent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

OFFSET_BYTES = 4
"""Bytes that a batch with headers has for each record."""
CONTEXT_BYTES = 128
"""Maximum bytes of a context in a header, with its offsets."""

RecordHeaders = Any
"""Sequence of (name, bytes) pairs, or `None`."""


class SendSpan:
    """Span of one `send`; ended by the batch that takes the record, or by `fail`."""

    __slots__ = ("adds_header", "context", "span", "telemetry")

    def __init__(
        self, telemetry: OpenTelemetry, context: "Context", span: "Span | None", *, adds_header: bool = False
    ) -> None:
        """`span` is `None` for a record of a trace that is not recorded; `context` is that of the call.

        `adds_header` is whether the last header of the record is the context of the span.
        """
        self.telemetry, self.context, self.span, self.adds_header = telemetry, context, span, adds_header

    def fail(self, error: BaseException) -> None:
        """End the span of a record that was not accepted."""
        if self.span is not None:
            self.telemetry.end_span(self.span, {}, error_type(error))


class BatchSpans:
    """Spans of the records of one batch. Guarded by the lock of its buffer until it is sealed.

    Attributes:
        current: returns the current context, which `send` compares with `outside`.
        outside: context in which records are sent without a span of their own.
        traceparent: context of the first sampled span of the batch, which its calls carry; empty without any.
    """

    __slots__ = (
        "_is_unsampled",
        "_largest",
        "_parent",
        "_spans",
        "_telemetry",
        "_tracing",
        "current",
        "outside",
        "traceparent",
    )

    def __init__(self, tracing: "SendTracing", telemetry: OpenTelemetry, largest: int) -> None:
        """`largest` is the maximum size of the batch's records, in bytes."""
        self._tracing, self._telemetry, self._largest = tracing, telemetry, largest
        self.current: Callable[[], object] = telemetry.current
        self.outside: object = None
        self._parent: Context | None = None
        self._is_unsampled = False
        self._spans: list[tuple[Span, int]] = []
        self.traceparent = ""

    def take(self, sent: SendSpan | None, index: int) -> None:
        """Take the span of record `index`; `None` means that it was sent outside of any trace."""
        if sent is None:
            self.outside = self._telemetry.settle()
        elif sent.span is None:
            self.outside, self._is_unsampled = sent.context, True
        else:
            self._add(sent.span, index)

    def inherit(self) -> None:
        """Make the span of the whole batch a child of the current span."""
        context = self._telemetry.current()
        found = self._telemetry.span_context(context)
        if found.is_valid:
            self._parent, self._is_unsampled = context, not found.trace_flags.sampled

    def seal(
        self, where: TopicPartition, records: int, size_bytes: int, opened_ms: int
    ) -> tuple[tuple[str, bytes], ...]:
        """Begin the span of the batch unless its records have spans; return the headers for its first record."""
        if self._spans or self._is_unsampled:
            return ()
        parent = self._telemetry.root if self._parent is None else self._parent
        start_ns = opened_ms * 1_000_000 if self._parent is None else None
        span = self._tracing.start(self._telemetry, where.topic, parent, start_ns=start_ns)
        if not _is_kept(span):
            return ()
        span.set_attribute("messaging.batch.message_count", records)
        self._add(span, 0)
        if not self.traceparent or size_bytes + OFFSET_BYTES * (records + 1) + CONTEXT_BYTES > self._largest:
            return ()
        return ((BATCH_TRACEPARENT, self.traceparent.encode()),)

    def _add(self, span: "Span", index: int) -> None:
        self._spans.append((span, index))
        identity = span.get_span_context()
        if not self.traceparent and identity.trace_flags.sampled:
            self.traceparent = str(traceparent_for(identity))

    def sent_to(self, address: str) -> None:
        """Note the broker to which the batch is sent."""
        host, _, port = address.rpartition(":")
        for span, _ in self._spans:
            span.set_attribute("server.address", host)
            span.set_attribute("server.port", int(port))

    def end(self, where: TopicPartition, offset_of: Callable[[int], int], error: HeadraceError | None) -> None:
        """End the spans with the result of the batch."""
        for span, index in self._spans:
            attributes: dict[str, str | int] = {"messaging.destination.partition.id": str(where.partition)}
            if error is None and (offset := offset_of(index)) >= 0:
                attributes["messaging.headrace.offset"] = offset
            self._telemetry.end_span(span, attributes, "" if error is None else error_type(error))


class SendTracing:
    """Spans of one producer. Any thread."""

    def __init__(self, config: ProducerConfig) -> None:
        self._is_off = config.tracing == "off"
        self._client_id = config.client_id
        self.telemetry = None if self._is_off else open_telemetry()
        """API of OpenTelemetry, looked up again for each batch; `None` if the application has no tracer provider."""
        self._outside: object = None
        """Context that has no span, the last one that `begin` has seen."""
        self._attributes: dict[str, dict[str, str]] = {}
        """What a sampler is asked with, by topic: most batches are not sampled, and only ask."""

    def batch(self, largest: int) -> BatchSpans | None:
        """Return the spans of a batch that is being opened; `None` if the application has no tracer provider."""
        telemetry = self.telemetry = None if self._is_off else open_telemetry()
        return None if telemetry is None else BatchSpans(self, telemetry, largest)

    def begin(self, topic: str, headers: RecordHeaders) -> tuple[SendSpan | None, RecordHeaders]:
        """Begin the span of a record; return it with the record's headers.

        The span is `None` outside of any trace, and if the application has no tracer provider.
        """
        telemetry = self.telemetry
        if telemetry is None:
            return None, headers
        context = telemetry.current()
        if context is self._outside:
            return None, headers
        found = telemetry.span_context(context)
        if not found.is_valid:
            self._outside = context
            return None, headers
        if not found.trace_flags.sampled:
            return SendSpan(telemetry, context, None), headers
        given = creation_context(headers)
        links = () if given is None else (telemetry.link(telemetry.remote(given)),)
        span = self.start(telemetry, topic, context, links=links)
        if not _is_kept(span):  # The sampler does not follow the parent.
            return SendSpan(telemetry, context, None), headers
        identity = span.get_span_context()
        adds_header = identity.trace_flags.sampled and given is None and len(headers or ()) < MAX_RECORD_HEADERS
        if adds_header:
            headers = [*(headers or ()), (TRACEPARENT, str(traceparent_for(identity)).encode())]
        return SendSpan(telemetry, context, span, adds_header=adds_header), headers

    def start(
        self, telemetry: OpenTelemetry, topic: str, parent: "Context", *, links: Any = (), start_ns: int | None = None
    ) -> "Span":
        """Start a span."""
        attributes = self._attributes.get(topic)
        if attributes is None:
            attributes = self._attributes[topic] = {
                "messaging.system": SYSTEM,
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                "messaging.client.id": self._client_id,
            }
        return telemetry.start_span(f"send {topic}", parent, "PRODUCER", attributes, links, start_ns)


def _is_kept(span: "Span") -> bool:
    """Return whether a span must be ended, or its context stored. It may be recorded for processors only."""
    return span.is_recording() or span.get_span_context().trace_flags.sampled


def creation_context(headers: RecordHeaders) -> Any:
    """Return the `TraceParent` in a record's headers, or `None`."""
    for name, value in headers or ():
        if name == TRACEPARENT:
            with contextlib.suppress(AttributeError, UnicodeDecodeError):  # What is no bytes is refused later.
                return parse_traceparent(value.decode("ascii"))
    return None


def error_type(error: BaseException) -> str:
    """Return the low-cardinality name of an error: its code, or its class."""
    code = getattr(error, "code", None)
    return str(code.name) if isinstance(error, HeadraceError) and code is not None else type(error).__qualname__
