"""Keys of rows: one key for one stored value, for `send`, `send_table` and the simple form alike."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from headrace.client.producer.rows import TypedRow, bulk_of_table, checked_row
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.columns import decode_batch
from headrace.wire.typed.arrow_columns import arrow_type
from headrace.wire.typed.column_types import parse_type
from headrace.wire.typed.json_values import json_row
from headrace.wire.typed.row_keys import key_of
from headrace.wire.typed.topic_columns import parse_columns
from headrace_broker.rpc.records import encode_records

WINTER = datetime(2026, 1, 1, tzinfo=UTC)
PARIS = WINTER.astimezone(timezone(timedelta(hours=1)))


def key_sent(text: str, *values: Any) -> bytes | None:
    """The key of a row that `send` takes."""
    columns = parse_columns(text)
    row = dict(zip((column.name for column in columns.current), values, strict=True))
    return checked_row("t", TypedRow(row), None, columns)


def keys_of_table(text: str, arrays: list[Any]) -> list[bytes]:
    """The keys of the rows that `send_table` takes."""
    columns = parse_columns(text)
    bulk = bulk_of_table("t", pa.table(arrays, [column.name for column in columns.current]), None, None, columns)
    return bulk._keys.to_pylist()


def keys_of_json(text: str, *rows: dict[str, Any]) -> list[bytes | None]:
    """The keys of the rows that a broker takes as JSON."""
    records = [topics_pb2.Record(value=json_row(row)) for row in rows]
    batch = encode_records(broker_pb2.PartitionProduce(records=records), 0, text)
    return list(decode_batch(batch, max_payload_bytes=1 << 20).keys())


@pytest.mark.parametrize(
    ("kind", "key", "values"),
    [
        ("string", b"x", ["x", b"x", np.str_("x")]),
        ("binary", b"x", [b"x", bytearray(b"x"), memoryview(b"x"), "x"]),
        ("binary[1]", b"x", [b"x", bytearray(b"x")]),
        ("bool", b"[true]", [True, np.bool_(True)]),
        ("int64", b"[7]", [7, np.int64(7), np.int8(7)]),
        ("uint64", b"[18446744073709551615]", [2**64 - 1, np.uint64(2**64 - 1)]),
        ("double", b"[1.0]", [1.0, 1, np.float64(1), np.float32(1)]),
        ("float", b"[0.10000000149011612]", [0.1, np.float32(0.1)]),
        ("double", b"[0.0]", [0.0, -0.0, 0]),
        ("float", b"[0.0]", [-0.0, np.float32(-0.0)]),
        (
            "struct<x: list<float>, y: map<double, double>>",
            b'[{"x":[0.0,null],"y":{"0.0":0.0}}]',
            [
                {"x": [-0.0, None], "y": {-0.0: -0.0}},
                {"x": [0.0, None], "y": {0.0: 0.0}},
            ],
        ),
        ("decimal(10, 2)", b'["1.50"]', [Decimal("1.5"), Decimal("1.50"), Decimal("1.500")]),
        ("decimal(10, 2)", b'["0.00"]', [Decimal(0), Decimal("-0.0")]),
        ("date", b'["2026-01-01"]', [date(2026, 1, 1)]),
        ("time[ms]", b'["03:04:05"]', [time(3, 4, 5)]),
        ("duration[us]", b'["0:00:01.500000"]', [timedelta(seconds=1.5), np.timedelta64(1_500_000, "us")]),
        ("timestamp[us]", b'["2026-01-01 00:00:00"]', [WINTER.replace(tzinfo=None), PARIS]),
        ("timestamp[us, UTC]", b'["2026-01-01 00:00:00+00:00"]', [WINTER, PARIS, WINTER.replace(tzinfo=None)]),
        ("timestamp[us, Europe/Paris]", b'["2026-01-01 00:00:00+00:00"]', [WINTER, PARIS]),
        ("timestamp[ns, UTC]", b"[1767225600000000000]", [WINTER, PARIS, 1767225600000000000]),
        ("list<int8>", b"[[1,null]]", [[1, None], np.array([1, None], object)]),
        ("struct<x: decimal(3, 1), y: binary>", b'[{"x":"0.5","y":"ff"}]', [{"x": Decimal("0.50"), "y": b"\xff"}]),
        ("map<int8, date>", b'[{"1":"2026-01-01"}]', [{1: date(2026, 1, 1)}, [(1, date(2026, 1, 1))]]),
    ],
)
def test_a_stored_value_has_one_key(kind: str, key: bytes, values: list[Any]) -> None:
    """Whatever form it was sent in, and whichever way."""
    text = f"1 k {kind} key"
    assert [key_sent(text, value) for value in values] == [key] * len(values)
    with_text = f"1 k {kind} key, 2 s string key"
    (of_table,) = keys_of_table(with_text, [pa.array(values[:1], parse_arrow(kind)), pa.array(["s"])])
    assert [key_sent(with_text, value, "s") for value in values] == [of_table] * len(values)
    assert keys_of_table(text, [pa.array(values[:1], parse_arrow(kind))]) == [key]
    if isinstance(values[0], bytes | str | int | float | Decimal | date | time | timedelta | dict | list):
        assert keys_of_json(text, {"k": values[0]}) == [key]
    assert json.loads(of_table)[1] == "s"


def parse_arrow(kind: str) -> Any:
    """The Arrow type of a column's type."""
    return arrow_type(parse_type(kind))


def test_the_default_of_a_key_column_is_a_value_as_any_other() -> None:
    text = "1 k double key default 1, 2 v string"
    columns = parse_columns(text)
    assert checked_row("t", TypedRow({"v": "x"}), None, columns) == b"[1.0]"
    assert keys_of_json(text, {"v": "x"}, {"k": 1}) == [b"[1.0]"] * 2


def test_a_time_that_python_lacks_is_its_stored_number_in_a_key() -> None:
    """It has this one form wherever the key is made."""
    text, key = "1 k timestamp[s] key", b"[1000000000000000]"
    assert key_sent(text, 10**15) == key
    assert keys_of_table(text, [pa.array([10**15], pa.timestamp("s"))]) == [key]
    assert keys_of_json(text, {"k": 10**15}) == [key]


def test_keys_of_values() -> None:
    assert [key_of(values) for values in (["x"], [b"\xff"], [7], ["x", 7, None, b"\1"])] == [
        b"x", b"\xff", b"[7]", b'["x",7,null,"01"]',
    ]  # fmt: skip
