"""The simple form of typed batches: JSON, and no more memory than its bound."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.errors import BatchTooLargeError, InvalidRequestError
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.topic_columns import parse_columns
from headrace_broker.rpc.records import decode_records, encode_records


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


COLUMNS = (
    "1 page string required, 2 user int32, 3 at timestamp[ms, UTC], 4 price decimal(6, 2), 5 blob binary[4], "
    '6 tags list<int64>, 7 place struct<lat: double, code: binary[2]>, 8 country string default "DE"'
)


def sent(*values: Any, columns: str = COLUMNS, **more: Any) -> bytes:
    """Return the batch of a call with these values as JSON."""
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in values]
    records = [topics_pb2.Record(value=text, **more) for text in texts]
    return encode_records(broker_pb2.PartitionProduce(records=records), 1_000, columns)


def read(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in decode_records(data, 0, max_bytes=1 << 20)[0]]


def test_rows_go_in_as_they_come_out() -> None:
    """JSON of a produce is that of a fetch; a column that is missing has its default, or null."""
    row = {
        "page": "/\u00e9", "user": 7, "at": "2026-01-02T03:04:05.678000+00:00", "price": "-12.50", "blob": "AAECAw==",
        "tags": [1, None], "place": {"lat": 0.5, "code": None}, "country": None,
    }  # fmt: skip
    empty = dict.fromkeys(("user", "at", "price", "blob", "tags", "place"))
    assert read(sent(row, {"page": ""})) == [row, {**empty, "page": "", "country": "DE"}]


def test_keys_are_those_of_key_columns() -> None:
    """As the SDK computes them; else the record's own."""
    keyed = "1 page string key, 2 user int64 key"
    records, _ = decode_records(sent({"page": "/a", "user": 7}, columns=keyed), 0, max_bytes=1 << 20)
    assert records[0].key == b'["/a",7]'
    records, _ = decode_records(sent({"page": "/a"}, key=b"k"), 0, max_bytes=1 << 20)
    assert records[0].key == b"k"
    with pytest.raises(InvalidRequestError, match="a key is given, but the key is page, user"):
        sent({"page": "/a", "user": 7}, columns=keyed, key=b"k")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"/a", "row 1: the topic is typed, and the value is no JSON object"),
        (b"[" * 100_000, "row 1: the topic is typed, and the value is no JSON object"),
        (b"", "row 1: the topic is typed, and the value is no JSON object"),
        ({"user": 1}, "row 1: column page is required, and null"),
        ({"page": "/", "pages": 1}, "row 1: the topic has no column 'pages'"),
        ({"page": 1}, "row 1: column page: 1 is no string: it is int"),
        ({"page": "\ud800"}, "row 1: column page: .* is no string"),
        ({"page": "/", "user": 2**31}, "row 1: column user: 2147483648 is no int32"),
        ({"page": "/", "user": 1.5}, "row 1: column user: 1.5 is no int32: it is float"),
        ({"page": "/", "user": True}, "row 1: column user: True is no int32: it is bool"),
        ({"page": "/", "at": "noon"}, "row 1: column at: 'noon' is no timestamp"),
        ({"page": "/", "at": "2026-01-01T00:00:00.0001Z"}, "row 1: column at: .* it is finer than ms"),
        ({"page": "/", "at": "2026-01-01T00:00:00.000000001Z"}, "row 1: column at: .* it is finer than us"),
        ({"page": "/", "price": "12345.00"}, r"row 1: column price: .* is no decimal\(6, 2\)"),
        ({"page": "/", "price": "0.001"}, "row 1: column price: .* more than 6 digits, 2 of them after the point"),
        ({"page": "/", "price": "1e-999999999"}, "row 1: column price: .* more than 6 digits"),
        ({"page": "/", "price": "1e999999999"}, "row 1: column price: .* more than 6 digits"),
        ({"page": "/", "price": "NaN"}, "row 1: column price: .* it is not finite"),
        ({"page": "/", "blob": "AAE="}, "row 1: column blob: .* it has 2 bytes"),
        ({"page": "/", "tags": {"a": 1}}, "row 1: column tags"),
        ({"page": "/", "place": {"lon": 1}}, "row 1: column place: .* it has no field 'lon'"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit(value: Any, message: str) -> None:
    """The error has the row, the column and the value; nothing is stored."""
    with pytest.raises(InvalidRequestError, match=message):
        sent({"page": "/"}, value)


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        (", ".join(f"{number + 1} c{number} int64" for number in range(1_000)), {}),
        ("1 a binary[1000000]", {}),
        ("1 a list<binary[1000000]>", {"a": [None] * 20}),
        ("1 a list<int8>", {"a": [1] * 600}),
        ("1 a struct<" + ", ".join(f"f{number}: int64" for number in range(1_000)) + ">", {}),
    ],
)  # fmt: skip
def test_few_bytes_of_json_are_no_large_batch(columns: str, value: Any) -> None:
    """Values that rows lack, and null in types of one width, take space all the same."""
    with pytest.raises(BatchTooLargeError, match="the rows have too many values for one call"):
        sent(*[value] * 200, columns=columns)


def test_times_in_several_forms_are_in_one_batch() -> None:
    """Whole numbers, and texts with and without a zone."""
    values = [{"at": 5}, {"at": "1970-01-01T00:00:00.007000000Z"}, {"at": "1970-01-01T00:00:00.006"}, {}]
    data = sent(*values, columns="1 at timestamp[ms, UTC]")
    assert [row["at"] and row["at"][17:] for row in read(data)] == [
        "00.005000+00:00", "00.007000+00:00", "00.006000+00:00", None,
    ]  # fmt: skip
    with pytest.raises(InvalidRequestError, match=r"column at: .* it is finer than us"):
        sent({"at": ["1970-01-01T00:00:00.0000005"]}, columns="1 at list<timestamp[ns]>")
