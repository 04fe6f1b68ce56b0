"""Columns: false ones are refused with the next valid offset, and Arrow reads them in place."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from headrace.wire.batch import Codec, read_header, stamp
from headrace.wire.columns import decode_batch, encode_batch, encode_columns
from headrace.wire.compression import compress, decompress
from headrace.wire.encoding import ArrowBuffers, arrow_buffers
from headrace.wire.errors import CorruptBatchError, InvalidRequestError

FULL = encode_batch(
    [b"abc", None, b"de"],
    keys=[None, b"k", b"kk"],
    headers=[[("é", b"1")], None, [("b", b""), ("c", b"3")]],
    timestamps_ms=[1, None, 3],
    base_timestamp_ms=2,
)


def test_layout_is_what_the_docstring_says() -> None:
    """Five bytes a record and a header: offsets, a gap to 8, the values, padding."""
    batch = encode_batch([b"ab", b"c"], base_timestamp_ms=0)
    assert batch[80:] == np.array([0, 2, 3], "<i4").tobytes() + bytes(4) + b"abc" + bytes(5)
    assert read_header(batch).payload_bytes == 19
    assert read_header(batch).padding_bytes == 5


@pytest.mark.parametrize("longest", [0, 255, 256, 70_000])
def test_offsets_are_those_of_short_and_of_long_values(longest: int) -> None:
    """Lengths below 256 are gathered as bytes, their sums are not."""
    values = [bytes(longest), *(bytes(number % 256) for number in range(600)), bytes(longest)]
    columns = decode_batch(encode_batch(values, values, base_timestamp_ms=0), max_payload_bytes=1 << 24)
    assert columns.value_column.to_list() == values
    assert columns.key_column is not None
    assert columns.key_column.to_list() == values


@pytest.mark.parametrize("position", range(80, len(FULL)))
def test_any_changed_payload_byte_is_refused_or_in_range(position: int) -> None:
    """Without checksums, wrong bytes may be read as data but never past a buffer, and never as another exception."""
    for value in (0, 1, 0x7F, 0x80, 0xFF):
        batch = bytearray(FULL)
        batch[position] = value
        try:
            columns = decode_batch(bytes(batch), max_payload_bytes=4096)
        except CorruptBatchError as error:
            assert error.next_offset == 3  # noqa: PT017  (either way is right)
        else:
            assert [len(rows) for rows in (columns.values(), columns.keys(), columns.headers())] == [3, 3, 3]
            columns.to_arrow_headers().validate(full=True)


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ([1, 2, 3], "not at 0"),
        ([0, 3, 2], "ascend"),
        ([0, 1, 4], "past"),
        ([0, 1, 2], "more than"),
        ([0, -1, 3], "asc"),
    ],
)
def test_false_offsets_are_refused_with_the_next_good_offset(offsets: list[int], says: str) -> None:
    """The error has the offset to continue from after a batch with invalid columns."""
    batch = encode_batch([b"a", b"bc"], base_timestamp_ms=0)
    head = stamp(read_header(batch), base_offset=40, append_timestamp_ms=1, leader_epoch=0, previous_crc=0)
    false = head + batch[32:80] + np.array(offsets, "<i4").tobytes() + batch[92:]
    with pytest.raises(CorruptBatchError, match=says) as raised:
        decode_batch(false, max_payload_bytes=4096)
    assert (raised.value.base_offset, raised.value.next_offset) == (40, 42)


def test_inflation_is_bounded_before_it_starts() -> None:
    """payload_bytes over the reader's limit is refused whatever is behind it."""
    batch = encode_batch([bytes(1 << 20) + bytes(range(256)) * 8], base_timestamp_ms=0, codec=Codec.GZIP)
    assert len(batch) < 2000
    with pytest.raises(CorruptBatchError, match="nothing was decompressed"):
        decode_batch(batch, max_payload_bytes=1 << 19)


