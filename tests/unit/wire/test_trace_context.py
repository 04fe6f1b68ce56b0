import pytest
from headrace.wire.frames import MAX_REQUEST_ID_BYTES
from headrace.wire.trace_context import TraceParent, parse_traceparent, traced_request_id, traceparent_of

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_context_is_read_and_written_in_the_form_of_the_recommendation():
    """The example of W3C Trace Context, section 3.2."""
    parsed = parse_traceparent(CONTEXT)
    assert parsed == TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_sampled=True)
    assert str(parsed) == CONTEXT
    unsampled = parse_traceparent(CONTEXT[:-2] + "00")
    assert unsampled is not None
    assert not unsampled.is_sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        CONTEXT.upper(),
        CONTEXT + "-more",
        "ff" + CONTEXT[2:],
        CONTEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        CONTEXT.replace("00f067aa0ba902b7", "0" * 16),
        CONTEXT.replace("4bf9", "４bf9"),
    ],
)
def test_what_is_no_context_is_refused(text):
    assert parse_traceparent(text) is None


@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, 2**32, 2**70])
def test_the_request_id_of_a_traced_call_fits_every_transport(number):
    """It has the context again, and at most the bytes that a frame allows."""
    request_id = traced_request_id(CONTEXT, number)
    assert len(request_id) <= MAX_REQUEST_ID_BYTES
    assert traceparent_of(request_id) == CONTEXT


@pytest.mark.parametrize("request_id", ["", "5f0c93ab-2f", CONTEXT, "00-", "00-1"])
def test_other_request_ids_have_no_context(request_id):
    assert traceparent_of(request_id) == ""
