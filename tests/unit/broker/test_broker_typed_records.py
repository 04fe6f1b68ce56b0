"""The simple form of typed batches: JSON, and no more memory than its bound."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.errors import BatchTooLargeError
from headrace.wire.typed.arrow_columns import block_of_array
from headrace.wire.typed.topic_columns import parse_columns
from headrace_broker.rpc.records import decode_records


def batch(text: str, arrays: list[pa.Array]) -> bytes:
    """Return a batch of these columns."""
    columns = parse_columns(text).current
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns, strict=True)]
    return b"".join(column_parts(RowBlocks(text, blocks, len(arrays[0])), base_timestamp_ms=0))


def test_a_usual_batch_is_json() -> None:
    """A batch of a megabyte of twenty columns, from an offset on, up to the caller's bytes."""
    text = ", ".join(f"{number + 1} column{number} int64" for number in range(20))
    data = batch(text, [pa.array(np.arange(6_500) + number) for number in range(20)])
    assert len(data) > 1_000_000
    records, next_offset = decode_records(data, 6_000, max_bytes=100_000)
    assert [record.offset for record in records] == list(range(6_000, next_offset))
    assert 100 < len(records) < 500
    assert json.loads(records[0].value) == {f"column{number}": 6_000 + number for number in range(20)}


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        ("1 " + "n" * 250 + " bool", [pa.array(np.zeros(1_000_000, np.bool_))]),
        ("1 a list<bool>", [pa.ListArray.from_arrays([0, 60_000_000], pa.array(np.zeros(60_000_000, np.bool_)))]),
        ("1 a string", [pa.array(["\0" * 7_000_000])]),
    ],
)
def test_little_that_becomes_much_is_refused(text: str, arrays: list[pa.Array]) -> None:
    """Bits become objects, and names are repeated for each row: refused before anything is created."""
    data = batch(text, arrays)
    assert len(data) < 8 << 20
    with pytest.raises(BatchTooLargeError, match="as JSON, over the simple form"):
        decode_records(data, 0, max_bytes=1_000)
