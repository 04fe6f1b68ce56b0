"""The bytes of a request trace are pinned: a file per version, which must decode and be reproduced bit by bit."""

from pathlib import Path

import numpy as np
from headrace.wire.request_trace import (
    RequestOutcome,
    TableOperation,
    TraceBlock,
    TraceColumns,
    decode_block,
    encode_block,
)

GOLDEN = Path(__file__).parent / "trace-v1.bin"
COLUMNS = TraceColumns(
    key_hash=np.array([0x0123456789ABCDEF, 2**64 - 1, 0], np.uint64),
    time_us=np.array([0, 7, 2**32 - 1], np.uint32),
    gap_us=np.array([2**32 - 1, 7, 3], np.uint32),
    latency_us=np.array([90, 0, 2**32 - 1], np.uint32),
    value_bytes=np.array([500, 0, 2**32 - 1], np.uint32),
    key_bytes=np.array([16, 31, 65_535], np.uint16),
    operation=np.array([TableOperation.GET, TableOperation.DELETE, TableOperation.COMPARE_AND_PUT], np.uint8),
    outcome=np.array([RequestOutcome.HIT, RequestOutcome.DONE, RequestOutcome.CONFLICT], np.uint8),
)
BLOCK = TraceBlock("users.v1", bytes(range(16)), 3, 1_700_000_000_000_001, 42_949_673, 300, 1, COLUMNS)


def test_golden_trace_is_reproduced() -> None:
    """Version 1 encodes to the same bytes for ever."""
    assert encode_block(BLOCK) == GOLDEN.read_bytes()


def test_golden_trace_decodes() -> None:
    """Version 1 decodes for ever."""
    found = decode_block(GOLDEN.read_bytes())
    assert (found.table, found.table_id, found.server_id) == ("users.v1", bytes(range(16)), 3)
    assert (found.base_time_us, found.sample_threshold) == (1_700_000_000_000_001, 42_949_673)
    assert (found.seen_requests, found.dropped_requests, found.requests) == (300, 1, 3)
    for column, expected in zip(found.columns, COLUMNS, strict=True):
        assert column.tolist() == expected.tolist()
