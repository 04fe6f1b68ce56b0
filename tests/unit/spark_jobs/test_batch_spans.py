import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from spark_jobs.batch_spans import commit_span, record_micro_batch

PROGRESS = {
    "timestamp": "2026-11-26T20:00:00.250Z",
    "batchId": 7,
    "numInputRows": 1_000,
    "durationMs": {"addBatch": 900, "triggerExecution": 1_250},
}


@pytest.fixture
def exporter(monkeypatch):
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return found


def test_a_commit_has_a_span_that_is_current_while_it_runs(exporter):
    with commit_span("orders", 500):
        inside = trace.get_current_span().get_span_context()
    with pytest.raises(ValueError, match="planted"), commit_span("orders", 1):
        raise ValueError("planted")
    done, failed = exporter.get_finished_spans()
    assert done.get_span_context() == inside
    assert done.name == "process orders"
    assert done.attributes["messaging.batch.message_count"] == 500
    assert failed.status.status_code is StatusCode.ERROR
    assert "planted" not in failed.to_json()
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_micro_batch_has_the_times_that_spark_reports(exporter):
    record_micro_batch("windows", PROGRESS)
    (span,) = exporter.get_finished_spans()
    assert span.name == "process windows"
    assert span.start_time == 1_795_723_200_250_000_000
    assert span.end_time - span.start_time == 1_250_000_000
    assert span.attributes["spark.streaming.batch_id"] == 7


def test_without_a_provider_a_commit_runs_without_a_span():
    with commit_span("orders", 500):
        assert not trace.get_current_span().get_span_context().is_valid
    record_micro_batch("windows", PROGRESS)
