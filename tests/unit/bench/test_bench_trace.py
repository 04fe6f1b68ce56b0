"""The benchmark of request traces reads what it wrote, and says whether the target is met."""

import pytest
from headrace.wire.request_trace import decode_block

from bench import trace


def test_the_trace_has_every_request() -> None:
    """In blocks of the format, of all keys."""
    blocks = [decode_block(value) for value in trace.trace_of(9_000, 100)]
    assert sum(block.requests for block in blocks) == 9_000
    assert {block.sample_threshold for block in blocks} == {1 << 32}


def test_the_table_shows_target_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates are numbers above 0."""
    trace.main(requests=8_000, keys=500, rounds=1)
    lines = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines() if "│" in line]
    rows = {cells[1]: cells[2] for cells in lines}
    rate = int(rows["read and counted, requests/s and core"].replace(",", ""))
    assert rate > 0
    assert rows["target"] == f"1,000,000, {'met' if rate >= trace.TARGET else 'NOT MET'}"
    assert int(rows["capture at 1%, ns a request"].replace(",", "")) > 0
