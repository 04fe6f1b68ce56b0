"""Arrow buffers that batches share."""

import pickle

import pytest

pytest.importorskip("pyarrow")

from headrace.wire.arrow_constants import zeros
from headrace.wire.columns import decode_batch, encode_batch


@pytest.mark.parametrize("size_bytes", [0, 1, 512 << 10, (512 << 10) + 1])
def test_zeros_have_the_size_asked_for_and_cannot_be_written(size_bytes):
    found = zeros(size_bytes)
    assert found.to_pybytes() == bytes(size_bytes)
    assert not zeros(8).is_mutable


def test_arrays_of_absent_columns_are_valid_and_hold_no_more_than_their_own_bytes():
    """Of 3 records: keys a bitmap and 4 offsets, headers 4 offsets; not the whole shared buffer."""
    columns = decode_batch(encode_batch([b"a", b"b", b"c"], base_timestamp_ms=0), max_payload_bytes=1 << 20)
    keys, headers = columns.to_arrow_keys(), columns.to_arrow_headers()
    for array in (keys, headers):
        array.validate(full=True)
        assert array.get_total_buffer_size() <= 32
        assert len(pickle.dumps(array)) < 1_000
    assert (keys.to_pylist(), headers.to_pylist()) == ([None] * 3, [[]] * 3)