def test_payload_that_shrinks_too_little_or_too_much_is_stored_as_it_is() -> None:
    """Compression that does not shrink is not kept, nor what leaders refuse as a bomb: over 1,000 times."""
    assert read_header(encode_batch([b"a"], base_timestamp_ms=0, codec=Codec.GZIP)).codec == Codec.NONE
    assert read_header(encode_batch([bytes(1 << 20)], base_timestamp_ms=0, codec=Codec.ZSTD)).codec == Codec.NONE


def test_record_has_at_most_a_thousand_headers() -> None:
    """A producer refuses what leaders and readers do."""
    encode_batch([b"a"], headers=[[("h", b"")] * 1000], base_timestamp_ms=0)
    with pytest.raises(InvalidRequestError, match="1001 headers"):
        encode_batch([b"a"], headers=[[("h", b"")] * 1001], base_timestamp_ms=0)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [(4 << 20) - 9, (4 << 20) - 8, (4 << 20) - 7, (8 << 20) - 7, 9 << 20])
def test_large_payload_inflates_to_its_size_and_no_other(codec: Codec, size: int) -> None:
    """What is inflated in pieces is whole: at their edges, and with a byte more or less stated."""
    payload = (b"%d " % size * (size // 8 + 1))[:size]
    packed = compress(codec, payload)
    assert bytes(decompress(codec, packed, len(payload), 1 << 26)) == payload
    for stated in (len(payload) - 1, len(payload) + 1):
        with pytest.raises(CorruptBatchError):
            decompress(codec, packed, stated, 1 << 26)
    with pytest.raises(CorruptBatchError):
        decompress(codec, packed[:-1], len(payload), 1 << 26)


def test_arrow_reads_in_place() -> None:
    """Arrow's data buffer is the batch's own memory."""
    batch = encode_batch([b"abc", b"de"], base_timestamp_ms=0)
    start = np.frombuffer(batch, np.uint8).ctypes.data
    array = decode_batch(batch, max_payload_bytes=4096).to_arrow_values()
    assert array.buffers()[1].address == start + 80
    assert array.buffers()[2].address == start + 96
    assert array.to_pylist() == [b"abc", b"de"]


def test_all_columns_become_arrow() -> None:
    """Values, keys, headers, timestamps and offsets give the same rows through Arrow."""
    columns = decode_batch(FULL, max_payload_bytes=4096)
    assert columns.to_arrow_values().to_pylist() == columns.values() == [b"abc", None, b"de"]
    assert columns.to_arrow_keys().to_pylist() == columns.keys() == [None, b"k", b"kk"]
    assert columns.to_arrow_timestamps().cast(pa.int64()).to_pylist() == columns.timestamps() == [1, 2, 3]
    assert columns.to_arrow_offsets().to_pylist() == [0, 1, 2]
    headers = [tuple((pair["key"], pair["value"]) for pair in row) for row in columns.to_arrow_headers().to_pylist()]
    assert headers == columns.headers()
    bare = decode_batch(encode_batch([b"a", b"b"], base_timestamp_ms=5), max_payload_bytes=64)
    assert bare.to_arrow_keys().to_pylist() == bare.keys() == [None, None]
    assert bare.to_arrow_headers().to_pylist() == [[], []]
    assert bare.to_arrow_timestamps().cast(pa.int64()).to_pylist() == bare.timestamps() == [5, 5]


@pytest.mark.parametrize("arrow_type", [pa.binary(), pa.string(), pa.large_binary()])
def test_arrow_arrays_encode_like_lists(arrow_type: pa.DataType) -> None:
    """A sliced array with nulls gives the very bytes that its list gives."""
    array = pa.array([b"zz", b"abc", None, b"", b"defg", b"yy"], pa.binary()).cast(arrow_type)[1:5]
    encoded = encode_columns(arrow_buffers(array), base_timestamp_ms=1)
    assert encoded == encode_batch([b"abc", None, b"", b"defg"], base_timestamp_ms=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": []},
        {"values": ["text"]},
        {"values": [b"a"], "keys": []},
        {"values": [b"a"], "headers": [[], [("k", b"")]]},
        {"values": [b"a"], "headers": [[("k", None)]]},
        {"values": [b"a"], "headers": [[(b"k", b"")]]},
        {"values": [b"a"], "timestamps_ms": [1, 2]},
    ],
)
def test_bad_input_is_a_typed_error(arguments: dict) -> None:
    """What cannot be a batch is refused before a byte is written."""
    with pytest.raises(InvalidRequestError):
        encode_batch(arguments.pop("values"), base_timestamp_ms=0, **arguments)


def test_arrow_of_another_type_is_refused() -> None:
    """An array of numbers says to cast it."""
    with pytest.raises(InvalidRequestError, match="cast"):
        arrow_buffers(pa.array([1.5]))


def test_header_key_cut_within_a_character_is_refused() -> None:
    """Each header key is UTF-8 by itself, not only all of them together."""
    batch = encode_batch([b"v"], headers=[[("é", b""), ("", b"")]], base_timestamp_ms=0)
    good = np.array([0, 2, 2], "<i4").tobytes()
    assert batch.count(good) == 1
    with pytest.raises(CorruptBatchError, match="UTF-8 character"):
        decode_batch(batch.replace(good, np.array([0, 1, 2], "<i4").tobytes()), max_payload_bytes=4096)


def test_empty_arrow_buffers_are_no_batch() -> None:
    """An empty array has nothing to send."""
    with pytest.raises(InvalidRequestError):
        encode_columns(ArrowBuffers(np.zeros(1, np.int32), b""), base_timestamp_ms=0)
    assert compress(Codec.NONE, b"x") == b"x"


@pytest.mark.parametrize("loaded", [False, True])
def test_lists_are_the_same_with_and_without_pyarrow(loaded: bool) -> None:
    """The encoder and decoder import neither grpc nor pyarrow, and give what they give with it."""
    program = f"""
import sys
import headrace.wire.batch, headrace.wire.columns, headrace.wire.topic_names
assert not {{"grpc", "pyarrow", "lz4", "zstandard", "headrace.v1.errors_pb2"}} & set(sys.modules)
if {loaded}: import pyarrow
from headrace.wire.columns import decode_batch, encode_batch
for values in ([b"ab", None, b"", b"cde"], [b"ab", b"cd"], [b"", b""], [None, None], [b"a\\x00", b"\\x00\\x00"]):
    assert decode_batch(encode_batch(values, base_timestamp_ms=0), max_payload_bytes=4096).values() == values
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("position", "value", "says"),
    [(80 + 12 + 4 + 5, 1, "gap that is not zero"), (80 + 24, 0b1000, "bits past"), (80 + 24, 9, "do not span")],
)
def test_gaps_spare_bits_and_timestamps_are_checked(position: int, value: int, says: str) -> None:
    """Nothing hides in a gap or behind the last bit, and the column of timestamps is what the header says of it."""
    batch = bytearray(encode_batch([b"", b"x" * 5], timestamps_ms=[1, 2], base_timestamp_ms=0))
    if says == "bits past":
        batch = bytearray(encode_batch([None, b"x" * 5], base_timestamp_ms=0))
    batch[position] = value
    with pytest.raises(CorruptBatchError, match=says):
        decode_batch(bytes(batch), max_payload_bytes=4096)


@pytest.mark.parametrize("values", [[b"abc", None, b"de"], [b"ab", b"cd"], [b"", b"a", b""], [None], [b""]])
def test_entries_are_the_same_where_pyarrow_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, values: list[bytes | None]
) -> None:
    """numpy cuts them where Arrow is not at hand; a part of a column starts with its own entry and validity bit."""
    column = decode_batch(encode_batch(values, base_timestamp_ms=0), max_payload_bytes=1_000).value_column
    assert column.to_list() == values
    assert column.part(1, len(values)).to_list() == values[1:]
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert column.to_list() == values
    assert column.part(1, len(values)).to_list() == values[1:]
