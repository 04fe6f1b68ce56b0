"""Spans of calls: whose, below which, bounded, and exported without a wait for the collector."""

import asyncio
import time

import pytest
from headrace.wire.errors import ErrorCode
from headrace.wire.trace_context import traced_request_id, traceparent_of
from headrace_server import call_spans
from headrace_server.call_spans import CallTracer, begin_call, current_span, current_trace_id, trace_calls
from headrace_server.service_settings import ServiceSettings
from headrace_server.span_export import exported_spans, is_wanted
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from tests.otlp_receiver import OtlpReceiver

PATH = "/headrace.v1.BrokerService/Produce"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01"


class Call:
    """Context of a call, with this metadata."""

    def __init__(self, *metadata):
        self._metadata = metadata

    def invocation_metadata(self):
        return self._metadata


@pytest.fixture
def exporter():
    found = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace_calls(CallTracer(provider.get_tracer("test")))
    yield found
    trace_calls(None)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("traceparent", "nonsense"),),
        (("traceparent", SAMPLED[:-2] + "00"),),
        (("traceparent-bin", b"\0"), ("headrace-request-id", "5f0c93ab-2f")),
    ],
)
def test_a_call_outside_of_a_sampled_trace_has_no_span(exporter, metadata):
    assert begin_call(PATH, "grpc", Call(*metadata)) is None
    assert current_trace_id() == ""


def test_a_call_of_a_sampled_trace_has_a_span_with_its_stages(exporter):
    with begin_call(PATH, "grpc", Call(("traceparent", SAMPLED))) as span:
        assert current_span() is span
        assert current_trace_id() == TRACE
        started = time.perf_counter()
        span.stage("append", started, 0.25)
    assert current_span() is None
    stage, call = exporter.get_finished_spans()
    assert call.name == PATH[1:]
    assert call.kind is SpanKind.SERVER
    assert dict(call.attributes) == {"rpc.system.name": "grpc", "rpc.method": PATH[1:]}
    assert call.parent.span_id == 0x00F067AA0BA902B7
    assert stage.parent == call.get_span_context()
    assert stage.end_time - stage.start_time == 250_000_000
    assert abs(stage.start_time - call.start_time) < 10e9


@pytest.mark.parametrize(("code", "is_fault"), [(ErrorCode.NOT_LEADER, None), (ErrorCode.INTERNAL, True)])
def test_a_refused_call_has_the_code_and_no_text(exporter, code, is_fault):
    """The conventions: a server's span is an error if the server is at fault."""
    with begin_call(PATH, "grpc", Call(("traceparent", SAMPLED))) as span:
        span.refused(code)
    (call,) = exporter.get_finished_spans()
    assert call.attributes["error.type"] == code.name
    if is_fault:
        assert call.status.status_code is StatusCode.ERROR
    assert call.status.description is None


def test_callers_cannot_ask_for_more_spans_than_the_limit(exporter, monkeypatch):
    monkeypatch.setattr(call_spans, "MAX_CALLS_PER_SECOND", 3)
    monkeypatch.setattr(call_spans.time, "monotonic", lambda: 7.5)
    begun = [begin_call(PATH, "grpc", Call(("traceparent", SAMPLED))) for _ in range(5)]
    assert [span is not None for span in begun] == [True] * 3 + [False] * 2
    monkeypatch.setattr(call_spans.time, "monotonic", lambda: 8.5)
    assert begin_call(PATH, "grpc", Call(("traceparent", SAMPLED))) is not None


def test_the_context_comes_out_of_a_request_id():
    assert traceparent_of(traced_request_id(SAMPLED, 5)) == SAMPLED


def test_spans_are_exported_as_the_setting_or_the_standard_variables_say():
    assert is_wanted("http://collector:4318", {})
    assert is_wanted("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    assert is_wanted("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"})
    assert not is_wanted("", {})
    assert not is_wanted("http://collector:4318", {"OTEL_SDK_DISABLED": "true"})
    assert not is_wanted("http://collector:4318", {"OTEL_TRACES_EXPORTER": "none"})


def test_an_endpoint_that_is_no_url_is_refused():
    with pytest.raises(ValueError, match="otlp_endpoint=collector:4317 is not a URL"):
        ServiceSettings(otlp_endpoint="collector:4317").check_common()


def make_spans(count):
    """Make spans as calls do; return the longest time that one took in seconds."""
    longest = 0.0
    for _ in range(count):
        started = time.perf_counter()
        with begin_call(PATH, "grpc", Call(("traceparent", SAMPLED))) as span:
            span.stage("append", started, 0.001)
        longest = max(longest, time.perf_counter() - started)
    return longest


def test_spans_arrive_at_the_collector_with_the_name_of_the_process(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.namespace=own")

    async def main(endpoint):
        async with exported_spans(endpoint + "/", name="broker-7", cluster="east"):
            make_spans(10)

    with OtlpReceiver() as receiver:
        asyncio.run(main(receiver.endpoint))
        spans = receiver.spans()  # The end of the block has sent them.
        body = b"".join(receiver.bodies)
    assert len(spans) == 20
    assert {span.process for span in spans} == {"broker-7"}
    assert {span.trace_id for span in spans} == {TRACE}
    assert b"headrace-broker" in body
    assert b"own" in body
    assert b"deployment.environment.name" in body
    assert begin_call(PATH, "grpc", Call(("traceparent", SAMPLED))) is None


def test_the_service_of_a_coordinator_does_not_have_its_id(monkeypatch):
    """In the chart the id is the name of a pod, another one after each rollout."""
    monkeypatch.setattr(call_spans, "MAX_CALLS_PER_SECOND", 10**9)

    async def main(endpoint):
        async with exported_spans(endpoint, name="coordinator-eu-7d9f8b6c5-x2x4z", cluster="east"):
            make_spans(1)

    with OtlpReceiver() as receiver:
        asyncio.run(main(receiver.endpoint))
        spans = receiver.spans()
    assert {span.process for span in spans} == {"coordinator-eu-7d9f8b6c5-x2x4z"}
    assert {span.service for span in spans} == {"headrace-coordinator"}


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "silent"])
def test_a_collector_that_is_away_or_silent_delays_no_call(is_away, monkeypatch, caplog):
    """Ten times as many spans as the queue holds: none waits, memory is bounded, and the process stops in seconds."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "512")
    monkeypatch.setattr(call_spans, "MAX_CALLS_PER_SECOND", 10**9)

    async def main(endpoint):
        async with exported_spans(endpoint, name="broker-7", cluster="east"):
            began = time.monotonic()
            make_spans(2_500)
            took = time.monotonic() - began
            stopped = time.monotonic()
        return took, time.monotonic() - stopped

    with OtlpReceiver(is_silent=True) as receiver:
        endpoint = "http://127.0.0.1:9" if is_away else receiver.endpoint
        took, stop = asyncio.run(main(endpoint))
    assert took < 10.0  # About half a second; one export waits for ten seconds.
    assert stop < 9.0
