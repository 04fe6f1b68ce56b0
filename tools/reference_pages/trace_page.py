"""Generator of docs/reference/trace-format.md: the tables from the docstring of the module, and its constants."""

from __future__ import annotations

from headrace.wire import request_trace
from headrace.wire.request_trace import COLUMNS, HEADER_BYTES, MAX_BLOCK_REQUESTS

from reference_pages.markdown import docstring

_INTRO = """# Request trace format

The topic `__table_trace` has the sampled requests of tables: operation, keyed hash of the key, sizes, outcome, latency
and time, never a key or a value. [How to read a workload report](../guides/workload-report.md) says what is computed
from it. Version 1; `tests/golden/trace-v1.bin` pins it."""

_RULES = """## Rules

1. A block is refused as a whole if its version, its length, a reserved field, an operation or an outcome is not as
   above. A reader skips the record and counts it.
2. Requests of a server are in the order in which they ended, `time_us` and `gap_us` are of their arrival.
   `seen_requests` and `dropped_requests` count from the block before and add up over blocks, so that requests of keys
   outside the sample are known in number.
3. All servers of a cluster use one `sample_threshold` for a table and one secret: a key that moves to another server
   keeps its hash and its place in the sample.
4. A writer holds at most {most:,} sampled requests; while it cannot write, others are dropped and counted. At a stop it
   writes what it has; what a server had that crashes is lost, up to ten seconds of requests. A block has at least one
   request: `seen_requests` of a server that samples none of its keys are in no block.
5. A request for many keys is recorded once for each key, with the same time and latency. The gap is that of its first
   key, sampled or not; the others have a gap of 0.
6. A new operation or outcome gets a new version.
7. A block whose acknowledgement was lost is written again with the same bytes. A reader counts it once."""


def trace_body() -> str:
    """Return the page from its title."""
    request_bytes = sum(dtype.itemsize for dtype in COLUMNS.values())
    size = (
        f"A block of n requests has {HEADER_BYTES} bytes, the name, {request_bytes} n bytes, and zeros for alignment."
    )
    rules = _RULES.format(most=MAX_BLOCK_REQUESTS)
    return "\n\n".join([_INTRO, "## Block", docstring(request_trace), size, rules])
