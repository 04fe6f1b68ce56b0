"""Keys of a table's records."""

from itertools import product

import pytest
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.errors import InvalidRequestError
from headrace.wire.table_keys import (
    MAX_COLUMN_BYTES,
    MAX_ROW_BYTES,
    after_row,
    check_column,
    check_row,
    expiries_of,
    expiry_headers,
    is_table_key,
    prefix_end,
    row_of,
    row_start,
    rows_start,
    split_key,
    table_key,
)

PARTS = [b"".join(parts) for size in range(4) for parts in product((b"\x00", b"\x01", b"a", b"\xff"), repeat=size)]
ROWS = [part for part in PARTS if part]


def test_keys_compare_as_pairs_of_row_and_column_do():
    pairs = sorted((row, column) for row in ROWS for column in PARTS)
    keys = [table_key(row, column) for row, column in pairs]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert [split_key(key) for key in keys] == pairs


def test_a_range_has_the_keys_of_a_row_and_no_others():
    keys = {(row, column): table_key(row, column) for row in ROWS for column in PARTS[:20]}
    for wanted in ROWS:
        found = {row for (row, _), key in keys.items() if row_start(wanted) <= key < after_row(row_start(wanted))}
        assert found == {wanted}
        assert {key[0] for key, value in keys.items() if row_of(value) == row_start(wanted)} == {wanted}


def test_a_prefix_has_the_rows_that_begin_with_it():
    for prefix in ROWS[:40]:
        start, end = rows_start(prefix), prefix_end(rows_start(prefix))
        for row in ROWS:
            key = table_key(row, b"c")
            assert (start <= key and (end is None or key < end)) is row.startswith(prefix)


def test_rows_below_another_are_below_its_start():
    for one, other in product(ROWS, repeat=2):
        assert (table_key(one, b"\xff") < rows_start(other)) is (one < other)


@pytest.mark.parametrize("key", PARTS)
def test_a_key_of_no_table_is_told(key):
    """A key of a plain topic may have the bytes between a row and its column: 1 as eight bytes does."""
    is_one = any(key == table_key(row, column) for row in ROWS for column in PARTS)
    assert is_table_key(key) is is_one
    assert (split_key(key) is None) is not is_one


def test_rows_and_columns_have_limits():
    assert check_row(b"a" * MAX_ROW_BYTES)
    assert check_column(b"") == b""
    for wrong in (b"", b"a" * (MAX_ROW_BYTES + 1)):
        with pytest.raises(InvalidRequestError):
            check_row(wrong)
    with pytest.raises(InvalidRequestError, match="over the limit"):
        check_column(b"a" * (MAX_COLUMN_BYTES + 1))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (expiry_headers(1_700_000_000_000), 1_700_000_000_000),
        (expiry_headers(0), 0),
        ((("trace", b"1"), *expiry_headers(5)), 5),
        ((("headrace.expires_ms", b"soon"),), 0),
        ((("headrace.expires_ms", b"9" * 30),), 0),
        ((("headrace.expires_ms", b"9" * 19),), (1 << 63) - 1),
        ((("headrace.expires_ms", b"x"), *expiry_headers(6), *expiry_headers(7)), 6),
    ],
)
def test_an_expiry_is_a_header(headers, expected):
    others = (("headrace.expires_mS", b"7"),)
    batch = encode_batch([b"1"] * 3, [b"k"] * 3, base_timestamp_ms=0, headers=[(), headers, others])
    assert expiries_of(decode_batch(batch, max_payload_bytes=1 << 20)).tolist() == [0, expected, 0]


def test_a_batch_without_headers_does_not_expire():
    batch = encode_batch([b"1"] * 3, [b"k"] * 3, base_timestamp_ms=0)
    assert expiries_of(decode_batch(batch, max_payload_bytes=1 << 20)).tolist() == [0, 0, 0]
