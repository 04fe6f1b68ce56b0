"""Trace context of records and calls in the form of W3C Trace Context (`traceparent`, version 00). Pure.

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version, trace id, span id, flags: 1 means sampled

A record has it in a header, the creation context of OpenTelemetry's conventions for messaging. Records that are sampled
together, as a whole batch, have it once: in the header `batch-traceparent` of the batch's first record. A column of the
same header for every record would cost 78 bytes a record. Consumers of the SDK show it to the application as the
`traceparent` of each of the batch's records. After compaction it holds only for the record that has it.

A call has it as the beginning of its request id, which both protocols carry already: `TRACEPARENT-NUMBER`.
"""

import re
from typing import NamedTuple

TRACEPARENT = "traceparent"
"""Name of a record's header, and of the metadata of a gRPC call."""
BATCH_TRACEPARENT = "batch-traceparent"
"""Name of the header of a batch's first record with the context of all its records."""
TRACEPARENT_CHARACTERS = 55
_SAMPLED = 1
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)


class TraceParent(NamedTuple):
    """Parsed `traceparent`."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    is_sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def parse_traceparent(text: str) -> TraceParent | None:
    """Return the context in `text`; `None` if it is no context of version 00."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    return TraceParent(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED)) if trace_id and span_id else None


def traced_request_id(traceparent: str, number: int) -> str:
    """Return the request id of a traced call, at most 64 characters; `number` is the process's, of this call."""
    return f"{traceparent}-{number & 0xFFFFFFFF:x}"


def traceparent_of(request_id: str) -> str:
    """Return the `traceparent` with which a request id begins; empty for the id of a call that is not traced."""
    is_traced = request_id.startswith("00-") and request_id[TRACEPARENT_CHARACTERS : TRACEPARENT_CHARACTERS + 1] == "-"
    return request_id[:TRACEPARENT_CHARACTERS] if is_traced else ""
