"""Spans of a consumer: `receive TOPIC` of a poll, `process TOPIC` of a handler.

A receive span links to the contexts of the records. The span of a handler is a child of its record's context, so that
one trace leads from the send to the handler, and it links to it as well. A record without a context has none: its
producer decides what is sampled, and asking a sampler for every record would cost a fifth of a handler's time.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.client.base.config import ConsumerConfig
from headrace.client.base.open_telemetry import SYSTEM, OpenTelemetry, open_telemetry
from headrace.client.base.records import DecodedBatch, Record
from headrace.client.tracing.sending import creation_context, error_type
from headrace.wire.trace_context import TraceParent, parse_traceparent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

MAX_LINKS = 128
"""Maximum links of a receive span, as the SDK's own limit."""


class ReceiveTracing:
    """Spans of one consumer. Any thread."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._is_off = config.tracing == "off"
        self._attributes = {"messaging.system": SYSTEM, "messaging.client.id": config.client_id}
        if config.group_id:
            self._attributes["messaging.consumer.group.name"] = config.group_id

    @property
    def telemetry(self) -> OpenTelemetry | None:
        """API of OpenTelemetry; `None` if the application has no tracer provider, or tracing is off."""
        return None if self._is_off else open_telemetry()

    def received(self, telemetry: OpenTelemetry, batches: Sequence[DecodedBatch], start_ns: int) -> None:
        """Record the span of a poll that has returned records."""
        topics = list(dict.fromkeys(decoded.source.topic for decoded in batches))
        sources = list(dict.fromkeys(decoded.source for decoded in batches))
        attributes: dict[str, Any] = {
            **self._attributes,
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            "messaging.batch.message_count": sum(decoded.end - decoded.start for decoded in batches),
        }
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topics[0]
        if len(sources) == 1:
            attributes["messaging.destination.partition.id"] = str(sources[0].partition)
        span = telemetry.start_span(
            f"receive {topics[0]}" if len(topics) == 1 else "receive",
            telemetry.current(),
            "CLIENT",
            attributes,
            [telemetry.link(telemetry.remote(each)) for each in contexts_of(batches)],
            start_ns,
        )
        telemetry.end_span(span, {})

    def processing(self, record: Record) -> "ProcessSpan | None":
        """Return the span of a handler, not begun yet; `None` if the record has no context."""
        telemetry = self.telemetry
        parent = None if telemetry is None else creation_context(record.headers)
        if telemetry is None or parent is None:
            return None
        attributes: dict[str, str | int] = {
            **self._attributes,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.headrace.offset": record.offset,
        }
        return ProcessSpan(telemetry, f"process {record.topic}", parent, attributes)


class ProcessSpan:
    """Span of a handler, current in the `with` block; on one thread or in one task."""

    __slots__ = ("_attributes", "_name", "_parent", "_span", "_telemetry", "_token")

    _span: "Span"
    _token: Any

    def __init__(
        self, telemetry: OpenTelemetry, name: str, parent: TraceParent, attributes: dict[str, str | int]
    ) -> None:
        self._telemetry, self._name, self._parent, self._attributes = telemetry, name, parent, attributes

    def __enter__(self) -> "ProcessSpan":
        telemetry = self._telemetry
        created = telemetry.remote(self._parent)
        links = [telemetry.link(created)]
        around = telemetry.span_context(telemetry.current())
        if around.is_valid:
            links.append(telemetry.link(around))
        parent: Context = telemetry.below(created)
        self._span = telemetry.start_span(self._name, parent, "CONSUMER", self._attributes, links)
        self._token = telemetry.attach(telemetry.context_of(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End it. The text of an error is not part of it: it may quote the record."""
        self._telemetry.detach(self._token)
        self._telemetry.end_span(self._span, {}, "" if error is None else error_type(error))


def contexts_of(batches: Iterable[DecodedBatch]) -> list[TraceParent]:
    """Return the distinct contexts of records, at most `MAX_LINKS`, in the order of the records."""
    found: dict[bytes, None] = {}
    for value in chain.from_iterable(decoded.traceparents() for decoded in batches):
        found[value] = None
        if len(found) == MAX_LINKS:
            break
    parsed = (parse_traceparent(value.decode("ascii", errors="replace")) for value in found)
    return [parent for parent in parsed if parent is not None]
