"""Request ids of calls within a trace of the application."""

from headrace.client.base.request_ids import operation_metadata, outside_operations, request_id_scope
from headrace.wire.errors import REQUEST_ID_KEY
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF


def test_the_calls_of_an_operation_in_a_sampled_span_carry_its_context(application):
    """Once as the beginning of the request id, and once as gRPC's own metadata."""
    application.set_provider()
    with application.tracer.start_as_current_span("request") as span, request_id_scope():
        metadata = dict(operation_metadata(is_traced=True))
        assert dict(operation_metadata(is_traced=True)) == metadata
    found = span.get_span_context()
    context = f"00-{found.trace_id:032x}-{found.span_id:016x}-01"
    assert metadata["traceparent"] == context
    assert metadata[REQUEST_ID_KEY].startswith(f"{context}-")


def test_other_calls_carry_none(application):
    """Those of a client whose tracing is off, of the background, of an unsampled span, and without a span."""
    application.set_provider()
    seen = []
    with application.tracer.start_as_current_span("request"):
        with request_id_scope():
            seen.append(dict(operation_metadata()))

        def in_background():
            with request_id_scope():
                seen.append(dict(operation_metadata(is_traced=True)))

        outside_operations().run(in_background)
    application.set_provider(root=ALWAYS_OFF)
    with application.tracer.start_as_current_span("request"), request_id_scope():
        assert trace.get_current_span().get_span_context().is_valid
        seen.append(dict(operation_metadata(is_traced=True)))
    with request_id_scope():
        seen.append(dict(operation_metadata(is_traced=True)))
    assert [list(metadata) for metadata in seen] == [[REQUEST_ID_KEY]] * 4
