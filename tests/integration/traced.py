"""An application with a tracer provider that sends a record and handles it, and what its trace must be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from tests.otlp_receiver import ReceivedSpan

TOPIC = "orders"
SECRET = b"planted-secret-4711"
PRODUCE = "headrace.v1.BrokerService/Produce"
STAGES = {"queue", "append", "fsync", "replication"}


@contextlib.contextmanager
def application(endpoint: str) -> Iterator[TracerProvider]:
    """Set the tracer provider of this process, which exports to a collector, while the block runs."""
    found = TracerProvider(ParentBased(ALWAYS_ON), Resource.create({"service.name": "shop"}))
    found.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", found)
        yield found
    found.shutdown()


def send_and_handle(cluster: LocalCluster, provider: TracerProvider, transport: str) -> str:
    """Send one record in a span and handle it; return the trace id."""
    tracer = provider.get_tracer("shop")
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, transport=transport) as producer:
        with tracer.start_as_current_span("checkout") as span:
            sent = producer.send(TOPIC, SECRET, SECRET, headers=[("own", SECRET)]).result(60)
    with headrace.Consumer(
        TOPIC,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=f"mail-{transport}",
        auto_offset_reset="earliest",
        transport=transport,
    ) as consumer:

        def handle(record: headrace.Record) -> None:
            if record.offset == sent.offset:
                with tracer.start_as_current_span("send mail"):
                    consumer.stop()

        consumer.run(handle, handle_signals=False)
    provider.force_flush()
    return f"{span.get_span_context().trace_id:032x}"


def check_trace(spans: list[ReceivedSpan], system: str) -> None:
    """Check the spans of one trace of `send_and_handle`, each below its parent and within its time."""
    by_name = {span.name: span for span in spans}
    checkout, sent = by_name["checkout"], by_name[f"send {TOPIC}"]
    call, process, mail = by_name[PRODUCE], by_name[f"process {TOPIC}"], by_name["send mail"]
    assert checkout.parent_id == ""
    assert [span.parent_id for span in (sent, call, process, mail)] == [
        checkout.span_id,
        sent.span_id,
        sent.span_id,
        process.span_id,
    ]
    assert call.process.startswith("broker-")
    assert call.attributes["rpc.system.name"] == system
    # The client may have the answer before the broker has ended its span.
    assert sent.start_ns <= call.start_ns <= sent.end_ns
    assert sent.attributes["messaging.headrace.offset"] == process.attributes["messaging.headrace.offset"]
    stages = [span for span in spans if span.parent_id == call.span_id]
    assert {span.name for span in stages} == STAGES
    assert all(call.start_ns <= span.start_ns <= span.end_ns <= call.end_ns + 1_000_000 for span in stages)
