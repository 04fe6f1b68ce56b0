"""What goes in comes out, and no corrupt batch is taken for a sound one."""

import contextlib

import pytest
from headrace.wire import encoding
from headrace.wire.batch import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    Codec,
    check_batch,
    sequence_after,
    sequence_distance,
)
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.compression import decompress
from headrace.wire.errors import CorruptBatchError, HeadraceError
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = {"max_batch_bytes": 1 << 20, "max_records": 1000, "max_payload_bytes": 1 << 20}
ENTRY = st.none() | st.binary(max_size=20)
HEADER = st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), st.binary(max_size=4))
TIME = st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS)
ROW = st.tuples(ENTRY, ENTRY, st.lists(HEADER, max_size=3).map(tuple), st.none() | TIME)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list, int, bytes]:
    rows = draw(st.lists(ROW, min_size=1, max_size=20))
    values, keys, headers, times = (list(column) for column in zip(*rows, strict=True))
    base = draw(TIME)
    batch = encode_batch(
        values,
        keys=draw(st.sampled_from([None, keys])),
        headers=draw(st.sampled_from([None, headers])),
        timestamps_ms=draw(st.sampled_from([None, times])),
        base_timestamp_ms=base,
        codec=draw(st.sampled_from(Codec)),
    )
    return rows, base, batch


@settings(max_examples=150)
@given(batches())
def test_round_trip(drawn: tuple[list, int, bytes]) -> None:
    """Every column comes back as it went in, or as the default of a column that was not given."""
    rows, base, batch = drawn
    assert check_batch(batch, **LIMITS).record_count == len(rows)
    assert len(batch) % 8 == 0
    columns = decode_batch(batch, max_payload_bytes=1 << 20)
    values, keys, headers, times = (list(column) for column in zip(*rows, strict=True))
    assert columns.values() == values
    assert columns.keys() in (keys, [None] * len(rows))
    assert columns.headers() in (headers, [()] * len(rows))
    assert columns.timestamps() in ([base if time is None else time for time in times], [base] * len(rows))
    assert columns.to_arrow_values().to_pylist() == values
    columns.to_arrow_headers().validate(full=True)


@settings(max_examples=150)
@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=encoding.SMALL_RECORDS),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**31 - 1),
)
def test_few_short_values_are_encoded_as_many_are(values: list[bytes], base: int, sequence: int) -> None:
    """The short way gives the same bytes."""
    how = {"base_timestamp_ms": base, "producer_id": 7, "producer_epoch": 1, "base_sequence": sequence}
    columns = encoding.join_column("value", values)
    assert encode_batch(values, **how) == encoding.encode_columns(columns, **how)


@settings(max_examples=200)
@given(batches(), st.data())
def test_every_changed_byte_is_refused(drawn: tuple[list, int, bytes], data: st.DataObject) -> None:
    """I17: no batch with a byte changed passes, wherever the byte is."""
    batch = bytearray(drawn[2])
    position = data.draw(st.integers(0, len(batch) - 1))
    batch[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(HeadraceError):
        check_batch(bytes(batch), **LIMITS)


@settings(max_examples=300)
@given(batches(), st.data())
def test_unchecked_corruption_is_never_out_of_range(drawn: tuple[list, int, bytes], data: st.DataObject) -> None:
    """A payload that lies is a CorruptBatchError or wrong data of the right shape: no other exception, no wild read."""
    rows, _, original = drawn
    batch = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(80, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        columns = decode_batch(bytes(batch), max_payload_bytes=1 << 20)
    except CorruptBatchError:
        return
    assert len(columns.values()) == len(columns.keys()) == len(columns.headers()) == len(rows)


@settings(max_examples=200)
@given(st.sampled_from(Codec), st.binary(max_size=200), st.integers(1, 4096))
def test_inflating_noise_is_bounded(codec: Codec, noise: bytes, payload_bytes: int) -> None:
    """Noise never inflates to anything but the stated size."""
    with contextlib.suppress(CorruptBatchError):
        assert len(decompress(codec, noise, payload_bytes, 4096)) == payload_bytes


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**30 - 1))
def test_sequence_distance_inverts_sequence_after(sequence: int, records: int) -> None:
    """Counting on and measuring agree, across the wrap."""
    assert sequence_distance(sequence, sequence_after(sequence, records)) == records
